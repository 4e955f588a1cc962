// Lanes on AVX-512.
#include <immintrin.h>

typedef __m512 vf;
typedef __m512i vi;

LW_INLINE vf vf_load(const float* p) { return _mm512_loadu_ps(p); }
LW_INLINE void vf_store(float* p, vf a) { _mm512_storeu_ps(p, a); }
LW_INLINE vf vf_set1(float a) { return _mm512_set1_ps(a); }
LW_INLINE vf vf_add(vf a, vf b) { return _mm512_add_ps(a, b); }
LW_INLINE vf vf_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
LW_INLINE vf vf_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
LW_INLINE vf vf_div(vf a, vf b) { return _mm512_div_ps(a, b); }
LW_INLINE vf vf_min(vf a, vf b) { return _mm512_min_ps(a, b); }
LW_INLINE vf vf_max(vf a, vf b) { return _mm512_max_ps(a, b); }
LW_INLINE vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
LW_INLINE vf vf_load_half(const uint16_t* p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p)); }
// a where x >= limit, else 0
LW_INLINE vf vf_keep_ge(vf x, float limit, vf a) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(limit), _CMP_GE_OQ), a);
}
LW_INLINE vi vf_bits(vf a) { return _mm512_castps_si512(a); }
LW_INLINE vf vi_as_float(vi a) { return _mm512_castsi512_ps(a); }
LW_INLINE vi vf_round(vf a) { return _mm512_cvtps_epi32(a); }  // nearest even; |a| < 2^31
LW_INLINE vi vi_set1(int32_t a) { return _mm512_set1_epi32(a); }
LW_INLINE vi vi_add(vi a, vi b) { return _mm512_add_epi32(a, b); }
LW_INLINE vi vi_and(vi a, vi b) { return _mm512_and_si512(a, b); }
LW_INLINE vi vi_shl(vi a, int n) { return _mm512_slli_epi32(a, (unsigned)n); }
LW_INLINE vi vi_max(vi a, vi b) { return _mm512_max_epi32(a, b); }
LW_INLINE int32_t vi_largest(vi a) { return _mm512_reduce_max_epi32(a); }
LW_INLINE int32_t vi_sum(vi a) { return _mm512_reduce_add_epi32(a); }  // exact, so its order does not matter
LW_INLINE void vi_store_i8(int8_t* p, vi a) { _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8(a)); }
LW_INLINE float vf_largest(vf a) { return _mm512_reduce_max_ps(a); }
