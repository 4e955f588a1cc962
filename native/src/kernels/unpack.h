// Reads single weights from packed panels: slow, simple, and correct for every layout.
#ifndef LW_KERNELS_UNPACK_H
#define LW_KERNELS_UNPACK_H

#include "kernels/format.h"
#include "kernels/half.h"
#include "kernels/layout.h"

typedef struct lw_group {  // one weight group of one output: weight = scale * code
    float scale;
    int16_t codes[LW_GROUP];
} lw_group;

static inline float lw_load_half(const uint8_t* p) {
    uint16_t bits;
    memcpy(&bits, p, sizeof bits);
    return lw_half_to_float(bits);
}

static inline void lw_unpack_q4(const lw_matrix* w, const uint8_t* panel, size_t output, size_t group, lw_group* out) {
    const uint8_t* base = panel + group * LW_Q4_GROUP_BYTES;
    for (size_t k = 0; k < LW_GROUP; ++k) {
        int code = base[lw_packed_byte(w->layout, output, k, 2)] >> (4 * lw_packed_part(w->layout, k, 2)) & 15;
        if (w->layout.q4_toggled) code ^= 8;
        out->codes[k] = (int16_t)(code - 8);
    }
    out->scale = lw_load_half(base + LW_PANEL * LW_GROUP / 2 + 2 * output);
}

static inline void lw_unpack_q8(const lw_matrix* w, const uint8_t* panel, size_t output, size_t group, lw_group* out) {
    const uint8_t* base = panel + group * LW_Q8_GROUP_BYTES;
    for (size_t k = 0; k < LW_GROUP; ++k) {
        const uint8_t byte = base[lw_packed_byte(w->layout, output, k, 1)];
        out->codes[k] = (int16_t)(w->layout.q8_biased ? byte - 128 : (int8_t)byte);
    }
    out->scale = lw_load_half(base + LW_PANEL * LW_GROUP + 2 * output);
}

// `group` counts groups of 16 inputs.
static inline void lw_unpack_q6(const lw_matrix* w, const uint8_t* panel, size_t output, size_t group, lw_group* out) {
    const uint8_t* super = panel + group / (LW_SEGMENT / 16) * LW_Q6_SUPER_BYTES;
    const uint8_t* base = super + group % (LW_SEGMENT / 16) / 2 * LW_Q6_GROUP_BYTES;
    const uint8_t* high = base + LW_Q6_LOW_BYTES;
    for (size_t i = 0; i < 16; ++i) {
        const size_t k = group % 2 * 16 + i;
        const int low = base[lw_packed_byte(w->layout, output, k, 2)] >> (4 * lw_packed_part(w->layout, k, 2)) & 15;
        const int top = high[lw_packed_byte(w->layout, output, k, 4)] >> (2 * lw_packed_part(w->layout, k, 4)) & 3;
        out->codes[i] = (int16_t)((low | top << 4) - 32);
    }
    const int8_t scale = (int8_t)high[LW_Q6_HIGH_BYTES + group % 2 * LW_PANEL + output];
    out->scale = lw_load_half(super + LW_SEGMENT_GROUPS * LW_Q6_GROUP_BYTES + 2 * output) * (float)scale;  // exact
}

// A panel of a coded type. Inputs are indices within the whole row.
typedef struct lw_coded_view {
    lw_format f;
    lw_coded_panel p;
    const lw_matrix* w;
    const uint8_t* panel;
} lw_coded_view;

static inline lw_coded_view lw_view_coded(lw_format f, const lw_matrix* w, const uint8_t* panel) {
    return (lw_coded_view){f, lw_coded_panel_of(f, w->cols), w, panel};
}

static inline int lw_unpack_bits(const lw_coded_view* v, size_t output, size_t k) {
    const lw_format f = v->f;
    const uint8_t* panel = v->panel;
    const uint8_t* segment = panel + v->p.segments + k / LW_SEGMENT * v->p.segment_bytes;
    const size_t in_segment = k % LW_SEGMENT, in_group = k % LW_GROUP;
    const uint8_t* group = segment + in_segment / LW_GROUP * (LW_GROUP * LW_PANEL / 8 * (size_t)f.low);
    const int low =
        group[lw_coded_byte(f, v->w->layout, output, in_group)] >> f.low * lw_coded_part(f, v->w->layout, in_group) &
        ((1 << f.low) - 1);
    if (f.high == 0) return low;
    const uint8_t byte = segment[v->p.high + lw_high_byte(f, v->w->layout, output, in_segment)];
    return low | (byte >> lw_high_bit(f, v->w->layout, in_segment) & ((1 << f.high) - 1)) << f.low;
}

// One part of 16 times the float with sign and exponent in the lower four bits of `code` and the mantissa above.
static inline int lw_map_float(lw_format f, int code) {
    const int exponent = code & 7, mantissa = code >> 4;
    const int low = exponent == 2 ? 2 * mantissa : exponent < 2 ? mantissa : 0;
    const int high = exponent < 3 ? exponent : (4 + mantissa) << (exponent - 3);
    const int size = f.part == LW_FLOAT_HIGH ? high : f.part == LW_FLOAT_LOW ? low : 4 * high + low;
    return code & 8 ? -size : size;
}

// The level that a code stands for. `before`: the previous code of the chain; `selector`: the selector of the 32
// inputs.
static inline int lw_map_code(lw_format f, const int8_t* table, int code, int before, int selector) {
    if (f.map == LW_MAP_OFFSET) return code - f.offset;
    if (f.map == LW_MAP_FLOAT) return lw_map_float(f, code);
    if (f.map == LW_MAP_TRELLIS) return table[code << 2 | before];
    return table[(selector & ((1 << f.selector) - 1)) << (f.low + f.high) | code];
}

static inline int lw_unpack_code(const lw_coded_view* v, size_t output, size_t k) {
    const lw_format f = v->f;
    const uint8_t* panel = v->panel;
    const size_t segment = k / LW_SEGMENT, shift = k % LW_SEGMENT / LW_GROUP * 2;
    const int selector = f.selector != 0 ? panel[v->p.selectors + segment * LW_PANEL + output] >> shift : 0;
    const bool chained = f.map == LW_MAP_TRELLIS && k % LW_SEGMENT != 0;
    return lw_map_code(f, v->w->table, lw_unpack_bits(v, output, k),
                       chained ? lw_unpack_bits(v, output, lw_chain_before(k)) : 0, selector);
}

// The f16 of the block of 256 inputs that holds input k.
static inline float lw_unpack_super(const uint8_t* supers, size_t output, size_t k) {
    return lw_load_half(supers + (k / LW_SUPER_BLOCK_INPUTS * LW_PANEL + output) * 2);
}

static inline float lw_e8m0_to_float(uint8_t byte) {
    if (byte == 255) return 0;  // padding in panels
    const uint32_t bits = byte < 2 ? 0x00200000u << byte : (uint32_t)(byte - 1) << 23;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

// An E4M3 without a sign has the bits of an f16 that is 2^8 smaller, seven places further right.
static inline float lw_e4m3_to_float(uint8_t byte) { return lw_half_to_float((uint16_t)(byte << 7)) * 256; }

// Address of the scale of input k.
static inline const uint8_t* lw_scale_place(const lw_coded_view* v, size_t output, size_t k) {
    const uint8_t* scales = v->panel + v->p.segments + k / LW_SEGMENT * v->p.segment_bytes + v->p.scales;
    return scales + (k % LW_SEGMENT / v->f.group * LW_PANEL + output) * lw_scale_bytes(v->f);
}

static inline float lw_unpack_scale(const lw_coded_view* v, size_t output, size_t k) {
    const lw_format f = v->f;
    const uint8_t *panel = v->panel, *at = lw_scale_place(v, output, k);
    if (f.scale == LW_SCALE_F16) return lw_load_half(at);
    if (f.scale == LW_SCALE_E8M0) return lw_e8m0_to_float(*at);
    float super;
    if (f.super == LW_SUPER_ROW)
        memcpy(&super, panel + v->p.supers + 4 * output, sizeof super);
    else
        super = lw_unpack_super(panel + v->p.supers, output, k) * lw_super_unit(f);
    if (f.scale == LW_SCALE_ONE) return f.part == LW_FLOAT_HIGH ? 4 * super : super;
    if (f.scale == LW_SCALE_E4M3) return super * lw_e4m3_to_float(*at);                     // exact
    return super * (float)(f.scale == LW_SCALE_I8 ? (int8_t)*at : *at & lw_scale_mask(f));  // exact
}

// The minimum that is subtracted from scale * code for input k; exact.
static inline float lw_unpack_minimum(const lw_coded_view* v, size_t output, size_t k) {
    const lw_format f = v->f;
    const uint8_t* panel = v->panel;
    const uint8_t *minimums = panel + v->p.minimums, *scale = lw_scale_place(v, output, k);
    const size_t group = k / LW_GROUP, scale_group = k / f.group;
    switch (f.minimum) {
        case LW_MINIMUM_F16:
            return lw_load_half(minimums + (group * LW_PANEL + output) * 2);
        case LW_MINIMUM_SIX: {
            const size_t at = lw_six_bit_at(group) + output;
            const int nibble = minimums[at] >> lw_six_bit_shift(group) & 15;
            return lw_unpack_super(panel + v->p.super_minimums, output, k) * (float)(nibble | *scale >> 6 << 4);
        }
        case LW_MINIMUM_NIBBLES:
            return lw_unpack_super(panel + v->p.super_minimums, output, k) * (float)(*scale >> 4);
        case LW_MINIMUM_ZERO:
            return lw_unpack_scale(v, output, k) * (float)(minimums[scale_group * LW_PANEL + output] - f.offset);
        default:
            return 0;
    }
}

// Reads step `step`, of lw_step_inputs(f) inputs.
static inline void lw_unpack_step(const lw_coded_view* v, size_t output, size_t step, lw_group* out) {
    const size_t inputs = lw_step_inputs(v->f);
    for (size_t i = 0; i < inputs; ++i) out->codes[i] = (int16_t)lw_unpack_code(v, output, step * inputs + i);
    out->scale = lw_unpack_scale(v, output, step * inputs);
}

#endif
