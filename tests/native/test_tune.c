// Choices between kernels: which are open on which level, what a measurement may answer, what is refused, and that a
// choice decides which kernel runs. That none changes a bit of a model's answer is test_golden's to show.
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "kernels/kernel.h"

enum { MOST = 16 };

static int passed, failed;

static void expect(bool ok, const char* level, const char* what) {
    ok ? ++passed : ++failed;
    if (!ok) printf("FAIL %s: %s (%s)\n", level, what, lw_last_error());
}

static const lw_kernel* kernel_named(const char* symbol) {
    for (uint32_t i = 0; i < lw_n_kernels; ++i)
        if (strcmp(lw_kernels[i].symbol, symbol) == 0) return &lw_kernels[i];
    return NULL;
}

static const char* in_use(const lw_choice* choice, lw_level level, size_t rows) {
    static lw_kernel_info info;
    const lw_type type = kernel_named(choice->symbol)->weights;
    expect(lw_kernel_in_use(lw_level_names[level], type, (uint32_t)rows, &info) == LW_OK, lw_level_names[level],
           "in use");
    return info.symbol;
}

static void test_choosing(lw_choice choice, const char* name, lw_level level) {
    const uint32_t least = choice.least_rows;
    expect(strcmp(in_use(&choice, level, least), choice.symbol) == 0, name, "the table's kernel at first");
    choice.min_rows = least + 4;
    expect(lw_choose(&choice, 1) == LW_OK, name, "a later start");
    expect(strcmp(in_use(&choice, level, least + 3), choice.rival) == 0, name, "the rival below it");
    expect(strcmp(in_use(&choice, level, least + 4), choice.symbol) == 0, name, "the kernel from there on");
    choice.min_rows = least - 1;
    expect(lw_choose(&choice, 1) == LW_ERR_ARGUMENT, name, "batches that the kernel does not take");
    choice.min_rows = UINT32_MAX;
    expect(lw_choose(&choice, 1) == LW_OK, name, "never");
    expect(strcmp(in_use(&choice, level, least), choice.rival) == 0, name, "the rival in its place");
    expect(strcmp(in_use(&choice, level, 1 << 16), choice.symbol) != 0, name, "nowhere");
    choice.min_rows = least;
    expect(lw_choose(&choice, 1) == LW_OK, name, "back to the table's");
    expect(strcmp(in_use(&choice, level, least), choice.symbol) == 0, name, "the table's kernel at last");
}

static void test_level(const char* name, lw_level level) {
    lw_choice found[MOST], tuned[MOST], after[MOST];
    uint32_t n = 0, m = 0;
    expect(lw_choices(name, found, MOST, &n) == LW_OK && n <= MOST, name, "choices");
    // SVE's kernels and I8MM's, AMX's and AVX-512's, and AVX-512's own, read the same weights; a new pair is a new number here.
    const uint32_t pairs[LW_LEVEL_COUNT] = {
        [LW_LEVEL_SVE] = 3, [LW_LEVEL_AVX512VNNI] = 3, [LW_LEVEL_AVX512VBMI] = 3, [LW_LEVEL_AMX] = 2};
    expect(n == pairs[level], name, "how many choices there are");
    expect(lw_tune(name, tuned, MOST, &m) == LW_OK && m == n, name, "a measurement");
    expect(lw_choices(name, after, MOST, &m) == LW_OK && m == n, name, "choices again");
    for (uint32_t i = 0; i < n; ++i) {
        expect(strcmp(found[i].symbol, tuned[i].symbol) == 0, name, "the order of choices");
        expect(tuned[i].min_rows >= found[i].least_rows, name, "what is measured can be chosen");
        expect(lw_choose(&tuned[i], 1) == LW_OK && lw_choose(&found[i], 1) == LW_OK, name, "what is measured");
        expect(after[i].min_rows == found[i].min_rows, name, "measuring changes nothing");
        test_choosing(found[i], name, level);
        lw_choice pair[2] = {found[i], found[i]};
        pair[0].min_rows = UINT32_MAX;
        pair[1].min_rows = 0;
        expect(lw_choose(pair, 2) == LW_ERR_ARGUMENT, name, "one of two that is refused");
        expect(strcmp(in_use(&found[i], level, found[i].least_rows), found[i].symbol) == 0, name, "then neither holds");
    }
    for (uint32_t i = 0; i < lw_n_kernels; ++i) {
        const lw_kernel *k = &lw_kernels[i], *rival = lw_kernel_rival(k, level);
        if (rival == NULL) continue;
        expect((k->levels & rival->levels) >> level & 1 && k->weights == rival->weights, name, "rivals do the same");
        expect(k->run != NULL && rival->run != NULL, name, "rivals have code");
    }
}

int main(void) {
    for (int level = 0; level < LW_LEVEL_COUNT; ++level)
        if (lw_cpu_levels() >> level & 1) test_level(lw_level_names[level], (lw_level)level);
    lw_choice unknown = {.symbol = "gemm", .rival = "gemv", .min_rows = 100};
    uint32_t n;
    expect(lw_choose(&unknown, 1) == LW_ERR_ARGUMENT && strstr(lw_last_error(), "'gemm' has no rival 'gemv'"), "any",
           "a pair that does not exist");
    memset(unknown.symbol, 'x', sizeof unknown.symbol);
    expect(lw_choose(&unknown, 1) == LW_ERR_ARGUMENT, "any", "a name without an end");
    expect(lw_choices("avx3", NULL, 0, &n) == LW_ERR_ARGUMENT, "any", "an unknown level");
    expect(lw_choices(NULL, NULL, 0, NULL) == LW_ERR_ARGUMENT, "any", "no room for the number");
    expect(lw_choices(NULL, NULL, 0, &n) == LW_OK, "any", "only the number");
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
