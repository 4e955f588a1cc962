// Products of four and more rows: scale differences of a segment are made once for all rows, and so are codes if there
// are more than eight, for tiles in assembly.
#ifndef LW_KERNELS_DOTPROD_MATMUL_DECODED_H
#define LW_KERNELS_DOTPROD_MATMUL_DECODED_H

#include "kernels/dotprod/matmul_tile.h"
#include "kernels/dotprod/tile.h"

// A group of Q6_K to [8 chunks][32 outputs][4 inputs], as tiles want codes and as Q8_0 has them.
INLINE void decode_codes(const segment* s, size_t group, int8_t* codes) {
    for (size_t quad = 0; quad < QUADS; ++quad) {
        int8x16_t w[8];
        load_group(FROM_Q6, s, group, quad, w);
        UNROLL
        for (int c = 0; c < 8; ++c) vst1q_s8(codes + 128 * c + 16 * quad, vsubq_s8(w[c], vdupq_n_s8(32)));
    }
}

// A segment's scale differences to [group or half group][32 outputs], eight outputs at a time.
INLINE void decode_differences(const source from, const segment* s, float* ds) {
    UNROLL
    for (size_t output = 0; output < LW_PANEL; output += 8, ds += 8) {
        float32x4x2_t scale = load_half8((from == FROM_Q6 ? s->super : s->data + scale_offset(from)) + 2 * output);
        for (size_t g = 0; g < s->groups; ++g) {
            const uint8_t* here = s->data + g * packed_group_bytes(from) + scale_offset(from);
            const uint8_t* next = g + 1 < s->groups ? here + packed_group_bytes(from) : lw_zero_scales;
            float32x4x2_t difference[2];
            if (from == FROM_Q6) {
                const int8_t *codes = (const int8_t*)here + output, *after = (const int8_t*)next + output;
                UNROLL
                for (int i = 0; i < 2; ++i) {
                    difference[0].val[i] = q6_difference(scale.val[i], codes + 4 * i, codes + LW_PANEL + 4 * i);
                    difference[1].val[i] = q6_difference(scale.val[i], codes + LW_PANEL + 4 * i, after + 4 * i);
                }
                vst1q_f32_x2(ds + 2 * g * LW_PANEL, difference[0]);
                vst1q_f32_x2(ds + (2 * g + 1) * LW_PANEL, difference[1]);
            } else {
                const float32x4x2_t after = load_half8(next + 2 * output);
                UNROLL
                for (int i = 0; i < 2; ++i) difference[0].val[i] = vsubq_f32(scale.val[i], after.val[i]);
                vst1q_f32_x2(ds + g * LW_PANEL, difference[0]);
                scale = after;
            }
        }
    }
}

// Rows in the next tile: 4 to 8, so that no tile is left with too few sums to keep the pipes busy.
INLINE size_t next_tile(size_t rows) { return rows <= 8 ? rows : rows > 11 ? 8 : (rows + 1) / 2; }

INLINE void gemm_decoded(const source from, const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out,
                         void* scratch) {
    const workspace work = workspace_of(scratch, x->rows);
    // Q4_0 is decoded in the tile: in each if one is all, else in the first, which stores it for the others.
    const int kind = from == FROM_Q6 ? TILES_G16 : from == FROM_Q4 && x->rows <= 8 ? TILES_Q4 : TILES_G32;
    for (size_t i = 0; i < x->segments; ++i) {
        const segment s = segment_of(w, panel, i, packed_group_bytes(from));
        decode_differences(from, &s, work.ds);
        for (size_t g = 0; g < s.groups && from == FROM_Q6; ++g) decode_codes(&s, g, work.codes + 1024 * g);
        float scale[8];
        lw_dot_tile t = {.q_stride = x->stride,
                         .codes = from == FROM_Q8 ? (int8_t*)(uintptr_t)s.data : work.codes,
                         .code_stride = from == FROM_Q8 ? LW_Q8_GROUP_BYTES : 1024,
                         .ds = work.ds,
                         .groups = s.groups,
                         .scale = scale,
                         .packed = s.data};
        for (size_t row = 0, n; row < x->rows; row += n) {
            n = next_tile(x->rows - row);
            for (size_t r = 0; r < n; ++r)  // codes of Q4_0 are 16 times too large, and so is a segment's sum
                scale[r] = x->scale[(row + r) * x->segments + i] * (from == FROM_Q4 ? 0.0625f : 1.0f);
            t.q = x->q + row * x->stride + s.k;
            t.results = work.results + row * LW_PANEL;
            lw_dot_tiles[kind == TILES_G32 && from == FROM_Q4 && row == 0 ? TILES_STORE : kind][n - 4](&t);
        }
    }
    lw_store_panel(w, panel, x->rows, work.results, out);
}

// Two and more rows. Three are too few for a tile in assembly.
INLINE void gemm(const source from, const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out,
                 void* scratch) {
    if (x->rows <= 3)
        gemm_in_registers(from, w, x, panel, out, scratch);
    else
        gemm_decoded(from, w, x, panel, out, scratch);
}

#endif
