// Rows by a panel of decoded weights over some segments (lw_mm_tile in tile.h), four outputs at a time.
//
// In assembly because every register is needed: 12 integer sums, 12 results, and 8 temporaries.
//   v0-v11   integer sums of 6 pairs of rows by 2 pairs of outputs, started at the magic number for each step
//   v12-v23  results
//   v24 v25  weights, v26 inputs, v28 v29 scales of weights, v30 of activations, v27 v31 temporaries
//   x1-x6    inputs of each pair, x19-x24 their activation scales, x7 weights, x8 scales, x10 offset in the panel,
//            x11 results, x12 packed weights
// Loads are single: on most cores a load of a pair is more micro-operations than two loads. Slots of the vector pipes
// per sum and 32 inputs: 4 SMMLA and 2 FMLA. Start values, also of products with scales, are loads, which take no
// slots.

#include "kernels/i8mm/tile_frame.inc"

.macro multiply at, a, b, ra, rb, x, d
    ldr q26, [\x, #\at]
    smmla v\a\().4s, v26.16b, v24.16b
    smmla v\b\().4s, v26.16b, v25.16b
.endm

.macro load_decoded c
    ldr q24, [x7, #256 * \c]
    ldr q25, [x7, #256 * \c + 16]
.endm

// Packed Q4_0: the low halves of bytes hold the codes of chunks 0 and 1, the high halves those of chunks 2 and 3. The
// codes come out 16 times too large and are stored for later tiles.
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

// Ends a step: results += (scale * sum, rounded once) * activation scale. The scales are at x8 + `at`, and 256 bytes
// after them minus the magic number times the scales. \d has the activation scales of a pair.
.macro add_step at, g, a, b, ra, rb, x, d
    ldr q30, [\d, #16 * \g]
    ldr q27, [x8, #\at + 256]
    ldr q31, [x8, #\at + 272]
    fmla v27.4s, v\a\().4s, v28.4s
    fmla v31.4s, v\b\().4s, v29.4s
    fmla v\ra\().4s, v27.4s, v30.4s
    fmla v\rb\().4s, v31.4s, v30.4s
.endm

// Half of the sums start as copies. Starting all by loads would take more slots of the load pipes than the rest takes
// of the vector pipes.
.macro starts pairs
    ldr q26, [x17]
    mov v0.16b, v26.16b
    mov v1.16b, v26.16b
.if \pairs > 3
    mov v2.16b, v26.16b
    mov v3.16b, v26.16b
.else
    ldr q2, [x17]
    ldr q3, [x17]
.endif
.if \pairs > 5
    mov v4.16b, v26.16b
    mov v5.16b, v26.16b
.else
    ldr q4, [x17]
    ldr q5, [x17]
.endif
.if \pairs > 3
    ldr q6, [x17]
    ldr q7, [x17]
.endif
.if \pairs > 4
    ldr q8, [x17]
    ldr q9, [x17]
.endif
.if \pairs > 5
    ldr q10, [x17]
    ldr q11, [x17]
.endif
.endm

.macro step_end pairs, at, g
    ldr q28, [x8, #\at]
    ldr q29, [x8, #\at + 16]
    each_pair \pairs, "add_step \at, \g,"
.endm

.macro next_group load, size
    add x7, x7, x15
    add x8, x8, #16384 / \size
.ifc \load, load_q4
    add x12, x12, #576
.endif
.endm

.macro load_results a, b, ra, rb, x, d
    ldr q\ra, [x11, #128 * \a]
    ldr q\rb, [x11, #128 * \a + 16]
.endm

.macro store_result a, b, ra, rb, x, d
    str q\ra, [x11, #128 * \a]
    str q\rb, [x11, #128 * \a + 16]
.endm

.macro store_results pairs
    each_pair \pairs, store_result
.endm

.macro begin
    ldr x15, [x0, #24]  // bytes from one group of codes to the next
    adr x17, lw_magic__i8mm
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
    tiles i8mm, x12, #32
