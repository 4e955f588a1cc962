// Codes of table, trellis and float types with AVX-512-VBMI: vpermb looks up 64 entries and ignores the upper two bits
// of its indices. So nibbles need no mask if a table of 16 is repeated four times. Two more index bits can choose a
// codebook, or hold a neighbour's code or a float's mantissa.
#ifndef LW_KERNELS_AVX512VBMI_LOOKUP_H
#define LW_KERNELS_AVX512VBMI_LOOKUP_H

#include "kernels/avx512vnni/matmul_coded.h"

// Bytes 0, 1, .. 63: the macro `of` applied to each byte's number.
#define LW_BYTES_4(of, k) of(k), of((k) + 1), of((k) + 2), of((k) + 3)
#define LW_BYTES_16(of, k) LW_BYTES_4(of, k), LW_BYTES_4(of, (k) + 4), LW_BYTES_4(of, (k) + 8), LW_BYTES_4(of, (k) + 12)
#define LW_BYTES_64(of) {LW_BYTES_16(of, 0), LW_BYTES_16(of, 16), LW_BYTES_16(of, 32), LW_BYTES_16(of, 48)}

typedef struct lookup_bytes {
    _Alignas(64) uint8_t at[64];
} lookup_bytes;

LW_INLINE __m512i lookup(const lookup_bytes* of) { return _mm512_load_si512(of->at); }

// Bits of a where `mask` is set, bits of b elsewhere.
LW_INLINE __m512i choose_bits(__m512i mask, __m512i a, __m512i b) {
    return _mm512_ternarylogic_epi32(a, mask, b, 0xE2);
}

// 128 plus one part of the float with sign and exponent in the lower four bits of k and the mantissa above.
#define LW_HIGH_SIZE(e, m) ((e) < 3 ? (e) : (4 + (m)) << ((e) < 3 ? 0 : (e) - 3))
#define LW_LOW_SIZE(e, m) ((e) < 2 ? (m) : (e) == 2 ? 2 * (m) : 0)
#define LW_SIGNED(k, size) ((k) & 8 ? 128 - (size) : 128 + (size))
#define LW_HIGH_PART(k) LW_SIGNED(k, LW_HIGH_SIZE((k) & 7, (k) >> 4))
#define LW_LOW_PART(k) LW_SIGNED(k, LW_LOW_SIZE((k) & 7, (k) >> 4))
static const lookup_bytes high_parts = {LW_BYTES_64(LW_HIGH_PART)}, low_parts = {LW_BYTES_64(LW_LOW_PART)};

// Nibbles of chunk c of group i; the upper half of each byte holds another chunk's nibble.
LW_INLINE __m512i nibbles(const lw_format f, const weight_segment* w, int i, int c, int v) {
    const int chunks = f.low;  // chunks of bytes in a group
    const __m512i two = _mm512_load_si512(w->data + (i * chunks + c % chunks) * CHUNK_BYTES + v * 64);
    return c < 4 ? two : _mm512_srli_epi16(two, 4);
}

LW_INLINE __m512i lookup_float(const lw_format f, const weight_segment* w, int i, int c, int v) {
    const __m512i mantissa = move_bits(high_plane(f, w, i, c, v), high_bit(f, i, c), 4);
    const __m512i index = choose_bits(_mm512_set1_epi8(15), nibbles(f, w, i, c, v), mantissa);
    return _mm512_permutexvar_epi8(index, lookup(f.part == LW_FLOAT_HIGH ? &high_parts : &low_parts));
}

// Like trellis_entries, but the upper half of each byte holds a neighbour's bits.
LW_INLINE __m512i lookup_trellis(const weight_segment* w, int i, int c, int v) {
    const int half = c / 4, part = c % 4;
    __m512i two = trellis_half(w, i, half, v);
    if (part % 2 == 0) {
        __m512i before = _mm512_setzero_si512();
        if (half == 1) before = trellis_half(w, i, 0, v);
        if (half == 0 && i > 0) before = trellis_half(w, i - 1, 1, v);
        two = _mm512_shldi_epi32(two, before, 2);
    }
    return _mm512_permutexvar_epi8(part < 2 ? two : _mm512_srli_epi16(two, 4), w->table);
}

// A nibble holds two codes of two bits. Two tables of 64 entries give the first and the second code; the index is the
// nibble with the codebook above. Codes of three bits are looked up with their third bit and then the codebook above.
#define LW_FIRST_OF_2(k) ((k) >> 4 << 2 | ((k) & 3))
#define LW_SECOND_OF_2(k) ((k) >> 4 << 2 | ((k) >> 2 & 3))
static const lookup_bytes first_of_two = {LW_BYTES_64(LW_FIRST_OF_2)}, second_of_two = {LW_BYTES_64(LW_SECOND_OF_2)};

LW_INLINE __m512i lookup_pairs(const lw_format f, const weight_segment* w, int i, int c, int v) {
    const __m512i codebooks = f.selector == 0 ? _mm512_setzero_si512() : all_selectors(w, f.high == 0 ? 4 : 5, i, v);
    __m512i above = codebooks;
    if (f.high != 0)
        above =
            choose_bits(_mm512_set1_epi8(16), move_bits(high_plane(f, w, i, c, v), high_bit(f, i, c), 4), codebooks);
    const __m512i index = choose_bits(_mm512_set1_epi8(15), nibbles(f, w, i, c, v), above);
    const __m512i entries = lookup(c / 2 % 2 == 0 ? &first_of_two : &second_of_two);
    return _mm512_permutexvar_epi8(index, _mm512_permutexvar_epi8(entries, w->table));
}

// coded_codes for types that look their codes up.
LW_INLINE __m512i lookup_codes(const lw_format f, const weight_segment* w, int i, int c, int v) {
    if (f.map == LW_MAP_FLOAT) return lookup_float(f, w, i, c, v);
    if (f.map == LW_MAP_TRELLIS) return lookup_trellis(w, i, c, v);
    if (f.low == 2) return lookup_pairs(f, w, i, c, v);
    return _mm512_permutexvar_epi8(nibbles(f, w, i, c, v), w->table);
}

#endif
