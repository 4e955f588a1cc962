// Products of the coded types with SMMLA: up to four rows decode in registers, more share a decoded segment.
#ifndef LW_KERNELS_I8MM_MATMUL_CODED_H
#define LW_KERNELS_I8MM_MATMUL_CODED_H

#include "kernels/i8mm/matmul_decoded.h"
#include "kernels/neon/cb2.h"
#include "kernels/neon/trellis.h"

#if defined(LW_ISA_sve)
LW_MM_TILES(sve);
#else
LW_MM_TILES(i8mm);
#endif
extern void gemv_cb2__i8mm(const lw_cb2_row* t);

enum { STRIDE = 16 };  // vectors of a chunk of eight inputs

// Groups of 32 inputs whose sums one scale difference multiplies.
INLINE size_t groups_of_step(const lw_format f) { return f.group > LW_GROUP ? f.group / LW_GROUP : 1; }

// One row by 4 * `quads` outputs over segment `index`, added to results[LW_PANEL]. `ds`: [scale groups][32 outputs].
INLINE void coded_tile_1(const lw_format f, const int quads, const coded_segment* s, const float* ds,
                         const lw_activations* x, size_t index, size_t row, size_t quad, float* results) {
    const bool halves = f.group == 16;
    static const int32_t start[4] = {LW_MAGIC_BITS, 0, LW_MAGIC_BITS, 0};
    const size_t step = groups_of_step(f), eight = 8 * x->row_block;
    const int8_t* q = x->q + lw_q_offset(x, row, index * LW_SEGMENT);
    const int32_t* prefix = x->prefix + lw_prefix_offset(x, row, index * LW_SEGMENT);
    int32x4_t acc[8][2];
    float32x4_t seg[8];
    UNROLL
    for (int j = 0; j < quads; ++j) {
        acc[j][0] = acc[j][1] = vld1q_s32(start);
        seg[j] = vdupq_n_f32(0);
    }
    for (size_t first = 0; first < LW_SEGMENT_GROUPS; first += step, ds += (halves ? 2 : 1) * LW_PANEL) {
        float32x4_t magic[2];
        UNROLL
        for (size_t h = 0; h < 2; ++h)
            magic[h] = coded_bias(f) ? biased_magic(coded_bias(f) * prefix[2 * (first + step) - 2 + h])
                                     : vdupq_n_f32(LW_MAGIC);
        UNROLL
        for (size_t g = first; g < first + step; ++g) {
            int8x16_t inputs[4];
            UNROLL
            for (size_t c = 0; c < 4; ++c) {
                int64_t bytes;
                memcpy(&bytes, q + (4 * g + c) * eight, sizeof bytes);
                inputs[c] = vreinterpretq_s8_s64(vdupq_n_s64(bytes));
            }
            UNROLL
            for (int j = 0; j < quads; ++j) {
                int8x16_t w[2][4];
                UNROLL
                for (int p = 0; p < 2; ++p) coded_column(f, STRIDE, s, g, 2 * (quad + (size_t)j) + (size_t)p, w[p]);
                UNROLL
                for (int c = 0; c < 4; ++c) {
                    UNROLL
                    for (int p = 0; p < 2; ++p) acc[j][p] = vdotq_s32(acc[j][p], w[p][c], inputs[c]);
                    if (!(halves && c == 1) && !(c == 3 && g + 1 == first + step)) continue;
                    const int32x4_t sum = vpaddq_s32(acc[j][0], acc[j][1]);
                    const float* difference = ds + (halves && c == 3 ? LW_PANEL : 0) + 4 * (quad + (size_t)j);
                    seg[j] = vfmaq_f32(seg[j], prefix_float(sum, magic[c == 3]), vld1q_f32(difference));
                }
            }
        }
    }
    const float scale = x->scale[row * x->segments + index];
    UNROLL
    for (int j = 0; j < quads; ++j) {
        float* to = results + 4 * (quad + (size_t)j);
        vst1q_f32(to, vfmaq_n_f32(vld1q_f32(to), seg[j], scale));
    }
}

// `pairs` pairs of rows by 4 outputs, added to results[pair of rows][pair of outputs][2][2]. `ds`: [scale groups][16
// pairs][s0 s1 s0 s1].
INLINE void coded_tile(const lw_format f, const int pairs, const int quads, const coded_segment* s, const float* ds,
                       const lw_activations* x, size_t index, size_t quad, float* results) {
    const bool halves = f.group == 16;
    const size_t step = groups_of_step(f), stride = 2 * x->stride;
    const int8_t* q = x->q + 2 * index * LW_SEGMENT;
    int32x4_t acc[2][4];
    float32x4_t seg[2][4];
    UNROLL
    for (int r = 0; r < pairs; ++r) UNROLL
    for (int i = 0; i < 2 * quads; ++i) {
        acc[r][i] = vdupq_n_s32(LW_MAGIC_BITS);
        seg[r][i] = vdupq_n_f32(0);
    }
    for (size_t first = 0; first < LW_SEGMENT_GROUPS; first += step, ds += (halves ? 4 : 2) * LW_PANEL) {
        float32x4_t magic[2][2];
        UNROLL
        for (int r = 0; r < pairs; ++r) UNROLL
        for (size_t h = 0; h < 2; ++h) {
            const size_t other = 2 * (size_t)r + 1 < x->rows ? x->stride / 16 : 0;  // a row past the last has none
            const int32_t* prefix =
                x->prefix + 2 * (size_t)r * (x->stride / 16) + index * (LW_SEGMENT / 16) + 2 * (first + step) - 2 + h;
            magic[r][h] = coded_bias(f) ? vcombine_f32(vget_low_f32(biased_magic(coded_bias(f) * prefix[0])),
                                                       vget_low_f32(biased_magic(coded_bias(f) * prefix[other])))
                                        : vdupq_n_f32(LW_MAGIC);
        }
        UNROLL
        for (int i = 0; i < 2 * quads; ++i) UNROLL
        for (size_t g = first; g < first + step; ++g) {
            int8x16_t w[4];
            coded_column(f, STRIDE, s, g, 2 * quad + (size_t)i, w);
            UNROLL
            for (int c = 0; c < 4; ++c) {
                UNROLL
                for (int r = 0; r < pairs; ++r)
                    acc[r][i] = vmmlaq_s32(acc[r][i], vld1q_s8(q + (size_t)r * stride + g * 64 + (size_t)c * 16), w[c]);
                if (!(halves && c == 1) && !(c == 3 && g + 1 == first + step)) continue;
                const float32x4_t difference =
                    vld1q_f32(ds + (halves && c == 3 ? 2 * LW_PANEL : 0) + 4 * (2 * quad + (size_t)i));
                UNROLL
                for (int r = 0; r < pairs; ++r)
                    seg[r][i] = vfmaq_f32(seg[r][i], prefix_float(acc[r][i], magic[r][c == 3]), difference);
            }
        }
    }
    UNROLL
    for (int r = 0; r < pairs; ++r) {
        const float32x4_t scale = pair_scale(x, 2 * (size_t)r, index);
        float* to = results + 2 * (size_t)r * LW_PANEL + 8 * quad;
        UNROLL
        for (int i = 0; i < 2 * quads; ++i) vst1q_f32(to + 4 * i, vfmaq_f32(vld1q_f32(to + 4 * i), seg[r][i], scale));
    }
}

// One or two pairs of rows.
INLINE void coded_in_registers(const lw_format f, const int pairs, const lw_matrix* w, const lw_activations* x,
                               size_t panel, const workspace* work) {
    const lw_coded_panel p = lw_coded_panel_of(f, w->cols);
    for (size_t i = 0; i < x->segments; ++i) {
        const coded_segment s = coded_segment_of(f, w, &p, panel, i);
        UNROLL
        for (int pass = 0; pass < lw_passes(f); ++pass) {
            const lw_format part = lw_pass(f, pass);
            coded_differences(part, 2, &s, work->ds);
            for (size_t quad = 0; quad < QUADS; quad += 2)
                coded_tile(part, pairs, 2, &s, work->ds, x, i, quad, work->results);
        }
    }
}

INLINE void coded_gemv(const lw_format f, const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out,
                       void* scratch) {
    const workspace work = workspace_of(scratch, x->rows);
    const lw_coded_panel p = lw_coded_panel_of(f, w->cols);
    const bool is_trellis = f.map == LW_MAP_TRELLIS && x->rows == 1;
    if (is_trellis) trellis_row(f, w, x, panel, &work);
    const bool done = is_trellis || (is_cb2(f) && row_of_cb2(gemv_cb2__i8mm, w, x, panel, &work));
    for (size_t row = 0; row < x->rows && !done; ++row)
        for (size_t i = 0; i < x->segments; ++i) {
            const coded_segment s = coded_segment_of(f, w, &p, panel, i);
            UNROLL
            for (int pass = 0; pass < lw_passes(f); ++pass) {
                const lw_format part = lw_pass(f, pass);
                coded_differences(part, 1, &s, work.ds);
                for (size_t quad = 0; quad < QUADS; quad += 4)
                    coded_tile_1(part, 4, &s, work.ds, x, i, row, quad, work.results + row * LW_PANEL);
            }
        }
    finish_coded(f, w, x, panel, out, &work);
}

INLINE void decoded_tiles(const lw_format f, const lw_activations* x, size_t index, const workspace* work) {
    const lw_mm_tile_fn* tiles = lw_mm_tiles[f.group == 16    ? LW_MM_G16
                                             : f.group == 64  ? LW_MM_G64
                                             : f.group == 128 ? LW_MM_G128
                                                              : LW_MM_G32];
    const size_t pairs = (x->rows + 1) / 2;
    float scale[6 * 4];
    lw_mm_tile t = {.q_stride = 2 * x->stride,
                    .codes = (const uint8_t*)work->codes,
                    .code_stride = 1024,
                    .ds = work->ds,
                    .groups = LW_SEGMENT_GROUPS,
                    .scale = scale};
    for (size_t pair = 0, n; pair < pairs; pair += n) {
        n = next_tile(pairs - pair);
        pair_scales(x, pair, n, index, scale);
        t.q = x->q + pair * t.q_stride + 2 * index * LW_SEGMENT;
        t.results = work->results + pair * 2 * LW_PANEL;
        tiles[n - 3](&t);
    }
}

// Results of SMMLA's tiles are put in order before minimums are taken off.
INLINE void finish_pairs(const lw_format f, const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out,
                         const workspace* work) {
    for (size_t row = 0; row < x->rows; row += 2) separate_rows(work->results + row * LW_PANEL);
    finish_coded(f, w, x, panel, out, work);
}

// Two rows and more.
INLINE void coded_gemm(const lw_format f, const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out,
                       void* scratch) {
    const workspace work = workspace_of(scratch, x->rows);
    if (x->rows <= 2)
        coded_in_registers(f, 1, w, x, panel, &work);
    else if (x->rows <= 4)
        coded_in_registers(f, 2, w, x, panel, &work);
    else
        coded_decoded(f, 2, STRIDE, decoded_tiles, w, x, panel, &work);
    finish_pairs(f, w, x, panel, out, &work);
}

#if defined(LW_ISA_sve)  // from nine rows on
#define LW_CODED_KERNELS(name)                                                                                    \
    void gemm_##name##_q8s128_12xv__sve(const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out, \
                                        void* scratch) {                                                          \
        const workspace work = workspace_of(scratch, x->rows);                                                    \
        coded_decoded(lw_format_##name, 2, STRIDE, decoded_tiles, w, x, panel, &work);                            \
        finish_pairs(lw_format_##name, w, x, panel, out, &work);                                                  \
    }
#else
#define LW_CODED_KERNELS(name)                                                                                     \
    void gemv_##name##_q8s128_1x16__i8mm(const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out, \
                                         void* scratch) {                                                          \
        coded_gemv(lw_format_##name, w, x, panel, out, scratch);                                                   \
    }                                                                                                              \
    void gemm_##name##_q8s128_12x4__i8mm(const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out, \
                                         void* scratch) {                                                          \
        coded_gemm(lw_format_##name, w, x, panel, out, scratch);                                                   \
    }
#endif

#endif
