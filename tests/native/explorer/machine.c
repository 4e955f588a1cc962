#include "machine.h"

#include <stdatomic.h>
#include <string.h>

#include "explorer.h"

message messages[MAX_MESSAGES];
location locations[MAX_LOCATIONS];
unsigned n_messages, n_locations;

static bool acquires(int order) { return order != memory_order_relaxed && order != memory_order_release; }
static bool releases(int order) {
    return order == memory_order_release || order == memory_order_acq_rel || order == memory_order_seq_cst;
}

void join_knowledge(knowledge* into, const knowledge* from) {
    for (unsigned i = 0; i < n_threads; ++i)
        if (into->clock[i] < from->clock[i]) into->clock[i] = from->clock[i];
    for (unsigned i = 0; i < n_locations; ++i)
        if (messages[into->newest[i]].position < messages[from->newest[i]].position) into->newest[i] = from->newest[i];
}

static uint64_t in_memory(const volatile void* address, size_t bytes) {
    uint64_t value = 0;
    memcpy(&value, (const void*)address, bytes);
    return value;
}

static uint16_t new_message(uint64_t value) {
    if (n_messages == MAX_MESSAGES) report("more stores than there is room for");
    messages[n_messages].value = value;
    messages[n_messages].modified = messages[n_messages].by_modification = false;
    return (uint16_t)n_messages++;
}

static void insert(location* l, uint16_t id, unsigned position) {
    if (l->n == MAX_HERE) report("more stores to one object than there is room for");
    memmove(l->at + position + 1, l->at + position, (l->n - position) * sizeof *l->at);
    l->at[position] = id;
    ++l->n;
    for (unsigned i = position; i < l->n; ++i) messages[l->at[i]].position = (uint16_t)i;
    l->newest = id;
    memcpy((void*)l->address, &messages[l->at[l->n - 1u]].value, l->bytes);
}

static unsigned location_at(volatile void* address, size_t bytes) {
    for (unsigned i = 0; i < n_locations; ++i)
        if (locations[i].address == (uintptr_t)address) return i;
    if (n_locations == MAX_LOCATIONS) report("more atomic objects than there is room for");
    location* l = &locations[n_locations];
    l->address = (uintptr_t)address;
    l->bytes = bytes;
    l->n = 0;
    const uint16_t id = new_message(in_memory(address, bytes));  // what was there before: races are checked apart
    memset(&messages[id].released, 0, sizeof messages[id].released);
    ++n_locations;
    insert(l, id, 0);
    return n_locations - 1;
}

static bool has_newer(const thread* t) { return ((const location*)t->waits_for)->newest > t->memory.postponed_after; }

typedef struct reading {
    unsigned at;
    bool to_modify;  // messages with a read-modify-write behind them are taken
    bool compares;   // only if they equal `expected`
    uint64_t expected;
} reading;

static bool may_read(const reading* r, uint16_t id) {
    const message* m = &messages[id];
    return !(r->to_modify && m->modified && (!r->compares || m->value == r->expected));
}

static unsigned oldest_to_read(const reading* r) {
    const memory_of_thread* m = &self->memory;
    const unsigned known = position_of(m->known.newest[r->at]) + m->advance, behind = position_of(m->behind);
    return known > behind ? known : behind;
}

// The message that is read: one of those there are, or, later, one that others are still to make.
static uint16_t pick_message(const reading* r) {
    location* l = &locations[r->at];
    memory_of_thread* m = &self->memory;
    for (bool postponed = false;; postponed = true) {
        uint16_t found[MAX_HERE];
        unsigned n = 0;
        for (unsigned p = l->n; p-- > oldest_to_read(r);)
            if (may_read(r, l->at[p]) && !(postponed && l->at[p] <= m->postponed_after)) found[n++] = l->at[p];
        if (!postponed) m->postponed_after = 0;
        m->reads = l;
        const unsigned way = choose(n + (others_may_go() || n == 0), "message", l->address);
        if (way < n) {
            m->behind = m->advance = 0;
            m->reads = NULL;
            return found[way];
        }
        m->postponed_after = l->newest;
        wait_until(has_newer, l, postponed || n > 0);
    }
}

static void take_over(unsigned at, uint16_t id, int order) {
    if (acquires(order)) join_knowledge(&self->memory.known, &messages[id].released);
    if (position_of(self->memory.known.newest[at]) <= position_of(id)) self->memory.known.newest[at] = id;
}

static void attach(uint16_t id, unsigned at, int order) {
    knowledge* released = &messages[id].released;
    if (releases(order))
        *released = self->memory.known;
    else
        memset(released, 0, sizeof *released);
    released->newest[at] = id;
}

void plain_access(const volatile void* address, size_t bytes, access_kind kind) {
    count_event(ELSEWHERE);
    note_access(address, bytes, kind);
    for (unsigned i = 0; kind == PLAIN_WRITE && i < n_locations; ++i) {
        location* l = &locations[i];
        if (l->address < (uintptr_t)address + bytes && (uintptr_t)address < l->address + l->bytes) l->address = 0;
    }
}

uint64_t load(volatile void* address, size_t bytes, int order) {
    const unsigned at = location_at(address, bytes);
    const uint16_t id = pick_message(&(reading){.at = at});
    count_event((int)at);
    note_access(address, bytes, ATOMIC_READ);
    take_over(at, id, order);
    if (order == memory_order_seq_cst) add_to_order(at, id, NOTHING);
    return messages[id].value;
}

uint64_t load_behind(volatile void* address, size_t bytes, const knowledge* behind) {
    const unsigned at = location_at(address, bytes);
    self->memory.behind = behind->newest[at];
    const uint16_t id = pick_message(&(reading){.at = at});
    count_event((int)at);
    take_over(at, id, memory_order_relaxed);
    return messages[id].value;
}

// A place in the modification order behind what the thread knows, none between a message and its modification.
static unsigned pick_position(const location* l, unsigned known) {
    uint16_t found[MAX_HERE];
    unsigned n = 0;
    for (unsigned p = l->n; p > known; --p)
        if (p == l->n || !messages[l->at[p]].by_modification) found[n++] = (uint16_t)p;
    return found[choose(n, "position", l->address)];
}

void store(volatile void* address, size_t bytes, uint64_t value, int order) {
    const unsigned at = location_at(address, bytes);
    location* l = &locations[at];
    const unsigned position = pick_position(l, position_of(self->memory.known.newest[at]));
    count_event((int)at);
    note_access(address, bytes, ATOMIC_WRITE);
    const uint16_t id = new_message(value);
    insert(l, id, position);
    self->memory.known.newest[at] = id;
    attach(id, at, order);
    if (order == memory_order_seq_cst) add_to_order(at, NOTHING, id);
}

static void write_behind(unsigned at, uint16_t read, uint64_t value, int order) {
    location* l = &locations[at];
    const uint16_t id = new_message(value);
    messages[read].modified = true;
    messages[id].by_modification = true;
    insert(l, id, messages[read].position + 1u);
    self->memory.known.newest[at] = id;
    attach(id, at, order);
    join_knowledge(&messages[id].released, &messages[read].released);
    if (order == memory_order_seq_cst) add_to_order(at, read, id);
}

uint64_t modify(volatile void* address, size_t bytes, modification* by, uint64_t operand, int order) {
    const unsigned at = location_at(address, bytes);
    const reading r = {.at = at, .to_modify = true};
    const uint16_t id = pick_message(&r);
    count_event((int)at);
    note_access(address, bytes, ATOMIC_WRITE);
    take_over(at, id, order);
    const uint64_t mask = bytes == 8 ? UINT64_MAX : (1ull << (8 * bytes)) - 1;
    write_behind(at, id, by(messages[id].value, operand) & mask, order);
    return messages[id].value;
}

bool compare_exchange(volatile void* address, size_t bytes, uint64_t* expected, uint64_t desired, int order,
                      int failure_order) {
    const unsigned at = location_at(address, bytes);
    const reading r = {.at = at, .to_modify = true, .compares = true, .expected = *expected};
    const uint16_t id = pick_message(&r);
    const bool equal = messages[id].value == *expected;
    count_event((int)at);
    note_access(address, bytes, equal ? ATOMIC_WRITE : ATOMIC_READ);
    take_over(at, id, equal ? order : failure_order);
    if (equal)
        write_behind(at, id, desired, order);
    else if (failure_order == memory_order_seq_cst)
        add_to_order(at, id, NOTHING);
    *expected = messages[id].value;
    return equal;
}

void wait_for_a_newer_message(void) { self->memory.advance = true; }

void start_thread_memory(memory_of_thread* m) {
    *m = (memory_of_thread){.last_location = ELSEWHERE, .last_in_order = NOTHING};
    if (self != NULL) m->known = self->memory.known;
}

void reset_memory(void) {
    reset_races();
    n_ordered = n_locations = 0;
    n_messages = 1;  // 0 stands for what was there at first
    messages[0].position = 0;
}
