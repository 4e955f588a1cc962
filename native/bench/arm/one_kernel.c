// Runs one kernel of the table on one random panel, so that its instructions can be counted under emulation:
//     one_kernel --list ROWS ...         prints "LEVEL SYMBOL ROWS" for the kernels of each Arm level at ROWS rows
//     one_kernel SYMBOL ROWS [COLS [AHEAD]]  prints the multiply-accumulates done; exits 1 if scalar gives other bits.
//         Weights are prefetched AHEAD bytes before their use.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/half.h"
#include "kernels/layout.h"

static uint32_t state = 1;

static uint32_t draw(void) {
    state = state * 1664525u + 1013904223u;
    return state >> 8;
}

// Makes f16 values of any sign and size finite.
static void make_finite(uint8_t* halves, size_t bytes) {
    for (size_t i = 1; i < bytes; i += 2) halves[i] = (halves[i] & 0xBF) | 0x10;
}

static void fill_coded(lw_format f, size_t cols, uint8_t* data) {
    const lw_coded_panel p = lw_coded_panel_of(f, cols);
    if (f.super == LW_SUPER_BLOCK) make_finite(data + p.supers, p.minimums - p.supers);
    if (f.super == LW_SUPER_ROW)
        for (size_t i = 0; i < LW_PANEL; ++i) {
            const float super = (float)(1 + draw() % 4095) * 0x1p-30f;
            memcpy(data + p.supers + 4 * i, &super, 4);
        }
    if (f.minimum == LW_MINIMUM_F16) make_finite(data + p.minimums, p.selectors - p.minimums);
    for (uint8_t* s = data + p.segments; s < data + p.bytes && f.scale == LW_SCALE_F16; s += p.segment_bytes)
        make_finite(s + p.scales, p.segment_bytes - p.scales);
    for (uint8_t* s = data + p.segments; s < data + p.bytes && f.scale == LW_SCALE_E8M0; s += p.segment_bytes)
        for (size_t i = p.scales; i < p.segment_bytes; ++i) s[i] = 100 + s[i] % 40;
    for (uint8_t* s = data + p.segments; s < data + p.bytes && f.scale == LW_SCALE_E4M3; s += p.segment_bytes)
        for (size_t i = p.scales; i < p.segment_bytes; ++i) s[i] = 40 + s[i] % 24;
}

static void fill(const lw_matrix* w, uint8_t* data) {
    const size_t halves = w->type == LW_Q4_0   ? LW_Q4_GROUP_BYTES
                          : w->type == LW_Q8_0 ? LW_Q8_GROUP_BYTES
                                               : LW_Q6_SUPER_BYTES;
    lw_format f;
    for (size_t i = 0; i < w->panel_bytes; ++i) data[i] = (uint8_t)draw();
    if (lw_find_format(w->type, &f))
        fill_coded(f, w->cols, data);
    else if (w->type == LW_F32)
        for (size_t i = 0; i < w->panel_bytes; i += 4) data[i + 3] = (data[i + 3] & 0x80) | 0x3C;
    else if (w->type == LW_F16 || w->type == LW_BF16)
        for (size_t i = 0; i < w->panel_bytes; i += 2) data[i + 1] = (data[i + 1] & 0x87) | 0x30;
    else  // the f16 scales are at the end of each block
        for (size_t end = halves; end <= w->panel_bytes; end += halves)
            make_finite(data + end - 2 * LW_PANEL, 2 * LW_PANEL);
}

static int list(char** rows) {
    // Only some of the coded types, with different ways to decode, and only for one row and for many, where it matters
    // most.
    static const lw_type types[] = {LW_Q4_0, LW_Q8_0, LW_Q6_K,    LW_F32, LW_F16,  LW_BF16,  LW_Q4_K, LW_CB2,
                                    LW_CB4,  LW_T2,   LW_Q4_G128, LW_FP6, LW_W8A8, LW_MXFP4, LW_FP4,  LW_Q2_G64};
    for (; *rows; ++rows)
        for (int level = LW_LEVEL_NEON; level < LW_LEVEL_COUNT; ++level)
            for (size_t t = 0; t < sizeof types / sizeof *types; ++t) {
                const size_t n = strtoul(*rows, NULL, 10);
                const lw_kernel* kernel = lw_kernel_find(types[t], (lw_level)level, n);
                lw_format f;
                if (lw_find_format(types[t], &f) && (level == LW_LEVEL_NEON || (n > 1 && n < 9))) continue;
                if (kernel->levels >> LW_LEVEL_SCALAR & 1) continue;
                printf("%s %s %s\n", lw_level_names[level], kernel->symbol, *rows);
            }
    return 0;
}

int main(int argc, char** argv) {
    if (argc < 3) return 2;
    if (strcmp(argv[1], "--list") == 0) return list(argv + 2);
    const lw_kernel* kernel = NULL;
    for (uint32_t i = 0; i < lw_n_kernels; ++i)
        if (strcmp(lw_kernels[i].symbol, argv[1]) == 0) kernel = &lw_kernels[i];
    if (kernel == NULL) return fprintf(stderr, "no kernel is called %s\n", argv[1]), 2;
    const size_t rows = strtoul(argv[2], NULL, 10), cols = argc > 3 ? strtoul(argv[3], NULL, 10) : 4096;
    lw_matrix w = {.type = kernel->weights, .rows = LW_PANEL, .cols = (uint32_t)cols, .panels = 1};
    int level = 0;
    while (!(kernel->levels >> level & 1)) ++level;
    w.layout = lw_level_layouts[level];
    w.groups = (uint32_t)((cols + LW_GROUP - 1) / LW_GROUP);
    w.panel_bytes = lw_panel_bytes(w.type, cols);
    uint8_t* data = aligned_alloc(64, (w.panel_bytes + 63) / 64 * 64);
    fill(&w, data);
    w.data = data;
    for (int i = 0; i < 16; ++i) w.table[i] = (int8_t)((int)(draw() % 255) - 127);

    lw_activations x = {.rows = rows, .cols = cols};
    lw_lay_out_activations(&x, w.layout);
    const size_t padded = (rows + 1) / 2 * 2;
    int8_t* q = calloc(padded, x.stride);
    float *scale = calloc(lw_scale_floats(&x), 4), *f32 = calloc(padded * cols, 4);
    int32_t* totals = calloc(padded * x.stride / 16, 4);
    float* sums = calloc(padded * x.segments, LW_SUMS * 4);
    x.q = q, x.scale = scale, x.totals = totals, x.f32 = f32, x.sums = sums;
    for (size_t r = 0; r < rows; ++r) {
        int32_t sum = 0;
        for (size_t k = 0; k < cols; ++k) {
            const int8_t code = (int8_t)((int)(draw() % 255) - 127);
            q[lw_q_offset(&x, r, k)] = code;
            f32[r * cols + k] = (float)code;
            sum = (k % LW_GROUP ? sum : 0) + code;
            totals[lw_totals_offset(&x, r, k)] = sum;
        }
        for (size_t i = 0; i < w.groups; ++i) {
            float* at = scale + lw_scale_offset(&x, r, i);
            at[0] = at[x.row_block - 1] = 0.001f * (float)(1 + draw() % 1000);
        }
        for (size_t i = 0; i < x.segments * LW_SUMS; ++i)
            sums[r * x.segments * LW_SUMS + i] = (float)(draw() % 99) - 49;
    }
    float *got = calloc(rows, LW_PANEL * 4), *want = calloc(rows, LW_PANEL * 4);
    void* scratch = aligned_alloc(64, (lw_matmul_scratch_bytes(rows) + 63) / 64 * 64);
    if (argc > 4 && lw_set_fetch_ahead((uint32_t)strtoul(argv[4], NULL, 10)) != LW_OK)
        return fprintf(stderr, "%s\n", lw_last_error()), 2;
    kernel->run(&w, &x, 0, (lw_output){.data = got, .stride = LW_PANEL}, scratch);
    lw_kernel_find(w.type, LW_LEVEL_SCALAR, rows)
        ->run(&w, &x, 0, (lw_output){.data = want, .stride = LW_PANEL}, scratch);
    printf("%zu\n", rows * cols * LW_PANEL);
    for (size_t i = 0; i < rows * LW_PANEL; ++i)
        if (memcmp(got + i, want + i, 4) != 0)
            return fprintf(stderr, "%s: row %zu, output %zu: %a, scalar gives %a\n", argv[1], i / LW_PANEL,
                           i % LW_PANEL, got[i], want[i]),
                   1;
    return 0;
}
