// Where the time of a session's calls goes: one cell per thread, operation and kernel.
//
// Each thread charges the time since its last charge to the operation that it has just done. So no time between the
// first and the last charge of a call is lost. Without a profile every function here only tests a pointer.
#ifndef LW_PROFILE_H
#define LW_PROFILE_H

#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "lanewise.h"

typedef struct lw_profile_cell {
    uint64_t work_ns, wait_ns;
    uint64_t bytes, macs;
} lw_profile_cell;

typedef struct lw_profile_thread {
    _Alignas(64) uint64_t last_ns;  // time of the last charge
    size_t n_columns;
    lw_profile_cell* cells;  // [LW_OPERATION_COUNT][n_columns]; column 0: no kernel, then 1 + index of the kernel
} lw_profile_thread;

typedef struct lw_profile {
    unsigned n_threads;
    lw_profile_thread* threads;  // [n_threads]
} lw_profile;

// Returns NULL when there is no memory.
lw_profile* lw_profile_open(unsigned n_threads, size_t n_kernels);
void lw_profile_close(lw_profile* profile);  // accepts NULL
// The sum of a cell over all threads.
lw_profile_cell lw_profile_total(const lw_profile* profile, lw_operation operation, size_t column);

static inline uint64_t lw_profile_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline uint64_t lw_profile_lap(lw_profile_thread* p) {
    const uint64_t now = lw_profile_now(), since = now - p->last_ns;
    p->last_ns = now;
    return since;
}

static inline lw_profile_cell* lw_profile_at(const lw_profile_thread* p, lw_operation operation, size_t column) {
    return &p->cells[(size_t)operation * p->n_columns + column];
}

// Call when a step starts: time before it is charged to no operation.
static inline void lw_profile_begin(lw_profile_thread* p) {
    if (p != NULL) p->last_ns = lw_profile_now();
}

static inline void lw_profile_work(lw_profile_thread* p, lw_operation operation, size_t column, uint64_t bytes,
                                   uint64_t macs) {
    if (p == NULL) return;
    lw_profile_cell* cell = lw_profile_at(p, operation, column);
    cell->work_ns += lw_profile_lap(p);
    cell->bytes += bytes;
    cell->macs += macs;
}

static inline void lw_profile_wait(lw_profile_thread* p, lw_operation operation) {
    if (p != NULL) lw_profile_at(p, operation, 0)->wait_ns += lw_profile_lap(p);
}

#endif
