// Products of the coded types (kernels/formats.inc): their columns are constants here, so each type gets its own code.
// Every segment is decoded to scratch first, also for one row: the tile's loop over groups knows no type's planes.
#ifndef LW_KERNELS_AVX2_MATMUL_CODED_H
#define LW_KERNELS_AVX2_MATMUL_CODED_H

#include "kernels/avx2/matmul_tile.h"

// A segment as packed, and what its panel has for it.
typedef struct coded_segment {
    const uint8_t *data, *supers, *selectors;
    __m256i table;  // twice
} coded_segment;

// The first plane's bits of chunk c of group i.
LW_INLINE __m256i low_bits(const lw_format f, const coded_segment* w, int i, int c, int v) {
    const int in_byte = 8 / f.low,
              chunks = 8 / in_byte;  // codes of the first plane in a byte, bytes' chunks of a group
    __m256i bits = load256(w->data + (i * chunks + c % chunks) * CHUNK_BYTES + v * 32);
    const int shift = c / chunks * f.low;
    if (shift > 0) bits = _mm256_srli_epi16(bits, shift);
    if (f.low < 8) bits = _mm256_and_si256(bits, _mm256_set1_epi8((char)((1 << f.low) - 1)));
    return bits;
}

LW_INLINE __m256i coded_bits(const lw_format f, const coded_segment* w, int i, int c, int v) {
    const __m256i bits = low_bits(f, w, i, c, v);
    if (f.high == 0) return bits;
    const int chunk = i * 8 + c, bit = chunk / 4;  // of the segment
    __m256i high = load256(w->data + LW_SEGMENT * LW_PANEL / 8 * f.low + chunk % 4 * CHUNK_BYTES + v * 32);
    if (bit < f.low) high = _mm256_slli_epi16(high, f.low - bit);
    if (bit > f.low) high = _mm256_srli_epi16(high, bit - f.low);
    return _mm256_or_si256(bits, _mm256_and_si256(high, _mm256_set1_epi8((char)(1 << f.low))));
}

// The selectors of group i, a byte for each code, above the codes' bits.
LW_INLINE __m256i coded_selectors(const lw_format f, const coded_segment* w, int i, int v) {
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

// One part of a float. Without the mantissa it depends on four bits, and each mantissa bit adds what also does.
LW_INLINE __m256i float_codes(const lw_format f, const coded_segment* w, int i, int c, int v) {
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

LW_INLINE __m256i coded_codes(const lw_format f, const coded_segment* w, int i, int c, int v) {
    if (f.map == LW_MAP_FLOAT) return float_codes(f, w, i, c, v);
    __m256i bits = coded_bits(f, w, i, c, v);
    if (f.map == LW_MAP_OFFSET) return f.low == 8 ? _mm256_xor_si256(bits, _mm256_set1_epi8(-128)) : bits;  // words
    if (f.selector != 0) bits = _mm256_or_si256(bits, coded_selectors(f, w, i, v));
    if (f.map ==
        LW_MAP_TRELLIS) {  // the input before: a byte below, for the first of a chunk the last of the one before
        const __m256i before = _mm256_slli_epi32(bits, 8);
        bits = _mm256_or_si256(_mm256_slli_epi16(bits, 2), before);
        if (c + i > 0) {
            const __m256i last = _mm256_srli_epi32(coded_bits(f, w, c > 0 ? i : i - 1, (c + 7) % 8, v), 24);
            bits = _mm256_or_si256(bits, last);
        }
    }
    return _mm256_shuffle_epi8(w->table, bits);
}

LW_INLINE __m256 coded_scale(const lw_format f, const coded_segment* w, size_t g, int v) {
    const size_t inputs = f.group == 16 ? 16 : 32, scales = LW_SEGMENT * LW_PANEL / 8 * (size_t)(f.low + f.high);
    const uint8_t* at = w->data + scales + (g * inputs / f.group * LW_PANEL + (size_t)v * 8) * lw_scale_bytes(f);
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
    const __m256i small = f.scale == LW_SCALE_NIBBLES ? _mm256_cvtepu8_epi32(_mm_and_si128(bytes, _mm_set1_epi8(15)))
                                                      : _mm256_cvtepi8_epi32(bytes);
    const __m256 super =
        f.super == LW_SUPER_ROW ? _mm256_loadu_ps((const float*)w->supers + v * 8) : load_halves(w->supers + v * 16);
    return _mm256_mul_ps(super, _mm256_cvtepi32_ps(small));
}

// How tiles see the decoded codes. Sums of 16 bits hold 8 chunks of codes up to 15, 4 of codes up to 31.
LW_INLINE weight_type coded_type(const lw_format f) {
    const bool words = f.map != LW_MAP_OFFSET || f.low == 8;
    return (weight_type){.chunks = f.group == 16 ? 4 : 8,
                         .run = words                                 ? WORDS
                                : f.group == 16 || f.low + f.high > 4 ? 4
                                                                      : 8,
                         .shift = f.offset == 4    ? 2
                                  : f.offset == 8  ? 3
                                  : f.offset == 16 ? 4
                                                   : -1};
}

LW_INLINE void decode_coded_group(const lw_format f, const coded_segment* w, const int i, uint8_t* codes) {
    const bool words = coded_type(f).run == WORDS;
    __m256i* to = (__m256i*)codes + i * 8 * VECTORS * (words ? 2 : 1);
#pragma GCC unroll 8
    for (int c = 0; c < 8; ++c)
#pragma GCC unroll 4
        for (int v = 0; v < VECTORS; ++v) {
            const __m256i code = coded_codes(f, w, i, c, v);
            if (words) {
                _mm256_store_si256(to++, even_words(code));
                _mm256_store_si256(to++, odd_words(code));
            } else {
                _mm256_store_si256(to++, code);
            }
        }
}

LW_INLINE void decode_coded(const lw_format f, const coded_segment* w, tile_scratch* s) {
    decode_coded_group(f, w, 0, s->codes);
    decode_coded_group(f, w, 1, s->codes);
    decode_coded_group(f, w, 2, s->codes);
    decode_coded_group(f, w, 3, s->codes);
    const size_t scales = f.group == 16 ? 8 : 4;
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; ++v) {
        __m256 scale = coded_scale(f, w, 0, v);
        for (size_t g = 0; g < scales; ++g) {
            const __m256 next = g + 1 < scales ? coded_scale(f, w, g + 1, v) : _mm256_setzero_ps();
            _mm256_store_ps(s->differences + g * LW_PANEL + v * 8, _mm256_sub_ps(scale, next));
            scale = next;
        }
    }
}

LW_INLINE void decoded_rows(const weight_type type, const weight_segment* w, const lw_activations* x, size_t segment,
                            size_t first, size_t end, float* results) {
    for (size_t row = first; row < end; row += TILE_ROWS) {
        const row_segment rows = some_rows(x, segment, row, end, results);
        if (end - row == 1)
            tile(type, 1, false, w, &rows);
        else
            tile(type, 2, false, w, &rows);
    }
}

LW_INLINE void coded_product(const lw_format f, const lw_matrix* w, const lw_activations* x, size_t panel,
                             lw_output out, tile_scratch* s) {
    const weight_type type = coded_type(f);
    const lw_coded_panel p = lw_coded_panel_of(f, w->cols);
    const uint8_t* data = w->data + panel * w->panel_bytes;
    const __m256i table = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)w->table));
    memset(s->results, 0, x->rows * LW_PANEL * sizeof(float));
    for (size_t first = 0; first < x->rows; first += BLOCK_ROWS) {
        const size_t end = x->rows - first < BLOCK_ROWS ? x->rows : first + BLOCK_ROWS;
        for (size_t segment = 0; segment < x->segments; ++segment) {
            const coded_segment packed = {
                .data = data + p.segments + segment * p.segment_bytes,
                .supers = data + p.supers + (f.super == LW_SUPER_BLOCK ? segment / 2 * LW_PANEL * 2 : 0),
                .selectors = data + p.selectors + segment * LW_PANEL,
                .table = table};
            const weight_segment ws = {
                .codes = s->codes, .differences = s->differences, .scales = LW_SEGMENT / (size_t)type.chunks / 4};
            const lw_fetch fetch = lw_fetch_of(lw_cpu_reads_pages, w->data, packed.data, p.segment_bytes);
            for (size_t g = 0; g < LW_SEGMENT_GROUPS; ++g) lw_fetch_group(fetch, g, p.segment_bytes);
            decode_coded(lw_pass(f, 0), &packed, s);
            decoded_rows(type, &ws, x, segment, first, end, s->results);
            if (lw_passes(f) == 1) continue;
            decode_coded(lw_pass(f, 1), &packed, s);
            decoded_rows(type, &ws, x, segment, first, end, s->results);
        }
    }
    if (f.minimum != LW_MINIMUM_NONE) lw_subtract_minimums(f, w, x, panel, s->results, s->minimums);
    lw_store_panel(w, panel, x->rows, s->results, out);
}

#define LW_CODED_KERNELS(name)                                                                                       \
    void matmul_##name##_q8s128_2x32__avx2(const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out, \
                                           void* scratch) {                                                          \
        coded_product(lw_format_##name, w, x, panel, out, scratch);                                                  \
    }

#endif
