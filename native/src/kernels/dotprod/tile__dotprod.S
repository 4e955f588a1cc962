// Rows by a panel over one segment (lw_dot_tile in tile.h), four outputs at a time.
//   v0-v7    prefix sums P of 8 rows, started at the magic number
//   v8-v15   the segment's sums
//   v16-v19  weights of 16 inputs, v24 inputs, v28 scale differences, v30 the magic number, v31 a mask, v26 in passing
//   x1-x8    inputs of each row, x9 differences, x10 weights, x11 packed weights or results, x12 place in the panel
// Slots of the vector pipes per sum and segment of 4 groups: 32 SDOT, 8 for the differences, 1 for the activation scale
// and 1 to store, which with STR instead of ST1 would be 2 on N1; clearing is a load.

// `op` for each row, with the numbers of its sums and the register of its inputs.
.macro each_row rows, op
    \op 0, 8, x1
    \op 1, 9, x2
    \op 2, 10, x3
    \op 3, 11, x4
.if \rows > 4
    \op 4, 12, x5
.endif
.if \rows > 5
    \op 5, 13, x6
.endif
.if \rows > 6
    \op 6, 14, x7
.endif
.if \rows > 7
    \op 7, 15, x8
.endif
.endm

.macro multiply at, a, s, x
    ldr q24, [\x, #\at]
    sdot v\a\().4s, v16.16b, v24.4b[0]
    sdot v\a\().4s, v17.16b, v24.4b[1]
    sdot v\a\().4s, v18.16b, v24.4b[2]
    sdot v\a\().4s, v19.16b, v24.4b[3]
.endm

.macro load_decoded h
    ldr q16, [x10, #512 * \h]
    ldr q17, [x10, #512 * \h + 128]
    ldr q18, [x10, #512 * \h + 256]
    ldr q19, [x10, #512 * \h + 384]
.endm

// Q4_0 as packed: the first 16 inputs in the low halves of bytes, the others in the high ones. They come out 16 times
// too large.
.macro load_q4 h
    ldr q16, [x11]
    ldr q17, [x11, #128]
    ldr q18, [x11, #256]
    ldr q19, [x11, #384]
.if \h == 0
    shl v16.16b, v16.16b, #4
    shl v17.16b, v17.16b, #4
    shl v18.16b, v18.16b, #4
    shl v19.16b, v19.16b, #4
.else
    and v16.16b, v16.16b, v31.16b
    and v17.16b, v17.16b, v31.16b
    and v18.16b, v18.16b, v31.16b
    and v19.16b, v19.16b, v31.16b
.endif
.endm

.macro load_store h
    load_q4 \h
    add x13, x10, #512 * \h
    st1 {v16.16b}, [x13], x14
    st1 {v17.16b}, [x13], x14
    st1 {v18.16b}, [x13], x14
    st1 {v19.16b}, [x13]
.endm

// The segment's sums += (float)P * difference; the first time there is nothing to add to.
.macro add_first a, s, x
    fsub v26.4s, v\a\().4s, v30.4s
    fmul v\s\().4s, v26.4s, v28.4s
.endm

.macro add_next a, s, x
    fsub v26.4s, v\a\().4s, v30.4s
    fmla v\s\().4s, v26.4s, v28.4s
.endm

// 32 inputs, group `g` of the segment; `first` adds what comes first of them. Of more than 32 inputs that share a scale,
// the last 32 add, and there are whole segments.
.macro group load, rows, size, g, first
.if \size <= 32 || (\g + 1) * 32 % \size == 0
    ldr q28, [x9]
.endif
    \load 0
    each_row \rows, "multiply 32 * \g,"
.if \size == 16
    each_row \rows, \first
    ldr q28, [x9, #128]
    \load 1
    each_row \rows, "multiply 32 * \g + 16,"
    each_row \rows, add_next
.else
    \load 1
    each_row \rows, "multiply 32 * \g + 16,"
.if (\g + 1) * 32 == \size
    each_row \rows, add_first
.elseif (\g + 1) * 32 % \size == 0
    each_row \rows, \first
.endif
.endif
.if \g < 3
.if \size <= 32
    cmp x16, #\g + 1
    b.eq 2f
    add x9, x9, #4096 / \size
.elseif (\g + 1) * 32 % \size == 0
    add x9, x9, #128
.endif
    add x10, x10, x15
    add x11, x11, #576
.endif
.endm

.macro clear a, s, x
    ldr q\a, [x17]
.endm

.macro fold a, s, x
    ldr s26, [x9, #4 * \a]
    ldr q24, [x11]
    fmla v24.4s, v\s\().4s, v26.s[0]
    st1 {v24.4s}, [x11]
    add x11, x11, #128
.endm

.macro tile name, load, rows, size
    .global tile_\name\()__dotprod
    .hidden tile_\name\()__dotprod
    .type tile_\name\()__dotprod, %function
    .balign 64
tile_\name\()__dotprod:
    hint #34  // bti c
    stp d8, d9, [sp, #-64]!
    stp d10, d11, [sp, #16]
    stp d12, d13, [sp, #32]
    stp d14, d15, [sp, #48]
    ldp x1, x14, [x0]        // inputs and the bytes from row to row
    add x2, x1, x14
    add x3, x2, x14
    add x4, x3, x14
    add x5, x4, x14
    add x6, x5, x14
    add x7, x6, x14
    add x8, x7, x14
    ldr x15, [x0, #24]       // bytes from group to group of codes
    ldr x16, [x0, #40]       // groups
    adr x17, lw_constants__dotprod
    ldr q30, [x17]
    ldr q31, [x17, #16]
    mov x14, #128
    mov x12, #0
1:
    ldr x10, [x0, #16]
    ldr x9, [x0, #32]
    ldr x11, [x0, #64]
    add x10, x10, x12
    add x9, x9, x12
    add x11, x11, x12
    each_row \rows, clear
    group \load, \rows, \size, 0, add_first
    group \load, \rows, \size, 1, add_next
    group \load, \rows, \size, 2, add_next
    group \load, \rows, \size, 3, add_next
2:
    ldp x9, x11, [x0, #48]
    add x11, x11, x12
    each_row \rows, fold
    add x12, x12, #16
    cmp x12, #128
    b.ne 1b
    ldp d10, d11, [sp, #16]
    ldp d12, d13, [sp, #32]
    ldp d14, d15, [sp, #48]
    ldp d8, d9, [sp], #64
    ret
    .size tile_\name\()__dotprod, . - tile_\name\()__dotprod
.endm

    .text
    .balign 16
lw_constants__dotprod:
    .rept 4
    .word 0x4B400000
    .endr
    .rept 16
    .byte 0xF0
    .endr
.irp rows, 4, 5, 6, 7, 8
    tile \rows\()_g32, load_decoded, \rows, 32
    tile \rows\()_g16, load_decoded, \rows, 16
    tile \rows\()_q4, load_q4, \rows, 32
    tile \rows\()_store, load_store, \rows, 32
    tile \rows\()_g64, load_decoded, \rows, 64
    tile \rows\()_g128, load_decoded, \rows, 128
.endr

    .section .note.GNU-stack, "", %progbits
