#include <stdatomic.h>
#include <stdio.h>

#include "kernels/format.h"
#include "status.h"

#if defined(__x86_64__)
#define X86(symbol) symbol
#define ARM(symbol) NULL
#else
#define X86(symbol) NULL
#define ARM(symbol) symbol
#endif

enum {
    ALL = (1 << LW_LEVEL_COUNT) - 1,
    SCALAR = LW_BIT_SCALAR,
    AVX2 = LW_BIT_AVX2,
    AMX = LW_BIT_AMX,
    VNNI = LW_BIT_AVX512VNNI | LW_BIT_AVX512VBMI,
    VBMI = LW_BIT_AVX512VBMI | AMX,
    AVX512 = VNNI | AMX,
    NEON = LW_BIT_NEON,
    DOTPROD = LW_BIT_DOTPROD,
    I8MM = LW_BIT_I8MM,
    SVE = LW_BIT_SVE,
    FLOAT_ON_NEON = NEON | DOTPROD | I8MM | SVE,
};

// KERNEL rows have code on every CPU. X86_KERNEL and ARM_KERNEL rows are listed everywhere but have code only on their
// CPU.
#define KERNEL(symbol, type, levels, min_rows) \
    extern void symbol(const lw_matrix*, const lw_activations*, size_t, lw_output, void*);
#define X86_KERNEL KERNEL
#define ARM_KERNEL KERNEL
#include "kernels/table.inc"
#undef KERNEL
#undef X86_KERNEL
#undef ARM_KERNEL

#define KERNEL(symbol, type, levels, min_rows) {#symbol, symbol, type, levels, min_rows},
#define X86_KERNEL(symbol, type, levels, min_rows) {#symbol, X86(symbol), type, levels, min_rows},
#define ARM_KERNEL(symbol, type, levels, min_rows) {#symbol, ARM(symbol), type, levels, min_rows},
const lw_kernel lw_kernels[] = {
#include "kernels/table.inc"
};
#undef KERNEL
#undef X86_KERNEL
#undef ARM_KERNEL

const uint32_t lw_n_kernels = sizeof lw_kernels / sizeof lw_kernels[0];

const lw_layout lw_level_layouts[LW_LEVEL_COUNT] = {
    [LW_LEVEL_SCALAR] = {.chunk = 4, .row_block = 1},
    [LW_LEVEL_AVX2] = {.chunk = 4, .row_block = 1},
    [LW_LEVEL_AVX512VNNI] = {.chunk = 4, .q8_biased = true, .row_block = 1, .segment_major = true},
    [LW_LEVEL_AVX512VBMI] = {.chunk = 4, .q8_biased = true, .row_block = 1, .segment_major = true},
    [LW_LEVEL_AMX] = {.chunk = 4, .q8_biased = true, .row_block = 1, .segment_major = true},
    [LW_LEVEL_NEON] = {.chunk = 2, .row_block = 1},
    [LW_LEVEL_DOTPROD] = {.chunk = 4, .q4_toggled = true, .row_block = 1},
    [LW_LEVEL_I8MM] = {.chunk = 8, .q4_toggled = true, .row_block = 2},
    [LW_LEVEL_SVE] = {.chunk = 8, .q4_toggled = true, .row_block = 2},  // the layout of I8MM, whose kernels SVE shares
};

// Smallest numbers of rows chosen instead of the table's; 0 = not chosen. Every choice gives the same bits, so threads
// may see a change at any moment.
static _Atomic uint32_t chosen[sizeof lw_kernels / sizeof lw_kernels[0]];

// With 128-bit vectors the kernels of SVE do the same work per instruction as those of I8MM, which need no loads that
// repeat inputs. Only the loads that widen bfloat16 gain something.
static bool is_no_gain(const lw_kernel* kernel) {
    return kernel->levels == LW_BIT_SVE && kernel->weights != LW_BF16 && lw_cpu_vector_bits() == 128;
}

uint32_t lw_kernel_min_rows(const lw_kernel* kernel) {
    const uint32_t rows = atomic_load_explicit(&chosen[kernel - lw_kernels], memory_order_relaxed);
    return rows > 0 ? rows : is_no_gain(kernel) ? UINT32_MAX : kernel->min_rows;
}

void lw_kernel_choose(const lw_kernel* kernel, uint32_t min_rows) {
    atomic_store_explicit(&chosen[kernel - lw_kernels], min_rows, memory_order_relaxed);
}

const lw_kernel* lw_kernel_find(lw_type type, lw_level level, size_t rows) {
    for (const lw_kernel* k = lw_kernels; k < lw_kernels + lw_n_kernels; ++k)
        if (k->weights == type && (k->levels >> level & 1) && rows >= lw_kernel_min_rows(k)) return k;
    return NULL;
}

const lw_kernel* lw_kernel_rival(const lw_kernel* kernel, lw_level level) {
    lw_format f;
    if (!(kernel->levels >> level & 1) || kernel->min_rows == 1 || lw_find_format(kernel->weights, &f)) return NULL;
    for (const lw_kernel* k = kernel + 1; k < lw_kernels + lw_n_kernels; ++k)
        if (k->weights == kernel->weights && (k->levels >> level & 1) && k->min_rows <= kernel->min_rows)
            return k->min_rows > 1 ? k : NULL;
    return NULL;
}

const char* lw_type_name(lw_type type) {
    switch (type) {
        case LW_F32:
            return "f32";
        case LW_F16:
            return "f16";
        case LW_BF16:
            return "bf16";
        case LW_I8:
            return "i8";
        case LW_I4:
            return "i4";
        case LW_I8_I4:
            return "i8_i4";
        case LW_Q4_0:
            return "q4_0";
        case LW_Q8_0:
            return "q8_0";
        case LW_Q6_K:
            return "q6_k";
        case LW_IQ1_S:
            return "iq1_s";
        case LW_IQ1_M:
            return "iq1_m";
        case LW_IQ2_XXS:
            return "iq2_xxs";
        case LW_IQ2_XS:
            return "iq2_xs";
        case LW_IQ2_S:
            return "iq2_s";
        case LW_IQ3_XXS:
            return "iq3_xxs";
        case LW_IQ3_S:
            return "iq3_s";
        case LW_TQ1_0:
            return "tq1_0";
        case LW_TQ2_0:
            return "tq2_0";
        case LW_Q1_0:
            return "q1_0";
        case LW_Q2_0:
            return "q2_0";
#define CODED(type, name, ...) \
    case type:                 \
        return #name;
#include "kernels/formats.inc"
#undef CODED
    }
    return "unknown";
}
