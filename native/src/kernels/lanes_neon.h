// Lanes on NEON (Armv8.0): four registers of four.
#include <arm_neon.h>

typedef struct vf {
    float32x4_t v[4];
} vf;
typedef struct vi {
    int32x4_t v[4];
} vi;
enum { VF_AT_ONCE = 1 };

#define LW_EACH(type, expression)                    \
    type r;                                          \
    for (int i = 0; i < 4; ++i) r.v[i] = expression; \
    return r

LW_INLINE vf vf_load(const float* p) { LW_EACH(vf, vld1q_f32(p + 4 * i)); }
LW_INLINE void vf_store(float* p, vf x) {
    for (int i = 0; i < 4; ++i) vst1q_f32(p + 4 * i, x.v[i]);
}
LW_INLINE vf vf_set1(float x) { LW_EACH(vf, vdupq_n_f32(x)); }
LW_INLINE vf vf_add(vf x, vf y) { LW_EACH(vf, vaddq_f32(x.v[i], y.v[i])); }
LW_INLINE vf vf_sub(vf x, vf y) { LW_EACH(vf, vsubq_f32(x.v[i], y.v[i])); }
LW_INLINE vf vf_mul(vf x, vf y) { LW_EACH(vf, vmulq_f32(x.v[i], y.v[i])); }
LW_INLINE vf vf_div(vf x, vf y) { LW_EACH(vf, vdivq_f32(x.v[i], y.v[i])); }
LW_INLINE vf vf_min(vf x, vf y) { LW_EACH(vf, vminq_f32(x.v[i], y.v[i])); }
LW_INLINE vf vf_max(vf x, vf y) { LW_EACH(vf, vmaxq_f32(x.v[i], y.v[i])); }
LW_INLINE vf vf_fma(vf x, vf y, vf z) { LW_EACH(vf, vfmaq_f32(z.v[i], x.v[i], y.v[i])); }
LW_INLINE vf vf_fnma(vf x, vf y, vf z) { LW_EACH(vf, vfmsq_f32(z.v[i], x.v[i], y.v[i])); }
LW_INLINE vf vf_load_half(const uint16_t* p) {
    const float16x8_t x[] = {vreinterpretq_f16_u16(vld1q_u16(p)), vreinterpretq_f16_u16(vld1q_u16(p + 8))};
    LW_EACH(vf, i % 2 ? vcvt_high_f32_f16(x[i / 2]) : vcvt_f32_f16(vget_low_f16(x[i / 2])));
}
// A conversion takes four times the slots of a subtraction, which is exact for these values (see LW_MAGIC_BITS).
LW_INLINE vf vf_from_bytes(const uint8_t* p, int shift) {
    const uint8x16_t bytes = vshlq_u8(vld1q_u8(p), vdupq_n_s8((int8_t)-shift));
    const uint16x8_t low = vmovl_u8(vget_low_u8(bytes)), high = vmovl_high_u8(bytes);
    const uint32x4_t magic = vdupq_n_u32(LW_MAGIC_BITS);
    const uint32x4_t wide[] = {vaddw_u16(magic, vget_low_u16(low)), vaddw_high_u16(magic, low),
                               vaddw_u16(magic, vget_low_u16(high)), vaddw_high_u16(magic, high)};
    LW_EACH(vf, vsubq_f32(vreinterpretq_f32_u32(wide[i]), vdupq_n_f32(LW_MAGIC)));
}
LW_INLINE vf vf_keep_ge(vf x, float limit, vf y) {
    const float32x4_t l = vdupq_n_f32(limit);
    LW_EACH(vf, vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(y.v[i]), vcgeq_f32(x.v[i], l))));
}
LW_INLINE vi vf_bits(vf x) { LW_EACH(vi, vreinterpretq_s32_f32(x.v[i])); }
LW_INLINE vf vi_as_float(vi x) { LW_EACH(vf, vreinterpretq_f32_s32(x.v[i])); }
LW_INLINE vi vf_round(vf x) { LW_EACH(vi, vcvtnq_s32_f32(x.v[i])); }
LW_INLINE vf vf_from_int(vi x) { LW_EACH(vf, vcvtq_f32_s32(x.v[i])); }
LW_INLINE vi vi_set1(int32_t x) { LW_EACH(vi, vdupq_n_s32(x)); }
LW_INLINE vi vi_add(vi x, vi y) { LW_EACH(vi, vaddq_s32(x.v[i], y.v[i])); }
LW_INLINE vi vi_and(vi x, vi y) { LW_EACH(vi, vandq_s32(x.v[i], y.v[i])); }
LW_INLINE vi vi_shl(vi x, int n) { LW_EACH(vi, vshlq_s32(x.v[i], vdupq_n_s32(n))); }
LW_INLINE vi vi_sar(vi x, int n) { LW_EACH(vi, vshlq_s32(x.v[i], vdupq_n_s32(-n))); }
LW_INLINE vi vi_max(vi x, vi y) { LW_EACH(vi, vmaxq_s32(x.v[i], y.v[i])); }
LW_INLINE int32_t vi_largest(vi x) {
    return vmaxvq_s32(vmaxq_s32(vmaxq_s32(x.v[0], x.v[1]), vmaxq_s32(x.v[2], x.v[3])));
}
LW_INLINE void vi_totals(int32_t* to, const vi x[4]) {
    int32x4_t four[4];
    for (int i = 0; i < 4; ++i) four[i] = vaddq_s32(vaddq_s32(x[i].v[0], x[i].v[1]), vaddq_s32(x[i].v[2], x[i].v[3]));
    const int32x4_t sums = vpaddq_s32(vpaddq_s32(four[0], four[1]), vpaddq_s32(four[2], four[3]));
    vst1q_s32(to, vaddq_s32(sums, vreinterpretq_s32_s64(vshlq_n_s64(vreinterpretq_s64_s32(sums), 32))));
}

LW_INLINE void vi_largest_each(int32_t* to, const vi x[4]) {
    int32x4_t four[4];
    for (int i = 0; i < 4; ++i) four[i] = vmaxq_s32(vmaxq_s32(x[i].v[0], x[i].v[1]), vmaxq_s32(x[i].v[2], x[i].v[3]));
    vst1q_s32(to, vpmaxq_s32(vpmaxq_s32(four[0], four[1]), vpmaxq_s32(four[2], four[3])));
}

LW_INLINE int vi_count_ge(vi x, vi y, int32_t limit) {
    const int32x4_t least = vdupq_n_s32(limit);
    uint32x4_t ones = vdupq_n_u32(0);  // minus the number of lanes
    for (int i = 0; i < 4; ++i) ones = vaddq_u32(ones, vaddq_u32(vcgeq_s32(x.v[i], least), vcgeq_s32(y.v[i], least)));
    return -(int)vaddvq_u32(ones);
}

LW_INLINE void vi_store_i8(int8_t* p, vi x) {
    const int16x8_t low = vcombine_s16(vmovn_s32(x.v[0]), vmovn_s32(x.v[1]));
    const int16x8_t high = vcombine_s16(vmovn_s32(x.v[2]), vmovn_s32(x.v[3]));
    vst1q_s8(p, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
}
LW_INLINE float vf_largest(vf x) { return vmaxvq_f32(vmaxq_f32(vmaxq_f32(x.v[0], x.v[1]), vmaxq_f32(x.v[2], x.v[3]))); }

#undef LW_EACH
