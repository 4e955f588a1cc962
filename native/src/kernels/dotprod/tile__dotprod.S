// Rows by a panel over one segment (lw_dot_tile in tile.h), four outputs at a time.
//   v0-v7    integer sums of 8 rows, which every step starts at the magic number
//   v8-v15   their results
//   v16-v19  weights of 16 inputs, v24 inputs, v25 a step's products, v26 activation scales, v28 scales, v31 a mask
//   x1-x8    inputs of each row, x19-x26 their activation scales, x9 scales, x10 weights, x11 packed weights
//   x12      offset in the panel, x13 x14 temporaries
// Slots of the vector pipes per sum and group: 8 SDOT, 2 FMLA, and a quarter to store results with ST1 (with STR twice
// that on N1). Start values and addends are loads. LDUR, because in LLVM's model of N1 it takes one micro-operation and
// LDR two.
// Tiles of four and eight rows of decoded weights take eight outputs by four rows at a time (wide_tile). Of what they
// load two registers lie next to each other, so that LDP takes both: a seventh fewer instructions.

// Runs `op` for each row, with the numbers of its sum and result and the registers of its inputs and scales.
.macro each_row rows, op
    \op 0, 8, x1, x19
    \op 1, 9, x2, x20
    \op 2, 10, x3, x21
    \op 3, 11, x4, x22
.if \rows > 4
    \op 4, 12, x5, x23
.endif
.if \rows > 5
    \op 5, 13, x6, x24
.endif
.if \rows > 6
    \op 6, 14, x7, x25
.endif
.if \rows > 7
    \op 7, 15, x8, x26
.endif
.endm

.macro multiply at, a, s, x, d
    ldur q24, [\x, #\at]
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

// Packed Q4_0: the low halves of bytes hold the first 16 inputs, the high halves the other 16. The codes come out 16
// times too large.
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

// Results += (scale * sum, rounded once) * activation scale of group `g`.
.macro add_product g, a, s, x, d
    ldur q25, [x9, #128]     // minus the magic number times the scales
    ldur s26, [\d, #4 * \g]
    fmla v25.4s, v\a\().4s, v28.4s
    fmla v\s\().4s, v25.4s, v26.s[0]
.endm

.macro start a, s, x, d
    ldur q\a, [x17]
.endm

// 32 inputs, group `g` of the segment.
.macro group load, rows, size, g
    ldur q28, [x9]
    each_row \rows, start
    \load 0
    each_row \rows, "multiply 32 * \g,"
.if \size == 16
    each_row \rows, "add_product \g,"
    add x9, x9, #256
    ldur q28, [x9]
    each_row \rows, start
.endif
    \load 1
    each_row \rows, "multiply 32 * \g + 16,"
    each_row \rows, "add_product \g,"
.if \g < 3
    cmp x16, #\g + 1
    b.eq 2f
    add x9, x9, #256
    add x10, x10, x15
    add x11, x11, #576
.endif
.endm

.macro load_results a, s, x, d
    ld1 {v\s\().4s}, [x13], x14
.endm

.macro store_results a, s, x, d
    st1 {v\s\().4s}, [x13], x14
.endm

.macro tile name, load, rows, size
    .global tile_\name\()__dotprod
    .hidden tile_\name\()__dotprod
    .type tile_\name\()__dotprod, %function
    .balign 64
tile_\name\()__dotprod:
    hint #34  // bti c
    stp d8, d9, [sp, #-128]!
    stp d10, d11, [sp, #16]
    stp d12, d13, [sp, #32]
    stp d14, d15, [sp, #48]
    stp x19, x20, [sp, #64]
    stp x21, x22, [sp, #80]
    stp x23, x24, [sp, #96]
    stp x25, x26, [sp, #112]
    ldp x1, x14, [x0]        // inputs, bytes from row to row
    add x2, x1, x14
    add x3, x2, x14
    add x4, x3, x14
    add x5, x4, x14
    add x6, x5, x14
    add x7, x6, x14
    add x8, x7, x14
    ldr x19, [x0, #48]       // activation scales, bytes from row to row
    ldr x14, [x0, #72]
    add x20, x19, x14
    add x21, x20, x14
    add x22, x21, x14
    add x23, x22, x14
    add x24, x23, x14
    add x25, x24, x14
    add x26, x25, x14
    ldr x15, [x0, #24]       // bytes from one group of codes to the next
    ldr x16, [x0, #40]       // number of groups
    adr x17, lw_constants__dotprod
    ldr q31, [x17, #16]
    mov x14, #128
    mov x12, #0
1:
    ldr x10, [x0, #16]
    ldr x9, [x0, #32]
    ldr x13, [x0, #56]
    ldr x11, [x0, #64]
    add x10, x10, x12
    add x9, x9, x12
    add x13, x13, x12
    add x11, x11, x12
    each_row \rows, load_results
    group \load, \rows, \size, 0
    group \load, \rows, \size, 1
    group \load, \rows, \size, 2
    group \load, \rows, \size, 3
2:
    ldr x13, [x0, #56]
    add x13, x13, x12
    each_row \rows, store_results
    add x12, x12, #16
    cmp x12, #128
    b.ne 1b
    ldp d10, d11, [sp, #16]
    ldp d12, d13, [sp, #32]
    ldp d14, d15, [sp, #48]
    ldp x19, x20, [sp, #64]
    ldp x21, x22, [sp, #80]
    ldp x23, x24, [sp, #96]
    ldp x25, x26, [sp, #112]
    ldp d8, d9, [sp], #128
    ret
    .size tile_\name\()__dotprod, . - tile_\name\()__dotprod
.endm

// Runs `op` for each of four rows, with the numbers of its two sums, its two results, its inputs and their registers, its
// activation scales, and three temporaries.
.macro each_of_four op
    \op 0, 1, 8, 9, 24, 25, x1, x5, 18, 19, 22
    \op 2, 3, 10, 11, 26, 27, x2, x6, 20, 21, 23
    \op 4, 5, 12, 13, 28, 29, x3, x7, 18, 19, 22
    \op 6, 7, 14, 15, 30, 31, x4, x8, 20, 21, 23
.endm

.macro wide_inputs g, a, b, s, t, i, j, x, d, u, v, w
    ldp q\i, q\j, [\x, #32 * \g]
.endm

// Two LDUR, because in LLVM's model of N1 one LDP takes three micro-operations: with more of them these would be the
// limit.
.macro wide_start a, b, s, t, i, j, x, d, u, v, w
    ldur q\a, [x17]
    ldur q\b, [x17]
.endm

.macro wide_multiply h, c, a, b, s, t, i, j, x, d, u, v, w
.if \h == 0
    sdot v\a\().4s, v16.16b, v\i\().4b[\c]
    sdot v\b\().4s, v17.16b, v\i\().4b[\c]
.else
    sdot v\a\().4s, v16.16b, v\j\().4b[\c]
    sdot v\b\().4s, v17.16b, v\j\().4b[\c]
.endif
.endm

// Chunk `c` of half `h` of a group. Sums take turns, so that none waits for its last product.
.macro wide_chunk h, c
    ldp q16, q17, [x10, #512 * \h + 128 * \c]
    each_of_four "wide_multiply \h, \c,"
.endm

.macro wide_half h
    wide_chunk \h, 0
    wide_chunk \h, 1
    wide_chunk \h, 2
    wide_chunk \h, 3
.endm

// As add_product; v16 and v17 have the scales.
.macro wide_add g, a, b, s, t, i, j, x, d, u, v, w
    ldur q\u, [x9, #128]
    ldur q\v, [x9, #144]
    ldur s\w, [\d, #4 * \g]
    fmla v\u\().4s, v\a\().4s, v16.4s
    fmla v\v\().4s, v\b\().4s, v17.4s
    fmla v\s\().4s, v\u\().4s, v\w\().s[0]
    fmla v\t\().4s, v\v\().4s, v\w\().s[0]
.endm

.macro wide_group size, g
    each_of_four "wide_inputs \g,"
    each_of_four wide_start
    wide_half 0
.if \size == 16
    ldp q16, q17, [x9]
    each_of_four "wide_add \g,"
    add x9, x9, #256
    each_of_four wide_start
.endif
    wide_half 1
    ldp q16, q17, [x9]
    each_of_four "wide_add \g,"
.if \g < 3
    cmp x16, #\g + 1
    b.eq 2f
    add x9, x9, #256
    add x10, x10, x15
.endif
.endm

//   x0 and x22 scales and codes of the panel, x12 offset in it, x11 results of four rows, x13 of their eight outputs,
//   x19 rows left, x20 and x21 bytes from row to row
.macro wide_tile name, rows, size
    .global tile_\name\()__dotprod
    .hidden tile_\name\()__dotprod
    .type tile_\name\()__dotprod, %function
    .balign 64
tile_\name\()__dotprod:
    hint #34  // bti c
    stp d8, d9, [sp, #-96]!
    stp d10, d11, [sp, #16]
    stp d12, d13, [sp, #32]
    stp d14, d15, [sp, #48]
    stp x19, x20, [sp, #64]
    stp x21, x22, [sp, #80]
    ldp x1, x20, [x0]        // inputs, bytes from row to row
    ldr x5, [x0, #48]        // activation scales, bytes from row to row
    ldr x21, [x0, #72]
    ldp x22, x15, [x0, #16]  // codes, bytes from one group of them to the next
    ldr x11, [x0, #56]
    ldp x0, x16, [x0, #32]   // scales, number of groups
    adr x17, lw_constants__dotprod
    mov x14, #128
    mov x19, #\rows
0:
    add x2, x1, x20
    add x3, x2, x20
    add x4, x3, x20
    add x6, x5, x21
    add x7, x6, x21
    add x8, x7, x21
    mov x12, #0
1:
    add x10, x22, x12
    add x9, x0, x12
    add x13, x11, x12
    ldp q8, q9, [x13]
    ldp q10, q11, [x13, #128]
    ldp q12, q13, [x13, #256]
    ldp q14, q15, [x13, #384]
    wide_group \size, 0
    wide_group \size, 1
    wide_group \size, 2
    wide_group \size, 3
2:
    st1 {v8.4s, v9.4s}, [x13], x14
    st1 {v10.4s, v11.4s}, [x13], x14
    st1 {v12.4s, v13.4s}, [x13], x14
    st1 {v14.4s, v15.4s}, [x13]
    add x12, x12, #32
    cmp x12, #128
    b.ne 1b
.if \rows > 4
    add x1, x4, x20
    add x5, x8, x21
    add x11, x11, #512
    subs x19, x19, #4
    b.ne 0b
.endif
    ldp d10, d11, [sp, #16]
    ldp d12, d13, [sp, #32]
    ldp d14, d15, [sp, #48]
    ldp x19, x20, [sp, #64]
    ldp x21, x22, [sp, #80]
    ldp d8, d9, [sp], #96
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
.irp rows, 4, 8
    wide_tile \rows\()_g32, \rows, 32
    wide_tile \rows\()_g16, \rows, 16
.endr
.irp rows, 5, 6, 7
    tile \rows\()_g32, load_decoded, \rows, 32
    tile \rows\()_g16, load_decoded, \rows, 16
.endr
.irp rows, 4, 5, 6, 7, 8
    tile \rows\()_q4, load_q4, \rows, 32
    tile \rows\()_store, load_store, \rows, 32
.endr

    .section .note.GNU-stack, "", %progbits
