// Products of the coded types with SMMLA: up to four rows decode in registers, more rows share a decoded segment.
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

enum { STRIDE = 16 };  // vectors in a chunk of eight inputs

// True if one row multiplies the codes as unsigned bytes. Then the sign bit of every code need not be changed, which
// saves more than taking 128 times the sum of the inputs off costs.
INLINE bool is_unsigned(const lw_format f) { return f.map == LW_MAP_OFFSET && f.low == 8; }

INLINE int row_bias(const lw_format f) { return is_unsigned(f) ? f.offset : coded_bias(f); }

// sum + weights * inputs of a row; the weights come from bits_column, unsigned if is_unsigned(f).
INLINE int32x4_t multiply_row(const lw_format f, int32x4_t sum, int8x16_t w, int8x16_t inputs) {
    return is_unsigned(f) ? vusdotq_s32(sum, vreinterpretq_u8_s8(w), inputs) : vdotq_s32(sum, w, inputs);
}

INLINE void row_column(const lw_format f, const coded_segment* s, size_t g, size_t at, int8x16_t w[4]) {
    if (!is_unsigned(f)) {
        coded_column(f, STRIDE, s, g, at, w);
        return;
    }
    uint8x16_t bytes[4];
    bits_column(f, STRIDE, s, g, at, bytes);
    UNROLL
    for (int c = 0; c < 4; ++c) w[c] = vreinterpretq_s8_u8(bytes[c]);
}

// Scales of step `step` of a segment for eight outputs from `output` on. `magics`: super scales times -LW_MAGIC, if
// there are any.
INLINE float32x4x2_t row_scale8(const lw_format f, const coded_segment* s, const float* magics, size_t step,
                                size_t output) {
    const size_t shared = f.group > LW_GROUP ? f.group / LW_GROUP : 1, g = step / shared;
    if (f.scale == LW_SCALE_F16) {  // this takes half the slots of FCVTL
        const uint8_t* at =
            s->data + LW_SEGMENT * LW_PANEL / 8 * (size_t)(f.low + f.high) + (g * LW_PANEL + output) * 2;
        const float16x8_t halves = vreinterpretq_f16_u8(vld1q_u8(at)), one = vdupq_n_f16(1);
        return (float32x4x2_t){{vfmlalq_low_f16(load_zero(), halves, one), vfmlalq_high_f16(load_zero(), halves, one)}};
    }
    const float32x4x2_t super = coded_super8(f, s, output);
    return coded_scale8_of(f, s, super, small_scales(f) ? load_addend8(magics + output) : super, g, output);
}

// One row by group `g` of a segment, added to acc[8 quads]. `shared`: the group's scales, if several groups share them.
INLINE void coded_row_group(const lw_format f, const coded_segment* s, const lw_activations* x, size_t index, size_t g,
                            const float* magics, const float32x4x2_t* shared, float32x4_t acc[QUADS]) {
    const size_t steps = f.group == 16 ? 2 : 1;
    const int32_t* totals = x->totals + index * (LW_SEGMENT / 16) + 2 * g;
    const float x_scale = x->scale[index * LW_SEGMENT_GROUPS + g];
    int8x16_t in[4];
    int32_t starts[2][4];
    spread_inputs(x->q + index * LW_SEGMENT + g * LW_GROUP, in);
    if (steps == 2) find_row_start(row_bias(f), totals[0], starts[0]);
    find_row_start(row_bias(f), totals[1] - (steps == 2 ? totals[0] : 0), starts[steps - 1]);
    UNROLL
    for (size_t quad = 0; quad < QUADS; ++quad) {
        int8x16_t w[2][4];
        UNROLL
        for (size_t p = 0; p < 2; ++p) row_column(f, s, g, 2 * quad + p, w[p]);
        UNROLL
        for (size_t h = 0; h < steps; ++h) {
            const int32_t* start = row_bias(f) ? starts[h] : (const int32_t*)lw_row_start;
            int32x4_t sum[2] = {load_now(start), load_now(start)};
            UNROLL
            for (size_t c = 0; c < 4 / steps; ++c) UNROLL
            for (int p = 0; p < 2; ++p) sum[p] = multiply_row(f, sum[p], w[p][2 * h + c], in[2 * h + c]);
            const float32x4x2_t scale =
                shared ? shared[quad / 2] : row_scale8(f, s, magics, g * steps + h, quad / 2 * 8);
            acc[quad] = vfmaq_n_f32(acc[quad], scaled(fold(sum), scale.val[quad % 2]), x_scale);
        }
    }
}

// One row by a segment, added to acc[8 quads].
INLINE void coded_row(const lw_format f, const coded_segment* s, const lw_activations* x, size_t index,
                      float32x4_t acc[QUADS]) {
    float magics[LW_PANEL];
    for (size_t i = 0; i < LW_PANEL && small_scales(f); i += 8) {
        const float32x4x2_t magic = magic_times8(coded_super8(f, s, i));
        vst1q_f32(magics + i, magic.val[0]);
        vst1q_f32(magics + i + 4, magic.val[1]);
    }
    if (f.group <= LW_GROUP || f.scale != LW_SCALE_F16) {
        for (size_t g = 0; g < LW_SEGMENT_GROUPS; ++g) coded_row_group(f, s, x, index, g, magics, NULL, acc);
        return;
    }
    for (size_t first = 0; first < LW_SEGMENT_GROUPS; first += f.group / LW_GROUP) {
        float32x4x2_t scales[QUADS / 2];
        UNROLL
        for (size_t i = 0; i < QUADS / 2; ++i) scales[i] = row_scale8(f, s, NULL, first, 8 * i);
        for (size_t g = first; g < first + f.group / LW_GROUP; ++g)
            coded_row_group(f, s, x, index, g, NULL, scales, acc);
    }
}

// `pairs` pairs of rows by 4 * `quads` outputs, added to results[pair of rows][pair of outputs][2][2]. `scales` are
// laid out as workspace.scales with two copies.
INLINE void coded_tile(const lw_format f, const int pairs, const int quads, const coded_segment* s, const float* scales,
                       const lw_activations* x, int32_t starts[2][8][4], size_t index, size_t quad, float* results) {
    const size_t steps = f.group == 16 ? 2 : 1, stride = 2 * x->stride,
                 x_scale_stride = x->segments * LW_SEGMENT_GROUPS * 4;
    const int8_t* q = x->q + 2 * index * LW_SEGMENT;
    const float* x_scale = pair_scales(x, 0, index);
    float32x4_t acc[2][4];
    UNROLL
    for (int r = 0; r < pairs; ++r) UNROLL
    for (int i = 0; i < 2 * quads; ++i)
        acc[r][i] = vld1q_f32(results + 2 * (size_t)r * LW_PANEL + 8 * quad + 4 * (size_t)i);
    UNROLL
    for (size_t g = 0; g < LW_SEGMENT_GROUPS; ++g) {
        UNROLL
        for (int i = 0; i < 2 * quads; ++i) {
            int8x16_t w[4];
            const float* scale = scales + g * steps * LW_MM_STEP_FLOATS + 4 * (2 * quad + (size_t)i);
            coded_column(f, STRIDE, s, g, 2 * quad + (size_t)i, w);
            UNROLL
            for (size_t h = 0; h < steps; ++h, scale += LW_MM_STEP_FLOATS) {
                const float32x4_t of_weights = vld1q_f32(scale);
                UNROLL
                for (int r = 0; r < pairs; ++r) {
                    const int8_t* inputs = q + (size_t)r * stride + g * 64;
                    int32x4_t sum = load_now(coded_bias(f) ? starts[r][2 * g + (steps == 1 ? 1 : h)] : lw_magic_start);
                    UNROLL
                    for (size_t c = h * 2; c < h * 2 + 4 / steps; ++c)
                        sum = vmmlaq_s32(sum, vld1q_s8(inputs + c * 16), w[c]);
                    const float32x4_t magic = vreinterpretq_f32_s32(load_now((const int32_t*)(scale + 2 * LW_PANEL)));
                    acc[r][i] = vfmaq_f32(acc[r][i], scaled_sum(sum, of_weights, magic),
                                          vld1q_f32(x_scale + (size_t)r * x_scale_stride + 4 * g));
                }
            }
        }
    }
    UNROLL
    for (int r = 0; r < pairs; ++r) UNROLL
    for (int i = 0; i < 2 * quads; ++i)
        vst1q_f32(results + 2 * (size_t)r * LW_PANEL + 8 * quad + 4 * (size_t)i, acc[r][i]);
}

// One or two pairs of rows.
INLINE void coded_in_registers(const lw_format f, const int pairs, const lw_matrix* w, const lw_activations* x,
                               size_t panel, const workspace* work) {
    const lw_coded_panel p = lw_coded_panel_of(f, w->cols);
    for (size_t i = 0; i < x->segments; ++i) {
        const coded_segment s = coded_segment_of(f, w, &p, panel, i);
        lw_fetch_ahead_of(w, panel, i, x->segments);
        int32_t starts[2][8][4];
        for (size_t r = 0; r < (size_t)pairs && coded_bias(f) != 0; ++r)
            find_pair_starts(coded_bias(f), f.group == 16, x, r, i, starts[r]);
        UNROLL
        for (int pass = 0; pass < lw_passes(f); ++pass) {
            const lw_format part = lw_pass(f, pass);
            coded_scales(part, 2, &s, work->scales);
            for (size_t quad = 0; quad < QUADS; quad += 2)
                coded_tile(part, pairs, 2, &s, work->scales, x, starts, i, quad, work->results);
        }
    }
}

INLINE void coded_gemv(const lw_format f, const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out,
                       void* scratch) {
    const workspace work = workspace_of(scratch, 1);
    const lw_coded_panel p = lw_coded_panel_of(f, w->cols);
    const bool is_trellis = f.map == LW_MAP_TRELLIS;
    if (is_trellis) trellis_row(f, w, x, panel, &work);
    const bool done = is_trellis || (is_cb2(f) && row_of_cb2(gemv_cb2__i8mm, w, x, panel, &work));
    float32x4_t acc[QUADS];
    UNROLL
    for (size_t i = 0; i < QUADS; ++i) acc[i] = vdupq_n_f32(0);
    for (size_t i = 0; i < x->segments && !done; ++i) {
        const coded_segment s = coded_segment_of(f, w, &p, panel, i);
        lw_fetch_ahead_of(w, panel, i, x->segments);
        UNROLL
        for (int pass = 0; pass < lw_passes(f); ++pass) coded_row(lw_pass(f, pass), &s, x, i, acc);
    }
    UNROLL
    for (size_t i = 0; i < QUADS && !done; ++i) vst1q_f32(work.results + 4 * i, acc[i]);
    finish_coded(f, w, x, panel, out, &work);
}

// All rows by decoded blocks. Types with two passes go over each segment twice before the next one.
INLINE void coded_blocks(const lw_format f, const lw_matrix* w, const lw_activations* x, size_t panel,
                         const workspace* work) {
    const lw_coded_panel p = lw_coded_panel_of(f, w->cols);
    const lw_mm_tile_fn* tiles = lw_mm_tiles[f.group == 16 ? LW_MM_G16 : LW_MM_G32];
    const size_t block = lw_passes(f) == 1 ? BLOCK : 1,
                 segment_floats = LW_SEGMENT / lw_step_inputs(f) * LW_MM_STEP_FLOATS;
    for (size_t i = 0; i < x->segments; i += block) {
        const size_t n = x->segments - i < block ? x->segments - i : block;
        const lw_mm_tile t = {.codes = (const uint8_t*)work->codes,
                              .code_stride = 1024,
                              .scales = work->scales,
                              .groups = n * LW_SEGMENT_GROUPS};
        UNROLL
        for (int pass = 0; pass < lw_passes(f); ++pass) {
            const lw_format part = lw_pass(f, pass);
            for (size_t j = 0; j < n; ++j) {
                const coded_segment s = coded_segment_of(f, w, &p, panel, i + j);
                if (pass == 0) lw_fetch_ahead_of(w, panel, i + j, x->segments);
                coded_scales(part, 2, &s, work->scales + j * segment_floats);
                decode_coded(part, STRIDE, &s, work->codes + j * LW_SEGMENT * LW_PANEL);
            }
            product_of_tiles(tiles[3], tiles, t, x, i, work->results);
        }
    }
}

// Puts the results of SMMLA's tiles in row order before minimums are taken off.
INLINE void finish_pairs(const lw_format f, const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out,
                         const workspace* work) {
    for (size_t row = 0; row < x->rows; row += 2) separate_rows(work->results + row * LW_PANEL);
    finish_coded(f, w, x, panel, out, work);
}

// Two and more rows.
INLINE void coded_gemm(const lw_format f, const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out,
                       void* scratch) {
    const workspace work = block_workspace(scratch, x->rows);
    if (x->rows <= 2)
        coded_in_registers(f, 1, w, x, panel, &work);
    else if (x->rows <= 4)
        coded_in_registers(f, 2, w, x, panel, &work);
    else
        coded_blocks(f, w, x, panel, &work);
    finish_pairs(f, w, x, panel, out, &work);
}

#if defined(LW_ISA_sve)  // these kernels run from nine rows on
#define LW_CODED_KERNELS(name)                                                                                   \
    void gemm_##name##_q8g32_12xv__sve(const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out, \
                                       void* scratch) {                                                          \
        const workspace work = block_workspace(scratch, x->rows);                                                \
        coded_blocks(lw_format_##name, w, x, panel, &work);                                                      \
        finish_pairs(lw_format_##name, w, x, panel, out, &work);                                                 \
    }
#else
#define LW_CODED_KERNELS(name)                                                                                    \
    void gemv_##name##_q8g32_1x16__i8mm(const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out, \
                                        void* scratch) {                                                          \
        coded_gemv(lw_format_##name, w, x, panel, out, scratch);                                                  \
    }                                                                                                             \
    void gemm_##name##_q8g32_12x4__i8mm(const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out, \
                                        void* scratch) {                                                          \
        coded_gemm(lw_format_##name, w, x, panel, out, scratch);                                                  \
    }
#endif

#endif
