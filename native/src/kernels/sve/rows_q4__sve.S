// One row by a panel of packed Q4_0 (lw_mm_rows in i8mm/tile.h), group by group, with vectors of 256 or 512 bits.
//
// As in rows__i8mm.S a vector of weights holds eight inputs of each output, and SDOT leaves two sums of an output side
// by side. The last four of every eight inputs are negated, and their sums start at minus the magic number: adding both
// as floats cancels it. SVE cannot add neighbours, so UZP puts the sums of two vectors apart first.
// Codes are 16 times too large, and so are sums: they start at the bits of a float whose last place is 1/16.
//   z0-z3    a group's inputs, eight of them over and over
//   z4       activation scale, z5 scales of weights
//   z16 z17  sums of two vectors, z18-z23 z28 z29 weights, z30 z31 sums of outputs
//   z24-z27  results
//   p0       all of a vector, p1 the last four of every eight bytes
//   x1 inputs, x3 the middle of a group's weights, x4 groups, x5 activation scales, x6 results, x7 prefetch distance,
//   x8 temporary, x9 scales of weights, x17 constant

#include "kernels/neon/fetch.inc"

.macro inputs i
    ld1rd {z\i\().d}, p0/z, [x1, #8 * \i]
    neg z\i\().b, p1/m, z\i\().b
.endm

// Outputs of vectors 2 * \j and 2 * \j + 1 of each chunk, which has `n`.
.macro pair n, j
    ld1rd {z16.d}, p0/z, [x17]
    ld1rd {z17.d}, p0/z, [x17]
    ldr z18, [x3, #2 * \j - \n, mul vl]
    ldr z19, [x3, #2 * \j + 1 - \n, mul vl]
    ldr z20, [x3, #2 * \j, mul vl]
    ldr z21, [x3, #2 * \j + 1, mul vl]
    lsl z22.b, z18.b, #4
    lsl z23.b, z19.b, #4
    lsl z28.b, z20.b, #4
    lsl z29.b, z21.b, #4
    and z18.b, z18.b, #0xF0
    and z19.b, z19.b, #0xF0
    and z20.b, z20.b, #0xF0
    and z21.b, z21.b, #0xF0
    sdot z16.s, z22.b, z0.b
    sdot z17.s, z23.b, z0.b
    sdot z16.s, z28.b, z1.b
    sdot z17.s, z29.b, z1.b
    sdot z16.s, z18.b, z2.b
    sdot z17.s, z19.b, z2.b
    sdot z16.s, z20.b, z3.b
    sdot z17.s, z21.b, z3.b
    ld1h {z5.s}, p0/z, [x9, #\j, mul vl]
    fcvt z5.s, p0/m, z5.h
    uzp1 z30.s, z16.s, z17.s
    uzp2 z31.s, z16.s, z17.s
    fadd z30.s, z30.s, z31.s
    fmul z30.s, z30.s, z5.s  // as in rows__i8mm.S
    add_to %(24 + \j)
.endm

.macro add_to r
    fmla z\r\().s, p0/m, z30.s, z4.s
.endm

.macro each_result op, n
.set j, 0
.rept \n
    one_result \op, %(24 + j), %(j)
.set j, j + 1
.endr
.endm

.macro one_result op, r, j
    \op z\r, [x6, #\j, mul vl]
.endm

// `n` vectors in a chunk.
.macro row n
    .altmacro
    each_result ldr, (\n / 2)
1:
    fetch_ahead x3, x7, x8, 9
    inputs 0
    inputs 1
    inputs 2
    inputs 3
    ld1rw {z4.s}, p0/z, [x5]
    add x9, x3, #256
    pair \n, 0
    pair \n, 1
.if \n > 4
    pair \n, 2
    pair \n, 3
.endif
    add x1, x1, #32
    add x5, x5, #4
    add x3, x3, #576
    subs x4, x4, #1
    b.ne 1b
    each_result str, (\n / 2)
    .noaltmacro
    ret
.endm

    .text
    .balign 8
lw_start_of_rows__sve:
    .word 0x49400000, 0xC9400000  // 12582912 / 16, and minus that

    .global gemv_q4__sve
    .hidden gemv_q4__sve
    .type gemv_q4__sve, %function
    .balign 64
gemv_q4__sve:
    hint #34  // bti c
    ldp x1, x3, [x0]
    ldp x4, x5, [x0, #16]
    ldp x6, x7, [x0, #32]
    add x3, x3, #256
    adr x17, lw_start_of_rows__sve
    ptrue p0.b
    pfalse p1.b
    trn1 p1.s, p1.s, p0.s
    rdvl x8, #1
    cmp x8, #32
    b.ne 512f
    row 8
512:
    row 4
    .size gemv_q4__sve, . - gemv_q4__sve

    .section .note.GNU-stack, "", %progbits
