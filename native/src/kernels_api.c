// lw_kernel_*: describe the kernel table, for tools and tests.
#include <stdio.h>

#include "kernels/kernel.h"
#include "status.h"

uint32_t lw_kernel_count(void) { return lw_n_kernels; }

static void describe(const lw_kernel* k, lw_kernel_info* out) {
    const uint32_t levels = k->levels & lw_cpu_levels();
    *out = (lw_kernel_info){.min_rows = lw_kernel_min_rows(k), .available = levels != 0};
    snprintf(out->symbol, sizeof out->symbol, "%s", k->symbol);
    snprintf(out->weights, sizeof out->weights, "%s", lw_type_name(k->weights));
    // The part of the symbol after the double underscore is its ISA.
    const char* isa = k->symbol;
    for (const char* p = k->symbol; *p; ++p)
        if (p[0] == '_' && p[1] == '_') isa = p + 2;
    snprintf(out->isa, sizeof out->isa, "%s", isa);
}

lw_status lw_kernel_describe(uint32_t index, lw_kernel_info* out) {
    if (out == NULL || index >= lw_n_kernels)
        return lw_fail(LW_ERR_ARGUMENT, "lw_kernel_describe: kernel %u, there are %u", index, lw_n_kernels);
    describe(&lw_kernels[index], out);
    return LW_OK;
}

lw_status lw_kernel_in_use(const char* isa, lw_type type, uint32_t rows, lw_kernel_info* out) {
    if (out == NULL) return lw_fail(LW_ERR_ARGUMENT, "lw_kernel_in_use: out must not be NULL");
    lw_level level;
    LW_RETURN_IF_FAILED(lw_level_by_name(isa, &level));
    const lw_kernel* k = lw_kernel_find(type, level, rows);
    if (k == NULL)
        return lw_fail(LW_ERR_ARGUMENT, "lw_kernel_in_use: no kernel for %u rows of type %u", rows, (unsigned)type);
    describe(k, out);
    return LW_OK;
}
