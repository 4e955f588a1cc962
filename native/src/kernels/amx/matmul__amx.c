// Q4_0 and Q8_0; lw_tune measures from how many rows on tiles are faster here than AVX-512.
#include "kernels/amx/matmul_tile.h"
#include "kernels/avx512vnni/types.h"

#define KERNEL(name, type)                                                                                        \
    static void decode_##name(const weight_panel* p, size_t segment, uint8_t* codes, float* scales) {             \
        decode_signed(type, p, segment, codes, scales);                                                           \
    }                                                                                                             \
    void gemm_##name##_q8g32_32x32__amx(const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out, \
                                        void* scratch) {                                                          \
        amx_gemm(type, decode_##name, w, x, panel, out, scratch);                                                 \
    }

KERNEL(q4g32, Q4)
KERNEL(q8g32, Q8)
