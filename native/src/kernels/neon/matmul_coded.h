// Products of the coded types on Armv8.0: a segment is decoded once for all rows.
#ifndef LW_KERNELS_NEON_MATMUL_CODED_H
#define LW_KERNELS_NEON_MATMUL_CODED_H

#include "kernels/neon/coded.h"

// Multiplies every row by a decoded segment (matmul_decoded__neon.c). `terms`: number of products whose sum an int16
// holds, 2, 8 or 16.
extern void decoded_rows__neon(const segment* s, bool halves, size_t terms, const lw_activations* x, float* results);

// 2 for int8 codes, and for codes up to 112; 8 for codes up to 31; 16 for smaller codes (but 8 in a group of 16).
INLINE size_t coded_terms(const lw_format f) {
    if (f.part == LW_FLOAT_LOW) return 16;
    if (f.map != LW_MAP_OFFSET || f.low == 8) return 2;
    return f.group == 16 || (f.high != 0 && f.offset == 0) ? 8 : 16;
}

INLINE void decoded_segment(const lw_format f, const lw_activations* x, size_t index, const workspace* work) {
    const segment s = {.codes = work->codes,
                       .scales = work->scales,
                       .k = index * LW_SEGMENT,
                       .groups = LW_SEGMENT_GROUPS,
                       .index = index};
    decoded_rows__neon(&s, f.group == 16, coded_terms(f), x, work->results);
}

INLINE void coded_product(const lw_format f, const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out,
                          void* scratch) {
    const workspace work = workspace_of(scratch, x->rows);
    coded_decoded(f, 1, 4, decoded_segment, w, x, panel, &work);
    finish_coded(f, w, x, panel, out, &work);
}

#define LW_CODED_KERNELS(name)                                                                                      \
    void matmul_##name##_q8g32_1x32__neon(const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out, \
                                          void* scratch) {                                                          \
        coded_product(lw_format_##name, w, x, panel, out, scratch);                                                 \
    }

#endif
