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

#include "kernels/layout.h"

#define LW_INLINE static inline __attribute__((always_inline))

enum {
    FEW_ROWS = 16,               // up to here tiles decode the weights themselves
    TILE_ROWS = 8,               // most rows of a tile
    BEST_ROWS = 6,               // 12 chains of vpdpbusd (latency 5, two a cycle); more rows spill float sums
    PREFIXES = LW_SEGMENT / 16,  // activation sums per row and segment
    VECTORS = LW_PANEL / 16,     // of one input chunk, or one scale, of a panel
    CHUNK_BYTES = LW_PANEL * 4,
};

// What differs between weight types. Every use is a compile-time constant.
typedef struct weight_type {
    int chunks;          // of 4 inputs that share a scale
    int shift;           // log2 of the offset of the unsigned codes
    bool plain;          // codes lie in memory as the tile needs them
    size_t group_bytes;  // 32 inputs
    size_t segment_bytes;
    // Codes of chunk c (0..7) of the 32 inputs at `group`, and scale g of the segment at `segment`.
    __m512i (*codes)(const uint8_t* group, int c, int vector);
    __m512 (*scale)(const uint8_t* segment, size_t g, int vector);
} weight_type;

// One segment of a panel: as packed, and decoded when more than one tile of rows needs it.
typedef struct weight_segment {
    const uint8_t* data;
    const uint8_t* codes;  // 32 inputs at codes + i * group_bytes: [chunk][vector][64]
    size_t group_bytes;
    const float* differences;  // [scale][32]: s[g] - s[g + 1]
    size_t groups;             // of 32 inputs
    const uint8_t* fetch;      // the segment to come, or NULL when it is on its way already
} weight_segment;

// The same segment of some activation rows.
typedef struct row_segment {
    const int8_t* q;
    const int32_t* prefix;
    const float* scale;
    size_t stride, segments;
    float* results;      // [row][32]
    const int8_t* next;  // q of the rows after these
} row_segment;

typedef struct tile_scratch {
    uint8_t codes[LW_SEGMENT * LW_PANEL];
    float differences[PREFIXES * LW_PANEL];
    float results[];  // [rows][32]
} tile_scratch;

LW_INLINE __m512i broadcast4(const int8_t* q) {
    int32_t four;
    memcpy(&four, q, sizeof four);
    return _mm512_set1_epi32(four);
}

LW_INLINE __m512 load_halves(const uint8_t* p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p)); }

// sum += weights * activations. As assembly, because the compiler otherwise copies and spills the sums.
LW_INLINE void dot4(__m512i* sum, __m512i weights, __m512i activations) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(*sum) : "v"(weights), "v"(activations));
}

// What the offset of the codes adds to the sums by the end of each 16 inputs, as the float to subtract.
LW_INLINE void offset_sums(const weight_type type, const int32_t* prefix, float* to) {
    _Static_assert(PREFIXES == 8, "one vector of 256 bits holds the sums of a segment");
    const __m256i sums = _mm256_slli_epi32(_mm256_loadu_si256((const __m256i*)prefix), type.shift);
    _mm256_store_ps(to, _mm256_castsi256_ps(_mm256_add_epi32(sums, _mm256_set1_epi32(LW_MAGIC_BITS))));
}

LW_INLINE __m512 exact_float(__m512i sum, float offset_sum) {
    return _mm512_sub_ps(_mm512_castsi512_ps(sum), _mm512_set1_ps(offset_sum));
}

LW_INLINE __m512 scale_difference(const weight_type type, const uint8_t* segment, size_t g, size_t scales, int v) {
    const __m512 next = g + 1 < scales ? type.scale(segment, g + 1, v) : _mm512_setzero_ps();
    return _mm512_sub_ps(type.scale(segment, g, v), next);
}

// Weights of the next segment. The instructions of a group fill the reorder buffer: left to the hardware, memory would
// wait for arithmetic (measured: 12 to 48 % slower up to 8 rows).
LW_INLINE void fetch_group(const weight_type type, const uint8_t* group) {
#pragma GCC unroll 20
    for (size_t at = 0; at < type.group_bytes; at += 64) _mm_prefetch(group + at, _MM_HINT_T0);
}

// With `packed`, weights are decoded in registers on the way.
LW_INLINE void tile(const weight_type type, const int rows, const bool packed, const weight_segment* w,
                    const row_segment* x) {
    _Alignas(64) float offsets[TILE_ROWS][PREFIXES];
    __m512i sum[TILE_ROWS][VECTORS];
    __m512 seg[TILE_ROWS][VECTORS];
    const size_t stride = x->stride, parts = 8 / (size_t)type.chunks, scales = w->groups * parts;
    const int fetched = packed ? 0 : rows;
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
        offset_sums(type, x->prefix + (size_t)r * (stride / 16), offsets[r]);
        sum[r][0] = sum[r][1] = _mm512_set1_epi32(LW_MAGIC_BITS);
        seg[r][0] = seg[r][1] = _mm512_setzero_ps();
    }
    const int8_t* q = x->q;
    const uint8_t* group = packed ? w->data : w->codes;
    for (size_t i = 0; i < w->groups; ++i, q += LW_GROUP, group += packed ? type.group_bytes : w->group_bytes) {
        // Of the rows to come, every second one, and one of its 2 cache lines, in turn.
#pragma GCC unroll 4
        for (int r = 0; r < fetched; r += 2)
            _mm_prefetch(x->next + ((size_t)r + i % 2) * stride + i / 2 * 64, _MM_HINT_T0);
        if (w->fetch != NULL) fetch_group(type, w->fetch + i * type.group_bytes);
#pragma GCC unroll 2
        for (size_t part = 0; part < parts; ++part) {
#pragma GCC unroll 8
            for (int c = (int)part * type.chunks; c < (int)(part + 1) * type.chunks; ++c) {
                const uint8_t* at = group + c * CHUNK_BYTES;
                const __m512i w0 = packed ? type.codes(group, c, 0) : _mm512_load_si512(at);
                const __m512i w1 = packed ? type.codes(group, c, 1) : _mm512_load_si512(at + 64);
#pragma GCC unroll 8
                for (int r = 0; r < rows; ++r) {
                    const __m512i a = broadcast4(q + (size_t)r * stride + c * 4);
                    dot4(&sum[r][0], w0, a);
                    dot4(&sum[r][1], w1, a);
                }
            }
            const size_t g = i * parts + part;
            const float *offset = &offsets[0][2 * i + (part + 1) * 2 / parts - 1], *d = w->differences + g * LW_PANEL;
            const __m512 d0 = packed ? scale_difference(type, w->data, g, scales, 0) : _mm512_load_ps(d);
            const __m512 d1 = packed ? scale_difference(type, w->data, g, scales, 1) : _mm512_load_ps(d + 16);
#pragma GCC unroll 8
            for (int r = 0; r < rows; ++r) {
                seg[r][0] = _mm512_fmadd_ps(exact_float(sum[r][0], offset[r * PREFIXES]), d0, seg[r][0]);
                seg[r][1] = _mm512_fmadd_ps(exact_float(sum[r][1], offset[r * PREFIXES]), d1, seg[r][1]);
            }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
        const __m512 scale = _mm512_set1_ps(x->scale[(size_t)r * x->segments]);
        float* to = x->results + r * LW_PANEL;
        _mm512_store_ps(to, _mm512_fmadd_ps(seg[r][0], scale, _mm512_load_ps(to)));
        _mm512_store_ps(to + 16, _mm512_fmadd_ps(seg[r][1], scale, _mm512_load_ps(to + 16)));
    }
}

LW_INLINE row_segment some_rows(const lw_activations* x, size_t segment, size_t row, size_t next, float* results) {
    const size_t k = row * x->stride + segment * LW_SEGMENT;
    return (row_segment){
        .q = x->q + k,
        .prefix = x->prefix + k / 16,
        .scale = x->scale + row * x->segments + segment,
        .stride = x->stride,
        .segments = x->segments,
        .results = results + row * LW_PANEL,
        .next = next < x->rows ? x->q + k + (next - row) * x->stride : x->q + (segment + 1) * LW_SEGMENT};
}

// One tile or two hold all rows; both decode.
LW_INLINE void few_rows(const weight_type type, weight_segment* w, const lw_activations* x, size_t segment,
                        float* results) {
    const size_t tiles = (x->rows + TILE_ROWS - 1) / TILE_ROWS;
    for (size_t t = 0, row = 0, end; t < tiles; ++t, row = end, w->fetch = NULL) {
        end = x->rows * (t + 1) / tiles;
        const row_segment rows = some_rows(x, segment, row, end, results);
        switch (end - row) {
            case 2:
                tile(type, 2, true, w, &rows);
                break;
            case 3:
                tile(type, 3, true, w, &rows);
                break;
            case 4:
                tile(type, 4, true, w, &rows);
                break;
            case 5:
                tile(type, 5, true, w, &rows);
                break;
            case 6:
                tile(type, 6, true, w, &rows);
                break;
            case 7:
                tile(type, 7, true, w, &rows);
                break;
            default:
                tile(type, 8, true, w, &rows);
                break;
        }
    }
}

// More rows than that, in tiles whose sizes differ by at most one.
LW_INLINE void many_rows(const weight_type type, weight_segment* w, const lw_activations* x, size_t segment,
                         float* results) {
    const size_t tiles = (x->rows + BEST_ROWS - 1) / BEST_ROWS;
    for (size_t t = 0, row = 0, end; t < tiles; ++t, row = end, w->fetch = NULL) {
        end = x->rows * (t + 1) / tiles;
        const row_segment rows = some_rows(x, segment, row, end, results);
        switch (end - row) {  // 13 rows and more leave no tile under 4
            case 4:
                tile(type, 4, false, w, &rows);
                break;
            case 5:
                tile(type, 5, false, w, &rows);
                break;
            default:
                tile(type, 6, false, w, &rows);
                break;
        }
    }
}

LW_INLINE weight_segment open_segment(const weight_type type, const lw_matrix* w, size_t panel, size_t segment) {
    const size_t left = w->groups - segment * LW_SEGMENT_GROUPS;
    const uint8_t* data = w->data + panel * w->panel_bytes + segment * type.segment_bytes;
    return (weight_segment){.data = data,
                            .fetch = data + type.segment_bytes,
                            .groups = left < LW_SEGMENT_GROUPS ? left : LW_SEGMENT_GROUPS};
}

// Codes and scales of a segment to scratch that stays in the first-level cache while all rows use it.
LW_INLINE void decode(const weight_type type, weight_segment* w, tile_scratch* s) {
    const size_t scales = w->groups * (8 / (size_t)type.chunks);
    w->codes = type.plain ? w->data : s->codes;
    w->group_bytes = type.plain ? type.group_bytes : 8 * CHUNK_BYTES;
    w->differences = s->differences;
    for (size_t g = 0; g < (type.plain ? 0 : w->groups); ++g)
#pragma GCC unroll 8
        for (int c = 0; c < 8; ++c)
#pragma GCC unroll 2
            for (int v = 0; v < VECTORS; ++v)
                _mm512_store_si512(s->codes + (g * 8 + (size_t)c) * CHUNK_BYTES + v * 64,
                                   type.codes(w->data + g * type.group_bytes, c, v));
    for (size_t g = 0; g < scales; ++g)
#pragma GCC unroll 2
        for (int v = 0; v < VECTORS; ++v)
            _mm512_store_ps(s->differences + g * LW_PANEL + v * 16, scale_difference(type, w->data, g, scales, v));
}

LW_INLINE void gemm(const weight_type type, const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out,
                    tile_scratch* s) {
    memset(s->results, 0, x->rows * LW_PANEL * sizeof(float));
    for (size_t segment = 0; segment < x->segments; ++segment) {
        weight_segment ws = open_segment(type, w, panel, segment);
        if (x->rows <= FEW_ROWS) {
            few_rows(type, &ws, x, segment, s->results);
        } else {
            decode(type, &ws, s);
            many_rows(type, &ws, x, segment, s->results);
        }
    }
    lw_store_panel(w, panel, x->rows, s->results, out);
}

// One row. Memory is the limit.
LW_INLINE void gemv(const weight_type type, const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out) {
    _Alignas(64) float results[LW_PANEL] = {0};
    for (size_t segment = 0; segment < x->segments; ++segment) {
        const weight_segment ws = open_segment(type, w, panel, segment);
        const row_segment row = some_rows(x, segment, 0, 1, results);
        tile(type, 1, true, &ws, &row);
    }
    lw_store_panel(w, panel, 1, results, out);
}

#endif
