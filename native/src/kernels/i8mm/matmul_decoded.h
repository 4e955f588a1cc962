// Products of five and more pairs of rows: a segment of weights is decoded once for all rows, for tiles in assembly.
#ifndef LW_KERNELS_I8MM_MATMUL_DECODED_H
#define LW_KERNELS_I8MM_MATMUL_DECODED_H

#include "kernels/i8mm/matmul_tile.h"
#include "kernels/i8mm/tile.h"

// A group's codes to [4 chunks][32 outputs][8 inputs], as tiles want them and as Q8_0 has them.
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

// A segment's scale differences as a tile wants them. Q4_0 codes are 16 times too large, these 16 times too small.
INLINE void decode_differences(const source from, const segment* s, float* ds) {
    const size_t halves = from == FROM_Q6 ? 2 : 1;
    UNROLL
    for (size_t quad = 0; quad < QUADS; ++quad) {
        const float32x4_t super = super_scale(from, s, quad);
        for (size_t g = 0; g < s->groups; ++g) {
            float32x4_t single[2], twice[2];
            load_differences(from, s, g, quad, super, single);
            UNROLL
            for (size_t h = 0; h < halves; ++h) {
                float* to = ds + (g * halves + h) * 2 * LW_PANEL + quad * 8;
                duplicate(from == FROM_Q4 ? vmulq_n_f32(single[h], 0.0625f) : single[h], twice);
                vst1q_f32(to, twice[0]);
                vst1q_f32(to + 4, twice[1]);
            }
        }
    }
}

// [a a b b]: the activation scales of the rows of each pair for one segment; a row past the last one has scale 0.
INLINE void pair_scales(const lw_activations* x, size_t pair, size_t n, size_t segment, float* scale) {
    const float *from = x->scale + 2 * pair * x->segments + segment, *last = x->scale + (x->rows - 1) * x->segments;
    for (size_t i = 0; i < n; ++i, from += 2 * x->segments) {
        uint32_t bits[2] = {0};  // doubled as integers: no vector pipe has to do it
        memcpy(bits, from, 4);
        if (from < last) memcpy(bits + 1, from + x->segments, 4);
        const uint64_t twice[2] = {bits[0] | (uint64_t)bits[0] << 32, bits[1] | (uint64_t)bits[1] << 32};
        memcpy(scale + 4 * i, twice, sizeof twice);
    }
}

// Pairs of rows in the next tile: 3 to 6, so that no tile is left with too few sums to keep the pipes busy.
INLINE size_t next_tile(size_t pairs) { return pairs == 6 || pairs > 8 ? 6 : pairs > 6 ? 4 : pairs; }

INLINE void gemm_decoded(const source from, const lw_mm_tile_fn tiles[LW_MM_KINDS][4], const lw_matrix* w,
                         const lw_activations* x, size_t panel, lw_output out, void* scratch) {
    const workspace work = workspace_of(scratch, x->rows);
    const size_t pairs = (x->rows + 1) / 2;
    for (size_t i = 0; i < x->segments; ++i) {
        const segment s = segment_of(w, panel, i, packed_group_bytes(from));
        decode_differences(from, &s, work.ds);
        const bool in_tile = from == FROM_Q4 && next_tile(pairs) == 6;
        for (size_t g = 0; g < s.groups && from != FROM_Q8 && !in_tile; ++g)
            decode_codes(from, s.data + g * packed_group_bytes(from), work.codes + g * 1024);
        float scale[6 * 4];
        lw_mm_tile t = {.q_stride = 2 * x->stride,
                        .codes = from == FROM_Q8 ? s.data : (const uint8_t*)work.codes,
                        .code_stride = from == FROM_Q8 ? LW_Q8_GROUP_BYTES : 1024,
                        .ds = work.ds,
                        .groups = s.groups,
                        .packed = s.data,
                        .scale = scale};
        for (size_t pair = 0, n; pair < pairs; pair += n) {
            n = next_tile(pairs - pair);
            pair_scales(x, pair, n, i, scale);
            t.q = x->q + pair * t.q_stride + 2 * s.k;
            t.results = work.results + pair * 2 * LW_PANEL;
            tiles[in_tile && pair == 0 ? LW_MM_Q4 : from == FROM_Q6 ? LW_MM_G16 : LW_MM_G32][n - 3](&t);
        }
    }
    for (size_t pair = 0; pair < pairs; ++pair) separate_rows(work.results + pair * 2 * LW_PANEL);
    lw_store_panel(w, panel, x->rows, work.results, out);
}

// Two and more rows. Eight are too few for decoding once to pay.
INLINE void gemm(const source from, const lw_mm_tile_fn tiles[LW_MM_KINDS][4], const lw_matrix* w,
                 const lw_activations* x, size_t panel, lw_output out, void* scratch) {
    if (x->rows <= 8)
        gemm_in_registers(from, w, x, panel, out, scratch);
    else
        gemm_decoded(from, tiles, w, x, panel, out, scratch);
}

#endif
