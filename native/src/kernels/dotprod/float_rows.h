// Some rows by a panel of a type of small floats (LW_MAP_FLOAT). A segment is decoded once for both passes; the second
// pass's products are added after the first pass's.
#ifndef LW_KERNELS_DOTPROD_FLOAT_ROWS_H
#define LW_KERNELS_DOTPROD_FLOAT_ROWS_H

#include "kernels/neon/coded.h"

// By exponent and sign: the first pass's code for mantissa 0, the amount that each unit of the mantissa adds to that
// code, and the second pass's code for mantissa 1.
static const int8_t lw_float_parts[3][16] = {{0, 1, 2, 4, 8, 16, 32, 64, 0, -1, -2, -4, -8, -16, -32, -64},
                                             {0, 0, 0, 1, 2, 4, 8, 16, 0, 0, 0, -1, -2, -4, -8, -16},
                                             {1, 1, 2, 0, 0, 0, 0, 0, -1, -1, -2, 0, 0, 0, 0, 0}};

// Four outputs of group g times the group's inputs: for each row, the sums of both passes.
INLINE void float_group(const int rows, const coded_segment* s, const int8x16_t parts[3], const int8_t* q,
                        size_t stride, size_t g, size_t quad, int32x4_t sums[][2]) {
    const uint8_t* low = s->data + g * (LW_GROUP * LW_PANEL / 2) + quad * 16;
    const uint8_t* high = s->data + LW_SEGMENT * LW_PANEL / 2 + quad * 16;
    UNROLL
    for (int half = 0; half < 2; ++half) {
        int8x16_t first[4], second[4];
        UNROLL
        for (int c = 0; c < 4; ++c) {
            const uint8x16_t two = load_of_column(low, 8, c), four = load_of_column(high, 8, 4 * half + c);
            const uint8x16_t code = half == 0 ? vandq_u8(two, vdupq_n_u8(15)) : vshrq_n_u8(two, 4);
            const uint8x16_t three = vdupq_n_u8(3);
            const int8x16_t mantissa = vreinterpretq_s8_u8(g == 0   ? vandq_u8(four, three)
                                                           : g == 1 ? vandq_u8(vshrq_n_u8(four, 2), three)
                                                           : g == 2 ? vandq_u8(vshrq_n_u8(four, 4), three)
                                                                    : vshrq_n_u8(four, 6));
            first[c] = vmlaq_s8(vqtbl1q_s8(parts[0], code), vqtbl1q_s8(parts[1], code), mantissa);
            second[c] = vmulq_s8(vqtbl1q_s8(parts[2], code), mantissa);
        }
        UNROLL
        for (int r = 0; r < rows; ++r) {
            const int8x16_t inputs = vld1q_s8(q + (size_t)r * stride + 16 * half);
            sums[r][0] = dot16(sums[r][0], first, inputs);
            sums[r][1] = dot16(sums[r][1], second, inputs);
        }
    }
}

// Four outputs over segment `index`, added to results[row][LW_PANEL]. `scales` are those of the first and of the second
// pass.
INLINE void float_tile(const int rows, const coded_segment* s, const int8x16_t parts[3], const lw_activations* x,
                       size_t index, size_t quad, const float scales[2][2 * LW_PANEL], float* results) {
    const float *first = scales[0] + 4 * quad, *second = scales[1] + 4 * quad;
    const float32x4_t scale = vld1q_f32(first), scale_of_second = vld1q_f32(second);
    float32x4_t acc[3], later[3][LW_SEGMENT_GROUPS], da[3];
    UNROLL
    for (int r = 0; r < rows; ++r) {
        acc[r] = vld1q_f32(results + r * LW_PANEL + 4 * quad);
        da[r] = vld1q_f32(x->scale + ((size_t)r * x->segments + index) * LW_SEGMENT_GROUPS);
    }
    UNROLL
    for (size_t g = 0; g < LW_SEGMENT_GROUPS; ++g) {
        int32x4_t sums[3][2];
        UNROLL
        for (int r = 0; r < rows; ++r) sums[r][0] = load_start(lw_magic_start), sums[r][1] = load_start(lw_magic_start);
        float_group(rows, s, parts, x->q + index * LW_SEGMENT + g * LW_GROUP, x->stride, g, quad, sums);
        UNROLL
        for (int r = 0; r < rows; ++r) {
            acc[r] = fma_group(acc[r], scaled_sum(sums[r][0], scale, load_addend(first + LW_PANEL)), da[r], g);
            later[r][g] = scaled_sum(sums[r][1], scale_of_second, load_addend(second + LW_PANEL));
        }
    }
    UNROLL
    for (int r = 0; r < rows; ++r) {
        UNROLL
        for (size_t g = 0; g < LW_SEGMENT_GROUPS; ++g) acc[r] = fma_group(acc[r], later[r][g], da[r], g);
        vst1q_f32(results + r * LW_PANEL + 4 * quad, acc[r]);
    }
}

// All rows of x, of which there are one to three.
INLINE void float_rows(const lw_format f, const int rows, const lw_matrix* w, const lw_activations* x, size_t panel,
                       const workspace* work) {
    const lw_coded_panel p = lw_coded_panel_of(f, w->cols);
    const int8x16_t parts[3] = {vld1q_s8(lw_float_parts[0]), vld1q_s8(lw_float_parts[1]), vld1q_s8(lw_float_parts[2])};
    float scales[2][2 * LW_PANEL];
    const coded_segment any = coded_segment_of(f, w, &p, panel, 0);  // any segment: these scales are per row and the
                                                                     // same in all segments
    for (size_t output = 0; output < LW_PANEL; output += 8) UNROLL
    for (int pass = 0; pass < 2; ++pass) {
        const float32x4x2_t super = coded_super8(f, &any, output);
        store_scale8(1, coded_scale8(lw_pass(f, pass), &any, super, 0, output), scales[pass] + output);
    }
    for (size_t i = 0; i < x->segments; ++i) {
        const coded_segment s = coded_segment_of(f, w, &p, panel, i);
        lw_fetch_ahead_of(w, panel, i, x->segments);
        for (size_t quad = 0; quad < QUADS; ++quad) float_tile(rows, &s, parts, x, i, quad, scales, work->results);
    }
}

#endif
