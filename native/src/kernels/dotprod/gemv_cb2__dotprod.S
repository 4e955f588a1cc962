#define LEVEL dotprod
#define FOUR 1
#include "kernels/neon/gemv_cb2.inc"
