// Virtual threads, each with a clock of its own. They meet at barriers, and share the items of phases by the library's
// own code (lw_taker).
#ifndef BENCH_VIRTUAL_CREW_H
#define BENCH_VIRTUAL_CREW_H

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#include "random_model.h"

enum { MAX_THREADS = 512 };

typedef struct machine {
    double gmac, gemv, attention, values;  // work of one core per nanosecond
    double bandwidth, core;                // bytes per nanosecond
    double line;                           // nanoseconds until a cache line is at the next core
    double lost;                           // part of its time for which a core is interrupted
    double serial;                         // part of a step that one thread does while the others wait
    bool before;
} machine;

// Bytes per nanosecond of `busy` threads together, none of which reads more than `core`. Memory slows down before it is
// exhausted: this way of adding both limits fits published scaling (tests/native/test_simulate_cores.py).
static double reading_speed(const machine* m, double core, unsigned busy) {
    const double all = core * (busy > 0 ? busy : 1), share = all / m->bandwidth;
    return all / sqrt(1 + share * share);
}

typedef struct crew {
    const machine* m;
    unsigned n;
    double at[MAX_THREADS];  // clock of each thread, in nanoseconds
} crew;

// A cache line that goes from core to core. `free` is the time at which the next core can have it.
typedef struct line {
    double free;
} line;

static double touch(line* l, double now, double cost) {
    l->free = (l->free > now ? l->free : now) + cost;
    return l->free;
}

// ---- Barriers

static const crew* sorted_crew;
static int compare_clocks(const void* a, const void* b) {
    const double x = sorted_crew->at[*(const unsigned*)a], y = sorted_crew->at[*(const unsigned*)b];
    return x < y ? -1 : x > y;
}

// The threads `who` arrive at a barrier on one cache line, in this order. at[thread] becomes the time at which the
// thread has written the line. Returns the time at which the last thread has.
static double arrive(crew* c, const unsigned* who, unsigned n, double at[]) {
    line come = {0};
    for (unsigned i = 0; i < n; ++i) at[who[i]] = touch(&come, c->at[who[i]], c->n > 1 ? c->m->line : 0);
    return come.free;
}

static void release(const crew* c, const unsigned* who, unsigned n, double from, double at[]) {
    line left = {c->n > 1 ? from + c->m->line : from};
    for (unsigned i = 0; i < n; ++i) at[who[i]] = touch(&left, 0, n > 1 ? c->m->line / 4 : 0);
}

static void barrier(crew* c) {
    unsigned order[MAX_THREADS], last[MAX_THREADS], n_groups = 0;
    const unsigned group = c->m->before ? c->n : LW_POOL_GROUP;
    double came[MAX_THREADS], told[MAX_THREADS];
    for (unsigned first = 0; first < c->n; first += group) {
        const unsigned n = c->n - first < group ? c->n - first : group;
        for (unsigned i = 0; i < n; ++i) order[first + i] = first + i;
        sorted_crew = c;
        qsort(order + first, n, sizeof *order, compare_clocks);
        arrive(c, order + first, n, came);
        last[n_groups++] = order[first + n - 1];
    }
    if (n_groups > 1) {
        for (unsigned i = 0; i < n_groups; ++i) c->at[last[i]] = came[last[i]];
        qsort(last, n_groups, sizeof *last, compare_clocks);
        const double all = arrive(c, last, n_groups, told);
        release(c, last, n_groups, all, told);
    } else {
        told[last[0]] = came[last[0]];
    }
    for (unsigned i = 0; i < n_groups; ++i) {
        const unsigned first = last[i] / group * group, n = c->n - first < group ? c->n - first : group;
        release(c, order + first, n, told[last[i]], c->at);
    }
}

// ---- Phases

typedef struct phase {
    size_t items;
    bool by_share;   // items are taken in shares, otherwise one by one
    bool by_number;  // one by one, without the counter
    double (*work)(const struct phase* p,
                   size_t item);  // nanoseconds, or bytes if the phase reads memory
    bool reads;
    const machine* m;
    const uniform_config* c;
    lw_cuts cuts;
    size_t rows, inputs;
    double bytes_per_weight, of_row;
    double times;  // a weight takes so many times as long to multiply as those that `gmac` is about
    const struct attention_shape* attention;
} phase;

typedef struct thread_state {
    lw_taker taker;
    size_t item;
    bool done;
    double left;  // work that is left of the items taken
} thread_state;

// The library's code before lines were spread: every first share came from the counter, too.
static bool take_before(lw_taker* t, bool by_share, size_t* begin, size_t* end) {
    return by_share ? lw_work_take_share(t->work, t->total, t->threads, begin, end)
                    : lw_work_take(t->work, t->total, 1, begin, end);
}

static void take(crew* c, const phase* p, unsigned thread, thread_state* s, line* counter) {
    size_t begin = 0, end = 0;
    lw_taker* t = &s->taker;
    const bool by_number = !c->m->before && (p->by_number || !t->begun);
    bool got;
    if (c->m->before)
        got = take_before(t, p->by_share, &begin, &end);
    else if (p->by_share)
        got = lw_take_share(t, &begin, &end);
    else if (p->by_number) {
        got = lw_take_by_number(t, &s->item);
        begin = s->item;
        end = begin + 1;
    } else if ((got = lw_take_item(t, &begin)))
        end = begin + 1;
    // If no thread has moved the counter, it was not needed.
    const bool counted = !by_number && atomic_load(&t->work->next) > 0 && c->n > 1;
    if (counted) c->at[thread] = touch(counter, c->at[thread], got ? c->m->line : c->m->line / 4);
    s->done = !got;
    s->left = 0;
    for (size_t item = begin; got && item < end; ++item) s->left += p->work(p, item);
}

// Units of work per nanosecond of one thread while `busy` threads work.
static double speed(const phase* p, unsigned busy) {
    if (!p->reads) return 1;
    // A core reads no faster than it multiplies.
    const double most = p->m->gemv * p->bytes_per_weight, core = p->m->core < most ? p->m->core : most;
    return reading_speed(p->m, core, busy) / (busy > 0 ? busy : 1);
}

// Threads that read share the bandwidth, so their speeds change at every event. The simulation goes from one event to
// the next.
static void run_phase(crew* c, const phase* p) {
    static thread_state states[MAX_THREADS];
    lw_work work = {0};
    line counter = {0};
    double now = 0;
    for (unsigned t = 0; t < c->n; ++t) states[t] = (thread_state){.taker = {&work, p->items, c->n, t, false}};
    for (;;) {
        unsigned busy = 0, next = MAX_THREADS;
        double when = 1e300;
        for (unsigned t = 0; t < c->n; ++t) busy += !states[t].done && states[t].left > 0 && c->at[t] <= now;
        const double rate = speed(p, busy);
        for (unsigned t = 0; t < c->n; ++t) {
            if (states[t].done) continue;
            const bool works = states[t].left > 0 && c->at[t] <= now;
            const double at = works ? now + states[t].left / rate : c->at[t] > now ? c->at[t] : now;
            if (at < when) {
                when = at;
                next = t;
            }
        }
        if (next == MAX_THREADS) break;
        for (unsigned t = 0; t < c->n; ++t)
            if (!states[t].done && states[t].left > 0 && c->at[t] <= now && t != next)
                states[t].left -= (when - now) * rate;
        const bool worked = states[next].left > 0 && c->at[next] <= now;
        now = when;
        c->at[next] = now;
        if (worked || states[next].left <= 0) take(c, p, next, &states[next], &counter);
        if (states[next].done) continue;
    }
    barrier(c);
}

// Holds all threads until memory has given `bytes` since `begin`.
static void wait_for_memory(crew* c, double begin, double bytes) {
    const double end = begin + bytes / reading_speed(c->m, c->m->core, c->n);
    for (unsigned t = 0; t < c->n; ++t)
        if (c->at[t] < end) c->at[t] = end;
}

#endif
