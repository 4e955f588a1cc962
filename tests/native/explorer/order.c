// The total order that sequentially consistent events must have: `psc` of RC11 has no cycle. Kept as the set of events before
// each; one that reads or writes before others that are there already may close a cycle.
#include <string.h>

#include "explorer.h"

ordered_event ordered[MAX_IN_ORDER];
unsigned n_ordered;

void count_event(int at) {
    memory_of_thread* m = &self->memory;
    if (at != m->last_location || at == ELSEWHERE) memcpy(m->before_run, m->known.clock, sizeof m->before_run);
    m->last_location = at;
    const uint16_t now = ++m->known.clock[self_index()];
    if (now == UINT16_MAX) report("more events than a clock counts");
    unsigned kept = 0;
    for (unsigned i = 0; i < m->n_unfollowed; ++i) {
        ordered_event* e = &ordered[m->unfollowed[i]];
        if (e->location == at)
            m->unfollowed[kept++] = m->unfollowed[i];
        else
            e->followed = now;
    }
    m->n_unfollowed = (uint16_t)kept;
}

static void put_behind(ordered_event* e, unsigned other) {
    for (unsigned w = 0; w < ORDER_WORDS; ++w) e->before[w] |= ordered[other].before[w];
    e->before[other / 64] |= 1ull << (other % 64);
}

// By what they read and wrote at one object: b overwrites what a wrote or read.
static bool comes_first(const ordered_event* a, const ordered_event* b) {
    if (b->wrote == NOTHING) return false;
    return (a->wrote != NOTHING && position_of(a->wrote) < position_of(b->wrote)) ||
           (a->read != NOTHING && position_of(a->read) < position_of(b->wrote));
}

// `sb|!=loc ; hb ; sb|!=loc`: the last event of thread t that is followed elsewhere by what happens before the current
// thread's events elsewhere.
static void put_behind_known(ordered_event* e, unsigned t) {
    for (unsigned i = n_ordered - 1; i-- > 0;) {
        if (ordered[i].thread != t || ordered[i].followed == 0 || ordered[i].followed > self->memory.before_run[t])
            continue;
        put_behind(e, i);
        return;
    }
}

void add_to_order(unsigned at, uint16_t read, uint16_t wrote) {
    memory_of_thread* m = &self->memory;
    if (n_ordered == MAX_IN_ORDER) report("more sequentially consistent events than there is room for");
    const unsigned index = n_ordered++;
    ordered_event* e = &ordered[index];
    *e = (ordered_event){.thread = (uint8_t)self_index(), .location = (uint8_t)at, .read = read, .wrote = wrote};
    e->clock = m->known.clock[self_index()];
    if (m->last_in_order != NOTHING) put_behind(e, m->last_in_order);
    for (unsigned t = 0; t < n_threads; ++t)
        if (t != self_index()) put_behind_known(e, t);
    for (unsigned i = 0; i < index; ++i)
        if (ordered[i].location == at &&
            (comes_first(&ordered[i], e) || m->known.clock[ordered[i].thread] >= ordered[i].clock))
            put_behind(e, i);
    for (unsigned i = 0; i < index; ++i) {
        if (ordered[i].location != at || !comes_first(e, &ordered[i])) continue;
        if (is_before(e, i)) abandon();
        for (unsigned j = 0; j < index; ++j)
            if (j == i || is_before(&ordered[j], i)) put_behind(&ordered[j], index);
    }
    m->last_in_order = (uint16_t)index;
    if (m->n_unfollowed == sizeof m->unfollowed / sizeof *m->unfollowed) report("no room for unfollowed events");
    m->unfollowed[m->n_unfollowed++] = (uint16_t)index;
}
