// One or two rows by a panel of packed Q4_0 or Q8_0 (lw_mm_rows in tile.h), group by group, and in each group one quad
// of outputs after the other.
//
// One row multiplies with SDOT, which leaves two sums of each output side by side: one of the first four of every eight
// inputs, one of the last four. The last four are negated, and their sums start at minus the magic number. So adding
// neighbours as floats cancels the magic number and leaves the sum of both. Slots of the vector pipes per quad and
// group, besides splitting nibbles: 8 SDOT, 1 to fold, 1 for the scale, 2 for products with scales, 1 to spread inputs,
// and 1 to start half of the sums, because starting all by loads would be too many loads.
//   v0 v1    sums of a quad, [a, -b, a, -b]
//   v8-v15   results
//   v16-v19  a group's inputs, eight twice in each
//   v27      activation scale, v28 ones or sixteenths in f16, v29 mask of nibbles, v30 signs of inputs
//   v31      start of sums, v2 v3 and v20-v26 temporaries
// Two rows multiply with SMMLA. Slots: 8 SMMLA, 3 for scales, 2 for minus the magic number times scales, 4 for
// products.
//   v0 v1    sums of a quad, 2x2 blocks
//   v4-v7    a group's inputs, eight of one row and of the other
//   v8-v23   results
//   v27      activation scales, v28 v29 as above, v30 minus the magic number, v2 v3 v24-v26 v31 temporaries
// FMLAL widens f16 exactly in 1 slot, FCVTL takes 2. Q4_0 codes are 16 times too large, so its scales are divided by
// 16; neither rounds.
//   x1 inputs, x3 weights, x4 groups, x5 activation scales, x6 results, x7 prefetch distance in bytes, x8 temporary,
//   x17 constants

#include "kernels/neon/fetch.inc"

#define ONE_START 0  // offset in the constants
#define ZERO 16
#define SIGNS 32
#define TWO_START 48
#define MINUS_MAGIC 64
#define ONES 80

.macro multiply dot, w0, w1, input
.ifc \dot, sdot
    sdot v0.4s, v\w0\().16b, v\input\().16b
    sdot v1.4s, v\w1\().16b, v\input\().16b
.else
    smmla v0.4s, v\input\().16b, v\w0\().16b
    smmla v1.4s, v\input\().16b, v\w1\().16b
.endif
.endm

.macro chunk_q8 dot, at, input
    ldr q24, [x3, #\at]
    ldr q25, [x3, #\at + 16]
    multiply \dot, 24, 25, \input
.endm

// The low halves of bytes hold the codes of chunks 0 and 1, the high halves those of chunks 2 and 3.
.macro chunks_q4 dot, at, low, high
    ldr q24, [x3, #\at]
    ldr q25, [x3, #\at + 16]
    shl v2.16b, v24.16b, #4
    shl v3.16b, v25.16b, #4
    and v24.16b, v24.16b, v29.16b
    and v25.16b, v25.16b, v29.16b
    multiply \dot, 2, 3, \low
    multiply \dot, 24, 25, \high
.endm

// Computes the sums of quad `j`, and its scales in v26; v21 has the scales of two quads.
.macro products type, dot, j, h, x0, x1, x2, x3
.ifc \type, q8
    chunk_q8 \dot, 32 * \j, \x0
    chunk_q8 \dot, 256 + 32 * \j, \x1
    chunk_q8 \dot, 512 + 32 * \j, \x2
    chunk_q8 \dot, 768 + 32 * \j, \x3
.else
    chunks_q4 \dot, 32 * \j, \x0, \x2
    chunks_q4 \dot, 256 + 32 * \j, \x1, \x3
.endif
    ldr q26, [x17, #ZERO]
.if \j % 2 == 0
.ifc \type, q8
    ldr q\h, [x3, #1024 + 8 * \j]
.else
    ldr q\h, [x3, #512 + 8 * \j]
.endif
    fmlal v26.4s, v\h\().4h, v28.4h
.else
    fmlal2 v26.4s, v\h\().4h, v28.4h
.endif
.endm

// Results += (scale * sum, rounded once) * activation scale.
.macro quad_1 type, j, r
.ifc \type, q8
    mov v0.16b, v31.16b
.if \j % 2
    mov v1.16b, v31.16b
.else
    ldr q1, [x17, #ONE_START]
.endif
.else
    ldr q0, [x17, #ONE_START]
    ldr q1, [x17, #ONE_START]
.endif
    products \type, sdot, \j, 21, 16, 17, 18, 19
    faddp v23.4s, v0.4s, v1.4s
    fmul v23.4s, v23.4s, v26.4s  // may be -0, which changes no result but 0, and that one is stored as +0
    fmla v\r\().4s, v23.4s, v27.s[0]
.endm

.macro quad_2 type, j, r, t
    ldr q0, [x17, #TWO_START]
    ldr q1, [x17, #TWO_START]
    products \type, smmla, \j, 31, 4, 5, 6, 7
    dup v24.2d, v26.d[0]
    dup v25.2d, v26.d[1]
    fmul v2.4s, v24.4s, v30.4s
    fmul v3.4s, v25.4s, v30.4s
    fmla v2.4s, v0.4s, v24.4s
    fmla v3.4s, v1.4s, v25.4s
    fmla v\r\().4s, v2.4s, v27.4s
    fmla v\t\().4s, v3.4s, v27.4s
.endm

// Loads every eight inputs twice, the last four negated.
.macro inputs_1
    ldr q16, [x1]
    ldr q18, [x1, #16]
    ldr s27, [x5]
    add x1, x1, #32
    add x5, x5, #4
    mul v16.16b, v16.16b, v30.16b
    mul v18.16b, v18.16b, v30.16b
    dup v17.2d, v16.d[1]
    dup v16.2d, v16.d[0]
    dup v19.2d, v18.d[1]
    dup v18.2d, v18.d[0]
.endm

.macro inputs_2
    ldr q4, [x1]
    ldr q5, [x1, #16]
    ldr q6, [x1, #32]
    ldr q7, [x1, #48]
    ldr q27, [x5]
    add x1, x1, #64
    add x5, x5, #16
.endm

// Loads or stores (`op`) the `n` vectors from v\first on, at x6.
.macro each_result op, first, n
.altmacro
.set at, 0
.rept \n
    one_result \op, %(\first + at), %(16 * at)
.set at, at + 1
.endr
.noaltmacro
.endm

.macro one_result op, register, at
    \op q\register, [x6, #\at]
.endm

.macro fetch_group type
.ifc \type, q4
    fetch_ahead x3, x7, x8, 9
.else
    fetch_ahead x3, x7, x8, 17
.endif
.endm

.macro begin name, type
    .global \name\()__i8mm
    .hidden \name\()__i8mm
    .type \name\()__i8mm, %function
    .balign 64
\name\()__i8mm:
    hint #34  // bti c
    stp d8, d9, [sp, #-64]!
    stp d10, d11, [sp, #16]
    stp d12, d13, [sp, #32]
    stp d14, d15, [sp, #48]
    ldp x1, x3, [x0]
    ldp x4, x5, [x0, #16]
    ldp x6, x7, [x0, #32]
    adr x17, lw_constants_of_rows__i8mm
.ifc \type, q4
    ldr q28, [x17, #ONES + 16]
    movi v29.16b, #0xF0
.else
    ldr q28, [x17, #ONES]
.endif
.endm

.macro end name, type
.ifc \type, q4
    add x3, x3, #576
.else
    add x3, x3, #1088
.endif
    subs x4, x4, #1
    b.ne 1b
.endm

.macro return name
    ldp d10, d11, [sp, #16]
    ldp d12, d13, [sp, #32]
    ldp d14, d15, [sp, #48]
    ldp d8, d9, [sp], #64
    ret
    .size \name\()__i8mm, . - \name\()__i8mm
.endm

.macro one_row type
    begin gemv_\type, \type
    ldr q30, [x17, #SIGNS]
    ldr q31, [x17, #ONE_START]
    each_result ldr, 8, 8
1:
    fetch_group \type
    inputs_1
    quad_1 \type, 0, 8
    quad_1 \type, 1, 9
    quad_1 \type, 2, 10
    quad_1 \type, 3, 11
    quad_1 \type, 4, 12
    quad_1 \type, 5, 13
    quad_1 \type, 6, 14
    quad_1 \type, 7, 15
    end gemv_\type, \type
    each_result str, 8, 8
    return gemv_\type
.endm

.macro two_rows type
    begin gemm_2_\type, \type
    ldr q30, [x17, #MINUS_MAGIC]
    each_result ldr, 8, 16
1:
    fetch_group \type
    inputs_2
    quad_2 \type, 0, 8, 9
    quad_2 \type, 1, 10, 11
    quad_2 \type, 2, 12, 13
    quad_2 \type, 3, 14, 15
    quad_2 \type, 4, 16, 17
    quad_2 \type, 5, 18, 19
    quad_2 \type, 6, 20, 21
    quad_2 \type, 7, 22, 23
    end gemm_2_\type, \type
    each_result str, 8, 16
    return gemm_2_\type
.endm

    .text
    .balign 16
lw_constants_of_rows__i8mm:
    .word 0x4B400000, 0xCB400000, 0x4B400000, 0xCB400000
    .word 0, 0, 0, 0
    .word 0x01010101, 0xFFFFFFFF, 0x01010101, 0xFFFFFFFF
    .word 0x4B400000, 0x4B400000, 0x4B400000, 0x4B400000
    .word 0xCB400000, 0xCB400000, 0xCB400000, 0xCB400000
    .rept 8
    .hword 0x3C00  // 1
    .endr
    .rept 8
    .hword 0x2C00  // 1 / 16
    .endr

    one_row q8
    one_row q4
    two_rows q8
    two_rows q4

    .section .note.GNU-stack, "", %progbits
