// Coded types whose levels are code - offset.
#include "kernels/i8mm/matmul_coded.h"

#define OF_OFFSET(name) LW_CODED_KERNELS(name)
#define OF_TABLE(name)
#define OF_TRELLIS(name)
#define OF_FLOAT(name)
#define CODED(type, name, low, high, group, scale, super, minimum, map, offset, selector) OF_##map(name)
#include "kernels/formats.inc"
