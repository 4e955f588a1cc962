// Sixteen virtual lanes of float (vf) and int32 (vi) on every ISA: one 512-bit register, two of 256, four of 128, or a
// loop. Every function is exact or rounds once, the same way everywhere, so code written over them gives the same bits.
#ifndef LW_KERNELS_LANES_H
#define LW_KERNELS_LANES_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "kernels/half.h"

#if defined(LW_ISA_scalar)
#define LW_INLINE static inline  // forced, its loops of sixteen would take minutes to compile
#else
#define LW_INLINE static inline __attribute__((always_inline))
#endif

#if defined(LW_ISA_avx512vnni)
#include "kernels/lanes_avx512.h"
#elif defined(LW_ISA_avx2)
#include "kernels/lanes_avx2.h"
#elif defined(LW_ISA_neon)
#include "kernels/lanes_neon.h"
#else
#include "kernels/lanes_scalar.h"
#endif

// The one order in which 16 lanes are summed.
LW_INLINE float vf_sum(vf a) {
    float t[16];
    vf_store(t, a);
    for (int width = 8; width > 0; width /= 2)
        for (int i = 0; i < width; ++i) t[i] += t[i + width];
    return t[0];
}

// exp(x), relative error below 2e-7; 0 for x < -87, x is clamped at 88. Cody-Waite reduction and a Taylor-like polynomial of
// degree 6 on [-ln2/2, ln2/2], all steps fused or exact.
LW_INLINE vf vf_exp(vf x) {
    const vf clamped = vf_min(vf_max(x, vf_set1(-87.0f)), vf_set1(88.0f));
    const vf shifted = vf_fma(clamped, vf_set1(1.44269504f), vf_set1(12582912.0f));
    const vf n = vf_sub(shifted, vf_set1(12582912.0f));
    vf r = vf_fma(n, vf_set1(-0.693359375f), clamped);
    r = vf_fma(n, vf_set1(2.12194440e-4f), r);
    vf p = vf_set1(1.3888889e-3f);
    p = vf_fma(p, r, vf_set1(8.3333333e-3f));
    p = vf_fma(p, r, vf_set1(4.1666667e-2f));
    p = vf_fma(p, r, vf_set1(0.16666667f));
    p = vf_fma(p, r, vf_set1(0.5f));
    p = vf_fma(p, r, vf_set1(1.0f));
    p = vf_fma(p, r, vf_set1(1.0f));
    // 2^n by its exponent bits: the low bits of `shifted` hold n.
    const vi scale = vi_shl(vi_add(vf_bits(shifted), vi_set1(127 - 0x4B400000)), 23);
    return vf_keep_ge(x, -87.0f, vf_mul(p, vi_as_float(scale)));
}

#endif
