// One row by a panel of packed Q4_0 over whole segments (lw_mm_row in tile.h), sixteen outputs at a time.
//   v0-v7    prefix sums P of 4 quads of outputs, two vectors each: every output has two partial sums side by side, of
//            which the first was started at the magic number
//   v8-v11   the segment's sums
//   v12-v15  a group's inputs, every eight of them twice
//   v28 ones in f16, v29 a mask, v30 the magic number, v24-v27 in passing
// Slots of the vector pipes per quad and group: 8 to take nibbles apart, 8 SDOT, ADDP, FSUB, FMLA, and 2 for the scale
// difference: FMLAL and FMLSL widen f16 exactly and round the difference once, where FCVTL would take 2 slots by itself.

.macro products at, a, low, high
    ldr q24, [x10, #\at]
    shl v25.16b, v24.16b, #4
    and v24.16b, v24.16b, v29.16b
    sdot v\a\().4s, v25.16b, v\low\().16b
    sdot v\a\().4s, v24.16b, v\high\().16b
.endm

// Quad `j` of group `g`: sums a and b, the segment's sum s.
.macro quad g, j, a, b, s
    products 576 * \g + 32 * \j, \a, 12, 14
    products 576 * \g + 32 * \j + 16, \b, 12, 14
    products 576 * \g + 256 + 32 * \j, \a, 13, 15
    products 576 * \g + 256 + 32 * \j + 16, \b, 13, 15
    ldr q27, [x17, #16]
    ldr d25, [x11, #576 * \g + 8 * \j]
    fmlal v27.4s, v25.4h, v28.4h
.if \g < 3
    ldr d26, [x11, #576 * (\g + 1) + 8 * \j]
    fmlsl v27.4s, v26.4h, v28.4h
.endif
    addp v26.4s, v\a\().4s, v\b\().4s
    fsub v26.4s, v26.4s, v30.4s
.if \g == 0
    fmul v\s\().4s, v26.4s, v27.4s
.else
    fmla v\s\().4s, v26.4s, v27.4s
.endif
.endm

.macro group g
    ldr q12, [x15, #64 * \g]
    ldr q13, [x15, #64 * \g + 16]
    ldr q14, [x15, #64 * \g + 32]
    ldr q15, [x15, #64 * \g + 48]
    quad \g, 0, 0, 1, 8
    quad \g, 1, 2, 3, 9
    quad \g, 2, 4, 5, 10
    quad \g, 3, 6, 7, 11
.endm

.macro fold at, s
    ldr q24, [x14, #\at]
    fmla v24.4s, v\s\().4s, v31.s[0]
    str q24, [x14, #\at]
.endm

    .text
    .balign 16
lw_gemv_constants__i8mm:
    .word 0x4B400000, 0, 0x4B400000, 0
    .word 0, 0, 0, 0
    .word 0x3D800000         // 1 / 16
    .global gemv_q4__i8mm
    .hidden gemv_q4__i8mm
    .type gemv_q4__i8mm, %function
    .balign 64
gemv_q4__i8mm:
    hint #34  // bti c
    stp d8, d9, [sp, #-64]!
    stp d10, d11, [sp, #16]
    stp d12, d13, [sp, #32]
    stp d14, d15, [sp, #48]
    sub sp, sp, #256         // a segment's inputs, every eight of them twice
    ldp x1, x2, [x0]         // inputs and the bytes from eight to eight
    ldp x3, x4, [x0, #16]    // packed weights, segments
    ldp x5, x6, [x0, #32]    // activation scales, results
    adr x17, lw_gemv_constants__i8mm
    mov x15, sp
    fmov v28.8h, #1.0
    movi v29.16b, #0xF0
    mov w9, #0x4B400000
    dup v30.4s, w9
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
    ldr s31, [x5], #4
    ldr s24, [x17, #32]      // codes are 16 times too large, and so are a segment's sums: neither factor rounds
    fmul s31, s31, s24
    mov x10, x3
    add x11, x3, #512
    mov x14, x6
    mov w12, #2
3:
    ldr q0, [x17]
    ldr q1, [x17]
    ldr q2, [x17]
    ldr q3, [x17]
    ldr q4, [x17]
    ldr q5, [x17]
    ldr q6, [x17]
    ldr q7, [x17]
    group 0
    group 1
    group 2
    group 3
    fold 0, 8
    fold 16, 9
    fold 32, 10
    fold 48, 11
    add x10, x10, #128
    add x11, x11, #32
    add x14, x14, #64
    subs w12, w12, #1
    b.ne 3b
    add x3, x3, #4 * 576
    subs x4, x4, #1
    b.ne 1b
    add sp, sp, #256
    ldp d10, d11, [sp, #16]
    ldp d12, d13, [sp, #32]
    ldp d14, d15, [sp, #48]
    ldp d8, d9, [sp], #64
    ret
    .size gemv_q4__i8mm, . - gemv_q4__i8mm

    .section .note.GNU-stack, "", %progbits
