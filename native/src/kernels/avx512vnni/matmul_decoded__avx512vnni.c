// Rows by one decoded segment: the same for every coded type whose scales serve as many inputs.
#include "kernels/avx512vnni/matmul_tile.h"

static const weight_type GROUPS_16 = {.chunks = 4, .shift = 7};
static const weight_type GROUPS_32 = {.chunks = 8, .shift = 7};
static const weight_type GROUPS_64 = {.chunks = 16, .shift = 7};
static const weight_type GROUPS_128 = {.chunks = 32, .shift = 7};

void lw_decoded_rows_16__avx512vnni(const weight_segment* w, const lw_activations* x, size_t segment, float* results) {
    weight_segment ws = *w;
    all_rows(GROUPS_16, false, TILE_ROWS, &ws, x, segment, results);
}

void lw_decoded_rows_32__avx512vnni(const weight_segment* w, const lw_activations* x, size_t segment, float* results) {
    weight_segment ws = *w;
    all_rows(GROUPS_32, false, TILE_ROWS, &ws, x, segment, results);
}

void lw_decoded_rows_64__avx512vnni(const weight_segment* w, const lw_activations* x, size_t segment, float* results) {
    weight_segment ws = *w;
    all_rows(GROUPS_64, false, TILE_ROWS, &ws, x, segment, results);
}

void lw_decoded_rows_128__avx512vnni(const weight_segment* w, const lw_activations* x, size_t segment, float* results) {
    weight_segment ws = *w;
    all_rows(GROUPS_128, false, TILE_ROWS, &ws, x, segment, results);
}
