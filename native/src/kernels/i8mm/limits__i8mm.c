#define MULTIPLY(n) "smmla v" #n ".4s, v12.16b, v13.16b\n\t"
#include "kernels/limits_arm.inc"

const lw_limit_ops limit_ops__i8mm = {read_way, multiply, 12 * 32};
