// The bodies of all quantized products on AVX2. A tile is one or two rows times one panel of 32 outputs.
//
// A 32-byte vector of weights is 8 outputs times 4 consecutive inputs. vpmaddubsw multiplies unsigned codes with 4
// broadcast activation bytes into 16-bit sums of two products; as many of those as cannot overflow are added before
// vpmaddwd makes one 32-bit sum per lane, which is an output. What the offset of unsigned codes adds is taken off when
// a group ends and the sum becomes a float, in one exact subtraction (see LW_MAGIC_BITS). Q8_0 codes are signed and
// would overflow there: weights and activations are split into words of even and odd inputs for vpmaddwd.
#ifndef LW_KERNELS_AVX2_MATMUL_TILE_H
#define LW_KERNELS_AVX2_MATMUL_TILE_H

#include <immintrin.h>
#include <string.h>

#include "kernels/fetch.h"
#include "kernels/minimums.h"

enum {
    TILE_ROWS = 2,
    CACHED_ROWS = 16,            // whose activations stay in a private cache
    BLOCK_ROWS = 64,             // rows that use a decoded segment before the next one is decoded
    PREFIXES = LW_SEGMENT / 16,  // activation sums per row and segment
    VECTORS = LW_PANEL / 8,      // of one input chunk, or one scale, of a panel
    CHUNK_BYTES = LW_PANEL * 4,
    WORDS = 0,  // weight_type.run of signed codes
};

// What differs between weight types. Every use is a compile-time constant.
typedef struct weight_type {
    size_t few_rows;     // up to which every tile decodes in registers
    int chunks;          // of 4 inputs that share a scale
    int run;             // chunks whose 16-bit sums may be added, or WORDS
    int shift;           // log2 of the offset of the unsigned codes, -1 = none
    size_t group_bytes;  // 32 inputs
    size_t segment_bytes;
    // Codes of chunk c (0..7) of the 32 inputs at `group`, and scale g of the segment at `segment`.
    __m256i (*codes)(const uint8_t* group, int c, int vector);
    __m256 (*scale)(const uint8_t* segment, size_t g, int vector);
} weight_type;

// One segment of a panel: as packed (`data`), and decoded unless there is but one row.
typedef struct weight_segment {
    const uint8_t* data;
    const uint8_t* codes;      // [chunk][vector][32], or words [chunk][vector][even, odd][32]
    const float* differences;  // [scale][32]: s[g] - s[g + 1]
    size_t scales;
    lw_fetch fetch;
} weight_segment;

// The same segment of some activation rows.
typedef struct row_segment {
    const int8_t* q;
    const int32_t* prefix;
    const float* scale;
    float* results;      // [row][32]
    const int8_t* next;  // q of the rows to come, or NULL when so few rows stay in the cache anyway
    const int32_t* next_prefix;
    size_t stride, segments;
} row_segment;

typedef struct tile_scratch {
    uint8_t codes[2 * LW_SEGMENT * LW_PANEL];
    float differences[PREFIXES * LW_PANEL];
    float minimums[LW_MINIMUM_FLOATS];
    float results[];  // [rows][32]
} tile_scratch;

LW_INLINE __m256i load256(const void* p) { return _mm256_load_si256((const __m256i*)p); }

// sum + x. Opaque to the compiler, which otherwise reorders long sums until they no longer fit the registers.
LW_INLINE __m256i add16(__m256i sum, __m256i x) {
    __asm__("vpaddw %1, %0, %0" : "+x"(sum) : "x"(x));
    return sum;
}

LW_INLINE __m256i add32(__m256i sum, __m256i x) {
    __asm__("vpaddd %1, %0, %0" : "+x"(sum) : "x"(x));
    return sum;
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

LW_INLINE __m256 scale_difference(const weight_type type, const uint8_t* segment, size_t g, size_t scales, int v) {
    const __m256 next = g + 1 < scales ? type.scale(segment, g + 1, v) : _mm256_setzero_ps();
    return _mm256_sub_ps(type.scale(segment, g, v), next);
}

// Per row: what to subtract from the sums at the end of each 16 inputs, and the activations as words.
typedef struct tile_rows {
    _Alignas(32) float offsets[TILE_ROWS][PREFIXES];
    _Alignas(32) int16_t words[TILE_ROWS][LW_SEGMENT];  // per 32 inputs: 16 even ones, 16 odd ones
} tile_rows;

LW_INLINE void prepare_rows(const weight_type type, const int rows, const row_segment* x, tile_rows* to) {
    for (int r = 0; r < rows; ++r) {
        const int32_t* prefix = x->prefix + (size_t)r * (x->stride / 16);
        for (int i = 0; type.run != WORDS && i < PREFIXES; i += 8) {
            __m256i sums = _mm256_setzero_si256();
            if (type.shift >= 0) sums = _mm256_slli_epi32(_mm256_loadu_si256((const __m256i*)(prefix + i)), type.shift);
            _mm256_store_si256((__m256i*)(to->offsets[r] + i),
                               _mm256_add_epi32(sums, _mm256_set1_epi32(LW_MAGIC_BITS)));
        }
        for (int i = 0; type.run == WORDS && i < LW_SEGMENT; i += 32) {
            const __m256i bytes = _mm256_loadu_si256((const __m256i*)(x->q + (size_t)r * x->stride + i));
            _mm256_store_si256((__m256i*)(to->words[r] + i), even_words(bytes));
            _mm256_store_si256((__m256i*)(to->words[r] + i + 16), odd_words(bytes));
        }
    }
}

// Codes of a chunk, of a packed group or of a decoded one.
LW_INLINE __m256i weights(const weight_type type, const bool packed, const uint8_t* group, int c, int v) {
    if (packed) return type.codes(group, c, v);
    const uint8_t* at = group + c * CHUNK_BYTES + v * 32;
    return type.run > 2 ? load_once(at) : load256(at);  // measured: 5 % faster in long runs, 3 % slower in short ones
}

// `run` chunks from chunk `first`: chunks outside, so that activations are broadcast once.
LW_INLINE void add_long_run(const weight_type type, const int rows, const bool packed, const uint8_t* group, int first,
                            const int8_t* q, size_t stride, __m256i sum[TILE_ROWS][VECTORS]) {
    __m256i pairs[TILE_ROWS][VECTORS];
#pragma GCC unroll 8
    for (int c = first; c < first + type.run; ++c) {
        __m256i a[TILE_ROWS];
#pragma GCC unroll 2
        for (int r = 0; r < rows; ++r) a[r] = broadcast4(q + (size_t)r * stride + c * 4);
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; ++v) {
            const __m256i w = weights(type, packed, group, c, v);
#pragma GCC unroll 2
            for (int r = 0; r < rows; ++r) {
                const __m256i products = _mm256_maddubs_epi16(w, a[r]);
                pairs[r][v] = c == first ? products : add16(pairs[r][v], products);
            }
        }
    }
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; ++v)
#pragma GCC unroll 2
        for (int r = 0; r < rows; ++r)
            sum[r][v] = add32(sum[r][v], _mm256_madd_epi16(pairs[r][v], _mm256_set1_epi16(1)));
}

// Two chunks from chunk `first`: 32-bit sums stay in registers.
LW_INLINE void add_short_run(const weight_type type, const int rows, const bool packed, const uint8_t* group, int first,
                             const int8_t* q, size_t stride, __m256i sum[TILE_ROWS][VECTORS]) {
    __m256i a[TILE_ROWS][2];
#pragma GCC unroll 2
    for (int r = 0; r < rows; ++r) {
        a[r][0] = broadcast4(q + (size_t)r * stride + first * 4);
        a[r][1] = broadcast4(q + (size_t)r * stride + first * 4 + 4);
    }
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; ++v) {
        const __m256i w0 = weights(type, packed, group, first, v), w1 = weights(type, packed, group, first + 1, v);
#pragma GCC unroll 2
        for (int r = 0; r < rows; ++r) {
            const __m256i pairs = add16(_mm256_maddubs_epi16(w0, a[r][0]), _mm256_maddubs_epi16(w1, a[r][1]));
            sum[r][v] = add32(sum[r][v], _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
        }
    }
}

// One chunk of signed codes as words.
LW_INLINE void add_words(const weight_type type, const int rows, const bool packed, const uint8_t* group, int c,
                         const int16_t* words, __m256i sum[TILE_ROWS][VECTORS]) {
    __m256i even[TILE_ROWS], odd[TILE_ROWS];
#pragma GCC unroll 2
    for (int r = 0; r < rows; ++r) {
        even[r] = broadcast4(words + r * LW_SEGMENT + c * 2);
        odd[r] = broadcast4(words + r * LW_SEGMENT + c * 2 + 16);
    }
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; ++v) {
        const uint8_t* at = group + (c * VECTORS + v) * 64;
        const __m256i w0 = packed ? even_words(type.codes(group, c, v)) : load256(at);
        const __m256i w1 = packed ? odd_words(type.codes(group, c, v)) : load256(at + 32);
#pragma GCC unroll 2
        for (int r = 0; r < rows; ++r) {
            sum[r][v] = add32(sum[r][v], _mm256_madd_epi16(w0, even[r]));
            sum[r][v] = add32(sum[r][v], _mm256_madd_epi16(w1, odd[r]));
        }
    }
}

// Of the next two rows: the codes, 2 lines each, and the sums, which are waited for first.
LW_INLINE void fetch_rows(const row_segment* x) {
    for (size_t r = 0; r < TILE_ROWS; ++r) {
        _mm_prefetch(x->next_prefix + r * (x->stride / 16), _MM_HINT_T0);
        _mm_prefetch(x->next + r * x->stride, _MM_HINT_T0);
        _mm_prefetch(x->next + r * x->stride + 64, _MM_HINT_T0);
    }
}

LW_INLINE void tile(const weight_type type, const int rows, const bool packed, const weight_segment* w,
                    const row_segment* x) {
    tile_rows prepared;
    __m256i sum[TILE_ROWS][VECTORS];
    __m256 seg[TILE_ROWS][VECTORS];
    prepare_rows(type, rows, x, &prepared);
    if (x->next != NULL) fetch_rows(x);
#pragma GCC unroll 2
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; ++v) {
            sum[r][v] = _mm256_set1_epi32(LW_MAGIC_BITS);
            seg[r][v] = _mm256_setzero_ps();
        }
    const int8_t* q = x->q;
    const int16_t* words = prepared.words[0];
    const float* offset = &prepared.offsets[0][type.chunks / 4 - 1];
    const size_t decoded_bytes = (type.run == WORDS ? 2 : 1) * 8 * CHUNK_BYTES;
    const size_t groups = w->scales * (size_t)type.chunks / 8;
    const int parts = 8 / type.chunks;
    for (size_t i = 0; i < groups; ++i, q += LW_GROUP, words += LW_GROUP) {
        const uint8_t* group = packed ? w->data + i * type.group_bytes : w->codes + i * decoded_bytes;
        if (w->fetch.first != NULL) lw_fetch_group(w->fetch, i, type.segment_bytes);
#pragma GCC unroll 2
        for (int part = 0; part < parts; ++part, offset += type.chunks / 4) {
            const int first = part * type.chunks;
#pragma GCC unroll 8
            for (int c = first; c < first + type.chunks; c += type.run > 0 ? type.run : 1) {
                if (type.run == WORDS) add_words(type, rows, packed, group, c, words, sum);
                if (type.run == 2) add_short_run(type, rows, packed, group, c, q, x->stride, sum);
                if (type.run > 2) add_long_run(type, rows, packed, group, c, q, x->stride, sum);
            }
            const size_t g = i * (8 / (size_t)type.chunks) + (size_t)part;
#pragma GCC unroll 4
            for (int v = 0; v < VECTORS; ++v) {
                const __m256 difference = packed ? scale_difference(type, w->data, g, w->scales, v)
                                                 : _mm256_load_ps(w->differences + g * LW_PANEL + v * 8);
#pragma GCC unroll 2
                for (int r = 0; r < rows; ++r) {
                    const __m256 off = _mm256_set1_ps(type.run == WORDS ? LW_MAGIC : offset[r * PREFIXES]);
                    seg[r][v] =
                        _mm256_fmadd_ps(_mm256_sub_ps(_mm256_castsi256_ps(sum[r][v]), off), difference, seg[r][v]);
                }
            }
        }
    }
#pragma GCC unroll 2
    for (int r = 0; r < rows; ++r) {
        const __m256 scale = _mm256_set1_ps(x->scale[(size_t)r * x->segments]);
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; ++v) {
            float* to = x->results + r * LW_PANEL + v * 8;
            _mm256_store_ps(to, _mm256_fmadd_ps(seg[r][v], scale, _mm256_load_ps(to)));
        }
    }
}

LW_INLINE void decode(const weight_type type, weight_segment* w, tile_scratch* s) {
    __m256i* to = (__m256i*)s->codes;
    const size_t groups = w->scales * (size_t)type.chunks / 8;
    w->codes = s->codes;
    w->differences = s->differences;
    for (size_t g = 0; g < groups; ++g)
#pragma GCC unroll 8
        for (int c = 0; c < 8; ++c)
#pragma GCC unroll 4
            for (int v = 0; v < VECTORS; ++v) {
                const __m256i codes = type.codes(w->data + g * type.group_bytes, c, v);
                if (type.run == WORDS) {
                    _mm256_store_si256(to++, even_words(codes));
                    _mm256_store_si256(to++, odd_words(codes));
                } else {
                    _mm256_store_si256(to++, codes);
                }
            }
    for (size_t g = 0; g < w->scales; ++g)
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; ++v)
            _mm256_store_ps(s->differences + g * LW_PANEL + v * 8, scale_difference(type, w->data, g, w->scales, v));
}

LW_INLINE weight_segment open_segment(const weight_type type, const lw_matrix* w, size_t panel, size_t segment) {
    const size_t left = w->groups - segment * LW_SEGMENT_GROUPS;
    const uint8_t* data = w->data + panel * w->panel_bytes + segment * type.segment_bytes;
    const size_t groups = left < LW_SEGMENT_GROUPS ? left : LW_SEGMENT_GROUPS;
    return (weight_segment){.data = data,
                            .scales = groups * (8 / (size_t)type.chunks),
                            .fetch = lw_fetch_of(lw_cpu_reads_pages, w->data, data, type.segment_bytes)};
}

LW_INLINE row_segment some_rows(const lw_activations* x, size_t segment, size_t row, size_t end, float* results) {
    const size_t k = row * x->stride + segment * LW_SEGMENT;
    const size_t next = row + TILE_ROWS < end ? k + TILE_ROWS * x->stride : k;
    return (row_segment){.q = x->q + k,
                         .prefix = x->prefix + k / 16,
                         .scale = x->scale + row * x->segments + segment,
                         .results = results + row * LW_PANEL,
                         .next = x->rows > CACHED_ROWS ? x->q + next : NULL,
                         .next_prefix = x->prefix + next / 16,
                         .stride = x->stride,
                         .segments = x->segments};
}

// Blocks of rows whose results and activations of a segment stay in the first-level cache; each decodes the panel anew.
LW_INLINE void gemm(const weight_type type, const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out,
                    tile_scratch* s) {
    memset(s->results, 0, x->rows * LW_PANEL * sizeof(float));
    for (size_t first = 0; first < x->rows; first += BLOCK_ROWS) {
        const size_t end = x->rows - first < BLOCK_ROWS ? x->rows : first + BLOCK_ROWS;
        for (size_t segment = 0; segment < x->segments; ++segment) {
            weight_segment ws = open_segment(type, w, panel, segment);
            const bool packed = x->rows <= type.few_rows;
            if (!packed) decode(type, &ws, s);
            for (size_t row = first; row < end; row += TILE_ROWS, ws.fetch.first = NULL) {
                const row_segment rows = some_rows(x, segment, row, end, s->results);
                if (packed && end - row == 1)
                    tile(type, 1, true, &ws, &rows);
                else if (packed)
                    tile(type, 2, true, &ws, &rows);
                else if (end - row == 1)
                    tile(type, 1, false, &ws, &rows);
                else
                    tile(type, 2, false, &ws, &rows);
            }
        }
    }
    lw_store_panel(w, panel, x->rows, s->results, out);
}

// One row. Memory is the limit.
LW_INLINE void gemv(const weight_type type, const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out) {
    _Alignas(32) float results[LW_PANEL] = {0};
    for (size_t segment = 0; segment < x->segments; ++segment) {
        const weight_segment ws = open_segment(type, w, panel, segment);
        const row_segment row = some_rows(x, segment, 0, 1, results);
        tile(type, 1, true, &ws, &row);
    }
    lw_store_panel(w, panel, 1, results, out);
}

#endif
