#include "kernels/amx/tiles.h"
#include "kernels/avx512vnni/limits.h"

// Four sums of whole tiles: 16 rows by 16 outputs by 64 inputs each. All tiles are loaded first: on some cores tiles
// that were never loaded are twice as fast, which no product can be.
static void multiply(uint64_t rounds) {
    static const uint8_t ones[1024] = {1, 1, 1};
    tile_config whole = {.palette = 1};
    for (int i = 0; i < 8; ++i) {
        whole.row_bytes[i] = 64;
        whole.rows[i] = 16;
    }
    load_config(&whole);
    _tile_loadd(4, ones, 64);
    _tile_loadd(5, ones, 64);
    _tile_loadd(6, ones, 64);
    _tile_loadd(7, ones, 64);
    for (uint64_t r = 0; r < rounds; ++r) {
        _tile_dpbssd(0, 4, 6);
        _tile_dpbssd(1, 4, 7);
        _tile_dpbssd(2, 5, 6);
        _tile_dpbssd(3, 5, 7);
    }
    _tile_release();
}

const lw_limit_ops limit_ops__amx = {read_way, multiply, 4 * 16 * 16 * 64};
