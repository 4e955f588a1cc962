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

.macro starts pairs
    each_pair \pairs, start
.endm

.macro step_end pairs, at, g
    add x9, x8, #256
    ldr z28, [x8]
    ldr z29, [x8, #1, mul vl]
    ldr z27, [x9]
    ldr z31, [x9, #1, mul vl]
    add x8, x8, #512
    each_pair \pairs, "add_step \g,"
.endm

.macro next_group load, size
    add x7, x7, x15
.ifc \load, load_q4
    add x13, x13, #64
.endif
.endm

.macro load_results a, b, ra, rb, x, d
    ldr z\ra, [x11]
    ldr z\rb, [x11, #1, mul vl]
    add x11, x11, #256
.endm

.macro store_result a, b, ra, rb, x, d
    str z\ra, [x11]
    str z\rb, [x11, #1, mul vl]
    add x11, x11, #256
.endm

.macro store_results pairs
    sub x11, x11, #256 * \pairs
    each_pair \pairs, store_result
.endm

.macro begin
    ptrue p0.b
    ldr x15, [x0, #24]       // bytes from one group of codes to the next
    sub x15, x15, #768       // minus the bytes that the loop advances within a group
    adr x12, lw_magic__sve
    rdvl x17, #2
.endm

    .text
    .balign 4
lw_magic__sve:
    .word 0x4B400000
    tiles sve, x13, x17, past=128
