// The tiles that this level has in assembly (tile__dotprod.S).
#ifndef LW_KERNELS_DOTPROD_TILE_H
#define LW_KERNELS_DOTPROD_TILE_H

#include <stddef.h>
#include <stdint.h>

// Some rows by a panel over one segment. Arrays of outputs repeat every 128 bytes, with 4 bytes for each output.
// tile__dotprod.S depends on the order of the fields.
typedef struct lw_dot_tile {
    const int8_t* q;      // [rows][q_stride]
    size_t q_stride;      // bytes
    int8_t* codes;        // [groups][code_stride]: [8 chunks][32 outputs][4 inputs]
    size_t code_stride;   // bytes
    const float* scales;  // [steps of 16 or 32 inputs][2][32 outputs]: scales, then -LW_MAGIC times them
    size_t groups;        // of 32 inputs, 1 to 4
    const float* da;      // [rows][da_stride]: activation scales of the groups
    float* results;       // [rows][32 outputs], added to
    const uint8_t*
        packed;        // q4 and store tiles: packed Q4_0 groups, read instead of `codes`; sums are 16 times too large
    size_t da_stride;  // bytes
} lw_dot_tile;

typedef void (*lw_dot_tile_fn)(const lw_dot_tile* t);

// Kinds of tiles, each for 4 to 8 rows: decoded groups with steps of 32 inputs, or of 16; packed Q4_0; packed Q4_0 that
// the tile also stores decoded to `codes`.
enum { TILES_G32, TILES_G16, TILES_Q4, TILES_STORE };
#define LW_DOT_TILES(kind)                                                                                    \
    extern void tile_4_##kind##__dotprod(const lw_dot_tile*), tile_5_##kind##__dotprod(const lw_dot_tile*),   \
        tile_6_##kind##__dotprod(const lw_dot_tile*), tile_7_##kind##__dotprod(const lw_dot_tile*),           \
        tile_8_##kind##__dotprod(const lw_dot_tile*);                                                         \
    static const lw_dot_tile_fn lw_dot_tiles_##kind[5] = {tile_4_##kind##__dotprod, tile_5_##kind##__dotprod, \
                                                          tile_6_##kind##__dotprod, tile_7_##kind##__dotprod, \
                                                          tile_8_##kind##__dotprod}
LW_DOT_TILES(g32);
LW_DOT_TILES(g16);
LW_DOT_TILES(q4);
LW_DOT_TILES(store);
static const lw_dot_tile_fn* const lw_dot_tiles[] = {lw_dot_tiles_g32, lw_dot_tiles_g16, lw_dot_tiles_q4,
                                                     lw_dot_tiles_store};

// One or two rows by a panel of packed Q4_0, whole segments only (rows__dotprod.S depends on the order of the fields).
typedef struct lw_dot_rows {
    const int8_t* q;
    size_t q_stride;  // bytes from row to row
    const uint8_t* packed;
    size_t segments;     // at least 1
    const float* da;     // [rows][segments][4]: activation scales
    size_t da_stride;    // bytes from row to row
    float* results;      // [rows][32 outputs], added to
    size_t fetch_ahead;  // lw_cpu_fetch_distance
} lw_dot_rows;

extern void gemv_q4__dotprod(const lw_dot_rows* t), gemm_2_q4__dotprod(const lw_dot_rows* t);

#endif
