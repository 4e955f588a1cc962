// Tiles of SMMLA: a vector holds two outputs by eight inputs, a sum two rows by two outputs.
//
// Sums stay in that 2x2 shape until the product is done, and scales are duplicated to match: no shuffles in the loops.
// One row alone uses SDOT on the same packed weights and adds neighbours once per group.
#ifndef LW_KERNELS_I8MM_MATMUL_TILE_H
#define LW_KERNELS_I8MM_MATMUL_TILE_H

#include "kernels/i8mm/tile.h"
#include "kernels/neon/matmul_common.h"

// Half of group `group` of four outputs: w[2i + p] holds eight inputs of outputs 2p and 2p + 1, those of chunk
// chunk_of(from, step, i). A step of Q4_0 uses up what it loads, a step of Q6_K is one of the two groups of 16 inputs.
// FROM_Q6 gives the unsigned code, 32 too large.
INLINE int chunk_of(const source from, const int step, const int i) {
    return from == FROM_Q4 ? step + 2 * i : 2 * step + i;
}

INLINE void load_step(const source from, const segment* s, size_t group, size_t quad, const int step, int8x16_t w[4]) {
    const uint8_t* base = s->data + group * packed_group_bytes(from) + quad * 32;
    UNROLL
    for (int p = 0; p < 2; ++p) {
        if (from == FROM_Q8) {
            w[p] = vreinterpretq_s8_u8(vld1q_u8(base + 512 * step + 16 * p));
            w[2 + p] = vreinterpretq_s8_u8(vld1q_u8(base + 512 * step + 256 + 16 * p));
        } else if (from == FROM_Q4) {
            const uint8x16_t raw = vld1q_u8(base + 256 * step + 16 * p);
            w[p] = vreinterpretq_s8_u8(vshlq_n_u8(raw, 4));
            w[2 + p] = vreinterpretq_s8_u8(vandq_u8(raw, vdupq_n_u8(0xF0)));
        } else {
            const uint8x16_t low_mask = vdupq_n_u8(0x0F), top_mask = vdupq_n_u8(0x30);
            const uint8x16_t a = vld1q_u8(base + 16 * p), b = vld1q_u8(base + 256 + 16 * p);
            const uint8x16_t top = vld1q_u8(base + LW_Q6_LOW_BYTES + 16 * p);
            if (step == 0) {
                w[p] = vreinterpretq_s8_u8(vbslq_u8(top_mask, vshlq_n_u8(top, 4), vandq_u8(a, low_mask)));
                w[2 + p] = vreinterpretq_s8_u8(vbslq_u8(top_mask, vshlq_n_u8(top, 2), vandq_u8(b, low_mask)));
            } else {
                w[p] = vreinterpretq_s8_u8(vbslq_u8(top_mask, top, vshrq_n_u8(a, 4)));
                w[2 + p] = vreinterpretq_s8_u8(vbslq_u8(top_mask, vshrq_n_u8(top, 2), vshrq_n_u8(b, 4)));
            }
        }
    }
}

// Four f16 of which only those are used.
INLINE float16x8_t four_halves(const uint8_t* p) {
    return vcombine_f16(vreinterpret_f16_u8(vld1_u8(p)), vdup_n_f16(0));
}

// The scale differences of a group (of two halves for Q6_K) of four outputs; `super` is their f16 scale in Q6_K.
INLINE void load_differences(const source from, const segment* s, size_t group, size_t quad, float32x4_t super,
                             float32x4_t ds[2]) {
    const uint8_t* here = s->data + group * packed_group_bytes(from) + scale_offset(from);
    const uint8_t* next = group + 1 < s->groups ? here + packed_group_bytes(from) : lw_zero_scales;
    if (from == FROM_Q6) {
        const int8_t* codes = (const int8_t*)here + 4 * quad;
        ds[0] = q6_difference(super, codes, codes + LW_PANEL);
        ds[1] = q6_difference(super, codes + LW_PANEL, (const int8_t*)next + 4 * quad);
    } else {
        // The first multiplication by 1 widens exactly, the second rounds the difference once.
        const float16x8_t one = vdupq_n_f16(1);
        const float32x4_t wide = vfmlalq_low_f16(vdupq_n_f32(0), four_halves(here + 8 * quad), one);
        ds[0] = vfmlslq_low_f16(wide, four_halves(next + 8 * quad), one);
    }
}

// The f16 scale of four outputs for a segment of Q6_K.
INLINE float32x4_t super_scale(const source from, const segment* s, size_t quad) {
    return from == FROM_Q6 ? load_half4(s->super + 8 * quad) : vdupq_n_f32(0);
}

// [s0 s1 s0 s1] and [s2 s3 s2 s3]
INLINE void duplicate(float32x4_t ds, float32x4_t out[2]) {
    const float64x2_t twos = vreinterpretq_f64_f32(ds);
    out[0] = vreinterpretq_f32_f64(vdupq_laneq_f64(twos, 0));
    out[1] = vreinterpretq_f32_f64(vdupq_laneq_f64(twos, 1));
}

// The activation scales of two rows as a sum needs them; a row past the last one has scale 0.
INLINE float32x4_t pair_scale(const lw_activations* x, size_t row, size_t index) {
    const float* scale = x->scale + row * x->segments + index;
    return vcombine_f32(vdup_n_f32(scale[0]), vdup_n_f32(row + 1 < x->rows ? scale[x->segments] : 0.0f));
}

// `pairs` pairs of rows by 4 * `quads` outputs over one segment, added to results[pair of rows][pair of outputs].
// `bias` is for FROM_Q6: what to take off the sums of each pair and group of 16 inputs, LW_MAGIC included.
INLINE void tile(const source from, const int pairs, const int quads, const segment* s, const lw_activations* x,
                 const float32x4_t scale_of_x[4], const float32x4_t bias[4][2 * LW_SEGMENT_GROUPS], size_t quad,
                 float* results) {
    const bool halves = from == FROM_Q6;  // groups of 16 inputs
    const float32x4_t magic = vdupq_n_f32(LW_MAGIC);
    int32x4_t acc[4][8];
    float32x4_t seg[4][8], scale[4];
    const size_t stride = 2 * x->stride;
    const int8_t* q = x->q + 2 * s->k;
    UNROLL
    for (int r = 0; r < pairs; ++r) UNROLL
    for (int j = 0; j < 2 * quads; ++j) {
        acc[r][j] = vdupq_n_s32(LW_MAGIC_BITS);
        seg[r][j] = vdupq_n_f32(0);
    }
    UNROLL
    for (int j = 0; j < quads; ++j) scale[j] = super_scale(from, s, quad + j);
    for (size_t g = 0; g < s->groups; ++g) {
        UNROLL
        for (int j = 0; j < quads; ++j) {
            float32x4_t single[2], ds[2][2];  // [half][pair of outputs]
            load_differences(from, s, g, quad + j, scale[j], single);
            UNROLL
            for (int h = 0; h <= halves; ++h) duplicate(single[h], ds[h]);
            UNROLL
            for (int step = 0; step < 2; ++step) {
                int8x16_t w[4];
                load_step(from, s, g, quad + j, step, w);
                UNROLL
                for (int i = 0; i < 2; ++i) UNROLL
                for (int r = 0; r < pairs; ++r) {
                    const int8x16_t inputs = vld1q_s8(q + r * stride + g * 64 + chunk_of(from, step, i) * 16);
                    UNROLL
                    for (int p = 0; p < 2; ++p) acc[r][2 * j + p] = vmmlaq_s32(acc[r][2 * j + p], inputs, w[2 * i + p]);
                }
                if (step == 0 && !halves) continue;
                UNROLL
                for (int r = 0; r < pairs; ++r) {
                    const float32x4_t offset = from == FROM_Q6 ? bias[r][2 * g + step] : magic;
                    UNROLL
                    for (int p = 0; p < 2; ++p)
                        seg[r][2 * j + p] = vfmaq_f32(seg[r][2 * j + p], prefix_float(acc[r][2 * j + p], offset),
                                                      ds[step && halves][p]);
                }
            }
        }
    }
    UNROLL
    for (int r = 0; r < pairs; ++r) {
        float* to = results + 2 * r * LW_PANEL + 8 * quad;
        UNROLL
        for (int j = 0; j < 2 * quads; ++j)
            vst1q_f32(to + 4 * j, vfmaq_f32(vld1q_f32(to + 4 * j), seg[r][j], scale_of_x[r]));
    }
}

// One row by 4 * `quads` outputs over one segment, added to results[row][LW_PANEL].
INLINE void tile_1(const source from, const int quads, const segment* s, const lw_activations* x, size_t row,
                   size_t quad, float* results) {
    const bool halves = from == FROM_Q6;
    static const int32_t first[4] = {LW_MAGIC_BITS, 0, LW_MAGIC_BITS, 0};
    int32x4_t acc[8][2];
    float32x4_t seg[8], scale[8];
    const int8_t* q = x->q + lw_q_offset(x, row, s->k);
    const size_t step = 8 * x->row_block;
    UNROLL
    for (int j = 0; j < quads; ++j) {
        acc[j][0] = acc[j][1] = vld1q_s32(first);
        seg[j] = vdupq_n_f32(0);
        scale[j] = super_scale(from, s, quad + j);
    }
    for (size_t g = 0; g < s->groups; ++g) {
        int8x16_t inputs[4];
        UNROLL
        for (int c = 0; c < 4; ++c) {
            int64_t eight;
            memcpy(&eight, q + (4 * g + c) * step, sizeof eight);
            inputs[c] = vreinterpretq_s8_s64(vdupq_n_s64(eight));
        }
        float32x4_t bias[2] = {vdupq_n_f32(LW_MAGIC), vdupq_n_f32(LW_MAGIC)};
        if (from == FROM_Q6) {  // the codes are 32 too large: take 32 * (sum of the inputs) off again
            const int32_t* prefix = x->prefix + row * (x->stride / 16) + s->k / 16 + 2 * g;
            UNROLL
            for (int h = 0; h < 2; ++h) bias[h] = biased_magic(32 * prefix[h]);
        }
        UNROLL
        for (int j = 0; j < quads; ++j) {
            float32x4_t ds[2];
            load_differences(from, s, g, quad + j, scale[j], ds);
            UNROLL
            for (int step = 0; step < 2; ++step) {
                int8x16_t w[4];
                load_step(from, s, g, quad + j, step, w);
                UNROLL
                for (int i = 0; i < 2; ++i) UNROLL
                for (int p = 0; p < 2; ++p)
                    acc[j][p] = vdotq_s32(acc[j][p], w[2 * i + p], inputs[chunk_of(from, step, i)]);
                if (step == 0 && !halves) continue;
                const int32x4_t sum = vpaddq_s32(acc[j][0], acc[j][1]);
                seg[j] = vfmaq_f32(seg[j], prefix_float(sum, bias[step]), ds[step && halves]);
            }
        }
    }
    UNROLL
    for (int j = 0; j < quads; ++j) {
        float* to = results + row * LW_PANEL + 4 * (quad + j);
        const float32x4_t sum = from == FROM_Q4 ? vmulq_n_f32(seg[j], 0.0625f) : seg[j];
        vst1q_f32(to, vfmaq_n_f32(vld1q_f32(to), sum, x->scale[row * x->segments + s->index]));
    }
}

// All outputs of a panel for 1 to 4 pairs of rows; fewer take more outputs at once, so that enough sums are in flight.
INLINE void pairs_by_panel(const source from, const int pairs, const segment* s, const lw_activations* x,
                           float* results) {
    const int quads = pairs == 1 ? 2 : 1;
    float32x4_t scale_of_x[4], bias[4][2 * LW_SEGMENT_GROUPS];
    UNROLL
    for (int r = 0; r < pairs; ++r) {
        scale_of_x[r] = pair_scale(x, 2 * r, s->index);
        // Codes are 16 times too large, and so is the segment's sum: neither factor rounds.
        if (from == FROM_Q4) scale_of_x[r] = vmulq_n_f32(scale_of_x[r], 0.0625f);
    }
    for (int r = 0; r < pairs && from == FROM_Q6; ++r) {
        const size_t step = 2 * r + 1 < (int)x->rows ? x->stride / 16 : 0;  // a row past the last one has none
        const int32_t* prefix = x->prefix + 2 * r * (x->stride / 16) + s->k / 16;
        UNROLL
        for (int i = 0; i < 2 * LW_SEGMENT_GROUPS; ++i)
            bias[r][i] = vcombine_f32(vget_low_f32(biased_magic(32 * prefix[i])),
                                      vget_low_f32(biased_magic(32 * prefix[i + step])));
    }
    for (size_t quad = 0; quad < QUADS; quad += quads) tile(from, pairs, quads, s, x, scale_of_x, bias, quad, results);
}

INLINE void up_to_4_pairs(const source from, size_t pairs, const segment* s, const lw_activations* x, float* results) {
    switch (pairs) {
        case 1:
            pairs_by_panel(from, 1, s, x, results);
            break;
        case 2:
            pairs_by_panel(from, 2, s, x, results);
            break;
        case 3:
            pairs_by_panel(from, 3, s, x, results);
            break;
        default:
            pairs_by_panel(from, 4, s, x, results);
            break;
    }
}

// Results of two rows from 2x2 blocks to one row after the other, in place.
INLINE void separate_rows(float* pair) {
    float32x4_t block[2 * QUADS];
    for (size_t i = 0; i < 2 * QUADS; ++i) block[i] = vld1q_f32(pair + 4 * i);
    for (size_t i = 0; i < QUADS; ++i) {
        vst1q_f32(pair + 4 * i, vcombine_f32(vget_low_f32(block[2 * i]), vget_low_f32(block[2 * i + 1])));
        vst1q_f32(pair + LW_PANEL + 4 * i, vcombine_f32(vget_high_f32(block[2 * i]), vget_high_f32(block[2 * i + 1])));
    }
}

// One or two rows over the whole segments of Q4_0; returns how many there are.
INLINE size_t whole_segments(const size_t rows, const lw_matrix* w, const lw_activations* x, size_t panel, size_t row,
                             float* results) {
    const lw_mm_rows t = {.q = x->q + lw_q_offset(x, row, 0),
                          .q_step = 8 * x->row_block,
                          .packed = w->data + panel * w->panel_bytes,
                          .segments = w->groups / LW_SEGMENT_GROUPS,
                          .scale = x->scale + row * x->segments,
                          .scale_stride = x->segments * sizeof(float),
                          .results = results + row * LW_PANEL};
    if (t.segments == 0) return 0;
    if (rows == 1)
        gemv_q4__i8mm(&t);
    else
        gemm_2_q4__i8mm(&t);
    return t.segments;
}

INLINE void gemv(const source from, const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out,
                 void* scratch) {
    const workspace work = workspace_of(scratch, x->rows);
    for (size_t row = 0; row < x->rows; ++row) {
        size_t i = from == FROM_Q4 ? whole_segments(1, w, x, panel, row, work.results) : 0;
        for (; i < x->segments; ++i) {
            const segment s = segment_of(w, panel, i, packed_group_bytes(from));
            for (size_t quad = 0; quad < QUADS; quad += 4) tile_1(from, 4, &s, x, row, quad, work.results);
        }
    }
    lw_store_panel(w, panel, x->rows, work.results, out);
}

// One to four pairs of rows.
INLINE void gemm_in_registers(const source from, const lw_matrix* w, const lw_activations* x, size_t panel,
                              lw_output out, void* scratch) {
    const workspace work = workspace_of(scratch, x->rows);
    const size_t pairs = (x->rows + 1) / 2;
    size_t i = from == FROM_Q4 && x->rows == 2 ? whole_segments(2, w, x, panel, 0, work.results) : 0;
    for (; i < x->segments; ++i) {
        const segment s = segment_of(w, panel, i, packed_group_bytes(from));
        up_to_4_pairs(from, pairs, &s, x, work.results);
    }
    for (size_t pair = 0; pair < pairs; ++pair) separate_rows(work.results + pair * 2 * LW_PANEL);
    lw_store_panel(w, panel, x->rows, work.results, out);
}

#endif
