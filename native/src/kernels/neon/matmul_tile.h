// One row by a panel on Armv8.0: int8 products are summed in int16 while that cannot overflow, then in int32.
//
// A vector holds eight outputs by two inputs; pairwise additions make one lane one output.
#ifndef LW_KERNELS_NEON_MATMUL_TILE_H
#define LW_KERNELS_NEON_MATMUL_TILE_H

#include "kernels/neon/matmul_common.h"

enum { OCTETS = LW_PANEL / 8, CHUNKS = LW_GROUP / 2 };

// Loads inputs 2 * chunk and 2 * chunk + 1 of a group for eight outputs. Packed Q4_0 and Q6_K give unsigned codes.
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

// The amount by which packed codes are larger than the weights.
INLINE int32_t code_bias(const source from) { return from == FROM_Q4 ? 8 : from == FROM_Q6 ? 32 : 0; }

// One row over one segment, added to results[row][LW_PANEL]. An int16 holds the sum of `terms` products. If scales are
// not in memory they are decoded where they are used.
INLINE void tile(const source from, const size_t terms, const segment* s, const lw_activations* x, size_t row,
                 float* results) {
    const size_t halves = from == FROM_Q6 || from == FROM_DECODED16 ? 2 : 1, chunks = CHUNKS / halves;
    const int8_t* q = x->q + row * x->stride + s->k;
    const float* da = x->scale + row * x->segments * LW_SEGMENT_GROUPS + s->index * LW_SEGMENT_GROUPS;
    int32_t starts[8 * LW_SEGMENT_GROUPS];
    const int32_t* totals = x->totals + (row * x->stride + s->k) / 16;
    if (code_bias(from) != 0 && halves == 2)
        find_starts(code_bias(from), true, totals, starts);
    else if (code_bias(from) != 0)
        find_group_starts(code_bias(from), totals, starts);
    float supers[2][LW_PANEL];
    if (from == FROM_Q6 && s->scales == NULL) store_supers(s, supers[0], supers[1]);
    float32x4_t acc[QUADS];
    UNROLL
    for (size_t i = 0; i < QUADS; ++i) acc[i] = vld1q_f32(results + row * LW_PANEL + 4 * i);
    for (size_t g = 0; g < s->groups; ++g) UNROLL
    for (size_t h = 0; h < halves; ++h) {
        const int32_t* start = code_bias(from) == 0 ? lw_magic_start : starts + 4 * (halves * g + h);
        int32x4_t total[QUADS];
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
            for (size_t i = 0; i < QUADS; ++i)
                total[i] = vpadalq_s16(first == h * chunks ? load_start(start) : total[i], sum[i]);
        }
        const float32x4_t scale_of_x = load_lane(da + g);
        UNROLL
        for (size_t i = 0; i < QUADS; i += 2) {
            float32x4x2_t scale = {{vdupq_n_f32(0), vdupq_n_f32(0)}}, magic;
            if (s->scales != NULL) {
                const float* at = s->scales + (g * halves + h) * 2 * LW_PANEL + 4 * i;
                scale = vld1q_f32_x2(at);
                magic = vld1q_f32_x2(at + LW_PANEL);
            } else {
                if (from == FROM_Q6)
                    scale = packed_scale8(from, s, vld1q_f32_x2(supers[0] + 4 * i), load_addend8(supers[1] + 4 * i), g,
                                          h, 4 * i);
                else
                    scale = packed_scale8(from, s, scale, scale, g, h, 4 * i);
                magic = magic_times8(scale);
            }
            acc[i] = add_step(acc[i], total[i], scale.val[0], magic.val[0], scale_of_x);
            acc[i + 1] = add_step(acc[i + 1], total[i + 1], scale.val[1], magic.val[1], scale_of_x);
        }
    }
    UNROLL
    for (size_t i = 0; i < QUADS; ++i) vst1q_f32(results + row * LW_PANEL + 4 * i, acc[i]);
}

// Decodes one segment of a panel to scratch, as [group][chunk][octet] vectors of weights.
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
        lw_fetch_ahead_of(w, panel, i, x->segments);
        if (x->rows == 1) {
            s.scales = NULL;
            tile(from, terms, &s, x, 0, work.results);
            continue;
        }
        packed_scales(from, 1, &s, work.scales);
        s.scales = work.scales;
        for (size_t row = 0; row < x->rows; ++row) tile(from, terms, &s, x, row, work.results);
    }
    lw_store_panel(w, panel, x->rows, work.results, out);
}

// Several rows share the decoded segment.
INLINE void gemm(const source from, const size_t terms, const lw_matrix* w, const lw_activations* x, size_t panel,
                 lw_output out, void* scratch) {
    const source decoded = from == FROM_Q6 ? FROM_DECODED16 : FROM_DECODED32;
    const workspace work = workspace_of(scratch, x->rows);
    for (size_t i = 0; i < x->segments; ++i) {
        segment s = segment_of(w, panel, i, packed_group_bytes(from));
        lw_fetch_ahead_of(w, panel, i, x->segments);
        packed_scales(from, 1, &s, work.scales);
        decode(from, &s, work.codes);
        s.scales = work.scales;
        s.codes = work.codes;
        for (size_t row = 0; row < x->rows; ++row) tile(decoded, terms, &s, x, row, work.results);
    }
    lw_store_panel(w, panel, x->rows, work.results, out);
}

#endif
