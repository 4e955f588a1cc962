// IEEE half and bfloat16, one element at a time; both directions round to nearest even on every ISA.
#ifndef LW_KERNELS_HALF_H
#define LW_KERNELS_HALF_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
static inline float lw_half_to_float(uint16_t bits) { return _cvtsh_ss(bits); }
static inline uint16_t lw_float_to_half(float value) { return _cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT); }
#else
static inline float lw_half_to_float(uint16_t bits) {
    __fp16 half;
    memcpy(&half, &bits, sizeof half);
    return (float)half;
}
static inline uint16_t lw_float_to_half(float value) {
    const __fp16 half = (__fp16)value;
    uint16_t bits;
    memcpy(&bits, &half, sizeof bits);
    return bits;
}
#endif

static inline float lw_bfloat_to_float(uint16_t bits) {
    const uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

enum { LW_HALF_EXPONENT = 0x7C00, LW_BFLOAT_EXPONENT = 0x7F80 };

// True if every half that begins at a multiple of `step` bytes is finite. With the upper halves of bfloat16 and f32 it
// works for these, too. `exponent` is the mask of the type's exponent bits.
static inline bool lw_halves_are_finite(const uint8_t* data, uint64_t bytes, const size_t step,
                                        const uint16_t exponent) {
    bool finite = true;
    for (uint64_t at = 0; at + 2 <= bytes; at += step) {
        uint16_t bits;
        memcpy(&bits, data + at, 2);
        finite &= (bits & exponent) != exponent;
    }
    return finite;
}

#endif
