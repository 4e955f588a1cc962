#define MULTIPLY(n) "smmla z" #n ".s, z12.b, z13.b\n\t"
#include "kernels/limits_arm.inc"

// A round counts the products of one 512-bit vector; shorter vectors need more turns.
static void multiply_any_length(uint64_t rounds) {
    uint64_t bytes;
    __asm__("rdvl %0, #1" : "=r"(bytes));
    multiply(rounds * 64 / bytes);
}

const lw_limit_ops limit_ops__sve = {read_way, multiply_any_length, 12 * 32 * 4};
