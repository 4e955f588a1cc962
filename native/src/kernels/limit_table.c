#include "kernels/limit_ops.h"

extern const lw_limit_ops limit_ops__scalar;
#if defined(__x86_64__)
extern const lw_limit_ops limit_ops__avx2, limit_ops__avx512vnni, limit_ops__amx;
#else
extern const lw_limit_ops limit_ops__neon, limit_ops__dotprod, limit_ops__i8mm, limit_ops__sve;
#endif

const lw_limit_ops* const lw_level_limit_ops[LW_LEVEL_COUNT] = {
    [LW_LEVEL_SCALAR] = &limit_ops__scalar,
#if defined(__x86_64__)
    [LW_LEVEL_AVX2] = &limit_ops__avx2,
    [LW_LEVEL_AVX512VNNI] = &limit_ops__avx512vnni,
    [LW_LEVEL_AVX512VBMI] = &limit_ops__avx512vnni,
    [LW_LEVEL_AMX] = &limit_ops__amx,
#else
    [LW_LEVEL_NEON] = &limit_ops__neon,     [LW_LEVEL_DOTPROD] = &limit_ops__dotprod,
    [LW_LEVEL_I8MM] = &limit_ops__i8mm,     [LW_LEVEL_SVE] = &limit_ops__sve,
#endif
};
