// Configuration of the tile registers.
#ifndef LW_KERNELS_AMX_TILES_H
#define LW_KERNELS_AMX_TILES_H

#include <immintrin.h>
#include <stdint.h>

typedef struct tile_config {  // the layout that LDTILECFG reads
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_config;

static inline void load_config(const tile_config* c) { __asm__ volatile("ldtilecfg %0" : : "m"(*c)); }

#endif
