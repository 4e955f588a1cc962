// Q8_0 products: signed bytes.
#include "kernels/avx2/matmul_panel.h"

LW_INLINE __m256i codes(const weight_segment* w, int i, int c, int vector) {
    const uint8_t* group = w->data + (size_t)i * LW_Q8_GROUP_BYTES;
    return load256(group + c * CHUNK_BYTES + vector * 32);
}

LW_INLINE __m256 scale(const weight_segment* w, size_t g, int vector) {
    const uint8_t* segment = w->data;
    return load_halves(segment + g * LW_Q8_GROUP_BYTES + LW_PANEL * LW_GROUP + vector * 16);
}

static const weight_type Q8 = {.few_rows = 4,
                               .chunks = 8,
                               .run = SIGNED,
                               .segment_bytes = LW_SEGMENT_GROUPS * LW_Q8_GROUP_BYTES,
                               .codes = codes,
                               .scale = scale};

LW_PANEL_KERNELS(q8g32, Q8, NULL)
