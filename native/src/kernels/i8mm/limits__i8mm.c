#define MULTIPLY(acc, a, b) __asm__ volatile("smmla %0.4s, %1.16b, %2.16b" : "+w"(acc) : "w"(a), "w"(b))
#include "kernels/limits_arm.inc"

const lw_limit_ops limit_ops__i8mm = {read_way, multiply, 16 * 32};
