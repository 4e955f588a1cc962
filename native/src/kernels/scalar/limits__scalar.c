#include "kernels/limit_ops.h"

static uint64_t read_way(const void* data, size_t bytes, int way) {
    (void)way;
    const uint64_t* p = data;
    uint64_t s[4] = {0};
    for (size_t i = 0; i < bytes / 8; i += 4)
        for (size_t j = 0; j < 4; ++j) s[j] ^= p[i + j];
    return s[0] ^ s[1] ^ s[2] ^ s[3];
}

static void multiply(uint64_t rounds) {
    int32_t acc[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    int32_t a = 3;
    __asm__ volatile("" : "+r"(a));
    for (uint64_t r = 0; r < rounds; ++r)
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i) {
            acc[i] = (int32_t)((uint32_t)acc[i] * (uint32_t)a + 1u);
            __asm__ volatile("" : "+r"(acc[i]));
        }
}

const lw_limit_ops limit_ops__scalar = {read_way, multiply, 8};
