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

// 32 inputs, group `g` of a segment.
.macro group load, pairs, size, g
    starts \pairs
    chunk \load, \pairs, \g, 0
    chunk \load, \pairs, \g, 1
.if \size == 16
    step_end \pairs, 0, \g
    starts \pairs
.endif
    chunk \load, \pairs, \g, 2
    chunk \load, \pairs, \g, 3
    step_end \pairs, 16384 / \size - 512, \g
.if \g < 3
    cmp x14, #\g + 1
    b.eq 3f
.endif
    add x7, x7, x15
    add x8, x8, #16384 / \size
.ifc \load, load_q4
    add x12, x12, #576
.endif
.endm

.macro next_segment a, b, ra, rb, x, d
    add \x, \x, #256
    add \d, \d, #64
.endm

.macro load_results a, b, ra, rb, x, d
    ldr q\ra, [x11, #128 * \a]
    ldr q\rb, [x11, #128 * \a + 16]
.endm

.macro store_results a, b, ra, rb, x, d
    str q\ra, [x11, #128 * \a]
    str q\rb, [x11, #128 * \a + 16]
.endm

.macro tile name, load, pairs, size
    .global tile_\name\()__i8mm
    .hidden tile_\name\()__i8mm
    .type tile_\name\()__i8mm, %function
    .balign 64
tile_\name\()__i8mm:
    hint #34  // bti c
    save_registers
    ldr x15, [x0, #24]       // bytes from one group of codes to the next
    adr x17, lw_magic__i8mm
    mov x10, #0
1:
    pair_addresses
    ldr x7, [x0, #16]
    ldp x8, x14, [x0, #32]   // groups left
    ldp x11, x12, [x0, #64]
    add x7, x7, x10
    add x12, x12, x10
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
    each_pair \pairs, store_results
    add x10, x10, #32
    cmp x10, #256
    b.ne 1b
    restore_registers
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

    .section .note.GNU-stack, "", %progbits
