#include "kernels/avx512vnni/limits.h"

// One asm statement over all accumulators, because the compiler would keep an array of them in memory.
static void multiply(uint64_t rounds) {
    __m512i s0 = _mm512_setzero_si512(), s1 = s0, s2 = s0, s3 = s0, s4 = s0, s5 = s0;
    __m512i s6 = s0, s7 = s0, s8 = s0, s9 = s0, s10 = s0, s11 = s0;
    const __m512i a = _mm512_set1_epi8(3), b = _mm512_set1_epi8(2);
#define ONE(n) "vpdpbusd %13, %12, %" #n "\n\t"
    for (uint64_t r = 0; r < rounds; ++r)
        __asm__ volatile(ONE(0) ONE(1) ONE(2) ONE(3) ONE(4) ONE(5) ONE(6) ONE(7) ONE(8) ONE(9) ONE(10) ONE(11)
                         : "+v"(s0), "+v"(s1), "+v"(s2), "+v"(s3), "+v"(s4), "+v"(s5), "+v"(s6), "+v"(s7), "+v"(s8),
                           "+v"(s9), "+v"(s10), "+v"(s11)
                         : "v"(a), "v"(b));
#undef ONE
}

const lw_limit_ops limit_ops__avx512vnni = {read_way, multiply, 12 * 64};
