// F32, F16 and BF16 products: one chain of fma per output in input order; a lane is an output.
#include <immintrin.h>
#include <string.h>

#include "kernels/layout.h"

#define LW_INLINE static inline __attribute__((always_inline))

enum {
    TILE_ROWS = 3,  // 12 sums, 3 broadcasts and a weight: all 16 registers
    BLOCK = 128,    // inputs decoded at a time: 16 KiB of floats
    VECTORS = LW_PANEL / 8,
};

typedef struct weight_type {
    size_t bytes;
    __m256 (*load)(const uint8_t* p);  // 8 weights
} weight_type;

LW_INLINE __m256 load_f32(const uint8_t* p) { return _mm256_load_ps((const float*)p); }

LW_INLINE __m256 load_f16(const uint8_t* p) { return _mm256_cvtph_ps(_mm_load_si128((const __m128i*)p)); }

LW_INLINE __m256 load_bf16(const uint8_t* p) {
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_load_si128((const __m128i*)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}

static const weight_type F32 = {4, load_f32}, F16 = {2, load_f16}, BF16 = {2, load_bf16};

// Continues the chains of some rows over `n` inputs.
LW_INLINE void tile(const weight_type type, const int rows, const uint8_t* weights, const float* x, size_t stride,
                    size_t n, float* results) {
    __m256 acc[TILE_ROWS][VECTORS];
#pragma GCC unroll 3
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; ++v) acc[r][v] = _mm256_load_ps(results + r * LW_PANEL + v * 8);
    for (size_t k = 0; k < n; ++k, weights += LW_PANEL * type.bytes) {
        __m256 a[TILE_ROWS];
#pragma GCC unroll 3
        for (int r = 0; r < rows; ++r) a[r] = _mm256_set1_ps(x[(size_t)r * stride + k]);
#pragma GCC unroll 4
        for (size_t v = 0; v < VECTORS; ++v) {
            const __m256 w = type.load(weights + v * 8 * type.bytes);
#pragma GCC unroll 3
            for (int r = 0; r < rows; ++r) acc[r][v] = _mm256_fmadd_ps(w, a[r], acc[r][v]);
        }
    }
#pragma GCC unroll 3
    for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; ++v) _mm256_store_ps(results + r * LW_PANEL + v * 8, acc[r][v]);
}

LW_INLINE void all_rows(const weight_type type, const uint8_t* weights, const lw_activations* x, size_t first, size_t n,
                        float* results) {
    const size_t tiles = (x->rows + TILE_ROWS - 1) / TILE_ROWS;
    for (size_t t = 0, row = 0, end; t < tiles; ++t, row = end) {
        end = x->rows * (t + 1) / tiles;
        const float* from = x->f32 + row * x->cols + first;
        float* to = results + row * LW_PANEL;
        switch (end - row) {
            case 1:
                tile(type, 1, weights, from, x->cols, n, to);
                break;
            case 2:
                tile(type, 2, weights, from, x->cols, n, to);
                break;
            default:
                tile(type, 3, weights, from, x->cols, n, to);
                break;
        }
    }
}

// Blocks of inputs, so that a panel's weights are read and widened once for all rows.
LW_INLINE void gemm(const weight_type type, const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out,
                    float* block) {
    const uint8_t* weights = w->data + panel * w->panel_bytes;
    float* results = block + BLOCK * LW_PANEL;
    memset(results, 0, x->rows * LW_PANEL * sizeof *results);
    for (size_t k = 0; k < x->cols; k += BLOCK, weights += BLOCK * LW_PANEL * type.bytes) {
        const size_t n = x->cols - k < BLOCK ? x->cols - k : BLOCK;
        if (x->rows <= TILE_ROWS || type.bytes == 4) {
            all_rows(type, weights, x, k, n, results);
            continue;
        }
        for (size_t i = 0; i < n * LW_PANEL; i += 8) _mm256_store_ps(block + i, type.load(weights + i * type.bytes));
        all_rows(F32, (const uint8_t*)block, x, k, n, results);
    }
    lw_store_panel(w, panel, x->rows, results, out);
}

LW_INLINE void gemv(const weight_type type, const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out) {
    _Alignas(64) float results[LW_PANEL] = {0};
    tile(type, 1, w->data + panel * w->panel_bytes, x->f32, x->cols, x->cols, results);
    lw_store_panel(w, panel, 1, results, out);
}

void gemm_f32_f32_3x32__avx2(const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out, void* scratch) {
    gemm(F32, w, x, panel, out, scratch);
}

void gemm_f16_f32_3x32__avx2(const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out, void* scratch) {
    gemm(F16, w, x, panel, out, scratch);
}

void gemm_bf16_f32_3x32__avx2(const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out, void* scratch) {
    gemm(BF16, w, x, panel, out, scratch);
}

void gemv_f32_f32_1x32__avx2(const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out, void* scratch) {
    (void)scratch;
    gemv(F32, w, x, panel, out);
}

void gemv_f16_f32_1x32__avx2(const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out, void* scratch) {
    (void)scratch;
    gemv(F16, w, x, panel, out);
}

void gemv_bf16_f32_1x32__avx2(const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out, void* scratch) {
    (void)scratch;
    gemv(BF16, w, x, panel, out);
}
