#define LEVEL i8mm
#define FOUR 0
#include "kernels/neon/gemv_cb2.inc"
