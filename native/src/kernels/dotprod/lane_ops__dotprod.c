#include "kernels/lane_ops.inc"
