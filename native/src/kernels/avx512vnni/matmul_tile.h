// The bodies of all quantized products on AVX-512-VNNI. A tile is up to 8 rows times one panel of 32 outputs.
//
// A 64-byte vector of weights is 16 outputs times 4 consecutive inputs, so vpdpbusd against 4 broadcast activation
// bytes leaves every lane one output. Weights are unsigned (code + offset); what the offset adds, offset * A with A
// the sum of the activations so far, is taken off exactly when a group ends. Integer sums start at LW_MAGIC_BITS and
// run through the segment, so one subtraction converts them too:
//     (float)P = as_float(LW_MAGIC_BITS + P + offset * A) - as_float(LW_MAGIC_BITS + offset * A)
// since both stay below 2^22: at worst 128 * 255 * 127 = 4,145,280, of Q8_0 (offset 128).
#ifndef LW_KERNELS_AVX512VNNI_MATMUL_TILE_H
#define LW_KERNELS_AVX512VNNI_MATMUL_TILE_H

#include <immintrin.h>
#include <string.h>

#include "kernels/fetch.h"
#include "kernels/lanes.h"
#include "kernels/minimums.h"

enum {
    FEW_ROWS = 16,               // up to here tiles decode the weights themselves
    FEW_TILE_ROWS = 8,           // most rows of such a tile: decoding half as often is worth float sums in memory
    TILE_ROWS = 7,               // most rows of the others: 14 integer and 14 float sums leave 4 registers of 32
    PREFIXES = LW_SEGMENT / 16,  // activation sums per row and segment
    VECTORS = LW_PANEL / 16,     // of one input chunk, or one scale, of a panel
    CHUNK_BYTES = LW_PANEL * 4,
};

// One segment of a panel: as packed, and decoded when more than one tile of rows needs it.
typedef struct weight_segment {
    const uint8_t* data;
    const uint8_t* codes;  // 32 inputs at codes + i * group_bytes: [chunk][vector][64]
    size_t group_bytes;
    const float* differences;  // [scale][32]: s[g] - s[g + 1]
    size_t groups;             // of 32 inputs
    lw_fetch fetch;
    const uint8_t *supers, *selectors;  // of coded types
    __m512i table;                      // of coded types
} weight_segment;

// A panel as packed.
typedef struct weight_panel {
    const uint8_t* matrix;              // the first panel
    const uint8_t* data;                // the first segment
    size_t groups;                      // of 32 inputs
    const uint8_t *supers, *selectors;  // of coded types
    __m512i table;                      // of coded types: entry + 128, four times
} weight_panel;

// What differs between weight types. Every use is a compile-time constant.
typedef struct weight_type {
    int chunks;   // of 4 inputs that share a scale
    int shift;    // log2 of the offset of the unsigned codes, -1 = none
    bool plain;   // codes lie in memory as the tile needs them
    bool second;  // pass of two: the first one has fetched what comes
    size_t segment_bytes;
    lw_format format;  // of coded types, else zero
    // Codes of chunk c (0..7) of the 32 inputs `group` of a segment, and its scale g.
    __m512i (*codes)(const struct weight_segment* w, int group, int c, int vector);
    __m512 (*scale)(const struct weight_segment* w, size_t g, int vector);
} weight_type;

// The same segment of some activation rows.
typedef struct row_segment {
    const int8_t* q;        // [row][LW_SEGMENT]
    const int32_t* prefix;  // [row][PREFIXES]
    const float* scale;     // [row]
    float* results;         // [row][32]
} row_segment;

typedef struct tile_scratch {
    uint8_t codes[LW_SEGMENT * LW_PANEL];
    float differences[PREFIXES * LW_PANEL];
    float minimums[LW_MINIMUM_FLOATS];
    float results[];  // [rows][32]
} tile_scratch;

LW_INLINE __m512 load_halves(const uint8_t* p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p)); }

typedef int32_t __attribute__((may_alias)) four_codes;

// sum[v] += weights * 4 activations. As assembly, because the compiler otherwise copies and spills the sums. The
// broadcast is one load for both vectors, or two that cost no instruction: half and half suits load ports and decoders.
LW_INLINE void dot4_row(__m512i sum[VECTORS], __m512i w0, __m512i w1, const int8_t* q, const bool embedded) {
    if (embedded) {
        __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum[0]) : "v"(w0), "m"(*(const four_codes*)q));
        __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum[1]) : "v"(w1), "m"(*(const four_codes*)q));
    } else {
        const __m512i four = _mm512_set1_epi32(*(const four_codes*)q);
        __asm__("vpdpbusd %2, %1, %0" : "+v"(sum[0]) : "v"(w0), "v"(four));
        __asm__("vpdpbusd %2, %1, %0" : "+v"(sum[1]) : "v"(w1), "v"(four));
    }
}

// What the offset of the codes adds to the sums by the end of each 16 inputs, as the float to subtract.
LW_INLINE void offset_sums(const weight_type type, const int32_t* prefix, float* to) {
    _Static_assert(PREFIXES == 8, "one vector of 256 bits holds the sums of a segment");
    __m256i sums = _mm256_setzero_si256();
    if (type.shift >= 0) sums = _mm256_slli_epi32(_mm256_loadu_si256((const __m256i*)prefix), (unsigned)type.shift);
    _mm256_store_ps(to, _mm256_castsi256_ps(_mm256_add_epi32(sums, _mm256_set1_epi32(LW_MAGIC_BITS))));
}

// As assembly, so that the broadcast costs no instruction.
LW_INLINE __m512 exact_float(__m512i sum, const float* offset_sum) {
    __m512 result;
    __asm__("vsubps %2%{1to16%}, %1, %0" : "=v"(result) : "v"(sum), "m"(*offset_sum));
    return result;
}

LW_INLINE __m512 scale_difference(const weight_type type, const weight_segment* w, size_t g, size_t scales, int v) {
    const __m512 next = g + 1 < scales ? type.scale(w, g + 1, v) : _mm512_setzero_ps();
    return _mm512_sub_ps(type.scale(w, g, v), next);
}

// Scales of a segment.
LW_INLINE int scales_of(const weight_type type) { return LW_SEGMENT / 4 / type.chunks; }

// The inputs of scale g. With `packed`, weights are decoded in registers on the way.
LW_INLINE void tile_group(const weight_type type, const int rows, const bool packed, const weight_segment* w,
                          const row_segment* x, __m512i sum[][VECTORS], __m512 seg[][VECTORS],
                          const float offsets[][PREFIXES], const int g) {
    const int scales = scales_of(type), end = (g + 1) * (PREFIXES / scales) - 1;
    const int fetches = rows == 1 ? 8 : 1;  // of 32 inputs
#pragma GCC unroll 32
    for (int chunk = 0; chunk < type.chunks; ++chunk) {
        // Without a division of (g * chunks + chunk), which would stay in the loop of one row.
        const int i = type.chunks < 8 ? g / 2 : g * (type.chunks / 8) + chunk / 8;
        const int c = type.chunks < 8 ? g % 2 * 4 + chunk : chunk % 8;
        // The instructions of a group fill the reorder buffer: left to the hardware, memory would wait for arithmetic
        // (measured: 12 to 48 % slower up to 8 rows).
        if (w->fetch.first != NULL && c < fetches)
            lw_fetch_part(w->fetch, (size_t)i, (size_t)c, (size_t)fetches, type.segment_bytes);
        const uint8_t* at = w->codes + (size_t)i * w->group_bytes + c * CHUNK_BYTES;  // decoded
        const __m512i w0 = packed ? type.codes(w, i, c, 0) : _mm512_load_si512(at);
        const __m512i w1 = packed ? type.codes(w, i, c, 1) : _mm512_load_si512(at + 64);
#pragma GCC unroll 8
        for (int r = 0; r < rows; ++r) dot4_row(sum[r], w0, w1, x->q + r * LW_SEGMENT + i * LW_GROUP + c * 4, r % 2);
    }
    const float* d = w->differences + g * LW_PANEL;
    const __m512 d0 = packed ? scale_difference(type, w, (size_t)g, (size_t)scales, 0) : _mm512_load_ps(d);
    const __m512 d1 = packed ? scale_difference(type, w, (size_t)g, (size_t)scales, 1) : _mm512_load_ps(d + 16);
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
        const __m512 p0 = exact_float(sum[r][0], &offsets[r][end]), p1 = exact_float(sum[r][1], &offsets[r][end]);
        // The first product is fma(p, d, 0) but for the sign of a zero, which the sum of segments loses.
        seg[r][0] = g == 0 ? _mm512_mul_ps(p0, d0) : _mm512_fmadd_ps(p0, d0, seg[r][0]);
        seg[r][1] = g == 0 ? _mm512_mul_ps(p1, d1) : _mm512_fmadd_ps(p1, d1, seg[r][1]);
    }
}

// One whole segment. Everything is unrolled, every second row broadcasts its activations within vpdpbusd, and what a
// group needs of offsets lies in memory: instructions are what a core short of decoding slots (a busy hyperthread
// beside it) has too few of.
LW_INLINE void tile(const weight_type type, const int rows, const bool packed, const weight_segment* w,
                    const row_segment* x) {
    _Alignas(64) float offsets[FEW_TILE_ROWS][PREFIXES];
    __m512i sum[FEW_TILE_ROWS][VECTORS];
    __m512 seg[FEW_TILE_ROWS][VECTORS];
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
        offset_sums(type, x->prefix + r * PREFIXES, offsets[r]);
        sum[r][0] = sum[r][1] = _mm512_set1_epi32(LW_MAGIC_BITS);
    }
    __asm__("" : "+m"(offsets));  // else they stay in registers, and each use shuffles
    const int scales = scales_of(type);
    if (rows == 1 && type.format.low == 0) {  // memory's pace
        tile_group(type, 1, packed, w, x, sum, seg, offsets, 0);
#pragma GCC unroll 1
        for (int g = 1; g < scales; ++g) tile_group(type, 1, packed, w, x, sum, seg, offsets, g);
    } else {
#pragma GCC unroll 8
        for (int g = 0; g < scales; ++g) tile_group(type, rows, packed, w, x, sum, seg, offsets, g);
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
        const __m512 scale = _mm512_set1_ps(x->scale[r]);
        float* to = x->results + r * LW_PANEL;
        _mm512_store_ps(to, _mm512_fmadd_ps(seg[r][0], scale, _mm512_load_ps(to)));
        _mm512_store_ps(to + 16, _mm512_fmadd_ps(seg[r][1], scale, _mm512_load_ps(to + 16)));
    }
}

LW_INLINE row_segment some_rows(const lw_activations* x, size_t segment, size_t row, float* results) {
    const size_t at = segment * x->rows + row;
    return (row_segment){.q = x->q + at * LW_SEGMENT,
                         .prefix = x->prefix + at * PREFIXES,
                         .scale = x->scale + at,
                         .results = results + row * LW_PANEL};
}

// Rows of the next tile. Coded types, which are many, have code for fewer sizes.
LW_INLINE size_t tile_rows(const weight_type type, const bool packed, const size_t most, size_t row, size_t rows) {
    const size_t left = rows - row;
    if (type.format.low == 0 || !packed) {
        const size_t tiles = (left + most - 1) / most;
        return (left + tiles - 1) / tiles;
    }
    return left >= 8 ? 8 : left >= 6 ? 6 : left == 5 ? 3 : left;
}

// All rows, in tiles whose sizes differ by at most one.
LW_INLINE void all_rows(const weight_type type, const bool packed, const size_t most, weight_segment* w,
                        const lw_activations* x, size_t segment, float* results) {
    const bool every_size = type.format.low == 0 || !packed;
    for (size_t row = 0, n; row < x->rows; row += n, w->fetch.first = NULL) {
        n = tile_rows(type, packed, most, row, x->rows);
        const row_segment rows = some_rows(x, segment, row, results);
        switch (n) {
            case 1:
                tile(type, 1, packed, w, &rows);
                break;
            case 2:
                tile(type, 2, packed, w, &rows);
                break;
            case 3:
                tile(type, 3, packed, w, &rows);
                break;
            case 4:
                tile(type, 4, packed, w, &rows);
                break;
            case 5:
                if (every_size) tile(type, 5, packed, w, &rows);
                break;
            case 6:
                tile(type, 6, packed, w, &rows);
                break;
            case 7:
                if (every_size) tile(type, 7, packed, w, &rows);
                break;
            default:
                if (packed && most > 7) tile(type, 8, packed, w, &rows);
                break;
        }
    }
}

LW_INLINE weight_panel open_panel(const weight_type type, const lw_matrix* w, size_t panel) {
    weight_panel wp = {.matrix = w->data, .data = w->data + panel * w->panel_bytes, .groups = w->groups};
    if (type.format.low == 0) return wp;
    const lw_coded_panel p = lw_coded_panel_of(type.format, w->cols);
    wp.supers = wp.data + p.supers;
    wp.selectors = wp.data + p.selectors;
    wp.data += p.segments;
    if (type.format.map != LW_MAP_OFFSET)
        wp.table =
            _mm512_xor_si512(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)w->table)), _mm512_set1_epi8(-128));
    return wp;
}

LW_INLINE weight_segment open_segment(const weight_type type, const weight_panel* p, size_t segment, const bool pages) {
    const size_t left = p->groups - segment * LW_SEGMENT_GROUPS;
    weight_segment ws = {.data = p->data + segment * type.segment_bytes,
                         .groups = left < LW_SEGMENT_GROUPS ? left : LW_SEGMENT_GROUPS};
    if (type.format.low != 0) {  // coded panels have whole segments
        ws.groups = LW_SEGMENT_GROUPS;
        ws.supers = p->supers + (type.format.super == LW_SUPER_BLOCK ? segment / 2 * LW_PANEL * 2 : 0);
        ws.selectors = p->selectors + segment * LW_PANEL;
        ws.table = p->table;
    }
    ws.fetch = lw_fetch_of(pages, p->matrix, ws.data, type.segment_bytes);
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

// Codes of a segment plus `more`, [chunk][vector][64]. With `fetch` weights to come are asked for. Groups that a last,
// shorter segment lacks have scale 0; their codes meet activations that are 0.
LW_INLINE void decode_codes(const weight_type type, const weight_segment* w, const int more, const bool fetch,
                            uint8_t* to) {
    if (type.format.low != 0) {  // whole segments, whose groups differ in where their bits are
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

LW_INLINE void decode_differences(const weight_type type, const weight_segment* w, float* to) {
    const size_t scales = w->groups * 8 / (size_t)type.chunks;
    for (size_t g = 0; g < scales; ++g)
#pragma GCC unroll 2
        for (int v = 0; v < VECTORS; ++v)
            _mm512_store_ps(to + g * LW_PANEL + v * 16, scale_difference(type, w, g, scales, v));
    memset(to + scales * LW_PANEL, 0, (PREFIXES - scales) * LW_PANEL * sizeof(float));
}

// Codes and scales of a segment to scratch that stays in the first-level cache while all rows use it.
LW_INLINE void decode(const weight_type type, weight_segment* w, tile_scratch* s) {
    const bool in_place = type.plain && w->groups == LW_SEGMENT_GROUPS;
    w->codes = in_place ? w->data : s->codes;
    w->group_bytes = in_place ? type.segment_bytes / LW_SEGMENT_GROUPS : 8 * CHUNK_BYTES;
    w->differences = s->differences;
    // Coded types become code + 128, whatever their own offset, as Q8_0 has them.
    const bool coded = type.format.low != 0;
    if (!in_place) decode_codes(type, w, coded ? 128 - offset_of(type) : 0, coded, s->codes);
    decode_differences(type, w, s->differences);
}

LW_INLINE void finish(const weight_type type, const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out,
                      tile_scratch* s) {
    if (type.format.minimum != LW_MINIMUM_NONE) lw_subtract_minimums(type.format, w, x, panel, s->results, s->minimums);
    lw_store_panel(w, panel, x->rows, s->results, out);
}

// What most coded types share once they are decoded (matmul_decoded__avx512vnni.c): all rows of one segment.
void lw_decoded_rows_16__avx512vnni(const weight_segment* w, const lw_activations* x, size_t segment, float* results);
void lw_decoded_rows_32__avx512vnni(const weight_segment* w, const lw_activations* x, size_t segment, float* results);
void lw_decoded_rows_64__avx512vnni(const weight_segment* w, const lw_activations* x, size_t segment, float* results);
void lw_decoded_rows_128__avx512vnni(const weight_segment* w, const lw_activations* x, size_t segment, float* results);

LW_INLINE void gemm_segment(const weight_type type, const weight_panel* p, const lw_activations* x, size_t segment,
                            tile_scratch* s) {
    weight_segment ws = open_segment(type, p, segment, lw_cpu_reads_pages);
    if (type.format.low != 0) {
        if (x->rows <= FEW_ROWS) {
            if (type.second) ws.fetch.first = NULL;
            all_rows(type, true, FEW_TILE_ROWS, &ws, x, segment, s->results);
            return;
        }
        decode(type, &ws, s);
        if (type.chunks == 4)
            lw_decoded_rows_16__avx512vnni(&ws, x, segment, s->results);
        else if (type.chunks == 8)
            lw_decoded_rows_32__avx512vnni(&ws, x, segment, s->results);
        else if (type.chunks == 16)
            lw_decoded_rows_64__avx512vnni(&ws, x, segment, s->results);
        else
            lw_decoded_rows_128__avx512vnni(&ws, x, segment, s->results);
    } else if (x->rows <= FEW_ROWS && ws.groups == LW_SEGMENT_GROUPS) {
        all_rows(type, true, FEW_TILE_ROWS, &ws, x, segment, s->results);
    } else {
        decode(type, &ws, s);
        all_rows(type, false, TILE_ROWS, &ws, x, segment, s->results);
    }
}

LW_INLINE void gemm(const weight_type type, const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out,
                    tile_scratch* s) {
    memset(s->results, 0, x->rows * LW_PANEL * sizeof(float));
    const weight_panel wp = open_panel(type, w, panel);
    for (size_t segment = 0; segment < x->segments; ++segment) gemm_segment(type, &wp, x, segment, s);
    finish(type, w, x, panel, out, s);
}

// Types with two passes (lw_passes).
LW_INLINE void gemm_twice(const weight_type first, const weight_type second, const lw_matrix* w,
                          const lw_activations* x, size_t panel, lw_output out, tile_scratch* s) {
    memset(s->results, 0, x->rows * LW_PANEL * sizeof(float));
    const weight_panel wp = open_panel(first, w, panel);
    for (size_t segment = 0; segment < x->segments; ++segment) {
        gemm_segment(first, &wp, x, segment, s);
        gemm_segment(second, &wp, x, segment, s);
    }
    finish(first, w, x, panel, out, s);
}

// One row. Memory is the limit: there is code for either order of asking for weights.
LW_INLINE void gemv_segment(const weight_type type, const weight_panel* p, const lw_activations* x, size_t segment,
                            const bool pages, tile_scratch* s) {
    weight_segment ws = open_segment(type, p, segment, pages);
    if (type.second) ws.fetch.first = NULL;
    const row_segment row = some_rows(x, segment, 0, s->results);
    if (ws.groups == LW_SEGMENT_GROUPS) {
        tile(type, 1, true, &ws, &row);
    } else {
        decode(type, &ws, s);
        tile(type, 1, false, &ws, &row);
    }
}

LW_INLINE void gemv(const weight_type type, const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out,
                    tile_scratch* s) {
    memset(s->results, 0, LW_PANEL * sizeof(float));
    const weight_panel wp = open_panel(type, w, panel);
    if (lw_cpu_reads_pages)
        for (size_t segment = 0; segment < x->segments; ++segment) gemv_segment(type, &wp, x, segment, true, s);
    else
        for (size_t segment = 0; segment < x->segments; ++segment) gemv_segment(type, &wp, x, segment, false, s);
    finish(type, w, x, panel, out, s);
}

LW_INLINE void gemv_passes(const weight_type first, const weight_type second, const weight_panel* p,
                           const lw_activations* x, const bool pages, tile_scratch* s) {
    for (size_t segment = 0; segment < x->segments; ++segment) {
        gemv_segment(first, p, x, segment, pages, s);
        gemv_segment(second, p, x, segment, pages, s);
    }
}

LW_INLINE void gemv_twice(const weight_type first, const weight_type second, const lw_matrix* w,
                          const lw_activations* x, size_t panel, lw_output out, tile_scratch* s) {
    memset(s->results, 0, LW_PANEL * sizeof(float));
    const weight_panel wp = open_panel(first, w, panel);
    if (lw_cpu_reads_pages)
        gemv_passes(first, second, &wp, x, true, s);
    else
        gemv_passes(first, second, &wp, x, false, s);
    finish(first, w, x, panel, out, s);
}

#endif
