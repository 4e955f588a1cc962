// Float weights: one chain of fused multiply-adds per output over ascending inputs; a lane is an output.
//
// All Arm levels use these for several rows: there is no faster instruction that keeps the order. For one row, levels
// differ in what it costs to widen weights.
#include "kernels/neon/float_row.h"

// Loads outputs 4 * quad to 4 * quad + 3 of input k.
INLINE float32x4_t load_weights(const storage type, const uint8_t* panel, size_t k, size_t quad) {
    const size_t at = k * LW_PANEL + 4 * quad;
    if (type == F32) return vreinterpretq_f32_u8(vld1q_u8(panel + 4 * at));
    if (type == F16) return load_half4(panel + 2 * at);
    return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(panel + 2 * at)), 16));
}

// `rows` rows by 4 * `quads` outputs over inputs [first, last), added to results[row][LW_PANEL].
INLINE void tile(const storage type, const int rows, const int quads, const uint8_t* panel, const lw_activations* x,
                 size_t row, size_t quad, size_t first, size_t last, float* results) {
    float32x4_t acc[6][8];
    const float* inputs = x->f32 + row * x->f32_stride;
    UNROLL
    for (int r = 0; r < rows; ++r) UNROLL
    for (int j = 0; j < quads; ++j) acc[r][j] = vld1q_f32(results + (row + r) * LW_PANEL + 4 * (quad + j));
    for (size_t k = first; k < last; ++k) {
        float32x4_t w[8];
        UNROLL
        for (int j = 0; j < quads; ++j) w[j] = load_weights(type, panel, k - first, quad + j);
        UNROLL
        for (int r = 0; r < rows; ++r) UNROLL
        for (int j = 0; j < quads; ++j) acc[r][j] = vfmaq_n_f32(acc[r][j], w[j], inputs[r * x->f32_stride + k]);
    }
    UNROLL
    for (int r = 0; r < rows; ++r) UNROLL
    for (int j = 0; j < quads; ++j) vst1q_f32(results + (row + r) * LW_PANEL + 4 * (quad + j), acc[r][j]);
}

// All outputs for one to four rows. One row comes here as the last of a batch.
INLINE void rows_by_panel(const storage type, const uint8_t* panel, const lw_activations* x, size_t row, size_t rows,
                          size_t first, size_t last, float* results) {
    switch (rows) {
        case 1:
            tile(type, 1, 8, panel, x, row, 0, first, last, results);
            break;
        case 2:
            for (size_t quad = 0; quad < QUADS; quad += 4) tile(type, 2, 4, panel, x, row, quad, first, last, results);
            break;
        case 3:
            for (size_t quad = 0; quad < QUADS; quad += 4) tile(type, 3, 4, panel, x, row, quad, first, last, results);
            break;
        default:
            for (size_t quad = 0; quad < QUADS; quad += 4) tile(type, 4, 4, panel, x, row, quad, first, last, results);
            break;
    }
}

INLINE void gemm(const storage type, const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out,
                 void* scratch) {
    const size_t bytes = type == F32 ? 4 : 2, block = 64;  // 64 inputs of a panel, as floats, stay in the first-level
                                                           // cache
    const uint8_t* data = w->data + panel * w->panel_bytes;
    const workspace work = workspace_of(scratch, x->rows);
    float* decoded = (float*)work.codes;
    for (size_t first = 0; first < x->cols; first += block) {
        const size_t last = first + block < x->cols ? first + block : x->cols;
        const uint8_t* weights = data + first * LW_PANEL * bytes;
        lw_fetch_ahead(weights, (last - first) * LW_PANEL * bytes);
        const bool decode = type != F32 && x->rows > 4;
        for (size_t k = 0; decode && k < last - first; ++k) UNROLL
        for (size_t quad = 0; quad < QUADS; ++quad)
            vst1q_f32(decoded + k * LW_PANEL + 4 * quad, load_weights(type, weights, k, quad));
        for (size_t row = 0; row < x->rows; row += 4) {
            const size_t rows = x->rows - row < 4 ? x->rows - row : 4;
            if (decode)
                rows_by_panel(F32, (const uint8_t*)decoded, x, row, rows, first, last, work.results);
            else
                rows_by_panel(type, weights, x, row, rows, first, last, work.results);
        }
    }
    lw_store_panel(w, panel, x->rows, work.results, out);
}

#define FLOAT_KERNELS(type, name)                                                                               \
    void gemm_##name##_f32_4x16__neon(const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out, \
                                      void* scratch) {                                                          \
        gemm(type, w, x, panel, out, scratch);                                                                  \
    }                                                                                                           \
    void gemv_##name##_f32_1x32__neon(const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out, \
                                      void* scratch) {                                                          \
        gemv(type, w, x, panel, out, scratch);                                                                  \
    }
FLOAT_KERNELS(F32, f32)
FLOAT_KERNELS(F16, f16)
FLOAT_KERNELS(BF16, bf16)
