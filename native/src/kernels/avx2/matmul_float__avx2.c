// F32, F16 and BF16 products in 256-bit vectors.
#include <immintrin.h>

#define VECTOR __m256
#define LANES 8
#define TILE_ROWS 3  // 12 sums, 3 broadcasts and a weight take all 16 registers
#define LOAD _mm256_load_ps
#define STORE _mm256_store_ps
#define BROADCAST _mm256_set1_ps
#define FMADD _mm256_fmadd_ps
#include "kernels/matmul_float_x86.inc"

LW_INLINE __m256 load_f16(const uint8_t* p) { return _mm256_cvtph_ps(_mm_load_si128((const __m128i*)p)); }

LW_INLINE __m256 load_bf16(const uint8_t* p) {
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_load_si128((const __m128i*)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}

static const weight_type F16 = {2, load_f16}, BF16 = {2, load_bf16};

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
