// Reads single weights back out of packed panels: slow, obvious, and right for every layout.
#ifndef LW_KERNELS_UNPACK_H
#define LW_KERNELS_UNPACK_H

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

// `group` counts groups of 16 inputs here.
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

#endif
