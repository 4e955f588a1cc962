// The definition of every quantized and float matrix product: what all other kernels must equal to the bit.
//
// Quantized weights, one output, one row:            (P is exact; each fmaf and subtraction rounds once)
//     for each segment of 256 inputs:
//         P = 0, seg = 0
//         for each weight group g of the segment, ascending:
//             P += sum over the group of weight code * activation code
//             seg = fmaf((float)P, s[g] - s[g + 1], seg)          with s past the segment's last group = 0
//         acc = fmaf(seg, activation scale of the segment, acc)
// which is the sum over groups of s[g] * (integer product of the group), by parts.
#include <math.h>
#include <string.h>

#include "kernels/half.h"
#include "kernels/layout.h"

typedef struct group_view {  // one weight group of one output
    float scale;
    int16_t codes[LW_GROUP];
} group_view;

static float load_half(const uint8_t* p) {
    uint16_t bits;
    memcpy(&bits, p, sizeof bits);
    return lw_half_to_float(bits);
}

static void read_q4(const lw_matrix* w, const uint8_t* panel, size_t output, size_t group, group_view* out) {
    const uint8_t* base = panel + group * LW_Q4_GROUP_BYTES;
    for (size_t k = 0; k < LW_GROUP; ++k) {
        int code = base[lw_packed_byte(w->layout, output, k, 2)] >> (4 * lw_packed_part(w->layout, k, 2)) & 15;
        if (w->layout.q4_toggled) code ^= 8;
        out->codes[k] = (int16_t)(code - 8);
    }
    out->scale = load_half(base + LW_PANEL * LW_GROUP / 2 + 2 * output);
}

static void read_q8(const lw_matrix* w, const uint8_t* panel, size_t output, size_t group, group_view* out) {
    const uint8_t* base = panel + group * LW_Q8_GROUP_BYTES;
    for (size_t k = 0; k < LW_GROUP; ++k) {
        const uint8_t byte = base[lw_packed_byte(w->layout, output, k, 1)];
        out->codes[k] = (int16_t)(w->layout.q8_biased ? byte - 128 : (int8_t)byte);
    }
    out->scale = load_half(base + LW_PANEL * LW_GROUP + 2 * output);
}

// `group` counts groups of 16 inputs here.
static void read_q6(const lw_matrix* w, const uint8_t* panel, size_t output, size_t group, group_view* out) {
    const uint8_t* super = panel + group / 16 * LW_Q6_SUPER_BYTES;
    const uint8_t* base = super + group % 16 / 2 * LW_Q6_GROUP_BYTES;
    const uint8_t* high = base + LW_Q6_LOW_BYTES;
    for (size_t i = 0; i < 16; ++i) {
        const size_t k = group % 2 * 16 + i;
        const int low = base[lw_packed_byte(w->layout, output, k, 2)] >> (4 * lw_packed_part(w->layout, k, 2)) & 15;
        const int top = high[lw_packed_byte(w->layout, output, k, 4)] >> (2 * lw_packed_part(w->layout, k, 4)) & 3;
        out->codes[i] = (int16_t)((low | top << 4) - 32);
    }
    const int8_t scale = (int8_t)high[LW_Q6_HIGH_BYTES + group % 2 * LW_PANEL + output];
    out->scale = load_half(super + LW_SEGMENT_GROUPS * LW_Q6_GROUP_BYTES + 2 * output) * (float)scale;  // exact
}

typedef void (*read_group)(const lw_matrix*, const uint8_t*, size_t, size_t, group_view*);

// The inputs of one output, group after group, for all rows; `size` is the inputs per group.
static inline void quantized(const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out, float* results,
                             read_group read, const size_t size) {
    const uint8_t* data = w->data + panel * w->panel_bytes;
    const size_t groups = (w->cols + size - 1) / size, per_segment = LW_SEGMENT / size;
    memset(results, 0, x->rows * LW_PANEL * sizeof(float));
    for (size_t output = 0; output < lw_panel_outputs(w, panel); ++output) {
        for (size_t first = 0; first < groups; first += per_segment) {
            const size_t n = groups - first < per_segment ? groups - first : per_segment;
            group_view views[LW_SEGMENT / 16];
            for (size_t g = 0; g < n; ++g) read(w, data, output, first + g, &views[g]);
            for (size_t row = 0; row < x->rows; ++row) {
                float seg = 0;
                int32_t sum = 0;
                for (size_t g = 0; g < n; ++g) {
                    for (size_t i = 0; i < size; ++i)
                        sum += views[g].codes[i] * x->q[lw_q_offset(x, row, (first + g) * size + i)];
                    const float next = g + 1 < n ? views[g + 1].scale : 0.0f;
                    seg = fmaf((float)sum, views[g].scale - next, seg);
                }
                float* acc = results + row * LW_PANEL + output;
                *acc = fmaf(seg, x->scale[row * x->segments + first / per_segment], *acc);
            }
        }
    }
    lw_store_panel(w, panel, x->rows, results, out);
}

void matmul_q4g32_q8s256__scalar(const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out, void* scratch) {
    quantized(w, x, panel, out, scratch, read_q4, LW_GROUP);
}

void matmul_q8g32_q8s256__scalar(const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out, void* scratch) {
    quantized(w, x, panel, out, scratch, read_q8, LW_GROUP);
}

void matmul_q6k_q8s256__scalar(const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out, void* scratch) {
    quantized(w, x, panel, out, scratch, read_q6, 16);
}

// Float weights: one chain of fmaf over the inputs, ascending.
static float weight_f32(const uint8_t* p) {
    float value;
    memcpy(&value, p, sizeof value);
    return value;
}

static float weight_bf16(const uint8_t* p) {
    uint16_t bits;
    memcpy(&bits, p, sizeof bits);
    return lw_bfloat_to_float(bits);
}

static inline void floating(const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out, float* results,
                            float (*load)(const uint8_t*), size_t bytes) {
    const uint8_t* data = w->data + panel * w->panel_bytes;
    memset(results, 0, x->rows * LW_PANEL * sizeof(float));
    for (size_t row = 0; row < x->rows; ++row)
        for (size_t k = 0; k < w->cols; ++k)
            for (size_t output = 0; output < LW_PANEL; ++output) {
                float* acc = results + row * LW_PANEL + output;
                *acc = fmaf(load(data + (k * LW_PANEL + output) * bytes), x->f32[row * x->cols + k], *acc);
            }
    lw_store_panel(w, panel, x->rows, results, out);
}

void matmul_f32_f32__scalar(const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out, void* scratch) {
    floating(w, x, panel, out, scratch, weight_f32, 4);
}

void matmul_f16_f32__scalar(const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out, void* scratch) {
    floating(w, x, panel, out, scratch, load_half, 2);
}

void matmul_bf16_f32__scalar(const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out, void* scratch) {
    floating(w, x, panel, out, scratch, weight_bf16, 2);
}
