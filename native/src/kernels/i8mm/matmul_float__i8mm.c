// One row of F16. FMLAL of ones widens f16 exactly in one slot of the vector pipes; FCVTL takes two of one pipe. What it
// adds to is loaded, because setting a register to 0 takes a slot too.
#include "kernels/neon/matmul_common.h"

INLINE float32x4_t load_zero(void) {
    static const float zero[4];
    return load_addend(zero);
}

// acc[QUADS] += the weights of an input times lane `k` of `x`.
INLINE void add_input(float32x4_t acc[QUADS], const uint8_t* weights, float32x4_t x, const size_t k) {
    const float16x8_t ones = vreinterpretq_f16_u16(vdupq_n_u16(0x3C00));
    UNROLL
    for (size_t i = 0; i < QUADS; i += 2) {
        const float16x8_t halves = vreinterpretq_f16_u8(vld1q_u8(weights + 8 * i));
        acc[i] = fma_lane_of(acc[i], vfmlalq_low_f16(load_zero(), halves, ones), x, k);
        acc[i + 1] = fma_lane_of(acc[i + 1], vfmlalq_high_f16(load_zero(), halves, ones), x, k);
    }
}

void gemv_f16_f32_1x32__i8mm(const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out, void* scratch) {
    enum { BYTES = 2 * LW_PANEL };  // of an input
    const uint8_t* weights = w->data + panel * w->panel_bytes;
    float* results = scratch;
    float32x4_t acc[QUADS];
    UNROLL
    for (size_t i = 0; i < QUADS; ++i) acc[i] = vdupq_n_f32(0);
    size_t k = 0;
    for (; k + 4 <= x->cols; k += 4, weights += 4 * BYTES) {
        const float32x4_t inputs = vld1q_f32(x->f32 + k);
        lw_fetch_ahead(weights, 4 * BYTES);
        UNROLL
        for (size_t i = 0; i < 4; ++i) add_input(acc, weights + i * BYTES, inputs, i);
    }
    for (; k < x->cols; ++k, weights += BYTES) add_input(acc, weights, vld1q_dup_f32(x->f32 + k), 0);
    UNROLL
    for (size_t i = 0; i < QUADS; ++i) vst1q_f32(results + 4 * i, acc[i]);
    lw_store_panel(w, panel, 1, results, out);
}
