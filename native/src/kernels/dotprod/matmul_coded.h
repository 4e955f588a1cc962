// Products of the coded types with SDOT: up to three rows decode in registers, more rows share a decoded segment.
#ifndef LW_KERNELS_DOTPROD_MATMUL_CODED_H
#define LW_KERNELS_DOTPROD_MATMUL_CODED_H

#include "kernels/dotprod/float_rows.h"
#include "kernels/dotprod/matmul_decoded.h"
#include "kernels/neon/cb2.h"
#include "kernels/neon/trellis.h"

extern void gemv_cb2__dotprod(const lw_cb2_row* t);

enum { STRIDE = 8 };  // vectors in a chunk of four inputs

// `rows` rows by eight outputs over segment `index`, added to results[row][LW_PANEL]. `starts`: start of each step's
// sums.
INLINE void coded_tile(const lw_format f, const int rows, const coded_segment* s, const lw_activations* x, size_t index,
                       int32_t starts[][8 * LW_SEGMENT_GROUPS], size_t row, size_t quad, float* results) {
    const int steps = f.group == 16 ? 2 : 1;                            // steps in a group
    const size_t shared = f.group > LW_GROUP ? f.group / LW_GROUP : 1;  // groups that share a scale
    const size_t stride = x->stride, groups = x->segments * LW_SEGMENT_GROUPS;
    const int8_t* q = x->q + row * stride + index * LW_SEGMENT;
    const float* da = x->scale + row * groups + index * LW_SEGMENT_GROUPS;
    const float32x4x2_t super = coded_super8(f, s, 4 * quad);
    float magics[2][8];  // -LW_MAGIC times the super scales, and times scales that several groups share
    if (small_scales(f)) vst1q_f32_x2(magics[0], magic_times8(super));
    float32x4_t acc[3][2];
    UNROLL
    for (int r = 0; r < rows; ++r) UNROLL
    for (int j = 0; j < 2; ++j) acc[r][j] = vld1q_f32(results + (row + (size_t)r) * LW_PANEL + 4 * (quad + (size_t)j));
    for (size_t first = 0; first < LW_SEGMENT_GROUPS; first += shared) {
        float32x4x2_t scale[2];
        UNROLL
        for (int h = 0; h < steps; ++h)
            scale[h] = coded_scale8_of(f, s, super, small_scales(f) ? load_addend8(magics[0]) : super,
                                       first * (size_t)steps / shared + (size_t)h, 4 * quad);
        if (shared > 1) vst1q_f32_x2(magics[1], magic_times8(scale[0]));
        UNROLL
        for (size_t g = first; g < first + shared; ++g) UNROLL
        for (int j = 0; j < 2; ++j) {
            int8x16_t w[8];
            coded_column(f, STRIDE, s, g, quad + (size_t)j, w);
            UNROLL
            for (int r = 0; r < rows; ++r) {
                const int8_t* inputs = q + (size_t)r * stride + g * LW_GROUP;
                const int32_t* start = coded_bias(f) ? starts[r] + 4 * (size_t)steps * g : lw_magic_start;
                const float32x4_t scale_of_x = load_lane(da + (size_t)r * groups + g);
                const float32x4_t s0 = scale[0].val[j], s1 = scale[steps - 1].val[j];
                const float32x4_t magic = shared > 1 ? load_addend(magics[1] + 4 * j) : magic_times(s1);
                int32x4_t sum = dot16(load_start(start), w, vld1q_s8(inputs));
                if (steps == 2) {
                    acc[r][j] = add_step(acc[r][j], sum, s0, magic_times(s0), scale_of_x);
                    sum = load_start(start + (coded_bias(f) ? 4 : 0));
                }
                sum = dot16(sum, w + 4, vld1q_s8(inputs + 16));
                acc[r][j] = add_step(acc[r][j], sum, s1, magic, scale_of_x);
            }
        }
    }
    UNROLL
    for (int r = 0; r < rows; ++r) UNROLL
    for (int j = 0; j < 2; ++j) vst1q_f32(results + (row + (size_t)r) * LW_PANEL + 4 * (quad + (size_t)j), acc[r][j]);
}

// One to three rows.
INLINE void coded_in_registers(const lw_format f, const int rows, const lw_matrix* w, const lw_activations* x,
                               size_t panel, size_t row, const workspace* work) {
    const lw_coded_panel p = lw_coded_panel_of(f, w->cols);
    for (size_t i = 0; i < x->segments; ++i) {
        const coded_segment s = coded_segment_of(f, w, &p, panel, i);
        lw_fetch_ahead_of(w, panel, i, x->segments);
        int32_t starts[3][8 * LW_SEGMENT_GROUPS];
        for (int r = 0; r < rows && coded_bias(f) != 0; ++r) {
            const int32_t* totals = x->totals + ((row + (size_t)r) * x->stride + i * LW_SEGMENT) / 16;
            if (f.group == 16)
                find_starts(coded_bias(f), true, totals, starts[r]);
            else
                find_group_starts(coded_bias(f), totals, starts[r]);
        }
        UNROLL
        for (int pass = 0; pass < lw_passes(f); ++pass)
            for (size_t quad = 0; quad < QUADS; quad += 2)
                coded_tile(lw_pass(f, pass), rows, &s, x, i, starts, row, quad, work->results);
    }
}

INLINE void decoded_tiles(const lw_format f, const lw_activations* x, size_t index, const workspace* work) {
    const lw_dot_tile_fn* tiles = lw_dot_tiles[f.group == 16 ? TILES_G16 : TILES_G32];
    lw_dot_tile t = {.q_stride = x->stride,
                     .codes = work->codes,
                     .code_stride = 1024,
                     .scales = work->scales,
                     .groups = LW_SEGMENT_GROUPS,
                     .da_stride = x->segments * LW_SEGMENT_GROUPS * sizeof(float)};
    for (size_t row = 0, n; row < x->rows; row += n) {
        n = next_tile(x->rows - row);
        t.da = x->scale + (row * x->segments + index) * LW_SEGMENT_GROUPS;
        t.q = x->q + row * x->stride + index * LW_SEGMENT;
        t.results = work->results + row * LW_PANEL;
        tiles[n - 4](&t);
    }
}

INLINE void coded_gemv(const lw_format f, const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out,
                       void* scratch) {
    const workspace work = workspace_of(scratch, x->rows);
    const bool is_trellis = f.map == LW_MAP_TRELLIS && x->rows == 1;
    const bool is_float = f.map == LW_MAP_FLOAT && x->rows == 1;
    if (is_trellis) trellis_row(f, w, x, panel, &work);
    if (is_float) float_rows(f, 1, w, x, panel, &work);
    const bool done = is_trellis || is_float || (is_cb2(f) && row_of_cb2(gemv_cb2__dotprod, w, x, panel, &work));
    for (size_t row = 0; row < x->rows && !done; ++row) coded_in_registers(f, 1, w, x, panel, row, &work);
    finish_coded(f, w, x, panel, out, &work);
}

INLINE void coded_gemm(const lw_format f, const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out,
                       void* scratch) {
    const workspace work = workspace_of(scratch, x->rows);
    if (f.map == LW_MAP_FLOAT && x->rows == 2)
        float_rows(f, 2, w, x, panel, &work);
    else if (f.map == LW_MAP_FLOAT && x->rows == 3)
        float_rows(f, 3, w, x, panel, &work);
    else if (x->rows == 2)
        coded_in_registers(f, 2, w, x, panel, 0, &work);
    else if (x->rows == 3)
        coded_in_registers(f, 3, w, x, panel, 0, &work);
    else
        coded_decoded(f, 1, STRIDE, decoded_tiles, w, x, panel, &work);
    finish_coded(f, w, x, panel, out, &work);
}

#define LW_CODED_KERNELS(name)                                                                                       \
    void gemv_##name##_q8g32_1x32__dotprod(const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out, \
                                           void* scratch) {                                                          \
        coded_gemv(lw_format_##name, w, x, panel, out, scratch);                                                     \
    }                                                                                                                \
    void gemm_##name##_q8g32_8x4__dotprod(const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out,  \
                                          void* scratch) {                                                           \
        coded_gemm(lw_format_##name, w, x, panel, out, scratch);                                                     \
    }

#endif
