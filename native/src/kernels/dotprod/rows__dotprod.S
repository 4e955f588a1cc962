// One or two rows by a panel of packed Q4_0 over whole segments (lw_dot_rows in tile.h).
//   v0-v7    sums of a group, started at a magic number: of 8 quads of outputs, or of 4 quads by 2 rows
//   v8-v15   their results
//   v16 v17  a quad's scales in f32; for each row minus the magic number times the scales, later the product
//   v24      activation scales of a segment (v23: of the second row)
//   v25 v26  inputs of a group (v20 v21: of the second row), v29 a mask, v30 minus the magic number
//   v27 v28  temporaries
// Codes are 16 times too large, and so are sums: they start at the bits of a float whose last place is 1/16.
// Slots of the vector pipes per quad and group of one row: 8 to split nibbles, 8 SDOT, 2 to widen scales, 1 for the
// magic number times the scales, 2 FMLA. LDUR, because in LLVM's model of N1 it takes one micro-operation and LDR two.
//   x10 the middle of a group's codes, x11 its scales, x13 prefetch distance in bytes, x14 temporary

#include "kernels/neon/fetch.inc"

// Chunks c and c + 4 of a quad, whose weights begin at `at`: eight outputs times element e of the inputs.
.macro products_1 at, e, a
    ldur q27, [x10, #\at]
    shl v28.16b, v27.16b, #4
    and v27.16b, v27.16b, v29.16b
    sdot v\a\().4s, v28.16b, v25.4b[\e]
    sdot v\a\().4s, v27.16b, v26.4b[\e]
.endm

.macro products_2 at, e, a, b
    ldur q27, [x10, #\at]
    shl v28.16b, v27.16b, #4
    and v27.16b, v27.16b, v29.16b
    sdot v\a\().4s, v28.16b, v25.4b[\e]
    sdot v\b\().4s, v28.16b, v20.4b[\e]
    sdot v\a\().4s, v27.16b, v26.4b[\e]
    sdot v\b\().4s, v27.16b, v21.4b[\e]
.endm

.macro quad_1 g, j, s
    ldur q\j, [x17]
    ldur d16, [x11, #8 * \j]
    fcvtl v16.4s, v16.4h
    fmul v17.4s, v16.4s, v30.4s
    products_1 16 * \j - 256, 0, \j
    products_1 16 * \j - 128, 1, \j
    products_1 16 * \j, 2, \j
    products_1 16 * \j + 128, 3, \j
    fmla v17.4s, v\j\().4s, v16.4s
    fmla v\s\().4s, v17.4s, v24.s[\g]
.endm

.macro quad_2 g, j, a, b, s, t
    ldur q\a, [x17]
    ldur q\b, [x17]
    ldur d16, [x11, #8 * \j]
    fcvtl v16.4s, v16.4h
    fmul v17.4s, v16.4s, v30.4s
    fmul v18.4s, v16.4s, v30.4s
    products_2 16 * \j - 256, 0, \a, \b
    products_2 16 * \j - 128, 1, \a, \b
    products_2 16 * \j, 2, \a, \b
    products_2 16 * \j + 128, 3, \a, \b
    fmla v17.4s, v\a\().4s, v16.4s
    fmla v18.4s, v\b\().4s, v16.4s
    fmla v\s\().4s, v17.4s, v24.s[\g]
    fmla v\t\().4s, v18.4s, v23.s[\g]
.endm

.macro group_1 g
    fetch_ahead x10, x13, x14, 9
    ldur q25, [x1, #32 * \g]
    ldur q26, [x1, #32 * \g + 16]
    quad_1 \g, 0, 8
    quad_1 \g, 1, 9
    quad_1 \g, 2, 10
    quad_1 \g, 3, 11
    quad_1 \g, 4, 12
    quad_1 \g, 5, 13
    quad_1 \g, 6, 14
    quad_1 \g, 7, 15
    add x10, x10, #576
    add x11, x11, #576
.endm

.macro group_2 g
    fetch_ahead x10, x13, x14, 5, 128  // the other outputs, whose x10 is a line further on, prefetch the other lines
    ldur q25, [x1, #32 * \g]
    ldur q26, [x1, #32 * \g + 16]
    ldur q20, [x2, #32 * \g]
    ldur q21, [x2, #32 * \g + 16]
    quad_2 \g, 0, 0, 1, 8, 9
    quad_2 \g, 1, 2, 3, 10, 11
    quad_2 \g, 2, 4, 5, 12, 13
    quad_2 \g, 3, 6, 7, 14, 15
    add x10, x10, #576
    add x11, x11, #576
.endm

.macro begin name
    .global \name\()__dotprod
    .hidden \name\()__dotprod
    .type \name\()__dotprod, %function
    .balign 64
\name\()__dotprod:
    hint #34  // bti c
    stp d8, d9, [sp, #-64]!
    stp d10, d11, [sp, #16]
    stp d12, d13, [sp, #32]
    stp d14, d15, [sp, #48]
    ldp x1, x2, [x0]         // inputs, bytes from row to row
    add x2, x1, x2
    ldp x3, x4, [x0, #16]    // packed weights, segments
    ldp x5, x6, [x0, #32]    // activation scales, bytes from row to row
    add x6, x5, x6
    ldp x7, x13, [x0, #48]   // results
    add x10, x3, #256
    add x11, x3, #512
    adr x17, lw_constants_of_rows__dotprod
    ldr q30, [x17, #32]
    ldr q29, [x17, #16]
.endm

.macro end name
    ldp d10, d11, [sp, #16]
    ldp d12, d13, [sp, #32]
    ldp d14, d15, [sp, #48]
    ldp d8, d9, [sp], #64
    ret
    .size \name\()__dotprod, . - \name\()__dotprod
.endm

    .text
    .balign 16
lw_constants_of_rows__dotprod:
    .rept 4
    .word 0x49400000         // 12582912 / 16
    .endr
    .rept 16
    .byte 0xF0
    .endr
    .rept 4
    .word 0xC9400000
    .endr

    begin gemv_q4
    ldp q8, q9, [x7]
    ldp q10, q11, [x7, #32]
    ldp q12, q13, [x7, #64]
    ldp q14, q15, [x7, #96]
1:
    ldr q24, [x5], #16
    group_1 0
    group_1 1
    group_1 2
    group_1 3
    add x1, x1, #128
    subs x4, x4, #1
    b.ne 1b
    stp q8, q9, [x7]
    stp q10, q11, [x7, #32]
    stp q12, q13, [x7, #64]
    stp q14, q15, [x7, #96]
    end gemv_q4

// ST1 takes one slot on N1, STR would take two.
.macro store_result s, to
    st1 {v\s\().4s}, [\to], #16
.endm

    begin gemm_2_q4
    add x8, x7, #128         // results of the second row
1:
    ldr q24, [x5], #16
    ldr q23, [x6], #16
    mov w12, #2
2:
    ldp q8, q10, [x7]
    ldp q12, q14, [x7, #32]
    ldp q9, q11, [x8]
    ldp q13, q15, [x8, #32]
    group_2 0
    group_2 1
    group_2 2
    group_2 3
.irp s, 8, 10, 12, 14
    store_result \s, x7
.endr
.irp s, 9, 11, 13, 15
    store_result \s, x8
.endr
    sub x10, x10, #4 * 576 - 64
    sub x11, x11, #4 * 576 - 32
    subs w12, w12, #1
    b.ne 2b
    sub x7, x7, #128
    sub x8, x8, #128
    add x1, x1, #128
    add x2, x2, #128
    add x10, x10, #4 * 576 - 128
    add x11, x11, #4 * 576 - 64
    subs x4, x4, #1
    b.ne 1b
    end gemm_2_q4

    .section .note.GNU-stack, "", %progbits
