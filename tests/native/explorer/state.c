// What of a state can matter to what follows, as a hash of 128 bits.
//
// Left out is what no thread that still runs can tell: messages that all know to be overwritten, uses of memory that all know
// of, events of the total order before which none can be put. Clocks are numbered by those that are left.
#include <stdlib.h>
#include <string.h>

#include "explorer.h"

enum { MAX_CLOCK = 1 << 13, TABLE = 1 << 22 };

typedef struct key {
    uint64_t a, b;
} key;

static uint64_t scramble(uint64_t x) {
    x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93u;
    x = (x ^ (x >> 29)) * 0x9fb21c651e98df25u;
    return x ^ (x >> 32);
}

static void put(key* k, uint64_t x) {
    k->a = scramble(k->a + x + 0x9e3779b97f4a7c15u);
    k->b = scramble((k->b ^ x) * 0xff51afd7ed558ccdu + 0xc4ceb9fe1a85ec53u);
}

static void put_any_order(key* k, key one) {
    put(&one, 1);
    k->a += one.a;
    k->b += one.b;
}

static void put_key(key* k, key one) {
    put(k, one.a);
    put(k, one.b);
}

static void put_bytes(key* k, const char* begin, const char* end) {
    for (; begin + 8 <= end; begin += 8) {
        uint64_t word;
        memcpy(&word, begin, 8);
        put(k, word);
    }
    for (; begin < end; ++begin) put(k, (unsigned char)*begin);
}

// What all running threads know.
static uint16_t base[MAX_THREADS], oldest[MAX_LOCATIONS];
// Clocks that somebody may still compare with, and how many of them are not above one.
static uint16_t number_of[MAX_THREADS][MAX_CLOCK];
static uint16_t last_clock[MAX_THREADS];
// Events of the total order that one to come can be put before, and those whose being before one to come is told by nobody's
// last event.
typedef struct event_set {
    uint64_t words[ORDER_WORDS];
} event_set;
static event_set can_be_preceded;
static bool matters[MAX_IN_ORDER];

static void find_common_knowledge(void) {
    memset(base, 0xff, sizeof base);
    memset(oldest, 0xff, sizeof oldest);
    memset(last_clock, 0, sizeof last_clock);
    for (unsigned t = 0; t < n_threads; ++t) {
        const knowledge* known = &threads[t].memory.known;
        last_clock[t] = known->clock[t];
        if (last_clock[t] >= MAX_CLOCK) report("more events than states tell apart");
        if (threads[t].finished) continue;
        for (unsigned u = 0; u < n_threads; ++u)
            if (known->clock[u] < base[u]) base[u] = known->clock[u];
        for (unsigned l = 0; l < n_locations; ++l)
            if (position_of(known->newest[l]) < oldest[l]) oldest[l] = (uint16_t)position_of(known->newest[l]);
    }
    for (unsigned t = 0; t < n_threads; ++t) memset(number_of[t], 0, (last_clock[t] + 1u) * sizeof **number_of);
}

static unsigned number(unsigned t, unsigned clock) { return number_of[t][clock > base[t] ? clock : base[t]]; }

static unsigned place(unsigned at, uint16_t id) {
    const unsigned position = position_of(id);
    return position > oldest[at] ? position - oldest[at] : 0;
}

static void use_clock(unsigned t, unsigned clock) {
    if (clock > base[t]) number_of[t][clock] = 1;
}

static void use_clocks(uintptr_t address, const word_uses* uses) {
    (void)address;
    for (access_kind kind = 0; kind < N_ACCESSES; ++kind)
        for (unsigned t = 0; t < n_threads; ++t) use_clock(t, uses->clock[kind][t]);
}

static event_set preceded_up_to(unsigned i) {
    event_set s;
    for (unsigned w = 0; w < ORDER_WORDS; ++w) s.words[w] = ordered[i].before[w] & can_be_preceded.words[w];
    s.words[i / 64] |= can_be_preceded.words[i / 64] & 1ull << i % 64;
    return s;
}

static bool has_others(const event_set* s, const event_set* than) {
    for (unsigned w = 0; w < ORDER_WORDS; ++w)
        if ((s->words[w] & ~than->words[w]) != 0) return true;
    return false;
}

// Those that all running threads' last events come after.
static event_set preceded_for_all(void) {
    event_set common = can_be_preceded;
    for (const thread* t = threads; t < threads + n_threads; ++t) {
        if (t->finished) continue;
        const uint16_t last = t->memory.last_in_order;
        const event_set own = last != NOTHING ? preceded_up_to(last) : (event_set){{0}};
        for (unsigned w = 0; w < ORDER_WORDS; ++w) common.words[w] &= own.words[w];
    }
    return common;
}

static void find_events_that_matter(void) {
    memset(&can_be_preceded, 0, sizeof can_be_preceded);
    for (unsigned i = 0; i < n_ordered; ++i)
        if (ordered[i].wrote != NOTHING && place(ordered[i].location, ordered[i].wrote) > 0)
            can_be_preceded.words[i / 64] |= 1ull << i % 64;
    const event_set common = preceded_for_all();
    for (unsigned i = 0; i < n_ordered; ++i) {
        const event_set own = preceded_up_to(i);
        matters[i] = has_others(&own, &common);
        if (!matters[i]) continue;
        use_clock(ordered[i].thread, ordered[i].clock);
        use_clock(ordered[i].thread, ordered[i].followed);
    }
}

static void put_preceded(key* k, unsigned i) {
    const event_set s = preceded_up_to(i);
    key all = {0};
    for (unsigned j = 0; j < n_ordered; ++j)
        if (s.words[j / 64] >> j % 64 & 1)
            put_any_order(&all,
                          (key){locations[ordered[j].location].address, place(ordered[j].location, ordered[j].wrote)});
    put_key(k, all);
}

static void number_clocks(void) {
    for_unknown_uses(base, use_clocks);
    for (unsigned t = 0; t < n_threads; ++t)
        for (unsigned c = 1; c <= last_clock[t]; ++c) number_of[t][c] += number_of[t][c - 1];
}

static void put_knowledge(key* k, const knowledge* known) {
    for (unsigned t = 0; t < n_threads; ++t) put(k, number(t, known->clock[t]));
    key places = {0};
    for (unsigned l = 0; l < n_locations; ++l) {
        const unsigned at = place(l, known->newest[l]);
        if (at > 0) put_any_order(&places, (key){locations[l].address, at});
    }
    put_key(k, places);
}

static void put_event(key* all, unsigned i) {
    const ordered_event* e = &ordered[i];
    key k = {e->thread, locations[e->location].address};
    put(&k, e->read != NOTHING ? 1 + place(e->location, e->read) : 0);
    put(&k, e->wrote != NOTHING ? 1 + place(e->location, e->wrote) : 0);
    put(&k, number(e->thread, e->clock));
    put(&k, e->followed != 0 ? 1 + number(e->thread, e->followed) : 0);
    put_preceded(&k, i);
    put_any_order(all, k);
}

static key key_of_events(void) {
    key all = {0};
    for (unsigned i = 0; i < n_ordered; ++i)
        if (matters[i]) put_event(&all, i);
    return all;
}

static key key_of_message(const location* l, unsigned position) {
    const unsigned at = (unsigned)(l - locations);
    const message* m = &messages[l->at[position]];
    key k = {position - oldest[at], m->value};
    put(&k, (uint64_t)m->modified << 1 | (m->by_modification && position > oldest[at]));
    put_knowledge(&k, &m->released);
    // Threads that have postponed a reading of it read only what was made afterwards.
    for (unsigned t = 0; t < n_threads; ++t)
        put(&k, threads[t].memory.reads == l && l->at[position] > threads[t].memory.postponed_after);
    return k;
}

static key key_of_locations(void) {
    key all = {0};
    for (const location* l = locations; l < locations + n_locations; ++l) {
        if (l->address == 0) continue;
        key k = {l->address, l->n - oldest[l - locations]};
        for (unsigned p = oldest[l - locations]; p < l->n; ++p) put_key(&k, key_of_message(l, p));
        put_any_order(&all, k);
    }
    return all;
}

static key key_of_objects(void) {
    key all = {0};
    for (const object* o = objects; o < objects + n_objects; ++o) {
        key k = {o->address, o->holder != NULL ? 1 + (uint64_t)(o->holder - threads) : 0};
        for (unsigned t = 0; t < n_threads; ++t) put(&k, o->waiting[t]);
        put_knowledge(&k, &o->known);
        put_any_order(&all, k);
    }
    return all;
}

static key uses_key;

static void put_uses(uintptr_t address, const word_uses* uses) {
    key k = {address, uses->forbidden};
    for (access_kind kind = 0; kind < N_ACCESSES; ++kind)
        for (unsigned t = 0; t < n_threads; ++t)
            if (uses->clock[kind][t] > base[t]) put(&k, number(t, uses->clock[kind][t]) << 8 | kind << 4 | t);
    put_any_order(&uses_key, k);
}

static uint64_t identity(const void* p) {
    if (p >= (const void*)locations && p < (const void*)(locations + MAX_LOCATIONS))
        return ((const location*)p)->address;
    if (p >= (const void*)objects && p < (const void*)(objects + MAX_OBJECTS)) return ((const object*)p)->address;
    return (uintptr_t)p;
}

static void put_order(key* k, const memory_of_thread* m) {
    put(k, m->last_location == ELSEWHERE ? 0 : locations[m->last_location].address);
    for (unsigned t = 0; t < n_threads; ++t) put(k, number(t, m->before_run[t]));
    if (m->last_in_order != NOTHING) put_preceded(k, m->last_in_order);
}

static key key_of_thread(const thread* t) {
    key k = {t->started, t->finished};
    put_knowledge(&k, &t->memory.known);
    if (t->finished) return k;
    put(&k, (uintptr_t)t->run);
    put(&k, (uintptr_t)t->argument);
    if (!t->started) return k;
    put_order(&k, &t->memory);
    put(&k, t->memory.advance);
    put(&k, t->memory.behind != 0 && t->memory.reads != NULL
                ? place((unsigned)(t->memory.reads - locations), t->memory.behind)
                : 0);
    put(&k, t == self);
    put(&k, t->postponed);
    put(&k, (uintptr_t)t->may_go);
    put(&k, thread_may_go(t));
    if (t->may_go != NULL) put(&k, identity(t->waits_for));
    put(&k, t->queue != NULL && t->queue->last_wake > t->wait_turn);
    put(&k, t->stage);
    put(&k, t->outcome);
    put_bytes(&k, (const char*)(t->frame + 1), stack_top(t));
    return k;
}

static key key_of_state(void) {
    find_common_knowledge();
    find_events_that_matter();
    number_clocks();
    uintptr_t begin, end;
    arena_bounds(&begin, &end);
    key k = {n_threads, rarities_left()};
    put(&k, given_back);
    put_bytes(&k, (const char*)begin, (const char*)begin + arena_used());
    for (unsigned t = 0; t < n_threads; ++t) put_key(&k, key_of_thread(&threads[t]));
    put_key(&k, key_of_locations());
    put_key(&k, key_of_objects());
    put_key(&k, key_of_events());
    uses_key = (key){0};
    for_unknown_uses(base, put_uses);
    put_key(&k, uses_key);
    return k;
}

bool is_new_state(void) {
    static key* met;
    static unsigned n_met;
    if (met == NULL) met = calloc(TABLE, sizeof *met);
    if (met == NULL || n_met > TABLE / 2) report("more states than there is room for");
    const key k = key_of_state();
    size_t i = k.a % TABLE;
    for (; met[i].a != 0 || met[i].b != 0; i = (i + 1) % TABLE)
        if (met[i].a == k.a && met[i].b == k.b) return false;
    met[i] = k;
    ++n_met;
    return true;
}
