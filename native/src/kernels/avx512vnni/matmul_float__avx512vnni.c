// F32, F16 and BF16 products: one chain of fma per output in input order; a lane is an output.
#include <immintrin.h>
#include <string.h>

#include "kernels/layout.h"

#define LW_INLINE static inline __attribute__((always_inline))

enum {
    TILE_ROWS = 8,  // 16 chains; fma has latency 4, two a cycle
    BLOCK = 128,    // inputs decoded at a time: 16 KiB of floats
    VECTORS = LW_PANEL / 16,
};

typedef struct weight_type {
    size_t bytes;
    __m512 (*load)(const uint8_t* p);  // 16 weights
} weight_type;

LW_INLINE __m512 load_f32(const uint8_t* p) { return _mm512_load_ps(p); }

LW_INLINE __m512 load_f16(const uint8_t* p) { return _mm512_cvtph_ps(_mm256_load_si256((const __m256i*)p)); }

LW_INLINE __m512 load_bf16(const uint8_t* p) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_load_si256((const __m256i*)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

static const weight_type F32 = {4, load_f32}, F16 = {2, load_f16}, BF16 = {2, load_bf16};

// Continues the chains of some rows over `n` inputs.
LW_INLINE void tile(const weight_type type, const int rows, const uint8_t* weights, const float* x, size_t stride,
                    size_t n, float* results) {
    __m512 acc[TILE_ROWS][VECTORS];
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
        acc[r][0] = _mm512_load_ps(results + r * LW_PANEL);
        acc[r][1] = _mm512_load_ps(results + r * LW_PANEL + 16);
    }
    for (size_t k = 0; k < n; ++k, weights += LW_PANEL * type.bytes) {
        const __m512 w0 = type.load(weights), w1 = type.load(weights + 16 * type.bytes);
#pragma GCC unroll 8
        for (int r = 0; r < rows; ++r) {
            const __m512 a = _mm512_set1_ps(x[(size_t)r * stride + k]);
            acc[r][0] = _mm512_fmadd_ps(w0, a, acc[r][0]);
            acc[r][1] = _mm512_fmadd_ps(w1, a, acc[r][1]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
        _mm512_store_ps(results + r * LW_PANEL, acc[r][0]);
        _mm512_store_ps(results + r * LW_PANEL + 16, acc[r][1]);
    }
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
            case 3:
                tile(type, 3, weights, from, x->cols, n, to);
                break;
            case 4:
                tile(type, 4, weights, from, x->cols, n, to);
                break;
            case 5:
                tile(type, 5, weights, from, x->cols, n, to);
                break;
            case 6:
                tile(type, 6, weights, from, x->cols, n, to);
                break;
            case 7:
                tile(type, 7, weights, from, x->cols, n, to);
                break;
            default:
                tile(type, 8, weights, from, x->cols, n, to);
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
        for (size_t i = 0; i < n * LW_PANEL; i += 16) _mm512_store_ps(block + i, type.load(weights + i * type.bytes));
        all_rows(F32, (const uint8_t*)block, x, k, n, results);
    }
    lw_store_panel(w, panel, x->rows, results, out);
}

LW_INLINE void gemv(const weight_type type, const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out) {
    _Alignas(64) float results[LW_PANEL] = {0};
    tile(type, 1, w->data + panel * w->panel_bytes, x->f32, x->cols, x->cols, results);
    lw_store_panel(w, panel, 1, results, out);
}

void gemm_f32_f32_8x32__avx512vnni(const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out,
                                   void* scratch) {
    gemm(F32, w, x, panel, out, scratch);
}

void gemm_f16_f32_8x32__avx512vnni(const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out,
                                   void* scratch) {
    gemm(F16, w, x, panel, out, scratch);
}

void gemm_bf16_f32_8x32__avx512vnni(const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out,
                                    void* scratch) {
    gemm(BF16, w, x, panel, out, scratch);
}

void gemv_f32_f32_1x32__avx512vnni(const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out,
                                   void* scratch) {
    (void)scratch;
    gemv(F32, w, x, panel, out);
}

void gemv_f16_f32_1x32__avx512vnni(const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out,
                                   void* scratch) {
    (void)scratch;
    gemv(F16, w, x, panel, out);
}

void gemv_bf16_f32_1x32__avx512vnni(const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out,
                                    void* scratch) {
    (void)scratch;
    gemv(BF16, w, x, panel, out);
}
