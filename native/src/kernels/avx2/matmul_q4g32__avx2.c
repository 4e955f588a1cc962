// Q4_0 products: nibbles hold q = 0..15 for the code q - 8.
#include "kernels/avx2/matmul_panel.h"

// Chunks 0-3 are the low nibbles, 4-7 the high ones of the same bytes.
LW_INLINE __m256i codes(const weight_segment* w, int i, int c, int vector) {
    const uint8_t* group = w->data + (size_t)i * LW_Q4_GROUP_BYTES;
    const __m256i two = load256(group + c % 4 * CHUNK_BYTES + vector * 32);
    return _mm256_and_si256(c < 4 ? two : _mm256_srli_epi16(two, 4), _mm256_set1_epi8(15));
}

LW_INLINE __m256 scale(const weight_segment* w, size_t g, int vector) {
    const uint8_t* segment = w->data;
    return load_halves(segment + g * LW_Q4_GROUP_BYTES + LW_PANEL * LW_GROUP / 2 + vector * 16);
}

static const weight_type Q4 = {.few_rows = 4,
                               .chunks = 8,
                               .run = 8,  // 8 * 2 * 15 * 127 < 2^15
                               .shift = 3,
                               .segment_bytes = LW_SEGMENT_GROUPS * LW_Q4_GROUP_BYTES,
                               .codes = codes,
                               .scale = scale};

LW_PANEL_KERNELS(q4g32, Q4, NULL)
