// One row by a panel of bfloat16 (lw_float_row in rows_float.h): a chain of fma for each output over ascending inputs.
//
// A bfloat16 is the upper half of an f32, and a load of halves zeroes those that its predicate leaves out. So a load of
// the odd halves of a vector gives the odd outputs as f32, and the same load two bytes earlier the even ones: nothing is
// widened in the vector pipes. The half before a panel is never read.
//   z16-z23  sums, of even and of odd outputs in turn, z24-z31 weights, z0 inputs
//   p0       odd halves, p1 all of a vector
//   x1       weights + 128, x2 two bytes less, x3 inputs, x4 inputs left, x5 results, x6 prefetch distance, x7 x8
//            temporaries

#include "kernels/neon/fetch.inc"

// Input `k` of four times all outputs, in `n` pairs of vectors; a load's offset reaches from -8 to 7 vectors.
.macro product n, k, e
.altmacro
.set j, 0
.rept \n
    pair %(2 * j), %((\k - 2) * \n + j), \e
.set j, j + 1
.endr
.noaltmacro
.endm

.macro pair i, at, e
    pair_of %(16 + \i), %(17 + \i), %(24 + \i), %(25 + \i), \at, \e
.endm

.macro pair_of even, odd, w, v, at, e
    ld1h {z\w\().h}, p0/z, [x2, #\at, mul vl]
    ld1h {z\v\().h}, p0/z, [x1, #\at, mul vl]
    fmla z\even\().s, z\w\().s, z0.s[\e]
    fmla z\odd\().s, z\v\().s, z0.s[\e]
.endm

.macro each_pair op, n
.altmacro
.set j, 0
.rept \n
    \op %(16 + 2 * j), %(17 + 2 * j), %(2 * j), %(2 * j + 1)
.set j, j + 1
.endr
.noaltmacro
.endm

.macro clear even, odd, i, k
    mov z\even\().s, #0
    mov z\odd\().s, #0
.endm

.macro store even, odd, i, k
    zip1 z24.s, z\even\().s, z\odd\().s
    zip2 z25.s, z\even\().s, z\odd\().s
    str z24, [x5, #\i, mul vl]
    str z25, [x5, #\k, mul vl]
.endm

.macro row n
    each_pair clear, \n
    subs x4, x4, #4
    b.lo 2f
1:
    fetch_ahead x1, x6, x8, 4
    ld1rqw {z0.s}, p1/z, [x3]
    add x3, x3, #16
    product \n, 0, 0
    product \n, 1, 1
    product \n, 2, 2
    product \n, 3, 3
    add x1, x1, #256
    add x2, x2, #256
    subs x4, x4, #4
    b.hs 1b
2:
    adds x4, x4, #4
    b.eq 4f
3:
    ld1rw {z0.s}, p1/z, [x3]
    add x3, x3, #4
    product \n, 0, 0
    add x1, x1, #64
    add x2, x2, #64
    subs x4, x4, #1
    b.ne 3b
4:
    each_pair store, \n
    ret
.endm

    .text
    .global gemv_bf16__sve
    .hidden gemv_bf16__sve
    .type gemv_bf16__sve, %function
    .balign 64
gemv_bf16__sve:
    hint #34  // bti c
    ldp x1, x3, [x0]
    ldp x4, x5, [x0, #16]
    ldr x6, [x0, #32]
    add x1, x1, #128
    sub x2, x1, #2
    ptrue p1.b
    pfalse p0.b
    trn1 p0.h, p0.h, p1.h
    rdvl x7, #1
    cmp x7, #32
    b.eq 256f
    b.hi 512f
    row 4
256:
    row 2
512:
    row 1
    .size gemv_bf16__sve, . - gemv_bf16__sve

    .section .note.GNU-stack, "", %progbits
