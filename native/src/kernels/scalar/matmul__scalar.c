// The definition of every quantized and float matrix product: all other kernels must give the same bits.
//
// Quantized weights, one output, one row:            (I is exact; each product and fmaf rounds once)
//     acc = 0
//     for each 32 inputs, ascending, and in them each step of inputs that share a weight scale s (32, or twice 16):
//         I = sum over the step of weight code * activation code
//         acc = fmaf(s * I, activation scale of the 32 inputs, acc)
// Then, for types with minimums,
//     taken = 0
//     for each step, ascending: taken = fmaf(activation scale * sum of the step's activation codes, -minimum, taken)
//     acc = acc + taken
// A result of -0 is +0 (lw_store_panel). A weight of a type with two passes (lw_passes) is two such codes with two
// scales, and its product goes over every segment twice. Outliers are added after the product (kernels/outliers.inc).
#include <math.h>
#include <string.h>

#include "kernels/unpack.h"

typedef void (*read_group)(const lw_matrix*, const uint8_t*, size_t, size_t, lw_group*);

// Adds one segment, `n` steps of `size` inputs from the row's step `first` on, of one output for all rows.
static inline void add_segment(const lw_activations* x, const lw_group* steps, size_t n, const size_t size,
                               size_t first, float* results) {
    for (size_t row = 0; row < x->rows; ++row, results += LW_PANEL)
        for (size_t g = 0; g < n; ++g) {
            const size_t k = (first + g) * size;
            int32_t sum = 0;
            for (size_t i = 0; i < size; ++i) sum += steps[g].codes[i] * x->q[lw_q_offset(x, row, k + i)];
            const float scaled = (float)sum * steps[g].scale + 0.0f;  // never -0, as with LW_MAGIC
            *results = fmaf(scaled, x->scale[lw_scale_offset(x, row, k / LW_GROUP)], *results);
        }
}

// One output for all rows, group after group; a group has `size` inputs.
static inline void quantized(const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out, float* results,
                             read_group read, const size_t size) {
    const uint8_t* data = w->data + panel * w->panel_bytes;
    const size_t groups = (w->cols + size - 1) / size, per_segment = LW_SEGMENT / size;
    memset(results, 0, x->rows * LW_PANEL * sizeof(float));
    for (size_t output = 0; output < lw_panel_outputs(w, panel); ++output) {
        for (size_t first = 0; first < groups; first += per_segment) {
            const size_t n = groups - first < per_segment ? groups - first : per_segment;
            lw_group views[LW_SEGMENT / 16];
            for (size_t g = 0; g < n; ++g) read(w, data, output, first + g, &views[g]);
            add_segment(x, views, n, size, first, results + output);
        }
    }
    lw_store_panel(w, panel, x->rows, results, out);
}

void matmul_q4g32_q8g32__scalar(const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out,
                                void* scratch) {
    quantized(w, x, panel, out, scratch, lw_unpack_q4, LW_GROUP);
}

void matmul_q8g32_q8g32__scalar(const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out,
                                void* scratch) {
    quantized(w, x, panel, out, scratch, lw_unpack_q8, LW_GROUP);
}

void matmul_q6k_q8g32__scalar(const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out, void* scratch) {
    quantized(w, x, panel, out, scratch, lw_unpack_q6, 16);
}

static void coded_panel(const lw_format f, const lw_matrix* w, const lw_activations* x, size_t panel, float* results) {
    const size_t inputs = lw_step_inputs(f), steps = w->cols / inputs, per_segment = LW_SEGMENT / inputs;
    memset(results, 0, x->rows * LW_PANEL * sizeof(float));
    for (size_t output = 0; output < lw_panel_outputs(w, panel); ++output)
        for (size_t first = 0; first < steps; first += per_segment) {
            const size_t n = steps - first < per_segment ? steps - first : per_segment;
            for (int pass = 0; pass < lw_passes(f); ++pass) {
                const lw_coded_view view = lw_view_coded(lw_pass(f, pass), w, w->data + panel * w->panel_bytes);
                lw_group groups[LW_SEGMENT / 16];
                for (size_t g = 0; g < n; ++g) lw_unpack_step(&view, output, first + g, &groups[g]);
                add_segment(x, groups, n, inputs, first, results + output);
            }
        }
}

static void subtract_minimums(const lw_format f, const lw_matrix* w, const lw_activations* x, size_t panel,
                              float* results) {
    const lw_coded_view view = lw_view_coded(f, w, w->data + panel * w->panel_bytes);
    const size_t inputs = lw_step_inputs(f), first = inputs == 16 ? LW_SUMS_16 : 0;
    float* taken = results + x->rows * LW_PANEL;  // [rows]
    for (size_t output = 0; output < lw_panel_outputs(w, panel); ++output) {
        for (size_t row = 0; row < x->rows; ++row) taken[row] = 0;
        for (size_t k = 0; k < w->cols; k += inputs) {
            const float minimum = lw_unpack_minimum(&view, output, k);
            for (size_t row = 0; row < x->rows; ++row) {
                const float* sums = x->sums + (row * x->segments + k / LW_SEGMENT) * LW_SUMS + first;
                taken[row] = fmaf(sums[k % LW_SEGMENT / inputs], -minimum, taken[row]);
            }
        }
        for (size_t row = 0; row < x->rows; ++row) results[row * LW_PANEL + output] += taken[row];
    }
}

static void coded(const lw_format f, const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out,
                  float* results) {
    coded_panel(f, w, x, panel, results);
    if (f.minimum != LW_MINIMUM_NONE) subtract_minimums(f, w, x, panel, results);
    lw_store_panel(w, panel, x->rows, results, out);
}

#define CODED(type, name, ...)                                                                                   \
    void matmul_##name##_q8g32__scalar(const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out, \
                                       void* scratch) {                                                          \
        coded(lw_format_##name, w, x, panel, out, scratch);                                                      \
    }
#include "kernels/formats.inc"
#undef CODED

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
                *acc = fmaf(load(data + (k * LW_PANEL + output) * bytes), x->f32[row * x->f32_stride + k], *acc);
            }
    lw_store_panel(w, panel, x->rows, results, out);
}

void matmul_f32_f32__scalar(const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out, void* scratch) {
    floating(w, x, panel, out, scratch, weight_f32, 4);
}

void matmul_f16_f32__scalar(const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out, void* scratch) {
    floating(w, x, panel, out, scratch, lw_load_half, 2);
}

void matmul_bf16_f32__scalar(const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out, void* scratch) {
    floating(w, x, panel, out, scratch, weight_bf16, 2);
}
