// Quantized products of more than one row on AMX: a tile register multiplies up to 16 rows by 16 outputs.
//
// The weights of a segment are decoded to int8 once, as [chunk of 4 inputs][output][4], the order of packed panels and
// of TDPBSSD's second operand. Its first operand is rows of activations as they lie in memory. The tiles' int32 sums of
// 32 inputs are stored; vector instructions convert, scale and add them. That is as much work as the products. So both
// proceed side by side: a block of rows is multiplied while the previous block is added up.
#ifndef LW_KERNELS_AMX_MATMUL_TILE_H
#define LW_KERNELS_AMX_MATMUL_TILE_H

#include "kernels/amx/product__amx.h"

LW_INLINE void decode_signed(const weight_type type, const weight_panel* p, size_t segment, uint8_t* codes,
                             float* scales) {
    const weight_segment w = open_segment(type, p, segment, lw_cpu_fetch_order);
    decode_codes(type, &w, -offset_of(type), true, codes);
    decode_scales(type, &w, false, scales);
}

LW_INLINE void amx_gemm(const weight_type type, amx_decoder decode, const lw_matrix* w, const lw_activations* x,
                        size_t panel, lw_output out, amx_scratch* s) {
    const amx_weights weights = {open_panel(type, w, panel), decode};
    memset(s->results, 0, x->rows * LW_PANEL * sizeof(float));
    lw_amx_product__amx(&weights, x, s);
    lw_store_panel(w, panel, x->rows, s->results, out);
}

#endif
