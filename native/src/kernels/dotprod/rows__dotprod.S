// One or two rows by a panel of packed Q4_0 over whole segments (lw_dot_rows in tile.h).
//   v0-v7    prefix sums P, started at the magic number: of 8 quads of outputs, or of 4 by 2 rows
//   v8-v15   the segment's sums
//   v16-v24  scales of this group and the next in f32: the register of a quad moves on by one with every group, so that
//            a scale is widened once and never copied
//   v25 v26  inputs of a group (v20 v21 v25 v26 for two rows), v29 a mask, v30 the magic number, v27 v28 v31 in passing
// Slots of the vector pipes per quad and segment of one row: 32 to take nibbles apart, 32 SDOT, 8 for the differences,
// 8 to widen scales and 3 to subtract them, 1 for the activation scale and 1 to store.

// Chunks c and c + 4 of a quad, whose weights begin at `at`: eight outputs by element e of the inputs.
.macro products_1 at, e, a
    ldr q27, [x10, #\at]
    shl v28.16b, v27.16b, #4
    and v27.16b, v27.16b, v29.16b
    sdot v\a\().4s, v28.16b, v25.4b[\e]
    sdot v\a\().4s, v27.16b, v26.4b[\e]
.endm

.macro products_2 at, e, a, b
    ldr q27, [x10, #\at]
    shl v28.16b, v27.16b, #4
    and v27.16b, v27.16b, v29.16b
    sdot v\a\().4s, v28.16b, v20.4b[\e]
    sdot v\b\().4s, v28.16b, v25.4b[\e]
    sdot v\a\().4s, v27.16b, v21.4b[\e]
    sdot v\b\().4s, v27.16b, v26.4b[\e]
.endm

// A segment's sum += (float)P * difference; the first time there is nothing to add to.
.macro add_sum g, a, s, difference
    fsub v31.4s, v\a\().4s, v30.4s
.if \g == 0
    fmul v\s\().4s, v31.4s, v\difference\().4s
.else
    fmla v\s\().4s, v31.4s, v\difference\().4s
.endif
.endm

// v28: the scale of this group, in register `now`, less that of the next, which goes to `next`. After the last is 0.
.macro difference g, j, now, next
    ldr d\next, [x11, #576 * (\g + 1) + 8 * \j]
    fcvtl v\next\().4s, v\next\().4h
    fsub v28.4s, v\now\().4s, v\next\().4s
.endm

.macro quad_1 g, j, s, now, next
    products_1 576 * \g + 16 * \j, 0, \j
    products_1 576 * \g + 16 * \j + 128, 1, \j
    products_1 576 * \g + 16 * \j + 256, 2, \j
    products_1 576 * \g + 16 * \j + 384, 3, \j
.if \g < 3
    difference \g, \j, \now, \next
    add_sum \g, \j, \s, 28
.else
    add_sum \g, \j, \s, \now
.endif
.endm

.macro quad_2 g, j, a, b, s, t, now, next
    products_2 576 * \g + 16 * \j, 0, \a, \b
    products_2 576 * \g + 16 * \j + 128, 1, \a, \b
    products_2 576 * \g + 16 * \j + 256, 2, \a, \b
    products_2 576 * \g + 16 * \j + 384, 3, \a, \b
.if \g < 3
    difference \g, \j, \now, \next
    add_sum \g, \a, \s, 28
    add_sum \g, \b, \t, 28
.else
    add_sum \g, \a, \s, \now
    add_sum \g, \b, \t, \now
.endif
.endm

// Group g: r0 to r7 hold its scales, and r8 is free.
.macro group_1 g, r0, r1, r2, r3, r4, r5, r6, r7, r8
    ldr q25, [x1, #32 * \g]
    ldr q26, [x1, #32 * \g + 16]
    quad_1 \g, 0, 8, \r0, \r8
    quad_1 \g, 1, 9, \r1, \r0
    quad_1 \g, 2, 10, \r2, \r1
    quad_1 \g, 3, 11, \r3, \r2
    quad_1 \g, 4, 12, \r4, \r3
    quad_1 \g, 5, 13, \r5, \r4
    quad_1 \g, 6, 14, \r6, \r5
    quad_1 \g, 7, 15, \r7, \r6
.endm

// The same for two rows: r0 to r3 hold its scales, and r4 is free.
.macro group_2 g, r0, r1, r2, r3, r4
    ldr q20, [x1, #32 * \g]
    ldr q21, [x1, #32 * \g + 16]
    ldr q25, [x2, #32 * \g]
    ldr q26, [x2, #32 * \g + 16]
    quad_2 \g, 0, 0, 1, 8, 9, \r0, \r4
    quad_2 \g, 1, 2, 3, 10, 11, \r1, \r0
    quad_2 \g, 2, 4, 5, 12, 13, \r2, \r1
    quad_2 \g, 3, 6, 7, 14, 15, \r3, \r2
.endm

.macro clear
.irp n, 0, 1, 2, 3, 4, 5, 6, 7
    ldr q\n, [x17]
.endr
.endm

.macro first_scale j
    ldr d1\j, [x11, #8 * (\j - 6)]
    fcvtl v1\j\().4s, v1\j\().4h
.endm

// Results += a segment's sum * activation scale; ST1 takes one slot on N1, STR would take two.
.macro fold s, results, scale
    ldr q27, [\results]
    fmla v27.4s, v\s\().4s, v\scale\().s[0]
    st1 {v27.4s}, [\results]
    add \results, \results, #16
.endm

// Codes are 16 times too large, and so are a segment's sums: neither factor rounds.
.macro activation_scale to, from
    ldr s\to, [\from], #4
    ldr s27, [x17, #32]
    fmul s\to, s\to, s27
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
    ldp x1, x2, [x0]         // inputs and the bytes from row to row
    add x2, x1, x2
    ldp x3, x4, [x0, #16]    // packed weights, segments
    ldp x5, x6, [x0, #32]    // activation scales and the bytes from row to row
    add x6, x5, x6
    ldr x7, [x0, #48]        // results
    adr x17, lw_constants_of_rows__dotprod
    ldr q30, [x17]
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
    .word 0x4B400000
    .endr
    .rept 16
    .byte 0xF0
    .endr
    .word 0x3D800000         // 1 / 16

    begin gemv_q4
    mov x10, x3
1:
    add x11, x10, #512
    clear
.irp j, 6, 7, 8, 9
    first_scale \j
.endr
.irp j, 4, 5, 6, 7
    ldr d2\j, [x11, #8 * \j]
.endr
    fcvtl v20.4s, v24.4h
    fcvtl v21.4s, v25.4h
    fcvtl v22.4s, v26.4h
    fcvtl v23.4s, v27.4h
    group_1 0, 16, 17, 18, 19, 20, 21, 22, 23, 24
    group_1 1, 24, 16, 17, 18, 19, 20, 21, 22, 23
    group_1 2, 23, 24, 16, 17, 18, 19, 20, 21, 22
    group_1 3, 22, 23, 24, 16, 17, 18, 19, 20, 21
    activation_scale 31, x5
    mov x8, x7
.irp s, 8, 9, 10, 11, 12, 13, 14, 15
    fold \s, x8, 31
.endr
    add x1, x1, #128
    add x10, x10, #4 * 576
    subs x4, x4, #1
    b.ne 1b
    end gemv_q4

    begin gemm_2_q4
1:
    mov x10, x3
    add x11, x3, #512
    mov x8, x7
    add x9, x7, #128
    activation_scale 22, x5
    activation_scale 23, x6
    mov w12, #2
2:
    clear
.irp j, 6, 7, 8, 9
    first_scale \j
.endr
    group_2 0, 16, 17, 18, 19, 24
    group_2 1, 24, 16, 17, 18, 19
    group_2 2, 19, 24, 16, 17, 18
    group_2 3, 18, 19, 24, 16, 17
.irp s, 8, 10, 12, 14
    fold \s, x8, 22
.endr
.irp s, 9, 11, 13, 15
    fold \s, x9, 23
.endr
    add x10, x10, #64
    add x11, x11, #32
    subs w12, w12, #1
    b.ne 2b
    add x1, x1, #128
    add x2, x2, #128
    add x3, x3, #4 * 576
    subs x4, x4, #1
    b.ne 1b
    end gemm_2_q4

    .section .note.GNU-stack, "", %progbits
