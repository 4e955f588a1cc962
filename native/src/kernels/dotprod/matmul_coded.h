// Products of the coded types with SDOT: up to three rows decode in registers, more share a decoded segment.
#ifndef LW_KERNELS_DOTPROD_MATMUL_CODED_H
#define LW_KERNELS_DOTPROD_MATMUL_CODED_H

#include "kernels/dotprod/matmul_decoded.h"
#include "kernels/neon/cb2.h"
#include "kernels/neon/trellis.h"

extern void gemv_cb2__dotprod(const lw_cb2_row* t);

enum { STRIDE = 8 };  // vectors of a chunk of four inputs

// Groups of 32 inputs whose sums one scale difference multiplies.
INLINE size_t groups_of_step(const lw_format f) { return f.group > LW_GROUP ? f.group / LW_GROUP : 1; }

// `rows` rows by 4 * `quads` outputs over segment `index`, added to results[row][LW_PANEL].
INLINE void coded_tile(const lw_format f, const int rows, const int quads, const coded_segment* s, const float* ds,
                       const lw_activations* x, size_t index, size_t row, size_t quad, float* results) {
    const bool halves = f.group == 16;
    const size_t step = groups_of_step(f), stride = x->stride;
    const int8_t* q = x->q + row * stride + index * LW_SEGMENT;
    const int32_t* prefix = x->prefix + (row * stride + index * LW_SEGMENT) / 16;
    int32x4_t acc[3][8];
    float32x4_t seg[3][8];
    UNROLL
    for (int r = 0; r < rows; ++r) UNROLL
    for (int j = 0; j < quads; ++j) {
        acc[r][j] = vdupq_n_s32(LW_MAGIC_BITS);
        seg[r][j] = vdupq_n_f32(0);
    }
    for (size_t first = 0; first < LW_SEGMENT_GROUPS; first += step, ds += (halves ? 2 : 1) * LW_PANEL) {
        float32x4_t magic[3][2];
        UNROLL
        for (int r = 0; r < rows; ++r) UNROLL
        for (int h = 0; h < 2; ++h) {
            const int32_t sum = prefix[(size_t)r * (stride / 16) + 2 * (first + step) - 2 + (size_t)h];
            magic[r][h] = coded_bias(f) ? biased_magic(coded_bias(f) * sum) : vdupq_n_f32(LW_MAGIC);
        }
        UNROLL
        for (int j = 0; j < quads; ++j) UNROLL
        for (size_t g = first; g < first + step; ++g) {
            int8x16_t w[8];
            coded_column(f, STRIDE, s, g, quad + (size_t)j, w);
            UNROLL
            for (int r = 0; r < rows; ++r) {
                const int8_t* inputs = q + (size_t)r * stride + g * LW_GROUP;
                const float* difference = ds + 4 * (quad + (size_t)j);
                acc[r][j] = dot16(acc[r][j], w, vld1q_s8(inputs));
                if (halves) {
                    seg[r][j] = vfmaq_f32(seg[r][j], prefix_float(acc[r][j], magic[r][0]), vld1q_f32(difference));
                    difference += LW_PANEL;
                }
                acc[r][j] = dot16(acc[r][j], w + 4, vld1q_s8(inputs + 16));
                if (g + 1 == first + step)
                    seg[r][j] = vfmaq_f32(seg[r][j], prefix_float(acc[r][j], magic[r][1]), vld1q_f32(difference));
            }
        }
    }
    UNROLL
    for (int r = 0; r < rows; ++r) UNROLL
    for (int j = 0; j < quads; ++j) {
        float* to = results + (row + (size_t)r) * LW_PANEL + 4 * (quad + (size_t)j);
        const float scale = x->scale[(row + (size_t)r) * x->segments + index];
        vst1q_f32(to, vfmaq_n_f32(vld1q_f32(to), seg[r][j], scale));
    }
}

// One to three rows.
INLINE void coded_in_registers(const lw_format f, const int rows, const lw_matrix* w, const lw_activations* x,
                               size_t panel, size_t row, const workspace* work) {
    const lw_coded_panel p = lw_coded_panel_of(f, w->cols);
    const int quads = rows == 1 ? 8 : rows == 2 ? 4 : 2;
    for (size_t i = 0; i < x->segments; ++i) {
        const coded_segment s = coded_segment_of(f, w, &p, panel, i);
        UNROLL
        for (int pass = 0; pass < lw_passes(f); ++pass) {
            const lw_format part = lw_pass(f, pass);
            coded_differences(part, 1, &s, work->ds);
            for (size_t quad = 0; quad < QUADS; quad += (size_t)quads)
                coded_tile(part, rows, quads, &s, work->ds, x, i, row, quad, work->results);
        }
    }
}

INLINE void decoded_tiles(const lw_format f, const lw_activations* x, size_t index, const workspace* work) {
    const lw_dot_tile_fn* tiles = lw_dot_tiles[f.group == 16    ? TILES_G16
                                               : f.group == 64  ? TILES_G64
                                               : f.group == 128 ? TILES_G128
                                                                : TILES_G32];
    float scale[8];
    lw_dot_tile t = {.q_stride = x->stride,
                     .codes = work->codes,
                     .code_stride = 1024,
                     .ds = work->ds,
                     .groups = LW_SEGMENT_GROUPS,
                     .scale = scale};
    for (size_t row = 0, n; row < x->rows; row += n) {
        n = next_tile(x->rows - row);
        for (size_t r = 0; r < n; ++r) scale[r] = x->scale[(row + r) * x->segments + index];
        t.q = x->q + row * x->stride + index * LW_SEGMENT;
        t.results = work->results + row * LW_PANEL;
        tiles[n - 4](&t);
    }
}

INLINE void coded_gemv(const lw_format f, const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out,
                       void* scratch) {
    const workspace work = workspace_of(scratch, x->rows);
    const bool is_trellis = f.map == LW_MAP_TRELLIS && x->rows == 1;
    if (is_trellis) trellis_row(f, w, x, panel, &work);
    const bool done = is_trellis || (is_cb2(f) && row_of_cb2(gemv_cb2__dotprod, w, x, panel, &work));
    for (size_t row = 0; row < x->rows && !done; ++row) coded_in_registers(f, 1, w, x, panel, row, &work);
    finish_coded(f, w, x, panel, out, &work);
}

INLINE void coded_gemm(const lw_format f, const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out,
                       void* scratch) {
    const workspace work = workspace_of(scratch, x->rows);
    if (x->rows == 2)
        coded_in_registers(f, 2, w, x, panel, 0, &work);
    else if (x->rows == 3)
        coded_in_registers(f, 3, w, x, panel, 0, &work);
    else
        coded_decoded(f, 1, STRIDE, decoded_tiles, w, x, panel, &work);
    finish_coded(f, w, x, panel, out, &work);
}

#define LW_CODED_KERNELS(name)                                                                                        \
    void gemv_##name##_q8s128_1x32__dotprod(const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out, \
                                            void* scratch) {                                                          \
        coded_gemv(lw_format_##name, w, x, panel, out, scratch);                                                      \
    }                                                                                                                 \
    void gemm_##name##_q8s128_8x4__dotprod(const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out,  \
                                           void* scratch) {                                                           \
        coded_gemm(lw_format_##name, w, x, panel, out, scratch);                                                      \
    }

#endif
