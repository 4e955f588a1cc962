// Armv8.0 multiplies eight bytes into 16-bit lanes (smull) and folds them (sadalp): eight products, two instructions.
#define MULTIPLY(n) "smull v31.8h, v12.8b, v13.8b\n\tsadalp v" #n ".4s, v31.8h\n\t"
#include "kernels/limits_arm.inc"

const lw_limit_ops limit_ops__neon = {read_way, multiply, 12 * 8};
