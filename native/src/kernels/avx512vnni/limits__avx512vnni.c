#include <immintrin.h>

#include "kernels/limit_ops.h"

#define VECTOR __m512i
#define LOAD _mm512_load_si512
#define XOR _mm512_xor_si512
#define ZERO _mm512_setzero_si512
#define FOLD (uint64_t)_mm512_reduce_add_epi64
#include "kernels/limits_x86.inc"

static void multiply(uint64_t rounds) {
    __m512i acc[12];
    for (int i = 0; i < 12; ++i) acc[i] = _mm512_setzero_si512();
    const __m512i a = _mm512_set1_epi8(3), b = _mm512_set1_epi8(2);
    for (uint64_t r = 0; r < rounds; ++r)
#pragma GCC unroll 12
        for (int i = 0; i < 12; ++i) __asm__ volatile("vpdpbusd %2, %1, %0" : "+v"(acc[i]) : "v"(a), "v"(b));
}

const lw_limit_ops limit_ops__avx512vnni = {read_way, multiply, 12 * 64};
