// Products of the coded types (kernels/formats.inc): a type's format is a constant here, so each type gets its own
// code.
#ifndef LW_KERNELS_AVX2_MATMUL_CODED_H
#define LW_KERNELS_AVX2_MATMUL_CODED_H

#include "kernels/avx2/matmul_panel.h"

// The first-plane bits of chunk c of group i.
LW_INLINE __m256i low_bits(const lw_format f, const weight_segment* w, int i, int c, int v) {
    const int in_byte = 8 / f.low,
              chunks = 8 / in_byte;  // codes in a byte of the first plane; chunks of bytes in a group
    __m256i bits = load256(w->data + (i * chunks + c % chunks) * CHUNK_BYTES + v * 32);
    const int shift = c / chunks * f.low;
    if (shift > 0) bits = _mm256_srli_epi16(bits, shift);
    if (f.low < 8) bits = _mm256_and_si256(bits, _mm256_set1_epi8((char)((1 << f.low) - 1)));
    return bits;
}

LW_INLINE __m256i coded_bits(const lw_format f, const weight_segment* w, int i, int c, int v) {
    const __m256i bits = low_bits(f, w, i, c, v);
    if (f.high == 0) return bits;
    const int chunk = i * 8 + c, bit = chunk / 4;  // index of the chunk in the segment
    __m256i high = load256(w->data + LW_SEGMENT * LW_PANEL / 8 * f.low + chunk % 4 * CHUNK_BYTES + v * 32);
    if (bit < f.low) high = _mm256_slli_epi16(high, f.low - bit);
    if (bit > f.low) high = _mm256_srli_epi16(high, bit - f.low);
    return _mm256_or_si256(bits, _mm256_and_si256(high, _mm256_set1_epi8((char)(1 << f.low))));
}

// The selectors of group i, repeated for each code, in the bits above the codes.
LW_INLINE __m256i coded_selectors(const lw_format f, const weight_segment* w, int i, int v) {
    const __m256i four_times =
        _mm256_setr_epi32(0, 0x01010101, 0x02020202, 0x03030303, 0x04040404, 0x05050505, 0x06060606, 0x07070707);
    const __m128i outputs = _mm_loadl_epi64((const __m128i*)(w->selectors + v * 8));
    __m256i selectors = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(outputs), four_times);
    const int from = 2 * i, to = f.low + f.high;
    if (from < to) selectors = _mm256_slli_epi16(selectors, to - from);
    if (from > to) selectors = _mm256_srli_epi16(selectors, from - to);
    return _mm256_and_si256(selectors, _mm256_set1_epi8((char)(((1 << f.selector) - 1) << to)));
}

LW_INLINE __m256i float_table(uint64_t positive, uint64_t negative) {
    return _mm256_broadcastsi128_si256(_mm_set_epi64x((long long)negative, (long long)positive));
}

// One part of a float (lw_float_part). Four bits choose its value for mantissa 0; each mantissa bit adds a step that
// the same four bits choose.
LW_INLINE __m256i float_codes(const lw_format f, const weight_segment* w, int i, int c, int v) {
    const bool high = f.part == LW_FLOAT_HIGH;  // bytes of the constants: exponents 0 to 7 from the right
    const __m256i bits = low_bits(f, w, i, c, v),
                  step[2] = {
                      high ? float_table(0x1008040201000000, 0xF0F8FCFEFF000000) : float_table(0x020101, 0xFEFFFF),
                      high ? float_table(0x2010080402000000, 0xE0F0F8FCFE000000) : float_table(0x040202, 0xFCFEFE)};
    const __m256i base = float_table(0x4020100804020100, 0xC0E0F0F8FCFEFF00);
    const __m256i mantissa =
        load256(w->data + LW_SEGMENT * LW_PANEL / 8 * f.low + c % (4 * f.high) * CHUNK_BYTES + v * 32);
    const int first = (i * 8 + c) / (4 * f.high) * f.high;
    __m256i code = high ? _mm256_shuffle_epi8(base, bits) : _mm256_setzero_si256();
#pragma GCC unroll 2
    for (int bit = 0; bit < f.high; ++bit) {
        const __m256i one = _mm256_set1_epi8((char)(1 << (first + bit)));
        const __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(mantissa, one), one);
        code = _mm256_add_epi8(code, _mm256_and_si256(set, _mm256_shuffle_epi8(step[bit], bits)));
    }
    return code;
}

// The codes of inputs 16 half .. 16 half + 15 of group i of a trellis: for each output 32 bits in the chain's order.
LW_INLINE __m256i trellis_half(const weight_segment* w, int i, int half, int v) {
    return load256(w->data + (i * 2 + half) * CHUNK_BYTES + v * 32);
}

// trellis_half, moved one code further in the chain: below each code is the code before it.
LW_INLINE __m256i trellis_later(const weight_segment* w, int i, int half, int v) {
    const __m256i later = _mm256_slli_epi32(trellis_half(w, i, half, v), 2);
    if (half == 0 && i == 0) return later;
    const __m256i before = half == 1 ? trellis_half(w, i, 0, v) : trellis_half(w, i - 1, 1, v);
    return _mm256_or_si256(later, _mm256_srli_epi32(before, 30));
}

// Table indices of chunk c: code << 2 | code before. The two are neighbours in either trellis_half or trellis_later.
LW_INLINE __m256i trellis_entries(const weight_segment* w, int i, int c, int v) {
    const int half = c / 4, part = c % 4;
    const __m256i two = part % 2 == 0 ? trellis_later(w, i, half, v) : trellis_half(w, i, half, v);
    return _mm256_and_si256(part < 2 ? two : _mm256_srli_epi16(two, 4), _mm256_set1_epi8(15));
}

LW_INLINE __m256i coded_codes(const lw_format f, const weight_segment* w, int i, int c, int v) {
    if (f.map == LW_MAP_FLOAT) return float_codes(f, w, i, c, v);
    if (f.map == LW_MAP_TRELLIS) return _mm256_shuffle_epi8(w->table, trellis_entries(w, i, c, v));
    const __m256i bits = coded_bits(f, w, i, c, v);
    if (f.map == LW_MAP_OFFSET) return f.low == 8 ? _mm256_xor_si256(bits, _mm256_set1_epi8(-128)) : bits;
    if (f.selector == 0) return _mm256_shuffle_epi8(w->table, bits);
    return _mm256_shuffle_epi8(w->table, _mm256_or_si256(bits, coded_selectors(f, w, i, v)));
}

LW_INLINE __m256 coded_scale(const lw_format f, const weight_segment* w, size_t g, int v) {
    const size_t scales = LW_SEGMENT * LW_PANEL / 8 * (size_t)(f.low + f.high);
    const uint8_t* at = w->data + scales + (g * LW_PANEL + (size_t)v * 8) * lw_scale_bytes(f);
    if (f.scale == LW_SCALE_F16) return load_halves(at);
    if (f.scale == LW_SCALE_ONE) {
        const __m256 super = _mm256_loadu_ps((const float*)w->supers + v * 8);
        return f.part == LW_FLOAT_HIGH ? _mm256_mul_ps(super, _mm256_set1_ps(4)) : super;
    }
    const __m128i bytes = _mm_loadl_epi64((const __m128i*)at);
    if (f.scale == LW_SCALE_E8M0) {  // half of 2^(byte - 127); subnormal if the byte is 0 or 1
        const __m256i e = _mm256_cvtepu8_epi32(bytes);
        const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
        const __m256i small = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
        const __m256i value = _mm256_blendv_epi8(normal, small, _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e));
        return _mm256_castsi256_ps(_mm256_andnot_si256(_mm256_cmpeq_epi32(e, _mm256_set1_epi32(255)), value));
    }
    if (f.scale == LW_SCALE_E4M3) {  // as f16 they are 2^8 smaller
        const __m256 halves = _mm256_cvtph_ps(_mm_slli_epi16(_mm_cvtepu8_epi16(bytes), 7));
        const __m256 super = _mm256_loadu_ps((const float*)w->supers + v * 8);
        return _mm256_mul_ps(super, _mm256_mul_ps(halves, _mm256_set1_ps(256)));
    }
    const __m256i small = f.scale == LW_SCALE_I8
                              ? _mm256_cvtepi8_epi32(bytes)
                              : _mm256_cvtepu8_epi32(_mm_and_si128(bytes, _mm_set1_epi8((char)lw_scale_mask(f))));
    __m256 super =
        f.super == LW_SUPER_ROW ? _mm256_loadu_ps((const float*)w->supers + v * 8) : load_halves(w->supers + v * 16);
    if (f.super == LW_SUPER_EIGHTH) super = _mm256_mul_ps(super, _mm256_set1_ps(lw_super_unit(f)));
    return _mm256_mul_ps(super, _mm256_cvtepi32_ps(small));
}

// A sum of 16 bits holds 8 chunks of codes up to 15, or 4 chunks of codes up to 31.
LW_INLINE weight_type coded_type(const lw_format f, __m256i (*codes)(const weight_segment*, int, int, int),
                                 __m256 (*scale)(const weight_segment*, size_t, int)) {
    const bool is_signed = f.map != LW_MAP_OFFSET || f.low == 8;
    return (weight_type){.few_rows = f.group == 16 ? 1 : 2,
                         .chunks = f.group / 4,
                         .run = is_signed                             ? SIGNED
                                : f.group == 16 || f.low + f.high > 4 ? 4
                                                                      : 8,
                         .shift = f.offset == 1    ? 0
                                  : f.offset == 4  ? 2
                                  : f.offset == 8  ? 3
                                  : f.offset == 16 ? 4
                                                   : -1,
                         .segment_bytes = lw_coded_panel_of(f, 0).segment_bytes,
                         .format = f,
                         .codes = codes,
                         .scale = scale};
}

// Functions that read a type's codes and scales in pass n.
#define LW_CODED_TYPE(name, n)                                                                   \
    LW_INLINE __m256i codes_##n##_##name(const weight_segment* w, int i, int c, int v) {         \
        return coded_codes(lw_pass(lw_format_##name, n), w, i, c, v);                            \
    }                                                                                            \
    LW_INLINE __m256 scale_##n##_##name(const weight_segment* w, size_t g, int v) {              \
        return coded_scale(lw_pass(lw_format_##name, n), w, g, v);                               \
    }                                                                                            \
    LW_INLINE weight_type type_##n##_##name(void) {                                              \
        return coded_type(lw_pass(lw_format_##name, n), codes_##n##_##name, scale_##n##_##name); \
    }

#define LW_CODED_KERNELS(name) \
    LW_CODED_TYPE(name, 0)     \
    LW_PANEL_KERNELS(name, type_0_##name(), NULL)

#define LW_FLOAT_KERNELS(name) \
    LW_CODED_TYPE(name, 0)     \
    LW_CODED_TYPE(name, 1)     \
    LW_PANEL_KERNELS(name, type_0_##name(), (const weight_type[]){type_1_##name()})

#endif
