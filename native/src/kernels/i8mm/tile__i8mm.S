// Rows by a panel of decoded weights over one segment (lw_mm_tile in tile.h), four outputs at a time.
//
// In assembly because every register is needed: 12 sums, 12 segment sums, and 8 to work with.
//   v0-v11   prefix sums P of 6 pairs of rows by 2 pairs of outputs, started at the magic number
//   v12-v23  the segment's sums
//   v24 v25  weights, v26 inputs, v28 v29 scale differences, v30 the magic number, v27 v31 in passing
//   x1-x6    inputs of each pair, x7 weights, x8 differences, x9 activation scales, x10 place in the panel,
//            x11 results, x12 packed weights
// Loads are single: a pair is more micro-operations on most cores than two loads. Slots of the vector pipes per sum and
// segment of 4 groups: 16 SMMLA, 8 for the differences, 1 for the activation scale and 1 to store; clearing is a load.

// `op` for each pair of rows, with the numbers of its sums and the register of its inputs.
.macro each_pair pairs, op
    \op 0, 1, 12, 13, x1
    \op 2, 3, 14, 15, x2
    \op 4, 5, 16, 17, x3
.if \pairs > 3
    \op 6, 7, 18, 19, x4
.endif
.if \pairs > 4
    \op 8, 9, 20, 21, x5
.endif
.if \pairs > 5
    \op 10, 11, 22, 23, x6
.endif
.endm

.macro multiply at, a, b, sa, sb, x
    ldr q26, [\x, #\at]
    smmla v\a\().4s, v26.16b, v24.16b
    smmla v\b\().4s, v26.16b, v25.16b
.endm

.macro load_decoded c
    ldr q24, [x7, #256 * \c]
    ldr q25, [x7, #256 * \c + 16]
.endm

// Q4_0 as packed: codes of chunks 0 and 1 in the low halves of bytes, of 2 and 3 in the high ones. They come out 16
// times too large, and are stored for the tiles that follow.
.macro load_q4 c
.if \c < 2
    ldr q24, [x12, #256 * \c]
    ldr q25, [x12, #256 * \c + 16]
    shl v24.16b, v24.16b, #4
    shl v25.16b, v25.16b, #4
.else
    ldr q31, [x17, #16]
    ldr q24, [x12, #256 * (\c - 2)]
    ldr q25, [x12, #256 * (\c - 2) + 16]
    and v24.16b, v24.16b, v31.16b
    and v25.16b, v25.16b, v31.16b
.endif
    str q24, [x7, #256 * \c]
    str q25, [x7, #256 * \c + 16]
.endm

.macro chunk load, pairs, g, c
    \load \c
    each_pair \pairs, "multiply 64 * \g + 16 * \c,"
.endm

// The segment's sums += (float)P * difference; the first time there is nothing to add to.
.macro add_first a, b, sa, sb, x
    fsub v27.4s, v\a\().4s, v30.4s
    fsub v31.4s, v\b\().4s, v30.4s
    fmul v\sa\().4s, v27.4s, v28.4s
    fmul v\sb\().4s, v31.4s, v29.4s
.endm

.macro add_next a, b, sa, sb, x
    fsub v27.4s, v\a\().4s, v30.4s
    fsub v31.4s, v\b\().4s, v30.4s
    fmla v\sa\().4s, v27.4s, v28.4s
    fmla v\sb\().4s, v31.4s, v29.4s
.endm

// 32 inputs, group `g` of the segment; `first` adds what comes first of them. Of more than 32 inputs that share a scale,
// the last 32 add, and there are whole segments.
.macro group load, pairs, size, g, first
.if \size <= 32 || (\g + 1) * 32 % \size == 0
    ldr q28, [x8]
    ldr q29, [x8, #16]
.endif
    chunk \load, \pairs, \g, 0
    chunk \load, \pairs, \g, 1
.if \size == 16
    each_pair \pairs, \first
    ldr q28, [x8, #256]
    ldr q29, [x8, #272]
    chunk \load, \pairs, \g, 2
    chunk \load, \pairs, \g, 3
    each_pair \pairs, add_next
.else
    chunk \load, \pairs, \g, 2
    chunk \load, \pairs, \g, 3
.if (\g + 1) * 32 == \size
    each_pair \pairs, add_first
.elseif (\g + 1) * 32 % \size == 0
    each_pair \pairs, \first
.endif
.endif
.if \g < 3
    add x7, x7, x15
.if \size <= 32
    cmp x16, #\g + 1
    b.eq 2f
    add x12, x12, #576
    add x8, x8, #8192 / \size
.elseif (\g + 1) * 32 % \size == 0
    add x8, x8, #256
.endif
.endif
.endm

.macro clear a, b, sa, sb, x
    ldr q\a, [x17]
    ldr q\b, [x17]
.endm

.macro fold a, b, sa, sb, x
    ldr q26, [x9, #8 * \a]
    ldr q24, [x11]
    ldr q25, [x11, #16]
    fmla v24.4s, v\sa\().4s, v26.4s
    fmla v25.4s, v\sb\().4s, v26.4s
    stp q24, q25, [x11]
    add x11, x11, #256
.endm

.macro tile name, load, pairs, size
    .global tile_\name\()__i8mm
    .hidden tile_\name\()__i8mm
    .type tile_\name\()__i8mm, %function
    .balign 64
tile_\name\()__i8mm:
    hint #34  // bti c
    stp d8, d9, [sp, #-64]!
    stp d10, d11, [sp, #16]
    stp d12, d13, [sp, #32]
    stp d14, d15, [sp, #48]
    ldp x13, x14, [x0]       // inputs and the bytes from pair to pair
    ldr x15, [x0, #24]       // bytes from group to group of codes
    ldr x16, [x0, #40]       // groups
    adr x17, lw_magic__i8mm
    ldr q30, [x17]
    mov x1, x13
    add x2, x1, x14
    add x3, x2, x14
    add x4, x3, x14
    add x5, x4, x14
    add x6, x5, x14
    mov x10, #0
1:
    ldr x7, [x0, #16]
    ldr x8, [x0, #32]
    ldr x12, [x0, #64]
    add x7, x7, x10
    add x12, x12, x10
    add x8, x8, x10
    each_pair \pairs, clear
    group \load, \pairs, \size, 0, add_first
    group \load, \pairs, \size, 1, add_next
    group \load, \pairs, \size, 2, add_next
    group \load, \pairs, \size, 3, add_next
2:
    ldp x9, x11, [x0, #48]
    add x11, x11, x10
    each_pair \pairs, fold
    add x10, x10, #32
    cmp x10, #256
    b.ne 1b
    ldp d10, d11, [sp, #16]
    ldp d12, d13, [sp, #32]
    ldp d14, d15, [sp, #48]
    ldp d8, d9, [sp], #64
    ret
    .size tile_\name\()__i8mm, . - tile_\name\()__i8mm
.endm

    .text
    .balign 16
lw_magic__i8mm:
    .rept 4
    .word 0x4B400000
    .endr
    .rept 16
    .byte 0xF0
    .endr
    tile 6_g32, load_decoded, 3, 32
    tile 8_g32, load_decoded, 4, 32
    tile 10_g32, load_decoded, 5, 32
    tile 12_g32, load_decoded, 6, 32
    tile 6_g16, load_decoded, 3, 16
    tile 8_g16, load_decoded, 4, 16
    tile 10_g16, load_decoded, 5, 16
    tile 12_g16, load_decoded, 6, 16
    tile 12_q4, load_q4, 6, 32
.irp size, 64, 128
    tile 6_g\size, load_decoded, 3, \size
    tile 8_g\size, load_decoded, 4, \size
    tile 10_g\size, load_decoded, 5, \size
    tile 12_g\size, load_decoded, 6, \size
.endr

    .section .note.GNU-stack, "", %progbits
