// One row by a panel on Armv8.0: int8 products summed in int16 as far as they are safe, then in int32.
//
// A vector holds eight outputs by two inputs; pairwise additions make one lane one output.
#ifndef LW_KERNELS_NEON_MATMUL_TILE_H
#define LW_KERNELS_NEON_MATMUL_TILE_H

#include "kernels/neon/matmul_common.h"

enum { OCTETS = LW_PANEL / 8, CHUNKS = LW_GROUP / 2 };

// Inputs 2 * chunk and 2 * chunk + 1 of a group, eight outputs. Packed Q4_0 and Q6_K give their unsigned codes.
INLINE int8x16_t load_chunk(const source from, const segment* s, size_t group, size_t chunk, size_t octet) {
    if (from >= FROM_DECODED32) return vld1q_s8(s->codes + ((group * CHUNKS + chunk) * OCTETS + octet) * 16);
    const uint8_t* base = s->data + group * packed_group_bytes(from) + octet * 16;
    if (from == FROM_Q8) return vreinterpretq_s8_u8(vld1q_u8(base + chunk * 64));
    uint8x16_t code = vld1q_u8(base + chunk % 8 * 64);
    code = chunk < 8 ? vandq_u8(code, vdupq_n_u8(0x0F)) : vshrq_n_u8(code, 4);
    if (from == FROM_Q6) {
        uint8x16_t top = vld1q_u8(base + LW_Q6_LOW_BYTES + chunk % 4 * 64);
        const size_t part = chunk / 4;
        top = part == 0 ? vshlq_n_u8(top, 4) : part == 1 ? vshlq_n_u8(top, 2) : part == 3 ? vshrq_n_u8(top, 2) : top;
        code = vbslq_u8(vdupq_n_u8(0x30), top, code);
    }
    return vreinterpretq_s8_u8(code);
}

// What a packed code is larger by than the weight.
INLINE int32_t code_bias(const source from) { return from == FROM_Q4 ? 8 : from == FROM_Q6 ? 32 : 0; }

// The scale differences of a segment as [group][LW_PANEL].
INLINE void store_differences(const source from, const segment* s, float* ds) {
    for (size_t quad = 0; quad < QUADS; ++quad) {
        float32x4_t scale = load_half4((from == FROM_Q6 ? s->super : s->data + scale_offset(from)) + 8 * quad);
        for (size_t g = 0; g < s->groups; ++g) {
            const uint8_t* here = s->data + g * packed_group_bytes(from) + scale_offset(from);
            const uint8_t* next = g + 1 < s->groups ? here + packed_group_bytes(from) : lw_zero_scales;
            if (from == FROM_Q6) {
                const int8_t* codes = (const int8_t*)here + 4 * quad;
                const float32x4_t second = q6_difference(scale, codes + LW_PANEL, (const int8_t*)next + 4 * quad);
                vst1q_f32(ds + 2 * g * LW_PANEL + 4 * quad, q6_difference(scale, codes, codes + LW_PANEL));
                vst1q_f32(ds + (2 * g + 1) * LW_PANEL + 4 * quad, second);
            } else {
                const float32x4_t after = load_half4(next + 8 * quad);
                vst1q_f32(ds + g * LW_PANEL + 4 * quad, vsubq_f32(scale, after));
                scale = after;
            }
        }
    }
}

// One row over one segment, added to results[row][LW_PANEL]. `terms` products of one lane fit an int16.
INLINE void tile(const source from, const size_t terms, const segment* s, const lw_activations* x, size_t row,
                 float* results) {
    const size_t halves = from == FROM_Q6 || from == FROM_DECODED16 ? 2 : 1, chunks = CHUNKS / halves;
    const int8_t* q = x->q + row * x->stride + s->k;
    const int32_t* prefix = x->prefix + row * (x->stride / 16) + s->k / 16;
    int32x4_t acc[QUADS];
    float32x4_t seg[QUADS];
    UNROLL
    for (size_t i = 0; i < QUADS; ++i) {
        acc[i] = vdupq_n_s32(LW_MAGIC_BITS);
        seg[i] = vdupq_n_f32(0);
    }
    for (size_t g = 0; g < s->groups; ++g) UNROLL
    for (size_t h = 0; h < halves; ++h) {
        UNROLL
        for (size_t first = h * chunks; first < (h + 1) * chunks; first += terms) {
            int16x8_t sum[QUADS];
            UNROLL
            for (size_t chunk = first; chunk < first + terms; ++chunk) {
                int16_t pair;
                memcpy(&pair, q + g * LW_GROUP + 2 * chunk, sizeof pair);
                const int8x16_t inputs = vreinterpretq_s8_s16(vdupq_n_s16(pair));
                UNROLL
                for (size_t o = 0; o < OCTETS; ++o) {
                    const int8x16_t w = load_chunk(from, s, g, chunk, o);
                    if (chunk == first) {
                        sum[2 * o] = vmull_s8(vget_low_s8(w), vget_low_s8(inputs));
                        sum[2 * o + 1] = vmull_high_s8(w, inputs);
                    } else {
                        sum[2 * o] = vmlal_s8(sum[2 * o], vget_low_s8(w), vget_low_s8(inputs));
                        sum[2 * o + 1] = vmlal_high_s8(sum[2 * o + 1], w, inputs);
                    }
                }
            }
            UNROLL
            for (size_t i = 0; i < QUADS; ++i) acc[i] = vpadalq_s16(acc[i], sum[i]);
        }
        const float32x4_t magic =
            biased_magic(code_bias(from) ? code_bias(from) * prefix[halves == 2 ? 2 * g + h : 2 * g + 1] : 0);
        UNROLL
        for (size_t i = 0; i < QUADS; ++i)
            seg[i] =
                vfmaq_f32(seg[i], prefix_float(acc[i], magic), vld1q_f32(s->ds + (g * halves + h) * LW_PANEL + 4 * i));
    }
    UNROLL
    for (size_t i = 0; i < QUADS; ++i) {
        float* to = results + row * LW_PANEL + 4 * i;
        vst1q_f32(to, vfmaq_n_f32(vld1q_f32(to), seg[i], x->scale[row * x->segments + s->index]));
    }
}

// Writes one segment of a panel to scratch as [group][chunk][octet] vectors of weights.
INLINE void decode(const source from, const segment* s, int8_t* codes) {
    for (size_t g = 0; g < s->groups; ++g) UNROLL
    for (size_t chunk = 0; chunk < CHUNKS; ++chunk) UNROLL
    for (size_t o = 0; o < OCTETS; ++o)
        vst1q_s8(codes + ((g * CHUNKS + chunk) * OCTETS + o) * 16,
                 vsubq_s8(load_chunk(from, s, g, chunk, o), vdupq_n_s8((int8_t)code_bias(from))));
}

INLINE void gemv(const source from, const size_t terms, const lw_matrix* w, const lw_activations* x, size_t panel,
                 lw_output out, void* scratch) {
    const workspace work = workspace_of(scratch, x->rows);
    for (size_t i = 0; i < x->segments; ++i) {
        segment s = segment_of(w, panel, i, packed_group_bytes(from));
        store_differences(from, &s, work.ds);
        s.ds = work.ds;
        for (size_t row = 0; row < x->rows; ++row) tile(from, terms, &s, x, row, work.results);
    }
    lw_store_panel(w, panel, x->rows, work.results, out);
}

// Several rows share what decoding costs.
INLINE void gemm(const source from, const size_t terms, const lw_matrix* w, const lw_activations* x, size_t panel,
                 lw_output out, void* scratch) {
    const source decoded = from == FROM_Q6 ? FROM_DECODED16 : FROM_DECODED32;
    const workspace work = workspace_of(scratch, x->rows);
    for (size_t i = 0; i < x->segments; ++i) {
        segment s = segment_of(w, panel, i, packed_group_bytes(from));
        store_differences(from, &s, work.ds);
        decode(from, &s, work.codes);
        s.ds = work.ds;
        s.codes = work.codes;
        for (size_t row = 0; row < x->rows; ++row) tile(decoded, terms, &s, x, row, work.results);
    }
    lw_store_panel(w, panel, x->rows, work.results, out);
}

#endif
