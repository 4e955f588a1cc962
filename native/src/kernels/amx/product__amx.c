#include "kernels/amx/product__amx.h"

#include "kernels/amx/tiles.h"

// Tile registers: the sums of the four groups of a segment are 0 to 3. Macros, because the intrinsics paste the numbers
// into names of registers.
#define ROWS 4
#define OUTPUTS 6

// 16 outputs of all rows, over the segments that are decoded.
typedef struct half_block {
    size_t rows, segments;
    const int8_t* q;        // row 0 in the first segment
    const float* scale;     // activation scales of that row
    size_t segment_stride;  // bytes from a segment of q to the next one
    const uint8_t* codes;   // [segment][chunk of 4 inputs][output][4]
    const float* scales;    // weight scales: [segment][group][output]
    float* results;         // row 0
} half_block;

// Packed weights that are decoded later: `lines` of them are prefetched with each group.
typedef struct weight_stream {
    const uint8_t *next, *end;
    size_t lines;
} weight_stream;

static void configure(size_t rows) {
    tile_config c = {.palette = 1};
    for (int i = 0; i < 8; ++i) {
        c.row_bytes[i] = i == ROWS ? LW_GROUP : 64;
        c.rows[i] = (uint8_t)(i < OUTPUTS ? rows : LW_GROUP / 4);
    }
    load_config(&c);
}

LW_INLINE void prefetch(weight_stream* f) {
    for (size_t i = 0; i < f->lines && f->next < f->end; ++i, f->next += 64)
        __asm__ volatile("prefetcht1 %0" : : "m"(*f->next));
}

// Sum `g` of a segment. A macro for the name of the sum's register.
#define MULTIPLY(g)                                                     \
    do {                                                                \
        _tile_loadd(ROWS, q + (g) * LW_GROUP, LW_SEGMENT);              \
        _tile_loadd(OUTPUTS, codes + (g) * LW_GROUP * AMX_OUTPUTS, 64); \
        _tile_zero(g);                                                  \
        _tile_dpbssd(g, ROWS, OUTPUTS);                                 \
        prefetch(f);                                                    \
    } while (0)
#define STORE(g) _tile_stored(g, sums + (g) * AMX_SUMS, AMX_OUTPUTS * 4)

// acc[row] += sum of group g * weight scale * activation scale. Addresses are made opaque, because the compiler would
// add an index to each, which takes the core an instruction more.
LW_INLINE void add_up(const int rows, const int32_t* sums, const float* weight_scale, const float* scale, __m512* acc) {
    const __m512 s = _mm512_load_ps(weight_scale);
    __asm__("" : "+r"(sums), "+r"(scale));
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r) {
        const __m512 sum = _mm512_cvtepi32_ps(_mm512_load_si512(sums + r * AMX_OUTPUTS));
        const __m512 scaled = _mm512_fmadd_ps(sum, s, _mm512_setzero_ps());  // never -0
        acc[r] = _mm512_fmadd_ps(scaled, _mm512_set1_ps(scale[r * LW_SEGMENT_GROUPS]), acc[r]);
    }
}

LW_INLINE void load_results(const int rows, const float* results, __m512* acc) {
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r) acc[r] = _mm512_load_ps(results + r * LW_PANEL);
}

// Stores the rows from `first` on.
LW_INLINE void store_results(const int rows, size_t first, const __m512* acc, float* results) {
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r)
        if ((size_t)r >= first) _mm512_store_ps(results + r * LW_PANEL, acc[r]);
}

// Tiles of `rows` rows; the last one starts early enough to be whole. One step multiplies a segment and adds up the sums
// of the step before. A sum is stored two products after it began and added up two products later still, so that
// neither waits.
LW_INLINE void multiply_tiles(const int rows, const half_block* b, int32_t* sums, weight_stream* f) {
    __m512 acc[AMX_ROWS];
    const size_t tiles = lw_ceil_div(b->rows, (size_t)rows), last = b->rows - (size_t)rows;
    const int8_t* q = b->q;
    const uint8_t* codes = b->codes;
    const float *weight_scale = b->scales, *scale = b->scale;
    float* results = b->results;
    load_results(rows, results, acc);
    MULTIPLY(0);
    MULTIPLY(1);
    MULTIPLY(2);
    STORE(0);
    MULTIPLY(3);
    STORE(1);
    for (size_t tile = 0, segment = 1;; ++segment) {
        const bool at_end = segment == b->segments;
        if (at_end && ++tile == tiles) break;
        const size_t row = tile * (size_t)rows, start = row < last ? row : last;
        if (at_end) {
            segment = 0;
            q = b->q + start * LW_SEGMENT;
            codes = b->codes;
        } else {
            q += b->segment_stride;
            codes += LW_SEGMENT * AMX_OUTPUTS;
        }
        add_up(rows, sums, weight_scale, scale, acc);
        MULTIPLY(0);
        STORE(2);
        add_up(rows, sums + AMX_SUMS, weight_scale + AMX_OUTPUTS, scale + 1, acc);
        MULTIPLY(1);
        STORE(3);
        add_up(rows, sums + 2 * AMX_SUMS, weight_scale + 2 * AMX_OUTPUTS, scale + 2, acc);
        MULTIPLY(2);
        STORE(0);
        add_up(rows, sums + 3 * AMX_SUMS, weight_scale + 3 * AMX_OUTPUTS, scale + 3, acc);
        MULTIPLY(3);
        STORE(1);
        weight_scale += LW_SEGMENT_GROUPS * AMX_OUTPUTS;
        scale += b->segment_stride / LW_GROUP;
        if (at_end) {
            store_results(rows, 0, acc, results);
            results = b->results + start * LW_PANEL;
            load_results(rows, results, acc);
            weight_scale = b->scales;
            scale = b->scale + start * LW_SEGMENT_GROUPS;
        }
    }
    STORE(2);
    STORE(3);
#pragma GCC unroll 4
    for (int g = 0; g < LW_SEGMENT_GROUPS; ++g)
        add_up(rows, sums + g * AMX_SUMS, weight_scale + g * AMX_OUTPUTS, scale + g, acc);
    store_results(rows, tiles * (size_t)rows - b->rows, acc, results);  // the rest was in the tile before
}

// Each number of rows has its own code, because the rows' results are in registers. A part of a batch may have few.
static void multiply_rows(size_t rows, const half_block* b, int32_t* sums, weight_stream* f) {
    switch (rows) {
#define OF_ROWS(n)                     \
    case n:                            \
        multiply_tiles(n, b, sums, f); \
        break;
        OF_ROWS(1)
        OF_ROWS(2)
        OF_ROWS(3)
        OF_ROWS(4)
        OF_ROWS(5)
        OF_ROWS(6)
        OF_ROWS(7)
        OF_ROWS(8)
        OF_ROWS(9)
        OF_ROWS(10)
        OF_ROWS(11)
        OF_ROWS(12)
        OF_ROWS(13)
        OF_ROWS(14)
        OF_ROWS(15)
#undef OF_ROWS
        default:
            multiply_tiles(16, b, sums, f);
    }
}

// The prefetches of as many packed weights as the segments [first, first + n) have, LW_FETCH_EARLY further on, spread
// over the products of these segments.
static weight_stream stream_after(const amx_weights* w, size_t tiles, size_t first, size_t n) {
    const uint8_t* next = w->panel.data + (first + n) * w->segment_bytes + LW_FETCH_EARLY;
    const size_t bytes = n * w->segment_bytes, groups = tiles * VECTORS * n * LW_SEGMENT_GROUPS;
    return (weight_stream){next, next + bytes, lw_ceil_div(bytes, 64 * groups)};
}

void lw_amx_product__amx(const amx_weights* w, const lw_activations* x, amx_scratch* s) {
    const size_t tiles = lw_ceil_div(x->rows, AMX_ROWS), tile_rows = lw_ceil_div(x->rows, tiles);
    memset(s->results, 0, x->rows * LW_PANEL * sizeof(float));
    configure(tile_rows);
    for (size_t first = 0, n; first < x->segments; first += n) {
        n = x->segments - first < AMX_SEGMENTS ? x->segments - first : AMX_SEGMENTS;
        weight_stream f = stream_after(w, tiles, first, n);
        for (int half = 0; half < VECTORS; ++half) {
            for (size_t i = 0; i < n; ++i) w->decode(&w->panel, first + i, half, s->codes[i], s->scales[i]);
            const half_block b = {
                .rows = x->rows,
                .segments = n,
                .q = x->q + first * x->segment_stride,
                .scale = x->scale + first * x->segment_stride / LW_GROUP,
                .segment_stride = x->segment_stride,
                .codes = s->codes[0],
                .scales = s->scales[0],
                .results = s->results + half * AMX_OUTPUTS,
            };
            multiply_rows(tile_rows, &b, s->sums[0], &f);
        }
    }
    _tile_release();
}
