// Exact sums of products of bytes and 15-bit codes: the inner loop of attention over a cache of 8-bit codes. Brief codes
// are bytes themselves.
//
// Integer sums are exact in any order, so each ISA uses its best instructions: VPDPBUSD or SDOT on the two halves of a
// code, VPMADDWD or SMLAL on whole codes.
#ifndef LW_KERNELS_CODE_DOTS_H
#define LW_KERNELS_CODE_DOTS_H

#include "kernels/fetch_kv.h"
#include "kernels/lane_ops.h"
#include "kernels/lanes.h"

enum { WIDE_PEAK = 127 * 128 };  // largest magnitude of a 15-bit code

// Sixteen 15-bit codes.
#if defined(LW_ISA_avx512vnni) || (defined(__ARM_FEATURE_DOTPROD) && !defined(LW_ISA_scalar))
typedef struct wide_codes {
    int8_t high[LW_LANES], low[LW_LANES];  // code = 128 * high + low, 0 <= low < 128
} wide_codes;

LW_INLINE void wide_store(wide_codes* to, vi codes) {
    vi_store_i8(to->high, vi_sar(codes, 7));
    vi_store_i8(to->low, vi_and(codes, vi_set1(127)));
}
#else
typedef struct wide_codes {
    int16_t code[LW_LANES];
} wide_codes;

LW_INLINE void wide_store(wide_codes* to, vi codes) {
#if defined(LW_ISA_avx2)
    _mm256_storeu_si256((__m256i*)to->code, _mm256_permute4x64_epi64(_mm256_packs_epi32(codes.a, codes.b), 0xD8));
#elif defined(__aarch64__) && !defined(LW_ISA_scalar)
    for (int i = 0; i < 4; ++i) vst1_s16(to->code + 4 * i, vmovn_s32(codes.v[i]));
#else
    for (int i = 0; i < LW_LANES; ++i) to->code[i] = (int16_t)codes.v[i];
#endif
}
#endif

// Tile sizes for which all sums stay in registers.
#if defined(LW_ISA_avx512vnni)
enum { DOT_ROWS = 4, DOT_VECTORS = 2 };
#else
enum { DOT_ROWS = 2, DOT_VECTORS = 1 };
#endif

enum { DOT_LINES = 4 * DOT_VECTORS };  // cache lines of bytes that 16 codes are multiplied with

// sum[r * vectors + v], lane i: the sum over k < 16 n of x[r * x_stride] code k times the byte
//     bytes[k / 4 * stride + v * 64 + 4 * i + k % 4],
// modulo 2^32. With `key_bytes` the bytes include LW_KEY_BIAS, so that the sum is too large by the bias times the sum
// of x. Otherwise bytes are signed and x is not negative. Prefetches DOT_LINES lines for every 16 codes.
#if defined(LW_ISA_avx512vnni)
LW_INLINE void code_dots(vi* sum, const uint8_t* bytes, size_t stride, const wide_codes* x, size_t x_stride, size_t n,
                         const uint8_t* fetch, const bool key_bytes, const int rows, const int vectors) {
    const bool to_second = fetches_to_second();
    vi high[DOT_ROWS * DOT_VECTORS], low[DOT_ROWS * DOT_VECTORS];
    for (int i = 0; i < rows * vectors; ++i) high[i] = low[i] = vi_set1(0);
    for (size_t i = 0; i < n; ++i) {
#pragma GCC unroll 4
        for (size_t quad = 0; quad < 4; ++quad) {
            const uint8_t* at = bytes + (4 * i + quad) * stride;
#pragma GCC unroll 2
            for (size_t v = 0; v < DOT_VECTORS; ++v)
                fetch_line(fetch + ((4 * i + quad) * DOT_VECTORS + v) * 64, to_second);
            vi byte[DOT_VECTORS];
#pragma GCC unroll 2
            for (int v = 0; v < vectors; ++v) byte[v] = _mm512_loadu_si512(at + 64 * v);
#pragma GCC unroll 4
            for (int r = 0; r < rows; ++r) {
                int32_t four[2];
                memcpy(&four[0], x[(size_t)r * x_stride + i].high + 4 * quad, 4);
                memcpy(&four[1], x[(size_t)r * x_stride + i].low + 4 * quad, 4);
                const vi h = vi_set1(four[0]), l = vi_set1(four[1]);
#pragma GCC unroll 2
                for (int v = 0; v < vectors; ++v) {
                    const int s = r * vectors + v;
                    high[s] =
                        key_bytes ? _mm512_dpbusd_epi32(high[s], byte[v], h) : _mm512_dpbusd_epi32(high[s], h, byte[v]);
                    low[s] =
                        key_bytes ? _mm512_dpbusd_epi32(low[s], byte[v], l) : _mm512_dpbusd_epi32(low[s], l, byte[v]);
                }
            }
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < rows * vectors; ++i) sum[i] = vi_add(vi_shl(high[i], 7), low[i]);
}
#elif defined(LW_ISA_avx2)
LW_INLINE void code_dots(vi* sum, const uint8_t* bytes, size_t stride, const wide_codes* x, size_t x_stride, size_t n,
                         const uint8_t* fetch, const bool key_bytes, const int rows, const int vectors) {
    const bool to_second = fetches_to_second();
    __m256i pairs[DOT_ROWS][4];  // of lanes 4 p .. 4 p + 3: two partial sums each
    for (int r = 0; r < rows; ++r)
        for (int p = 0; p < 4; ++p) pairs[r][p] = _mm256_setzero_si256();
    for (size_t i = 0; i < n; ++i) {
#pragma GCC unroll 4
        for (int line = 0; line < DOT_LINES; ++line) fetch_line(fetch + (i * DOT_LINES + (size_t)line) * 64, to_second);
#pragma GCC unroll 4
        for (size_t quad = 0; quad < 4; ++quad) {
            const uint8_t* at = bytes + (4 * i + quad) * stride;
            __m256i word[4];
#pragma GCC unroll 4
            for (int p = 0; p < 4; ++p) {
                const __m128i byte = _mm_loadu_si128((const __m128i*)(at + 16 * p));
                word[p] = key_bytes ? _mm256_cvtepu8_epi16(byte) : _mm256_cvtepi8_epi16(byte);
            }
#pragma GCC unroll 2
            for (int r = 0; r < rows; ++r) {
                int64_t four;
                memcpy(&four, x[(size_t)r * x_stride + i].code + 4 * quad, 8);
                const __m256i codes = _mm256_set1_epi64x(four);
#pragma GCC unroll 4
                for (int p = 0; p < 4; ++p)
                    pairs[r][p] = _mm256_add_epi32(pairs[r][p], _mm256_madd_epi16(word[p], codes));
            }
        }
    }
    for (int r = 0; r < rows; ++r)
        sum[r * vectors] = (vi){_mm256_permute4x64_epi64(_mm256_hadd_epi32(pairs[r][0], pairs[r][1]), 0xD8),
                                _mm256_permute4x64_epi64(_mm256_hadd_epi32(pairs[r][2], pairs[r][3]), 0xD8)};
}
#elif defined(__ARM_FEATURE_DOTPROD) && !defined(LW_ISA_scalar)
// One quad of codes; `quad` is a constant.
#define LW_DOT_QUAD(quad)                                                                                  \
    do {                                                                                                   \
        const int8_t* at = (const int8_t*)bytes + (4 * i + (quad)) * stride;                               \
        const int8x16_t byte[4] = {vld1q_s8(at), vld1q_s8(at + 16), vld1q_s8(at + 32), vld1q_s8(at + 48)}; \
        for (int r = 0; r < rows; ++r)                                                                     \
            for (int p = 0; p < 4; ++p) {                                                                  \
                high[r].v[p] = vdotq_laneq_s32(high[r].v[p], byte[p], h[r], quad);                         \
                low[r].v[p] = vdotq_laneq_s32(low[r].v[p], byte[p], l[r], quad);                           \
            }                                                                                              \
    } while (0)

LW_INLINE void code_dots(vi* sum, const uint8_t* bytes, size_t stride, const wide_codes* x, size_t x_stride, size_t n,
                         const uint8_t* fetch, const bool key_bytes, const int rows, const int vectors) {
    (void)key_bytes;  // all bytes are signed
    vi high[DOT_ROWS], low[DOT_ROWS];
    for (int r = 0; r < rows; ++r) high[r] = low[r] = vi_set1(0);
    for (size_t i = 0; i < n; ++i) {
        for (int line = 0; line < DOT_LINES; ++line) __builtin_prefetch(fetch + (i * DOT_LINES + (size_t)line) * 64);
        int8x16_t h[DOT_ROWS], l[DOT_ROWS];
        for (int r = 0; r < rows; ++r) {
            h[r] = vld1q_s8(x[(size_t)r * x_stride + i].high);
            l[r] = vld1q_s8(x[(size_t)r * x_stride + i].low);
        }
        LW_DOT_QUAD(0);
        LW_DOT_QUAD(1);
        LW_DOT_QUAD(2);
        LW_DOT_QUAD(3);
    }
    for (int r = 0; r < rows; ++r) sum[r * vectors] = vi_add(vi_shl(high[r], 7), low[r]);
}
#undef LW_DOT_QUAD
#elif defined(__aarch64__) && !defined(LW_ISA_scalar)
// Code `place`, a constant, of a quad: `byte` holds the bytes that all lanes multiply with it.
#define LW_DOT_PLACE(place)                                                                                 \
    do {                                                                                                    \
        const int16x8_t word[2] = {vmovl_s8(vget_low_s8(byte.val[place])), vmovl_high_s8(byte.val[place])}; \
        for (int r = 0; r < rows; ++r)                                                                      \
            for (int p = 0; p < 2; ++p) {                                                                   \
                vi* s = &sum[r * vectors];                                                                  \
                s->v[2 * p] = vmlal_lane_s16(s->v[2 * p], vget_low_s16(word[p]), codes[r], place);          \
                s->v[2 * p + 1] = vmlal_high_lane_s16(s->v[2 * p + 1], word[p], codes[r], place);           \
            }                                                                                               \
    } while (0)

LW_INLINE void code_dots(vi* sum, const uint8_t* bytes, size_t stride, const wide_codes* x, size_t x_stride, size_t n,
                         const uint8_t* fetch, const bool key_bytes, const int rows, const int vectors) {
    (void)key_bytes;  // all bytes are signed
    for (int r = 0; r < rows; ++r) sum[r * vectors] = vi_set1(0);
    for (size_t i = 0; i < 4 * n; ++i) {
        __builtin_prefetch(fetch + i * DOT_LINES / 4 * 64);
        const int8x16x4_t byte = vld4q_s8((const int8_t*)bytes + i * stride);
        int16x4_t codes[DOT_ROWS];
        for (int r = 0; r < rows; ++r) codes[r] = vld1_s16(x[(size_t)r * x_stride + i / 4].code + i % 4 * 4);
        LW_DOT_PLACE(0);
        LW_DOT_PLACE(1);
        LW_DOT_PLACE(2);
        LW_DOT_PLACE(3);
    }
}
#undef LW_DOT_PLACE
#else
LW_INLINE void code_dots(vi* sum, const uint8_t* bytes, size_t stride, const wide_codes* x, size_t x_stride, size_t n,
                         const uint8_t* fetch, const bool key_bytes, const int rows, const int vectors) {
    (void)fetch;
    for (int r = 0; r < rows; ++r)
        for (int v = 0; v < vectors; ++v)
            for (int lane = 0; lane < LW_LANES; ++lane) {
                uint32_t total = 0;
                for (size_t k = 0; k < 16 * n; ++k) {
                    const uint8_t byte = bytes[k / 4 * stride + (size_t)(v * 64 + 4 * lane) + k % 4];
                    const int32_t counts = key_bytes && LW_KEY_BIAS != 0 ? byte : (int8_t)byte;
                    total += (uint32_t)(x[(size_t)r * x_stride + k / 16].code[k % 16] * counts);
                }
                sum[r * vectors + v].v[lane] = (int32_t)total;
            }
}
#endif

// Largest magnitudes of brief codes. With these VPMADDUBSW does not saturate: a query's codes meet key bytes, which go up
// to 255, and a weight's codes are not negative.
enum { BRIEF_QUERY = 63, BRIEF_WEIGHT = 127 };

// brief_dots is code_dots for brief codes, but adds to the sums and prefetches nothing.
#if defined(LW_ISA_avx512vnni) || defined(LW_ISA_avx2) || (defined(__ARM_FEATURE_DOTPROD) && !defined(LW_ISA_scalar))
typedef struct brief_codes {
    int8_t code[LW_LANES];
} brief_codes;

LW_INLINE void brief_store(brief_codes* to, vi codes) { vi_store_i8(to->code, codes); }

#if defined(LW_ISA_avx512vnni)
enum { BRIEF_ROWS = 8, BRIEF_VECTORS = 2 };
#elif defined(LW_ISA_avx2)
enum { BRIEF_ROWS = 2, BRIEF_VECTORS = 2 };
#else
enum { BRIEF_ROWS = 4, BRIEF_VECTORS = 1 };
#endif

#if defined(__x86_64__)
// Adds the products of one line of bytes and four codes.
LW_INLINE vi brief_add(vi sum, const uint8_t* line, int32_t four, const bool key_bytes) {
#if defined(LW_ISA_avx512vnni)
    const vi byte = _mm512_loadu_si512(line), codes = vi_set1(four);
    return key_bytes ? _mm512_dpbusd_epi32(sum, byte, codes) : _mm512_dpbusd_epi32(sum, codes, byte);
#else
    const __m256i codes = _mm256_set1_epi32(four), ones = _mm256_set1_epi16(1);
    const __m256i a = _mm256_loadu_si256((const __m256i*)line), b = _mm256_loadu_si256((const __m256i*)(line + 32));
    const __m256i c = key_bytes ? _mm256_maddubs_epi16(a, codes) : _mm256_maddubs_epi16(codes, a);
    const __m256i d = key_bytes ? _mm256_maddubs_epi16(b, codes) : _mm256_maddubs_epi16(codes, b);
    return (vi){_mm256_add_epi32(sum.a, _mm256_madd_epi16(c, ones)),
                _mm256_add_epi32(sum.b, _mm256_madd_epi16(d, ones))};
#endif
}

LW_INLINE void brief_dots(vi* sum, const uint8_t* bytes, size_t stride, const brief_codes* x, size_t x_stride, size_t n,
                          const bool key_bytes, const int rows, const int vectors) {
    for (size_t i = 0; i < n; ++i) {
#pragma GCC unroll 4
        for (size_t quad = 0; quad < 4; ++quad) {
            const uint8_t* at = bytes + (4 * i + quad) * stride;
#pragma GCC unroll 8
            for (int r = 0; r < rows; ++r) {
                int32_t four;
                memcpy(&four, x[(size_t)r * x_stride + i].code + 4 * quad, 4);
#pragma GCC unroll 2
                for (int v = 0; v < vectors; ++v)
                    sum[r * vectors + v] = brief_add(sum[r * vectors + v], at + 64 * v, four, key_bytes);
            }
        }
    }
}
#else
// One quad of codes; `quad` is a constant.
#define LW_BRIEF_QUAD(quad)                                                                                  \
    do {                                                                                                     \
        const int8_t* at = (const int8_t*)bytes + (4 * i + (quad)) * stride;                                 \
        const int8x16_t byte[4] = {vld1q_s8(at), vld1q_s8(at + 16), vld1q_s8(at + 32), vld1q_s8(at + 48)};   \
        for (int r = 0; r < rows; ++r)                                                                       \
            for (int p = 0; p < 4; ++p) sum[r].v[p] = vdotq_laneq_s32(sum[r].v[p], byte[p], codes[r], quad); \
    } while (0)

LW_INLINE void brief_dots(vi* sum, const uint8_t* bytes, size_t stride, const brief_codes* x, size_t x_stride, size_t n,
                          const bool key_bytes, const int rows, const int vectors) {
    (void)key_bytes;  // all bytes are signed
    (void)vectors;    // 1
    for (size_t i = 0; i < n; ++i) {
        int8x16_t codes[BRIEF_ROWS];
        for (int r = 0; r < rows; ++r) codes[r] = vld1q_s8(x[(size_t)r * x_stride + i].code);
        LW_BRIEF_QUAD(0);
        LW_BRIEF_QUAD(1);
        LW_BRIEF_QUAD(2);
        LW_BRIEF_QUAD(3);
    }
}
#undef LW_BRIEF_QUAD
#endif
#else
typedef wide_codes brief_codes;
enum { BRIEF_ROWS = DOT_ROWS, BRIEF_VECTORS = DOT_VECTORS };

LW_INLINE void brief_store(brief_codes* to, vi codes) { wide_store(to, codes); }

LW_INLINE void brief_dots(vi* sum, const uint8_t* bytes, size_t stride, const brief_codes* x, size_t x_stride, size_t n,
                          const bool key_bytes, const int rows, const int vectors) {
    vi more[BRIEF_ROWS * BRIEF_VECTORS];
    code_dots(more, bytes, stride, x, x_stride, n, bytes, key_bytes, rows, vectors);
    for (int i = 0; i < rows * vectors; ++i) sum[i] = vi_add(sum[i], more[i]);
}
#endif

#endif
