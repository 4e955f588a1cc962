#include "thread_pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cpu.h"

enum { SPINS = 400 };  // some tens of microseconds of pauses before sleeping

// A counter that threads wait on until it differs from what they saw.
typedef struct signal_word {
    _Alignas(64) atomic_uint value;
    atomic_uint sleepers;
} signal_word;

struct lw_pool {
    signal_word start;    // raised for every run, and to quit
    signal_word barrier;  // raised when the last thread arrives
    _Alignas(64) atomic_uint arrived;
    unsigned threads;
    unsigned started;
    atomic_bool quit;
    void (*work)(void*, unsigned);
    void* context;
    pthread_t* handles;
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

static void wait_while_equal(signal_word* word, unsigned seen) {
    for (int i = 0; i < SPINS; ++i) {
        if (atomic_load_explicit(&word->value, memory_order_acquire) != seen) return;
        pause_briefly();
    }
    atomic_fetch_add(&word->sleepers, 1);
    while (atomic_load(&word->value) == seen) syscall(SYS_futex, &word->value, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
    atomic_fetch_sub(&word->sleepers, 1);
}

void lw_wait_for(const atomic_size_t* count, size_t wanted) {
    for (int i = 0; atomic_load_explicit(count, memory_order_acquire) < wanted; ++i) {
        if (i < SPINS)
            pause_briefly();
        else
            sched_yield();  // whoever is to do it has no CPU
    }
}

static void raise_signal(signal_word* word) {
    atomic_fetch_add(&word->value, 1);
    if (atomic_load(&word->sleepers) != 0)
        syscall(SYS_futex, &word->value, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

void lw_pool_barrier(lw_pool* pool) {
    if (pool->threads == 1) return;
    const unsigned seen = atomic_load(&pool->barrier.value);
    if (atomic_fetch_add(&pool->arrived, 1) + 1 == pool->threads) {
        atomic_store(&pool->arrived, 0);
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
        if (atomic_load(&pool->quit)) return NULL;
        pool->work(pool->context, self.thread);
        lw_pool_barrier(pool);
    }
}

static _Bool start_worker(lw_pool* pool, unsigned thread) {
    worker_start* start = malloc(sizeof *start);
    if (start == NULL) return 0;
    *start = (worker_start){pool, thread};
    // Signals are the caller's business: workers block them all.
    sigset_t all, saved;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &saved);
    const int failed = pthread_create(&pool->handles[thread], NULL, worker, start);
    pthread_sigmask(SIG_SETMASK, &saved, NULL);
    if (failed) free(start);
    return !failed;
}

lw_pool* lw_pool_open(unsigned threads) {
    lw_pool* pool = aligned_alloc(64, (sizeof *pool + 63) / 64 * 64);
    if (pool == NULL) return NULL;
    *pool = (lw_pool){.threads = threads, .started = 1};
    pool->handles = calloc(threads, sizeof *pool->handles);
    while (pool->handles != NULL && pool->started < threads && start_worker(pool, pool->started)) ++pool->started;
    if (pool->handles == NULL || pool->started < threads) {
        lw_pool_close(pool);
        return NULL;
    }
    return pool;
}

void lw_pool_close(lw_pool* pool) {
    if (pool == NULL) return;
    atomic_store(&pool->quit, 1);
    raise_signal(&pool->start);
    for (unsigned i = 1; i < pool->started; ++i) pthread_join(pool->handles[i], NULL);
    free(pool->handles);
    free(pool);
}

unsigned lw_pool_threads(const lw_pool* pool) { return pool->threads; }

void lw_pool_run(lw_pool* pool, void (*work)(void*, unsigned), void* context) {
    const uint64_t saved = lw_fp_enter();
    pool->work = work;
    pool->context = context;
    raise_signal(&pool->start);
    work(context, 0);
    lw_pool_barrier(pool);
    lw_fp_restore(saved);
}
