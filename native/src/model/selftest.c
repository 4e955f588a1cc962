// At start-up every kernel in use is compared with the scalar kernel: a wrong result must never be served.
#include <stdlib.h>
#include <string.h>

#include "kernels/layout.h"
#include "model/coded.h"
#include "model/gguf_blocks.h"
#include "model/model.h"
#include "status.h"

enum { ROWS = 9, COLS = 512, OUTPUTS = LW_PANEL + 5 };
enum {
    TOTAL_BYTES = (ROWS + 1) * (COLS / LW_SEGMENT + 1) * (LW_SEGMENT / 16) * sizeof(int32_t),
};

static uint32_t next_random(uint32_t* state) {
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    return *state;
}

// A random f16 of magnitude 2^-7 to 1. Read as bfloat16 the same bits are finite and moderate, too.
static void put_half(uint8_t* to, uint32_t* random) {
    const uint16_t half = (uint16_t)((next_random(random) & 0x8000) | (0x2000 + (next_random(random) & 0x1BFF)));
    memcpy(to, &half, 2);
}

// Writes the f16 values of GGUF blocks, of which a block has one or two.
static void fill_gguf_scales(lw_type type, uint8_t* data, size_t bytes, uint32_t* random) {
    const size_t step = lw_gguf_block_bytes(type);
    const size_t first = type == LW_Q2_K ? 80 : type == LW_Q3_K ? 108 : 0;
    const bool two = type == LW_Q4_1 || type == LW_Q5_1 || type == LW_Q2_K || type == LW_Q4_K || type == LW_Q5_K;
    for (size_t at = 0; at < bytes; at += step) {
        if (type == LW_MXFP4) {
            data[at] = (uint8_t)(120 + next_random(random) % 8);
            continue;
        }
        put_half(data + at + first, random);
        if (two) put_half(data + at + first + 2, random);
    }
}

static void fill_stored_scales(lw_format f, uint8_t* row, uint32_t* random) {
    const lw_stored_row s = lw_stored_row_of(f, COLS);
    for (size_t at = s.scales; f.scale == LW_SCALE_F16 && at < s.minimums; at += 2) put_half(row + at, random);
    for (size_t at = s.scales; f.scale == LW_SCALE_E4M3 && at < s.minimums; ++at)
        row[at] = (uint8_t)(32 + next_random(random) % 64);
    const float scale = (float)(1 + next_random(random) % 2048) * 0x1p-20f;
    if (f.super == LW_SUPER_ROW) memcpy(row + s.supers, &scale, sizeof scale);
    for (size_t at = s.supers; lw_has_block_supers(f) && at < s.super_minimums; at += 2) put_half(row + at, random);
}

// Fills rows in a file's layout with random codes and moderate scales.
static void fill_source(lw_type type, uint8_t* data, size_t bytes, uint32_t* random) {
    lw_format f;
    for (size_t i = 0; i < bytes; ++i) data[i] = (uint8_t)next_random(random);
    if (lw_find_format(type, &f)) {
        if (lw_gguf_block_bytes(type) != 0) return fill_gguf_scales(type, data, bytes, random);
        for (size_t at = 0; at < bytes; at += lw_stored_row_of(f, COLS).bytes) fill_stored_scales(f, data + at, random);
        return;
    }
    const size_t step = type == LW_Q4_0 ? 18 : type == LW_Q8_0 ? 34 : type == LW_Q6_K ? 210 : type == LW_F32 ? 4 : 2;
    for (size_t at = 0; at < bytes; at += step) {
        if (type == LW_F32) {
            const float value = (float)(int32_t)next_random(random) * 0x1p-32f;
            memcpy(data + at, &value, 4);
            continue;
        }
        put_half(data + at + (type == LW_Q6_K ? 208 : 0), random);
    }
}

typedef struct buffers {
    uint8_t* source;
    int8_t* q;
    float *x, *scale, *sums, *expected, *actual;
    int32_t* totals;
    uint8_t* outlying;
    lw_outlier* outliers;
    void* scratch;
} buffers;

static void run_all(const lw_kernel* kernel, const lw_matrix* w, const lw_activations* x, float* out, void* scratch) {
    for (size_t panel = 0; panel < w->panels; ++panel)
        kernel->run(w, x, panel, (lw_output){.data = out, .stride = OUTPUTS}, scratch);
}

static lw_status compare(const lw_model* model, const lw_kernel* kernel, const lw_kernel* scalar, const lw_matrix* w,
                         const buffers* b, size_t rows) {
    lw_activations x = {.rows = rows, .cols = COLS, .q = b->q, .scale = b->scale, .f32 = b->x};
    x.totals = b->totals;
    x.sums = b->sums;
    x.outlying = b->outlying;
    x.outliers = b->outliers;
    lw_lay_out_activations(&x, w->layout);
    memset(b->q, 0, (ROWS + 1) * lw_activation_stride(COLS));
    memset(b->scale, 0, lw_scale_floats(&x) * sizeof(float));
    memset(b->totals, 0, TOTAL_BYTES);
    for (size_t r = 0; r < rows; ++r) model->ops->quantize(&x, r, 0, x.segments, b->x + r * COLS);
    run_all(scalar, w, &x, b->expected, b->scratch);
    run_all(kernel, w, &x, b->actual, b->scratch);
    if (memcmp(b->expected, b->actual, rows * OUTPUTS * sizeof(float)) == 0) return LW_OK;
    return lw_fail(LW_ERR_SELFTEST, "kernel %s disagrees with scalar at %zu rows on this CPU", kernel->symbol, rows);
}

// A multi-row kernel is tested for every number of rows for which lw_choose could choose it, whatever is chosen now.
static bool may_run(const lw_kernel* kernel, lw_level level, size_t rows) {
    if (kernel->min_rows > 1) return rows >= kernel->min_rows;
    return lw_kernel_find(kernel->weights, level, rows) == kernel;
}

static lw_status test_kernel(const lw_model* model, lw_pool* pool, lw_arena* arena, const lw_kernel* kernel,
                             const buffers* b) {
    uint32_t random = 2463534242u;
    const uint64_t bytes = OUTPUTS * lw_row_bytes(kernel->weights, COLS);
    fill_source(kernel->weights, b->source, bytes, &random);
    for (size_t i = 0; i < ROWS * COLS; ++i) b->x[i] = (float)(int32_t)next_random(&random) * 0x1p-31f;
    static const int8_t table[LW_TABLE_ENTRIES] = {-127, -90, -70, -50, -30, -15, -4,  3,
                                                   9,    14,  27,  46,  64,  88,  101, 127};
    const lw_tensor tensor = {b->source, bytes, kernel->weights, OUTPUTS, COLS, 0, table};
    lw_matrix packed = {0};
    LW_RETURN_IF_FAILED(lw_pack_matrix(model->level, pool, arena, "self-test", &tensor, kernel->weights, &packed));
    const lw_kernel* scalar = lw_kernel_find(kernel->weights, LW_LEVEL_SCALAR, 1);
    lw_status status = LW_OK;
    for (size_t rows = 1; status == LW_OK && rows <= ROWS; ++rows)
        if (may_run(kernel, model->level, rows)) status = compare(model, kernel, scalar, &packed, b, rows);
    return status;
}

static lw_status test_all(const lw_model* model, lw_pool* pool, const bool* holds, lw_arena* arena, const buffers* b) {
    for (uint32_t i = 0; i < lw_n_kernels; ++i) {
        const lw_kernel* kernel = &lw_kernels[i];
        if (!holds[kernel->weights] || !(kernel->levels >> model->level & 1)) continue;
        const uint64_t saved = lw_fp_enter();
        const lw_status status = test_kernel(model, pool, arena, kernel, b);
        lw_fp_restore(saved);
        if (status != LW_OK) return status;
    }
    return LW_OK;
}

lw_status lw_selftest(const lw_model* model, lw_pool* pool, const bool holds[LW_TYPE_LIMIT]) {
    lw_activations most = {.rows = ROWS, .cols = COLS};
    lw_lay_out_activations(&most, lw_level_layouts[model->level]);
    buffers b = {.source = malloc(OUTPUTS * COLS * 4),
                 .q = malloc((ROWS + 1) * lw_activation_stride(COLS)),
                 .x = malloc(ROWS * COLS * sizeof(float)),
                 .scale = malloc(lw_scale_floats(&most) * sizeof(float)),
                 .sums = malloc(ROWS * (COLS / LW_SEGMENT) * LW_SUMS * sizeof(float)),
                 .expected = malloc(ROWS * OUTPUTS * sizeof(float)),
                 .actual = malloc(ROWS * OUTPUTS * sizeof(float)),
                 .totals = malloc(TOTAL_BYTES),
                 .outlying = malloc(ROWS * (COLS / LW_SEGMENT)),
                 .outliers = malloc(ROWS * (COLS / LW_GROUP) * sizeof(lw_outlier)),
                 .scratch = aligned_alloc(64, lw_round_up(lw_matmul_scratch_bytes(ROWS), 64))};
    const bool ok = b.source && b.q && b.x && b.scale && b.sums && b.expected && b.actual && b.totals && b.outlying &&
                    b.outliers && b.scratch;
    lw_arena arena = {0};
    const lw_status status =
        ok ? test_all(model, pool, holds, &arena, &b) : lw_fail(LW_ERR_MEMORY, "no memory for the self-test");
    void* all[] = {b.source, b.q,      b.x,        b.scale,    b.sums,   b.expected,
                   b.actual, b.totals, b.outlying, b.outliers, b.scratch};
    for (size_t i = 0; i < sizeof all / sizeof *all; ++i) free(all[i]);
    lw_arena_free(&arena);
    return status;
}
