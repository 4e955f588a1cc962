#define MULTIPLY(n) "sdot v" #n ".4s, v12.16b, v13.16b\n\t"
#include "kernels/limits_arm.inc"

const lw_limit_ops limit_ops__dotprod = {read_way, multiply, 12 * 16};
