// Rows by one decoded segment: shared by all coded types with the same number of inputs per scale.
#include "kernels/avx512vnni/matmul_tile.h"

#define DECODED_ROWS(group)                                                                                      \
    void lw_decoded_rows_##group##__avx512vnni(const weight_segment* w, const lw_activations* x, size_t segment, \
                                               float* results) {                                                 \
        static const weight_type type = {.chunks = (group) / 4, .shift = 7};                                     \
        weight_segment ws = *w;                                                                                  \
        all_rows(type, false, TILE_ROWS, &ws, x, segment, results);                                              \
    }

DECODED_ROWS(16)
DECODED_ROWS(32)
DECODED_ROWS(64)
DECODED_ROWS(128)
