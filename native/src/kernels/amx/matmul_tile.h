// Quantized products of more than one row on AMX: a tile register multiplies up to 16 rows by 16 outputs.
//
// The weights of some segments are decoded to int8 once, as [chunk of 4 inputs][output][4], the order of packed panels
// and of TDPBSSD's second operand. Its first operand is rows of activations as they lie in memory. The tiles' int32 sums
// of 32 inputs are stored; vector instructions convert, scale and add them. That is as much work as the products, and
// the core does both at once if their instructions alternate. 16 rows of 16 outputs stay in vector registers meanwhile.
#ifndef LW_KERNELS_AMX_MATMUL_TILE_H
#define LW_KERNELS_AMX_MATMUL_TILE_H

#include "kernels/amx/product__amx.h"

LW_INLINE void decode_half(const weight_type type, const weight_segment* w, const int half, uint8_t* codes,
                           float* scales) {
    const int groups = type.format.low != 0 ? LW_SEGMENT_GROUPS : (int)w->groups;  // coded panels have whole segments
#pragma GCC unroll 4
    for (int g = 0; g < groups; ++g) {
#pragma GCC unroll 8
        for (int c = 0; c < 8; ++c)
            _mm512_store_si512(codes + (g * 8 + c) * 64,
                               _mm512_sub_epi8(type.codes(w, g, c, half), _mm512_set1_epi8((char)offset_of(type))));
        _mm512_store_ps(scales + g * 16, step_scale(type, w, (size_t)g, half));
    }
    // Codes that a short last segment lacks meet activations that are 0.
    for (int g = groups; g < LW_SEGMENT_GROUPS; ++g) _mm512_store_ps(scales + g * 16, _mm512_setzero_ps());
}

LW_INLINE void decode_signed(const weight_type type, const weight_panel* p, size_t segment, int half, uint8_t* codes,
                             float* scales) {
    const weight_segment w = open_segment(type, p, segment, LW_FETCH_NONE);
    if (half == 0)
        decode_half(type, &w, 0, codes, scales);
    else
        decode_half(type, &w, 1, codes, scales);
}

LW_INLINE void amx_gemm(const weight_type type, amx_decoder decode, const lw_matrix* w, const lw_activations* x,
                        size_t panel, lw_output out, amx_scratch* s) {
    const amx_weights weights = {open_panel(type, w, panel), type.segment_bytes, decode};
    lw_amx_product__amx(&weights, x, s);
    if (type.format.minimum != LW_MINIMUM_NONE)
        lw_subtract_minimums(type.format, w, x, panel, s->results, s->minimums, s->results + x->rows * LW_PANEL);
    lw_store_panel(w, panel, x->rows, s->results, out);
}

#define AMX_KERNEL(name, type)                                                                                    \
    static void decode_##name(const weight_panel* p, size_t segment, int half, uint8_t* codes, float* scales) {   \
        decode_signed(type, p, segment, half, codes, scales);                                                     \
    }                                                                                                             \
    void gemm_##name##_q8g32_16x16__amx(const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out, \
                                        void* scratch) {                                                          \
        amx_gemm(type, decode_##name, w, x, panel, out, scratch);                                                 \
    }

#endif
