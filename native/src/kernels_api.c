// lw_kernel_*: what the kernel table holds, for tools and tests.
#include <stdio.h>

#include "kernels/kernel.h"
#include "status.h"

static const char* weights_name(lw_type type) {
    switch (type) {
        case LW_F32:
            return "f32";
        case LW_F16:
            return "f16";
        case LW_BF16:
            return "bf16";
        case LW_Q4_0:
            return "q4_0";
        case LW_Q8_0:
            return "q8_0";
        case LW_Q6_K:
            return "q6_k";
    }
    return "unknown";
}

uint32_t lw_kernel_count(void) { return lw_n_kernels; }

lw_status lw_kernel_describe(uint32_t index, lw_kernel_info* out) {
    if (out == NULL || index >= lw_n_kernels)
        return lw_fail(LW_ERR_ARGUMENT, "lw_kernel_describe: kernel %u, there are %u", index, lw_n_kernels);
    const lw_kernel* k = &lw_kernels[index];
    const uint32_t levels = k->levels & lw_cpu_levels();
    *out = (lw_kernel_info){.min_rows = k->min_rows, .available = levels != 0};
    snprintf(out->symbol, sizeof out->symbol, "%s", k->symbol);
    snprintf(out->weights, sizeof out->weights, "%s", weights_name(k->weights));
    // The part of the symbol after the double underscore is its ISA.
    const char* isa = k->symbol;
    for (const char* p = k->symbol; *p; ++p)
        if (p[0] == '_' && p[1] == '_') isa = p + 2;
    snprintf(out->isa, sizeof out->isa, "%s", isa);
    return LW_OK;
}
