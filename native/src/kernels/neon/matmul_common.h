// What the matmul kernels of the Arm levels share: scratch, scales and the decoding of packed nibbles.
//
// All of it is baseline Armv8.0 and static, so each ISA folder compiles a copy of its own.
#ifndef LW_KERNELS_NEON_MATMUL_COMMON_H
#define LW_KERNELS_NEON_MATMUL_COMMON_H

#include <arm_neon.h>
#include <string.h>

#include "kernels/kernel.h"
#include "kernels/layout.h"

#define INLINE static inline __attribute__((always_inline))

// Loops over the vectors of a tile: unrolled, or their arrays would live in memory instead of registers.
#define UNROLL _Pragma("GCC unroll 16")

// Where a tile takes its weights from. Decoded weights are int8 in scratch, with their scale differences in float.
typedef enum source {
    FROM_Q4,  // codes come out 16 times too large: the segment's sum is divided by 16, which is exact
    FROM_Q8,
    FROM_Q6,
    FROM_DECODED32,  // groups of 32 inputs (Q4_0, Q8_0)
    FROM_DECODED16,  // groups of 16 inputs (Q6_K)
} source;

enum { QUADS = LW_PANEL / 4 };  // vectors of four outputs in a panel

// Stands in for the scales past the last group of a segment.
static const uint8_t lw_zero_scales[2 * LW_PANEL] = {0};

// One segment of one panel and the inputs it meets.
typedef struct segment {
    const uint8_t* data;   // packed groups; null when decoded
    const int8_t* codes;   // decoded
    const float* ds;       // decoded
    const uint8_t* super;  // FROM_Q6: the 32 f16 scales
    size_t k;              // first input
    size_t groups;         // of 32 inputs, 1 to 4
    size_t index;
} segment;

INLINE segment segment_of(const lw_matrix* w, size_t panel, size_t index, const size_t group_bytes) {
    const size_t first = index * LW_SEGMENT_GROUPS, left = w->groups - first;
    const size_t extra = w->type == LW_Q6_K ? index * (LW_Q6_SUPER_BYTES - LW_SEGMENT_GROUPS * LW_Q6_GROUP_BYTES) : 0;
    segment s = {
        .data = w->data + panel * w->panel_bytes + first * group_bytes + extra,
        .k = index * LW_SEGMENT,
        .groups = left < LW_SEGMENT_GROUPS ? left : LW_SEGMENT_GROUPS,
        .index = index,
    };
    s.super = s.data + LW_SEGMENT_GROUPS * LW_Q6_GROUP_BYTES;
    return s;
}

INLINE size_t packed_group_bytes(const source from) {
    return from == FROM_Q4 ? LW_Q4_GROUP_BYTES : from == FROM_Q8 ? LW_Q8_GROUP_BYTES : LW_Q6_GROUP_BYTES;
}

// Byte of a group at which its scales begin: f16, or int8 for Q6_K.
INLINE size_t scale_offset(const source from) {
    return from == FROM_Q4   ? LW_PANEL * LW_GROUP / 2
           : from == FROM_Q8 ? LW_PANEL * LW_GROUP
                             : LW_Q6_LOW_BYTES + LW_Q6_HIGH_BYTES;
}

INLINE float32x4_t load_half4(const uint8_t* p) { return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p))); }

INLINE float32x4x2_t load_half8(const uint8_t* p) {
    const float16x8_t halves = vreinterpretq_f16_u8(vld1q_u8(p));
    return (float32x4x2_t){{vcvt_f32_f16(vget_low_f16(halves)), vcvt_high_f32_f16(halves)}};
}

// d * (scale - next) of four outputs: d, scale and next are exact, and so is everything here.
INLINE float32x4_t q6_difference(float32x4_t d, const int8_t* scale, const int8_t* next) {
    const int16x8_t difference = vsubl_s8(vld1_s8(scale), vld1_s8(next));
    const int32x4_t biased = vaddw_s16(vdupq_n_s32(LW_MAGIC_BITS), vget_low_s16(difference));
    return vmulq_f32(d, vsubq_f32(vreinterpretq_f32_s32(biased), vdupq_n_f32(LW_MAGIC)));
}

// What one row's results and the decoded segment take of the scratch.
typedef struct workspace {
    float* results;  // [rows rounded up to 2][LW_PANEL]
    int8_t* codes;   // [LW_SEGMENT * LW_PANEL]
    float* ds;       // at most 16 groups, twice
} workspace;

INLINE workspace workspace_of(void* scratch, size_t rows) {
    const size_t rounded = (rows + 1) / 2 * 2;
    workspace work = {.results = scratch};
    work.codes = (int8_t*)(work.results + rounded * LW_PANEL);
    work.ds = (float*)(work.codes + LW_SEGMENT * LW_PANEL);
    memset(work.results, 0, rounded * LW_PANEL * sizeof(float));
    return work;
}

#ifdef __ARM_FEATURE_DOTPROD
INLINE int32x4_t dot16(int32x4_t acc, const int8x16_t w[4], int8x16_t x) {
    acc = vdotq_laneq_s32(acc, w[0], x, 0);
    acc = vdotq_laneq_s32(acc, w[1], x, 1);
    acc = vdotq_laneq_s32(acc, w[2], x, 2);
    return vdotq_laneq_s32(acc, w[3], x, 3);
}
#endif

// (float)P of a prefix sum that was started at LW_MAGIC_BITS.
INLINE float32x4_t prefix_float(int32x4_t acc, float32x4_t magic) {
    return vsubq_f32(vreinterpretq_f32_s32(acc), magic);
}

// Codes that are larger than the weight by a constant make a prefix sum too large by that times the sum of the
// inputs, `excess`: subtracted with the magic number, it costs nothing and is as exact.
INLINE float32x4_t biased_magic(int32_t excess) { return vreinterpretq_f32_s32(vdupq_n_s32(LW_MAGIC_BITS + excess)); }

#endif
