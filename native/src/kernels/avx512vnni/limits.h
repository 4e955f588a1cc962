// Reading memory with 512-bit vectors, for all levels that have them.
#ifndef LW_KERNELS_AVX512VNNI_LIMITS_H
#define LW_KERNELS_AVX512VNNI_LIMITS_H

#include <immintrin.h>

#include "kernels/limit_ops.h"

#define VECTOR __m512i
#define LOAD _mm512_load_si512
#define XOR _mm512_xor_si512
#define ZERO _mm512_setzero_si512
#define FOLD (uint64_t)_mm512_reduce_add_epi64
#include "kernels/limits_x86.inc"

#endif
