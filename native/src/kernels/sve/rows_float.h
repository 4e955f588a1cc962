// One row by a panel of floats in assembly (rows_float__sve.S depends on the order of the fields).
#ifndef LW_KERNELS_SVE_ROWS_FLOAT_H
#define LW_KERNELS_SVE_ROWS_FLOAT_H

#include <stddef.h>
#include <stdint.h>

typedef struct lw_float_row {
    const uint8_t* weights;  // [cols][32 outputs]
    const float* x;
    size_t cols;         // at least 1
    float* results;      // [32 outputs], overwritten
    size_t fetch_ahead;  // lw_cpu_fetch_distance
} lw_float_row;

extern void gemv_bf16__sve(const lw_float_row* t);

#endif
