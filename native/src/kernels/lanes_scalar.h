// Lanes as plain loops: they define what the other lanes compute.
typedef struct vf {
    float v[16];
} vf;
typedef struct vi {
    int32_t v[16];
} vi;
enum { VF_AT_ONCE = 1 };

#define LW_EACH(type, expression)                     \
    type r;                                           \
    for (int i = 0; i < 16; ++i) r.v[i] = expression; \
    return r

LW_INLINE vf vf_load(const float* p) { LW_EACH(vf, p[i]); }
LW_INLINE void vf_store(float* p, vf x) {
    for (int i = 0; i < 16; ++i) p[i] = x.v[i];
}
LW_INLINE vf vf_set1(float x) { LW_EACH(vf, x); }
LW_INLINE vf vf_add(vf x, vf y) { LW_EACH(vf, x.v[i] + y.v[i]); }
LW_INLINE vf vf_sub(vf x, vf y) { LW_EACH(vf, x.v[i] - y.v[i]); }
LW_INLINE vf vf_mul(vf x, vf y) { LW_EACH(vf, x.v[i] * y.v[i]); }
LW_INLINE vf vf_div(vf x, vf y) { LW_EACH(vf, x.v[i] / y.v[i]); }
LW_INLINE vf vf_min(vf x, vf y) { LW_EACH(vf, x.v[i] < y.v[i] ? x.v[i] : y.v[i]); }
LW_INLINE vf vf_max(vf x, vf y) { LW_EACH(vf, x.v[i] > y.v[i] ? x.v[i] : y.v[i]); }
LW_INLINE vf vf_fma(vf x, vf y, vf z) { LW_EACH(vf, fmaf(x.v[i], y.v[i], z.v[i])); }
LW_INLINE vf vf_fnma(vf x, vf y, vf z) { LW_EACH(vf, fmaf(-x.v[i], y.v[i], z.v[i])); }
LW_INLINE vf vf_load_half(const uint16_t* p) { LW_EACH(vf, lw_half_to_float(p[i])); }
LW_INLINE vf vf_from_bytes(const uint8_t* p, int shift) { LW_EACH(vf, (float)(p[i] >> shift)); }
LW_INLINE vf vf_keep_ge(vf x, float limit, vf y) { LW_EACH(vf, x.v[i] >= limit ? y.v[i] : 0.0f); }
LW_INLINE vi vf_bits(vf x) {
    vi r;
    memcpy(&r, &x, sizeof r);
    return r;
}
LW_INLINE vf vi_as_float(vi x) {
    vf r;
    memcpy(&r, &x, sizeof r);
    return r;
}
// Adding 1.5 * 2^23 rounds to nearest even; only used for |x| < 2^22.
LW_INLINE vi vf_round(vf x) { LW_EACH(vi, (int32_t)((x.v[i] + 12582912.0f) - 12582912.0f)); }
LW_INLINE vf vf_from_int(vi x) { LW_EACH(vf, (float)x.v[i]); }
LW_INLINE vi vi_set1(int32_t x) { LW_EACH(vi, x); }
LW_INLINE vi vi_add(vi x, vi y) { LW_EACH(vi, (int32_t)((uint32_t)x.v[i] + (uint32_t)y.v[i])); }
LW_INLINE vi vi_and(vi x, vi y) { LW_EACH(vi, x.v[i] & y.v[i]); }
LW_INLINE vi vi_shl(vi x, int n) { LW_EACH(vi, (int32_t)((uint32_t)x.v[i] << n)); }
LW_INLINE vi vi_max(vi x, vi y) { LW_EACH(vi, x.v[i] > y.v[i] ? x.v[i] : y.v[i]); }
LW_INLINE int32_t vi_largest(vi x) {
    int32_t largest = x.v[0];
    for (int i = 1; i < 16; ++i) largest = x.v[i] > largest ? x.v[i] : largest;
    return largest;
}
LW_INLINE void vi_totals(int32_t* to, const vi x[4]) {
    for (int i = 0; i < 4; ++i) {
        to[i] = i % 2 == 1 ? to[i - 1] : 0;
        for (int j = 0; j < 16; ++j) to[i] += x[i].v[j];
    }
}

LW_INLINE void vi_largest_each(int32_t* to, const vi x[4]) {
    for (int i = 0; i < 4; ++i) to[i] = vi_largest(x[i]);
}

LW_INLINE int vi_count_ge(vi x, vi y, int32_t limit) {
    int n = 0;
    for (int i = 0; i < 16; ++i) n += (x.v[i] >= limit) + (y.v[i] >= limit);
    return n;
}
LW_INLINE void vi_store_i8(int8_t* p, vi x) {
    for (int i = 0; i < 16; ++i) p[i] = (int8_t)x.v[i];
}

#undef LW_EACH
LW_INLINE float vf_largest(vf a) {
    float largest = a.v[0];
    for (int i = 1; i < 16; ++i) largest = a.v[i] > largest ? a.v[i] : largest;
    return largest;
}
