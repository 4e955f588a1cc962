// The part of a product that minimums of coded types take off, for every level (kernels/lanes.h):
//     taken = 0;  for each group of 32 (or 16) inputs, ascending:
//         taken = fma(scale * sum of the activation codes, -minimum, taken)
//     and acc += taken in the end.
// This product is 1/32 of the size of the integer part and has a chain of its own. It is computed a panel at a time
// after the panel's integer part. Where one row waits for memory it is computed beside the integer part, segment by
// segment.
#ifndef LW_KERNELS_MINIMUMS_H
#define LW_KERNELS_MINIMUMS_H

#include "kernels/format.h"
#include "kernels/lanes.h"

enum {
    LW_MINIMUM_SEGMENTS = 16,  // segments whose minimums are decoded at a time
    LW_MINIMUM_FLOATS = LW_MINIMUM_SEGMENTS * (LW_SEGMENT / 16) * LW_PANEL,
    LW_MINIMUM_VECTORS = LW_PANEL / 16,
#if defined(__AVX512F__)
    LW_MINIMUM_ROWS = 8,
#else
    LW_MINIMUM_ROWS = 2,
#endif
};

// The factor of a segment's minimums for 16 outputs of a panel; 1 for types without a super minimum.
LW_INLINE vf lw_minimum_scale(const lw_format f, const lw_coded_panel* p, const uint8_t* panel, size_t segment, int v) {
    if (!lw_has_super_minimum(f)) return vf_set1(1);
    const size_t block = segment / (LW_SUPER_BLOCK_INPUTS / LW_SEGMENT);
    return vf_load_half((const uint16_t*)(panel + p->super_minimums + (block * LW_PANEL + (size_t)v * 16) * 2));
}

// Six-bit minimums of a segment, a byte each: [4 groups][32]. Bits of two groups are joined at a time: one by one,
// decoding 16 of them would take more instructions than subtracting them.
LW_INLINE void lw_join_six_bits(const lw_coded_panel* p, const uint8_t* panel, size_t segment, uint8_t* bytes) {
    const uint8_t* above = panel + p->segments + segment * p->segment_bytes + p->scales;
    const uint8_t* nibbles = panel + p->minimums + segment * LW_SIX_BIT_BYTES;
    for (int i = 0; i < LW_SIX_BIT_BYTES; ++i) bytes[i] = (uint8_t)((nibbles[i] & 15) | (above[i] >> 2 & 48));
    for (int i = 0; i < LW_SIX_BIT_BYTES; ++i)
        bytes[LW_SIX_BIT_BYTES + i] = (uint8_t)(nibbles[i] >> 4 | (above[LW_SIX_BIT_BYTES + i] >> 2 & 48));
}

// Minimums of group g (32 or 16 inputs) of a segment, 16 outputs. `six`: the bytes of lw_join_six_bits.
LW_INLINE vf lw_minimum(const lw_format f, const lw_coded_panel* p, const uint8_t* panel, size_t segment, size_t g,
                        const uint8_t* six, vf scale, int v) {
    const uint8_t* scales = panel + p->segments + segment * p->segment_bytes + p->scales;
    const uint8_t* minimums = panel + p->minimums;
    const size_t at = (segment * 4 + g) * LW_PANEL + (size_t)v * 16;
    if (f.minimum == LW_MINIMUM_F16) return vf_load_half((const uint16_t*)(minimums + at * 2));
    if (f.minimum == LW_MINIMUM_SIX) return vf_mul(scale, vf_from_bytes(six + g * LW_PANEL + (size_t)v * 16, 0));
    if (f.minimum == LW_MINIMUM_NIBBLES) return vf_mul(scale, vf_from_bytes(scales + g * LW_PANEL + (size_t)v * 16, 4));
    const size_t shared =
        g * LW_GROUP / f.group * LW_PANEL + (size_t)v * 16;  // groups share zero points as they share scales
    const vf zero = vf_from_bytes(minimums + segment * (LW_SEGMENT / f.group) * LW_PANEL + shared, 0);
    return vf_mul(vf_load_half((const uint16_t*)(scales + shared * 2)), vf_sub(zero, vf_set1(f.offset)));
}

// Number of minimums of one output in a segment.
LW_INLINE int lw_minimum_groups(const lw_format f) { return f.group == 16 ? 8 : 4; }

// The sums of activation codes that the minimums are multiplied with, from the first row and segment on.
LW_INLINE const float* lw_minimum_sums(const lw_format f, const lw_activations* x) {
    return x->sums + (lw_minimum_groups(f) == 8 ? LW_SUMS_16 : 0);
}

// The sum that a panel's minimums take off one row.
typedef struct lw_row_minimums {
    lw_coded_panel p;
    const uint8_t* panel;
    const float* sums;
    vf taken[LW_MINIMUM_VECTORS];
} lw_row_minimums;

LW_INLINE lw_row_minimums lw_open_row_minimums(const lw_format f, const lw_matrix* w, const lw_activations* x,
                                               size_t panel) {
    return (lw_row_minimums){.p = lw_coded_panel_of(f, w->cols),
                             .panel = w->data + panel * w->panel_bytes,
                             .sums = lw_minimum_sums(f, x),
                             .taken = {vf_set1(0), vf_set1(0)}};
}

// Adds one segment: every minimum is used as soon as it is decoded, and once.
LW_INLINE void lw_take_segment(const lw_format f, lw_row_minimums* m, size_t segment) {
    const lw_coded_panel* p = &m->p;
    const vf scale[] = {lw_minimum_scale(f, p, m->panel, segment, 0), lw_minimum_scale(f, p, m->panel, segment, 1)};
    uint8_t six[2 * LW_SIX_BIT_BYTES];
    if (f.minimum == LW_MINIMUM_SIX) lw_join_six_bits(p, m->panel, segment, six);
    const float* sums = m->sums + segment * LW_SUMS;
#pragma GCC unroll 8
    for (int g = 0; g < lw_minimum_groups(f); ++g)
#pragma GCC unroll 2
        for (int v = 0; v < LW_MINIMUM_VECTORS; ++v)
            m->taken[v] = vf_fnma(vf_set1(sums[g]), lw_minimum(f, p, m->panel, segment, (size_t)g, six, scale[v], v),
                                  m->taken[v]);
}

LW_INLINE void lw_add_taken(const vf taken[LW_MINIMUM_VECTORS], float* results) {
#pragma GCC unroll 2
    for (int v = 0; v < LW_MINIMUM_VECTORS; ++v)
        vf_store(results + v * 16, vf_add(vf_load(results + v * 16), taken[v]));
}

// Minimums of one segment, [groups][32].
LW_INLINE void lw_segment_minimums(const lw_format f, const lw_coded_panel* p, const uint8_t* panel, size_t segment,
                                   float* to) {
    const vf scale[] = {lw_minimum_scale(f, p, panel, segment, 0), lw_minimum_scale(f, p, panel, segment, 1)};
    uint8_t six[2 * LW_SIX_BIT_BYTES];
    if (f.minimum == LW_MINIMUM_SIX) lw_join_six_bits(p, panel, segment, six);
    for (int g = 0; g < lw_minimum_groups(f); ++g)
        for (int v = 0; v < LW_MINIMUM_VECTORS; ++v)
            vf_store(to + g * LW_PANEL + v * 16, lw_minimum(f, p, panel, segment, (size_t)g, six, scale[v], v));
}

// `rows` rows of some segments. The chain continues from `from` (NULL: starts at 0) and is stored to `to`, or, if `to`
// is NULL, added to the results.
LW_INLINE void lw_minimum_tile(const float* minimums, const float* sums, size_t sum_stride, size_t segments,
                               const int groups, const int rows, const float* from, float* to, float* results) {
    vf acc[LW_MINIMUM_ROWS][LW_MINIMUM_VECTORS];
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r)
        for (int v = 0; v < LW_MINIMUM_VECTORS; ++v)
            acc[r][v] = from == NULL ? vf_set1(0) : vf_load(from + r * LW_PANEL + v * 16);
    for (size_t s = 0; s < segments; ++s, sums += LW_SUMS)
        for (int g = 0; g < groups; ++g, minimums += LW_PANEL) {
            const vf m0 = vf_load(minimums), m1 = vf_load(minimums + 16);
#pragma GCC unroll 8
            for (int r = 0; r < rows; ++r) {
                const vf sum = vf_set1(sums[(size_t)r * sum_stride + (size_t)g]);
                acc[r][0] = vf_fnma(sum, m0, acc[r][0]);
                acc[r][1] = vf_fnma(sum, m1, acc[r][1]);
            }
        }
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r)
        if (to == NULL)
            lw_add_taken(acc[r], results + r * LW_PANEL);
        else
            for (int v = 0; v < LW_MINIMUM_VECTORS; ++v) vf_store(to + r * LW_PANEL + v * 16, acc[r][v]);
}

// Turns results[rows][32], the integer part of a panel, into its product. `scratch`: [LW_MINIMUM_FLOATS]. `taken`:
// [rows][32], the rows' chains between the parts of a long panel.
LW_INLINE void lw_subtract_minimums(const lw_format f, const lw_matrix* w, const lw_activations* x, size_t panel,
                                    float* results, float* scratch, float* taken) {
    if (x->rows == 1) {
        lw_row_minimums m = lw_open_row_minimums(f, w, x, panel);
        for (size_t s = 0; s < x->segments; ++s) lw_take_segment(f, &m, s);
        lw_add_taken(m.taken, results);
        return;
    }
    const int groups = lw_minimum_groups(f);
    const lw_coded_panel p = lw_coded_panel_of(f, w->cols);
    const uint8_t* data = w->data + panel * w->panel_bytes;
    const size_t stride = x->segments * LW_SUMS;
    for (size_t first = 0, n; first < x->segments; first += n) {
        n = x->segments - first < LW_MINIMUM_SEGMENTS ? x->segments - first : LW_MINIMUM_SEGMENTS;
        for (size_t s = 0; s < n; ++s)
            lw_segment_minimums(f, &p, data, first + s, scratch + s * (size_t)groups * LW_PANEL);
        const float* sums = lw_minimum_sums(f, x) + first * LW_SUMS;
        const bool begins = first == 0, ends = first + n == x->segments;
        for (size_t row = 0, rows; row < x->rows; row += rows) {
            float *chain = taken + row * LW_PANEL, *on = ends ? NULL : chain, *to = results + row * LW_PANEL;
            const float *from = begins ? NULL : chain, *of_rows = sums + row * stride;
            const size_t left = x->rows - row;
            rows = left >= LW_MINIMUM_ROWS ? LW_MINIMUM_ROWS : left >= LW_MINIMUM_ROWS / 2 ? LW_MINIMUM_ROWS / 2 : 1;
            if (rows == LW_MINIMUM_ROWS)
                lw_minimum_tile(scratch, of_rows, stride, n, groups, LW_MINIMUM_ROWS, from, on, to);
            else if (rows == LW_MINIMUM_ROWS / 2)
                lw_minimum_tile(scratch, of_rows, stride, n, groups, LW_MINIMUM_ROWS / 2, from, on, to);
            else
                lw_minimum_tile(scratch, of_rows, stride, n, groups, 1, from, on, to);
        }
    }
}

#endif
