// Every row of the kernel table that this CPU runs against scalar's, bit for bit: shapes, kinds of values and single
// values are the input's.
#include <math.h>

#include "../../native/kernel_data.h"
#include "input.h"

enum { MAX_INPUTS = 600, MAX_OUTPUTS = 70, MAX_ROWS = 40 };

// A half that is not infinite.
static uint16_t take_half(fuzz_input* in) {
    uint16_t bits;
    take_bytes(in, &bits, 2);
    return (bits & 0x7C00) == 0x7C00 ? bits ^ 0x4000 : bits;
}

static void change_coded(fuzz_input* in, plain_matrix* m, lw_format f) {
    const size_t bytes = lw_open_row_bytes(f, m->cols), row = take_below(in, m->rows);
    uint8_t* open = m->open + row * bytes;
    uint8_t* saved = malloc(bytes);
    if (saved == NULL) exit(2);
    memcpy(saved, open, bytes);
    const lw_stored_row s = lw_stored_row_of(f, m->cols);
    for (uint32_t n = 1 + take_below(in, 8); n > 0; --n) {
        const size_t at =
            take_flag(in) ? take_below(in, m->cols) : m->cols + take_below(in, (uint32_t)(bytes - m->cols));
        open[at] = take_byte(in);
        if (at < m->cols) open[at] &= (uint8_t)((1 << (f.low + f.high)) - 1);
        const bool six = f.scale == LW_SCALE_SIX && at >= m->cols && at - m->cols + s.scales < s.selectors;
        if (six) open[at] &= 63;  // and the minimums
    }
    if (!lw_open_row_is_valid(f, m->cols, open)) memcpy(open, saved, bytes);
    free(saved);
}

// One weight, scale or table entry as the input has it.
static void change_weights(fuzz_input* in, plain_matrix* m) {
    lw_format f;
    const uint32_t row = take_below(in, m->rows);
    if (lw_find_format(m->type, &f)) {
        change_coded(in, m, f);
    } else if (is_float_type(m->type)) {
        const size_t at = (size_t)row * m->cols + take_below(in, m->cols);
        const float value = take_float(in);
        memcpy(m->values + at, &value, 4);
        if (m->type == LW_BF16) m->values[at] >>= 16;
        if (m->type == LW_F16) m->values[at] = take_half(in);
    } else if (take_flag(in)) {
        m->scales[row * scales_per_row(m) + take_below(in, (uint32_t)scales_per_row(m))] = take_half(in);
    } else if (m->type == LW_Q6_K) {
        m->sub_scales[row * (m->cols / 16) + take_below(in, m->cols / 16)] = (int8_t)take_byte(in);
    }
}

static void change_activations(fuzz_input* in, plain_activations* x) {
    const uint32_t row = take_below(in, (uint32_t)x->rows), k = take_below(in, (uint32_t)x->cols);
    switch (take_below(in, 3)) {
        case 0:
            x->scale[row * x->groups + k / LW_GROUP] = fabsf(take_float(in));
            break;
        case 1:
            x->f32[row * x->cols + k] = take_float(in);
            break;
        default: {
            const int8_t code = (int8_t)take_byte(in);
            x->q[row * x->stride + k] = code == -128 ? -127 : code;
        }
    }
}

// Both are the same bits, or both are NaN: of which there are many, and nothing says which one.
static bool is_same(float a, float b) { return memcmp(&a, &b, 4) == 0 || (isnan(a) && isnan(b)); }

typedef struct result {
    float* data;
    size_t n, stride;
} result;

static result run(const lw_kernel* kernel, lw_level level, const plain_matrix* m, const plain_activations* p,
                  size_t rows, bool add) {
    const lw_matrix w = pack_matrix(m, lw_level_layouts[level]);
    const lw_activations x = pack_activations(p, rows, lw_level_layouts[level]);
    result r = {.stride = m->rows + 3};
    r.n = (rows - 1) * r.stride + m->rows;
    r.data = guarded_alloc(r.n * sizeof *r.data);
    for (size_t i = 0; i < r.n; ++i) r.data[i] = add || i % r.stride >= m->rows ? (float)i * 0.37f : NAN;
    const size_t scratch_bytes = lw_matmul_scratch_bytes(rows);
    uint8_t* scratch = guarded_alloc(scratch_bytes);
    memset(scratch, 0xFF, scratch_bytes);
    for (size_t panel = 0; panel < w.panels; ++panel)
        kernel->run(&w, &x, panel, (lw_output){.data = r.data, .stride = r.stride, .add = add}, scratch);
    guarded_free(scratch, scratch_bytes);
    activations_free(&x);
    packed_free(&w);
    return r;
}

static void compare(const lw_kernel* kernel, lw_level level, const result* got, const result* want) {
    for (size_t i = 0; i < want->n; ++i)
        FUZZ_CHECK(is_same(got->data[i], want->data[i]), "%s at level %s: row %zu output %zu is %g, scalar has %g",
                   kernel->symbol, lw_level_names[level], i / want->stride, i % want->stride, (double)got->data[i],
                   (double)want->data[i]);
}

static void run_all(const plain_matrix* m, const plain_activations* x, size_t rows, bool add) {
    const result want = run(lw_kernel_find(m->type, LW_LEVEL_SCALAR, rows), LW_LEVEL_SCALAR, m, x, rows, add);
    for (uint32_t i = 0; i < lw_n_kernels; ++i) {
        const lw_kernel* kernel = &lw_kernels[i];
        if (kernel->weights != m->type || !takes_rows(kernel, rows)) continue;
        for (int level = 0; level < LW_LEVEL_COUNT; ++level) {
            if (!(levels_to_test(kernel) >> level & 1)) continue;
            const result got = run(kernel, (lw_level)level, m, x, rows, add);
            compare(kernel, (lw_level)level, &got, &want);
            guarded_free(got.data, got.n * sizeof *got.data);
        }
    }
    guarded_free(want.data, want.n * sizeof *want.data);
}

// Inputs that a row of the type can have.
static uint32_t take_cols(fuzz_input* in, lw_type type) {
    const uint32_t asked = 1 + take_below(in, MAX_INPUTS);
    if (is_float_type(type)) return asked % 200 + 1;
    lw_format f;
    const bool coded = lw_find_format(type, &f);
    const uint32_t unit = type == LW_Q6_K || (coded && f.super == LW_SUPER_BLOCK) ? 256 : LW_GROUP;
    return (asked + unit - 1) / unit * unit;
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    fuzz_input in = {data, size};
    const lw_type type = all_types[take_below(&in, sizeof all_types / sizeof *all_types)];
    const uint32_t cols = take_cols(&in, type), outputs = 1 + take_below(&in, MAX_OUTPUTS);
    const size_t rows = 1 + take_below(&in, MAX_ROWS);
    const data_kind kind = (data_kind)take_below(&in, ORDINARY);
    const bool add = take_flag(&in);
#if defined(__x86_64__)
    lw_cpu_fetch_order = (lw_fetch_order)take_below(&in, LW_FETCH_NONE + 1);
#endif
    uint64_t seed = take_word(&in);
    plain_matrix m = plain_matrix_make(type, outputs, cols, kind, &seed);
    plain_activations x = plain_activations_make(rows, cols, kind, &seed);
    while (in.left > 0) take_flag(&in) ? change_weights(&in, &m) : change_activations(&in, &x);
    const uint64_t saved = lw_fp_enter();
    run_all(&m, &x, rows, add);
    lw_fp_restore(saved);
    plain_matrix_free(&m);
    plain_activations_free(&x);
    return 0;
}
