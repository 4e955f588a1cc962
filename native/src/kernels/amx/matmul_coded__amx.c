// Coded types with a scale for 32 inputs or more. With a scale for 16, tiles are no faster than AVX-512.
#include "kernels/amx/matmul_tile.h"
#include "kernels/avx512vbmi/lookup.h"

#define KERNEL(name, codes)      \
    LW_CODED_ACCESS(name, codes) \
    AMX_KERNEL(name, coded_type(lw_format_##name, codes_##name, scale_##name))
#define OF_16(name, codes)
#define OF_32 KERNEL
#define OF_64 KERNEL
#define OF_128 KERNEL
#define OF_OFFSET(name, group) OF_##group(name, coded_codes)
#define OF_TABLE(name, group) OF_##group(name, lookup_codes)
#define OF_TRELLIS OF_TABLE
#define OF_FLOAT(name, group)
#define CODED(type, name, low, high, group, scale, super, minimum, map, offset, selector) OF_##map(name, group)
#include "kernels/formats.inc"
