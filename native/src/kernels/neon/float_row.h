// One row of float weights: a chain of fused multiply-adds for each output over ascending inputs; a lane is an output.
// Levels differ in what it costs to widen F16.
#ifndef LW_KERNELS_NEON_FLOAT_ROW_H
#define LW_KERNELS_NEON_FLOAT_ROW_H

#include "kernels/neon/matmul_common.h"

typedef enum storage { F32, F16, BF16 } storage;

#ifdef __ARM_FEATURE_FP16_FML
INLINE float32x4_t load_zero(void) {
    static const float zero[4];
    return load_addend(zero);
}

// FMLAL of ones widens f16 exactly in one slot of the vector pipes; FCVTL takes two of one pipe. What it adds to is
// loaded, because setting a register to 0 takes a slot too.
INLINE float32x4x2_t widen_half8(const uint8_t* at) {
    const float16x8_t halves = vreinterpretq_f16_u8(vld1q_u8(at)), ones = vreinterpretq_f16_u16(vdupq_n_u16(0x3C00));
    const float32x4_t low = vfmlalq_low_f16(load_zero(), halves, ones);
    return (float32x4x2_t){{low, vfmlalq_high_f16(load_zero(), halves, ones)}};
}
#else
INLINE float32x4x2_t widen_half8(const uint8_t* at) { return load_half8(at); }
#endif

// Loads eight outputs of an input. ZIP with zeros widens bfloat16 in either vector pipe, SHLL in one of two.
INLINE float32x4x2_t load_weights8(const storage type, const uint8_t* at) {
    if (type == F32) return vld1q_f32_x2((const float*)at);
    if (type == F16) return widen_half8(at);
    const uint16x8_t weights = vreinterpretq_u16_u8(vld1q_u8(at)), zero = vdupq_n_u16(0);
    return (float32x4x2_t){
        {vreinterpretq_f32_u16(vzip1q_u16(zero, weights)), vreinterpretq_f32_u16(vzip2q_u16(zero, weights))}};
}

// acc[QUADS] += the weights of an input times lane `k` of `x`.
INLINE void add_input(const storage type, float32x4_t acc[QUADS], const uint8_t* weights, float32x4_t x,
                      const size_t k) {
    UNROLL
    for (size_t i = 0; i < QUADS; i += 2) {
        const float32x4x2_t w = load_weights8(type, weights + i * (type == F32 ? 16 : 8));
        acc[i] = fma_lane_of(acc[i], w.val[0], x, k);
        acc[i + 1] = fma_lane_of(acc[i + 1], w.val[1], x, k);
    }
}

// One row.
INLINE void gemv(const storage type, const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out,
                 float* results) {
    const size_t bytes = (type == F32 ? 4 : 2) * LW_PANEL;  // of an input
    const uint8_t* weights = w->data + panel * w->panel_bytes;
    float32x4_t acc[QUADS];
    UNROLL
    for (size_t i = 0; i < QUADS; ++i) acc[i] = vdupq_n_f32(0);
    size_t k = 0;
    for (; k + 4 <= x->cols; k += 4, weights += 4 * bytes) {
        const float32x4_t inputs = vld1q_f32(x->f32 + k);
        lw_fetch_ahead(weights, 4 * bytes);
        UNROLL
        for (size_t i = 0; i < 4; ++i) add_input(type, acc, weights + i * bytes, inputs, i);
    }
    for (; k < x->cols; ++k, weights += bytes) add_input(type, acc, weights, vld1q_dup_f32(x->f32 + k), 0);
    UNROLL
    for (size_t i = 0; i < QUADS; ++i) vst1q_f32(results + 4 * i, acc[i]);
    lw_store_panel(w, panel, 1, results, out);
}

#endif
