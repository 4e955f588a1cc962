// What users of the pool rely on: barriers, work counters, gates, counts to wait for.
#include "cpu.h"
#include "explorer.h"
#include "numa.h"
#include "scenarios.h"
#include "system.h"
#include "thread_pool.h"

// The pool's neighbours, which have nothing to do with memory order.
uint64_t lw_fp_enter(void) { return 0; }
void lw_fp_restore(uint64_t saved) { (void)saved; }
_Bool lw_get_affinity(lw_cpu_mask* mask) { return mask == NULL; }
_Bool lw_set_affinity(const lw_cpu_mask* mask) { return mask == NULL; }
lw_cpu_mask lw_mask_of(uint32_t cpu) { return (lw_cpu_mask){{cpu}}; }
// Too few for the threads: all goes to sleep that may.
uint32_t lw_count_cpus(const uint32_t* cpus, uint32_t n_cpus) { return cpus != NULL && n_cpus > 0; }

enum { MAX_ROUNDS = 8, MAX_ITEMS = 8 };

typedef struct job {
    lw_pool* pool;
    unsigned threads, barriers, run;
    unsigned cells[MAX_ROUNDS][MAX_THREADS];  // who was here
} job;

// Everybody writes, everybody comes to the barrier, everybody reads what all have written.
static void meet(void* context, unsigned thread) {
    job* j = context;
    for (unsigned b = 0; b < j->barriers; ++b) {
        j->cells[b][thread] += j->run;
        lw_pool_barrier(j->pool, thread);
        for (unsigned t = 0; t < j->threads; ++t) expect(j->cells[b][t] == j->run * (j->run + 1) / 2);
    }
    j->cells[j->barriers][thread] += j->run;
}

static void pool(void) {
    job j = {.threads = parameter('n', 2), .barriers = parameter('b', 1)};
    j.pool = lw_pool_open(j.threads, NULL);
    for (j.run = 1; j.run <= parameter('k', 1); ++j.run) {
        lw_pool_run(j.pool, meet, &j);
        for (unsigned t = 0; t < j.threads; ++t) expect(j.cells[j.barriers][t] == j.run * (j.run + 1) / 2);
    }
    lw_pool_close(j.pool);
}

static void meet_in_groups(void* context, unsigned thread) {
    job* j = context;
    j->cells[0][thread] = j->run;
    lw_pool_barrier(j->pool, thread);
    for (unsigned t = 0; t < j->threads; ++t) expect(j->cells[0][t] == j->run);
}

// Runs of one group and of all in turn: a group that does not run is not waited for.
static void groups(void) {
    const unsigned all = parameter('n', 3);
    job j = {.pool = lw_pool_open(all, NULL)};
    for (j.run = 1; j.run <= parameter('k', 2); ++j.run) {
        j.threads = lw_pool_use(j.pool, j.run % 2 == 1 ? 1 : all);
        lw_pool_run(j.pool, meet_in_groups, &j);
        for (unsigned t = 0; t < all; ++t) expect((j.cells[0][t] == j.run) == (t < j.threads));
    }
    lw_pool_close(j.pool);
}

// Items go to one thread each, run after run: the counter starts again before a run, as those of a session's phases do.
typedef struct items {
    lw_pool* pool;
    lw_work work;
    unsigned n, done[MAX_ITEMS];
} items;

static void take_chunks(void* context, unsigned thread) {
    items* w = context;
    size_t begin, end;
    while (lw_work_take(&w->work, w->n, 2, &begin, &end))
        for (; begin < end; ++begin) ++w->done[begin];
    if (thread == 0) expect(begin >= w->n);
}

static void take_shares(void* context, unsigned thread) {
    items* w = context;
    lw_taker taker = {&w->work, w->n, lw_pool_threads(w->pool), thread, 0};
    size_t begin, end;
    while (lw_take_share(&taker, &begin, &end))
        for (; begin < end; ++begin) ++w->done[begin];
}

static void take_items(void* context, unsigned thread) {
    items* w = context;
    lw_taker taker = {&w->work, w->n, lw_pool_threads(w->pool), thread, 0};
    for (size_t item; lw_take_item(&taker, &item);) ++w->done[item];
}

static void share_work(void (*take)(void*, unsigned)) {
    items w = {.n = parameter('i', 3)};
    w.pool = lw_pool_open(parameter('n', 2), NULL);
    for (unsigned run = 1; run <= parameter('k', 2); ++run) {
        atomic_store_explicit(&w.work.next, 0, memory_order_relaxed);
        lw_pool_run(w.pool, take, &w);
        for (unsigned i = 0; i < w.n; ++i) expect(w.done[i] == run);
    }
    lw_pool_close(w.pool);
}

static void work(void) { share_work(take_chunks); }
static void items_by_number(void) { share_work(take_items); }
static void shares(void) { share_work(take_shares); }

// What one thread has computed is waited for by a count, as products wait for the low-rank inputs of adapters.
typedef struct counted {
    lw_pool* pool;
    atomic_size_t count;
    unsigned parts[MAX_THREADS];
} counted;

static void compute_and_wait(void* context, unsigned thread) {
    counted* c = context;
    const unsigned n = lw_pool_threads(c->pool);
    c->parts[thread] = thread + 1;
    atomic_fetch_add_explicit(&c->count, 1, memory_order_release);
    lw_wait_for(&c->count, n);
    for (unsigned t = 0; t < n; ++t) expect(c->parts[t] == t + 1);
}

static void counts(void) {
    counted c = {0};
    c.pool = lw_pool_open(parameter('n', 2), NULL);
    lw_pool_run(c.pool, compute_and_wait, &c);
    lw_pool_close(c.pool);
}

// Threads that wait at a gate which several holds keep shut, each released by the thread that wrote what it guards.
typedef struct gated {
    lw_signal gate;
    unsigned masks[2];
} gated;

static void* pass_gate(void* argument) {
    gated* g = argument;
    lw_gate_wait(&g->gate);
    expect(g->masks[0] == 1 && g->masks[1] == 2);
    return NULL;
}

static void* release_first(void* argument) {
    gated* g = argument;
    g->masks[0] = 1;
    expect(lw_gate_release(&g->gate));
    return NULL;
}

static void gate(void) {
    gated g = {0};
    pthread_t waiters[2], releaser;
    const unsigned n = parameter('n', 1);
    lw_gate_hold(&g.gate);
    lw_gate_hold(&g.gate);
    for (unsigned i = 0; i < n; ++i) lw_start_thread(&waiters[i], NULL, pass_gate, &g);
    lw_start_thread(&releaser, NULL, release_first, &g);
    g.masks[1] = 2;
    expect(lw_gate_release(&g.gate));
    pthread_join(releaser, NULL);
    expect(!lw_gate_release(&g.gate));
    for (unsigned i = 0; i < n; ++i) pthread_join(waiters[i], NULL);
}

const scenario scenarios[] = {{"pool", pool},
                              {"groups", groups},
                              {"work", work},
                              {"items", items_by_number},
                              {"shares", shares},
                              {"counts", counts},
                              {"gate", gate},
                              {"steps_ahead", steps_ahead},
                              {"steps_that_fail", steps_that_fail},
                              {"held_draws", held_draws},
                              {"litmus", run_litmus},
                              {NULL, NULL}};
