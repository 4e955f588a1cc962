#define _GNU_SOURCE
#include "thread_pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cpu.h"
#include "numa.h"
#include "profile.h"

enum { SPINS = 400 };  // some tens of microseconds of pause instructions

// How a thread waits for other threads inside a run.
typedef struct patience {
    uint64_t ns;                      // nanoseconds of spinning before it sleeps; 0: no longer than SPINS
    atomic_uint_fast64_t lost_until;  // until this time spinning is useless
} patience;

// Longer than the last items of a phase take in decode. Not much longer, because the awaited thread may have lost its
// CPU.
static const uint64_t patience_ns = 250000;

// A barrier of the threads of a group, or of one thread of each group. So no cache line is written by every thread of a
// large pool.
typedef struct meeting {
    lw_signal left;  // raised when all threads have arrived
    _Alignas(64) atomic_uint come;
} meeting;

typedef struct group {
    meeting here;
    lw_signal start;  // raised for every run of the group, and to quit
} group;

struct lw_pool {
    meeting groups_meet;
    _Alignas(64) unsigned threads;  // everything from here is read by threads that run and written between runs
    unsigned n_groups;
    unsigned running, running_groups;  // threads of a run, which are the first ones
    unsigned started;
    _Bool quit;  // like work and context: written before a start, read after it
    void (*work)(void*, unsigned);
    void* context;
    patience patience;
    pthread_t* handles;
    _Bool pinned;
    uint32_t first_cpu;  // CPU of the calling thread, if pinned
    group groups[];
};

typedef struct worker_start {
    lw_pool* pool;
    unsigned thread;
} worker_start;

static void pause_briefly(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    __asm__ volatile("isb" ::: "memory");  // waits longer than `yield`, which most Arm cores ignore
#endif
}

static _Bool changes_soon(const lw_signal* word, unsigned seen) {
    for (int i = 0; i < SPINS; ++i) {
        if (atomic_load_explicit(&word->value, memory_order_acquire) != seen) return 1;
        pause_briefly();
    }
    return 0;
}

// True if the value changes while the thread spins. A thread that spun in vain, or lost its CPU meanwhile, shares its
// CPU. Then all threads of the pool sleep where they wait, for so long that such attempts cost little.
static _Bool changes_in_time(patience* p, const lw_signal* word, unsigned seen) {
    const uint64_t begin = lw_profile_now();  // the clock may be a system call
    if (begin < atomic_load_explicit(&p->lost_until, memory_order_relaxed)) return 0;
    for (uint64_t before = begin, now;; before = now) {
        const _Bool changed = changes_soon(word, seen);
        now = lw_profile_now();
        if (now - before > p->ns / 4 || (!changed && now - begin > p->ns)) {
            atomic_store_explicit(&p->lost_until, now + 50 * (now - begin), memory_order_relaxed);
            return changed;
        }
        if (changed) return 1;
    }
}

// A thread that goes to sleep adds itself to `sleepers` and then reads the value once more. A thread that changes the
// value then looks for sleepers. At least one of the two must see the other's write, so all four accesses are
// sequentially consistent; no weaker order suffices.
static void wait_while_equal(lw_signal* word, unsigned seen, patience* p) {
    if (changes_soon(word, seen)) return;
    if (p != NULL && p->ns > 0 && changes_in_time(p, word, seen)) return;
    atomic_fetch_add(&word->sleepers, 1);
    while (atomic_load(&word->value) == seen) syscall(SYS_futex, &word->value, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
    atomic_fetch_sub_explicit(&word->sleepers, 1, memory_order_relaxed);  // a count that is too high only costs a
                                                                          // wake-up
}

void lw_wait_for(const atomic_size_t* count, size_t wanted) {
    for (int i = 0; atomic_load_explicit(count, memory_order_acquire) < wanted; ++i) {
        if (i < SPINS)
            pause_briefly();
        else
            sched_yield();  // the thread that is to add to it may have no CPU
    }
}

static void wake_sleepers(lw_signal* word) {
    if (atomic_load(&word->sleepers) != 0)
        syscall(SYS_futex, &word->value, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

static void raise_signal(lw_signal* word) {
    atomic_fetch_add(&word->value, 1);
    wake_sleepers(word);
}

void lw_gate_hold(lw_signal* gate) { atomic_fetch_add_explicit(&gate->value, 1, memory_order_relaxed); }

_Bool lw_gate_release(lw_signal* gate) {
    unsigned holds = atomic_load_explicit(&gate->value, memory_order_relaxed);
    do {
        if (holds == 0) return 0;
    } while (!atomic_compare_exchange_weak(&gate->value, &holds, holds - 1));
    if (holds == 1) wake_sleepers(gate);
    return 1;
}

void lw_gate_wait(lw_signal* gate) {
    for (;;) {
        const unsigned holds = atomic_load_explicit(&gate->value, memory_order_acquire);
        if (holds == 0) return;
        wait_while_equal(gate, holds, NULL);
    }
}

// True for the last thread to arrive. It does not wait; the others wait until it raises m->left.
static _Bool comes_last(meeting* m, unsigned n) {
    if (atomic_fetch_add_explicit(&m->come, 1, memory_order_acq_rel) + 1 != n) return 0;
    atomic_store_explicit(&m->come, 0, memory_order_relaxed);  // no thread arrives again before `left` is raised
    return 1;
}

static unsigned value_of(const lw_signal* word) { return atomic_load_explicit(&word->value, memory_order_relaxed); }

static void meet_groups(lw_pool* pool) {
    if (pool->running_groups == 1) return;
    meeting* all = &pool->groups_meet;
    const unsigned seen = value_of(&all->left);
    if (comes_last(all, pool->running_groups))
        raise_signal(&all->left);
    else
        wait_while_equal(&all->left, seen, &pool->patience);
}

void lw_pool_barrier(lw_pool* pool, unsigned thread) {
    if (pool->running == 1) return;
    meeting* here = &pool->groups[thread / LW_POOL_GROUP].here;
    const unsigned rest = pool->running - thread / LW_POOL_GROUP * LW_POOL_GROUP, seen = value_of(&here->left);
    if (comes_last(here, rest < LW_POOL_GROUP ? rest : LW_POOL_GROUP)) {
        meet_groups(pool);
        raise_signal(&here->left);
    } else {
        wait_while_equal(&here->left, seen, &pool->patience);
    }
}

// The first thread of a group starts two further groups. A group that does not run is not woken.
static void start_next(lw_pool* pool, unsigned number) {
    for (unsigned next = 2 * number + 1; next <= 2 * number + 2 && next < pool->running_groups; ++next)
        raise_signal(&pool->groups[next].start);
}

static void* worker(void* argument) {
    const worker_start self = *(worker_start*)argument;
    free(argument);
    lw_pool* pool = self.pool;
    const unsigned number = self.thread / LW_POOL_GROUP;
    lw_fp_enter();
    for (unsigned seen = 0;; ++seen) {
        wait_while_equal(&pool->groups[number].start, seen, NULL);
        if (pool->quit) return NULL;
        if (self.thread % LW_POOL_GROUP == 0) start_next(pool, number);
        pool->work(pool->context, self.thread);
        lw_pool_barrier(pool, self.thread);
    }
}

_Bool lw_start_thread(pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*), void* argument) {
    // Fault signals stay unblocked: if a thread blocks them, the system ends the process without running its handler.
    static const int faults[] = {SIGBUS, SIGSEGV, SIGILL, SIGFPE};
    sigset_t all, saved;
    sigfillset(&all);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; ++i) sigdelset(&all, faults[i]);
    pthread_sigmask(SIG_BLOCK, &all, &saved);
    const int failed = pthread_create(thread, attributes, run, argument);
    pthread_sigmask(SIG_SETMASK, &saved, NULL);
    return !failed;
}

static _Bool start_worker(lw_pool* pool, unsigned thread, const uint32_t* cpus) {
    worker_start* start = malloc(sizeof *start);
    pthread_attr_t attributes;
    if (start == NULL || pthread_attr_init(&attributes) != 0) {
        free(start);
        return 0;
    }
    *start = (worker_start){pool, thread};
    if (cpus != NULL) {  // set before the thread starts: its stack is to lie on its node
        const lw_cpu_mask mask = lw_mask_of(cpus[thread]);
        pthread_attr_setaffinity_np(&attributes, sizeof mask, (const cpu_set_t*)&mask);
    }
    const _Bool started = lw_start_thread(&pool->handles[thread], &attributes, worker, start);
    pthread_attr_destroy(&attributes);
    if (!started) free(start);
    return started;
}

lw_pool* lw_pool_open(unsigned threads, const uint32_t* cpus) {
    const unsigned n_groups = (threads + LW_POOL_GROUP - 1) / LW_POOL_GROUP;
    const size_t bytes = sizeof(lw_pool) + n_groups * sizeof(group);
    lw_pool* pool = aligned_alloc(64, bytes);
    if (pool == NULL) return NULL;
    memset(pool, 0, bytes);
    pool->threads = threads;
    pool->n_groups = n_groups;
    lw_pool_use(pool, threads);
    pool->started = 1;
    pool->pinned = cpus != NULL;
    pool->first_cpu = cpus != NULL ? cpus[0] : 0;
    pool->patience.ns = patience_ns;
    lw_pool_limit_cpus(pool, lw_count_cpus(cpus, threads));
    pool->handles = calloc(threads, sizeof *pool->handles);
    while (pool->handles != NULL && pool->started < threads && start_worker(pool, pool->started, cpus)) ++pool->started;
    if (pool->handles == NULL || pool->started < threads) {
        lw_pool_close(pool);
        return NULL;
    }
    return pool;
}

void lw_pool_limit_cpus(lw_pool* pool, unsigned cpus) {
    if (cpus < pool->threads) pool->patience.ns = 0;
}

void lw_pool_close(lw_pool* pool) {
    if (pool == NULL) return;
    pool->quit = 1;
    for (unsigned i = 0; i < pool->n_groups; ++i) raise_signal(&pool->groups[i].start);
    for (unsigned i = 1; i < pool->started; ++i) pthread_join(pool->handles[i], NULL);
    free(pool->handles);
    free(pool);
}

unsigned lw_pool_use(lw_pool* pool, unsigned threads) {
    const unsigned groups = (threads + LW_POOL_GROUP - 1) / LW_POOL_GROUP, all = groups * LW_POOL_GROUP;
    pool->running_groups = groups;
    pool->running = all < pool->threads ? all : pool->threads;
    return pool->running;
}

unsigned lw_pool_threads(const lw_pool* pool) { return pool->threads; }

void lw_pool_run(lw_pool* pool, void (*work)(void*, unsigned), void* context) {
    const uint64_t saved = lw_fp_enter();
    lw_cpu_mask mask;  // restored after the run: the pool must not confine the caller's other work
    const _Bool pinned = pool->pinned && lw_get_affinity(&mask);
    if (pinned) {
        const lw_cpu_mask own = lw_mask_of(pool->first_cpu);
        lw_set_affinity(&own);
    }
    pool->work = work;
    pool->context = context;
    raise_signal(&pool->groups[0].start);
    start_next(pool, 0);
    work(context, 0);
    lw_pool_barrier(pool, 0);
    if (pinned) lw_set_affinity(&mask);
    lw_fp_restore(saved);
}
