// Q8_0 products: signed bytes.
#include "kernels/avx2/matmul_tile.h"

LW_INLINE __m256i codes(const uint8_t* group, int c, int vector) {
    return load256(group + c * CHUNK_BYTES + vector * 32);
}

LW_INLINE __m256 scale(const uint8_t* segment, size_t g, int vector) {
    return load_halves(segment + g * LW_Q8_GROUP_BYTES + LW_PANEL * LW_GROUP + vector * 16);
}

static const weight_type Q8 = {.few_rows = 4,
                               .chunks = 8,
                               .run = WORDS,
                               .group_bytes = LW_Q8_GROUP_BYTES,
                               .segment_bytes = LW_SEGMENT_GROUPS * LW_Q8_GROUP_BYTES,
                               .codes = codes,
                               .scale = scale};

void gemm_q8g32_q8s128_2x32__avx2(const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out,
                                  void* scratch) {
    gemm(Q8, w, x, panel, out, scratch);
}

void gemv_q8g32_q8s128_1x32__avx2(const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out,
                                  void* scratch) {
    (void)scratch;
    gemv(Q8, w, x, panel, out);
}
