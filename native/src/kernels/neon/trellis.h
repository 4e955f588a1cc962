// One row by a panel of a trellis type, on levels with SDOT. On every level a trellis's codes lie as four inputs of
// four outputs, which SDOT multiplies, whatever the chunk of the level's other types.
#ifndef LW_KERNELS_NEON_TRELLIS_H
#define LW_KERNELS_NEON_TRELLIS_H

#include "kernels/neon/coded.h"

enum { TRELLIS_QUADS = 4 };  // quads of outputs at a time: their sums, tables and inputs fit the registers

// Some outputs' codes of group g times the group's 32 inputs.
INLINE void trellis_group(const coded_segment* s, const int8_t* q, size_t g, size_t quad,
                          int32x4_t acc[TRELLIS_QUADS]) {
    const int8x16_t low = vld1q_s8(q), high = vld1q_s8(q + 16);
    UNROLL
    for (size_t j = 0; j < TRELLIS_QUADS; ++j) {
        uint8x16_t bits[8];
        int8x16_t w[8];
        trellis_column(8, s, g, quad + j, bits);
        UNROLL
        for (int c = 0; c < 8; ++c) w[c] = vreinterpretq_s8_u8(vqtbl1q_u8(s->table, bits[c]));
        acc[j] = dot16(dot16(acc[j], w, low), w + 4, high);
    }
}

// Adds the products of x's only row by segment `index` to results[LW_PANEL].
INLINE void trellis_segment(const lw_format f, const coded_segment* s, const lw_activations* x, size_t index,
                            float* results) {
    const int8_t* q = x->q + index * LW_SEGMENT;
    const float32x4_t da = vld1q_f32(x->scale + index * LW_SEGMENT_GROUPS);
    for (size_t quad = 0; quad < LW_PANEL / 4; quad += TRELLIS_QUADS) {
        float32x4_t acc[TRELLIS_QUADS];
        float32x4x2_t super[TRELLIS_QUADS / 2];
        float magics[4 * TRELLIS_QUADS];
        UNROLL
        for (size_t j = 0; j < TRELLIS_QUADS; ++j) {
            acc[j] = vld1q_f32(results + 4 * (quad + j));
            if (j % 2 == 0) super[j / 2] = coded_super8(f, s, 4 * (quad + j));
            vst1q_f32(magics + 4 * j, magic_times(super[j / 2].val[j % 2]));
        }
        UNROLL
        for (size_t g = 0; g < LW_SEGMENT_GROUPS; ++g) {
            int32x4_t sum[TRELLIS_QUADS];
            UNROLL
            for (int j = 0; j < TRELLIS_QUADS; ++j) sum[j] = load_start(lw_magic_start);
            trellis_group(s, q + g * LW_GROUP, g, quad, sum);
            UNROLL
            for (size_t p = 0; p < TRELLIS_QUADS / 2; ++p) {
                const float32x4x2_t scale =
                    coded_scale8_of(f, s, super[p], load_addend8(magics + 8 * p), g, 4 * quad + 8 * p);
                UNROLL
                for (size_t j = 0; j < 2; ++j)
                    acc[2 * p + j] = fma_group(
                        acc[2 * p + j], scaled_sum(sum[2 * p + j], scale.val[j], magic_times(scale.val[j])), da, g);
            }
        }
        UNROLL
        for (size_t j = 0; j < TRELLIS_QUADS; ++j) vst1q_f32(results + 4 * (quad + j), acc[j]);
    }
}

INLINE void trellis_row(const lw_format f, const lw_matrix* w, const lw_activations* x, size_t panel,
                        const workspace* work) {
    const lw_coded_panel p = lw_coded_panel_of(f, w->cols);
    for (size_t i = 0; i < x->segments; ++i) {
        const coded_segment s = coded_segment_of(f, w, &p, panel, i);
        lw_fetch_ahead_of(w, panel, i, x->segments);
        trellis_segment(f, &s, x, i, work->results);
    }
}

#endif
