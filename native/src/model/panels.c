#include "model/panels.h"

#include <stdio.h>
#include <string.h>

#include "kernels/layout.h"
#include "model/quantize.h"

#define ALWAYS_INLINE static inline __attribute__((always_inline))

// Every rule below is written once for both directions: it moves a piece between a file row and its place in the panel,
// and `pack` says in which direction. `chunk` and `pack` are constants where the functions are inlined.

ALWAYS_INLINE uint64_t load(const uint8_t* from, const size_t bytes) {
    uint64_t value = 0;
    memcpy(&value, from, bytes);
    return value;
}

ALWAYS_INLINE void move_piece(uint8_t* panel, uint8_t* row, const size_t bytes, uint64_t flip, const bool pack) {
    const uint64_t value = load(pack ? row : panel, bytes) ^ flip;
    memcpy(pack ? panel : row, &value, bytes);
}

// Moves `n` bytes of a row that lie in the panel chunk by chunk.
ALWAYS_INLINE void move_chunks(uint8_t* panel, size_t output, uint8_t* row, size_t n, uint64_t flip, const size_t chunk,
                               const bool pack) {
    for (size_t k = 0; k < n; k += chunk) move_piece(panel + k * LW_PANEL + output * chunk, row + k, chunk, flip, pack);
}

// Q4_0 and Q8_0: a block is an f16 scale, then `codes` bytes; a packed group is the bytes of all outputs, then their
// scales.
ALWAYS_INLINE void move_groups(const lw_matrix* w, uint8_t* panel, uint8_t* const rows[LW_PANEL], const size_t codes,
                               uint64_t flip, const size_t chunk, const bool pack) {
    for (size_t g = 0; g < w->cols / LW_GROUP; ++g, panel += LW_PANEL * (codes + 2))
        for (size_t output = 0; output < LW_PANEL; ++output) {
            uint8_t* block = rows[output] + g * (codes + 2);
            move_chunks(panel, output, block + 2, codes, flip, chunk, pack);
            move_piece(panel + LW_PANEL * codes + 2 * output, block, 2, 0, pack);
        }
}

enum { Q6_QL = 0, Q6_QH = 128, Q6_SCALES = 192, Q6_D = 208 };  // offsets of the parts of a Q6_K file block
#define NIBBLES 0x0F0F0F0F0F0F0F0Fu
#define PAIRS 0x0303030303030303u

// Group `g` of a file block, eight codes at a time. In each half of 128 inputs, byte l of ql holds inputs l (low
// nibble) and l + 64, and byte l % 32 of qh inputs l % 32 + {0, 32, 64, 96}; a packed group has nibbles k and k + 16
// in a byte and bit pairs k, k + 8, k + 16 and k + 24.
ALWAYS_INLINE void pack_q6_group(const uint8_t* block, size_t g, uint8_t low[16], uint8_t high[8]) {
    const uint8_t* ql = block + Q6_QL + g / 4 * 64 + g % 2 * 32;
    const uint8_t* qh = block + Q6_QH + g / 4 * 32;
    const size_t nibble = g % 4 / 2 * 4, pair = g % 4 * 2;
    for (size_t i = 0; i < 16; i += 8) {
        const uint64_t word = (load(ql + i, 8) >> nibble & NIBBLES) | (load(ql + 16 + i, 8) >> nibble & NIBBLES) << 4;
        memcpy(low + i, &word, 8);
    }
    uint64_t word = 0;
    for (size_t i = 0; i < 4; ++i) word |= (load(qh + 8 * i, 8) >> pair & PAIRS) << 2 * i;
    memcpy(high, &word, 8);
}

// Adds a group to a file block that was zero at first.
ALWAYS_INLINE void unpack_q6_group(uint8_t* block, size_t g, const uint8_t low[16], const uint8_t high[8]) {
    uint8_t* ql = block + Q6_QL + g / 4 * 64 + g % 2 * 32;
    uint8_t* qh = block + Q6_QH + g / 4 * 32;
    const size_t nibble = g % 4 / 2 * 4, pair = g % 4 * 2;
    for (size_t i = 0; i < 32; i += 8) {
        const uint64_t word = load(ql + i, 8) | (load(low + i % 16, 8) >> i / 16 * 4 & NIBBLES) << nibble;
        memcpy(ql + i, &word, 8);
    }
    for (size_t i = 0; i < 4; ++i) {
        const uint64_t word = load(qh + 8 * i, 8) | (load(high, 8) >> 2 * i & PAIRS) << pair;
        memcpy(qh + 8 * i, &word, 8);
    }
}

ALWAYS_INLINE void move_q6_block(uint8_t* panel, size_t output, uint8_t* block, const size_t chunk, const bool pack) {
    if (!pack) memset(block, 0, Q6_SCALES);
    for (size_t g = 0; g < LW_Q6_BLOCK / LW_GROUP; ++g) {
        uint8_t* segment = panel + g / LW_SEGMENT_GROUPS * LW_Q6_SUPER_BYTES;
        uint8_t* base = segment + g % LW_SEGMENT_GROUPS * LW_Q6_GROUP_BYTES;
        uint8_t low[16], high[8];
        if (pack) pack_q6_group(block, g, low, high);
        move_chunks(base, output, low, sizeof low, 0, chunk, pack);
        move_chunks(base + LW_Q6_LOW_BYTES, output, high, sizeof high, 0, chunk, pack);
        if (!pack) unpack_q6_group(block, g, low, high);
        uint8_t* scales = base + LW_Q6_LOW_BYTES + LW_Q6_HIGH_BYTES + output;
        move_piece(scales, block + Q6_SCALES + 2 * g, 1, 0, pack);
        move_piece(scales + LW_PANEL, block + Q6_SCALES + 2 * g + 1, 1, 0, pack);
        // Both segments of a block store its f16 scale.
        move_piece(segment + LW_SEGMENT_GROUPS * LW_Q6_GROUP_BYTES + 2 * output, block + Q6_D, 2, 0, pack);
    }
}

ALWAYS_INLINE void move_q6(const lw_matrix* w, uint8_t* panel, uint8_t* const rows[LW_PANEL], const size_t chunk,
                           const bool pack) {
    for (size_t b = 0; b < w->cols / LW_Q6_BLOCK; ++b, panel += LW_Q6_BLOCK / LW_SEGMENT * LW_Q6_SUPER_BYTES)
        for (size_t output = 0; output < LW_PANEL; ++output)
            move_q6_block(panel, output, rows[output] + b * LW_Q6_BLOCK_BYTES, chunk, pack);
}

ALWAYS_INLINE void move_floats(const lw_matrix* w, uint8_t* panel, uint8_t* const rows[LW_PANEL], const size_t bytes,
                               const bool pack) {
    for (size_t k = 0; k < w->cols; ++k)
        for (size_t output = 0; output < LW_PANEL; ++output)
            move_piece(panel + (k * LW_PANEL + output) * bytes, rows[output] + k * bytes, bytes, 0, pack);
}

ALWAYS_INLINE void move_codes(const lw_matrix* w, uint8_t* panel, uint8_t* const rows[LW_PANEL], const size_t chunk,
                              const bool pack) {
    if (w->type == LW_Q4_0)
        move_groups(w, panel, rows, LW_GROUP / 2, w->layout.q4_toggled ? 0x8888888888888888u : 0, chunk, pack);
    else if (w->type == LW_Q8_0)
        move_groups(w, panel, rows, LW_GROUP, w->layout.q8_biased ? 0x8080808080808080u : 0, chunk, pack);
    else
        move_q6(w, panel, rows, chunk, pack);
}

ALWAYS_INLINE void move_panel(const lw_matrix* w, uint8_t* panel, uint8_t* const rows[LW_PANEL], const bool pack) {
    if (w->type == LW_F32) return move_floats(w, panel, rows, 4, pack);
    if (w->type == LW_F16 || w->type == LW_BF16) return move_floats(w, panel, rows, 2, pack);
    if (w->layout.chunk == 2) return move_codes(w, panel, rows, 2, pack);
    if (w->layout.chunk == 4) return move_codes(w, panel, rows, 4, pack);
    move_codes(w, panel, rows, 8, pack);
}

void lw_panel_pack(const lw_matrix* w, uint8_t* panel, const uint8_t* const rows[LW_PANEL]) {
    move_panel(w, panel, (uint8_t* const*)rows, true);
}

void lw_panel_unpack(const lw_matrix* w, const uint8_t* panel, uint8_t* const rows[LW_PANEL]) {
    move_panel(w, (uint8_t*)panel, rows, false);
}

// A field that changes where weights lie needs a letter in the name, or files of two layouts would look alike.
_Static_assert(sizeof(lw_layout) == 5, "lw_layout_name and lw_layouts_agree must know every field that packing obeys");

void lw_layout_name(lw_layout layout, char name[LW_LAYOUT_NAME_BYTES]) {
    snprintf(name, LW_LAYOUT_NAME_BYTES, "c%u%s%s", layout.chunk, layout.q4_toggled ? "t" : "",
             layout.q8_biased ? "b" : "");
}

bool lw_layout_by_name(const char* name, lw_layout* out) {
    for (int level = 0; level < LW_LEVEL_COUNT; ++level) {
        char known[LW_LAYOUT_NAME_BYTES];
        lw_layout_name(lw_level_layouts[level], known);
        if (strcmp(known, name) == 0) {
            *out = lw_level_layouts[level];
            return true;
        }
    }
    return false;
}

bool lw_layouts_agree(lw_type type, lw_layout a, lw_layout b) {
    if (type == LW_F32 || type == LW_F16 || type == LW_BF16) return true;
    if (type == LW_Q4_0 && a.q4_toggled != b.q4_toggled) return false;
    if (type == LW_Q8_0 && a.q8_biased != b.q8_biased) return false;
    lw_format f;
    return a.chunk == b.chunk || (lw_find_format(type, &f) && f.map == LW_MAP_TRELLIS);
}
