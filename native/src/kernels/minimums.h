// What coded types with minimums take off their products, for every level (kernels/lanes.h):
//     for each group of 32 (or 16) inputs, ascending:  acc = fma(scale * sum of the activation codes, -minimum, acc)
// A product of 1/32 of the size, so it is done for a panel at a time, after the panel's integer part.
#ifndef LW_KERNELS_MINIMUMS_H
#define LW_KERNELS_MINIMUMS_H

#include "kernels/format.h"
#include "kernels/lanes.h"

enum {
    LW_MINIMUM_SEGMENTS = 16,  // whose minimums are decoded at a time
    LW_MINIMUM_FLOATS = LW_MINIMUM_SEGMENTS * (LW_SEGMENT / 16) * LW_PANEL,
    LW_MINIMUM_VECTORS = LW_PANEL / 16,
#if defined(__AVX512F__)
    LW_MINIMUM_ROWS = 8,
#else
    LW_MINIMUM_ROWS = 2,
#endif
};

// 32 values as f32: halves, or bytes less an offset.
LW_INLINE void lw_widen_halves(float* to, const uint8_t* from) {
    for (int v = 0; v < LW_PANEL; v += 16) vf_store(to + v, vf_load_half((const uint16_t*)(from + 2 * v)));
}

#if defined(__aarch64__) && !defined(LW_ISA_scalar)
// A conversion takes four times the slots of a subtraction there.
LW_INLINE void lw_minus_products(float* to, const float* a, const uint8_t* bytes, int shift, int offset) {
    const float32x4_t magic = vdupq_n_f32(LW_MAGIC + (float)offset);
    for (int i = 0; i < LW_PANEL; i += 8) {
        const uint16x8_t wide = vmovl_u8(vshl_u8(vld1_u8(bytes + i), vdup_n_s8((int8_t)-shift)));
        const uint32x4_t low = vaddw_u16(vdupq_n_u32(LW_MAGIC_BITS), vget_low_u16(wide));
        const uint32x4_t high = vaddw_high_u16(vdupq_n_u32(LW_MAGIC_BITS), wide);
        vst1q_f32(to + i, vmulq_f32(vnegq_f32(vld1q_f32(a + i)), vsubq_f32(vreinterpretq_f32_u32(low), magic)));
        vst1q_f32(to + i + 4,
                  vmulq_f32(vnegq_f32(vld1q_f32(a + i + 4)), vsubq_f32(vreinterpretq_f32_u32(high), magic)));
    }
}
#else
LW_INLINE void lw_minus_products(float* to, const float* a, const uint8_t* bytes, int shift, int offset) {
    for (int i = 0; i < LW_PANEL; ++i) to[i] = -(a[i] * (float)((bytes[i] >> shift) - offset));
}
#endif

// Negated minimums of one segment, [groups][32].
LW_INLINE void lw_negated_minimums(const lw_format f, const lw_coded_panel* p, const uint8_t* panel, size_t segment,
                                   float* to) {
    const uint8_t* data = panel + p->segments + segment * p->segment_bytes;
    const uint8_t* minimums = panel + p->minimums;
    float scale[LW_PANEL];
    if (lw_has_super_minimum(f))
        lw_widen_halves(scale,
                        panel + p->super_minimums + segment / (LW_SUPER_BLOCK_INPUTS / LW_SEGMENT) * LW_PANEL * 2);
    for (size_t g = 0; g < (f.group == 16 ? 8 : 4); ++g, to += LW_PANEL) {
        const size_t group = segment * 4 + g;
        if (f.minimum == LW_MINIMUM_F16) {
            lw_widen_halves(to, minimums + group * LW_PANEL * 2);
            for (int i = 0; i < LW_PANEL; ++i) to[i] = -to[i];
        } else if (f.minimum == LW_MINIMUM_U8) {
            lw_minus_products(to, scale, minimums + group * LW_PANEL, 0, 0);
        } else if (f.minimum == LW_MINIMUM_NIBBLES) {
            lw_minus_products(to, scale, data + p->scales + g * LW_PANEL, 4, 0);
        } else {
            const size_t shared = g * LW_GROUP / f.group;  // group of the segment
            lw_widen_halves(scale, data + p->scales + shared * LW_PANEL * 2);
            lw_minus_products(to, scale, minimums + (segment * (LW_SEGMENT / f.group) + shared) * LW_PANEL, 0,
                              f.offset);
        }
    }
}

LW_INLINE void lw_minimum_tile(const float* minimums, const float* sums, size_t sum_stride, size_t segments,
                               const int groups, const int rows, float* results) {
    vf acc[LW_MINIMUM_ROWS][LW_MINIMUM_VECTORS];
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r)
        for (int v = 0; v < LW_MINIMUM_VECTORS; ++v) acc[r][v] = vf_load(results + r * LW_PANEL + v * 16);
    for (size_t s = 0; s < segments; ++s, sums += LW_SUMS)
        for (int g = 0; g < groups; ++g, minimums += LW_PANEL) {
            const vf m0 = vf_load(minimums), m1 = vf_load(minimums + 16);
#pragma GCC unroll 8
            for (int r = 0; r < rows; ++r) {
                const vf sum = vf_set1(sums[(size_t)r * sum_stride + (size_t)g]);
                acc[r][0] = vf_fma(sum, m0, acc[r][0]);
                acc[r][1] = vf_fma(sum, m1, acc[r][1]);
            }
        }
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r)
        for (int v = 0; v < LW_MINIMUM_VECTORS; ++v) vf_store(results + r * LW_PANEL + v * 16, acc[r][v]);
}

// results[rows][32] of a panel's integer part become its product. `scratch`: [LW_MINIMUM_FLOATS].
LW_INLINE void lw_subtract_minimums(const lw_format f, const lw_matrix* w, const lw_activations* x, size_t panel,
                                    float* results, float* scratch) {
    const int groups = f.group == 16 ? 8 : 4;
    const lw_coded_panel p = lw_coded_panel_of(f, w->cols);
    const uint8_t* data = w->data + panel * w->panel_bytes;
    const size_t stride = x->segments * LW_SUMS;
    for (size_t first = 0, n; first < x->segments; first += n) {
        n = x->segments - first < LW_MINIMUM_SEGMENTS ? x->segments - first : LW_MINIMUM_SEGMENTS;
        for (size_t s = 0; s < n; ++s)
            lw_negated_minimums(f, &p, data, first + s, scratch + s * (size_t)groups * LW_PANEL);
        const float* sums = x->sums + first * LW_SUMS + (groups == 8 ? LW_SUMS_16 : 0);
        size_t row = 0;
        for (; row + LW_MINIMUM_ROWS <= x->rows; row += LW_MINIMUM_ROWS)
            lw_minimum_tile(scratch, sums + row * stride, stride, n, groups, LW_MINIMUM_ROWS, results + row * LW_PANEL);
        for (; row < x->rows; ++row)
            lw_minimum_tile(scratch, sums + row * stride, stride, n, groups, 1, results + row * LW_PANEL);
    }
}

#endif
