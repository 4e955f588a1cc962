// A panel of quantized weights times all rows on AVX-512-VNNI, segment by segment, in registers or decoded first.
#ifndef LW_KERNELS_AVX512VNNI_MATMUL_PANEL_H
#define LW_KERNELS_AVX512VNNI_MATMUL_PANEL_H

#include <string.h>

#include "kernels/avx512vnni/matmul_tile.h"
#include "kernels/minimums.h"

// A packed panel.
typedef struct weight_panel {
    const uint8_t* matrix;              // start of the matrix's first panel
    const uint8_t* data;                // start of the panel's first segment
    size_t groups;                      // number of groups of 32 inputs
    const uint8_t *supers, *selectors;  // coded types only
    __m512i table;                      // coded types only: table entry + 128, four times
} weight_panel;

typedef struct tile_scratch {
    uint8_t codes[LW_SEGMENT * LW_PANEL];
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
    if (type.format.map != LW_MAP_OFFSET)
        wp.table =
            _mm512_xor_si512(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)w->table)), _mm512_set1_epi8(-128));
    return wp;
}

LW_INLINE weight_segment open_segment(const weight_type type, const weight_panel* p, size_t segment,
                                      const lw_fetch_order order) {
    const size_t left = p->groups - segment * LW_SEGMENT_GROUPS;
    weight_segment ws = {.data = p->data + segment * type.segment_bytes,
                         .groups = left < LW_SEGMENT_GROUPS ? left : LW_SEGMENT_GROUPS};
    if (type.format.low != 0) {  // coded panels have whole segments
        ws.groups = LW_SEGMENT_GROUPS;
        ws.supers = p->supers + (lw_has_block_supers(type.format) ? segment / 2 * LW_PANEL * 2 : 0);
        ws.selectors = p->selectors + segment * LW_PANEL;
        ws.table = p->table;
    }
    if (!type.second) ws.fetch = lw_fetch_of(order, p->matrix, ws.data, type.segment_bytes);
    // (Zen 4, one row: with three cycles a line Q6_K is 5 to 12 % faster than with four, but whole steps of Q4_K are
    // slower.)
    if (order == LW_FETCH_PACED)
        ws.data = lw_fetch_paced(ws.data, type.segment_bytes, type.format.low == 0 && type.chunks == 4 ? 3 : 4);
    return ws;
}

LW_INLINE void decode_group(const weight_type type, const weight_segment* w, const int g, const int more, uint8_t* to) {
#pragma GCC unroll 8
    for (int c = 0; c < 8; ++c)
#pragma GCC unroll 2
        for (int v = 0; v < VECTORS; ++v) {
            __m512i codes = type.codes(w, g, c, v);
            if (more != 0) codes = _mm512_add_epi8(codes, _mm512_set1_epi8((char)more));
            _mm512_store_si512(to + c * CHUNK_BYTES + v * 64, codes);
        }
}

// Offset of the unsigned codes.
LW_INLINE int offset_of(const weight_type type) { return type.shift < 0 ? 0 : 1 << type.shift; }

// Writes the codes of a segment plus `more`, as [chunk][vector][64]. With `fetch` it prefetches later weights. Groups
// that a short last segment lacks have scale 0; their codes meet activations that are 0.
LW_INLINE void decode_codes(const weight_type type, const weight_segment* w, const int more, const bool fetch,
                            uint8_t* to) {
    if (type.format.low != 0) {  // whole segments; the place of bits in a byte depends on the group
#pragma GCC unroll 4
        for (int g = 0; g < LW_SEGMENT_GROUPS; ++g) {
            if (fetch) lw_fetch_group(w->fetch, (size_t)g, type.segment_bytes);
            decode_group(type, w, g, more, to + g * 8 * CHUNK_BYTES);
        }
    } else {
        for (size_t g = 0; g < w->groups; ++g) {
            if (fetch) lw_fetch_group(w->fetch, g, type.segment_bytes);
            decode_group(type, w, (int)g, more, to + g * 8 * CHUNK_BYTES);
        }
    }
}

// Writes the scales of all steps: [step][32], or with `magic` [step][2][32]: s, -LW_MAGIC * s.
LW_INLINE void decode_scales(const weight_type type, const weight_segment* w, const bool magic, float* to) {
    const size_t steps = w->groups * (size_t)(steps_of(type) / LW_SEGMENT_GROUPS), parts = magic ? 2 : 1;
    for (size_t g = 0; g < steps; ++g)
#pragma GCC unroll 2
        for (int v = 0; v < VECTORS; ++v) {
            const __m512 scale = step_scale(type, w, g, v);
            _mm512_store_ps(to + g * parts * LW_PANEL + v * 16, scale);
            if (magic) _mm512_store_ps(to + (g * parts + 1) * LW_PANEL + v * 16, magic_times(scale));
        }
    memset(to + steps * parts * LW_PANEL, 0, ((size_t)steps_of(type) - steps) * parts * LW_PANEL * sizeof(float));
}

// Decodes the codes and scales of a segment to scratch, which stays in the first-level cache while all rows use it.
LW_INLINE void decode(const weight_type type, weight_segment* w, tile_scratch* s) {
    const bool in_place = type.plain && w->groups == LW_SEGMENT_GROUPS;
    w->codes = in_place ? w->data : s->codes;
    w->group_bytes = in_place ? type.segment_bytes / LW_SEGMENT_GROUPS : 8 * CHUNK_BYTES;
    w->scales = s->scales;
    // Coded types are decoded to code + 128, whatever their own offset, like Q8_0.
    const bool coded = type.format.low != 0;
    if (!in_place) decode_codes(type, w, coded ? 128 - offset_of(type) : 0, coded, s->codes);
    for (size_t g = 0; in_place && g < LW_SEGMENT_GROUPS; ++g) lw_fetch_group(w->fetch, g, type.segment_bytes);
    decode_scales(type, w, true, s->scales);
}

LW_INLINE void finish(const weight_type type, const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out,
                      tile_scratch* s) {
    if (type.format.minimum != LW_MINIMUM_NONE)
        lw_subtract_minimums(type.format, w, x, panel, s->results, s->minimums, s->results + x->rows * LW_PANEL);
    lw_store_panel(w, panel, x->rows, s->results, out);
}

// All rows of one segment, for decoded coded types with so many inputs per scale (matmul_decoded__avx512vnni.c).
void lw_decoded_rows_16__avx512vnni(const weight_segment* w, const lw_activations* x, size_t segment, float* results);
void lw_decoded_rows_32__avx512vnni(const weight_segment* w, const lw_activations* x, size_t segment, float* results);
void lw_decoded_rows_64__avx512vnni(const weight_segment* w, const lw_activations* x, size_t segment, float* results);
void lw_decoded_rows_128__avx512vnni(const weight_segment* w, const lw_activations* x, size_t segment, float* results);

// With `packed` every tile, of at most `most` rows, decodes the segment in registers; otherwise the segment is decoded
// once for all tiles.
LW_INLINE void gemm_segment(const weight_type type, const bool packed, const size_t most, const weight_panel* p,
                            const lw_activations* x, size_t segment, tile_scratch* s) {
    weight_segment ws = open_segment(type, p, segment, lw_cpu_fetch_order);
    if (packed && ws.groups == LW_SEGMENT_GROUPS) {
        if (scales_first(type, x->rows)) decode_scales(type, &ws, true, s->scales);
        ws.scales = s->scales;
        all_rows(type, true, most, &ws, x, segment, s->results);
        return;
    }
    decode(type, &ws, s);
    if (type.format.low == 0)
        all_rows(type, false, TILE_ROWS, &ws, x, segment, s->results);
    else if (type.chunks == 4)
        lw_decoded_rows_16__avx512vnni(&ws, x, segment, s->results);
    else if (type.chunks == 8)
        lw_decoded_rows_32__avx512vnni(&ws, x, segment, s->results);
    else if (type.chunks == 16)
        lw_decoded_rows_64__avx512vnni(&ws, x, segment, s->results);
    else
        lw_decoded_rows_128__avx512vnni(&ws, x, segment, s->results);
}

LW_INLINE void gemm(const weight_type type, const bool packed, const size_t most, const lw_matrix* w,
                    const lw_activations* x, size_t panel, lw_output out, tile_scratch* s) {
    memset(s->results, 0, x->rows * LW_PANEL * sizeof(float));
    const weight_panel wp = open_panel(type, w, panel);
    for (size_t segment = 0; segment < x->segments; ++segment) gemm_segment(type, packed, most, &wp, x, segment, s);
    finish(type, w, x, panel, out, s);
}

// Types with two passes (lw_passes).
LW_INLINE void gemm_twice(const weight_type first, const weight_type second, const bool packed, const lw_matrix* w,
                          const lw_activations* x, size_t panel, lw_output out, tile_scratch* s) {
    memset(s->results, 0, x->rows * LW_PANEL * sizeof(float));
    const weight_panel wp = open_panel(first, w, panel);
    for (size_t segment = 0; segment < x->segments; ++segment) {
        gemm_segment(first, packed, PACKED_TILE_ROWS, &wp, x, segment, s);
        gemm_segment(second, packed, PACKED_TILE_ROWS, &wp, x, segment, s);
    }
    finish(first, w, x, panel, out, s);
}

// The order in which a row of a type prefetches weights on CPUs with LW_FETCH_WHOLE (prefetch-by-core.md
// of the decisions). Types with little arithmetic that are read in order are best left to the hardware prefetcher. Where
// arithmetic is the limit, pacing costs too much.
LW_INLINE lw_fetch_order whole_order(const weight_type type) {
    const bool light = type.plain || type.format.low == 8 || (type.chunks == 32 && type.format.high == 0);
    if (light && type.format.minimum == LW_MINIMUM_NONE) return LW_FETCH_NONE;
    return type.format.low == 2 || type.format.map == LW_MAP_FLOAT ? LW_FETCH_WHOLE : LW_FETCH_PACED;
}

LW_INLINE void take_minimums(const weight_type type, lw_row_minimums* m, size_t segment) {
    if (type.format.minimum != LW_MINIMUM_NONE) lw_take_segment(type.format, m, segment);
}

// One row. Memory is the limit, so there is code for every order of prefetching. Minimums of the previous segment are
// taken off while this segment's prefetches are paced; after this segment's products they would delay the next
// segment's.
LW_INLINE void gemv_segment(const weight_type type, const weight_panel* p, const lw_activations* x, size_t segment,
                            const lw_fetch_order order, lw_row_minimums* m, tile_scratch* s) {
    weight_segment ws = open_segment(type, p, segment, order);
    ws.scales = s->scales;  // for tiles that do not read scales from the packed segment
    if (segment > 0) take_minimums(type, m, segment - 1);
    const row_segment row = some_rows(x, segment, 0, s->results);
    if (ws.groups == LW_SEGMENT_GROUPS) {
        tile(type, 1, true, &ws, &row);
    } else {
        decode(type, &ws, s);
        tile(type, 1, false, &ws, &row);
    }
}

// With `twice` (lw_passes) each segment is multiplied as `first` and as `second`.
LW_INLINE void gemv_segments(const weight_type first, const weight_type second, const bool twice, const weight_panel* p,
                             const lw_activations* x, const lw_fetch_order order, lw_row_minimums* m, tile_scratch* s) {
    for (size_t segment = 0; segment < x->segments; ++segment) {
        gemv_segment(first, p, x, segment, order, m, s);
        if (twice) gemv_segment(second, p, x, segment, order, m, s);  // no minimums
    }
    take_minimums(first, m, x->segments - 1);
}

LW_INLINE void gemv_passes(const weight_type first, const weight_type second, const bool twice, const lw_matrix* w,
                           const lw_activations* x, size_t panel, lw_output out, tile_scratch* s) {
    memset(s->results, 0, LW_PANEL * sizeof(float));
    const weight_panel wp = open_panel(first, w, panel);
    lw_row_minimums m;
    if (first.format.minimum != LW_MINIMUM_NONE) m = lw_open_row_minimums(first.format, w, x, panel);
    if (lw_cpu_fetch_order == LW_FETCH_WHOLE)
        gemv_segments(first, second, twice, &wp, x, whole_order(first), &m, s);
    else if (lw_cpu_fetch_order == LW_FETCH_PAGES)
        gemv_segments(first, second, twice, &wp, x, LW_FETCH_PAGES, &m, s);
    else
        gemv_segments(first, second, twice, &wp, x, LW_FETCH_LINES, &m, s);
    if (first.format.minimum != LW_MINIMUM_NONE) lw_add_taken(m.taken, s->results);
    lw_store_panel(w, panel, 1, s->results, out);
}

LW_INLINE void gemv(const weight_type type, const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out,
                    tile_scratch* s) {
    gemv_passes(type, type, false, w, x, panel, out, s);
}

LW_INLINE void gemv_twice(const weight_type first, const weight_type second, const lw_matrix* w,
                          const lw_activations* x, size_t panel, lw_output out, tile_scratch* s) {
    gemv_passes(first, second, true, w, x, panel, out, s);
}

#endif
