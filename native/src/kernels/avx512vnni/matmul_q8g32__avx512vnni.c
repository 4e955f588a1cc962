// Q8_0 products: bytes hold q + 128 for the code q.
#include "kernels/avx512vnni/matmul_tile.h"

LW_INLINE __m512i codes(const weight_segment* w, int i, int c, int vector) {
    const uint8_t* group = w->data + (size_t)i * LW_Q8_GROUP_BYTES;
    return _mm512_load_si512(group + c * CHUNK_BYTES + vector * 64);
}

LW_INLINE __m512 scale(const weight_segment* w, size_t g, int vector) {
    const uint8_t* segment = w->data;
    return load_halves(segment + g * LW_Q8_GROUP_BYTES + LW_PANEL * LW_GROUP + vector * 32);
}

static const weight_type Q8 = {.chunks = 8,
                               .shift = 7,
                               .plain = true,
                               .group_bytes = LW_Q8_GROUP_BYTES,
                               .segment_bytes = LW_SEGMENT_GROUPS * LW_Q8_GROUP_BYTES,
                               .codes = codes,
                               .scale = scale};

void gemm_q8g32_q8s128_7x32__avx512vnni(const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out,
                                        void* scratch) {
    gemm(Q8, w, x, panel, out, scratch);
}

void gemv_q8g32_q8s128_1x32__avx512vnni(const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out,
                                        void* scratch) {
    gemv(Q8, w, x, panel, out, scratch);
}
