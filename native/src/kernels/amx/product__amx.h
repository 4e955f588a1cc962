// The product of weights that are decoded to int8, and its scratch memory.
#ifndef LW_KERNELS_AMX_PRODUCT_H
#define LW_KERNELS_AMX_PRODUCT_H

#include "kernels/avx512vnni/matmul_panel.h"

enum {
    AMX_ROWS = 16,     // maximum number of rows in a tile register
    AMX_OUTPUTS = 16,  // outputs in a tile register
    AMX_SEGMENTS = 2,  // segments decoded at a time: more do not stay in the first-level cache beside everything else
    AMX_SUMS = AMX_ROWS * AMX_OUTPUTS,
};

typedef struct amx_scratch {
    int32_t sums[LW_SEGMENT_GROUPS][AMX_SUMS];  // of the last segment: [group][row][output]
    float scales[AMX_SEGMENTS][LW_SEGMENT_GROUPS * AMX_OUTPUTS];
    union {
        uint8_t codes[AMX_SEGMENTS][LW_SEGMENT * AMX_OUTPUTS];  // [segment][chunk of 4 inputs][output][4]
        float minimums[LW_MINIMUM_FLOATS];                      // after the product
    };
    float results[];  // [rows][32], then as much again for minimums
} amx_scratch;
_Static_assert(sizeof(amx_scratch) <= LW_KERNEL_SCRATCH_BYTES, "lw_matmul_scratch_bytes");

// Decodes one segment of half `half` of a panel's outputs: int8 codes and a scale for each 32 inputs.
typedef void (*amx_decoder)(const weight_panel* p, size_t segment, int half, uint8_t* codes, float* scales);

typedef struct amx_weights {
    weight_panel panel;
    size_t segment_bytes;  // of packed weights
    amx_decoder decode;
} amx_weights;

// Computes results[rows][32] of a panel.
void lw_amx_product__amx(const amx_weights* w, const lw_activations* x, amx_scratch* s);

#endif
