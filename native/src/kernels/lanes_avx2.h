// Lanes on AVX2: two registers of eight.
#include <immintrin.h>

typedef struct vf {
    __m256 a, b;
} vf;
typedef struct vi {
    __m256i a, b;
} vi;
enum { VF_AT_ONCE = 2 };

LW_INLINE vf vf_load(const float* p) { return (vf){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
LW_INLINE void vf_store(float* p, vf x) {
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
}
LW_INLINE vf vf_set1(float x) { return (vf){_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
LW_INLINE vf vf_add(vf x, vf y) { return (vf){_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
LW_INLINE vf vf_sub(vf x, vf y) { return (vf){_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
LW_INLINE vf vf_mul(vf x, vf y) { return (vf){_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
LW_INLINE vf vf_div(vf x, vf y) { return (vf){_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
LW_INLINE vf vf_min(vf x, vf y) { return (vf){_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
LW_INLINE vf vf_max(vf x, vf y) { return (vf){_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
LW_INLINE vf vf_fma(vf x, vf y, vf z) { return (vf){_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
LW_INLINE vf vf_fnma(vf x, vf y, vf z) {
    return (vf){_mm256_fnmadd_ps(x.a, y.a, z.a), _mm256_fnmadd_ps(x.b, y.b, z.b)};
}
LW_INLINE vf vf_load_half(const uint16_t* p) {
    return (vf){_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)),
                _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(p + 8)))};
}
LW_INLINE __m256 vf_from_eight_bytes(const uint8_t* p, int shift) {
    const __m256i wide = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p));
    return _mm256_cvtepi32_ps(_mm256_srli_epi32(wide, shift));
}
LW_INLINE vf vf_from_bytes(const uint8_t* p, int shift) {
    return (vf){vf_from_eight_bytes(p, shift), vf_from_eight_bytes(p + 8, shift)};
}
LW_INLINE vf vf_keep_ge(vf x, float limit, vf y) {
    const __m256 l = _mm256_set1_ps(limit);
    return (vf){_mm256_and_ps(y.a, _mm256_cmp_ps(x.a, l, _CMP_GE_OQ)),
                _mm256_and_ps(y.b, _mm256_cmp_ps(x.b, l, _CMP_GE_OQ))};
}
LW_INLINE vi vf_bits(vf x) { return (vi){_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)}; }
LW_INLINE vf vi_as_float(vi x) { return (vf){_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)}; }
LW_INLINE vi vf_round(vf x) { return (vi){_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)}; }
LW_INLINE vf vf_from_int(vi x) { return (vf){_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
LW_INLINE vi vi_set1(int32_t x) { return (vi){_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
LW_INLINE vi vi_add(vi x, vi y) { return (vi){_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
LW_INLINE vi vi_and(vi x, vi y) { return (vi){_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)}; }
LW_INLINE vi vi_shl(vi x, int n) { return (vi){_mm256_slli_epi32(x.a, n), _mm256_slli_epi32(x.b, n)}; }
LW_INLINE vi vi_max(vi x, vi y) { return (vi){_mm256_max_epi32(x.a, y.a), _mm256_max_epi32(x.b, y.b)}; }
LW_INLINE int32_t vi_largest(vi x) {
    const __m256i m = _mm256_max_epi32(x.a, x.b);
    __m128i n = _mm_max_epi32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
    n = _mm_max_epi32(n, _mm_shuffle_epi32(n, 0x4E));
    n = _mm_max_epi32(n, _mm_shuffle_epi32(n, 0xB1));
    return _mm_cvtsi128_si32(n);
}
LW_INLINE void vi_totals(int32_t* to, const vi x[4]) {
    const __m256i low = _mm256_hadd_epi32(_mm256_add_epi32(x[0].a, x[0].b), _mm256_add_epi32(x[1].a, x[1].b));
    const __m256i high = _mm256_hadd_epi32(_mm256_add_epi32(x[2].a, x[2].b), _mm256_add_epi32(x[3].a, x[3].b));
    const __m256i halves = _mm256_hadd_epi32(low, high);
    const __m128i sums = _mm_add_epi32(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1));
    _mm_storeu_si128((__m128i*)to, _mm_add_epi32(sums, _mm_slli_epi64(sums, 32)));
}

LW_INLINE __m256i vi_largest_pair(__m256i x, __m256i y) {
    return _mm256_max_epi32(_mm256_unpacklo_epi32(x, y), _mm256_unpackhi_epi32(x, y));
}

LW_INLINE void vi_largest_each(int32_t* to, const vi x[4]) {
    const __m256i a = vi_largest_pair(_mm256_max_epi32(x[0].a, x[0].b), _mm256_max_epi32(x[1].a, x[1].b));
    const __m256i b = vi_largest_pair(_mm256_max_epi32(x[2].a, x[2].b), _mm256_max_epi32(x[3].a, x[3].b));
    const __m256i all = _mm256_max_epi32(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
    _mm_storeu_si128((__m128i*)to, _mm_max_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1)));
}

LW_INLINE int vi_count_ge(vi x, vi y, int32_t limit) {
    const __m256i below = _mm256_set1_epi32(limit - 1);
    const __m256i first = _mm256_packs_epi32(_mm256_cmpgt_epi32(x.a, below), _mm256_cmpgt_epi32(x.b, below));
    const __m256i second = _mm256_packs_epi32(_mm256_cmpgt_epi32(y.a, below), _mm256_cmpgt_epi32(y.b, below));
    return __builtin_popcount((unsigned)_mm256_movemask_epi8(_mm256_packs_epi16(first, second)));
}

LW_INLINE void vi_store_i8(int8_t* p, vi x) {
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packs_epi32(x.a, x.b), 0xD8);
    _mm_storeu_si128((__m128i*)p, _mm_packs_epi16(_mm256_castsi256_si128(packed), _mm256_extracti128_si256(packed, 1)));
}
LW_INLINE float vf_largest(vf x) {
    const __m256 m = _mm256_max_ps(x.a, x.b);
    __m128 n = _mm_max_ps(_mm256_castps256_ps128(m), _mm256_extractf128_ps(m, 1));
    n = _mm_max_ps(n, _mm_movehl_ps(n, n));
    return _mm_cvtss_f32(_mm_max_ss(n, _mm_movehdup_ps(n)));
}
