// Quantized products of more than one row on AMX: a tile register multiplies up to 16 rows by 16 outputs.
//
// Weights of a segment are decoded to int8 once, [chunk of 4 inputs][output][4] as packed panels have them, which is also
// what TDPBSSD wants of its second operand; rows of activations are its first as they lie. The tiles' int32 sums run
// through the segment as the numeric contract says, and are stored at the end of each group of inputs that shares a
// scale. From there vector instructions convert, scale and add them up. Those are as much work as the products, so
// both proceed side by side: a block of rows is multiplied while the one before is added up.
#ifndef LW_KERNELS_AMX_MATMUL_TILE_H
#define LW_KERNELS_AMX_MATMUL_TILE_H

#include "kernels/avx512vnni/matmul_panel.h"

enum {
    AMX_ROWS = 16,  // most rows of a tile register
    AMX_SUMS = LW_SEGMENT_GROUPS * 2 * AMX_ROWS * LW_PANEL,
};

typedef struct amx_scratch {
    uint8_t codes[LW_SEGMENT * LW_PANEL];
    float differences[2][PREFIXES * LW_PANEL];  // of this segment and the last one
    int32_t sums[2][AMX_SUMS];                  // of this block and the last one: [scale][row][32]
    float results[];                            // [rows][32]
} amx_scratch;
_Static_assert(sizeof(amx_scratch) <= LW_KERNEL_SCRATCH_BYTES, "lw_matmul_scratch_bytes");
_Static_assert(LW_MINIMUM_FLOATS <= 2 * AMX_SUMS, "minimums are decoded where the sums were");

// Decodes one segment of a panel, or one pass over it: int8 codes and scale differences.
typedef void (*amx_decoder)(const weight_panel* p, size_t segment, size_t pass, uint8_t* codes, float* differences);

typedef struct amx_weights {
    weight_panel panel;
    amx_decoder decode;
    size_t passes;
} amx_weights;

// results[rows][32] of a panel, for weights whose scales serve 32, 64 or 128 inputs.
typedef void amx_product(const amx_weights* w, const lw_activations* x, amx_scratch* s);
amx_product lw_amx_product_32__amx, lw_amx_product_64__amx, lw_amx_product_128__amx;

LW_INLINE void decode_signed(const weight_type type, const weight_panel* p, size_t segment, uint8_t* codes,
                             float* differences) {
    const weight_segment w = open_segment(type, p, segment, lw_cpu_fetch_order);
    decode_codes(type, &w, -offset_of(type), !type.second, codes);
    decode_differences(type, &w, differences);
}

LW_INLINE void amx_gemm(const weight_type type, amx_decoder decode, size_t passes, const lw_matrix* w,
                        const lw_activations* x, size_t panel, lw_output out, amx_scratch* s) {
    const amx_weights weights = {open_panel(type, w, panel), decode, passes};
    memset(s->results, 0, x->rows * LW_PANEL * sizeof(float));
    amx_product* product = type.chunks == 8    ? lw_amx_product_32__amx
                           : type.chunks == 16 ? lw_amx_product_64__amx
                                               : lw_amx_product_128__amx;
    product(&weights, x, s);
    if (type.format.minimum != LW_MINIMUM_NONE)
        lw_subtract_minimums(type.format, w, x, panel, s->results, (float*)s->sums, s->results + x->rows * LW_PANEL);
    lw_store_panel(w, panel, x->rows, s->results, out);
}

#endif
