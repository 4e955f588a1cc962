// Armv8.0 multiplies eight bytes into 16-bit lanes (smlal) and folds them (sadalp): eight products, two instructions.
#define MULTIPLY(acc, a, b)                                                       \
    do {                                                                          \
        int16x8_t t;                                                              \
        __asm__ volatile("smull %0.8h, %1.8b, %2.8b" : "=w"(t) : "w"(a), "w"(b)); \
        __asm__ volatile("sadalp %0.4s, %1.8h" : "+w"(acc) : "w"(t));             \
    } while (0)
#include "kernels/limits_arm.inc"

const lw_limit_ops limit_ops__neon = {read_way, multiply, 16 * 8};
