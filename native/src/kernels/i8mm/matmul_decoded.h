// Products of five and more pairs of rows: a segment of weights is decoded once for all rows. The tiles are in
// assembly.
#ifndef LW_KERNELS_I8MM_MATMUL_DECODED_H
#define LW_KERNELS_I8MM_MATMUL_DECODED_H

#include "kernels/i8mm/matmul_tile.h"
#include "kernels/i8mm/tile.h"

// Decodes a group's codes to [4 chunks][32 outputs][8 inputs], the order that tiles read and that Q8_0 is packed in.
INLINE void decode_codes(const source from, const uint8_t* packed, int8_t* codes) {
    const uint8x16_t low_mask = vdupq_n_u8(0x0F), high_mask = vdupq_n_u8(0xF0), top_mask = vdupq_n_u8(0x30);
    if (from == FROM_Q4) {
        UNROLL
        for (int i = 0; i < 512; i += 16) {
            const uint8x16_t raw = vld1q_u8(packed + i);
            vst1q_s8(codes + i, vreinterpretq_s8_u8(vshlq_n_u8(raw, 4)));
            vst1q_s8(codes + 512 + i, vreinterpretq_s8_u8(vandq_u8(raw, high_mask)));
        }
        return;
    }
    UNROLL
    for (int i = 0; i < 256; i += 16) {
        const uint8x16_t a = vld1q_u8(packed + i), b = vld1q_u8(packed + 256 + i);
        const uint8x16_t top = vld1q_u8(packed + LW_Q6_LOW_BYTES + i);
        const uint8x16_t code[4] = {
            vbslq_u8(top_mask, vshlq_n_u8(top, 4), vandq_u8(a, low_mask)),
            vbslq_u8(top_mask, vshlq_n_u8(top, 2), vandq_u8(b, low_mask)),
            vbslq_u8(top_mask, top, vshrq_n_u8(a, 4)),
            vbslq_u8(top_mask, vshrq_n_u8(top, 2), vshrq_n_u8(b, 4)),
        };
        UNROLL
        for (int c = 0; c < 4; ++c)
            vst1q_s8(codes + 256 * c + i, vsubq_s8(vreinterpretq_s8_u8(code[c]), vdupq_n_s8(32)));
    }
}

// A segment's scales for tiles. Codes of Q4_0 are 16 times too large, so its scales are divided by 16; neither rounds.
INLINE void decode_scales(const source from, const segment* s, float* scales) {
    if (from != FROM_Q4) {
        packed_scales(from, 2, s, scales);
        return;
    }
    for (size_t g = 0; g < s->groups; ++g) UNROLL
    for (size_t quad = 0; quad < QUADS; quad += 2) {
        float32x4x2_t scale;
        for (size_t j = 0; j < 2; ++j) load_scales(from, s, g, quad + j, vdupq_n_f32(0), &scale.val[j]);
        store_scale8(2, scale, scales + g * LW_MM_STEP_FLOATS + quad * 8);
    }
}

// Pairs of rows in the next tile: 3 to 6, so that no tile has too few sums to keep the pipes busy.
INLINE size_t next_tile(size_t pairs) { return pairs == 6 || pairs > 8 ? 6 : pairs > 6 ? 4 : pairs; }

enum { BLOCK = 4 };  // segments that are decoded at a time, so that results stay in registers over them

// Scratch for a block of segments. The scratch that types with minimums need beyond their scales overlaps the block's
// end.
INLINE workspace block_workspace(void* scratch, size_t rows) {
    workspace work = workspace_of(scratch, rows);
    work.scales = (float*)(work.codes + BLOCK * LW_SEGMENT * LW_PANEL);
    _Static_assert(BLOCK * (LW_SEGMENT * LW_PANEL + 2 * LW_SEGMENT_GROUPS * LW_MM_STEP_FLOATS * sizeof(float)) <=
                       LW_KERNEL_SCRATCH_BYTES,
                   "codes and scales of steps of 16 inputs");
    return work;
}

// All rows by a decoded block from segment `index` on; `t` has its codes and scales. The tile `first` multiplies the
// first 12 rows.
INLINE void product_of_tiles(const lw_mm_tile_fn first, const lw_mm_tile_fn tiles[4], lw_mm_tile t,
                             const lw_activations* x, size_t index, float* results) {
    const size_t pairs = (x->rows + 1) / 2;
    t.q_stride = 2 * x->stride;
    t.x_scale_stride = x->segments * LW_SEGMENT_GROUPS * 4 * sizeof(float);
    for (size_t pair = 0, n; pair < pairs; pair += n) {
        n = next_tile(pairs - pair);
        t.q = x->q + pair * t.q_stride + 2 * index * LW_SEGMENT;
        t.x_scale = pair_scales(x, pair, index);
        t.results = results + pair * 2 * LW_PANEL;
        (pair == 0 && n == 6 ? first : tiles[n - 3])(&t);
    }
}

INLINE void gemm_decoded(const source from, const lw_mm_tile_fn tiles[LW_MM_KINDS][4], const lw_matrix* w,
                         const lw_activations* x, size_t panel, lw_output out, void* scratch) {
    const workspace work = block_workspace(scratch, x->rows);
    const size_t pairs = (x->rows + 1) / 2, group_floats = (from == FROM_Q6 ? 2 : 1) * LW_MM_STEP_FLOATS;
    const lw_mm_tile_fn* of_type = tiles[from == FROM_Q6 ? LW_MM_G16 : LW_MM_G32];
    const bool in_tile = from == FROM_Q4 && next_tile(pairs) == 6;
    for (size_t i = 0; i < x->segments; i += BLOCK) {
        lw_mm_tile t = {.codes = (const uint8_t*)work.codes, .code_stride = 1024, .scales = work.scales};
        for (size_t j = 0; j < BLOCK && i + j < x->segments; ++j) {
            const segment s = segment_of(w, panel, i + j, packed_group_bytes(from));
            lw_fetch_ahead_of(w, panel, i + j, x->segments);
            decode_scales(from, &s, work.scales + t.groups * group_floats);
            for (size_t g = 0; g < s.groups && from != FROM_Q8 && !in_tile; ++g)
                decode_codes(from, s.data + g * packed_group_bytes(from), work.codes + (t.groups + g) * 1024);
            if (j == 0) t.packed = s.data;
            t.groups += s.groups;
        }
        if (from == FROM_Q8) {
            t.codes = t.packed;
            t.code_stride = LW_Q8_GROUP_BYTES;
        }
        product_of_tiles(in_tile ? tiles[LW_MM_Q4][3] : of_type[3], of_type, t, x, i, work.results);
    }
    for (size_t pair = 0; pair < pairs; ++pair) separate_rows(work.results + pair * 2 * LW_PANEL);
    lw_store_panel(w, panel, x->rows, work.results, out);
}

// Two and more rows. Decoding once pays from nine rows on. It pays from five rows on if only scales are decoded, or if
// decoding takes many instructions.
INLINE void gemm(const source from, const lw_mm_tile_fn tiles[LW_MM_KINDS][4], const lw_matrix* w,
                 const lw_activations* x, size_t panel, lw_output out, void* scratch) {
    if (x->rows <= (from == FROM_Q8 ? 4 : 8))
        gemm_in_registers(from, w, x, panel, out, scratch);
    else
        gemm_decoded(from, tiles, w, x, panel, out, scratch);
}

#endif
