// Offsets of weights in a packed panel. Normative text: quantizer/FORMAT.md, "Packed layouts".
#ifndef LW_KERNELS_LAYOUT_H
#define LW_KERNELS_LAYOUT_H

#include "kernels/format.h"

enum {
    LW_Q4_GROUP_BYTES = LW_PANEL * LW_GROUP / 2 + LW_PANEL * 2,  // nibbles, then 32 f16 scales
    LW_Q8_GROUP_BYTES = LW_PANEL * LW_GROUP + LW_PANEL * 2,      // bytes, then 32 f16 scales
    // Q6_K, one group of 32 inputs: low nibbles, upper bit pairs, int8 scales of the two halves
    LW_Q6_LOW_BYTES = LW_PANEL * LW_GROUP / 2,
    LW_Q6_HIGH_BYTES = LW_PANEL * LW_GROUP / 4,
    LW_Q6_GROUP_BYTES = LW_Q6_LOW_BYTES + LW_Q6_HIGH_BYTES + LW_PANEL * 2,
    LW_Q6_SUPER_BYTES = LW_SEGMENT_GROUPS * LW_Q6_GROUP_BYTES + LW_PANEL * 2,  // a segment: 4 groups, then 32 f16
                                                                               // scales
};

// Byte of input k of an output. A group's chunks are in `parts` equal parts that share bytes; part 0 has the low bits.
static inline size_t lw_packed_byte(lw_layout layout, size_t output, size_t k, size_t parts) {
    const size_t chunk = k / layout.chunk, chunks = LW_GROUP / layout.chunk;
    return ((chunk % (chunks / parts)) * LW_PANEL + output) * layout.chunk + k % layout.chunk;
}

static inline size_t lw_packed_part(lw_layout layout, size_t k, size_t parts) {
    return k / layout.chunk / (LW_GROUP / layout.chunk / parts);
}

// Byte of input k (0 .. 31 of its group) of an output in a coded type's first plane.
static inline size_t lw_coded_byte(lw_format f, lw_layout layout, size_t output, size_t k) {
    if (f.map == LW_MAP_TRELLIS) return (k / 16 * LW_PANEL + output) * 4 + k % 4;
    return lw_packed_byte(layout, output, k, 8 / f.low);
}

static inline size_t lw_coded_part(lw_format f, lw_layout layout, size_t k) {
    return f.map == LW_MAP_TRELLIS ? k % 16 / 4 : lw_packed_part(layout, k, 8 / f.low);
}

static inline size_t lw_panel_bytes(lw_type type, size_t cols) {
    const size_t groups = (cols + LW_GROUP - 1) / LW_GROUP;
    switch (type) {
        case LW_Q4_0:
            return groups * LW_Q4_GROUP_BYTES;
        case LW_Q8_0:
            return groups * LW_Q8_GROUP_BYTES;
        case LW_Q6_K:
            return cols / LW_SEGMENT * LW_Q6_SUPER_BYTES;
        case LW_F32:
            return cols * LW_PANEL * 4;
        case LW_F16:
        case LW_BF16:
            return cols * LW_PANEL * 2;  // [k][output]
        default: {
            lw_format f;
            return lw_find_format(type, &f) ? lw_coded_panel_of(f, cols).bytes : 0;
        }
    }
}

#endif
