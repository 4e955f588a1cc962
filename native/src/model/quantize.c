#include "model/quantize.h"

#include <math.h>
#include <string.h>

#include "kernels/half.h"

enum { BLOCK = 32 };
static const float largest_half = 65504.0f;

// The element with the largest magnitude, with its sign; the first of equal ones. NaN if an element is not finite.
static float extreme(const float* x) {
    float best = 0.0f;
    for (int i = 0; i < BLOCK; ++i) {
        if (!isfinite(x[i])) return NAN;
        if (fabsf(x[i]) > fabsf(best)) best = x[i];
    }
    return best;
}

static _Bool store_scale(float scale, uint8_t* block) {
    if (!(fabsf(scale) <= largest_half)) return 0;
    const uint16_t bits = lw_float_to_half(scale);
    memcpy(block, &bits, sizeof bits);
    return 1;
}

// A scale with an infinite inverse is 0 as f16, so all codes may be the code of zero.
static float inverse_of(float scale) {
    const float inverse = scale != 0.0f ? 1.0f / scale : 0.0f;
    return isfinite(inverse) ? inverse : 0.0f;
}

_Bool lw_quantize_q4_block(const float* x, uint8_t* block) {
    const float scale = extreme(x) / -8.0f;  // the extreme becomes -8, the only code without a positive counterpart
    if (!store_scale(scale, block)) return 0;
    const float inverse = inverse_of(scale);
    for (int j = 0; j < BLOCK / 2; ++j) {
        const int low = (int)(x[j] * inverse + 8.5f), high = (int)(x[j + BLOCK / 2] * inverse + 8.5f);
        block[2 + j] = (uint8_t)((low < 15 ? low : 15) | (high < 15 ? high : 15) << 4);
    }
    return 1;
}

// Rounds to the nearest integer, halves away from zero. The sum is exact in double.
static int nearest(float x) { return (int)((double)x + (x < 0 ? -0.5 : 0.5)); }

_Bool lw_quantize_q8_block(const float* x, uint8_t* block) {
    const float scale = fabsf(extreme(x)) / 127.0f;
    if (!store_scale(scale, block)) return 0;
    const float inverse = inverse_of(scale);
    for (int j = 0; j < BLOCK; ++j) block[2 + j] = (uint8_t)(int8_t)nearest(x[j] * inverse);
    return 1;
}
