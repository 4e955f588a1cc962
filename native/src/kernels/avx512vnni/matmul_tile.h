// The bodies of all quantized products on AVX-512-VNNI. A tile is up to 6 rows times one panel of 32 outputs.
//
// A 64-byte vector of weights is 16 outputs times 4 consecutive inputs, so vpdpbusd against 4 broadcast activation
// bytes leaves every lane one output. Weights are unsigned (code + offset); what the offset adds, offset * A with A
// the sum of the activations so far, is taken off exactly when a group ends. Integer sums start at LW_MAGIC_BITS and
// run through the segment, so one subtraction converts them too:
//     (float)P = as_float(LW_MAGIC_BITS + P + offset * A) - as_float(LW_MAGIC_BITS + offset * A)
// as long as both stay below 2^22. Q8_0 (offset 128) may not, and converts first: (float)(P + 128 * A), below 2^24.
#ifndef LW_KERNELS_AVX512VNNI_MATMUL_TILE_H
#define LW_KERNELS_AVX512VNNI_MATMUL_TILE_H

#include <immintrin.h>
#include <string.h>

#include "kernels/layout.h"

#define LW_INLINE static inline __attribute__((always_inline))

enum {
    TILE_ROWS = 6,  // 12 chains of vpdpbusd (latency 5, two a cycle) and 12 float sums; 7 rows spill
    PREFIXES = LW_SEGMENT / 16,  // activation sums per row and segment
    VECTORS = LW_PANEL / 16,  // of one input chunk, or one scale, of a panel
    CHUNK_BYTES = LW_PANEL * 4,
};

// What differs between weight types. Every use is a compile-time constant.
typedef struct weight_type {
    int chunks;  // of 4 inputs that share a scale
    int shift;  // log2 of the offset of the unsigned codes
    bool wide;  // sums exceed 2^22
    bool plain;  // codes lie in memory as the tile needs them
    size_t group_bytes;  // 32 inputs
    size_t segment_bytes;
    // Codes of chunk c (0..7) of the 32 inputs at `group`, and scale g of the segment at `segment`.
    __m512i (*codes)(const uint8_t* group, int c, int vector);
    __m512 (*scale)(const uint8_t* segment, size_t g, int vector);
} weight_type;

// One segment of a panel as the tile reads it.
typedef struct weight_segment {
    const uint8_t* codes;  // 32 inputs at codes + i * group_bytes: [chunk][vector][64]
    size_t group_bytes;
    const float* differences;  // [scale][32]: s[g] - s[g + 1]
    size_t scales;
} weight_segment;

// The same segment of some activation rows.
typedef struct row_segment {
    const int8_t* q;
    const int32_t* prefix;
    const float* scale;
    float* results;  // [row][32]
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

LW_INLINE __m512 load_halves(const uint8_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p));
}

// sum += weights * activations. As assembly, because the compiler otherwise copies and spills the sums.
LW_INLINE void dot4(__m512i* sum, __m512i weights, __m512i activations) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(*sum) : "v"(weights), "v"(activations));
}

LW_INLINE __m512i first_sum(const weight_type type) {
    return _mm512_set1_epi32(type.wide ? 0 : LW_MAGIC_BITS);
}

// What the offset of the codes adds to the sums by the end of each 16 inputs, as the float to subtract.
LW_INLINE void offset_sums(const weight_type type, const int32_t* prefix, float* to) {
    _Static_assert(PREFIXES == 8, "one vector of 256 bits holds the sums of a segment");
    const __m256i sums = _mm256_slli_epi32(_mm256_loadu_si256((const __m256i*)prefix), type.shift);
    const __m256i first = _mm256_set1_epi32(type.wide ? 0 : LW_MAGIC_BITS);
    _mm256_store_ps(to, type.wide ? _mm256_cvtepi32_ps(sums) : _mm256_castsi256_ps(_mm256_add_epi32(sums, first)));
}

LW_INLINE __m512 exact_float(const weight_type type, __m512i sum, float offset_sum) {
    const __m512 biased = type.wide ? _mm512_cvtepi32_ps(sum) : _mm512_castsi512_ps(sum);
    return _mm512_sub_ps(biased, _mm512_set1_ps(offset_sum));
}

LW_INLINE __m512 scale_difference(const weight_type type, const uint8_t* segment, size_t g, size_t scales,
                                  int v) {
    const __m512 next = g + 1 < scales ? type.scale(segment, g + 1, v) : _mm512_setzero_ps();
    return _mm512_sub_ps(type.scale(segment, g, v), next);
}

LW_INLINE void tile(const weight_type type, const int rows, const weight_segment* w, const row_segment* x,
                    size_t stride, size_t segments) {
    _Alignas(64) float offsets[TILE_ROWS][PREFIXES];
    __m512i sum[TILE_ROWS][VECTORS];
    __m512 seg[TILE_ROWS][VECTORS];
#pragma GCC unroll 6
    for (int r = 0; r < rows; ++r) {
        offset_sums(type, x->prefix + (size_t)r * (stride / 16), offsets[r]);
        sum[r][0] = sum[r][1] = first_sum(type);
        seg[r][0] = seg[r][1] = _mm512_setzero_ps();
    }
    const int8_t* q = x->q;
    const uint8_t* codes = w->codes;
    const float* differences = w->differences;
    const float* offset = &offsets[0][type.chunks / 4 - 1];
    for (size_t g = 0; g < w->scales; ++g) {
#pragma GCC unroll 8
        for (int c = 0; c < type.chunks; ++c) {
            const __m512i w0 = _mm512_load_si512(codes + c * CHUNK_BYTES);
            const __m512i w1 = _mm512_load_si512(codes + c * CHUNK_BYTES + 64);
#pragma GCC unroll 6
            for (int r = 0; r < rows; ++r) {
                const __m512i a = broadcast4(q + (size_t)r * stride + c * 4);
                dot4(&sum[r][0], w0, a);
                dot4(&sum[r][1], w1, a);
            }
        }
        const __m512 d0 = _mm512_load_ps(differences), d1 = _mm512_load_ps(differences + 16);
#pragma GCC unroll 6
        for (int r = 0; r < rows; ++r) {
            seg[r][0] = _mm512_fmadd_ps(exact_float(type, sum[r][0], offset[r * PREFIXES]), d0, seg[r][0]);
            seg[r][1] = _mm512_fmadd_ps(exact_float(type, sum[r][1], offset[r * PREFIXES]), d1, seg[r][1]);
        }
        codes += type.chunks == 8 ? w->group_bytes : (size_t)type.chunks * CHUNK_BYTES;
        q += type.chunks * 4;
        differences += LW_PANEL;
        offset += type.chunks / 4;
    }
#pragma GCC unroll 6
    for (int r = 0; r < rows; ++r) {
        const __m512 scale = _mm512_set1_ps(x->scale[(size_t)r * segments]);
        float* to = x->results + r * LW_PANEL;
        _mm512_store_ps(to, _mm512_fmadd_ps(seg[r][0], scale, _mm512_load_ps(to)));
        _mm512_store_ps(to + 16, _mm512_fmadd_ps(seg[r][1], scale, _mm512_load_ps(to + 16)));
    }
}

// All rows, in as few tiles as hold them, of sizes that differ by at most one.
LW_INLINE void all_rows(const weight_type type, const weight_segment* w, const lw_activations* x,
                        size_t segment, float* results) {
    const size_t tiles = (x->rows + TILE_ROWS - 1) / TILE_ROWS;
    for (size_t t = 0, row = 0, end; t < tiles; ++t, row = end) {
        end = x->rows * (t + 1) / tiles;
        const size_t k = row * x->stride + segment * LW_SEGMENT;
        const row_segment rows = {.q = x->q + k,
                                  .prefix = x->prefix + k / 16,
                                  .scale = x->scale + row * x->segments + segment,
                                  .results = results + row * LW_PANEL};
        switch (end - row) {
            case 1:
                tile(type, 1, w, &rows, x->stride, x->segments);
                break;
            case 2:
                tile(type, 2, w, &rows, x->stride, x->segments);
                break;
            case 3:
                tile(type, 3, w, &rows, x->stride, x->segments);
                break;
            case 4:
                tile(type, 4, w, &rows, x->stride, x->segments);
                break;
            case 5:
                tile(type, 5, w, &rows, x->stride, x->segments);
                break;
            default:
                tile(type, 6, w, &rows, x->stride, x->segments);
                break;
        }
    }
}

LW_INLINE size_t segment_groups(const lw_matrix* w, size_t segment) {
    const size_t left = w->groups - segment * LW_SEGMENT_GROUPS;
    return left < LW_SEGMENT_GROUPS ? left : LW_SEGMENT_GROUPS;
}

// Two and more rows: a segment's codes and scales are decoded once, to the first-level cache, for all of them.
LW_INLINE void gemm(const weight_type type, const lw_matrix* w, const lw_activations* x, size_t panel,
                    lw_output out, tile_scratch* s) {
    const uint8_t* data = w->data + panel * w->panel_bytes;
    memset(s->results, 0, x->rows * LW_PANEL * sizeof(float));
    for (size_t segment = 0; segment < x->segments; ++segment, data += type.segment_bytes) {
        const size_t groups = segment_groups(w, segment), scales = groups * (8 / (size_t)type.chunks);
        for (size_t g = 0; g < (type.plain ? 0 : groups); ++g)
#pragma GCC unroll 8
            for (int c = 0; c < 8; ++c)
#pragma GCC unroll 2
                for (int v = 0; v < VECTORS; ++v)
                    _mm512_store_si512(s->codes + (g * 8 + (size_t)c) * CHUNK_BYTES + v * 64,
                                       type.codes(data + g * type.group_bytes, c, v));
        for (size_t g = 0; g < scales; ++g)
#pragma GCC unroll 2
            for (int v = 0; v < VECTORS; ++v)
                _mm512_store_ps(s->differences + g * LW_PANEL + v * 16,
                                scale_difference(type, data, g, scales, v));
        const weight_segment ws = {.codes = type.plain ? data : s->codes,
                                   .group_bytes = type.plain ? type.group_bytes : 8 * CHUNK_BYTES,
                                   .differences = s->differences,
                                   .scales = scales};
        all_rows(type, &ws, x, segment, s->results);
    }
    lw_store_panel(w, panel, x->rows, s->results, out);
}

// One row: the weights are read once, so they are decoded in registers. Memory is the limit.
LW_INLINE void gemv(const weight_type type, const lw_matrix* w, const lw_activations* x, size_t panel,
                    lw_output out) {
    _Alignas(64) float offsets[PREFIXES], results[LW_PANEL];
    const uint8_t* data = w->data + panel * w->panel_bytes;
    const int8_t* q = x->q;
    __m512 acc[VECTORS] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    for (size_t segment = 0; segment < x->segments; ++segment, data += type.segment_bytes) {
        const size_t groups = segment_groups(w, segment), scales = groups * (8 / (size_t)type.chunks);
        offset_sums(type, x->prefix + segment * PREFIXES, offsets);
        __m512i sum[VECTORS] = {first_sum(type), first_sum(type)};
        __m512 seg[VECTORS] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
        for (size_t g = 0; g < groups; ++g, q += LW_GROUP) {
#pragma GCC unroll 8
            for (int c = 0; c < 8; ++c) {
                const __m512i a = broadcast4(q + c * 4);
                dot4(&sum[0], type.codes(data + g * type.group_bytes, c, 0), a);
                dot4(&sum[1], type.codes(data + g * type.group_bytes, c, 1), a);
                if ((c + 1) % type.chunks) continue;
                const size_t i = (g * 8 + (size_t)c) / (size_t)type.chunks;
#pragma GCC unroll 2
                for (int v = 0; v < VECTORS; ++v)
                    seg[v] = _mm512_fmadd_ps(exact_float(type, sum[v], offsets[g * 2 + (size_t)c / 4]),
                                             scale_difference(type, data, i, scales, v), seg[v]);
            }
        }
        const __m512 scale = _mm512_set1_ps(x->scale[segment]);
#pragma GCC unroll 2
        for (int v = 0; v < VECTORS; ++v) acc[v] = _mm512_fmadd_ps(seg[v], scale, acc[v]);
    }
    _mm512_store_ps(results, acc[0]);
    _mm512_store_ps(results + 16, acc[1]);
    lw_store_panel(w, panel, 1, results, out);
}

#endif
