// Q4_0 products: nibbles hold q = 0..15 for the code q - 8.
#include "kernels/avx512vnni/matmul_tile.h"

// Chunks 0-3 are the low nibbles, 4-7 the high ones of the same bytes.
LW_INLINE __m512i codes(const weight_segment* w, int i, int c, int vector) {
    const uint8_t* group = w->data + (size_t)i * LW_Q4_GROUP_BYTES;
    const __m512i two = _mm512_load_si512(group + c % 4 * CHUNK_BYTES + vector * 64);
    return _mm512_and_si512(c < 4 ? two : _mm512_srli_epi16(two, 4), _mm512_set1_epi8(15));
}

LW_INLINE __m512 scale(const weight_segment* w, size_t g, int vector) {
    const uint8_t* segment = w->data;
    return load_halves(segment + g * LW_Q4_GROUP_BYTES + LW_PANEL * LW_GROUP / 2 + vector * 32);
}

static const weight_type Q4 = {.chunks = 8,
                               .shift = 3,
                               .group_bytes = LW_Q4_GROUP_BYTES,
                               .segment_bytes = LW_SEGMENT_GROUPS * LW_Q4_GROUP_BYTES,
                               .codes = codes,
                               .scale = scale};

void gemm_q4g32_q8s128_7x32__avx512vnni(const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out,
                                        void* scratch) {
    gemm(Q4, w, x, panel, out, scratch);
}

void gemv_q4g32_q8s128_1x32__avx512vnni(const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out,
                                        void* scratch) {
    gemv(Q4, w, x, panel, out, scratch);
}
