// Q6_K products: 6 bits hold q = 0..63 for the code q - 32; every 16 inputs have a scale.
#include "kernels/avx2/matmul_panel.h"

// Low bits: chunks 0-3 are the low nibbles, 4-7 the high nibbles. Upper bits: each pair of bits belongs to two chunks.
LW_INLINE __m256i codes(const weight_segment* w, int i, int c, int vector) {
    const uint8_t* group = w->data + (size_t)i * LW_Q6_GROUP_BYTES;
    const __m256i two = load256(group + c % 4 * CHUNK_BYTES + vector * 32);
    const __m256i four = load256(group + LW_Q6_LOW_BYTES + c % 2 * CHUNK_BYTES + vector * 32);
    const __m256i low = _mm256_and_si256(c < 4 ? two : _mm256_srli_epi16(two, 4), _mm256_set1_epi8(15));
    const int part = c / 2;  // the chunk's upper bits move to bits 4 and 5
    const __m256i top = part < 2 ? _mm256_slli_epi16(four, 4 - 2 * part) : _mm256_srli_epi16(four, 2 * part - 4);
    return _mm256_or_si256(low, _mm256_and_si256(top, _mm256_set1_epi8(0x30)));
}

// The segment's f16 scale times the int8 scale of these 16 inputs; exact.
LW_INLINE __m256 scale(const weight_segment* w, size_t g, int vector) {
    const uint8_t* segment = w->data;
    const uint8_t* at = segment + g / 2 * LW_Q6_GROUP_BYTES + LW_Q6_LOW_BYTES + LW_Q6_HIGH_BYTES + g % 2 * LW_PANEL;
    const __m256i small = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)(at + vector * 8)));
    return _mm256_mul_ps(load_halves(segment + LW_SEGMENT_GROUPS * LW_Q6_GROUP_BYTES + vector * 16),
                         _mm256_cvtepi32_ps(small));
}

static const weight_type Q6 = {.few_rows = 2,
                               .chunks = 4,
                               .run = 2,  // 2 * 2 * 63 * 127 < 2^15
                               .shift = 5,
                               .segment_bytes = LW_Q6_SUPER_BYTES,
                               .codes = codes,
                               .scale = scale};

LW_PANEL_KERNELS(q6k, Q6, NULL)
