// Sixteen virtual lanes of float (vf) and int32 (vi) on every ISA: one 512-bit register, two of 256, four of 128, or a
// loop. Every function is exact or rounds once, the same way everywhere, so code written over them gives the same bits.
#ifndef LW_KERNELS_LANES_H
#define LW_KERNELS_LANES_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "kernels/half.h"
#include "kernels/kernel.h"

#if defined(__AVX512F__)
#include "kernels/lanes_avx512.h"
#elif defined(LW_ISA_avx2)
#include "kernels/lanes_avx2.h"
#elif defined(__aarch64__) && !defined(LW_ISA_scalar)
#include "kernels/lanes_neon.h"
#else
#include "kernels/lanes_scalar.h"
#endif

#if !defined(__AVX512F__)
// Lane r: the largest of x[r], for r below n; further lanes are undefined.
LW_INLINE vf vf_largest_each(const vf* x, int n) {
    float largest[16] = {0};
    for (int r = 0; r < n; ++r) largest[r] = vf_largest(x[r]);
    return vf_load(largest);
}
#endif

// The one order in which 16 lanes are summed.
LW_INLINE float vf_sum(vf a) {
    float t[16];
    vf_store(t, a);
    for (int width = 8; width > 0; width /= 2)
        for (int i = 0; i < width; ++i) t[i] += t[i + width];
    return t[0];
}

LW_INLINE int32_t vi_sum(vi a) {
    int32_t t[16], sum = 0;
    memcpy(t, &a, sizeof t);
    for (int i = 0; i < 16; ++i) sum += t[i];
    return sum;
}

// x[i] = exp(x[i]) for -87 <= x[i] <= 88 with a relative error below 2e-7; other inputs give undefined results.
// Cody-Waite reduction and a Taylor-like polynomial of degree 6 on [-ln2/2, ln2/2], all steps fused or exact. Each step
// waits for the one before. So several vectors at a time keep a core busy where a vector is one register.
LW_INLINE void vf_exp_each(vf* x, const int n) {
    static const float terms[] = {8.3333333e-3f, 4.1666667e-2f, 0.16666667f, 0.5f, 1.0f, 1.0f};
    vf shifted[8], p[8];
#pragma GCC unroll 8
    for (int i = 0; i < n; ++i) shifted[i] = vf_fma(x[i], vf_set1(1.44269504f), vf_set1(12582912.0f));
#pragma GCC unroll 8
    for (int i = 0; i < n; ++i) {
        const vf whole = vf_sub(shifted[i], vf_set1(12582912.0f));
        x[i] = vf_fma(whole, vf_set1(-0.693359375f), x[i]);
        x[i] = vf_fma(whole, vf_set1(2.12194440e-4f), x[i]);
    }
#pragma GCC unroll 8
    for (int i = 0; i < n; ++i) p[i] = vf_set1(1.3888889e-3f);
#pragma GCC unroll 6
    for (int t = 0; t < 6; ++t) {
#pragma GCC unroll 8
        for (int i = 0; i < n; ++i) p[i] = vf_fma(p[i], x[i], vf_set1(terms[t]));
    }
    // Times 2^k, where the low bits of `shifted` hold k; exact, as every result has a normal exponent.
#pragma GCC unroll 8
    for (int i = 0; i < n; ++i) x[i] = vi_as_float(vi_add(vf_bits(p[i]), vi_shl(vf_bits(shifted[i]), 23)));
}

// exp(x); 0 for x < -87; x above 88 counts as 88.
LW_INLINE vf vf_exp(vf x) {
    vf clamped = vf_min(vf_max(x, vf_set1(-87.0f)), vf_set1(88.0f));
    vf_exp_each(&clamped, 1);
    return vf_keep_ge(x, -87.0f, clamped);
}

#endif
