#include <immintrin.h>

#include "kernels/limit_ops.h"

#define VECTOR __m256i
#define LOAD _mm256_load_si256
#define XOR _mm256_xor_si256
#define ZERO _mm256_setzero_si256
#define FOLD(v) (uint64_t)(_mm256_extract_epi64(v, 0) ^ _mm256_extract_epi64(v, 3))
#include "kernels/limits_x86.inc"

// vpmaddubsw, vpmaddwd, vpaddd: what a product of bytes takes without VNNI.
static void multiply(uint64_t rounds) {
    __m256i acc[8];
    for (int i = 0; i < 8; ++i) acc[i] = _mm256_setzero_si256();
    const __m256i a = _mm256_set1_epi8(3), b = _mm256_set1_epi8(2), ones = _mm256_set1_epi16(1);
    for (uint64_t r = 0; r < rounds; ++r)
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i) {
            __m256i t;
            __asm__ volatile("vpmaddubsw %2, %1, %0" : "=x"(t) : "x"(a), "x"(b));
            __asm__ volatile("vpmaddwd %1, %0, %0" : "+x"(t) : "x"(ones));
            __asm__ volatile("vpaddd %1, %0, %0" : "+x"(acc[i]) : "x"(t));
        }
}

const lw_limit_ops limit_ops__avx2 = {read_way, multiply, 8 * 32};
