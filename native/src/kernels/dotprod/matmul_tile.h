// Tiles of SDOT by element: a vector of weights holds four outputs by four inputs, a vector of sums one output per
// lane.
#ifndef LW_KERNELS_DOTPROD_MATMUL_TILE_H
#define LW_KERNELS_DOTPROD_MATMUL_TILE_H

#include "kernels/dotprod/tile.h"
#include "kernels/neon/matmul_common.h"

// Loads group `group` of four outputs: w[c] holds inputs 4c to 4c + 3. FROM_Q6 gives unsigned codes, which are 32 too
// large.
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
        UNROLL
        for (int c = 0; c < 2; ++c) UNROLL
        for (int high = 0; high < 2; ++high) {
            int8x16_t codes[2];
            decode_q6(base + 128 * c, base + 128 * (c + 2), base + LW_Q6_LOW_BYTES + 128 * c, high, codes);
            w[c + 4 * high] = codes[0];
            w[c + 4 * high + 2] = codes[1];
        }
    }
}

// Scales of eight outputs for sums of load_group's codes. Sums of Q4_0 are 16 times too large, so its scales are
// divided by 16; neither rounds.
INLINE float32x4x2_t scale_of_sums8(const source from, const segment* s, float32x4x2_t super, float32x4x2_t magic,
                                    size_t group, size_t half, size_t output) {
    float32x4x2_t scale = packed_scale8(from, s, super, magic, group, half, output);
    if (from == FROM_Q4)
        scale = (float32x4x2_t){{vmulq_n_f32(scale.val[0], 0.0625f), vmulq_n_f32(scale.val[1], 0.0625f)}};
    return scale;
}

// `rows` rows by 4 * `quads` outputs over segments first .. last - 1, added to results[row][LW_PANEL].
INLINE void tile(const source from, const int rows, const int quads, const lw_matrix* w, const lw_activations* x,
                 size_t panel, size_t first, size_t last, size_t row, size_t quad, float* results) {
    const int steps = from == FROM_Q6 ? 2 : 1;  // steps in a group
    const size_t stride = x->stride, groups = x->segments * LW_SEGMENT_GROUPS;
    float32x4_t acc[3][8];
    int32_t starts[3][8 * LW_SEGMENT_GROUPS];
    UNROLL
    for (int r = 0; r < rows; ++r) UNROLL
    for (int j = 0; j < quads; ++j)
        acc[r][j] = vld1q_f32(results + (row + (size_t)r) * LW_PANEL + 4 * (quad + (size_t)j));
    for (size_t i = first; i < last; ++i) {
        const segment s = segment_of(w, panel, i, packed_group_bytes(from));
        if (rows == 1 && quad == 0) lw_fetch_ahead_of(w, panel, i, x->segments);
        const int8_t* q = x->q + row * stride + s.k;
        const float* da = x->scale + row * groups + i * LW_SEGMENT_GROUPS;
        float32x4x2_t super[4];
        float magics[LW_PANEL];
        UNROLL
        for (int p = 0; p < quads / 2; ++p) {
            super[p] = packed_super8(from, &s, 4 * quad + 8 * (size_t)p);
            if (from == FROM_Q6) vst1q_f32_x2(magics + 8 * p, magic_times8(super[p]));
        }
        for (int r = 0; r < rows && from == FROM_Q6; ++r)
            find_starts(32, true, x->totals + ((row + (size_t)r) * stride + s.k) / 16, starts[r]);
        for (size_t g = 0; g < s.groups; ++g) UNROLL
        for (int p = 0; p < quads / 2; ++p) {
            float32x4x2_t scale[2];
            UNROLL
            for (int h = 0; h < steps; ++h)
                scale[h] = scale_of_sums8(from, &s, super[p], from == FROM_Q6 ? load_addend8(magics + 8 * p) : super[p],
                                          g, (size_t)h, 4 * quad + 8 * (size_t)p);
            UNROLL
            for (int j = 2 * p; j < 2 * p + 2; ++j) {
                int8x16_t codes[8];
                load_group(from, &s, g, quad + (size_t)j, codes);
                UNROLL
                for (int r = 0; r < rows; ++r) {
                    const int8_t* inputs = q + (size_t)r * stride + g * LW_GROUP;
                    const int32_t* start = from == FROM_Q6 ? starts[r] + 8 * g : lw_magic_start;
                    const float32x4_t scale_of_x = load_lane(da + (size_t)r * groups + g);
                    const float32x4_t s0 = scale[0].val[j % 2], s1 = scale[steps - 1].val[j % 2];
                    int32x4_t sum = dot16(load_start(start), codes, vld1q_s8(inputs));
                    if (steps == 2) {
                        acc[r][j] = add_step(acc[r][j], sum, s0, magic_times(s0), scale_of_x);
                        sum = load_start(start + 4);
                    }
                    sum = dot16(sum, codes + 4, vld1q_s8(inputs + 16));
                    acc[r][j] = add_step(acc[r][j], sum, s1, magic_times(s1), scale_of_x);
                }
            }
        }
    }
    UNROLL
    for (int r = 0; r < rows; ++r) UNROLL
    for (int j = 0; j < quads; ++j)
        vst1q_f32(results + (row + (size_t)r) * LW_PANEL + 4 * (quad + (size_t)j), acc[r][j]);
}

// All outputs of a panel for 1 to 3 rows over a segment. Fewer rows take more outputs at once, so that enough sums are
// in flight.
INLINE void rows_by_panel(const source from, const int rows, const lw_matrix* w, const lw_activations* x, size_t panel,
                          size_t index, size_t row, float* results) {
    const int quads = rows == 1 ? 8 : 2;
    for (size_t quad = 0; quad < QUADS; quad += (size_t)quads)
        tile(from, rows, quads, w, x, panel, index, index + 1, row, quad, results);
}

// One row by a segment of Q6_K, added to acc[8 quads].
INLINE void row_of_q6(const segment* s, const lw_activations* x, float32x4_t acc[QUADS]) {
    const int8_t* q = x->q + s->index * LW_SEGMENT;
    const float* x_scale = x->scale + s->index * LW_SEGMENT_GROUPS;
    float supers[LW_PANEL], magics[LW_PANEL];
    int32_t starts[8 * LW_SEGMENT_GROUPS];
    store_supers(s, supers, magics);
    find_starts(32, true, x->totals + s->index * (LW_SEGMENT / 16), starts);
    for (size_t g = 0; g < LW_SEGMENT_GROUPS; ++g) {
        const int8x16_t in[2] = {vld1q_s8(q + g * LW_GROUP), vld1q_s8(q + g * LW_GROUP + 16)};
        const float32x4_t da = load_lane(x_scale + g);
        UNROLL
        for (size_t quad = 0; quad < QUADS; quad += 2) {
            float32x4x2_t scale[2];
            scales_of_q6(s, supers, magics, g, quad, scale);
            UNROLL
            for (size_t j = 0; j < 2; ++j) {
                int8x16_t codes[8];
                load_group(FROM_Q6, s, g, quad + j, codes);
                UNROLL
                for (size_t h = 0; h < 2; ++h) {
                    const float32x4_t of_step = scale[h].val[j];
                    const int32x4_t sum = dot16(load_start(starts + 8 * g + 4 * h), codes + 4 * h, in[h]);
                    acc[quad + j] = add_step(acc[quad + j], sum, of_step, magic_times(of_step), da);
                }
            }
        }
    }
}

INLINE void row_by_panel_of_q6(const lw_matrix* w, const lw_activations* x, size_t panel, float* results) {
    float32x4_t acc[QUADS];
    UNROLL
    for (size_t i = 0; i < QUADS; ++i) acc[i] = vdupq_n_f32(0);
    for (size_t i = 0; i < x->segments; ++i) {
        const segment s = segment_of(w, panel, i, LW_Q6_GROUP_BYTES);
        lw_fetch_ahead_of(w, panel, i, x->segments);
        row_of_q6(&s, x, acc);
    }
    UNROLL
    for (size_t i = 0; i < QUADS; ++i) vst1q_f32(results + 4 * i, acc[i]);
}

// One or two rows over the whole segments of Q4_0; returns the number of these segments.
INLINE size_t whole_segments(const size_t rows, const lw_matrix* w, const lw_activations* x, size_t panel, size_t row,
                             float* results) {
    const lw_dot_rows t = {.q = x->q + row * x->stride,
                           .q_stride = x->stride,
                           .packed = w->data + panel * w->panel_bytes,
                           .segments = w->groups / LW_SEGMENT_GROUPS,
                           .da = x->scale + row * x->segments * LW_SEGMENT_GROUPS,
                           .da_stride = x->segments * LW_SEGMENT_GROUPS * sizeof(float),
                           .results = results + row * LW_PANEL,
                           .fetch_ahead = lw_cpu_fetch_distance()};
    if (t.segments == 0) return 0;
    if (rows == 1)
        gemv_q4__dotprod(&t);
    else
        gemm_2_q4__dotprod(&t);
    return t.segments;
}

// A whole product with weights decoded in registers: one row, or two or three rows at a time.
INLINE void gemv(const source from, const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out,
                 void* scratch) {
    const workspace work = workspace_of(scratch, 1);
    if (from == FROM_Q6)
        row_by_panel_of_q6(w, x, panel, work.results);
    else if (from == FROM_Q8)
        tile(from, 1, 8, w, x, panel, 0, x->segments, 0, 0, work.results);
    else
        for (size_t i = whole_segments(1, w, x, panel, 0, work.results); i < x->segments; ++i)
            rows_by_panel(from, 1, w, x, panel, i, 0, work.results);
    lw_store_panel(w, panel, 1, work.results, out);
}

INLINE void gemm_in_registers(const source from, const lw_matrix* w, const lw_activations* x, size_t panel,
                              lw_output out, void* scratch) {
    const workspace work = workspace_of(scratch, x->rows);
    size_t i = from == FROM_Q4 && x->rows == 2 ? whole_segments(2, w, x, panel, 0, work.results) : 0;
    for (; i < x->segments; ++i) {
        lw_fetch_ahead_of(w, panel, i, x->segments);
        if (x->rows == 2)
            rows_by_panel(from, 2, w, x, panel, i, 0, work.results);
        else
            rows_by_panel(from, 3, w, x, panel, i, 0, work.results);
    }
    lw_store_panel(w, panel, x->rows, work.results, out);
}

#endif
