// The product of weights that are decoded segment by segment, and its scratch memory.
#ifndef LW_KERNELS_AMX_PRODUCT_H
#define LW_KERNELS_AMX_PRODUCT_H

#include "kernels/avx512vnni/matmul_panel.h"

enum {
    AMX_ROWS = 16,  // maximum number of rows in a tile register
    AMX_SUMS = LW_SEGMENT_GROUPS * 2 * AMX_ROWS * LW_PANEL,
};

typedef struct amx_scratch {
    uint8_t codes[LW_SEGMENT * LW_PANEL];
    float scales[2][LW_SEGMENT_GROUPS * LW_PANEL];  // of this segment and the previous one
    int32_t sums[2][AMX_SUMS];                      // of this block and the previous one: [group][row][32]
    float results[];                                // [rows][32]
} amx_scratch;
_Static_assert(sizeof(amx_scratch) <= LW_KERNEL_SCRATCH_BYTES, "lw_matmul_scratch_bytes");

// Decodes one segment of a panel: int8 codes and a scale for each 32 inputs.
typedef void (*amx_decoder)(const weight_panel* p, size_t segment, uint8_t* codes, float* scales);

typedef struct amx_weights {
    weight_panel panel;
    amx_decoder decode;
} amx_weights;

// Computes results[rows][32] of a panel.
void lw_amx_product__amx(const amx_weights* w, const lw_activations* x, amx_scratch* s);

#endif
