#include "model/gguf_grids.h"

#include <string.h>

#include "lanewise.h"

#define GRID(name, n, ...) static const uint16_t name##_points[n] = {__VA_ARGS__};
#include "model/grids.inc"
#undef GRID

enum { BLOCK = LW_SUPER_BLOCK_INPUTS };

lw_type lw_held_type(lw_type type) {
    switch (type) {
        case LW_IQ1_S:
        case LW_IQ1_M:
        case LW_IQ2_XXS:
        case LW_IQ2_XS:
        case LW_IQ2_S:
            return LW_GRID3;
        case LW_IQ3_XXS:
        case LW_IQ3_S:
            return LW_GRID4;
        case LW_TQ1_0:
        case LW_TQ2_0:
            return LW_Q2_K;
        case LW_Q1_0:
            return LW_Q2_G128;
        case LW_Q2_0:
            return LW_Q2_G64;
        default:
            return type;
    }
}

bool lw_is_of_files(lw_type type) { return lw_held_type(type) != type; }

static size_t block_bytes(lw_type type) {
    switch (type) {
        case LW_IQ1_S:
            return 50;
        case LW_IQ1_M:
            return 56;
        case LW_IQ2_XXS:
            return 66;
        case LW_IQ2_XS:
            return 74;
        case LW_IQ2_S:
            return 82;
        case LW_IQ3_XXS:
            return 98;
        case LW_IQ3_S:
            return 110;
        case LW_TQ1_0:
            return 54;
        case LW_Q1_0:
        case LW_Q2_0:
            return 18;
        default:
            return 66;  // TQ2_0
    }
}

static size_t block_inputs(lw_type type) { return type == LW_Q1_0 ? 128 : type == LW_Q2_0 ? 64 : BLOCK; }

uint64_t lw_grid_row_bytes(lw_type type, uint32_t cols) {
    const size_t inputs = block_inputs(type);
    return cols % inputs ? 0 : (uint64_t)cols / inputs * block_bytes(type);
}

// Tables of codes. IQ2: magnitude, and sign << 2. IQ3: magnitude, and sign << 3. IQ1: weight + 1, and 4 if the delta is
// negative.
const int8_t* lw_grid_table(lw_type type) {
    static const int8_t iq1[LW_TABLE_ENTRIES] = {-7, 1, 9, 0, -9, -1, 7, 0};
    static const int8_t iq2[LW_TABLE_ENTRIES] = {8, 25, 43, 0, -8, -25, -43, 0};
    static const int8_t iq3_xxs[LW_TABLE_ENTRIES] = {8,  24,  40,  56,  72,  88,  104,  124,
                                                     -8, -24, -40, -56, -72, -88, -104, -124};
    static const int8_t iq3_s[LW_TABLE_ENTRIES] = {8,  24,  40,  56,  72,  88,  104,  120,
                                                   -8, -24, -40, -56, -72, -88, -104, -120};
    switch (type) {
        case LW_IQ1_S:
        case LW_IQ1_M:
            return iq1;
        case LW_IQ3_XXS:
            return iq3_xxs;
        case LW_IQ3_S:
            return iq3_s;
        default:
            return lw_held_type(type) == LW_GRID3 ? iq2 : NULL;
    }
}

// Addresses in an open row for the parts of one block.
typedef struct open_block {
    uint8_t *codes, *scales, *super, *super_minimum;
} open_block;

static unsigned load16(const uint8_t* p) { return p[0] | (unsigned)p[1] << 8; }

static uint32_t load32(const uint8_t* p) { return load16(p) | (uint32_t)load16(p + 2) << 16; }

// The byte 2 s + 1 of scale bits s.
static uint8_t odd(unsigned s) { return (uint8_t)(2 * s + 1); }

// Eight codes, each two bits of a grid point and a sign.
static void open_eight(unsigned point, unsigned signs, uint8_t* codes) {
    for (size_t i = 0; i < 8; ++i) codes[i] = (uint8_t)((point >> 2 * i & 3) | (signs >> i & 1) << 2);
}

// Four codes, each three bits of a grid point and a sign.
static void open_four(unsigned point, unsigned signs, uint8_t* codes) {
    for (size_t i = 0; i < 4; ++i) codes[i] = (uint8_t)((point >> 3 * i & 7) | (signs >> i & 1) << 3);
}

// Seven sign bits and an eighth, which makes the number of negative weights even.
static unsigned eight_signs(unsigned seven) { return seven | (unsigned)(__builtin_popcount(seven) & 1) << 7; }

static void open_iq2_xxs(const uint8_t* block, open_block to) {
    memcpy(to.super, block, 2);
    for (size_t g = 0; g < 8; ++g) {
        const uint8_t* points = block + 2 + 8 * g;
        const uint32_t rest = load32(points + 4);
        for (size_t i = 0; i < 4; ++i)
            open_eight(iq2_xxs_points[points[i]], eight_signs(rest >> 7 * i & 127), to.codes + 32 * g + 8 * i);
        to.scales[2 * g] = to.scales[2 * g + 1] = odd(rest >> 28);
    }
}

static void open_iq2_xs(const uint8_t* block, open_block to) {
    memcpy(to.super, block, 2);
    for (size_t i = 0; i < 32; ++i) {
        const unsigned both = load16(block + 2 + 2 * i);
        open_eight(iq2_xs_points[both & 511], eight_signs(both >> 9), to.codes + 8 * i);
    }
    for (size_t j = 0; j < 16; ++j) to.scales[j] = odd(block[66 + j / 2] >> j % 2 * 4 & 15);
}

static void open_iq2_s(const uint8_t* block, open_block to) {
    const uint8_t *low = block + 2, *signs = low + 32, *high = signs + 32, *scales = high + 8;
    memcpy(to.super, block, 2);
    for (size_t i = 0; i < 32; ++i) {
        const unsigned point = low[i] | (high[i / 4] >> i % 4 * 2 & 3u) << 8;
        open_eight(iq2_s_points[point], signs[i], to.codes + 8 * i);
    }
    for (size_t j = 0; j < 16; ++j) to.scales[j] = odd(scales[j / 2] >> j % 2 * 4 & 15);
}

static void open_iq3_xxs(const uint8_t* block, open_block to) {
    memcpy(to.super, block, 2);
    for (size_t g = 0; g < 8; ++g) {
        const uint8_t* points = block + 2 + 8 * g;
        const uint32_t rest = load32(block + 66 + 4 * g);
        for (size_t i = 0; i < 8; ++i) {
            const unsigned signs = eight_signs(rest >> i / 2 * 7 & 127);
            open_four(iq3_xxs_points[points[i]], signs >> i % 2 * 4, to.codes + 32 * g + 4 * i);
        }
        to.scales[g] = odd(rest >> 28);
    }
}

static void open_iq3_s(const uint8_t* block, open_block to) {
    const uint8_t *low = block + 2, *high = low + 64, *signs = high + 8, *scales = signs + 32;
    memcpy(to.super, block, 2);
    for (size_t i = 0; i < 64; ++i) {
        const unsigned point = low[i] | (high[i / 8] >> i % 8 & 1u) << 8;
        open_four(iq3_s_points[point], signs[i / 2] >> i % 2 * 4, to.codes + 4 * i);
    }
    for (size_t g = 0; g < 8; ++g) to.scales[g] = odd(scales[g / 2] >> g % 2 * 4 & 15);
}

// Eight weights of -1, 0 or 1, all plus 1/8 or all minus 1/8.
static void open_ternary_eight(unsigned point, unsigned is_below, uint8_t* codes) {
    for (size_t i = 0; i < 8; ++i) codes[i] = (uint8_t)((point >> 2 * i & 3) | is_below << 2);
}

static void open_iq1_s(const uint8_t* block, open_block to) {
    memcpy(to.super, block, 2);
    for (size_t i = 0; i < 32; ++i) {
        const unsigned rest = load16(block + 34 + i / 4 * 2), point = block[2 + i] | (rest >> i % 4 * 3 & 7) << 8;
        open_ternary_eight(iq1_points[point], rest >> 15, to.codes + 8 * i);
        to.scales[i / 2] = odd(rest >> 12 & 7);
    }
}

// The super scale is in the top four bits of the four words of scales.
static void open_iq1_m(const uint8_t* block, open_block to) {
    const uint8_t *low = block, *high = low + 32, *scales = high + 16;
    unsigned super = 0;
    for (size_t i = 0; i < 4; ++i) super |= load16(scales + 2 * i) >> 12 << 4 * i;
    to.super[0] = (uint8_t)super;
    to.super[1] = (uint8_t)(super >> 8);
    for (size_t i = 0; i < 32; ++i) {
        const unsigned rest = high[i / 2] >> i % 2 * 4, point = low[i] | (rest & 7) << 8;
        open_ternary_eight(iq1_points[point], rest >> 3 & 1, to.codes + 8 * i);
    }
    for (size_t j = 0; j < 16; ++j) to.scales[j] = odd(load16(scales + j / 4 * 2) >> j % 4 * 3 & 7);
}

// Ternary weights are codes of Q2_K whose scale and minimum are 1.
static void finish_ternary(const uint8_t* half, open_block to) {
    memset(to.scales, 0x11, BLOCK / 16);
    memcpy(to.super, half, 2);
    memcpy(to.super_minimum, half, 2);
}

// Digit n of a byte that holds a fraction in base three, times 256 and rounded up.
static uint8_t ternary_digit(uint8_t byte, size_t n) {
    static const uint8_t powers[] = {1, 3, 9, 27, 81};
    return (uint8_t)((uint8_t)(byte * powers[n]) * 3u >> 8);
}

static void open_tq1_0(const uint8_t* block, open_block to) {
    for (size_t k = 0; k < 160; ++k) to.codes[k] = ternary_digit(block[k % 32], k / 32);
    for (size_t k = 0; k < 80; ++k) to.codes[160 + k] = ternary_digit(block[32 + k % 16], k / 16);
    for (size_t k = 0; k < 16; ++k) to.codes[240 + k] = ternary_digit(block[48 + k % 4], k / 4);
    finish_ternary(block + 52, to);
}

static void open_tq2_0(const uint8_t* block, open_block to) {
    for (size_t k = 0; k < BLOCK; ++k) to.codes[k] = block[k / 128 * 32 + k % 32] >> (k % 128 / 32 * 2) & 3;
    finish_ternary(block + 64, to);
}

// Bits 0 and 1 are the weights -1 and 1, codes 0 and 2.
static void open_q1_0(const uint8_t* block, open_block to) {
    memcpy(to.scales, block, 2);
    for (size_t k = 0; k < 128; ++k) to.codes[k] = (uint8_t)((block[2 + k / 8] >> k % 8 & 1) << 1);
}

static void open_q2_0(const uint8_t* block, open_block to) {
    memcpy(to.scales, block, 2);
    for (size_t k = 0; k < 64; ++k) to.codes[k] = block[2 + k / 4] >> k % 4 * 2 & 3;
}

void lw_open_grid_row(lw_type type, lw_format f, size_t cols, const uint8_t* row, uint8_t* open) {
    const lw_stored_row s = lw_stored_row_of(f, cols);
    uint8_t* const parts = open + cols - s.scales;
    for (size_t k = 0; k < cols; k += block_inputs(type), row += block_bytes(type)) {
        const open_block to = {.codes = open + k,
                               .scales = parts + s.scales + k / f.group * lw_scale_bytes(f),
                               .super = parts + s.supers + k / BLOCK * 2,
                               .super_minimum = parts + s.super_minimums + k / BLOCK * 2};
        switch (type) {
            case LW_IQ1_S:
                open_iq1_s(row, to);
                break;
            case LW_IQ1_M:
                open_iq1_m(row, to);
                break;
            case LW_IQ2_XXS:
                open_iq2_xxs(row, to);
                break;
            case LW_IQ2_XS:
                open_iq2_xs(row, to);
                break;
            case LW_IQ2_S:
                open_iq2_s(row, to);
                break;
            case LW_IQ3_XXS:
                open_iq3_xxs(row, to);
                break;
            case LW_IQ3_S:
                open_iq3_s(row, to);
                break;
            case LW_TQ1_0:
                open_tq1_0(row, to);
                break;
            case LW_Q1_0:
                open_q1_0(row, to);
                break;
            case LW_Q2_0:
                open_q2_0(row, to);
                break;
            default:
                open_tq2_0(row, to);
        }
    }
}
