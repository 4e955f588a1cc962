#include "model/gguf_blocks.h"

#include <string.h>

size_t lw_gguf_block_bytes(lw_type type) {
    switch (type) {
        case LW_Q4_1:
            return 20;
        case LW_Q5_0:
            return 22;
        case LW_Q5_1:
            return 24;
        case LW_IQ4_NL:
            return 18;
        case LW_MXFP4:
            return 17;
        case LW_Q2_K:
            return 84;
        case LW_Q3_K:
            return 110;
        case LW_Q4_K:
            return 144;
        case LW_Q5_K:
            return 176;
        case LW_IQ4_XS:
            return 136;
        default:
            return 0;
    }
}

size_t lw_gguf_block_inputs(lw_type type) {
    lw_format f;
    if (lw_gguf_block_bytes(type) == 0 || !lw_find_format(type, &f)) return 0;
    return f.super == LW_SUPER_BLOCK ? LW_SUPER_BLOCK_INPUTS : LW_GROUP;
}

// Addresses in an open row for the parts of one block.
typedef struct open_block {
    uint8_t *codes, *scales, *minimums, *supers, *super_minimums;
} open_block;

static uint32_t load32(const uint8_t* p) {
    uint32_t value;
    memcpy(&value, p, 4);
    return value;
}

// 16 bytes: input j is in the low nibble of byte j, input j + 16 in the high nibble.
static void open_nibbles(const uint8_t* bytes, uint8_t* codes) {
    for (size_t j = 0; j < 16; ++j) {
        codes[j] = bytes[j] & 15;
        codes[j + 16] = bytes[j] >> 4;
    }
}

static void open_fifth_bits(const uint8_t* bytes, uint8_t* codes) {
    const uint32_t bits = load32(bytes);
    for (size_t j = 0; j < 32; ++j) codes[j] |= (uint8_t)((bits >> j & 1) << 4);
}

// A GGUF block adds m; our format subtracts a minimum, so the sign bit flips.
static void open_minimum(const uint8_t* half, uint8_t* to) {
    to[0] = half[0];
    to[1] = half[1] ^ 0x80;
}

static void open_32(lw_type type, const uint8_t* block, const open_block* to) {
    if (type == LW_MXFP4) {
        to->scales[0] = block[0];
        open_nibbles(block + 1, to->codes);
        return;
    }
    memcpy(to->scales, block, 2);
    block += 2;
    if (type == LW_Q4_1 || type == LW_Q5_1) {
        open_minimum(block, to->minimums);
        block += 2;
    }
    const bool five = type == LW_Q5_0 || type == LW_Q5_1;
    open_nibbles(block + (five ? 4 : 0), to->codes);
    if (five) open_fifth_bits(block, to->codes);
}

// 256 codes of 2 bits: in each half of 128, byte l has inputs l, l + 32, l + 64 and l + 96.
static void open_pairs(const uint8_t* qs, uint8_t* codes) {
    for (size_t k = 0; k < 256; ++k) codes[k] = qs[k / 128 * 32 + k % 32] >> (k % 128 / 32 * 2) & 3;
}

static void open_q2_k(const uint8_t* block, const open_block* to) {
    memcpy(to->scales, block, 16);  // scale in the low nibble, minimum in the high nibble, as in an open row
    open_pairs(block + 16, to->codes);
    memcpy(to->supers, block + 80, 2);
    memcpy(to->super_minimums, block + 82, 2);
}

static void open_q3_k(const uint8_t* block, const open_block* to) {
    const uint8_t *hmask = block, *qs = block + 32, *scales = block + 96;
    open_pairs(qs, to->codes);
    for (size_t k = 0; k < 256; ++k) to->codes[k] |= (uint8_t)((hmask[k % 32] >> (k / 32) & 1) << 2);
    for (size_t j = 0; j < 16; ++j) {
        const int low = j < 8 ? scales[j] & 15 : scales[j - 8] >> 4, high = scales[8 + j % 4] >> (j / 4 * 2) & 3;
        to->scales[j] = (uint8_t)((low | high << 4) - 32);
    }
    memcpy(to->supers, block + 108, 2);
}

// Unpacks eight pairs of 6 bits from 12 bytes.
static void open_six_bits(const uint8_t* q, uint8_t* scales, uint8_t* minimums) {
    for (size_t j = 0; j < 4; ++j) {
        scales[j] = q[j] & 63;
        minimums[j] = q[j + 4] & 63;
        scales[j + 4] = (uint8_t)((q[j + 8] & 15) | q[j] >> 6 << 4);
        minimums[j + 4] = (uint8_t)(q[j + 8] >> 4 | q[j + 4] >> 6 << 4);
    }
}

// Q4_K and Q5_K: each 32 bytes have 64 inputs, the first 32 in the low nibbles.
static void open_q45_k(lw_type type, const uint8_t* block, const open_block* to) {
    memcpy(to->supers, block, 2);
    memcpy(to->super_minimums, block + 2, 2);
    open_six_bits(block + 4, to->scales, to->minimums);
    const uint8_t* qh = block + 16;
    const uint8_t* qs = type == LW_Q5_K ? qh + 32 : qh;
    for (size_t k = 0; k < 256; ++k) {
        to->codes[k] = qs[k / 64 * 32 + k % 32] >> (k % 64 / 32 * 4) & 15;
        if (type == LW_Q5_K) to->codes[k] |= (uint8_t)((qh[k % 32] >> (k / 32) & 1) << 4);
    }
}

static void open_iq4_xs(const uint8_t* block, const open_block* to) {
    memcpy(to->supers, block, 2);
    const uint32_t high = block[2] | (uint32_t)block[3] << 8;
    for (size_t j = 0; j < 8; ++j) {
        const uint32_t low = block[4 + j / 2] >> (j % 2 * 4) & 15u;
        to->scales[j] = (uint8_t)((low | (high >> 2 * j & 3u) << 4) - 32);
        open_nibbles(block + 8 + 16 * j, to->codes + 32 * j);
    }
}

void lw_open_gguf_row(lw_type type, lw_format f, size_t cols, const uint8_t* row, uint8_t* open) {
    const size_t inputs = lw_gguf_block_inputs(type), bytes = lw_gguf_block_bytes(type);
    const lw_stored_row s = lw_stored_row_of(f, cols);
    uint8_t* const parts = open + cols - s.scales;
    for (size_t k = 0; k < cols; k += inputs, row += bytes) {
        const open_block to = {.codes = open + k,
                               .scales = parts + s.scales + k / f.group * lw_scale_bytes(f),
                               .minimums = parts + s.minimums + k / LW_GROUP * (f.minimum == LW_MINIMUM_F16 ? 2 : 1),
                               .supers = parts + s.supers + k / LW_SUPER_BLOCK_INPUTS * 2,
                               .super_minimums = parts + s.super_minimums + k / LW_SUPER_BLOCK_INPUTS * 2};
        if (type == LW_Q2_K)
            open_q2_k(row, &to);
        else if (type == LW_Q3_K)
            open_q3_k(row, &to);
        else if (type == LW_Q4_K || type == LW_Q5_K)
            open_q45_k(type, row, &to);
        else if (type == LW_IQ4_XS)
            open_iq4_xs(row, &to);
        else
            open_32(type, row, &to);
    }
}
