// Products of four and more rows: the scales of a segment are decoded once for all rows. So are the codes if there are
// more than eight rows. The tiles are in assembly.
#ifndef LW_KERNELS_DOTPROD_MATMUL_DECODED_H
#define LW_KERNELS_DOTPROD_MATMUL_DECODED_H

#include "kernels/dotprod/matmul_tile.h"
#include "kernels/dotprod/tile.h"

// Decodes a group of Q6_K to [8 chunks][32 outputs][4 inputs], the order that tiles read and that Q8_0 is packed in.
INLINE void decode_codes(const segment* s, size_t group, int8_t* codes) {
    for (size_t quad = 0; quad < QUADS; ++quad) {
        int8x16_t w[8];
        load_group(FROM_Q6, s, group, quad, w);
        UNROLL
        for (int c = 0; c < 8; ++c) vst1q_s8(codes + 128 * c + 16 * quad, vsubq_s8(w[c], vdupq_n_s8(32)));
    }
}

// A segment's scales for tiles. Sums of Q4_0 are 16 times too large, so its scales are divided by 16; neither rounds.
INLINE void decode_scales(const source from, const segment* s, float* scales) {
    if (from != FROM_Q4) {
        packed_scales(from, 1, s, scales);
        return;
    }
    const float32x4x2_t none = packed_super8(from, s, 0);
    for (size_t g = 0; g < s->groups; ++g) UNROLL
    for (size_t output = 0; output < LW_PANEL; output += 8)
        store_scale8(1, scale_of_sums8(from, s, none, none, g, 0, output), scales + g * 2 * LW_PANEL + output);
}

// Rows in the next tile: 4 to 8, so that no tile has too few sums to keep the pipes busy.
INLINE size_t next_tile(size_t rows) { return rows <= 8 ? rows : rows > 11 ? 8 : (rows + 1) / 2; }

INLINE void gemm_decoded(const source from, const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out,
                         void* scratch) {
    const workspace work = workspace_of(scratch, x->rows);
    // Q4_0 is decoded in the tile. If there is one tile, it keeps the codes in registers; else the first tile also
    // stores them for the others.
    const int kind = from == FROM_Q6 ? TILES_G16 : from == FROM_Q4 && x->rows <= 8 ? TILES_Q4 : TILES_G32;
    for (size_t i = 0; i < x->segments; ++i) {
        const segment s = segment_of(w, panel, i, packed_group_bytes(from));
        lw_fetch_ahead_of(w, panel, i, x->segments);
        decode_scales(from, &s, work.scales);
        for (size_t g = 0; g < s.groups && from == FROM_Q6; ++g) decode_codes(&s, g, work.codes + 1024 * g);
        lw_dot_tile t = {.q_stride = x->stride,
                         .codes = from == FROM_Q8 ? (int8_t*)(uintptr_t)s.data : work.codes,
                         .code_stride = from == FROM_Q8 ? LW_Q8_GROUP_BYTES : 1024,
                         .scales = work.scales,
                         .groups = s.groups,
                         .packed = s.data,
                         .da_stride = x->segments * LW_SEGMENT_GROUPS * sizeof(float)};
        for (size_t row = 0, n; row < x->rows; row += n) {
            n = next_tile(x->rows - row);
            t.da = x->scale + (row * x->segments + i) * LW_SEGMENT_GROUPS;
            t.q = x->q + row * x->stride + s.k;
            t.results = work.results + row * LW_PANEL;
            lw_dot_tiles[kind == TILES_G32 && from == FROM_Q4 && row == 0 ? TILES_STORE : kind][n - 4](&t);
        }
    }
    lw_store_panel(w, panel, x->rows, work.results, out);
}

// Two and more rows. Three rows are too few for a tile in assembly.
INLINE void gemm(const source from, const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out,
                 void* scratch) {
    if (x->rows <= 3)
        gemm_in_registers(from, w, x, panel, out, scratch);
    else
        gemm_decoded(from, w, x, panel, out, scratch);
}

#endif
