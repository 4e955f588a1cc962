// How AVX-512 reads the codes and scales of Q4_0, Q8_0 and Q6_K from packed panels.
#ifndef LW_KERNELS_AVX512VNNI_TYPES_H
#define LW_KERNELS_AVX512VNNI_TYPES_H

#include "kernels/avx512vnni/matmul_panel.h"

// Q4_0: nibbles hold q = 0..15 for the code q - 8.
// Chunks 0-3 are the low nibbles, 4-7 the high ones of the same bytes.
LW_INLINE __m512i q4_codes(const weight_segment* w, int i, int c, int vector) {
    const uint8_t* group = w->data + (size_t)i * LW_Q4_GROUP_BYTES;
    const __m512i two = _mm512_load_si512(group + c % 4 * CHUNK_BYTES + vector * 64);
    return _mm512_and_si512(c < 4 ? two : _mm512_srli_epi16(two, 4), _mm512_set1_epi8(15));
}

LW_INLINE __m512 q4_scale(const weight_segment* w, size_t g, int vector) {
    const uint8_t* segment = w->data;
    return load_halves(segment + g * LW_Q4_GROUP_BYTES + LW_PANEL * LW_GROUP / 2 + vector * 32);
}

static const weight_type Q4 = {.chunks = 8,
                               .shift = 3,
                               .segment_bytes = LW_SEGMENT_GROUPS * LW_Q4_GROUP_BYTES,
                               .codes = q4_codes,
                               .scale = q4_scale};

// Q8_0: bytes hold q + 128 for the code q.
LW_INLINE __m512i q8_codes(const weight_segment* w, int i, int c, int vector) {
    const uint8_t* group = w->data + (size_t)i * LW_Q8_GROUP_BYTES;
    return _mm512_load_si512(group + c * CHUNK_BYTES + vector * 64);
}

LW_INLINE __m512 q8_scale(const weight_segment* w, size_t g, int vector) {
    const uint8_t* segment = w->data;
    return load_halves(segment + g * LW_Q8_GROUP_BYTES + LW_PANEL * LW_GROUP + vector * 32);
}

static const weight_type Q8 = {.chunks = 8,
                               .shift = 7,
                               .plain = true,
                               .segment_bytes = LW_SEGMENT_GROUPS * LW_Q8_GROUP_BYTES,
                               .codes = q8_codes,
                               .scale = q8_scale};

// Q6_K: 6 bits hold q = 0..63 for the code q - 32; every 16 inputs have a scale.
// Low bits: chunks 0-3 are the low nibbles, 4-7 the high nibbles. Upper bits: each pair of bits belongs to two chunks.
LW_INLINE __m512i q6_codes(const weight_segment* w, int i, int c, int vector) {
    const uint8_t* group = w->data + (size_t)i * LW_Q6_GROUP_BYTES;
    const __m512i two = _mm512_load_si512(group + c % 4 * CHUNK_BYTES + vector * 64);
    const __m512i four = _mm512_load_si512(group + LW_Q6_LOW_BYTES + c % 2 * CHUNK_BYTES + vector * 64);
    const __m512i low = _mm512_and_si512(c < 4 ? two : _mm512_srli_epi16(two, 4), _mm512_set1_epi8(15));
    const int part = c / 2;  // the chunk's upper bits move to bits 4 and 5
    const __m512i top = part < 2 ? _mm512_slli_epi16(four, 4 - 2 * part) : _mm512_srli_epi16(four, 2 * part - 4);
    return _mm512_ternarylogic_epi32(low, top, _mm512_set1_epi8(0x30), 0xF8);  // low | (top & 0x30)
}

// The segment's f16 scale times the int8 scale of these 16 inputs; exact.
LW_INLINE __m512 q6_scale(const weight_segment* w, size_t g, int vector) {
    const uint8_t* segment = w->data;
    const uint8_t* at = segment + g / 2 * LW_Q6_GROUP_BYTES + LW_Q6_LOW_BYTES + LW_Q6_HIGH_BYTES + g % 2 * LW_PANEL;
    const __m512i small = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)(at + vector * 16)));
    return _mm512_mul_ps(load_halves(segment + LW_SEGMENT_GROUPS * LW_Q6_GROUP_BYTES + vector * 32),
                         _mm512_cvtepi32_ps(small));
}

static const weight_type Q6 = {
    .chunks = 4, .shift = 5, .segment_bytes = LW_Q6_SUPER_BYTES, .codes = q6_codes, .scale = q6_scale};

#endif
