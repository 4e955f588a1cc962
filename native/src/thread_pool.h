// A fixed set of threads that run one function together, with barriers inside.
//
// Threads spin and then sleep on a futex. Between runs they spin briefly: an idle pool uses no CPU. At barriers they
// spin briefly, too, if there are fewer CPUs than threads, because a spinning thread may keep the CPU from the thread
// it waits for. Otherwise they spin for a fraction of a millisecond, so that few sleep inside a normal run.
#ifndef LW_THREAD_POOL_H
#define LW_THREAD_POOL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

typedef struct lw_pool lw_pool;

enum { LW_POOL_GROUP = 8 };  // threads that meet at a barrier of their own before the groups meet

// A counter that threads sleep on until it changes.
typedef struct lw_signal {
    _Alignas(64) atomic_uint value;
    atomic_uint sleepers;
} lw_signal;

// A signal as a gate: its value is the number of holds that keep it shut. No hold may be added while a thread waits at
// the gate.
void lw_gate_hold(lw_signal* gate);
_Bool lw_gate_release(lw_signal* gate);  // takes back one hold, from any thread; false if there is none
static inline _Bool lw_gate_is_open(const lw_signal* gate) {
    return atomic_load_explicit(&gate->value, memory_order_acquire) == 0;
}
void lw_gate_wait(lw_signal* gate);  // returns when the gate is open; spins briefly and then sleeps

// pthread_create for a thread that blocks all signals except those of its own faults; other signals go to the caller's
// threads. Returns false when the system refuses.
_Bool lw_start_thread(pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*), void* argument);

// `threads` includes the calling thread. Returns NULL when the system refuses. Thread i stays on CPU cpus[i], the
// caller only during a run. If `cpus` is NULL, threads run where the system puts them.
lw_pool* lw_pool_open(unsigned threads, const uint32_t* cpus);
void lw_pool_close(lw_pool* pool);  // accepts NULL
unsigned lw_pool_threads(const lw_pool* pool);
// Call before the first run: the threads get no more than `cpus` CPUs' worth of time, whatever their affinity mask
// says.
void lw_pool_limit_cpus(lw_pool* pool, unsigned cpus);

// Runs to come use the first `threads` threads, rounded up to whole groups; the others sleep. Returns their number.
unsigned lw_pool_use(lw_pool* pool, unsigned threads);

// Runs work(context, thread) for every thread 0 .. threads-1 and returns when all have finished; the caller is thread
// 0. During the call the floating-point state is the one that the numeric contract demands.
void lw_pool_run(lw_pool* pool, void (*work)(void* context, unsigned thread), void* context);
// Inside a run, called by thread `thread`: returns when every thread of the run has called it.
void lw_pool_barrier(lw_pool* pool, unsigned thread);
// Inside a run: returns when *count has reached `wanted`; other threads add to it. It does not sleep, as the count is
// almost always there already.
void lw_wait_for(const atomic_size_t* count, size_t wanted);

// The items of one phase. A thread that is free takes more, so that a slow core does not delay the others.
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

// Takes a share of the items left, which shrinks towards the end: long contiguous shares first, short ones last, so
// that threads wait briefly at the end. False when none are left.
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

// One thread's progress through a phase of `total` items whose counter begins at zero. Its first items follow from its
// number, so that threads that begin together do not meet at the counter. If there are no more items, no thread reads
// the counter.
typedef struct lw_taker {
    lw_work* work;
    size_t total;
    unsigned threads, thread;
    _Bool begun;
} lw_taker;

static inline _Bool lw_take_first(lw_taker* t, size_t share, size_t* begin, size_t* end) {
    t->begun = 1;
    *begin = t->thread * share;
    *end = *begin + share;
    return *begin < t->total;
}

static inline _Bool lw_take_item(lw_taker* t, size_t* item) {
    size_t end;
    if (!t->begun) return lw_take_first(t, 1, item, &end);
    if (t->total <= t->threads || !lw_work_take(t->work, t->total - t->threads, 1, item, &end)) return 0;
    *item += t->threads;
    return 1;
}

// Items thread, thread + threads, ... without the counter: for few items that take equally long, at whose end all threads
// would meet there. `item` is kept between calls.
static inline _Bool lw_take_by_number(lw_taker* t, size_t* item) {
    *item = t->begun ? *item + t->threads : t->thread;
    t->begun = 1;
    return *item < t->total;
}

// Shares as in lw_work_take_share; the first shares have the same length for all threads.
static inline _Bool lw_take_share(lw_taker* t, size_t* begin, size_t* end) {
    const size_t half = t->total / (2 * (size_t)t->threads), share = half > 0 ? half : 1, all = share * t->threads;
    if (!t->begun) return lw_take_first(t, share, begin, end);
    if (t->total <= all || !lw_work_take_share(t->work, t->total - all, t->threads, begin, end)) return 0;
    *begin += all;
    *end += all;
    return 1;
}

#endif
