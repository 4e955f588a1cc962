// At start-up every kernel in use is compared with scalar: a wrong result must never be served.
#include <stdlib.h>
#include <string.h>

#include "kernels/layout.h"
#include "model/model.h"
#include "status.h"

enum { ROWS = 9, COLS = 512, OUTPUTS = LW_PANEL + 5 };

static uint32_t next_random(uint32_t* state) {
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    return *state;
}

// Source rows with any codes and moderate scales, as file blocks of `type`.
static void fill_source(lw_type type, uint8_t* data, size_t bytes, uint32_t* random) {
    for (size_t i = 0; i < bytes; ++i) data[i] = (uint8_t)next_random(random);
    const size_t step = type == LW_Q4_0 ? 18 : type == LW_Q8_0 ? 34 : type == LW_Q6_K ? 210 : type == LW_F32 ? 4 : 2;
    for (size_t at = 0; at < bytes; at += step) {
        if (type == LW_F32) {
            const float value = (float)(int32_t)next_random(random) * 0x1p-32f;
            memcpy(data + at, &value, 4);
            continue;
        }
        // f16 of about 2^-7 .. 1 either sign; bfloat16 with those bits is finite and moderate too
        const uint16_t half = (uint16_t)((next_random(random) & 0x8000) | (0x2000 + (next_random(random) & 0x1BFF)));
        memcpy(data + at + (type == LW_Q6_K ? 208 : 0), &half, 2);
    }
}

typedef struct buffers {
    uint8_t* source;
    int8_t* q;
    float *x, *scale, *expected, *actual;
    int32_t* prefix;
    void* scratch;
} buffers;

static void run_all(const lw_kernel* kernel, const lw_matrix* w, const lw_activations* x, float* out, void* scratch) {
    for (size_t panel = 0; panel < w->panels; ++panel)
        kernel->run(w, x, panel, (lw_output){.data = out, .stride = OUTPUTS}, scratch);
}

static lw_status compare(const lw_model* model, const lw_kernel* kernel, const lw_kernel* scalar, const lw_matrix* w,
                         const buffers* b, size_t rows) {
    lw_activations x = {.rows = rows, .cols = COLS, .q = b->q, .scale = b->scale, .prefix = b->prefix, .f32 = b->x};
    lw_lay_out_activations(&x, w->layout);
    memset(b->q, 0, (ROWS + 1) * lw_activation_stride(COLS));
    for (size_t r = 0; r < rows; ++r) model->ops->quantize(&x, r, 0, x.segments, b->x + r * COLS);
    run_all(scalar, w, &x, b->expected, b->scratch);
    run_all(kernel, w, &x, b->actual, b->scratch);
    if (memcmp(b->expected, b->actual, rows * OUTPUTS * sizeof(float)) == 0) return LW_OK;
    return lw_fail(LW_ERR_SELFTEST, "kernel %s disagrees with scalar at %zu rows on this CPU", kernel->symbol, rows);
}

static lw_status test_kernel(const lw_model* model, lw_arena* arena, const lw_kernel* kernel, const buffers* b) {
    uint32_t random = 2463534242u;
    const uint64_t bytes = OUTPUTS * lw_row_bytes(kernel->weights, COLS);
    fill_source(kernel->weights, b->source, bytes, &random);
    for (size_t i = 0; i < ROWS * COLS; ++i) b->x[i] = (float)(int32_t)next_random(&random) * 0x1p-31f;
    const lw_tensor tensor = {b->source, bytes, kernel->weights, OUTPUTS, COLS, 0};
    lw_packed packed = {0};
    LW_RETURN_IF_FAILED(lw_pack_matrix(model, arena, "self-test", &tensor, kernel->weights, &packed));
    const lw_kernel* scalar = lw_kernel_find(kernel->weights, LW_LEVEL_SCALAR, 1);
    lw_status status = LW_OK;
    for (size_t rows = 1; status == LW_OK && rows <= ROWS; ++rows)
        if (lw_kernel_find(kernel->weights, model->level, rows) == kernel)
            status = compare(model, kernel, scalar, &packed.matrix, b, rows);
    return status;
}

static lw_status test_all(const lw_model* model, lw_arena* arena, const buffers* b) {
    for (uint32_t i = 0; i < lw_n_kernels; ++i) {
        const lw_kernel* kernel = &lw_kernels[i];
        if (!(kernel->levels >> model->level & 1)) continue;
        const uint64_t saved = lw_fp_enter();
        const lw_status status = test_kernel(model, arena, kernel, b);
        lw_fp_restore(saved);
        if (status != LW_OK) return status;
    }
    return LW_OK;
}

lw_status lw_model_selftest(const lw_model* model) {
    buffers b = {.source = malloc(OUTPUTS * COLS * 4),
                 .q = malloc((ROWS + 1) * lw_activation_stride(COLS)),
                 .x = malloc(ROWS * COLS * sizeof(float)),
                 .scale = malloc(ROWS * (COLS / LW_SEGMENT) * sizeof(float)),
                 .expected = malloc(ROWS * OUTPUTS * sizeof(float)),
                 .actual = malloc(ROWS * OUTPUTS * sizeof(float)),
                 .prefix = malloc(ROWS * (lw_activation_stride(COLS) / 16) * sizeof(int32_t)),
                 .scratch = aligned_alloc(64, lw_round_up(lw_matmul_scratch_bytes(ROWS), 64))};
    const bool ok = b.source && b.q && b.x && b.scale && b.expected && b.actual && b.prefix && b.scratch;
    lw_arena arena = {0};
    const lw_status status = ok ? test_all(model, &arena, &b) : lw_fail(LW_ERR_MEMORY, "no memory for the self-test");
    void* all[] = {b.source, b.q, b.x, b.scale, b.expected, b.actual, b.prefix, b.scratch};
    for (size_t i = 0; i < sizeof all / sizeof *all; ++i) free(all[i]);
    lw_arena_free(&arena);
    return status;
}
