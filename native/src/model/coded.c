#include "model/coded.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/unpack.h"
#include "model/gguf_blocks.h"
#include "model/gguf_grids.h"
#include "status.h"

#define ALWAYS_INLINE static inline __attribute__((always_inline))

const int8_t* lw_fixed_table(lw_type type) {
    static const int8_t iq4[LW_TABLE_ENTRIES] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                                 1,    13,   25,  38,  53,  69,  89,  113};
    static const int8_t e2m1[LW_TABLE_ENTRIES] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    if (lw_is_of_files(type)) return lw_grid_table(type);
    return type == LW_IQ4_NL || type == LW_IQ4_XS ? iq4 : type == LW_MXFP4 || type == LW_FP4 ? e2m1 : NULL;
}

size_t lw_open_row_bytes(lw_format f, size_t cols) {
    const lw_stored_row s = lw_stored_row_of(f, cols);
    return cols + s.bytes - s.scales;
}

uint64_t lw_coded_row_bytes(lw_type type, lw_format f, uint32_t cols) {
    const size_t inputs = lw_gguf_block_inputs(type);
    if (inputs != 0) return cols % inputs ? 0 : (uint64_t)cols / inputs * lw_gguf_block_bytes(type);
    return cols % LW_GROUP ? 0 : lw_stored_row_of(f, cols).bytes;
}

static void open_planes(lw_format f, size_t cols, const uint8_t* row, uint8_t* codes) {
    const uint8_t* high = row + lw_stored_row_of(f, cols).high;
    const size_t in_byte = 8 / f.low, highs = f.high != 0 ? 8 / f.high : 1;
    for (size_t k = 0; k < cols; ++k) {
        codes[k] = row[k / in_byte] >> (k % in_byte * f.low) & ((1 << f.low) - 1);
        if (f.high != 0)
            codes[k] |= (uint8_t)((high[k / highs] >> (k % highs * f.high) & ((1 << f.high) - 1)) << f.low);
    }
}

void lw_open_row(lw_type type, lw_format f, size_t cols, const uint8_t* row, uint8_t* open) {
    if (lw_is_of_files(type)) return lw_open_grid_row(type, f, cols, row, open);
    if (lw_gguf_block_inputs(type) != 0) return lw_open_gguf_row(type, f, cols, row, open);
    const lw_stored_row s = lw_stored_row_of(f, cols);
    open_planes(f, cols, row, open);
    memcpy(open + cols, row + s.scales, s.bytes - s.scales);
}

void lw_store_open_row(lw_format f, size_t cols, const uint8_t* open, uint8_t* row) {
    const lw_stored_row s = lw_stored_row_of(f, cols);
    const size_t in_byte = 8 / f.low, highs = f.high != 0 ? 8 / f.high : 1;
    memset(row, 0, s.scales);
    for (size_t k = 0; k < cols; ++k) {
        row[k / in_byte] |= (uint8_t)((open[k] & ((1 << f.low) - 1)) << k % in_byte * f.low);
        if (f.high != 0) row[s.high + k / highs] |= (uint8_t)(open[k] >> f.low << k % highs * f.high);
    }
    memcpy(row + s.scales, open + cols, s.bytes - s.scales);
}

void lw_open_zero_row(lw_format f, size_t cols, uint8_t* open) {
    memset(open, 0, lw_open_row_bytes(f, cols));
    if (f.scale == LW_SCALE_E8M0) memset(open + cols, 255, cols / LW_GROUP);
}

// f16 and row scales stay below this, so that their products with int8 stay below LW_SCALE_LIMIT.
static const float scale_limit = 0x1p96f;
enum { E8M0_LIMIT = 224, E4M3_LIMIT = 127 };  // 2^96; NaN, and what has a sign

static bool row_scale_is_valid(lw_format f, const uint8_t* bytes) {
    float scale;
    uint32_t bits;
    memcpy(&scale, bytes, 4);
    memcpy(&bits, bytes, 4);
    return fabsf(scale) < scale_limit && (bits & lw_row_scale_zeros(f)) == 0;
}

bool lw_open_row_is_valid(lw_format f, size_t cols, const uint8_t* open) {
    const lw_stored_row s = lw_stored_row_of(f, cols);
    const uint8_t* parts = open + cols - s.scales;
    if (f.scale == LW_SCALE_F16 && !lw_halves_are_finite(parts + s.scales, s.minimums - s.scales, 2, LW_HALF_EXPONENT))
        return false;
    for (size_t i = s.scales; f.scale == LW_SCALE_E8M0 && i < s.minimums; ++i)
        if (parts[i] >= E8M0_LIMIT) return false;
    for (size_t i = s.scales; f.scale == LW_SCALE_E4M3 && i < s.minimums; ++i)
        if (parts[i] >= E4M3_LIMIT) return false;
    if (f.minimum == LW_MINIMUM_F16 &&
        !lw_halves_are_finite(parts + s.minimums, s.selectors - s.minimums, 2, LW_HALF_EXPONENT))
        return false;
    if (f.super == LW_SUPER_ROW) return row_scale_is_valid(f, parts + s.supers);
    return lw_halves_are_finite(parts + s.supers, s.bytes - s.supers, 2, LW_HALF_EXPONENT);
}

// One input chunk of an output: `chunk` bytes as an integer.
ALWAYS_INLINE uint64_t load_chunk(const uint8_t* from, size_t chunk) {
    uint64_t value = 0;
    memcpy(&value, from, chunk);
    return value;
}

// Moves the 128 codes of one output and segment into a panel that is zero there (`put`), or out of it.
ALWAYS_INLINE void move_segment(lw_format f, lw_layout layout, uint8_t* segment, size_t output, uint8_t* codes,
                                const size_t chunk, const bool put) {
    const size_t parts = 8 / f.low, places = LW_GROUP / chunk / parts, group_bytes = LW_GROUP * LW_PANEL / parts;
    const uint64_t mask = 0x0101010101010101u * ((1u << f.low) - 1u);
    for (size_t g = 0; g < LW_SEGMENT_GROUPS; ++g)
        for (size_t place = 0; place < places; ++place) {
            uint8_t* at = segment + g * group_bytes + (place * LW_PANEL + output) * chunk;
            uint64_t word = put ? 0 : load_chunk(at, chunk);
            for (size_t part = 0; part < parts; ++part) {
                const size_t at_chunk = f.map == LW_MAP_TRELLIS ? place * parts + part : part * places + place;
                uint8_t* code = codes + g * LW_GROUP + at_chunk * chunk;
                const uint64_t piece = (put ? load_chunk(code, chunk) : word >> part * f.low) & mask;
                if (put)
                    word |= piece << part * f.low;
                else
                    memcpy(code, &piece, chunk);
            }
            if (put) memcpy(at, &word, chunk);
        }
    uint8_t* high = segment + LW_SEGMENT_GROUPS * group_bytes;
    for (size_t k = 0; f.high != 0 && k < LW_SEGMENT; ++k) {
        uint8_t* byte = high + lw_high_byte(f, layout, output, k);
        const size_t bit = lw_high_bit(f, layout, k);
        if (put)
            *byte |= (uint8_t)(codes[k] >> f.low << bit);
        else
            codes[k] |= (uint8_t)((*byte >> bit & ((1 << f.high) - 1)) << f.low);
    }
}

// Calls with the chunk and the bits as constants, so that divisions by them become shifts.
#define WITH_CONSTANTS(call)            \
    do {                                \
        lw_format k = f;                \
        if (f.low == 2) {               \
            k.low = 2;                  \
            if (chunk == 2) call(k, 2); \
            if (chunk == 4) call(k, 4); \
            if (chunk == 8) call(k, 8); \
        } else if (f.low == 4) {        \
            k.low = 4;                  \
            if (chunk == 2) call(k, 2); \
            if (chunk == 4) call(k, 4); \
            if (chunk == 8) call(k, 8); \
        } else {                        \
            call(k, chunk);             \
        }                               \
    } while (0)

ALWAYS_INLINE void move_codes(lw_format f, lw_layout layout, uint8_t* segment, size_t output, uint8_t* codes,
                              const bool put) {
    const size_t chunk = f.map == LW_MAP_TRELLIS ? 4 : layout.chunk;
#define MOVE(format, size) move_segment(format, layout, segment, output, codes, size, put)
    WITH_CONSTANTS(MOVE);
}

static void put_codes(lw_format f, lw_layout layout, uint8_t* segment, size_t output, uint8_t* codes) {
    move_codes(f, layout, segment, output, codes, true);
}

static void take_codes(lw_format f, lw_layout layout, const uint8_t* segment, size_t output, uint8_t* codes) {
    move_codes(f, layout, (uint8_t*)segment, output, codes, false);
}

// Moves `n` values of `bytes` bytes each, which a panel holds as [n][LW_PANEL].
ALWAYS_INLINE void move_column(uint8_t* panel, size_t output, uint8_t* values, size_t n, size_t bytes, const bool put) {
    for (size_t i = 0; i < n; ++i) {
        uint8_t* at = panel + (i * LW_PANEL + output) * bytes;
        memcpy(put ? at : values + i * bytes, put ? values + i * bytes : at, bytes);
    }
}

// Moves six-bit minimums: the low four bits are nibbles (lw_six_bit_at), the upper two bits lie above the group's
// scale. Call after the scales have been moved.
ALWAYS_INLINE void move_six_bits(const lw_coded_panel* p, uint8_t* panel, size_t output, uint8_t* scales,
                                 uint8_t* minimums, size_t n, const bool put) {
    for (size_t g = 0; g < n; ++g) {
        uint8_t* above = panel + p->segments + g / LW_SEGMENT_GROUPS * p->segment_bytes + p->scales +
                         g % LW_SEGMENT_GROUPS * LW_PANEL + output;
        uint8_t* nibbles = panel + p->minimums + lw_six_bit_at(g) + output;
        const unsigned shift = lw_six_bit_shift(g);
        if (put) {
            *above |= (uint8_t)(minimums[g] >> 4 << 6);
            *nibbles = (uint8_t)((*nibbles & (shift == 0 ? 0 : 15)) | (minimums[g] & 15) << shift);
        } else {
            minimums[g] = (uint8_t)((*nibbles >> shift & 15) | *above >> 6 << 4);
            scales[g] &= 63;
        }
    }
}

// Moves all parts of a row but the codes, into the panel (`put`) or out of it.
ALWAYS_INLINE void move_parts(const lw_matrix* w, lw_format f, uint8_t* panel, size_t output, uint8_t* open,
                              const bool put) {
    const size_t cols = w->cols, scale_bytes = lw_scale_bytes(f), per_segment = LW_SEGMENT / f.group;
    const lw_stored_row s = lw_stored_row_of(f, cols);
    const lw_coded_panel p = lw_coded_panel_of(f, cols);
    uint8_t* parts = open + cols - s.scales;
    const size_t scales = lw_ceil_div(cols, f.group);
    for (size_t first = 0; first < scales; first += per_segment) {
        uint8_t* at = panel + p.segments + first / per_segment * p.segment_bytes + p.scales;
        const size_t n = scales - first < per_segment ? scales - first : per_segment;
        move_column(at, output, parts + s.scales + first * scale_bytes, n, scale_bytes, put);
        for (size_t i = n; put && f.scale == LW_SCALE_E8M0 && i < per_segment; ++i) at[i * LW_PANEL + output] = 255;
    }
    const size_t minimum_bytes = f.minimum == LW_MINIMUM_F16 ? 2 : 1;
    if (f.minimum == LW_MINIMUM_SIX)
        move_six_bits(&p, panel, output, parts + s.scales, parts + s.minimums, scales, put);
    else
        move_column(panel + p.minimums, output, parts + s.minimums, (s.selectors - s.minimums) / minimum_bytes,
                    minimum_bytes, put);
    move_column(panel + p.selectors, output, parts + s.selectors, s.supers - s.selectors, 1, put);
    const size_t super_bytes = f.super == LW_SUPER_ROW ? sizeof(float) : 2;
    move_column(panel + p.supers, output, parts + s.supers, (s.super_minimums - s.supers) / super_bytes, super_bytes,
                put);
    move_column(panel + p.super_minimums, output, parts + s.super_minimums, (s.bytes - s.super_minimums) / 2, 2, put);
}

void lw_put_open_row(const lw_matrix* w, lw_format f, uint8_t* panel, size_t output, const uint8_t* open) {
    const lw_coded_panel p = lw_coded_panel_of(f, w->cols);
    for (size_t k = 0; k < w->cols; k += LW_SEGMENT) {
        uint8_t codes[LW_SEGMENT] = {0};
        memcpy(codes, open + k, w->cols - k < LW_SEGMENT ? w->cols - k : LW_SEGMENT);
        put_codes(f, w->layout, panel + p.segments + k / LW_SEGMENT * p.segment_bytes, output, codes);
    }
    move_parts(w, f, panel, output, (uint8_t*)open, true);
}

void lw_take_open_row(const lw_matrix* w, lw_format f, const uint8_t* panel, size_t output, uint8_t* open) {
    const lw_coded_panel p = lw_coded_panel_of(f, w->cols);
    for (size_t k = 0; k < w->cols; k += LW_SEGMENT) {
        uint8_t codes[LW_SEGMENT] = {0};
        take_codes(f, w->layout, panel + p.segments + k / LW_SEGMENT * p.segment_bytes, output, codes);
        memcpy(open + k, codes, w->cols - k < LW_SEGMENT ? w->cols - k : LW_SEGMENT);
    }
    move_parts(w, f, (uint8_t*)panel, output, open, false);
}

void lw_decode_output(const lw_matrix* w, lw_format f, const uint8_t* panel, size_t output, float* out) {
    const lw_coded_view view = lw_view_coded(f, w, panel);
    const lw_coded_panel p = view.p;
    for (size_t k = 0; k < w->cols; k += LW_SEGMENT) {
        uint8_t codes[LW_SEGMENT] = {0};
        take_codes(f, w->layout, panel + p.segments + k / LW_SEGMENT * p.segment_bytes, output, codes);
        const size_t n = w->cols - k < LW_SEGMENT ? w->cols - k : LW_SEGMENT, step = lw_step_inputs(f);
        const uint8_t selectors = f.selector != 0 ? panel[p.selectors + k / LW_SEGMENT * LW_PANEL + output] : 0;
        for (size_t first = 0; first < n; first += step) {
            const float scale = lw_unpack_scale(&view, output, k + first);
            const float minimum = lw_unpack_minimum(&view, output, k + first);
            const int selector = selectors >> (first / LW_GROUP * 2);
            for (size_t i = first; i < first + step; ++i) {
                const int before = f.map == LW_MAP_TRELLIS && i > 0 ? codes[lw_chain_before(i)] : 0;
                const int code = lw_map_code(f, w->table, codes[i], before, selector);
                out[k + i] = scale * (float)code - minimum;
            }
        }
    }
}

// The scale of input k of an open row.
static float open_scale(lw_format f, lw_stored_row s, const uint8_t* parts, size_t k) {
    if (f.scale == LW_SCALE_F16) return lw_load_half(parts + s.scales + k / f.group * 2);
    const float super = lw_load_half(parts + s.supers + k / LW_SUPER_BLOCK_INPUTS * 2) * lw_super_unit(f);
    return f.scale == LW_SCALE_I8 ? super * (float)(int8_t)parts[s.scales + k / f.group] : super;
}

// The weights of an open row: level times scale, as products multiply them.
static void weigh_row(lw_type type, lw_format f, size_t cols, const uint8_t* open, float* weights) {
    const lw_stored_row s = lw_stored_row_of(f, cols);
    const uint8_t* parts = open + cols - s.scales;
    const int8_t* table = lw_fixed_table(type);
    for (size_t k = 0; k < cols; ++k) {
        weights[k] = open_scale(f, s, parts, k) * (float)(table != NULL ? table[open[k]] : open[k] - 1);
    }
}

lw_status lw_file_weights(const lw_tensor* tensor, float* weights, uint64_t n) {
    if (tensor == NULL || tensor->data == NULL || weights == NULL)
        return lw_fail(LW_ERR_ARGUMENT, "lw_file_weights: tensor, its data and weights must not be NULL");
    lw_format f;
    if (!lw_is_of_files(tensor->type) || !lw_find_format(lw_held_type(tensor->type), &f))
        return lw_fail(LW_ERR_ARGUMENT, "lw_file_weights: type %s, must be one that only files have, such as IQ2_S",
                       lw_type_name(tensor->type));
    const uint64_t row_bytes = lw_grid_row_bytes(tensor->type, tensor->cols);
    if (row_bytes == 0 || tensor->n_bytes != row_bytes * tensor->rows || n != (uint64_t)tensor->rows * tensor->cols)
        return lw_fail(LW_ERR_FORMAT, "lw_file_weights: %llu bytes and %llu weights do not fit shape (%u, %u) of %s",
                       (unsigned long long)tensor->n_bytes, (unsigned long long)n, tensor->rows, tensor->cols,
                       lw_type_name(tensor->type));
    uint8_t* open = malloc(lw_open_row_bytes(f, tensor->cols));
    if (open == NULL) return lw_fail(LW_ERR_MEMORY, "lw_file_weights: no memory for a row");
    for (uint32_t row = 0; row < tensor->rows; ++row) {
        lw_open_row(tensor->type, f, tensor->cols, (const uint8_t*)tensor->data + row * row_bytes, open);
        weigh_row(tensor->type, f, tensor->cols, open, weights + (size_t)row * tensor->cols);
    }
    free(open);
    return LW_OK;
}
