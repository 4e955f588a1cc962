#include "kernels/lane_ops.h"

extern const lw_lane_ops lane_ops__scalar;
#if defined(__x86_64__)
extern const lw_lane_ops lane_ops__avx2, lane_ops__avx512vnni;
#else
extern const lw_lane_ops lane_ops__neon, lane_ops__dotprod;
#endif

const lw_lane_ops* const lw_level_lane_ops[LW_LEVEL_COUNT] = {
    [LW_LEVEL_SCALAR] = &lane_ops__scalar,
#if defined(__x86_64__)
    [LW_LEVEL_AVX2] = &lane_ops__avx2,
    [LW_LEVEL_AVX512VNNI] = &lane_ops__avx512vnni,
    [LW_LEVEL_AVX512VBMI] = &lane_ops__avx512vnni,
    [LW_LEVEL_AMX] = &lane_ops__avx512vnni,
#else
    [LW_LEVEL_NEON] = &lane_ops__neon,     [LW_LEVEL_DOTPROD] = &lane_ops__dotprod,
    [LW_LEVEL_I8MM] = &lane_ops__dotprod,  [LW_LEVEL_SVE] = &lane_ops__dotprod,
#endif
};
