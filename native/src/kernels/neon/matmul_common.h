// Shared by the matmul kernels of all Arm levels: scratch, scales and the decoding of packed nibbles.
//
// All of it is static and needs only Armv8.0, so each ISA folder compiles its own copy.
#ifndef LW_KERNELS_NEON_MATMUL_COMMON_H
#define LW_KERNELS_NEON_MATMUL_COMMON_H

#include <arm_neon.h>
#include <string.h>

#include "kernels/fetch.h"
#include "kernels/kernel.h"
#include "kernels/layout.h"

#define INLINE static inline __attribute__((always_inline))

// Loops over the vectors of a tile are unrolled; otherwise their arrays would live in memory instead of registers.
#define UNROLL _Pragma("GCC unroll 16")

// Source of a tile's weights. Decoded weights are int8 in scratch, with float scales.
typedef enum source {
    FROM_Q4,
    FROM_Q8,
    FROM_Q6,
    FROM_DECODED32,  // groups of 32 inputs (Q4_0, Q8_0)
    FROM_DECODED16,  // groups of 16 inputs (Q6_K)
} source;

enum { QUADS = LW_PANEL / 4 };  // vectors of four outputs in a panel

// One segment of one panel.
typedef struct segment {
    const uint8_t* data;   // packed groups; NULL when decoded
    const int8_t* codes;   // decoded
    const float* scales;   // scales of each step, laid out as in workspace
    const uint8_t* super;  // FROM_Q6: the 32 f16 scales
    size_t k;              // first input
    size_t groups;         // number of groups of 32 inputs, 1 to 4
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

// Byte offset of the scales in a group: f16, or int8 for Q6_K.
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

// LW_MAGIC plus each code: the float value of an integer sum that started at LW_MAGIC_BITS.
INLINE float32x4x2_t magic_codes(int16x8_t codes) {
    const int32x4_t magic = vdupq_n_s32(LW_MAGIC_BITS);
    return (float32x4x2_t){{vreinterpretq_f32_s32(vaddw_s16(magic, vget_low_s16(codes))),
                            vreinterpretq_f32_s32(vaddw_high_s16(magic, codes))}};
}

INLINE float32x4_t magic_times(float32x4_t scale) { return vmulq_n_f32(scale, -LW_MAGIC); }

// round(scale * I) of a sum I that started at LW_MAGIC_BITS; `magic` is magic_times(scale). Never -0.
// This and fma_lane are assembly, because the compiler otherwise copies addends, and broadcasts lanes to whole vectors.
INLINE float32x4_t scaled_sum(int32x4_t sum, float32x4_t scale, float32x4_t magic) {
    __asm__("fmla %0.4s, %1.4s, %2.4s" : "+w"(magic) : "w"(sum), "w"(scale));
    return magic;
}

INLINE float32x4_t fma_lane(float32x4_t acc, float32x4_t scaled, float32x4_t da) {
    __asm__("fmla %0.4s, %1.4s, %2.s[0]" : "+w"(acc) : "w"(scaled), "w"(da));
    return acc;
}

// acc + w * x[lane]: fma_lane for any lane.
#define FMA_LANE(lane)                                                          \
    __asm__("fmla %0.4s, %1.4s, %2.s[" #lane "]" : "+w"(acc) : "w"(w), "w"(x)); \
    break
INLINE float32x4_t fma_lane_of(float32x4_t acc, float32x4_t w, float32x4_t x, const size_t lane) {
    switch (lane) {
        case 0:
            FMA_LANE(0);
        case 1:
            FMA_LANE(1);
        case 2:
            FMA_LANE(2);
        default:
            FMA_LANE(3);
    }
    return acc;
}
#undef FMA_LANE

// acc + scaled * da[group]; `da` holds the activation scales of one row's segment.
INLINE float32x4_t fma_group(float32x4_t acc, float32x4_t scaled, float32x4_t da, const size_t group) {
    return group == 0   ? vfmaq_laneq_f32(acc, scaled, da, 0)
           : group == 1 ? vfmaq_laneq_f32(acc, scaled, da, 1)
           : group == 2 ? vfmaq_laneq_f32(acc, scaled, da, 2)
                        : vfmaq_laneq_f32(acc, scaled, da, 3);
}

// Loads an addend, which FMLA overwrites. A load takes no slot of the vector pipes; a copy does.
INLINE float32x4_t load_addend(const float* from) {
    float32x4_t addend;
    __asm__ volatile("ldr %q0, %1" : "=w"(addend) : "m"(*(const float(*)[4])from));
    return addend;
}

// Loads a number to lane 0 without copying it to the other lanes.
INLINE float32x4_t load_lane(const float* from) {
    float32x4_t lane;
    __asm__("ldr %s0, %1" : "=w"(lane) : "m"(*from));
    return lane;
}

// acc + round(scale * I) * da for a step; `magic` is magic_times(scale), da is in lane 0.
INLINE float32x4_t add_step(float32x4_t acc, int32x4_t sum, float32x4_t scale, float32x4_t magic, float32x4_t da) {
    return fma_lane(acc, scaled_sum(sum, scale, magic), da);
}

// super * code for eight outputs, exact; `magic` is magic_times(super).
INLINE float32x4x2_t small_scale8(float32x4x2_t super, float32x4x2_t magic, int16x8_t codes) {
    const float32x4x2_t code = magic_codes(codes);
    return (float32x4x2_t){
        {vfmaq_f32(magic.val[0], code.val[0], super.val[0]), vfmaq_f32(magic.val[1], code.val[1], super.val[1])}};
}

INLINE float32x4x2_t magic_times8(float32x4x2_t scale) {
    return (float32x4x2_t){{magic_times(scale.val[0]), magic_times(scale.val[1])}};
}

INLINE float32x4x2_t load_addend8(const float* from) {
    return (float32x4x2_t){{load_addend(from), load_addend(from + 4)}};
}

// Scales of a step of Q4_0, Q8_0 or Q6_K for eight outputs from `output` on. Q6_K only: `half` is the step of 16
// inputs, `super` the factor of its scales, and `magic` the magic_times8 of `super`.
INLINE float32x4x2_t packed_scale8(const source from, const segment* s, float32x4x2_t super, float32x4x2_t magic,
                                   size_t group, size_t half, size_t output) {
    const uint8_t* at = s->data + group * packed_group_bytes(from) + scale_offset(from);
    if (from != FROM_Q6) return load_half8(at + 2 * output);
    return small_scale8(super, magic, vmovl_s8(vld1_s8((const int8_t*)at + half * LW_PANEL + output)));
}

INLINE float32x4x2_t packed_super8(const source from, const segment* s, size_t output) {
    return from == FROM_Q6 ? load_half8(s->super + 2 * output) : (float32x4x2_t){{vdupq_n_f32(0), vdupq_n_f32(0)}};
}

// The f16 scales of a segment of Q6_K, and the magic_times of them.
INLINE void store_supers(const segment* s, float supers[LW_PANEL], float magics[LW_PANEL]) {
    UNROLL
    for (size_t output = 0; output < LW_PANEL; output += 8) {
        const float32x4x2_t super = packed_super8(FROM_Q6, s, output);
        vst1q_f32_x2(supers + output, super);
        vst1q_f32_x2(magics + output, magic_times8(super));
    }
}

// The scales of the two steps of group `g` of a segment of Q6_K, for the outputs of `quad` and the next one; what
// store_supers has stored comes in.
INLINE void scales_of_q6(const segment* s, const float supers[LW_PANEL], const float magics[LW_PANEL], size_t g,
                         size_t quad, float32x4x2_t scale[2]) {
    const float32x4x2_t super = vld1q_f32_x2(supers + 4 * quad);
    UNROLL
    for (size_t h = 0; h < 2; ++h)
        scale[h] = packed_scale8(FROM_Q6, s, super, load_addend8(magics + 4 * quad), g, h, 4 * quad);
}

// Stores scales of eight outputs, and -LW_MAGIC times them, to one step of workspace.scales; `copies` is 1 or 2.
INLINE void store_scale8(const int copies, float32x4x2_t scale, float* to) {
    UNROLL
    for (int i = 0; i < 2; ++i) {
        const float32x4_t magic = magic_times(scale.val[i]);
        float* at = to + 4 * i * copies;
        if (copies == 1) {
            vst1q_f32(at, scale.val[i]);
            vst1q_f32(at + LW_PANEL, magic);
        } else {
            const float64x2_t twos = vreinterpretq_f64_f32(scale.val[i]), magics = vreinterpretq_f64_f32(magic);
            vst1q_f64((double*)at, vdupq_laneq_f64(twos, 0));
            vst1q_f64((double*)(at + 4), vdupq_laneq_f64(twos, 1));
            vst1q_f64((double*)(at + 2 * LW_PANEL), vdupq_laneq_f64(magics, 0));
            vst1q_f64((double*)(at + 2 * LW_PANEL + 4), vdupq_laneq_f64(magics, 1));
        }
    }
}

// Writes a segment's scales of Q4_0, Q8_0 or Q6_K in the layout of workspace.scales.
INLINE void packed_scales(const source from, const int copies, const segment* s, float* scales) {
    const size_t halves = from == FROM_Q6 ? 2 : 1, step = 2 * (size_t)copies * LW_PANEL;
    for (size_t output = 0; output < LW_PANEL; output += 8) {
        const float32x4x2_t super = packed_super8(from, s, output), magic = magic_times8(super);
        for (size_t g = 0; g < s->groups; ++g) UNROLL
        for (size_t h = 0; h < halves; ++h)
            store_scale8(copies, packed_scale8(from, s, super, magic, g, h, output),
                         scales + (g * halves + h) * step + output * (size_t)copies);
    }
}

// The parts of a kernel's scratch.
typedef struct workspace {
    float* results;  // [rows rounded up to 2][LW_PANEL]
    int8_t* codes;   // [LW_SEGMENT * LW_PANEL]
    // For each step of a segment: scales, then -LW_MAGIC times the scales. [step][2][LW_PANEL], or with two copies
    // [step][2][16 pairs][s0 s1 s0 s1].
    float* scales;
} workspace;

INLINE workspace workspace_of(void* scratch, size_t rows) {
    const size_t rounded = (rows + 1) / 2 * 2;
    workspace work = {.results = scratch};
    work.codes = (int8_t*)(work.results + rounded * LW_PANEL);
    work.scales = (float*)(work.codes + LW_SEGMENT * LW_PANEL);
    memset(work.results, 0, rounded * LW_PANEL * sizeof(float));
    return work;
}

// Loads nibbles and inserts `upper` above the low ones; as assembly, because the compiler otherwise copies the nibbles.
INLINE uint8x16_t insert_upper(const uint8_t* nibbles, uint8x16_t upper) {
    uint8x16_t codes;
    __asm__(
        "ldr %q0, %1\n\t"
        "sli %0.16b, %2.16b, #4"
        : "=&w"(codes)
        : "m"(*(const uint8_t(*)[16])nibbles), "w"(upper));
    return codes;
}

// 32 codes of Q6_K, 32 too large, from two vectors of nibbles and one of pairs of upper bits: those of the low nibbles of
// `a` and of `b`, or those of the high nibbles. Inserting shifts, and masks only for what is above: eight operations for
// all four vectors.
INLINE void decode_q6(const uint8_t* a, const uint8_t* b, const uint8_t* upper, const bool high, int8x16_t w[2]) {
    const uint8x16_t mask = vdupq_n_u8(0x3F), pairs = vld1q_u8(upper), second = vshrq_n_u8(pairs, 2);
    if (high) {
        w[0] = vreinterpretq_s8_u8(vandq_u8(vsriq_n_u8(pairs, vld1q_u8(a), 4), mask));
        w[1] = vreinterpretq_s8_u8(vsriq_n_u8(second, vld1q_u8(b), 4));
    } else {
        w[0] = vreinterpretq_s8_u8(vandq_u8(insert_upper(a, pairs), mask));
        w[1] = vreinterpretq_s8_u8(vandq_u8(insert_upper(b, second), mask));
    }
}

#ifdef __ARM_FEATURE_DOTPROD
// As assembly, because the compiler otherwise copies the sum from register to register.
INLINE int32x4_t dot16(int32x4_t acc, const int8x16_t w[4], int8x16_t x) {
    __asm__(
        "sdot %0.4s, %1.16b, %5.4b[0]\n\t"
        "sdot %0.4s, %2.16b, %5.4b[1]\n\t"
        "sdot %0.4s, %3.16b, %5.4b[2]\n\t"
        "sdot %0.4s, %4.16b, %5.4b[3]"
        : "+&w"(acc)
        : "w"(w[0]), "w"(w[1]), "w"(w[2]), "w"(w[3]), "w"(x));
    return acc;
}
#endif

static const int32_t lw_magic_start[4] = {LW_MAGIC_BITS, LW_MAGIC_BITS, LW_MAGIC_BITS, LW_MAGIC_BITS};

// Loads the start value of sums. A load takes no slot of the vector pipes. A copy of a register, which the compiler
// would use, does.
INLINE int32x4_t load_start(const int32_t* from) {
    int32x4_t start;
    __asm__ volatile("ldur %q0, %1" : "=w"(start) : "Q"(*(const int32_t(*)[4])from));
    return start;
}

// Start values of a segment's sums whose codes are `bias` larger than the weights. `to` has [4 groups][2][4 lanes]: for
// the first 16 inputs of a group, then for its second 16 (`halves`) or for all 32.
INLINE void find_starts(const int bias, const bool halves, const int32_t* totals, int32_t* to) {
    UNROLL
    for (int i = 0; i < 2; ++i, to += 16) {
        int32x4_t sums = vld1q_s32(totals + 4 * i);
        if (halves)  // the second half alone: the group's total minus the first half's
            sums = vsubq_s32(sums, vreinterpretq_s32_s64(vshlq_n_s64(vreinterpretq_s64_s32(sums), 32)));
        sums = vmlsq_s32(vdupq_n_s32(LW_MAGIC_BITS), sums, vdupq_n_s32(bias));
        vst1q_s32(to, vdupq_laneq_s32(sums, 0));
        vst1q_s32(to + 4, vdupq_laneq_s32(sums, 1));
        vst1q_s32(to + 8, vdupq_laneq_s32(sums, 2));
        vst1q_s32(to + 12, vdupq_laneq_s32(sums, 3));
    }
}

// find_starts for whole groups only, in fewer slots: [4 groups][4 lanes].
INLINE void find_group_starts(const int bias, const int32_t* totals, int32_t* to) {
    UNROLL
    for (int i = 0; i < 2; ++i) {
        const int32x4_t sums = vmlsq_s32(vdupq_n_s32(LW_MAGIC_BITS), vld1q_s32(totals + 4 * i), vdupq_n_s32(bias));
        vst1q_s32(to + 8 * i, vdupq_laneq_s32(sums, 1));
        vst1q_s32(to + 8 * i + 4, vdupq_laneq_s32(sums, 3));
    }
}

#endif
