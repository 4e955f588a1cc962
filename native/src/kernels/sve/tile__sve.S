// Rows by a panel of decoded weights over some segments (lw_mm_tile in i8mm/tile.h), two vectors of outputs at a time:
// 4, 8 or 16 outputs for vectors of 128, 256 or 512 bits.
//
// Like tile__i8mm.S, but each of its 128-bit vectors is a longer vector here. The loads of inputs and activation scales
// repeat them over the vector.
//   z0-z11   integer sums of 6 pairs of rows by 2 vectors, started at the magic number for each step
//   z12-z23  results
//   z24 z25  weights, z26 inputs, z28 z29 scales of weights, z27 z31 minus the magic number times them, z30 scales of
//            activations
//   x1-x6    inputs of each pair, x19-x24 their activation scales, x7 weights, x8 scales, x10 offset in the panel,
//            x11 results, x13 packed weights
// All arithmetic is unpredicated except FMAD and FMLA, which have no such form; their predicate is all true.

#include "kernels/i8mm/tile_frame.inc"

// Runs `op` for each pair of rows, with the numbers of its sums and the registers of its inputs and activation scales.
.macro each_pair pairs, op
    \op 0, 1, 12, 13, x1, x19
    \op 2, 3, 14, 15, x2, x20
    \op 4, 5, 16, 17, x3, x21
.if \pairs > 3
    \op 6, 7, 18, 19, x4, x22
.endif
.if \pairs > 4
    \op 8, 9, 20, 21, x5, x23
.endif
.if \pairs > 5
    \op 10, 11, 22, 23, x6, x24
.endif
.endm

// \x points 128 bytes past a pair's inputs, because a load's offset reaches from -128 to 112.
.macro multiply at, a, b, ra, rb, x, d
    ld1rqb {z26.b}, p0/z, [\x, #\at - 128]
    smmla z\a\().s, z26.b, z24.b
    smmla z\b\().s, z26.b, z25.b
.endm

.macro load_decoded c
    ldr z24, [x7]
    ldr z25, [x7, #1, mul vl]
.endm

// Packed Q4_0: the low halves of bytes hold the codes of chunks 0 and 1, the high halves those of chunks 2 and 3. The
// codes come out 16 times too large and are stored for later tiles.
.macro load_q4 c
.if \c == 2
    sub x13, x13, #512
.endif
    ldr z24, [x13]
    ldr z25, [x13, #1, mul vl]
    add x13, x13, #256
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

// Ends a step: results += (scale * sum, rounded once) * activation scale; \d has the activation scales of a pair.
.macro add_step g, a, b, ra, rb, x, d
    ld1rqw {z30.s}, p0/z, [\d, #16 * \g]
    fmad z\a\().s, p0/m, z28.s, z27.s
    fmad z\b\().s, p0/m, z29.s, z31.s
    fmla z\ra\().s, p0/m, z\a\().s, z30.s
    fmla z\rb\().s, p0/m, z\b\().s, z30.s
.endm

.macro start a, b, ra, rb, x, d
    ld1rw {z\a\().s}, p0/z, [x12]
    ld1rw {z\b\().s}, p0/z, [x12]
.endm

.macro step_end pairs, g
    add x9, x8, #256
    ldr z28, [x8]
    ldr z29, [x8, #1, mul vl]
    ldr z27, [x9]
    ldr z31, [x9, #1, mul vl]
    add x8, x8, #512
    each_pair \pairs, "add_step \g,"
.endm

// 32 inputs: group `g` of a segment.
.macro group load, pairs, size, g
    each_pair \pairs, start
    chunk \load, \pairs, \g, 0
    chunk \load, \pairs, \g, 1
.if \size == 16
    step_end \pairs, \g
    each_pair \pairs, start
.endif
    chunk \load, \pairs, \g, 2
    chunk \load, \pairs, \g, 3
    step_end \pairs, \g
.if \g < 3
    cmp x14, #\g + 1
    b.eq 3f
.endif
    add x7, x7, x15
.ifc \load, load_q4
    add x13, x13, #64
.endif
.endm

.macro next_segment a, b, ra, rb, x, d
    add \x, \x, #256
    add \d, \d, #64
.endm

.macro load_results a, b, ra, rb, x, d
    ldr z\ra, [x11]
    ldr z\rb, [x11, #1, mul vl]
    add x11, x11, #256
.endm

.macro store_results a, b, ra, rb, x, d
    str z\ra, [x11]
    str z\rb, [x11, #1, mul vl]
    add x11, x11, #256
.endm

.macro tile name, load, pairs, size
    .global tile_\name\()__sve
    .hidden tile_\name\()__sve
    .type tile_\name\()__sve, %function
    .balign 64
tile_\name\()__sve:
    hint #34  // bti c
    save_registers
    ptrue p0.b
    ldr x15, [x0, #24]       // bytes from one group of codes to the next
    sub x15, x15, #768       // minus the bytes that the loop advances within a group
    adr x12, lw_magic__sve
    rdvl x17, #2
    mov x10, #0
1:
    pair_addresses past=128
    ldr x7, [x0, #16]
    ldp x8, x14, [x0, #32]   // groups left
    ldp x11, x13, [x0, #64]
    add x7, x7, x10
    add x13, x13, x10
    add x8, x8, x10
    add x11, x11, x10
    each_pair \pairs, load_results
2:
    group \load, \pairs, \size, 0
    group \load, \pairs, \size, 1
    group \load, \pairs, \size, 2
    group \load, \pairs, \size, 3
    each_pair \pairs, next_segment
    subs x14, x14, #4
    b.ne 2b
3:
    sub x11, x11, #256 * \pairs
    each_pair \pairs, store_results
    add x10, x10, x17
    cmp x10, #256
    b.ne 1b
    restore_registers
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

    .section .note.GNU-stack, "", %progbits
