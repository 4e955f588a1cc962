#define MULTIPLY(n) "sdot %" #n ".4s, %12.16b, %13.16b\n\t"
#include "kernels/limits_arm.inc"

const lw_limit_ops limit_ops__dotprod = {read_way, multiply, 12 * 16};
