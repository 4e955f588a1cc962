// One row by a panel of cb2, for the levels with SDOT, which have the loop in assembly (gemv_cb2.inc).
#ifndef LW_KERNELS_NEON_CB2_H
#define LW_KERNELS_NEON_CB2_H

#include "kernels/neon/coded.h"

typedef struct lw_cb2_row {  // gemv_cb2.inc depends on the order of the fields
    const int8_t* q;
    size_t n_segments;
    int8_t* room;              // [2][256]: inputs of this segment and of the next
    const uint8_t* segments;   // whole segments, packed
    const uint8_t* selectors;  // [segments][32 outputs]
    const float* scale;        // [segments][4 groups]: activation scales
    const float* supers;       // [32 outputs], then the super scales times -(2^15 + 128)
    float* results;            // [32 outputs], added to
    const uint8_t* tables;     // [selectors of two outputs][first code, second code][output][16 nibbles]
    size_t fetch_ahead;        // lw_cpu_fetch_distance
} lw_cb2_row;

// Makes the super scales and tables that a panel needs besides its codes. Exact, as super scales have 12 significant
// bits.
INLINE void prepare_cb2(const lw_matrix* w, const uint8_t* supers, float* scales, uint8_t* tables) {
    memcpy(scales, supers, LW_PANEL * sizeof *scales);
    for (size_t i = 0; i < LW_PANEL; ++i) scales[LW_PANEL + i] = -32896.0f * scales[i];
    const uint8x16_t table = vld1q_u8((const uint8_t*)w->table);
    const uint8x16_t nibbles = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    uint8x16_t first[4], second[4];  // per codebook
    UNROLL
    for (int book = 0; book < 4; ++book) {
        const uint8x16_t from = vdupq_n_u8((uint8_t)(4 * book));
        first[book] = vqtbl1q_u8(table, vorrq_u8(from, vandq_u8(nibbles, vdupq_n_u8(3))));
        second[book] = vqtbl1q_u8(table, vorrq_u8(from, vshrq_n_u8(nibbles, 2)));
    }
    UNROLL
    for (int selectors = 0; selectors < 16; ++selectors, tables += 64) {
        vst1q_u8(tables, first[selectors & 3]);
        vst1q_u8(tables + 16, first[selectors >> 2]);
        vst1q_u8(tables + 32, second[selectors & 3]);
        vst1q_u8(tables + 48, second[selectors >> 2]);
    }
}

INLINE bool is_cb2(const lw_format f) { return f.map == LW_MAP_TABLE && f.selector == 2; }

// x's only row over all segments, with a level's kernel; returns false if it did nothing.
INLINE bool row_of_cb2(void (*kernel)(const lw_cb2_row*), const lw_matrix* w, const lw_activations* x, size_t panel,
                       const workspace* work) {
    const lw_coded_panel p = lw_coded_panel_of(lw_format_cb2, w->cols);
    const uint8_t* data = w->data + panel * w->panel_bytes;
    _Alignas(16) float scales[2 * LW_PANEL];
    _Alignas(64) uint8_t tables[1024];
    if (x->rows != 1) return false;
    prepare_cb2(w, data + p.supers, scales, tables);
    const lw_cb2_row t = {.q = x->q,
                          .n_segments = x->segments,
                          .room = work->codes,
                          .segments = data + p.segments,
                          .selectors = data + p.selectors,
                          .scale = x->scale,
                          .supers = scales,
                          .results = work->results,
                          .tables = tables,
                          .fetch_ahead = lw_cpu_fetch_distance()};
    lw_fetch_ahead(data, p.segments);  // the kernel itself prefetches segments
    kernel(&t);
    return true;
}

#endif
