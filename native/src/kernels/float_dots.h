// Sums of products of floats in one order: the inner loop of attention over a cache of f16 or f32. Each lane is one
// chain of fma, so any loop over lanes and rows gives the same bits. NEON has its own loop because conversions from f16
// limit it.
#ifndef LW_KERNELS_FLOAT_DOTS_H
#define LW_KERNELS_FLOAT_DOTS_H

#include "kernels/fetch_kv.h"
#include "kernels/lane_ops.h"
#include "kernels/lanes.h"

// Factors of consecutive products: the factor of product k and row r is at[k * next + r * row].
typedef struct dot_factors {
    const float* at;
    size_t next, row;
} dot_factors;

// The vectors that are multiplied: vector v of product k is at element k * stride + v * LW_LANES of `at`, f16 or f32.
typedef struct dot_vectors {
    const uint8_t* at;
    size_t stride;
    bool is_f16;
} dot_vectors;

// f16 only: memory to prefetch meanwhile, `bytes` for each product.
typedef struct dot_fetch {
    const uint8_t* at;
    size_t bytes;
} dot_fetch;

#if defined(LW_ISA_avx512vnni)
enum { FLOAT_ROWS = 8, VALUE_ROWS = 4, SCORE_VECTORS = 2, VALUE_VECTORS = 4, NARROW_FROM = 9 };
#elif defined(__aarch64__) && !defined(LW_ISA_scalar)
enum { FLOAT_ROWS = 4, VALUE_ROWS = 4, SCORE_VECTORS = 2, VALUE_VECTORS = 2, NARROW_FROM = 3 };
#else
enum { FLOAT_ROWS = 2, VALUE_ROWS = 2, SCORE_VECTORS = 2, VALUE_VECTORS = 2, NARROW_FROM = 9 };
#endif

// Number of vectors, at most `most`, that are computed at once for `rows` rows.
LW_INLINE int dot_vectors_for(const int rows, const int most) { return rows >= NARROW_FROM ? 1 : most; }

// sum[r * vectors + v] += factors times vectors, `n` > 0 products in their order.
LW_INLINE void float_dots_plain(vf* sum, dot_factors x, dot_vectors y, size_t n, dot_fetch fetch, const int rows,
                                const int vectors) {
    const bool to_second = fetches_to_second();
    for (size_t k = 0; k < n; ++k) {
        vf value[4];
        if (y.is_f16) fetch_line(fetch.at + k * fetch.bytes, to_second);
        if (y.is_f16 && fetch.bytes > 64) fetch_line(fetch.at + k * fetch.bytes + 64, to_second);
#pragma GCC unroll 4
        for (int v = 0; v < vectors; ++v) {
            const size_t at = k * y.stride + (size_t)v * LW_LANES;
            value[v] = y.is_f16 ? vf_load_half((const uint16_t*)y.at + at) : vf_load((const float*)y.at + at);
        }
#pragma GCC unroll 8
        for (int r = 0; r < rows; ++r) {
            const vf factor = vf_set1(x.at[k * x.next + (size_t)r * x.row]);
#pragma GCC unroll 4
            for (int v = 0; v < vectors; ++v) sum[r * vectors + v] = vf_fma(factor, value[v], sum[r * vectors + v]);
        }
    }
}

#if defined(__aarch64__) && !defined(LW_ISA_scalar)
// Converting four registers of f16 takes 8 slots of one pipe. That limits 2 rows by 32 lanes: 18 cycles on Neoverse N1
// and N2 for 64 products. Four rows by 16 lanes take 12 cycles if the next product's lanes are converted while this
// product is multiplied.
LW_INLINE vf dot_load(dot_vectors y, size_t k) {
    return y.is_f16 ? vf_load_half((const uint16_t*)y.at + k * y.stride) : vf_load((const float*)y.at + k * y.stride);
}

// Factors of two products: a register of rows for each product, or for each row a register of its two factors.
typedef struct factor_pair {
    bool of_rows;
    float32x4_t product[2];
    float32x2_t row[FLOAT_ROWS];
} factor_pair;

LW_INLINE factor_pair factors_load(dot_factors x, size_t k, const int rows) {
    factor_pair p = {.of_rows = x.row == 1};
    const float* at = x.at + k * x.next;
    if (p.of_rows) {
        p.product[0] = vld1q_f32(at);
        p.product[1] = vld1q_f32(at + x.next);
    } else {
#pragma GCC unroll 4
        for (int r = 0; r < rows; ++r) p.row[r] = vld1_f32(at + (size_t)r * x.row);
    }
    return p;
}

LW_INLINE void dot_add(vf* sum, vf y, factor_pair x, const int which, const int rows) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i)
#pragma GCC unroll 4
        for (int r = 0; r < rows; ++r) {
            const float factor = x.of_rows ? x.product[which][r] : x.row[r][which];
            sum[r].v[i] = vfmaq_n_f32(sum[r].v[i], y.v[i], factor);
        }
}

// Like float_dots_plain. Either the factors of one product lie next to each other for consecutive rows, and then up to
// three floats after the last one may be read. Or the factors of one row lie next to each other for consecutive
// products.
LW_INLINE void float_dots(vf* sum, dot_factors x, dot_vectors y, size_t n, dot_fetch fetch, const int rows,
                          const int vectors) {
    if (rows <= 2 || vectors != 1) {
        float_dots_plain(sum, x, y, n, fetch, rows, vectors);
        return;
    }
    vf now = dot_load(y, 0);
    size_t k = 0;
    for (; k + 2 <= n; k += 2) {
        if (y.is_f16) __builtin_prefetch(fetch.at + k * fetch.bytes);
        const factor_pair both = factors_load(x, k, rows);
        const vf then = dot_load(y, k + 1);
        dot_add(sum, now, both, 0, rows);
        now = dot_load(y, k + 2 < n ? k + 2 : k);
        dot_add(sum, then, both, 1, rows);
    }
    if (k == n) return;
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r) sum[r] = vf_fma(vf_set1(x.at[k * x.next + (size_t)r * x.row]), now, sum[r]);
}
#else
LW_INLINE void float_dots(vf* sum, dot_factors x, dot_vectors y, size_t n, dot_fetch fetch, const int rows,
                          const int vectors) {
    float_dots_plain(sum, x, y, n, fetch, rows, vectors);
}
#endif

#endif
