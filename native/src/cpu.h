// The instruction-set levels, and which of them this CPU can execute.
#ifndef LW_CPU_H
#define LW_CPU_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "lanewise.h"

typedef enum lw_level {
    LW_LEVEL_SCALAR,
    LW_LEVEL_AVX2,
    LW_LEVEL_AVX512VNNI,
    LW_LEVEL_AVX512VBMI,  // AVX-512-VNNI plus VBMI and VBMI2
    LW_LEVEL_AMX,         // AVX512VBMI plus AMX
    LW_LEVEL_NEON,
    LW_LEVEL_DOTPROD,
    LW_LEVEL_I8MM,
    LW_LEVEL_SVE,  // I8MM plus SVE, vectors of 128 to 512 bits
    LW_LEVEL_COUNT
} lw_level;

enum {
    LW_BIT_SCALAR = 1,
    LW_BIT_AVX2 = 2,
    LW_BIT_AVX512VNNI = 4,
    LW_BIT_AVX512VBMI = 8,
    LW_BIT_AMX = 16,
    LW_BIT_NEON = 32,
    LW_BIT_DOTPROD = 64,
    LW_BIT_I8MM = 128,
    LW_BIT_SVE = 256
};

extern const char* const lw_level_names[LW_LEVEL_COUNT];

// Bit l is set when this CPU (and operating system) can run level l.
uint32_t lw_cpu_levels(void);
lw_level lw_cpu_best_level(void);
// Bits of an SVE vector, 0 without SVE.
uint32_t lw_cpu_vector_bits(void);
// NULL names the best level.
lw_status lw_level_by_name(const char* name, lw_level* out);

#if defined(__x86_64__)
// How kernels prefetch weights (kernels/fetch.h); set when the library is loaded.
typedef enum lw_fetch_order {
    LW_FETCH_LINES,  // line after line, and one line of each group much earlier
    LW_FETCH_PAGES,  // the next line of many pages
    LW_FETCH_WHOLE,  // all lines of a segment at once, early, to the second-level cache
    LW_FETCH_PACED,  // one row: like WHOLE, but paced, and nothing is read before all lines are asked for
    LW_FETCH_NONE,   // no prefetching: left to the hardware
} lw_fetch_order;

extern lw_fetch_order lw_cpu_fetch_order;
#elif defined(__aarch64__)
// Kernels prefetch weights so many bytes before their use; 0 leaves prefetching to the hardware (lw_set_fetch_ahead).
extern atomic_uint lw_cpu_fetch_ahead;

static inline size_t lw_cpu_fetch_distance(void) {
    return atomic_load_explicit(&lw_cpu_fetch_ahead, memory_order_relaxed);
}
#endif

// Sets the calling thread to round to nearest and keep subnormals. Returns the value for lw_fp_restore.
uint64_t lw_fp_enter(void);
void lw_fp_restore(uint64_t saved);

#endif
