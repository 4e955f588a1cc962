// Q4_0, Q8_0 and the coded types whose scales serve 64 inputs or more. With fewer, tiles are half or three quarters empty:
// for groups of 32 lw_tune finds out which kernel is faster, groups of 16 and tables stay with AVX-512.
#include "kernels/amx/matmul_tile.h"
#include "kernels/avx512vbmi/lookup.h"
#include "kernels/avx512vnni/types.h"

// What is decoded must be a constant in each pass, so a type of two passes names both.
#define DECODE_ONE(name, type)                                                                    \
    static void decode_##name(const weight_panel* p, size_t segment, size_t pass, uint8_t* codes, \
                              float* differences) {                                               \
        (void)pass;                                                                               \
        decode_signed(type, p, segment, codes, differences);                                      \
    }
#define DECODE_TWO(name, first, second)                                                           \
    static void decode_##name(const weight_panel* p, size_t segment, size_t pass, uint8_t* codes, \
                              float* differences) {                                               \
        if (pass == 0)                                                                            \
            decode_signed(first, p, segment, codes, differences);                                 \
        else                                                                                      \
            decode_signed(second, p, segment, codes, differences);                                \
    }
#define KERNEL(name, passes, first)                                                                                \
    void gemm_##name##_q8s128_32x32__amx(const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out, \
                                         void* scratch) {                                                          \
        amx_gemm(first, decode_##name, passes, w, x, panel, out, scratch);                                         \
    }

DECODE_ONE(q4g32, Q4)
KERNEL(q4g32, 1, Q4)
DECODE_ONE(q8g32, Q8)
KERNEL(q8g32, 1, Q8)

#define CODED_AS(name) coded_type(lw_format_##name, codes_##name, scale_##name)
#define OF_OFFSET(name) \
    LW_CODED_ACCESS(name, coded_codes) DECODE_ONE(name, CODED_AS(name)) KERNEL(name, 1, CODED_AS(name))
#define OF_FLOAT(name)                                      \
    LW_FLOAT_ACCESS(name, lookup_codes)                     \
    DECODE_TWO(name, high_type_##name(), low_type_##name()) \
    KERNEL(name, 2, high_type_##name())

#define IN_GROUPS_OF_16(map, name)
#define IN_GROUPS_OF_32(map, name)
#define IN_GROUPS_OF_64(map, name) OF_##map(name)
#define IN_GROUPS_OF_128(map, name) OF_##map(name)
#define CODED(type, name, low, high, group, scale, super, minimum, map, offset, selector) \
    IN_GROUPS_OF_##group(map, name)
#include "kernels/formats.inc"
