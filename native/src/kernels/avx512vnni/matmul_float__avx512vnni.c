// F32, F16 and BF16 products in 512-bit vectors.
#include <immintrin.h>

#define VECTOR __m512
#define LANES 16
#define TILE_ROWS 8  // 16 chains: fma has a latency of 4 cycles, and two start in each
#define LOAD _mm512_load_ps
#define STORE _mm512_store_ps
#define BROADCAST _mm512_set1_ps
#define FMADD _mm512_fmadd_ps
#include "kernels/matmul_float_x86.inc"

LW_INLINE __m512 load_f16(const uint8_t* p) { return _mm512_cvtph_ps(_mm256_load_si256((const __m256i*)p)); }

LW_INLINE __m512 load_bf16(const uint8_t* p) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_load_si256((const __m256i*)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

static const weight_type F16 = {2, load_f16}, BF16 = {2, load_bf16};

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
