// A panel of quantized weights times all rows on AVX2, segment by segment, in registers or decoded first.
#ifndef LW_KERNELS_AVX2_MATMUL_PANEL_H
#define LW_KERNELS_AVX2_MATMUL_PANEL_H

#include "kernels/avx2/matmul_tile.h"
#include "kernels/minimums.h"

enum { BLOCK_ROWS = 64 };  // rows that use a decoded segment before the next segment is decoded

// A packed panel.
typedef struct weight_panel {
    const uint8_t* matrix;              // start of the matrix's first panel
    const uint8_t* data;                // start of the panel's first segment
    size_t groups;                      // number of groups of 32 inputs
    const uint8_t *supers, *selectors;  // coded types only
    __m256i table;                      // coded types only: the table, in both halves
} weight_panel;

typedef struct tile_scratch {
    uint8_t codes[2 * LW_SEGMENT * LW_PANEL];
    float scales[STEPS * 2 * LW_PANEL];
    float minimums[LW_MINIMUM_FLOATS];
    float results[];  // [rows][32], then as much again for minimums
} tile_scratch;

LW_INLINE weight_panel open_panel(const weight_type type, const lw_matrix* w, size_t panel) {
    weight_panel wp = {.matrix = w->data, .data = w->data + panel * w->panel_bytes, .groups = w->groups};
    if (type.format.low == 0) return wp;
    const lw_coded_panel p = lw_coded_panel_of(type.format, w->cols);
    wp.supers = wp.data + p.supers;
    wp.selectors = wp.data + p.selectors;
    if (lw_cpu_fetch_order == LW_FETCH_WHOLE) lw_fetch_whole(wp.data, p.segments);
    wp.data += p.segments;
    wp.table = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)w->table));
    return wp;
}

LW_INLINE weight_segment open_segment(const weight_type type, const weight_panel* p, size_t segment) {
    const size_t left = p->groups - segment * LW_SEGMENT_GROUPS;
    // Panels of coded types always have whole segments.
    weight_segment ws = {.data = p->data + segment * type.segment_bytes,
                         .groups = left < LW_SEGMENT_GROUPS && type.format.low == 0 ? left : LW_SEGMENT_GROUPS};
    if (type.format.low != 0) {
        ws.supers = p->supers + (lw_has_block_supers(type.format) ? segment / 2 * LW_PANEL * 2 : 0);
        ws.selectors = p->selectors + segment * LW_PANEL;
        ws.table = p->table;
    }
    ws.fetch = lw_fetch_of(lw_cpu_fetch_order, p->matrix, ws.data, type.segment_bytes);
    return ws;
}

LW_INLINE void decode_group(const weight_type type, const weight_segment* w, const int i, uint8_t* codes) {
    __m256i* to = (__m256i*)(codes + (size_t)i * decoded_bytes(type));
#pragma GCC unroll 8
    for (int c = 0; c < 8; ++c)
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; ++v) {
            const __m256i bytes = type.codes(w, i, c, v);
            if (type.run == SIGNED) {
                _mm256_store_si256(to++, even_words(bytes));
                _mm256_store_si256(to++, odd_words(bytes));
            } else {
                _mm256_store_si256(to++, bytes);
            }
        }
}

// Decodes the codes and scales of a segment to scratch, which stays in the first-level cache while all rows use it.
LW_INLINE void decode(const weight_type type, weight_segment* w, tile_scratch* s) {
    w->codes = s->codes;
    w->scales = s->scales;
    if (groups_differ(type)) {
#pragma GCC unroll 4
        for (int i = 0; i < LW_SEGMENT_GROUPS; ++i) decode_group(type, w, i, s->codes);
    } else {
        for (int i = 0; i < (int)w->groups; ++i) decode_group(type, w, i, s->codes);
    }
    for (size_t g = 0; g < w->groups * 8 / (size_t)type.chunks; ++g)
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; ++v) {
            const __m256 scale = type.scale(w, g, v);
            float* to = s->scales + g * 2 * LW_PANEL + v * 8;
            _mm256_store_ps(to, scale);
            if (type.run != SIGNED) _mm256_store_ps(to + LW_PANEL, magic_times(scale));
        }
}

// Rows [first, end) of a segment.
LW_INLINE void some_tiles(const weight_type type, const bool packed, weight_segment* w, const lw_activations* x,
                          size_t segment, size_t first, size_t end, float* results) {
    for (size_t row = first; row < end; row += TILE_ROWS, w->fetch.first = NULL) {
        const row_segment rows = some_rows(x, segment, row, end, results);
        if (end - row == 1)
            tile(type, 1, packed, w, &rows);
        else
            tile(type, 2, packed, w, &rows);
    }
}

LW_INLINE void finish(const weight_type type, const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out,
                      tile_scratch* s) {
    if (type.format.minimum != LW_MINIMUM_NONE)
        lw_subtract_minimums(type.format, w, x, panel, s->results, s->minimums, s->results + x->rows * LW_PANEL);
    lw_store_panel(w, panel, x->rows, s->results, out);
}

// By blocks of rows whose results and activations of a segment stay in the first-level cache; each block decodes the
// panel anew. Types with two passes (lw_passes) go over each segment as `first` and then as `second`; `second` is NULL
// for other types.
LW_INLINE void gemm_decoded(const weight_type first, const weight_type* second, const lw_matrix* w,
                            const lw_activations* x, size_t panel, lw_output out, tile_scratch* s) {
    memset(s->results, 0, x->rows * LW_PANEL * sizeof(float));
    const weight_panel wp = open_panel(first, w, panel);
    for (size_t row = 0; row < x->rows; row += BLOCK_ROWS) {
        const size_t end = x->rows - row < BLOCK_ROWS ? x->rows : row + BLOCK_ROWS;
        for (size_t segment = 0; segment < x->segments; ++segment) {
            weight_segment ws = open_segment(first, &wp, segment);
            decode(first, &ws, s);
            some_tiles(first, false, &ws, x, segment, row, end, s->results);
            if (second == NULL) continue;
            decode(*second, &ws, s);
            some_tiles(*second, false, &ws, x, segment, row, end, s->results);
        }
    }
    finish(first, w, x, panel, out, s);
}

// For so few rows that each tile decodes weights in registers.
LW_INLINE void gemm_packed(const weight_type first, const weight_type* second, const size_t rows, const lw_matrix* w,
                           const lw_activations* x, size_t panel, lw_output out, tile_scratch* s) {
    memset(s->results, 0, rows * LW_PANEL * sizeof(float));
    const weight_panel wp = open_panel(first, w, panel);
    for (size_t segment = 0; segment < x->segments; ++segment) {
        weight_segment ws = open_segment(first, &wp, segment);
        some_tiles(first, true, &ws, x, segment, 0, rows, s->results);
        if (second != NULL) some_tiles(*second, true, &ws, x, segment, 0, rows, s->results);
    }
    finish(first, w, x, panel, out, s);
}

// The kernels of a type. Few and many rows have separate functions, because the compiler makes better code of less at a
// time.
#define LW_PANEL_KERNELS(name, first, second)                                                                         \
    static __attribute__((noinline)) void few_rows_##name(const lw_matrix* w, const lw_activations* x, size_t panel,  \
                                                          lw_output out, tile_scratch* s) {                           \
        gemm_packed(first, second, x->rows, w, x, panel, out, s);                                                     \
    }                                                                                                                 \
    static __attribute__((noinline)) void many_rows_##name(const lw_matrix* w, const lw_activations* x, size_t panel, \
                                                           lw_output out, tile_scratch* s) {                          \
        gemm_decoded(first, second, w, x, panel, out, s);                                                             \
    }                                                                                                                 \
    void gemm_##name##_q8g32_2x32__avx2(const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out,     \
                                        void* scratch) {                                                              \
        if ((first).few_rows > 1 && x->rows <= (first).few_rows)                                                      \
            few_rows_##name(w, x, panel, out, scratch);                                                               \
        else                                                                                                          \
            many_rows_##name(w, x, panel, out, scratch);                                                              \
    }                                                                                                                 \
    void gemv_##name##_q8g32_1x32__avx2(const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out,     \
                                        void* scratch) {                                                              \
        gemm_packed(first, second, 1, w, x, panel, out, scratch);                                                     \
    }

#endif
