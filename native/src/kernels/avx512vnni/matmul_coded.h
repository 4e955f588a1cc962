// Products of the coded types (kernels/formats.inc): a type's format is a constant here, so each type gets its own
// code.
#ifndef LW_KERNELS_AVX512VNNI_MATMUL_CODED_H
#define LW_KERNELS_AVX512VNNI_MATMUL_CODED_H

#include "kernels/avx512vnni/matmul_panel.h"

// The first-plane bits of chunk c of group i, or-ed with `above`.
LW_INLINE __m512i low_bits(const lw_format f, const weight_segment* w, int i, int c, int v, __m512i above) {
    const int in_byte = 8 / f.low,
              chunks = 8 / in_byte;  // codes in a byte of the first plane; chunks of bytes in a group
    const __m512i* low = (const __m512i*)(w->data + (i * chunks + c % chunks) * CHUNK_BYTES + v * 64);
    __m512i bits = _mm512_load_si512(low);
    const int shift = c / chunks * f.low;
    if (shift > 0) bits = _mm512_srli_epi16(bits, (unsigned)shift);
    const __m512i mask = _mm512_set1_epi8((char)((1 << f.low) - 1));
    return f.low < 8 ? _mm512_ternarylogic_epi32(bits, mask, above, 0xEA) : bits;  // (bits & mask) | above
}

// Moves bit `from` of each byte to bit `to`; other bits may come from the neighbouring byte.
LW_INLINE __m512i move_bits(__m512i bytes, const int from, const int to) {
    return from < to   ? _mm512_slli_epi16(bytes, (unsigned)(to - from))
           : from > to ? _mm512_srli_epi16(bytes, (unsigned)(from - to))
                       : bytes;
}

// Bytes of the second plane that hold the bits of chunk c of group i, from bit high_bit on.
LW_INLINE __m512i high_plane(const lw_format f, const weight_segment* w, int i, int c, int v) {
    const int place = (i * 8 + c) % (4 * f.high);
    return _mm512_load_si512(w->data + LW_SEGMENT * LW_PANEL / 8 * f.low + place * CHUNK_BYTES + v * 64);
}

LW_INLINE int high_bit(const lw_format f, int i, int c) { return (i * 8 + c) / (4 * f.high) * f.high; }

LW_INLINE __m512i coded_bits(const lw_format f, const weight_segment* w, int i, int c, int v, __m512i above) {
    const __m512i bits = low_bits(f, w, i, c, v, above);
    if (f.high == 0) return bits;
    const __m512i high = move_bits(high_plane(f, w, i, c, v), high_bit(f, i, c), f.low);
    return _mm512_ternarylogic_epi32(bits, high, _mm512_set1_epi8((char)(1 << f.low)), 0xF8);  // bits | (high & mask)
}

// The selectors of all groups of 32 inputs, a byte for each code; the selector of group i begins at bit `to`.
LW_INLINE __m512i all_selectors(const weight_segment* w, const int to, int i, int v) {
    const __m512i four_times =
        _mm512_set_epi32(0x0F0F0F0F, 0x0E0E0E0E, 0x0D0D0D0D, 0x0C0C0C0C, 0x0B0B0B0B, 0x0A0A0A0A, 0x09090909, 0x08080808,
                         0x07070707, 0x06060606, 0x05050505, 0x04040404, 0x03030303, 0x02020202, 0x01010101, 0);
    const __m128i outputs = _mm_loadu_si128((const __m128i*)(w->selectors + v * 16));
    __m512i selectors = _mm512_shuffle_epi8(_mm512_broadcast_i32x4(outputs), four_times);
    return move_bits(selectors, 2 * i, to);
}

// The selectors of group i, a byte for each code, in the bits above the codes.
LW_INLINE __m512i coded_selectors(const lw_format f, const weight_segment* w, int i, int v) {
    const int to = f.low + f.high;
    return _mm512_and_si512(all_selectors(w, to, i, v), _mm512_set1_epi8((char)(((1 << f.selector) - 1) << to)));
}

// Repeats 16 bytes over a vector.
LW_INLINE __m512i float_table(uint64_t positive, uint64_t negative) {
    return _mm512_broadcast_i32x4(_mm_set_epi64x((long long)negative, (long long)positive));
}

// One part of a float (lw_float_part), plus 128. Four bits choose its value for mantissa 0; each mantissa bit adds a
// step that the same four bits choose.
LW_INLINE __m512i float_codes(const lw_format f, const weight_segment* w, int i, int c, int v) {
    const bool high = f.part == LW_FLOAT_HIGH;  // bytes of the constants: exponents 0 to 7 from the right
    const __m512i bits = low_bits(f, w, i, c, v, _mm512_setzero_si512()),
                  step[2] = {
                      high ? float_table(0x1008040201000000, 0xF0F8FCFEFF000000) : float_table(0x020101, 0xFEFFFF),
                      high ? float_table(0x2010080402000000, 0xE0F0F8FCFE000000) : float_table(0x040202, 0xFCFEFE)};
    const __m512i base = float_table(0xC0A0908884828180, 0x406070787C7E7F80);
    const __m512i mantissa = high_plane(f, w, i, c, v);
    const int first = high_bit(f, i, c);
    __m512i code = high ? _mm512_shuffle_epi8(base, bits) : _mm512_set1_epi8(-128);
#pragma GCC unroll 2
    for (int bit = 0; bit < f.high; ++bit) {
        const __mmask64 set = _mm512_test_epi8_mask(mantissa, _mm512_set1_epi8((char)(1 << (first + bit))));
        code = _mm512_mask_add_epi8(code, set, code, _mm512_shuffle_epi8(step[bit], bits));
    }
    return code;
}

// The codes of inputs 16 half .. 16 half + 15 of group i of a trellis: for each output 32 bits in the chain's order.
LW_INLINE __m512i trellis_half(const weight_segment* w, int i, int half, int v) {
    return _mm512_load_si512(w->data + (i * 2 + half) * CHUNK_BYTES + v * 64);
}

// trellis_half, moved one code further in the chain: below each code is the code before it.
LW_INLINE __m512i trellis_later(const weight_segment* w, int i, int half, int v) {
    const __m512i later = _mm512_slli_epi32(trellis_half(w, i, half, v), 2);
    if (half == 0 && i == 0) return later;
    const __m512i before = half == 1 ? trellis_half(w, i, 0, v) : trellis_half(w, i - 1, 1, v);
    return _mm512_or_si512(later, _mm512_srli_epi32(before, 30));
}

// Table indices of chunk c: code << 2 | code before. The two are neighbours in either trellis_half or trellis_later.
LW_INLINE __m512i trellis_entries(const weight_segment* w, int i, int c, int v) {
    const int half = c / 4, part = c % 4;
    const __m512i two = part % 2 == 0 ? trellis_later(w, i, half, v) : trellis_half(w, i, half, v);
    return _mm512_and_si512(part < 2 ? two : _mm512_srli_epi16(two, 4), _mm512_set1_epi8(15));
}

LW_INLINE __m512i coded_codes(const lw_format f, const weight_segment* w, int i, int c, int v) {
    if (f.map == LW_MAP_FLOAT) return float_codes(f, w, i, c, v);
    if (f.map == LW_MAP_TRELLIS) return _mm512_shuffle_epi8(w->table, trellis_entries(w, i, c, v));
    const __m512i bits =
        coded_bits(f, w, i, c, v, f.selector != 0 ? coded_selectors(f, w, i, v) : _mm512_setzero_si512());
    return f.map == LW_MAP_OFFSET ? bits : _mm512_shuffle_epi8(w->table, bits);
}

LW_INLINE __m512 coded_scale(const lw_format f, const weight_segment* w, size_t g, int v) {
    const size_t scales = LW_SEGMENT * LW_PANEL / 8 * (size_t)(f.low + f.high);
    const uint8_t* at = w->data + scales + (g * LW_PANEL + (size_t)v * 16) * lw_scale_bytes(f);
    if (f.scale == LW_SCALE_F16) return load_halves(at);
    if (f.scale == LW_SCALE_ONE) {
        const __m512 super = _mm512_loadu_ps((const float*)w->supers + v * 16);
        return f.part == LW_FLOAT_HIGH ? _mm512_mul_ps(super, _mm512_set1_ps(4)) : super;
    }
    const __m128i bytes = _mm_loadu_si128((const __m128i*)at);
    if (f.scale == LW_SCALE_E8M0) {  // half of 2^(byte - 127); subnormal if the byte is 0 or 1
        const __m512i e = _mm512_cvtepu8_epi32(bytes);
        const __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
        const __m512i small = _mm512_sllv_epi32(_mm512_set1_epi32(0x00200000), e);
        const __m512i value = _mm512_mask_mov_epi32(normal, _mm512_cmplt_epi32_mask(e, _mm512_set1_epi32(2)), small);
        return _mm512_castsi512_ps(_mm512_maskz_mov_epi32(_mm512_cmpneq_epi32_mask(e, _mm512_set1_epi32(255)), value));
    }
    if (f.scale == LW_SCALE_E4M3) {  // as f16 they are 2^8 smaller
        const __m512 halves = _mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16(bytes), 7));
        const __m512 super = _mm512_loadu_ps((const float*)w->supers + v * 16);
        return _mm512_mul_ps(super, _mm512_mul_ps(halves, _mm512_set1_ps(256)));
    }
    const __m512i small = f.scale == LW_SCALE_I8
                              ? _mm512_cvtepi8_epi32(bytes)
                              : _mm512_cvtepu8_epi32(_mm_and_si128(bytes, _mm_set1_epi8((char)lw_scale_mask(f))));
    __m512 super =
        f.super == LW_SUPER_ROW ? _mm512_loadu_ps((const float*)w->supers + v * 16) : load_halves(w->supers + v * 32);
    if (f.super == LW_SUPER_EIGHTH) super = _mm512_mul_ps(super, _mm512_set1_ps(lw_super_unit(f)));
    return _mm512_mul_ps(super, _mm512_cvtepi32_ps(small));
}

// log2 of the offset of the unsigned codes: a table's entries are 128 too large.
LW_INLINE int coded_shift(const lw_format f) {
    if (f.map != LW_MAP_OFFSET) return 7;
    return f.offset == 0 ? -1 : f.offset == 1 ? 0 : f.offset == 4 ? 2 : f.offset == 8 ? 3 : f.offset == 16 ? 4 : 7;
}

LW_INLINE weight_type coded_type(const lw_format f, __m512i (*codes)(const weight_segment*, int, int, int),
                                 __m512 (*scale)(const weight_segment*, size_t, int)) {
    const size_t segment_bytes = lw_coded_panel_of(f, 0).segment_bytes;
    return (weight_type){.chunks = f.group / 4,
                         .second = f.part == LW_FLOAT_LOW,
                         .shift = coded_shift(f),
                         .segment_bytes = segment_bytes,
                         .format = f,
                         .codes = codes,
                         .scale = scale};
}

// Functions that read a type's codes and scales, in both passes if it has two. `codes` is coded_codes or the function
// that replaces it on a level.
#define LW_CODED_ACCESS(name, codes)                                               \
    LW_INLINE __m512i codes_##name(const weight_segment* w, int i, int c, int v) { \
        return codes(lw_format_##name, w, i, c, v);                                \
    }                                                                              \
    LW_INLINE __m512 scale_##name(const weight_segment* w, size_t g, int v) {      \
        return coded_scale(lw_format_##name, w, g, v);                             \
    }

#define LW_FLOAT_ACCESS(name, codes)                                                     \
    LW_INLINE __m512i high_##name(const weight_segment* w, int i, int c, int v) {        \
        return codes(lw_pass(lw_format_##name, 0), w, i, c, v);                          \
    }                                                                                    \
    LW_INLINE __m512i low_##name(const weight_segment* w, int i, int c, int v) {         \
        return codes(lw_pass(lw_format_##name, 1), w, i, c, v);                          \
    }                                                                                    \
    LW_INLINE __m512 high_scale_##name(const weight_segment* w, size_t g, int v) {       \
        return coded_scale(lw_pass(lw_format_##name, 0), w, g, v);                       \
    }                                                                                    \
    LW_INLINE __m512 low_scale_##name(const weight_segment* w, size_t g, int v) {        \
        return coded_scale(lw_pass(lw_format_##name, 1), w, g, v);                       \
    }                                                                                    \
    LW_INLINE weight_type high_type_##name(void) {                                       \
        return coded_type(lw_pass(lw_format_##name, 0), high_##name, high_scale_##name); \
    }                                                                                    \
    LW_INLINE weight_type low_type_##name(void) {                                        \
        return coded_type(lw_pass(lw_format_##name, 1), low_##name, low_scale_##name);   \
    }

// Up to so many rows tiles decode the weights in registers. (Zen 4, 24 and 32 rows: 2 to 8 % faster for codes of one
// plane, slower for two planes; at 64 rows the same.)
LW_INLINE size_t coded_rows(const lw_format f) {
    return f.high == 0 && lw_cpu_fetch_order == LW_FETCH_WHOLE ? 2 * FEW_ROWS : FEW_ROWS;
}

#define LW_CODED_KERNELS(isa, name, codes)                                                                         \
    LW_CODED_ACCESS(name, codes)                                                                                   \
    void gemm_##name##_q8g32_7x32__##isa(const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out, \
                                         void* scratch) {                                                          \
        gemm(coded_type(lw_format_##name, codes_##name, scale_##name), x->rows <= coded_rows(lw_format_##name),    \
             PACKED_TILE_ROWS, w, x, panel, out, scratch);                                                         \
    }                                                                                                              \
    void gemv_##name##_q8g32_1x32__##isa(const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out, \
                                         void* scratch) {                                                          \
        gemv(coded_type(lw_format_##name, codes_##name, scale_##name), w, x, panel, out, scratch);                 \
    }

#define LW_FLOAT_KERNELS(isa, name, codes)                                                                         \
    LW_FLOAT_ACCESS(name, codes)                                                                                   \
    void gemm_##name##_q8g32_7x32__##isa(const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out, \
                                         void* scratch) {                                                          \
        gemm_twice(high_type_##name(), low_type_##name(), x->rows <= FEW_ROWS, w, x, panel, out, scratch);         \
    }                                                                                                              \
    void gemv_##name##_q8g32_1x32__##isa(const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out, \
                                         void* scratch) {                                                          \
        gemv_twice(high_type_##name(), low_type_##name(), w, x, panel, out, scratch);                              \
    }

#endif
