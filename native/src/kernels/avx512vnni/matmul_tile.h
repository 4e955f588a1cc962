// The inner loop of all quantized products on AVX-512-VNNI. A tile is up to 8 rows times one panel of 32 outputs.
//
// A 64-byte vector of weights is 16 outputs times 4 consecutive inputs, so vpdpbusd with 4 broadcast activation bytes
// leaves one output in every lane. Weights are unsigned (code + offset). The offset adds offset * A to a step's sum,
// where A is the sum of the step's activations. It is taken off exactly: integer sums start at LW_MAGIC_BITS - offset *
// A. All sums stay below 2^22: the worst case is 32 * 255 * 127 + 128 * 32 * 127 for Q8_0 (offset 128).
#ifndef LW_KERNELS_AVX512VNNI_MATMUL_TILE_H
#define LW_KERNELS_AVX512VNNI_MATMUL_TILE_H

#include <immintrin.h>

#include "kernels/fetch.h"
#include "kernels/lanes.h"
#include "kernels/step_starts_x86.h"

enum {
    FEW_ROWS = 16,            // up to so many rows tiles decode the weights in registers (coded_rows: or more)
    FEW_TILE_ROWS = 8,        // maximum rows of such a tile: decoding half as often is worth float sums in memory
    PACKED_TILE_ROWS = 6,     // maximum rows that leave registers for decoding beside all sums
    TILE_ROWS = 7,            // maximum rows of other tiles: 14 integer and 14 float sums leave 4 of 32 registers
    VECTORS = LW_PANEL / 16,  // vectors of one input chunk, or of one scale, of a panel
    CHUNK_BYTES = LW_PANEL * 4,
};

// One segment of a panel: packed, and decoded when more than one tile of rows needs it.
typedef struct weight_segment {
    const uint8_t* data;
    const uint8_t* codes;  // 32 inputs at codes + i * group_bytes: [chunk][vector][64]
    size_t group_bytes;
    const float* scales;  // [step][2][32]: s, -LW_MAGIC * s
    size_t groups;        // number of groups of 32 inputs
    lw_fetch fetch;
    const uint8_t *supers, *selectors;  // coded types only
    __m512i table;                      // coded types only
} weight_segment;

// The properties of a weight type. Every use is a compile-time constant.
typedef struct weight_type {
    int chunks;   // number of chunks of 4 inputs that share a scale: 4, 8, 16 or 32
    int shift;    // log2 of the offset of the unsigned codes, -1 = none
    bool plain;   // packed codes need no decoding
    bool second;  // second of two passes: the first pass has prefetched already
    size_t segment_bytes;
    lw_format format;  // coded types only, else zero
    // Return the codes of chunk c (0..7) of group `group` of a segment, and scale number g of the segment.
    __m512i (*codes)(const struct weight_segment* w, int group, int c, int vector);
    __m512 (*scale)(const struct weight_segment* w, size_t g, int vector);
} weight_type;

// One segment of some activation rows.
typedef struct row_segment {
    const int8_t* q;        // [row][LW_SEGMENT]
    const int32_t* totals;  // [row][STEPS]
    const float* scale;     // [row][LW_SEGMENT_GROUPS]
    float* results;         // [row][32]
} row_segment;

LW_INLINE __m512 load_halves(const uint8_t* p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p)); }

typedef int32_t __attribute__((may_alias)) four_codes;

// sum[v] += weights * 4 activations. As assembly, because the compiler otherwise copies and spills the sums. The
// broadcast is one load for both vectors, or with `embedded` two loads that cost no instruction. Using each for half of
// the rows suits load ports and decoders.
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

// Steps of a segment. A step has 16 inputs if 16 inputs share a weight scale, otherwise the 32 that share an activation
// scale.
LW_INLINE int steps_of(const weight_type type) { return type.chunks == 4 ? STEPS : LW_SEGMENT_GROUPS; }
LW_INLINE int step_chunks(const weight_type type) { return type.chunks == 4 ? 4 : 8; }

LW_INLINE __m512 step_scale(const weight_type type, const weight_segment* w, size_t step, int v) {
    return type.scale(w, type.chunks <= 8 ? step : step * 8 / (size_t)type.chunks, v);
}

LW_INLINE __m512 magic_times(__m512 scale) { return _mm512_mul_ps(scale, _mm512_set1_ps(-LW_MAGIC)); }

// True if tiles of `rows` rows read a coded type's scales from memory even where they decode codes in registers.
// Several tiles then share the scales, and from five rows on registers are scarce.
LW_INLINE bool scales_first(const weight_type type, const size_t rows) {
    return type.format.low != 0 && rows >= (type.chunks > 8 ? 5 : 4);
}

// One step. With `packed` weights are decoded in registers.
LW_INLINE void tile_step(const weight_type type, const int rows, const bool packed, const weight_segment* w,
                         const row_segment* x, __m512 acc[][VECTORS], const int32_t starts[][STEPS], const int g) {
    const int chunks = step_chunks(type), per_group = steps_of(type) / LW_SEGMENT_GROUPS;
    __m512i sum[FEW_TILE_ROWS][VECTORS];
    // The number of parts in which 32 inputs prefetch. (Zen 5: a part with each chunk is 6 % faster than all at once,
    // but 5 % slower if 16 inputs share a scale.)
    const int parts = rows == 1 && type.chunks >= 8 ? 8 : 1;
    // A branch for the compiler, which otherwise moves loads across a row's groups until registers are copied and
    // spilled. (Zen 4, one row: Q5_0 is 1.45 times as fast with it, Q3_K 1.35 times.)
    lw_fetch fetch = w->fetch;
    if (rows == 1 && type.format.low != 0 && type.format.map != LW_MAP_FLOAT) __asm__ volatile("" : "+r"(fetch.first));
    const int first = g * chunks / 8, begin = g * chunks % 8;  // group of 32 inputs, chunk in the group
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) sum[r][0] = sum[r][1] = _mm512_set1_epi32(starts[r][per_group == 2 ? g : 2 * g + 1]);
#pragma GCC unroll 32
    for (int chunk = begin; chunk < begin + chunks; ++chunk) {
        // (Zen 5, scales of 16 inputs: with this division in its loop a row is 10 % faster than without it or unrolled.
        // Loads then run less far ahead of the prefetches. Waiting for the prefetches has the same effect.)
        const bool divide = type.chunks < 8 && (rows > 1 || fetch.order != LW_FETCH_PACED);
        const int i = divide ? (first * 8 + chunk) / 8 : first + chunk / 8,
                  c = divide ? (first * 8 + chunk) % 8 : chunk % 8;
        // The instructions of a group fill the reorder buffer. Without prefetches memory would wait for arithmetic
        // (measured: 12 to 48 % slower up to 8 rows).
        if (fetch.first != NULL && c < parts)
            lw_fetch_part(fetch, (size_t)i, (size_t)c, (size_t)parts, type.segment_bytes);
        const uint8_t* at = w->codes + (size_t)i * w->group_bytes + c * CHUNK_BYTES;  // decoded
        const __m512i w0 = packed ? type.codes(w, i, c, 0) : _mm512_load_si512(at);
        const __m512i w1 = packed ? type.codes(w, i, c, 1) : _mm512_load_si512(at + 64);
#pragma GCC unroll 8
        for (int r = 0; r < rows; ++r) {
            // (Zen 4, six rows: 1.5 % faster with every broadcast embedded.)
            const bool embedded = r % 2 == 1 || (packed && rows == PACKED_TILE_ROWS);
            dot4_row(sum[r], w0, w1, x->q + r * LW_SEGMENT + i * LW_GROUP + c * 4, embedded);
        }
    }
    const float* d = w->scales + g * 2 * LW_PANEL;
    const bool in_registers = packed && !scales_first(type, (size_t)rows);
    const __m512 s0 = in_registers ? step_scale(type, w, (size_t)g, 0) : _mm512_load_ps(d);
    const __m512 s1 = in_registers ? step_scale(type, w, (size_t)g, 1) : _mm512_load_ps(d + 16);
    const __m512 m0 = in_registers ? magic_times(s0) : _mm512_load_ps(d + 32);
    const __m512 m1 = in_registers ? magic_times(s1) : _mm512_load_ps(d + 48);
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
        const __m512 scale = _mm512_set1_ps(x->scale[r * LW_SEGMENT_GROUPS + g / per_group]);
        acc[r][0] = _mm512_fmadd_ps(_mm512_fmadd_ps(_mm512_castsi512_ps(sum[r][0]), s0, m0), scale, acc[r][0]);
        acc[r][1] = _mm512_fmadd_ps(_mm512_fmadd_ps(_mm512_castsi512_ps(sum[r][1]), s1, m1), scale, acc[r][1]);
    }
}

// One whole segment. Everything is unrolled, every second row broadcasts its activations within vpdpbusd, and the start
// values of sums lie in memory. All this saves instructions, which are the limit on a core whose decoders are shared
// with a busy hyperthread.
LW_INLINE void tile(const weight_type type, const int rows, const bool packed, const weight_segment* w,
                    const row_segment* x) {
    _Alignas(64) int32_t starts[FEW_TILE_ROWS][STEPS];
    __m512 acc[FEW_TILE_ROWS][VECTORS];
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
        lw_step_starts(type.shift, type.chunks == 4, x->totals + r * STEPS, starts[r]);
        acc[r][0] = _mm512_load_ps(x->results + r * LW_PANEL);
        acc[r][1] = _mm512_load_ps(x->results + r * LW_PANEL + 16);
    }
    __asm__("" : "+m"(starts));  // otherwise they stay in registers, and each use takes a shuffle
    const int steps = steps_of(type);
    if (rows == 1 && type.chunks < 8 &&
        w->fetch.order == LW_FETCH_PACED) {  // by 32 inputs, so that chunk numbers within them are constant
#pragma GCC unroll 1
        for (int i = 0; i < LW_SEGMENT_GROUPS; ++i) {
            tile_step(type, 1, packed, w, x, acc, starts, 2 * i);
            tile_step(type, 1, packed, w, x, acc, starts, 2 * i + 1);
        }
    } else if (rows == 1 && type.format.low == 0) {  // limited by memory
#pragma GCC unroll 1
        for (int g = 0; g < steps; ++g) tile_step(type, 1, packed, w, x, acc, starts, g);
    } else {
#pragma GCC unroll 8
        for (int g = 0; g < steps; ++g) tile_step(type, rows, packed, w, x, acc, starts, g);
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
        _mm512_store_ps(x->results + r * LW_PANEL, acc[r][0]);
        _mm512_store_ps(x->results + r * LW_PANEL + 16, acc[r][1]);
    }
}

LW_INLINE row_segment some_rows(const lw_activations* x, size_t segment, size_t row, float* results) {
    const size_t at = segment * (x->segment_stride / LW_SEGMENT) + row;
    return (row_segment){.q = x->q + at * LW_SEGMENT,
                         .totals = x->totals + at * STEPS,
                         .scale = x->scale + at * LW_SEGMENT_GROUPS,
                         .results = results + row * LW_PANEL};
}

// Number of rows in the next tile.
LW_INLINE size_t tile_rows(const size_t most, size_t row, size_t rows) {
    const size_t left = rows - row, tiles = (left + most - 1) / most;
    return (left + tiles - 1) / tiles;
}

// All rows, in tiles whose sizes differ by at most one.
LW_INLINE void all_rows(const weight_type type, const bool packed, const size_t most, weight_segment* w,
                        const lw_activations* x, size_t segment, float* results) {
    for (size_t row = 0, n; row < x->rows; row += n, w->fetch.first = NULL) {
        n = tile_rows(most, row, x->rows);
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
                tile(type, 5, packed, w, &rows);
                break;
            case 6:
                tile(type, 6, packed, w, &rows);
                break;
            case 7:
                if (most > 6) tile(type, 7, packed, w, &rows);
                break;
            default:
                if (packed && most > 7) tile(type, 8, packed, w, &rows);
                break;
        }
    }
}

#endif
