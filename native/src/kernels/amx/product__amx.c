#include "kernels/amx/product__amx.h"

#include "kernels/amx/tiles.h"

// Tile registers: four sums (two tiles of rows by two vectors of outputs), then the rows, then the outputs. Macros,
// because the intrinsics paste the numbers into names of registers.
#define SUM_00 0
#define SUM_01 1
#define SUM_10 2
#define SUM_11 3
#define ROWS_0 4
#define ROWS_1 5
#define OUTPUTS_0 6
#define OUTPUTS_1 7

enum { BLOCK_SUMS = 2 * AMX_ROWS * LW_PANEL };  // per group

// One or two tiles of rows of one segment.
typedef struct row_block {
    const float* scales;    // weight scales: [group][32]
    const int8_t* q;        // row 0 of the segment
    const float* scale;     // activation scales from row 0 on: [row][group]
    size_t first, end;      // range of rows
    size_t second;          // first row of the second tile
    size_t tile_starts[2];  // the last tile starts early enough to be full, and repeats rows
    int32_t* sums;          // [group][row][32]
} row_block;

static void configure(size_t rows) {
    tile_config c = {.palette = 1};
    for (int i = SUM_00; i <= OUTPUTS_1; ++i) {
        c.row_bytes[i] = i == ROWS_0 || i == ROWS_1 ? LW_GROUP : 64;
        c.rows[i] = (uint8_t)(i < OUTPUTS_0 ? rows : LW_GROUP / 4);
    }
    load_config(&c);
}

// Multiplies the inputs of group g and stores the sums.
LW_INLINE void multiply(const int tiles, const uint8_t* codes, const row_block* b, int g) {
    const uint8_t* outputs = codes + g * LW_GROUP / 4 * CHUNK_BYTES;
    const int8_t* rows = b->q + g * LW_GROUP;
    int32_t* sums = b->sums + g * BLOCK_SUMS;
    _tile_zero(SUM_00);
    _tile_zero(SUM_01);
    _tile_loadd(OUTPUTS_0, outputs, CHUNK_BYTES);
    _tile_loadd(ROWS_0, rows + b->tile_starts[0] * LW_SEGMENT, LW_SEGMENT);
    _tile_dpbssd(SUM_00, ROWS_0, OUTPUTS_0);
    _tile_loadd(OUTPUTS_1, outputs + 64, CHUNK_BYTES);
    _tile_dpbssd(SUM_01, ROWS_0, OUTPUTS_1);
    if (tiles == 2) {
        _tile_zero(SUM_10);
        _tile_zero(SUM_11);
        _tile_loadd(ROWS_1, rows + b->tile_starts[1] * LW_SEGMENT, LW_SEGMENT);
        _tile_dpbssd(SUM_10, ROWS_1, OUTPUTS_0);
        _tile_dpbssd(SUM_11, ROWS_1, OUTPUTS_1);
    }
    _tile_stored(SUM_00, sums, LW_PANEL * 4);
    _tile_stored(SUM_01, sums + 16, LW_PANEL * 4);
    if (tiles == 1) return;
    _tile_stored(SUM_10, sums + AMX_ROWS * LW_PANEL, LW_PANEL * 4);
    _tile_stored(SUM_11, sums + AMX_ROWS * LW_PANEL + 16, LW_PANEL * 4);
}

// Scales the sums of rows [first, end) and adds them to the results.
LW_INLINE void add_up(const row_block* b, size_t first, size_t end, float* results) {
    for (int v = 0; v < VECTORS; ++v) {
        __m512 s[LW_SEGMENT_GROUPS];
#pragma GCC unroll 4
        for (int g = 0; g < LW_SEGMENT_GROUPS; ++g) s[g] = _mm512_load_ps(b->scales + g * LW_PANEL + v * 16);
        for (size_t row = first; row < end; ++row) {
            const size_t tile = row >= b->second;
            const int32_t* sums = b->sums + (tile * AMX_ROWS + row - b->tile_starts[tile]) * LW_PANEL + v * 16;
            float* to = results + row * LW_PANEL + v * 16;
            __m512 acc = _mm512_load_ps(to);
#pragma GCC unroll 4
            for (int g = 0; g < LW_SEGMENT_GROUPS; ++g) {
                const __m512 sum = _mm512_cvtepi32_ps(_mm512_load_si512(sums + g * BLOCK_SUMS));
                const __m512 scaled = _mm512_fmadd_ps(sum, s[g], _mm512_setzero_ps());  // never -0
                acc = _mm512_fmadd_ps(scaled, _mm512_set1_ps(b->scale[row * LW_SEGMENT_GROUPS + (size_t)g]), acc);
            }
            _mm512_store_ps(to, acc);
        }
    }
}

// Multiplies block `now` and, side by side with it, adds up block `before` unless it is NULL.
LW_INLINE void step(const int tiles, const uint8_t* codes, const row_block* now, const row_block* before,
                    float* results) {
    const size_t rows = before != NULL ? before->end - before->first : 0;
#pragma GCC unroll 1
    for (int g = 0; g < LW_SEGMENT_GROUPS; ++g) {
        multiply(tiles, codes, now, g);
        if (before != NULL)
            add_up(before, before->first + rows * (size_t)g / LW_SEGMENT_GROUPS,
                   before->first + rows * (size_t)(g + 1) / LW_SEGMENT_GROUPS, results);
    }
}

LW_INLINE row_block open_block(const lw_activations* x, size_t segment, size_t first, size_t tile_rows, int tiles) {
    const size_t last = x->rows - tile_rows, second = first + tile_rows, end = first + (size_t)tiles * tile_rows;
    return (row_block){.q = x->q + segment * x->segment_stride,
                       .scale = x->scale + segment * (x->segment_stride / LW_GROUP),
                       .first = first,
                       .end = end < x->rows ? end : x->rows,
                       .second = second,
                       .tile_starts = {first < last ? first : last, second < last ? second : last}};
}

// One segment after the other, each with all its rows.
void lw_amx_product__amx(const amx_weights* w, const lw_activations* x, amx_scratch* s) {
    const size_t tiles = lw_ceil_div(x->rows, AMX_ROWS), tile_rows = lw_ceil_div(x->rows, tiles);
    row_block blocks[2];
    const row_block* before = NULL;
    size_t n_blocks = 0;
    configure(tile_rows);
    for (size_t i = 0; i < x->segments; ++i) {
        w->decode(&w->panel, i, s->codes, s->scales[i % 2]);
        for (size_t tile = 0; tile < tiles; ++n_blocks) {
            const int n = tiles - tile < 2 ? 1 : 2;
            row_block* now = &blocks[n_blocks % 2];
            *now = open_block(x, i, tile * tile_rows, tile_rows, n);
            now->scales = s->scales[i % 2];
            now->sums = s->sums[n_blocks % 2];
            if (n == 2)
                step(2, s->codes, now, before, s->results);
            else
                step(1, s->codes, now, before, s->results);
            before = now;
            tile += (size_t)n;
        }
    }
    _tile_release();
    if (before != NULL) add_up(before, before->first, before->end, s->results);
}
