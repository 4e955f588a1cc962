#include <immintrin.h>

#include "kernels/limit_ops.h"

#define VECTOR __m256i
#define LOAD _mm256_load_si256
#define XOR _mm256_xor_si256
#define ZERO _mm256_setzero_si256
#define FOLD(v) (uint64_t)(_mm256_extract_epi64(v, 0) ^ _mm256_extract_epi64(v, 3))
#include "kernels/limits_x86.inc"

// vpmaddubsw, vpmaddwd, vpaddd: a product of bytes without VNNI. One asm statement over all accumulators, because the
// compiler would keep an array of them in memory.
static void multiply(uint64_t rounds) {
    __m256i s0 = _mm256_setzero_si256(), s1 = s0, s2 = s0, s3 = s0, s4 = s0, s5 = s0, s6 = s0, s7 = s0;
    const __m256i a = _mm256_set1_epi8(3), b = _mm256_set1_epi8(2), ones = _mm256_set1_epi16(1);
#define ONE(n) "vpmaddubsw %9, %8, %%ymm15\n\tvpmaddwd %10, %%ymm15, %%ymm15\n\tvpaddd %%ymm15, %" #n ", %" #n "\n\t"
    for (uint64_t r = 0; r < rounds; ++r)
        __asm__ volatile(ONE(0) ONE(1) ONE(2) ONE(3) ONE(4) ONE(5) ONE(6) ONE(7)
                         : "+x"(s0), "+x"(s1), "+x"(s2), "+x"(s3), "+x"(s4), "+x"(s5), "+x"(s6), "+x"(s7)
                         : "x"(a), "x"(b), "x"(ones)
                         : "xmm15");
#undef ONE
}

const lw_limit_ops limit_ops__avx2 = {read_way, multiply, 8 * 32};
