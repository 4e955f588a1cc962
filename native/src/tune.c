// lw_choices, lw_tune, lw_choose: which of two kernels with the same bits is used, decided by measuring both.
//
// Both run over the same invented panels, which fit the second-level cache: products of many rows wait for arithmetic,
// not for memory. The kernels take turns, and the shortest time of each counts, so that other work on the machine
// affects neither.
#include <stdlib.h>
#include <string.h>

#include "kernels/layout.h"
#include "memory.h"
#include "profile.h"
#include "status.h"

enum { COLS = 2048, PANELS = 4, MAX_ROWS = 256, MIN_TURNS = 3, MAX_TURNS = 50, MAX_CHOICES = 16 };
static const uint32_t batches[] = {12, 16, 24, 48, 96, MAX_ROWS};  // measured besides the smallest number that the
                                                                   // table allows
enum { SIZES = 1 + sizeof batches / sizeof *batches };
static const uint64_t ns_per_size = 5000000;
static const double margin = 0.98;  // a kernel that is less than 2 % faster does not change the table

typedef struct bench {
    lw_matrix weights;
    lw_activations x;  // for up to MAX_ROWS rows
    float* out;        // [MAX_ROWS][PANELS * LW_PANEL]
    void* scratch;
    lw_block block;
} bench;

// Any finite codes and f16 scales will do, so one byte fills all weights and another all activations.
static _Bool open_bench(lw_type type, lw_level level, bench* b) {
    const size_t panel_bytes = lw_panel_bytes(type, COLS), weights = lw_round_up(PANELS * panel_bytes, 64);
    const size_t codes = lw_round_up((MAX_ROWS + 2) * lw_activation_stride(COLS), 64);
    lw_activations most = {.rows = MAX_ROWS, .cols = COLS};
    lw_lay_out_activations(&most, lw_level_layouts[level]);
    const size_t scales = lw_round_up(lw_scale_floats(&most) * sizeof(float), 64);
    const size_t totals = codes / 16 * sizeof(int32_t), out = MAX_ROWS * PANELS * LW_PANEL * sizeof(float);
    const size_t scratch = lw_round_up(lw_matmul_scratch_bytes(MAX_ROWS), 64);
    if (!lw_block_map(weights + codes + scales + totals + out + scratch, &b->block)) return 0;
    uint8_t* at = b->block.data;
    memset(at, 0x2C, weights + codes);
    b->weights = (lw_matrix){.type = type,
                             .layout = lw_level_layouts[level],
                             .rows = PANELS * LW_PANEL,
                             .cols = COLS,
                             .panels = PANELS,
                             .groups = COLS / LW_GROUP,
                             .panel_bytes = panel_bytes,
                             .data = at};
    b->x = (lw_activations){.cols = COLS, .q = (int8_t*)(at += weights)};
    b->x.scale = (float*)(at += codes);
    b->x.totals = (int32_t*)(at += scales);
    b->out = (float*)(at += totals);
    b->scratch = at + out;
    return 1;
}

static uint64_t run_once(bench* b, const lw_kernel* kernel) {
    const lw_output out = {.data = b->out, .stride = PANELS * LW_PANEL};
    const uint64_t begin = lw_profile_now();
    for (size_t panel = 0; panel < PANELS; ++panel) kernel->run(&b->weights, &b->x, panel, out, b->scratch);
    return lw_profile_now() - begin;
}

// True if `kernel`, which the table prefers, is to be used for `rows` rows.
static _Bool is_as_fast(bench* b, const lw_kernel* kernel, const lw_kernel* rival, uint32_t rows) {
    b->x.rows = rows;
    lw_lay_out_activations(&b->x, b->weights.layout);
    uint64_t best[2] = {UINT64_MAX, UINT64_MAX};
    const uint64_t end = lw_profile_now() + ns_per_size;
    for (int turn = 0; turn < MIN_TURNS || (turn < MAX_TURNS && lw_profile_now() < end); ++turn)
        for (int i = 0; i < 2; ++i) {
            const uint64_t t = run_once(b, i == 0 ? kernel : rival);
            if (t < best[i]) best[i] = t;
        }
    return margin * (double)best[0] <= (double)best[1];
}

// The smallest measured number of rows from which on `kernel` keeps up with its rival; UINT32_MAX if there is none.
static uint32_t measure(bench* b, const lw_kernel* kernel, const lw_kernel* rival) {
    uint32_t from = UINT32_MAX;
    for (int i = SIZES - 1; i >= 0; --i) {
        const uint32_t rows = i == 0 ? kernel->min_rows : batches[i - 1];
        if (rows < kernel->min_rows || rows > MAX_ROWS) continue;
        if (!is_as_fast(b, kernel, rival, rows)) break;
        from = rows;
    }
    return from;
}

static lw_status tuned(const lw_kernel* kernel, const lw_kernel* rival, lw_level level, uint32_t* min_rows) {
    bench b;
    if (!open_bench(kernel->weights, level, &b)) return lw_fail(LW_ERR_MEMORY, "no memory to compare two kernels");
    const uint64_t saved = lw_fp_enter();
    *min_rows = measure(&b, kernel, rival);
    lw_fp_restore(saved);
    lw_block_unmap(&b.block);
    return LW_OK;
}

static void copy_name(char out[64], const char* name) {
    memset(out, 0, 64);
    strncpy(out, name, 63);
}

// Lists the choices of a level: as set, or with `as_measured` as a measurement on this core finds them.
static lw_status list(const char* isa, _Bool as_measured, lw_choice* out, uint32_t capacity, uint32_t* n) {
    if (n == NULL || (out == NULL && capacity > 0))
        return lw_fail(LW_ERR_ARGUMENT, "lw_choices, lw_tune: n and out must not be NULL");
    lw_level level;
    LW_RETURN_IF_FAILED(lw_level_by_name(isa, &level));
    lw_choice found[MAX_CHOICES];
    uint32_t count = 0;
    for (const lw_kernel* k = lw_kernels; k < lw_kernels + lw_n_kernels && count < MAX_CHOICES; ++k) {
        const lw_kernel* rival = lw_kernel_rival(k, level);
        if (rival == NULL) continue;
        lw_choice* choice = &found[count++];
        *choice = (lw_choice){.least_rows = k->min_rows, .min_rows = lw_kernel_min_rows(k)};
        copy_name(choice->symbol, k->symbol);
        copy_name(choice->rival, rival->symbol);
        if (as_measured) LW_RETURN_IF_FAILED(tuned(k, rival, level, &choice->min_rows));
    }
    for (uint32_t i = 0; i < count && i < capacity; ++i) out[i] = found[i];
    *n = count;
    return LW_OK;
}

lw_status lw_choices(const char* isa, lw_choice* out, uint32_t capacity, uint32_t* n) {
    return list(isa, 0, out, capacity, n);
}

lw_status lw_tune(const char* isa, lw_choice* out, uint32_t capacity, uint32_t* n) {
    return list(isa, 1, out, capacity, n);
}

static lw_status find_choice(const lw_choice* choice, const lw_kernel** out) {
    if (memchr(choice->symbol, 0, sizeof choice->symbol) == NULL || memchr(choice->rival, 0, 64) == NULL)
        return lw_fail(LW_ERR_ARGUMENT, "choice: symbol or rival does not end with a zero byte");
    for (const lw_kernel* k = lw_kernels; k < lw_kernels + lw_n_kernels; ++k) {
        if (strcmp(k->symbol, choice->symbol) != 0) continue;
        for (int level = 0; level < LW_LEVEL_COUNT; ++level) {
            const lw_kernel* rival = lw_kernel_rival(k, (lw_level)level);
            if (rival == NULL || strcmp(rival->symbol, choice->rival) != 0) continue;
            if (choice->min_rows < k->min_rows)
                return lw_fail(LW_ERR_ARGUMENT, "choice: %s from %u rows on, must be from at least %u", k->symbol,
                               choice->min_rows, k->min_rows);
            *out = k;
            return LW_OK;
        }
    }
    return lw_fail(LW_ERR_ARGUMENT, "choice: '%s' has no rival '%s'", choice->symbol, choice->rival);
}

lw_status lw_choose(const lw_choice* choices, uint32_t n) {
    if (choices == NULL && n > 0) return lw_fail(LW_ERR_ARGUMENT, "lw_choose: choices must not be NULL");
    const lw_kernel* kernel = NULL;
    for (uint32_t i = 0; i < n; ++i) LW_RETURN_IF_FAILED(find_choice(&choices[i], &kernel));
    for (uint32_t i = 0; i < n; ++i)
        if (find_choice(&choices[i], &kernel) == LW_OK) lw_kernel_choose(kernel, choices[i].min_rows);
    return LW_OK;
}
