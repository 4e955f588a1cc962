// One or two rows by a panel of packed Q4_0 over whole segments (lw_mm_rows in tile.h), sixteen outputs at a time.
//   v0-v7    prefix sums P of 4 quads of outputs, two vectors each. One row: every output has two partial sums side by
//            side, of which the first was started at the magic number. Two rows: 2x2 blocks, all started there.
//   v8-v15   the segment's sums (v8-v11 for one row)
//   v16-v19  a group's inputs: for one row every eight of them twice, for two rows eight of one and of the other
//   v28 ones in f16, v29 a mask, v30 the magic number, v20-v27 in passing
// Slots of the vector pipes per quad and group: 8 to take nibbles apart, 8 SDOT or SMMLA, ADDP, FSUB, FMLA (two rows: 2
// FSUB and 2 FMLA), and 2 for the scale difference (two rows: and 2 to duplicate it): FMLAL and FMLSL widen f16 exactly
// and round the difference once, where FCVTL would take 2 slots by itself.

.macro products dot, at, a, low, high
    ldr q20, [x10, #\at]
    shl v21.16b, v20.16b, #4
    and v20.16b, v20.16b, v29.16b
.ifc \dot, sdot
    sdot v\a\().4s, v21.16b, v\low\().16b
    sdot v\a\().4s, v20.16b, v\high\().16b
.else
    smmla v\a\().4s, v\low\().16b, v21.16b
    smmla v\a\().4s, v\high\().16b, v20.16b
.endif
.endm

// The products of quad `j` of group `g` to sums a and b, and v27, its scales less those of the next group or 0.
.macro quad dot, g, j, a, b
    products \dot, 576 * \g + 32 * \j, \a, 16, 18
    products \dot, 576 * \g + 32 * \j + 16, \b, 16, 18
    products \dot, 576 * \g + 256 + 32 * \j, \a, 17, 19
    products \dot, 576 * \g + 256 + 32 * \j + 16, \b, 17, 19
    ldr q27, [x17, #32]
    ldr d25, [x11, #576 * \g + 8 * \j]
    fmlal v27.4s, v25.4h, v28.4h
.if \g < 3
    ldr d26, [x11, #576 * (\g + 1) + 8 * \j]
    fmlsl v27.4s, v26.4h, v28.4h
.endif
.endm

// A segment's sum += (float)P * difference; the first time there is nothing to add to.
.macro add_sum g, p, s, difference
    fsub v\p\().4s, v\p\().4s, v30.4s
.if \g == 0
    fmul v\s\().4s, v\p\().4s, v\difference\().4s
.else
    fmla v\s\().4s, v\p\().4s, v\difference\().4s
.endif
.endm

.macro quad_1 g, j, a, b, s
    quad sdot, \g, \j, \a, \b
    addp v26.4s, v\a\().4s, v\b\().4s
    add_sum \g, 26, \s, 27
.endm

.macro quad_2 g, j, a, b, s, t
    quad smmla, \g, \j, \a, \b
    dup v25.2d, v27.d[0]
    dup v26.2d, v27.d[1]
    fsub v22.4s, v\a\().4s, v30.4s
    fsub v23.4s, v\b\().4s, v30.4s
.if \g == 0
    fmul v\s\().4s, v22.4s, v25.4s
    fmul v\t\().4s, v23.4s, v26.4s
.else
    fmla v\s\().4s, v22.4s, v25.4s
    fmla v\t\().4s, v23.4s, v26.4s
.endif
.endm

// x15: a group's inputs.
.macro inputs g
    ldr q16, [x15, #64 * \g]
    ldr q17, [x15, #64 * \g + 16]
    ldr q18, [x15, #64 * \g + 32]
    ldr q19, [x15, #64 * \g + 48]
.endm

.macro group_1 g
    inputs \g
    quad_1 \g, 0, 0, 1, 8
    quad_1 \g, 1, 2, 3, 9
    quad_1 \g, 2, 4, 5, 10
    quad_1 \g, 3, 6, 7, 11
.endm

.macro group_2 g
    inputs \g
    quad_2 \g, 0, 0, 1, 8, 9
    quad_2 \g, 1, 2, 3, 10, 11
    quad_2 \g, 2, 4, 5, 12, 13
    quad_2 \g, 3, 6, 7, 14, 15
.endm

// Started by what lies `at` in the constants.
.macro start at
.irp n, 0, 1, 2, 3, 4, 5, 6, 7
    ldr q\n, [x17, #\at]
.endr
.endm

.macro begin name
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
    ldp x1, x2, [x0]         // inputs and the bytes from eight to eight of a row
    ldp x3, x4, [x0, #16]    // packed weights, segments
    ldp x5, x16, [x0, #32]   // activation scales and the bytes from row to row
    ldr x6, [x0, #48]        // results
    adr x17, lw_constants_of_rows__i8mm
    fmov v28.8h, #1.0
    movi v29.16b, #0xF0
    ldr q30, [x17, #16]
.endm

.macro end name
    ldp d10, d11, [sp, #16]
    ldp d12, d13, [sp, #32]
    ldp d14, d15, [sp, #48]
    ldp d8, d9, [sp], #64
    ret
    .size \name\()__i8mm, . - \name\()__i8mm
.endm

    .text
    .balign 16
lw_constants_of_rows__i8mm:
    .word 0x4B400000, 0, 0x4B400000, 0
    .word 0x4B400000, 0x4B400000, 0x4B400000, 0x4B400000
    .word 0, 0, 0, 0
    .word 0x3D800000         // 1 / 16

    begin gemv_q4
    sub sp, sp, #256         // a segment's inputs, every eight of them twice
    mov x15, sp
1:
    mov x9, sp
    add x13, sp, #256
2:                           // through integer registers, which leaves the vector pipes alone
    ldr x7, [x1]
    add x1, x1, x2
    ldr x8, [x1]
    add x1, x1, x2
    stp x7, x7, [x9]
    stp x8, x8, [x9, #16]
    add x9, x9, #32
    cmp x9, x13
    b.ne 2b
    mov x10, x3
    add x11, x3, #512
    mov x14, x6
    ldr s31, [x5], #4
    ldr s27, [x17, #48]      // codes are 16 times too large, and so are a segment's sums: neither factor rounds
    fmul s31, s31, s27
    mov w12, #2
3:
    start 0
    group_1 0
    group_1 1
    group_1 2
    group_1 3
.irp s, 8, 9, 10, 11
    ldr q24, [x14]
    fmla v24.4s, v\s\().4s, v31.s[0]
    str q24, [x14]
    add x14, x14, #16
.endr
    add x10, x10, #128
    add x11, x11, #32
    subs w12, w12, #1
    b.ne 3b
    add x3, x3, #4 * 576
    subs x4, x4, #1
    b.ne 1b
    add sp, sp, #256
    end gemv_q4

    begin gemm_2_q4
    mov x15, x1
    add x16, x5, x16
1:
    mov x10, x3
    add x11, x3, #512
    mov x14, x6
    ld1r {v31.2s}, [x5], #4
    ld1r {v26.2s}, [x16], #4
    ldr s27, [x17, #48]
    zip1 v31.2d, v31.2d, v26.2d
    fmul v31.4s, v31.4s, v27.s[0]
    mov w12, #2
2:
    start 16
    group_2 0
    group_2 1
    group_2 2
    group_2 3
.irp s, 8, 9, 10, 11, 12, 13, 14, 15
    ldr q24, [x14]
    fmla v24.4s, v\s\().4s, v31.4s
    str q24, [x14]
    add x14, x14, #16
.endr
    add x10, x10, #128
    add x11, x11, #32
    subs w12, w12, #1
    b.ne 2b
    add x15, x15, #256
    add x3, x3, #4 * 576
    subs x4, x4, #1
    b.ne 1b
    end gemm_2_q4

    .section .note.GNU-stack, "", %progbits
