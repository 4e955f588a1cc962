// lw_measure_limits: the best that this machine can do, which `bench` compares with.
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/limit_ops.h"
#include "memory.h"
#include "numa.h"
#include "profile.h"
#include "status.h"
#include "thread_pool.h"

enum { TRIALS = 3, PAGE = 4096 };
static const size_t read_bytes = (size_t)1 << 30;  // far larger than the caches
static const double trial_seconds = 0.25;

typedef struct measurement {
    lw_pool* pool;
    const lw_limit_ops* ops;
    const char* data;
    size_t bytes_per_thread;
    int way;          // < 0: multiply
    uint64_t rounds;  // rounds of multiply
    double* begin;    // [threads]
    double* end;
    _Atomic uint64_t checksum;
} measurement;

static double seconds(void) { return 1e-9 * (double)lw_profile_now(); }

// Opens threads on the first allowed CPUs, so that no two share a CPU; unpinned when there are fewer CPUs than threads.
static lw_pool* open_pool(uint32_t n_threads) {
    uint32_t cpus[LW_MAX_THREADS], n = 0;
    lw_cpu_mask allowed;
    lw_get_affinity(&allowed);  // empty when the system refuses
    for (uint32_t cpu = 0; cpu < LW_MAX_CPUS && n < n_threads; ++cpu)
        if (lw_cpu_in_mask(&allowed, cpu)) cpus[n++] = cpu;
    return lw_pool_open(n_threads, n == n_threads ? cpus : NULL);
}

static void measure(void* context, unsigned thread) {
    measurement* m = context;
    lw_pool_barrier(m->pool, thread);
    m->begin[thread] = seconds();
    if (m->way < 0)
        m->ops->multiply(m->rounds);
    else
        m->checksum ^= m->ops->read(m->data + thread * m->bytes_per_thread, m->bytes_per_thread, m->way);
    m->end[thread] = seconds();
}

// Seconds from the first thread's start to the last thread's end.
static double elapsed(measurement* m) {
    lw_pool_run(m->pool, measure, m);
    double begin = m->begin[0], end = m->end[0];
    for (unsigned i = 1; i < lw_pool_threads(m->pool); ++i) {
        if (m->begin[i] < begin) begin = m->begin[i];
        if (m->end[i] > end) end = m->end[i];
    }
    return end - begin;
}

static double best_read(measurement* m) {
    double best = 0;
    const double bytes = (double)m->bytes_per_thread * lw_pool_threads(m->pool);
    for (int trial = 0; trial < TRIALS; ++trial)
        for (m->way = 0; m->way < LW_READ_WAYS; ++m->way) {
            const double rate = bytes / elapsed(m);
            if (rate > best) best = rate;
        }
    return best;
}

static double best_multiply(measurement* m) {
    m->way = -1;
    m->rounds = 100000;
    double t = elapsed(m);
    while (t < trial_seconds / 8) {
        m->rounds *= 4;
        t = elapsed(m);
    }
    m->rounds = (uint64_t)((double)m->rounds * trial_seconds / t) + 1;
    double best = 0;
    for (int trial = 0; trial < TRIALS; ++trial) {
        const double macs = (double)m->rounds * (double)m->ops->macs_per_round * lw_pool_threads(m->pool);
        const double rate = macs / elapsed(m);
        if (rate > best) best = rate;
    }
    return best;
}

lw_status lw_measure_limits(uint32_t n_threads, const char* isa, lw_limits* out) {
    if (out == NULL || n_threads < 1 || n_threads > LW_MAX_THREADS)
        return lw_fail(LW_ERR_ARGUMENT, "lw_measure_limits: %u threads, must be 1 to %d", n_threads, LW_MAX_THREADS);
    lw_level level;
    LW_RETURN_IF_FAILED(lw_level_by_name(isa, &level));
    lw_block block;
    double* times = calloc((size_t)n_threads * 2, sizeof *times);
    const _Bool mapped = lw_block_map(read_bytes, &block);
    measurement m = {.pool = open_pool(n_threads),
                     .ops = lw_level_limit_ops[level],
                     .data = block.data,
                     .bytes_per_thread = read_bytes / n_threads / PAGE * PAGE,
                     .begin = times,
                     .end = times + n_threads};
    const _Bool ok = times != NULL && mapped && m.pool != NULL;
    if (ok) {
        memset(block.data, 1, read_bytes);
        *out = (lw_limits){best_read(&m) * 1e-9, best_multiply(&m) * 1e-9};
    }
    lw_pool_close(m.pool);
    lw_block_unmap(&block);
    free(times);
    return ok ? LW_OK : lw_fail(LW_ERR_MEMORY, "no memory or threads to measure the machine's limits");
}
