// The tile of decoded weights that levels with SMMLA have in assembly (tile__i8mm.S, tile__sve.S).
#ifndef LW_KERNELS_I8MM_TILE_H
#define LW_KERNELS_I8MM_TILE_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/kernel.h"

// Some pairs of rows by a panel over some segments. Arrays of outputs repeat every 256 bytes, with a fixed place for
// each output or pair of outputs. tile__*.S depend on the order of the fields.
typedef struct lw_mm_tile {
    const int8_t* q;        // [pairs][q_stride]: eight inputs of one row, then of the other
    size_t q_stride;        // bytes
    const uint8_t* codes;   // [groups][code_stride]: [4 chunks][32 outputs][8 inputs] int8
    size_t code_stride;     // bytes
    const float* scales;    // LW_MM_STEP_FLOATS for each step
    size_t groups;          // of 32 inputs, at least 1
    const float* x_scale;   // [pairs][x_scale_stride]: [groups][a a b b], activation scales of two rows
    size_t x_scale_stride;  // bytes
    float* results;         // [pairs][16 pairs of outputs][2 rows][2 outputs], added to
    const uint8_t* packed;  // tile_12_q4 only: packed Q4_0, which the tile decodes to `codes`
} lw_mm_tile;

// Floats of a step in workspace.scales with two copies.
enum { LW_MM_STEP_FLOATS = 4 * LW_PANEL };

typedef void (*lw_mm_tile_fn)(const lw_mm_tile* t);

// Kinds of tiles by the inputs of a step, each for 3 to 6 pairs of rows. The Q4 tile has 6 pairs; it decodes the codes
// that other tiles reuse, and its products hide the stores.
enum { LW_MM_G32, LW_MM_G16, LW_MM_Q4, LW_MM_KINDS };
#define LW_MM_DECLARE(kind, level)                                                                        \
    extern void tile_6_##kind##__##level(const lw_mm_tile*), tile_8_##kind##__##level(const lw_mm_tile*), \
        tile_10_##kind##__##level(const lw_mm_tile*), tile_12_##kind##__##level(const lw_mm_tile*)
#define LW_MM_ROW(kind, level) \
    {tile_6_##kind##__##level, tile_8_##kind##__##level, tile_10_##kind##__##level, tile_12_##kind##__##level}
#define LW_MM_TILES(level)                                     \
    LW_MM_DECLARE(g32, level);                                 \
    LW_MM_DECLARE(g16, level);                                 \
    extern void tile_12_q4__##level(const lw_mm_tile*);        \
    static const lw_mm_tile_fn lw_mm_tiles[LW_MM_KINDS][4] = { \
        LW_MM_ROW(g32, level), LW_MM_ROW(g16, level), {NULL, NULL, NULL, tile_12_q4__##level}}

// One or two rows by a panel of packed Q4_0 or Q8_0 (rows__i8mm.S depends on the order of the fields).
typedef struct lw_mm_rows {
    const int8_t* q;
    const uint8_t* packed;
    size_t groups;         // at least 1
    const float* x_scale;  // one row: [groups]; two: [groups][a a b b]
    float* results;        // one row: [32 outputs]; two: [16 pairs of outputs][2 rows][2 outputs]; added to
    size_t fetch_ahead;    // lw_cpu_fetch_distance
} lw_mm_rows;

typedef void (*lw_mm_rows_fn)(const lw_mm_rows* t);
extern void gemv_q4__i8mm(const lw_mm_rows* t), gemv_q8__i8mm(const lw_mm_rows* t);
extern void gemm_2_q4__i8mm(const lw_mm_rows* t), gemm_2_q8__i8mm(const lw_mm_rows* t);

#endif
