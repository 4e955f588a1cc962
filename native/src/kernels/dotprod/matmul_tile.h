// Tiles of SDOT by element: a lane is one output, a vector holds four outputs by four inputs.
#ifndef LW_KERNELS_DOTPROD_MATMUL_TILE_H
#define LW_KERNELS_DOTPROD_MATMUL_TILE_H

#include "kernels/dotprod/tile.h"
#include "kernels/neon/matmul_common.h"

// Group `group` of four outputs: w[c] holds inputs 4c to 4c + 3. FROM_Q6 gives the unsigned code, 32 too large.
INLINE void load_group(const source from, const segment* s, size_t group, size_t quad, int8x16_t w[8]) {
    const uint8_t* base = s->data + group * packed_group_bytes(from) + quad * 16;
    if (from == FROM_Q8) {
        UNROLL
        for (int c = 0; c < 8; ++c) w[c] = vreinterpretq_s8_u8(vld1q_u8(base + 128 * c));
    } else if (from == FROM_Q4) {
        UNROLL
        for (int c = 0; c < 4; ++c) {
            const uint8x16_t raw = vld1q_u8(base + 128 * c);
            w[c] = vreinterpretq_s8_u8(vshlq_n_u8(raw, 4));
            w[c + 4] = vreinterpretq_s8_u8(vandq_u8(raw, vdupq_n_u8(0xF0)));
        }
    } else {
        const uint8x16_t low_mask = vdupq_n_u8(0x0F), top_mask = vdupq_n_u8(0x30);
        UNROLL
        for (int c = 0; c < 2; ++c) {
            const uint8x16_t top = vld1q_u8(base + LW_Q6_LOW_BYTES + 128 * c);
            const uint8x16_t a = vld1q_u8(base + 128 * c), b = vld1q_u8(base + 128 * (c + 2));
            // Masks insert the two upper bits, so that only some of the parts need to be cleaned first.
            w[c] = vreinterpretq_s8_u8(vbslq_u8(top_mask, vshlq_n_u8(top, 4), vandq_u8(a, low_mask)));
            w[c + 2] = vreinterpretq_s8_u8(vbslq_u8(top_mask, vshlq_n_u8(top, 2), vandq_u8(b, low_mask)));
            w[c + 4] = vreinterpretq_s8_u8(vbslq_u8(top_mask, top, vshrq_n_u8(a, 4)));
            w[c + 6] = vreinterpretq_s8_u8(vbslq_u8(top_mask, vshrq_n_u8(top, 2), vshrq_n_u8(b, 4)));
        }
    }
}

// `rows` rows by 4 * `quads` outputs over one segment, added to results[row][LW_PANEL]. `bias` is for FROM_Q6:
// what to take off the sum of each row and group of 16 inputs, LW_MAGIC included.
INLINE void tile(const source from, const int rows, const int quads, const segment* s, const lw_activations* x,
                 const float32x4_t bias[3][2 * LW_SEGMENT_GROUPS], size_t row, size_t quad, float* results) {
    const bool halves = from == FROM_Q6;  // groups of 16 inputs
    const float32x4_t magic = vdupq_n_f32(LW_MAGIC);
    int32x4_t acc[3][8];
    float32x4_t seg[3][8], scale[8];
    const int8_t* q = x->q + row * x->stride + s->k;
    const size_t stride = x->stride;
    UNROLL
    for (int r = 0; r < rows; ++r) UNROLL
    for (int j = 0; j < quads; ++j) {
        acc[r][j] = vdupq_n_s32(LW_MAGIC_BITS);
        seg[r][j] = vdupq_n_f32(0);
    }
    UNROLL
    for (int j = 0; j < quads; ++j) {
        if (from == FROM_Q6) scale[j] = load_half4(s->super + 8 * (quad + j));
        if (from == FROM_Q4 || from == FROM_Q8) scale[j] = load_half4(s->data + scale_offset(from) + 8 * (quad + j));
    }
    for (size_t g = 0; g < s->groups; ++g) {
        const uint8_t* here = s->data + g * packed_group_bytes(from) + scale_offset(from);
        const uint8_t* next = g + 1 < s->groups ? here + packed_group_bytes(from) : lw_zero_scales;
        UNROLL
        for (int j = 0; j < quads; ++j) {
            int8x16_t w[8];
            load_group(from, s, g, quad + j, w);
            float32x4_t ds[2];
            if (from == FROM_Q6) {
                const int8_t* codes = (const int8_t*)here + 4 * (quad + j);
                ds[0] = q6_difference(scale[j], codes, codes + LW_PANEL);
                ds[1] = q6_difference(scale[j], codes + LW_PANEL, (const int8_t*)next + 4 * (quad + j));
            } else {
                const float32x4_t after = load_half4(next + 8 * (quad + j));
                ds[0] = vsubq_f32(scale[j], after);
                scale[j] = after;
            }
            UNROLL
            for (int r = 0; r < rows; ++r) {
                const int8_t* inputs = q + r * stride + g * LW_GROUP;
                acc[r][j] = dot16(acc[r][j], w, vld1q_s8(inputs));
                if (halves)
                    seg[r][j] =
                        vfmaq_f32(seg[r][j], prefix_float(acc[r][j], from == FROM_Q6 ? bias[r][2 * g] : magic), ds[0]);
                acc[r][j] = dot16(acc[r][j], w + 4, vld1q_s8(inputs + 16));
                seg[r][j] = vfmaq_f32(seg[r][j], prefix_float(acc[r][j], from == FROM_Q6 ? bias[r][2 * g + 1] : magic),
                                      ds[halves]);
            }
        }
    }
    UNROLL
    for (int r = 0; r < rows; ++r) UNROLL
    for (int j = 0; j < quads; ++j) {
        float* to = results + (row + r) * LW_PANEL + 4 * (quad + j);
        // Codes of Q4_0 are 16 times too large, and so is the segment's sum: neither factor rounds.
        const float scale_of_x = x->scale[(row + r) * x->segments + s->index] * (from == FROM_Q4 ? 0.0625f : 1.0f);
        vst1q_f32(to, vfmaq_n_f32(vld1q_f32(to), seg[r][j], scale_of_x));
    }
}

// All outputs of a panel for 1 to 3 rows; fewer rows take more outputs at once, so that enough sums are in flight.
INLINE void rows_by_panel(const source from, const int rows, const segment* s, const lw_activations* x, size_t row,
                          float* results) {
    float32x4_t bias[3][2 * LW_SEGMENT_GROUPS];
    for (int r = 0; r < rows && from == FROM_Q6; ++r) {
        const int32_t* prefix = x->prefix + (row + r) * (x->stride / 16) + s->k / 16;
        UNROLL
        for (int i = 0; i < 2 * LW_SEGMENT_GROUPS; ++i) bias[r][i] = biased_magic(32 * prefix[i]);
    }
    const int quads = rows == 1 ? (from == FROM_Q6 ? 4 : 8) : 2;
    for (size_t quad = 0; quad < QUADS; quad += quads) tile(from, rows, quads, s, x, bias, row, quad, results);
}

// One or two rows over the whole segments of Q4_0; returns how many there are.
INLINE size_t whole_segments(const size_t rows, const lw_matrix* w, const lw_activations* x, size_t panel, size_t row,
                             float* results) {
    const lw_dot_rows t = {.q = x->q + row * x->stride,
                           .q_stride = x->stride,
                           .packed = w->data + panel * w->panel_bytes,
                           .segments = w->groups / LW_SEGMENT_GROUPS,
                           .scale = x->scale + row * x->segments,
                           .scale_stride = x->segments * sizeof(float),
                           .results = results + row * LW_PANEL};
    if (t.segments == 0) return 0;
    if (rows == 1)
        gemv_q4__dotprod(&t);
    else
        gemm_2_q4__dotprod(&t);
    return t.segments;
}

// A whole product with weights decoded in registers: row after row, or two or three rows at once.
INLINE void gemv(const source from, const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out,
                 void* scratch) {
    const workspace work = workspace_of(scratch, x->rows);
    for (size_t row = 0; row < x->rows; ++row) {
        size_t i = from == FROM_Q4 ? whole_segments(1, w, x, panel, row, work.results) : 0;
        for (; i < x->segments; ++i) {
            const segment s = segment_of(w, panel, i, packed_group_bytes(from));
            rows_by_panel(from, 1, &s, x, row, work.results);
        }
    }
    lw_store_panel(w, panel, x->rows, work.results, out);
}

INLINE void gemm_in_registers(const source from, const lw_matrix* w, const lw_activations* x, size_t panel,
                              lw_output out, void* scratch) {
    const workspace work = workspace_of(scratch, x->rows);
    size_t i = from == FROM_Q4 && x->rows == 2 ? whole_segments(2, w, x, panel, 0, work.results) : 0;
    for (; i < x->segments; ++i) {
        const segment s = segment_of(w, panel, i, packed_group_bytes(from));
        if (x->rows == 2)
            rows_by_panel(from, 2, &s, x, 0, work.results);
        else
            rows_by_panel(from, 3, &s, x, 0, work.results);
    }
    lw_store_panel(w, panel, x->rows, work.results, out);
}

#endif
