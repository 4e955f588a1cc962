// Rows by a panel of decoded weights over one segment (lw_mm_tile in i8mm/tile.h), two vectors of outputs at a time:
// 4, 8 or 16 outputs for vectors of 128, 256 or 512 bits.
//
// As tile__i8mm.S, whose every 128 bits are one of those of a longer vector here; inputs and activation scales are
// repeated over the vector by their loads.
//   z0-z11   prefix sums P of 6 pairs of rows by 2 vectors, started at the magic number
//   z12-z23  the segment's sums
//   z24 z25  weights, z26 inputs, z28 z29 scale differences, z30 the magic number, z27 z31 in passing
//   x1-x6    inputs of each pair, x7 weights, x8 differences, x9 activation scales, x10 place in the panel,
//            x11 results and packed weights
// All arithmetic is unpredicated but FMLA, which has no such form; its predicate is all true.

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

// The inputs of a pair are 128 bytes before \x: what a load can add reaches from -128 to 112.
.macro multiply at, a, b, sa, sb, x
    ld1rqb {z26.b}, p0/z, [\x, #\at - 128]
    smmla z\a\().s, z26.b, z24.b
    smmla z\b\().s, z26.b, z25.b
.endm

.macro load_decoded c
    ldr z24, [x7]
    ldr z25, [x7, #1, mul vl]
.endm

// Q4_0 as packed: codes of chunks 0 and 1 in the low halves of bytes, of 2 and 3 in the high ones. They come out 16
// times too large, and are stored for the tiles that follow.
.macro load_q4 c
.if \c == 2
    sub x11, x11, #512
.endif
    ldr z24, [x11]
    ldr z25, [x11, #1, mul vl]
    add x11, x11, #256
.if \c < 2
    lsl z24.b, z24.b, #4
    lsl z25.b, z25.b, #4
.else
    and z24.b, z24.b, #0xF0
    and z25.b, z25.b, #0xF0
.endif
    str z24, [x7]
    str z25, [x7, #1, mul vl]
.endm

.macro chunk load, pairs, g, c
    \load \c
    each_pair \pairs, "multiply 64 * \g + 16 * \c,"
.if \c < 3
    add x7, x7, #256
.endif
.endm

// The segment's sums += (float)P * difference; the first time there is nothing to add to.
.macro add_first a, b, sa, sb, x
    fsub z27.s, z\a\().s, z30.s
    fsub z31.s, z\b\().s, z30.s
    fmul z\sa\().s, z27.s, z28.s
    fmul z\sb\().s, z31.s, z29.s
.endm

.macro add_next a, b, sa, sb, x
    fsub z27.s, z\a\().s, z30.s
    fsub z31.s, z\b\().s, z30.s
    fmla z\sa\().s, p0/m, z27.s, z28.s
    fmla z\sb\().s, p0/m, z31.s, z29.s
.endm

.macro differences
    ldr z28, [x8]
    ldr z29, [x8, #1, mul vl]
    add x8, x8, #256
.endm

// 32 inputs, group `g` of the segment; `first` adds what comes first of them. Of more than 32 inputs that share a scale,
// the last 32 add, and there are whole segments.
.macro group load, pairs, size, g, first
.if \size <= 32 || (\g + 1) * 32 % \size == 0
    differences
.endif
    chunk \load, \pairs, \g, 0
    chunk \load, \pairs, \g, 1
.if \size == 16
    each_pair \pairs, \first
    differences
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
.if \size <= 32
    cmp x16, #\g + 1
    b.eq 2f
.endif
    add x7, x7, x15
    add x11, x11, #64
.endif
.endm

.macro clear a, b, sa, sb, x
    ld1rw {z\a\().s}, p0/z, [x12]
    ld1rw {z\b\().s}, p0/z, [x12]
.endm

.macro fold a, b, sa, sb, x
    ld1rqw {z26.s}, p0/z, [x9, #8 * \a]
    ldr z24, [x11]
    ldr z25, [x11, #1, mul vl]
    fmla z24.s, p0/m, z\sa\().s, z26.s
    fmla z25.s, p0/m, z\sb\().s, z26.s
    str z24, [x11]
    str z25, [x11, #1, mul vl]
    add x11, x11, #256
.endm

.macro tile name, load, pairs, size
    .global tile_\name\()__sve
    .hidden tile_\name\()__sve
    .type tile_\name\()__sve, %function
    .balign 64
tile_\name\()__sve:
    hint #34  // bti c
    stp d8, d9, [sp, #-64]!
    stp d10, d11, [sp, #16]
    stp d12, d13, [sp, #32]
    stp d14, d15, [sp, #48]
    ptrue p0.b
    ldp x13, x14, [x0]       // inputs and the bytes from pair to pair
    add x13, x13, #128
    ldr x15, [x0, #24]       // bytes from group to group of codes
    sub x15, x15, #768       // of which a group has gone through these
    ldr x16, [x0, #40]       // groups
    adr x12, lw_magic__sve
    ld1rw {z30.s}, p0/z, [x12]
    rdvl x17, #2
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
    ldr x11, [x0, #64]
    add x7, x7, x10
    add x11, x11, x10
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
    add x10, x10, x17
    cmp x10, #256
    b.ne 1b
    ldp d10, d11, [sp, #16]
    ldp d12, d13, [sp, #32]
    ldp d14, d15, [sp, #48]
    ldp d8, d9, [sp], #64
    ret
    .size tile_\name\()__sve, . - tile_\name\()__sve
.endm

    .text
    .balign 4
lw_magic__sve:
    .word 0x4B400000
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
