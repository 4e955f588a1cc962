// The inner loop of all quantized products on AVX2. A tile is one or two rows times one panel of 32 outputs.
//
// A 32-byte vector of weights is 8 outputs times 4 consecutive inputs. vpmaddubsw multiplies unsigned codes with 4
// broadcast activation bytes into 16-bit sums of two products. As many of these as cannot overflow are added before
// vpmaddwd makes one 32-bit sum per lane, which is an output. The offset of unsigned codes adds offset * A to a step's
// sum, where A is the sum of the step's activations. It is taken off exactly at the end of the step: LW_MAGIC_BITS -
// offset * A is added to the sum. Signed codes would overflow in vpmaddubsw. Decoded signed codes are split into words
// of even and odd inputs for vpmaddwd. In registers, their magnitudes are multiplied with activations that take over
// their signs. Sums of signed codes are converted to float.
#ifndef LW_KERNELS_AVX2_MATMUL_TILE_H
#define LW_KERNELS_AVX2_MATMUL_TILE_H

#include <immintrin.h>
#include <string.h>

#include "kernels/fetch.h"
#include "kernels/lanes.h"
#include "kernels/step_starts_x86.h"

enum {
    TILE_ROWS = 2,
    CACHED_ROWS = 16,        // rows whose activations stay in a private cache
    VECTORS = LW_PANEL / 8,  // vectors of one input chunk, or of one scale, of a panel
    CHUNK_BYTES = LW_PANEL * 4,
    SIGNED = 0,  // value of weight_type.run for signed codes
};

// One segment of a panel: packed, and decoded when more than a few rows need it.
typedef struct weight_segment {
    const uint8_t* data;
    const uint8_t* codes;  // [chunk][vector][32], or words [chunk][vector][even, odd][32]
    const float* scales;   // [scale][2][32]: s, -LW_MAGIC * s
    size_t groups;         // number of groups of 32 inputs
    lw_fetch fetch;
    const uint8_t *supers, *selectors;  // coded types only
    __m256i table;                      // coded types only: the table, in both halves
} weight_segment;

// The properties of a weight type. Every use is a compile-time constant.
typedef struct weight_type {
    size_t few_rows;  // up to so many rows every tile decodes in registers
    int chunks;       // number of chunks of 4 inputs that share a scale
    int run;          // number of chunks whose 16-bit sums may be added, or SIGNED
    int shift;        // log2 of the offset of the unsigned codes, -1 = none
    size_t segment_bytes;
    lw_format format;  // coded types only, else zero
    // Return the codes of chunk c (0..7) of group `group` of a segment, and scale number g of the segment.
    __m256i (*codes)(const weight_segment* w, int group, int c, int vector);
    __m256 (*scale)(const weight_segment* w, size_t g, int vector);
} weight_type;

// One segment of some activation rows.
typedef struct row_segment {
    const int8_t* q;
    const int32_t* totals;
    const float* scale;
    float* results;      // [row][32]
    const int8_t* next;  // q of the next rows; NULL when there are so few rows that all stay in the cache
    const int32_t* next_totals;
    size_t stride, segments;
} row_segment;

LW_INLINE __m256i load256(const void* p) { return _mm256_load_si256((const __m256i*)p); }

// sum + x. Opaque to the compiler, which would otherwise reorder long sums until they no longer fit the registers.
LW_INLINE __m256i add16(__m256i sum, __m256i x) {
    __asm__("vpaddw %1, %0, %0" : "+x"(sum) : "x"(x));
    return sum;
}

LW_INLINE __m256i add32(__m256i sum, __m256i x) {
    __m256i more;
    __asm__("vpaddd %2, %1, %0" : "=x"(more) : "x"(sum), "x"(x));
    return more;
}

// A load that the compiler neither repeats nor moves: it would rather read weights twice than keep a register.
LW_INLINE __m256i load_once(const uint8_t* p) {
    __m256i v;
    __asm__("vmovdqa %1, %0" : "=x"(v) : "m"(*(const __m256i*)p));
    return v;
}

LW_INLINE __m256i broadcast4(const void* p) {
    int32_t four;
    memcpy(&four, p, sizeof four);
    return _mm256_set1_epi32(four);
}

LW_INLINE __m256 load_halves(const uint8_t* p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)); }

// Inputs 0 and 2 of every 4 bytes as words, and inputs 1 and 3.
LW_INLINE __m256i even_words(__m256i bytes) { return _mm256_srai_epi16(_mm256_slli_epi16(bytes, 8), 8); }
LW_INLINE __m256i odd_words(__m256i bytes) { return _mm256_srai_epi16(bytes, 8); }

// A step has 16 inputs if 16 inputs share a weight scale, otherwise the 32 that share an activation scale.
LW_INLINE int step_chunks(const weight_type type) { return type.chunks == 4 ? 4 : 8; }

LW_INLINE __m256 magic_times(__m256 scale) { return _mm256_mul_ps(scale, _mm256_set1_ps(-LW_MAGIC)); }

// Per row: the numbers to add to the sums of steps that end with each 16 inputs, and the activations as words.
typedef struct tile_rows {
    _Alignas(32) int32_t magics[TILE_ROWS][STEPS];
    _Alignas(32) int16_t words[TILE_ROWS][LW_SEGMENT];  // per 32 inputs: the 16 even ones, then the 16 odd ones
} tile_rows;

LW_INLINE void prepare_rows(const weight_type type, const int rows, const bool packed, const row_segment* x,
                            tile_rows* to) {
    for (int r = 0; r < rows; ++r) {
        if (type.run != SIGNED)
            lw_step_starts(type.shift, type.chunks == 4, x->totals + (size_t)r * (x->stride / 16), to->magics[r]);
        for (int i = 0; type.run == SIGNED && !packed && i < LW_SEGMENT; i += 32) {
            const __m256i bytes = _mm256_loadu_si256((const __m256i*)(x->q + (size_t)r * x->stride + i));
            _mm256_store_si256((__m256i*)(to->words[r] + i), even_words(bytes));
            _mm256_store_si256((__m256i*)(to->words[r] + i + 16), odd_words(bytes));
        }
    }
}

// Bytes of a panel's decoded group of 32 inputs.
LW_INLINE size_t decoded_bytes(const weight_type type) { return (type.run == SIGNED ? 2 : 1) * 8 * CHUNK_BYTES; }

// Codes of chunk c of group i of a packed or a decoded segment.
LW_INLINE __m256i weights(const weight_type type, const bool packed, const weight_segment* w, int i, int c, int v) {
    if (packed) return type.codes(w, i, c, v);
    const uint8_t* at = w->codes + (size_t)i * decoded_bytes(type) + c * CHUNK_BYTES + v * 32;
    return load_once(at);
}

// Adds `run` chunks from chunk `first` on. The outer loop is over chunks, so that activations are broadcast once.
LW_INLINE void add_long_run(const weight_type type, const int rows, const bool packed, const weight_segment* w, int i,
                            int first, bool begins, const int8_t* q, size_t stride, __m256i sum[TILE_ROWS][VECTORS]) {
    __m256i pairs[TILE_ROWS][VECTORS];
#pragma GCC unroll 8
    for (int n = 0; n < type.run; ++n) {
        const int c = first + n;
        __m256i a[TILE_ROWS];
#pragma GCC unroll 2
        for (int r = 0; r < rows; ++r) a[r] = broadcast4(q + (size_t)r * stride + c * 4);
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; ++v) {
            const __m256i codes = weights(type, packed, w, i, c, v);
#pragma GCC unroll 2
            for (int r = 0; r < rows; ++r) {
                const __m256i products = _mm256_maddubs_epi16(codes, a[r]);
                pairs[r][v] = n == 0 ? products : add16(pairs[r][v], products);
            }
        }
    }
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; ++v)
#pragma GCC unroll 2
        for (int r = 0; r < rows; ++r) {
            const __m256i products = _mm256_madd_epi16(pairs[r][v], _mm256_set1_epi16(1));
            sum[r][v] = begins ? products : add32(sum[r][v], products);
        }
}

// Adds two chunks from chunk `first` on; the 32-bit sums stay in registers.
LW_INLINE void add_short_run(const weight_type type, const int rows, const bool packed, const weight_segment* w, int i,
                             int first, bool begins, const int8_t* q, size_t stride, __m256i sum[TILE_ROWS][VECTORS]) {
    __m256i a[TILE_ROWS][2];
#pragma GCC unroll 2
    for (int r = 0; r < rows; ++r) {
        a[r][0] = broadcast4(q + (size_t)r * stride + first * 4);
        a[r][1] = broadcast4(q + (size_t)r * stride + first * 4 + 4);
    }
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; ++v) {
        const __m256i w0 = weights(type, packed, w, i, first, v), w1 = weights(type, packed, w, i, first + 1, v);
#pragma GCC unroll 2
        for (int r = 0; r < rows; ++r) {
            const __m256i pairs = add16(_mm256_maddubs_epi16(w0, a[r][0]), _mm256_maddubs_epi16(w1, a[r][1]));
            const __m256i products = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
            sum[r][v] = begins ? products : add32(sum[r][v], products);
        }
    }
}

// Adds one chunk of signed codes, in registers. The magnitude of -128 is 128, an unsigned byte, and 2 * 128 * 127 <
// 2^15.
LW_INLINE void add_signed(const weight_type type, const int rows, const weight_segment* w, int i, int c, bool begins,
                          const int8_t* q, size_t stride, __m256i sum[TILE_ROWS][VECTORS]) {
    __m256i a[TILE_ROWS];
#pragma GCC unroll 2
    for (int r = 0; r < rows; ++r) a[r] = broadcast4(q + (size_t)r * stride + c * 4);
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; ++v) {
        const __m256i codes = type.codes(w, i, c, v), sizes = _mm256_abs_epi8(codes);
#pragma GCC unroll 2
        for (int r = 0; r < rows; ++r) {
            const __m256i pairs = _mm256_maddubs_epi16(sizes, _mm256_sign_epi8(a[r], codes));
            const __m256i products = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
            sum[r][v] = begins ? products : add32(sum[r][v], products);
        }
    }
}

// Adds one chunk of signed codes that were decoded to words.
LW_INLINE void add_words(const int rows, const uint8_t* chunk, const int16_t* words, bool begins,
                         __m256i sum[TILE_ROWS][VECTORS]) {
    __m256i even[TILE_ROWS], odd[TILE_ROWS];
#pragma GCC unroll 2
    for (int r = 0; r < rows; ++r) {
        even[r] = broadcast4(words + r * LW_SEGMENT);
        odd[r] = broadcast4(words + r * LW_SEGMENT + 16);
    }
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; ++v) {
        const __m256i w0 = load256(chunk + v * 64), w1 = load256(chunk + v * 64 + 32);
#pragma GCC unroll 2
        for (int r = 0; r < rows; ++r) {
            __m256i products = _mm256_madd_epi16(w0, even[r]);
            // Opaque to the compiler, which would otherwise spill other sums.
            if (begins) __asm__("" : "+x"(products));
            sum[r][v] = begins ? products : add32(sum[r][v], products);
            sum[r][v] = add32(sum[r][v], _mm256_madd_epi16(w1, odd[r]));
        }
    }
}

// Prefetches the next two rows: the codes, 2 lines each, and the sums, which are needed first.
LW_INLINE void fetch_rows(const row_segment* x) {
    for (size_t r = 0; r < TILE_ROWS; ++r) {
        _mm_prefetch(x->next_totals + r * (x->stride / 16), _MM_HINT_T0);
        _mm_prefetch(x->next + r * x->stride, _MM_HINT_T0);
        _mm_prefetch(x->next + r * x->stride + 64, _MM_HINT_T0);
    }
}

// Keeps the branch inside the loop: the compiler would make two copies of the loop.
LW_INLINE void fetch_group(const weight_type type, const weight_segment* w, const size_t i) {
    lw_fetch fetch = w->fetch;
    __asm__ volatile("" : "+r"(fetch.first));
    lw_fetch_group(fetch, i, type.segment_bytes);
}

// Adds the products of chunks [begin, end) of group i.
LW_INLINE void add_chunks(const weight_type type, const int rows, const bool packed, const weight_segment* w,
                          const row_segment* x, const tile_rows* prepared, __m256i sum[TILE_ROWS][VECTORS],
                          const size_t i, const int begin, const int end) {
    const int8_t* q = x->q + i * LW_GROUP;
    if (begin == 0) fetch_group(type, w, i);
#pragma GCC unroll 8
    for (int c = begin; c < end; c += type.run > 0 ? type.run : 1) {
        if (type.run == SIGNED && packed) add_signed(type, rows, w, (int)i, c, c == begin, q, x->stride, sum);
        if (type.run == SIGNED && !packed)
            add_words(rows, w->codes + i * decoded_bytes(type) + c * 2 * CHUNK_BYTES,
                      prepared->words[0] + i * LW_GROUP + c * 2, c == begin, sum);
        if (type.run == 2) add_short_run(type, rows, packed, w, (int)i, c, c == begin, q, x->stride, sum);
        if (type.run > 2) add_long_run(type, rows, packed, w, (int)i, c, c == begin, q, x->stride, sum);
    }
}

// Ends a step with scale number g, whose last chunk is `end` - 1 of group i: adds s * sum, which rounds once, times the
// activation scale. Adding the magic number here, and not where sums start, takes fewer registers.
LW_INLINE void end_step(const weight_type type, const int rows, const bool packed, const weight_segment* w,
                        const row_segment* x, const tile_rows* prepared, __m256i sum[TILE_ROWS][VECTORS],
                        __m256 acc[TILE_ROWS][VECTORS], const size_t i, const int end, const size_t g) {
    __m256i magic[TILE_ROWS];
    __m256 scale[TILE_ROWS];
#pragma GCC unroll 2
    for (int r = 0; r < rows; ++r) {
        if (type.run != SIGNED) magic[r] = _mm256_set1_epi32(prepared->magics[r][i * 2 + (size_t)end / 4 - 1]);
        scale[r] = _mm256_set1_ps(x->scale[(size_t)r * x->segments * LW_SEGMENT_GROUPS + i]);
    }
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; ++v) {
        const float* at = w->scales + g * 2 * LW_PANEL + v * 8;
        const __m256 s = packed ? type.scale(w, g, v) : _mm256_load_ps(at);
        __m256 less = _mm256_setzero_ps();  // makes a 0 never -0
        if (type.run != SIGNED) less = packed ? magic_times(s) : _mm256_load_ps(at + LW_PANEL);
#pragma GCC unroll 2
        for (int r = 0; r < rows; ++r) {
            const __m256 value =
                type.run == SIGNED ? _mm256_cvtepi32_ps(sum[r][v]) : _mm256_castsi256_ps(add32(sum[r][v], magic[r]));
            acc[r][v] = _mm256_fmadd_ps(_mm256_fmadd_ps(value, s, less), scale[r], acc[r][v]);
        }
    }
}

// One group of 32 inputs.
LW_INLINE void tile_group(const weight_type type, const int rows, const bool packed, const weight_segment* w,
                          const row_segment* x, const tile_rows* prepared, __m256 acc[TILE_ROWS][VECTORS],
                          const size_t i) {
    const int chunks = step_chunks(type);
#pragma GCC unroll 2
    for (int c = 0; c < 8; c += chunks) {
        __m256i sum[TILE_ROWS][VECTORS];
        add_chunks(type, rows, packed, w, x, prepared, sum, i, c, c + chunks);
        end_step(type, rows, packed, w, x, prepared, sum, acc, i, c + chunks,
                 (i * 8 + (size_t)c) / (size_t)type.chunks);
    }
}

// True if the place of a code's bits in a byte depends on the group, so that each group needs its own code.
LW_INLINE bool groups_differ(const weight_type type) {
    return type.format.high != 0 || type.format.selector != 0 || type.format.map == LW_MAP_TRELLIS;
}

LW_INLINE void tile(const weight_type type, const int rows, const bool packed, const weight_segment* w,
                    const row_segment* x) {
    tile_rows prepared;
    __m256 acc[TILE_ROWS][VECTORS];
    prepare_rows(type, rows, packed, x, &prepared);
    if (x->next != NULL) fetch_rows(x);
#pragma GCC unroll 2
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; ++v) acc[r][v] = _mm256_load_ps(x->results + r * LW_PANEL + v * 8);
    if (packed && groups_differ(type)) {
#pragma GCC unroll 4
        for (size_t i = 0; i < LW_SEGMENT_GROUPS; ++i) tile_group(type, rows, packed, w, x, &prepared, acc, i);
    } else {
#pragma GCC unroll 1
        for (size_t i = 0; i < w->groups; ++i) tile_group(type, rows, packed, w, x, &prepared, acc, i);
    }
#pragma GCC unroll 2
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; ++v) _mm256_store_ps(x->results + r * LW_PANEL + v * 8, acc[r][v]);
}

LW_INLINE row_segment some_rows(const lw_activations* x, size_t segment, size_t row, size_t end, float* results) {
    const size_t k = row * x->stride + segment * LW_SEGMENT;
    const size_t next = row + TILE_ROWS < end ? k + TILE_ROWS * x->stride : k;
    return (row_segment){.q = x->q + k,
                         .totals = x->totals + k / 16,
                         .scale = x->scale + (row * x->segments + segment) * LW_SEGMENT_GROUPS,
                         .results = results + row * LW_PANEL,
                         .next = x->rows > CACHED_ROWS ? x->q + next : NULL,
                         .next_totals = x->totals + next / 16,
                         .stride = x->stride,
                         .segments = x->segments};
}

#endif
