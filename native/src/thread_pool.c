#define _GNU_SOURCE
#include "thread_pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cpu.h"
#include "numa.h"

enum { SPINS = 400 };  // some tens of microseconds of pauses before sleeping

struct lw_pool {
    lw_signal start;    // raised for every run, and to quit
    lw_signal barrier;  // raised when the last thread arrives
    _Alignas(64) atomic_uint arrived;
    unsigned threads;
    unsigned started;
    _Bool quit;  // like work and context written before a start and read behind it
    void (*work)(void*, unsigned);
    void* context;
    pthread_t* handles;
    _Bool pinned;
    uint32_t first_cpu;  // of the calling thread, when pinned
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

// Whoever goes to sleep counts itself and then looks at the value once more; whoever changes the value then looks for
// sleepers. One of the two must see the other: all four accesses are sequentially consistent, and no weaker order will do.
static void wait_while_equal(lw_signal* word, unsigned seen) {
    for (int i = 0; i < SPINS; ++i) {
        if (atomic_load_explicit(&word->value, memory_order_acquire) != seen) return;
        pause_briefly();
    }
    atomic_fetch_add(&word->sleepers, 1);
    while (atomic_load(&word->value) == seen) syscall(SYS_futex, &word->value, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
    atomic_fetch_sub_explicit(&word->sleepers, 1, memory_order_relaxed);  // too many only cost a wake-up
}

void lw_wait_for(const atomic_size_t* count, size_t wanted) {
    for (int i = 0; atomic_load_explicit(count, memory_order_acquire) < wanted; ++i) {
        if (i < SPINS)
            pause_briefly();
        else
            sched_yield();  // whoever is to do it has no CPU
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
        wait_while_equal(gate, holds);
    }
}

void lw_pool_barrier(lw_pool* pool) {
    if (pool->threads == 1) return;
    const unsigned seen = atomic_load_explicit(&pool->barrier.value, memory_order_relaxed);
    if (atomic_fetch_add_explicit(&pool->arrived, 1, memory_order_acq_rel) + 1 == pool->threads) {
        atomic_store_explicit(&pool->arrived, 0, memory_order_relaxed);  // nobody comes again before the next line
        raise_signal(&pool->barrier);
    } else {
        wait_while_equal(&pool->barrier, seen);
    }
}

static void* worker(void* argument) {
    const worker_start self = *(worker_start*)argument;
    free(argument);
    lw_pool* pool = self.pool;
    lw_fp_enter();
    for (unsigned seen = 0;; ++seen) {
        wait_while_equal(&pool->start, seen);
        if (pool->quit) return NULL;
        pool->work(pool->context, self.thread);
        lw_pool_barrier(pool);
    }
}

_Bool lw_start_thread(pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*), void* argument) {
    // A fault of the thread's own is not: the system ends a process that blocks it, and its handler says nothing.
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
    if (cpus != NULL) {  // from its first instruction on: its stack is to lie on its node
        const lw_cpu_mask mask = lw_mask_of(cpus[thread]);
        pthread_attr_setaffinity_np(&attributes, sizeof mask, (const cpu_set_t*)&mask);
    }
    const _Bool started = lw_start_thread(&pool->handles[thread], &attributes, worker, start);
    pthread_attr_destroy(&attributes);
    if (!started) free(start);
    return started;
}

lw_pool* lw_pool_open(unsigned threads, const uint32_t* cpus) {
    lw_pool* pool = aligned_alloc(64, (sizeof *pool + 63) / 64 * 64);
    if (pool == NULL) return NULL;
    *pool =
        (lw_pool){.threads = threads, .started = 1, .pinned = cpus != NULL, .first_cpu = cpus != NULL ? cpus[0] : 0};
    pool->handles = calloc(threads, sizeof *pool->handles);
    while (pool->handles != NULL && pool->started < threads && start_worker(pool, pool->started, cpus)) ++pool->started;
    if (pool->handles == NULL || pool->started < threads) {
        lw_pool_close(pool);
        return NULL;
    }
    return pool;
}

void lw_pool_close(lw_pool* pool) {
    if (pool == NULL) return;
    pool->quit = 1;
    raise_signal(&pool->start);
    for (unsigned i = 1; i < pool->started; ++i) pthread_join(pool->handles[i], NULL);
    free(pool->handles);
    free(pool);
}

unsigned lw_pool_threads(const lw_pool* pool) { return pool->threads; }

void lw_pool_run(lw_pool* pool, void (*work)(void*, unsigned), void* context) {
    const uint64_t saved = lw_fp_enter();
    lw_cpu_mask mask;  // the caller's other work is not ours to confine
    const _Bool pinned = pool->pinned && lw_get_affinity(&mask);
    if (pinned) {
        const lw_cpu_mask own = lw_mask_of(pool->first_cpu);
        lw_set_affinity(&own);
    }
    pool->work = work;
    pool->context = context;
    raise_signal(&pool->start);
    work(context, 0);
    lw_pool_barrier(pool);
    if (pinned) lw_set_affinity(&mask);
    lw_fp_restore(saved);
}
