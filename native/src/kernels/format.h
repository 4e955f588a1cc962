// Coded weight types (formats.inc): the parts of a row of such a type, and their offsets in a stored row and in a
// panel.
// Normative text: quantizer/FORMAT.md, "Coded types".
#ifndef LW_KERNELS_FORMAT_H
#define LW_KERNELS_FORMAT_H

#include "kernels/kernel.h"

typedef enum lw_scale_kind {
    LW_SCALE_F16,      // one f16 per group
    LW_SCALE_I8,       // int8 per group, times the super scale
    LW_SCALE_NIBBLES,  // low nibble per group, times the super scale; the high nibble is the group's minimum
    LW_SCALE_SIX,      // 0 .. 63 per group, times the super scale; in panels the upper two bits belong to the minimum
    LW_SCALE_E8M0,     // 2^(byte - 128) per group; in panels 255 is a scale of 0
    LW_SCALE_E4M3,     // a float of 8 bits without a sign per group, times the super scale
    LW_SCALE_ONE,      // no scale per group: only the row's super scale
} lw_scale_kind;

typedef enum lw_super_kind {
    LW_SUPER_NONE,
    LW_SUPER_BLOCK,   // f16 per 256 inputs
    LW_SUPER_EIGHTH,  // an eighth of an f16 per 256 inputs
    LW_SUPER_ROW,  // f32 per row whose lowest bits are 0 (lw_row_scale_zeros), so that its products with scales are exact
} lw_super_kind;

typedef enum lw_minimum_kind {  // the number that is subtracted from scale * code
    LW_MINIMUM_NONE,
    LW_MINIMUM_F16,  // one f16 per 32 inputs
    LW_MINIMUM_SIX,  // 0 .. 63 per 32 inputs, times the super minimum (f16 per 256); in panels split as LW_SCALE_SIX
                     // says
    LW_MINIMUM_NIBBLES,  // high nibble of the group's scale, times the super minimum
    LW_MINIMUM_ZERO,     // (byte per group - offset), times the group's scale
} lw_minimum_kind;

typedef enum lw_map_kind {
    LW_MAP_OFFSET,   // code - offset
    LW_MAP_TABLE,    // table[selector of the 32 inputs << bits | code]
    LW_MAP_TRELLIS,  // table[code << 2 | previous code of the chain]; the previous code is 0 before a segment's first
                     // input
    LW_MAP_FLOAT,    // 16 times a small float: sign and exponent in the first plane, mantissa in the second
} lw_map_kind;

// A minimum that is a zero point z also cancels the offset of the codes u: (u - offset) - (z - offset).
typedef struct lw_format {
    uint8_t low, high;  // bits of a code in the first and the second plane
    uint8_t group;      // inputs that share a scale
    uint8_t scale, super, minimum, map;
    uint8_t offset;
    uint8_t selector;  // bits of a selector
    uint8_t part;      // LW_MAP_FLOAT only: the part of a weight that this format stands for, an lw_float_part
} lw_format;

// 16 times a float has up to nine bits. So products split it into 4 * high + low and go over a segment twice. `high` is
// 0, 1, 2 or (4 + mantissa) * 2^(exponent - 3), depending on the exponent, and at most 112. `low` is the mantissa's
// share for the three smallest exponents, mantissa * {1, 1, 2}, and at most 6.
typedef enum lw_float_part { LW_FLOAT_WHOLE, LW_FLOAT_HIGH, LW_FLOAT_LOW } lw_float_part;

enum { LW_SUPER_BLOCK_INPUTS = 256, LW_TABLE_ENTRIES = 16 };

#define CODED(type, name, low, high, group, scale, super, minimum, map, offset, selector)         \
    static const lw_format lw_format_##name = {                                                   \
        low,          high,   group,    LW_SCALE_##scale, LW_SUPER_##super, LW_MINIMUM_##minimum, \
        LW_MAP_##map, offset, selector, LW_FLOAT_WHOLE};
#include "kernels/formats.inc"
#undef CODED

// False for types that are not coded.
static inline bool lw_find_format(lw_type type, lw_format* out) {
    switch (type) {
#define CODED(type, name, ...)   \
    case type:                   \
        *out = lw_format_##name; \
        return true;
#include "kernels/formats.inc"
#undef CODED
        default:
            return false;
    }
}

LW_INLINE size_t lw_ceil_div(size_t a, size_t b) { return (a + b - 1) / b; }
LW_INLINE size_t lw_round_64(size_t n) { return (n + 63) / 64 * 64; }

// Inputs of one step of the product, which is one group of the scalar kernel: 16 or 32.
static inline size_t lw_step_inputs(lw_format f) { return f.group == 16 ? 16 : 32; }

LW_INLINE size_t lw_scale_bytes(lw_format f) { return f.scale == LW_SCALE_F16 ? 2 : f.scale == LW_SCALE_ONE ? 0 : 1; }

// Number of times that a product goes over a segment.
LW_INLINE int lw_passes(lw_format f) { return f.map == LW_MAP_FLOAT ? 2 : 1; }

// The format that the product uses in pass `n`.
LW_INLINE lw_format lw_pass(lw_format f, int n) {
    if (f.map == LW_MAP_FLOAT) f.part = n == 0 ? LW_FLOAT_HIGH : LW_FLOAT_LOW;
    return f;
}

// Byte offsets of the parts of a stored row.
typedef struct lw_stored_row {
    size_t low, high, scales, minimums, selectors, supers, super_minimums, bytes;
} lw_stored_row;

LW_INLINE bool lw_has_super_minimum(lw_format f) {
    return f.minimum == LW_MINIMUM_SIX || f.minimum == LW_MINIMUM_NIBBLES;
}

// The bits of an unsigned scale's byte in a panel that belong to the scale; the rest belong to a minimum.
LW_INLINE int lw_scale_mask(lw_format f) {
    return f.scale == LW_SCALE_NIBBLES ? 15 : f.scale == LW_SCALE_SIX ? 63 : 255;
}

// Six-bit minimums in a panel: byte [segment][g][output] holds the low four bits of the minimum of group g of a segment
// in its low nibble, and of group g + 2 in its high nibble.
enum { LW_SIX_BIT_BYTES = 2 * LW_PANEL };  // per segment
LW_INLINE size_t lw_six_bit_at(size_t group) { return group / 4 * LW_SIX_BIT_BYTES + group % 2 * LW_PANEL; }
LW_INLINE unsigned lw_six_bit_shift(size_t group) { return group % 4 / 2 * 4; }

// Bytes of the minimums of `cols` inputs of one output. LW_MINIMUM_NIBBLES has none: nibbles are in the scales' bytes.
LW_INLINE size_t lw_minimum_bytes(lw_format f, size_t cols) {
    switch (f.minimum) {
        case LW_MINIMUM_F16:
            return lw_ceil_div(cols, LW_GROUP) * 2;
        case LW_MINIMUM_SIX:
            return lw_ceil_div(cols, LW_GROUP);
        case LW_MINIMUM_ZERO:
            return lw_ceil_div(cols, f.group);
        default:
            return 0;
    }
}

// The bits of a row's super scale that are 0. A difference of int8 has 8 significant bits, E4M3 has 4.
LW_INLINE uint32_t lw_row_scale_zeros(lw_format f) { return f.scale == LW_SCALE_E4M3 ? 0xFF : 0xFFF; }

LW_INLINE bool lw_has_block_supers(lw_format f) { return f.super == LW_SUPER_BLOCK || f.super == LW_SUPER_EIGHTH; }

// The factor that turns the f16 of a block into the super scale.
LW_INLINE float lw_super_unit(lw_format f) { return f.super == LW_SUPER_EIGHTH ? 0.125f : 1; }

LW_INLINE size_t lw_super_bytes(lw_format f, size_t cols) {
    return f.super == LW_SUPER_ROW  ? sizeof(float)
           : lw_has_block_supers(f) ? lw_ceil_div(cols, LW_SUPER_BLOCK_INPUTS) * 2
                                    : 0;
}

static inline lw_stored_row lw_stored_row_of(lw_format f, size_t cols) {
    const size_t super_minimums = lw_has_super_minimum(f) ? lw_ceil_div(cols, LW_SUPER_BLOCK_INPUTS) * 2 : 0;
    lw_stored_row s = {.low = 0};
    s.high = cols * f.low / 8;
    s.scales = s.high + cols * f.high / 8;
    s.minimums = s.scales + lw_ceil_div(cols, f.group) * lw_scale_bytes(f);
    s.selectors = s.minimums + lw_minimum_bytes(f, cols);
    s.supers = s.selectors + (f.selector != 0 ? lw_ceil_div(cols, LW_SEGMENT) : 0);
    s.super_minimums = s.supers + lw_super_bytes(f, cols);
    s.bytes = s.super_minimums + super_minimums;
    return s;
}

// Byte offsets of the parts of a panel, and within a segment. Every part covers whole segments: weights and scales past
// the last input are zero.
typedef struct lw_coded_panel {
    size_t supers, super_minimums, minimums, selectors;  // [..][LW_PANEL] each
    size_t segments;                                     // offset of the first segment
    size_t high, scales;                                 // within a segment, after the low planes of its 4 groups
    size_t segment_bytes;
    size_t bytes;
} lw_coded_panel;

LW_INLINE lw_coded_panel lw_coded_panel_of(lw_format f, size_t cols) {
    const size_t segments = lw_ceil_div(cols, LW_SEGMENT), padded = segments * LW_SEGMENT;
    lw_coded_panel p = {.supers = 0};
    p.super_minimums = lw_round_64(lw_super_bytes(f, padded) * LW_PANEL);
    p.minimums =
        p.super_minimums + (lw_has_super_minimum(f) ? lw_ceil_div(padded, LW_SUPER_BLOCK_INPUTS) * 2 * LW_PANEL : 0);
    const size_t minimum_bytes = lw_minimum_bytes(f, padded) / (f.minimum == LW_MINIMUM_SIX ? 2 : 1);
    p.selectors = p.minimums + minimum_bytes * LW_PANEL;
    p.segments = lw_round_64(p.selectors + (f.selector != 0 ? segments * LW_PANEL : 0));
    p.high = (size_t)LW_SEGMENT * LW_PANEL * f.low / 8;
    p.scales = p.high + (size_t)LW_SEGMENT * LW_PANEL * f.high / 8;
    p.segment_bytes = p.scales + LW_SEGMENT / f.group * lw_scale_bytes(f) * LW_PANEL;
    p.bytes = p.segments + segments * p.segment_bytes;
    return p;
}

// The input before input k, not a segment's first, in a trellis's chain. The order within 16 inputs is 0 4 8 12 1 5 9
// 13 2 6 10 14 3 7 11 15. Panels of all levels hold [2][LW_PANEL][4] bytes in a group: byte j of half h has the codes
// of inputs 16 h + 4 p + j in bits 2 p and 2 p + 1. So the codes of 16 inputs are a 32-bit number in the chain's order.
static inline size_t lw_chain_before(size_t k) { return k % 16 >= 4 ? k - 4 : k % 16 == 0 ? k - 1 : k + 11; }

// Byte and lowest bit of input k (0 .. 127 of its segment) of an output in the second plane.
static inline size_t lw_high_places(lw_format f, lw_layout layout) {
    return (size_t)LW_SEGMENT / layout.chunk * f.high / 8;
}

static inline size_t lw_high_byte(lw_format f, lw_layout layout, size_t output, size_t k) {
    const size_t chunk = k / layout.chunk, places = lw_high_places(f, layout);
    return (chunk % places * LW_PANEL + output) * layout.chunk + k % layout.chunk;
}

static inline size_t lw_high_bit(lw_format f, lw_layout layout, size_t k) {
    return k / layout.chunk / lw_high_places(f, layout) * f.high;
}

#endif
