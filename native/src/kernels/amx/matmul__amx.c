// Q4_0 and Q8_0.
#include "kernels/amx/matmul_tile.h"
#include "kernels/avx512vnni/types.h"

AMX_KERNEL(q4g32, Q4)
AMX_KERNEL(q8g32, Q8)
