// Coded types with a table, a trellis or float parts.
#include "kernels/avx512vbmi/lookup.h"

#define OF_OFFSET(name)
#define OF_TABLE(name) LW_CODED_KERNELS(avx512vbmi, name, lookup_codes)
#define OF_TRELLIS(name) LW_CODED_KERNELS(avx512vbmi, name, lookup_codes)
#define OF_FLOAT(name) LW_FLOAT_KERNELS(avx512vbmi, name, lookup_codes)
#define CODED(type, name, low, high, group, scale, super, minimum, map, offset, selector) OF_##map(name)
#include "kernels/formats.inc"
