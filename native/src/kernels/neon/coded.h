// Codes and scales of a segment of coded types (kernels/formats.inc), shared by all Arm levels. A type's format is a
// constant where these functions are called, so each type gets its own code.
//
// Vectors of 16 codes of a group are numbered in decoded order, [chunk][32 outputs][inputs of a chunk]. A chunk has
// `stride` = 2 * (inputs of a chunk) vectors, and vector `at` of every chunk holds the same outputs.
#ifndef LW_KERNELS_NEON_CODED_H
#define LW_KERNELS_NEON_CODED_H

#include "kernels/minimums.h"
#include "kernels/neon/matmul_common.h"

enum { GROUP_VECTORS = LW_GROUP * LW_PANEL / 16 };

// The parts of all 6-bit floats, indexed by code: exponent, then sign, then mantissa.
static const int8_t lw_float_high[64] = {
    0, 1, 2, 4, 8,  16, 32, 64,  0, -1, -2, -4, -8,  -16, -32, -64,  //
    0, 1, 2, 5, 10, 20, 40, 80,  0, -1, -2, -5, -10, -20, -40, -80,  //
    0, 1, 2, 6, 12, 24, 48, 96,  0, -1, -2, -6, -12, -24, -48, -96,  //
    0, 1, 2, 7, 14, 28, 56, 112, 0, -1, -2, -7, -14, -28, -56, -112,
};
static const int8_t lw_float_low[64] = {
    0, 0, 0, 0, 0, 0, 0, 0, 0,  0,  0,  0, 0, 0, 0, 0,  //
    1, 1, 2, 0, 0, 0, 0, 0, -1, -1, -2, 0, 0, 0, 0, 0,  //
    2, 2, 4, 0, 0, 0, 0, 0, -2, -2, -4, 0, 0, 0, 0, 0,  //
    3, 3, 6, 0, 0, 0, 0, 0, -3, -3, -6, 0, 0, 0, 0, 0,
};

typedef struct coded_segment {
    const uint8_t* data;       // planes and scales
    const uint8_t* supers;     // for 32 outputs
    const uint8_t* selectors;  // for 32 outputs
    uint8x16_t table;
} coded_segment;

INLINE coded_segment coded_segment_of(const lw_format f, const lw_matrix* w, const lw_coded_panel* p, size_t panel,
                                      size_t index) {
    const uint8_t* data = w->data + panel * w->panel_bytes;
    return (coded_segment){
        .data = data + p->segments + index * p->segment_bytes,
        .supers = data + p->supers + (lw_has_block_supers(f) ? index / 2 * LW_PANEL * 2 : 0),
        .selectors = data + p->selectors + index * LW_PANEL,
        .table = vld1q_u8((const uint8_t*)w->table),
    };
}

INLINE uint8x16_t shift_bits(uint8x16_t x, int left) { return vshlq_u8(x, vdupq_n_s8((int8_t)left)); }

// Four outputs' codes of inputs 16 half .. 16 half + 15 of group g: for each output 32 bits in the chain's order.
INLINE uint8x16_t trellis_half(const coded_segment* s, size_t g, size_t half, size_t four) {
    return vld1q_u8(s->data + g * (LW_GROUP * LW_PANEL / 4) + half * (LW_PANEL * 4) + four * 16);
}

// trellis_half, moved one code further in the chain: below each code is the code before it.
INLINE uint8x16_t trellis_later(const coded_segment* s, size_t g, size_t half, size_t four) {
    const uint32x4_t codes = vreinterpretq_u32_u8(trellis_half(s, g, half, four));
    if (g == 0 && half == 0) return vreinterpretq_u8_u32(vshlq_n_u32(codes, 2));
    const uint8x16_t before = half ? trellis_half(s, g, 0, four) : trellis_half(s, g - 1, 1, four);
    return vreinterpretq_u8_u32(vsliq_n_u32(vshrq_n_u32(vreinterpretq_u32_u8(before), 30), codes, 2));
}

// Table indices: code << 2 | code before. The two are neighbours in either trellis_half or trellis_later. Of four
// chunks, the nibbles of one vector hold 0 and 2, the nibbles of the other 1 and 3. If chunks are not four inputs of
// four outputs, they are first put together.
INLINE void trellis_column(const int stride, const coded_segment* s, size_t g, size_t at, uint8x16_t* out) {
    const uint8x16_t low = vdupq_n_u8(15);
    UNROLL
    for (size_t half = 0; half < 2; ++half, out += GROUP_VECTORS / 2 / stride) {
        if (stride == 8) {
            const uint8x16_t codes = trellis_half(s, g, half, at), later = trellis_later(s, g, half, at);
            out[0] = vandq_u8(later, low);
            out[1] = vandq_u8(codes, low);
            out[2] = vshrq_n_u8(later, 4);
            out[3] = vshrq_n_u8(codes, 4);
        } else if (stride == 16) {
            const uint32x4_t codes = vreinterpretq_u32_u8(trellis_half(s, g, half, at / 2)),
                             later = vreinterpretq_u32_u8(trellis_later(s, g, half, at / 2));
            const uint8x16_t two =
                vreinterpretq_u8_u32(at % 2 == 0 ? vzip1q_u32(later, codes) : vzip2q_u32(later, codes));
            out[0] = vandq_u8(two, low);
            out[1] = vshrq_n_u8(two, 4);
        } else {
            UNROLL
            for (int odd = 0; odd < 2; ++odd) {
                const uint16x8_t first = vreinterpretq_u16_u8(odd ? trellis_half(s, g, half, 2 * at)
                                                                  : trellis_later(s, g, half, 2 * at)),
                                 second = vreinterpretq_u16_u8(odd ? trellis_half(s, g, half, 2 * at + 1)
                                                                   : trellis_later(s, g, half, 2 * at + 1));
                const uint8x16_t even_inputs = vreinterpretq_u8_u16(vuzp1q_u16(first, second)),
                                 odd_inputs = vreinterpretq_u8_u16(vuzp2q_u16(first, second));
                out[2 * odd] = vandq_u8(even_inputs, low);
                out[2 * odd + 1] = vandq_u8(odd_inputs, low);
                out[4 + 2 * odd] = vshrq_n_u8(even_inputs, 4);
                out[4 + 2 * odd + 1] = vshrq_n_u8(odd_inputs, 4);
            }
        }
    }
}

// Loads vector `c` of a column whose vectors lie `stride` vectors apart. With stride 8, four vectors lie around an
// address from which LDUR reaches all. In LLVM's model of N1 LDUR takes one micro-operation, LDR two.
INLINE uint8x16_t load_of_column(const uint8_t* column, const int stride, const int c) {
    if (stride != 8) return vld1q_u8(column + c * stride * 16);
    const uint8_t* middle = column + c / 4 * 512 + 256;
    uint8x16_t vector;  // weights, which nothing writes: the compiler need not know what is read
    __asm__("ldur %q0, [%1, %2]" : "=w"(vector) : "r"(middle), "i"(c % 4 * 128 - 256));
    return vector;
}

// Loads the bits of codes, with selectors above.
INLINE void bits_column(const lw_format f, const int stride, const coded_segment* s, size_t g, size_t at,
                        uint8x16_t* out) {
    const int chunks = GROUP_VECTORS / stride, parts = 8 / f.low, places = chunks / parts, bits = f.low + f.high;
    const uint8_t* group = s->data + g * (size_t)(LW_GROUP * LW_PANEL / 8 * f.low) + at * 16;
    const uint8x16_t mask = vdupq_n_u8((uint8_t)((1 << f.low) - 1));
    UNROLL
    for (int c = 0; c < chunks; ++c) {
        const uint8x16_t raw = load_of_column(group, stride, c % places);
        const int part = c / places;
        if (f.low == 8)
            out[c] = raw;
        else if (f.low == 4)
            out[c] = part == 0 ? vandq_u8(raw, mask) : vshrq_n_u8(raw, 4);
        else
            out[c] = part == 0   ? vandq_u8(raw, mask)
                     : part == 1 ? vandq_u8(vshrq_n_u8(raw, 2), mask)
                     : part == 2 ? vandq_u8(vshrq_n_u8(raw, 4), mask)
                                 : vshrq_n_u8(raw, 6);
    }
    if (f.high == 2) {  // a group's bits are bits 2 g and 2 g + 1 of the second plane's bytes
        const uint8_t* high = s->data + LW_SEGMENT * LW_PANEL / 8 * (size_t)f.low + at * 16;
        UNROLL
        for (int c = 0; c < chunks; ++c) {
            const uint8x16_t bits_of = shift_bits(vld1q_u8(high + c * stride * 16), f.low - 2 * (int)g);
            out[c] = vbslq_u8(vdupq_n_u8((uint8_t)(3 << f.low)), bits_of, out[c]);
        }
    }
    if (f.high == 1) {  // a group's bits are bits 2 g and 2 g + 1 of all bytes of the second plane
        const uint8_t* high = s->data + LW_SEGMENT * LW_PANEL / 8 * (size_t)f.low + at * 16;
        UNROLL
        for (int i = 0; i < chunks / 2; ++i) {
            const uint8x16_t bit = shift_bits(vld1q_u8(high + i * stride * 16), f.low - 2 * (int)g);
            const uint8x16_t one = vdupq_n_u8((uint8_t)(1 << f.low));
            out[i] = vbslq_u8(one, bit, out[i]);
            out[chunks / 2 + i] = vbslq_u8(one, vshrq_n_u8(bit, 1), out[chunks / 2 + i]);
        }
    }
    if (f.selector != 0) {
        const uint8x16_t lanes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
        const uint8x16_t outputs = stride == 4   ? vshrq_n_u8(lanes, 1)
                                   : stride == 8 ? vshrq_n_u8(lanes, 2)
                                                 : vshrq_n_u8(lanes, 3);
        uint8x16_t selectors = vqtbl1q_u8(vld1q_u8(s->selectors + at * (size_t)(32 / stride)), outputs);
        selectors =
            vandq_u8(shift_bits(selectors, bits - 2 * (int)g), vdupq_n_u8((uint8_t)(((1 << f.selector) - 1) << bits)));
        UNROLL
        for (int c = 0; c < chunks; ++c) out[c] = vorrq_u8(out[c], selectors);
    }
}

// One part of the floats with these 64 codes (lw_map_float).
INLINE uint8x16_t float_part(const lw_format f, uint8x16_t codes) {
    const int8_t* table = f.part == LW_FLOAT_HIGH ? lw_float_high : lw_float_low;
    return vreinterpretq_u8_s8(vqtbl4q_s8(vld1q_s8_x4(table), codes));
}

// The amount by which codes of coded_column are larger than the weights' levels.
INLINE int coded_bias(const lw_format f) { return f.map == LW_MAP_OFFSET && f.low < 8 ? f.offset : 0; }

// Loads vector `at` of every chunk of group g; codes of LW_MAP_OFFSET are too large by coded_bias.
INLINE void coded_column(const lw_format f, const int stride, const coded_segment* s, size_t g, size_t at,
                         int8x16_t* w) {
    uint8x16_t bits[16];
    if (f.map == LW_MAP_TRELLIS)
        trellis_column(stride, s, g, at, bits);
    else
        bits_column(f, stride, s, g, at, bits);
    UNROLL
    for (int c = 0; c < GROUP_VECTORS / stride; ++c) {
        if (f.map == LW_MAP_TABLE || f.map == LW_MAP_TRELLIS) bits[c] = vqtbl1q_u8(s->table, bits[c]);
        if (f.map == LW_MAP_FLOAT) bits[c] = float_part(f, bits[c]);
        if (f.map == LW_MAP_OFFSET && f.low == 8) bits[c] = veorq_u8(bits[c], vdupq_n_u8(0x80));  // minus 128
        w[c] = vreinterpretq_s8_u8(bits[c]);
    }
}

// Decodes a segment's codes to [4 groups][chunks][32 outputs][inputs of a chunk].
INLINE void decode_coded(const lw_format f, const int stride, const coded_segment* s, int8_t* codes) {
    for (size_t g = 0; g < LW_SEGMENT_GROUPS; ++g)
        for (size_t at = 0; at < (size_t)stride; ++at) {
            int8x16_t w[16];
            coded_column(f, stride, s, g, at, w);
            UNROLL
            for (int c = 0; c < GROUP_VECTORS / stride; ++c) {
                if (coded_bias(f) != 0) w[c] = vsubq_s8(w[c], vdupq_n_s8((int8_t)coded_bias(f)));
                vst1q_s8(codes + ((g * GROUP_VECTORS + at) + (size_t)(c * stride)) * 16, w[c]);
            }
        }
}

// Half of 2^(byte - 127): subnormal if the byte is 0 or 1, 0 if it is 255.
INLINE float32x4_t e8m0_scale(uint16x4_t bytes) {
    const uint32x4_t e = vmovl_u16(bytes);
    const uint32x4_t normal = vshlq_n_u32(vsubq_u32(e, vdupq_n_u32(1)), 23);
    const uint32x4_t small = vshlq_u32(vdupq_n_u32(0x00200000), vreinterpretq_s32_u32(e));
    const uint32x4_t value = vbslq_u32(vcltq_u32(e, vdupq_n_u32(2)), small, normal);
    return vreinterpretq_f32_u32(vbicq_u32(value, vceqq_u32(e, vdupq_n_u32(255))));
}

// Loads the super scales of eight outputs.
INLINE float32x4x2_t coded_super8(const lw_format f, const coded_segment* s, size_t output) {
    if (f.super == LW_SUPER_BLOCK) return load_half8(s->supers + 2 * output);
    if (f.super == LW_SUPER_EIGHTH) {
        const float32x4x2_t of_block = load_half8(s->supers + 2 * output);
        const float unit = lw_super_unit(f);
        return (float32x4x2_t){{vmulq_n_f32(of_block.val[0], unit), vmulq_n_f32(of_block.val[1], unit)}};
    }
    if (f.super == LW_SUPER_NONE) return (float32x4x2_t){{vdupq_n_f32(0), vdupq_n_f32(0)}};
    const float* at = (const float*)s->supers + output;
    return (float32x4x2_t){{vld1q_f32(at), vld1q_f32(at + 4)}};
}

// True if scales are small integers times a super scale.
INLINE bool small_scales(const lw_format f) {
    return f.scale == LW_SCALE_I8 || f.scale == LW_SCALE_NIBBLES || f.scale == LW_SCALE_SIX;
}

// Scale number `g` of a segment, for eight outputs from `output` on. `super` is coded_super8, and `magic` its
// magic_times8.
INLINE float32x4x2_t coded_scale8_of(const lw_format f, const coded_segment* s, float32x4x2_t super,
                                     float32x4x2_t magic, size_t g, size_t output) {
    const size_t bytes = lw_scale_bytes(f);
    const uint8_t* at =
        s->data + LW_SEGMENT * LW_PANEL / 8 * (size_t)(f.low + f.high) + (g * LW_PANEL + output) * bytes;
    if (f.scale == LW_SCALE_F16) return load_half8(at);
    if (f.part == LW_FLOAT_HIGH) return (float32x4x2_t){{vmulq_n_f32(super.val[0], 4), vmulq_n_f32(super.val[1], 4)}};
    if (f.scale == LW_SCALE_ONE) return super;
    const uint8x8_t codes = vld1_u8(at);
    if (f.scale == LW_SCALE_E8M0) {
        const uint16x8_t wide = vmovl_u8(codes);
        return (float32x4x2_t){{e8m0_scale(vget_low_u16(wide)), e8m0_scale(vget_high_u16(wide))}};
    }
    if (f.scale == LW_SCALE_E4M3) {  // as f16 they are 2^8 smaller
        const float16x8_t halves = vreinterpretq_f16_u16(vshlq_n_u16(vmovl_u8(codes), 7));
        const float32x4_t low = vcvt_f32_f16(vget_low_f16(halves)), high = vcvt_high_f32_f16(halves);
        return (float32x4x2_t){
            {vmulq_f32(super.val[0], vmulq_n_f32(low, 256)), vmulq_f32(super.val[1], vmulq_n_f32(high, 256))}};
    }
    if (f.scale == LW_SCALE_I8) return small_scale8(super, magic, vmovl_s8(vreinterpret_s8_u8(codes)));
    const uint8x8_t own = vand_u8(codes, vdup_n_u8((uint8_t)lw_scale_mask(f)));  // the other bits belong to the minimum
    return small_scale8(super, magic, vreinterpretq_s16_u16(vmovl_u8(own)));
}

INLINE float32x4x2_t coded_scale8(const lw_format f, const coded_segment* s, float32x4x2_t super, size_t g,
                                  size_t output) {
    return coded_scale8_of(f, s, super, magic_times8(super), g, output);
}

// Writes a segment's scales, for each step, in the layout of workspace.scales. A scale of more than 32 inputs is
// repeated for each 32.
INLINE void coded_scales(const lw_format f, const int copies, const coded_segment* s, float* scales) {
    const size_t groups = LW_SEGMENT / f.group, spread = f.group > LW_GROUP ? f.group / LW_GROUP : 1;
    const size_t step = 2 * (size_t)copies * LW_PANEL;
    for (size_t output = 0; output < LW_PANEL; output += 8) {
        const float32x4x2_t super = coded_super8(f, s, output), magic = magic_times8(super);
        UNROLL
        for (size_t g = 0; g < groups; ++g) {
            const float32x4x2_t scale = coded_scale8_of(f, s, super, magic, g, output);
            UNROLL
            for (size_t i = g * spread; i < (g + 1) * spread; ++i)
                store_scale8(copies, scale, scales + i * step + output * (size_t)copies);
        }
    }
}

// Adds the products of all rows by decoded segment number `index` to work->results.
typedef void (*decoded_product)(const lw_format f, const lw_activations* x, size_t index, const workspace* work);

// Decodes each segment once for all rows.
INLINE void coded_decoded(const lw_format f, const int copies, const int stride, const decoded_product product,
                          const lw_matrix* w, const lw_activations* x, size_t panel, const workspace* work) {
    const lw_coded_panel p = lw_coded_panel_of(f, w->cols);
    for (size_t i = 0; i < x->segments; ++i) {
        const coded_segment s = coded_segment_of(f, w, &p, panel, i);
        lw_fetch_ahead_of(w, panel, i, x->segments);
        UNROLL
        for (int pass = 0; pass < lw_passes(f); ++pass) {
            const lw_format part = lw_pass(f, pass);
            coded_scales(part, copies, &s, work->scales);
            decode_coded(part, stride, &s, work->codes);
            product(part, x, i, work);
        }
    }
}

// Takes minimums off the integer part of a product and writes the result to the output.
INLINE void finish_coded(const lw_format f, const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out,
                         const workspace* work) {
    float* minimums = work->scales + 16 * 2 * LW_PANEL;
    if (f.minimum != LW_MINIMUM_NONE)
        lw_subtract_minimums(f, w, x, panel, work->results, minimums, minimums + LW_MINIMUM_FLOATS);
    lw_store_panel(w, panel, x->rows, work->results, out);
}

#endif
