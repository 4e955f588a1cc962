// Lanes on AVX-512.
#include <immintrin.h>

typedef __m512 vf;
typedef __m512i vi;
enum { VF_AT_ONCE = 4 };  // so many vectors hide the latency of long chains and still fit the registers

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
// c - a * b, rounded once
LW_INLINE vf vf_fnma(vf a, vf b, vf c) { return _mm512_fnmadd_ps(a, b, c); }
LW_INLINE vf vf_load_half(const uint16_t* p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p)); }
// 16 unsigned bytes, shifted right by `shift` bits.
LW_INLINE vf vf_from_bytes(const uint8_t* p, int shift) {
    const __m512i wide = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p));
    return _mm512_cvtepi32_ps(_mm512_srli_epi32(wide, (unsigned)shift));
}
// a where x >= limit, else 0
LW_INLINE vf vf_keep_ge(vf x, float limit, vf a) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(limit), _CMP_GE_OQ), a);
}
LW_INLINE vi vf_bits(vf a) { return _mm512_castps_si512(a); }
LW_INLINE vf vi_as_float(vi a) { return _mm512_castsi512_ps(a); }
LW_INLINE vi vf_round(vf a) { return _mm512_cvtps_epi32(a); }  // nearest even; |a| < 2^31
LW_INLINE vf vf_from_int(vi a) { return _mm512_cvtepi32_ps(a); }
LW_INLINE vi vi_set1(int32_t a) { return _mm512_set1_epi32(a); }
LW_INLINE vi vi_add(vi a, vi b) { return _mm512_add_epi32(a, b); }
LW_INLINE vi vi_and(vi a, vi b) { return _mm512_and_si512(a, b); }
LW_INLINE vi vi_shl(vi a, int n) { return _mm512_slli_epi32(a, (unsigned)n); }
LW_INLINE vi vi_sar(vi a, int n) { return _mm512_srai_epi32(a, (unsigned)n); }  // rounds down
LW_INLINE vi vi_max(vi a, vi b) { return _mm512_max_epi32(a, b); }
LW_INLINE int32_t vi_largest(vi a) { return _mm512_reduce_max_epi32(a); }
// Folds the 16 lanes of each of four vectors to four lanes: 32-bit lane i of every 128 bits belongs to x[i].
#define LW_FOLD_FOUR(name, fold)                                                                 \
    LW_INLINE __m512i name(const vi x[4]) {                                                      \
        const vi a = fold(_mm512_unpacklo_epi32(x[0], x[1]), _mm512_unpackhi_epi32(x[0], x[1])); \
        const vi b = fold(_mm512_unpacklo_epi32(x[2], x[3]), _mm512_unpackhi_epi32(x[2], x[3])); \
        return fold(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));                   \
    }
LW_FOLD_FOUR(vi_sums_of_four, _mm512_add_epi32)
LW_FOLD_FOUR(vi_largest_of_four, _mm512_max_epi32)
#undef LW_FOLD_FOUR

// Exact sums of the lanes of: x[0]; x[0] and x[1]; x[2]; x[2] and x[3].
LW_INLINE void vi_totals(int32_t* to, const vi x[4]) {
    const __m512i folded = vi_sums_of_four(x);
    const __m256i half = _mm256_add_epi32(_mm512_castsi512_si256(folded), _mm512_extracti64x4_epi64(folded, 1));
    const __m128i sums = _mm_add_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    _mm_storeu_si128((__m128i*)to, _mm_add_epi32(sums, _mm_slli_epi64(sums, 32)));
}

// The largest lane of each vector.
LW_INLINE void vi_largest_each(int32_t* to, const vi x[4]) {
    const __m512i folded = vi_largest_of_four(x);
    const __m256i half = _mm256_max_epi32(_mm512_castsi512_si256(folded), _mm512_extracti64x4_epi64(folded, 1));
    _mm_storeu_si128((__m128i*)to, _mm_max_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1)));
}

// Number of lanes of a and b that are at least `limit`.
LW_INLINE int vi_count_ge(vi a, vi b, int32_t limit) {
    const vi least = _mm512_set1_epi32(limit);
    return __builtin_popcount(_mm512_cmpge_epi32_mask(a, least) | (unsigned)_mm512_cmpge_epi32_mask(b, least) << 16);
}

LW_INLINE void vi_store_i8(int8_t* p, vi a) { _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8(a)); }
LW_INLINE float vf_largest(vf a) { return _mm512_reduce_max_ps(a); }

// Lane r: the largest of x[r], for r below n, a power of two up to 8; further lanes are undefined.
LW_INLINE vf vf_largest_each(const vf* x, int n) {
    vf half[4], quarter[2];
    for (int r = 0; r < 4; ++r) {  // two rows in a register
        const vf a = x[r % n], b = x[(r + 4) % n];
        half[r] = vf_max(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xEE));
    }
    for (int i = 0; i < 2; ++i)  // rows i, i + 4, i + 2, i + 6
        quarter[i] =
            vf_max(_mm512_shuffle_f32x4(half[i], half[i + 2], 0x88), _mm512_shuffle_f32x4(half[i], half[i + 2], 0xDD));
    vf two = vf_max(_mm512_unpacklo_ps(quarter[0], quarter[1]), _mm512_unpackhi_ps(quarter[0], quarter[1]));
    two = vf_max(two, _mm512_permute_ps(two, 0x4E));
    return _mm512_permutexvar_ps(_mm512_setr_epi32(0, 1, 8, 9, 4, 5, 12, 13, 0, 0, 0, 0, 0, 0, 0, 0), two);
}
