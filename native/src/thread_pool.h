// A fixed set of threads that run one function together, with barriers inside it.
//
// Threads spin briefly and then sleep on a futex, both between runs and at barriers: an idle pool burns nothing, and a
// pool on shared cores loses little.
#ifndef LW_THREAD_POOL_H
#define LW_THREAD_POOL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

typedef struct lw_pool lw_pool;

// A counter that threads sleep on until it changes.
typedef struct lw_signal {
    _Alignas(64) atomic_uint value;
    atomic_uint sleepers;
} lw_signal;

// A signal as a gate: its value is how many holds keep it shut. Whoever waits has it held no further.
void lw_gate_hold(lw_signal* gate);
_Bool lw_gate_release(lw_signal* gate);  // takes one hold back, from any thread; false if there is none
static inline _Bool lw_gate_is_open(const lw_signal* gate) {
    return atomic_load_explicit(&gate->value, memory_order_acquire) == 0;
}
void lw_gate_wait(lw_signal* gate);  // returns when it is open; spins briefly and then sleeps

// pthread_create for a thread that blocks all signals but those of its own faults: the others are the caller's business.
// False when the system refuses.
_Bool lw_start_thread(pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*), void* argument);

// `threads` counts the calling thread. NULL when the system refuses. Thread i stays on CPU cpus[i], the caller for the time
// of a run; with `cpus` NULL they run where the system puts them.
lw_pool* lw_pool_open(unsigned threads, const uint32_t* cpus);
void lw_pool_close(lw_pool* pool);  // accepts NULL
unsigned lw_pool_threads(const lw_pool* pool);

// Runs work(context, thread) for every thread 0 .. threads-1 and returns when all have; the caller is thread 0.
// Floating-point state is set as the numeric contract demands for the time of the call.
void lw_pool_run(lw_pool* pool, void (*work)(void* context, unsigned thread), void* context);
// Inside a run: returns when every thread has come here.
void lw_pool_barrier(lw_pool* pool);
// Inside a run: returns when *count, to which other threads add what they have done, has come to `wanted`. For what is
// almost always done already: it does not sleep.
void lw_wait_for(const atomic_size_t* count, size_t wanted);

// Items of one phase, taken by whoever is free, so that a slow core does not hold the rest.
typedef struct lw_work {
    _Alignas(64) atomic_size_t next;
} lw_work;

// Takes up to `chunk` of `total` items; false when none are left.
static inline _Bool lw_work_take(lw_work* work, size_t total, size_t chunk, size_t* begin, size_t* end) {
    *begin = atomic_fetch_add_explicit(&work->next, chunk, memory_order_relaxed);
    if (*begin >= total) return 0;
    *end = *begin + chunk < total ? *begin + chunk : total;
    return 1;
}

// Takes a share of the items left that shrinks towards the end: long runs of memory at first, and nobody waits long for
// the last ones. False when none are left.
static inline _Bool lw_work_take_share(lw_work* work, size_t total, unsigned threads, size_t* begin, size_t* end) {
    size_t next = atomic_load_explicit(&work->next, memory_order_relaxed), share;
    do {
        if (next >= total) return 0;
        share = (total - next) / (2 * (size_t)threads);
        if (share == 0) share = 1;
    } while (!atomic_compare_exchange_weak_explicit(&work->next, &next, next + share, memory_order_relaxed,
                                                    memory_order_relaxed));
    *begin = next;
    *end = next + share;
    return 1;
}

#endif
