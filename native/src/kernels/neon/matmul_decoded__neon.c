// Rows by one decoded segment: shared by all coded types whose codes have the same range.
#include "kernels/neon/matmul_coded.h"
#include "kernels/neon/matmul_tile.h"

INLINE void rows(const source from, const size_t terms, const segment* s, const lw_activations* x, float* results) {
    for (size_t row = 0; row < x->rows; ++row) tile(from, terms, s, x, row, results);
}

void decoded_rows__neon(const segment* s, bool halves, size_t terms, const lw_activations* x, float* results) {
    if (halves && terms == 2)
        rows(FROM_DECODED16, 2, s, x, results);
    else if (halves)
        rows(FROM_DECODED16, 8, s, x, results);
    else if (terms == 2)
        rows(FROM_DECODED32, 2, s, x, results);
    else if (terms == 8)
        rows(FROM_DECODED32, 8, s, x, results);
    else
        rows(FROM_DECODED32, 16, s, x, results);
}
