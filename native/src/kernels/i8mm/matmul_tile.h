// Tiles of SMMLA: a vector holds two outputs by eight inputs, a sum two rows by two outputs.
//
// Sums stay in that 2x2 shape until the product is done, and scales are duplicated to match: no shuffles in the loops.
// One row alone uses SDOT on the same packed weights and adds neighbours once per group.
#ifndef LW_KERNELS_I8MM_MATMUL_TILE_H
#define LW_KERNELS_I8MM_MATMUL_TILE_H

#include "kernels/i8mm/tile.h"
#include "kernels/neon/matmul_common.h"

// Loads half of group `group` of four outputs: w[2i + p] holds eight inputs of outputs 2p and 2p + 1, from chunk
// chunk_of(from, step, i). A step of Q4_0 uses all bytes that it loads; a step of Q6_K is one of the two groups of 16
// inputs. FROM_Q6 gives unsigned codes, which are 32 too large.
INLINE int chunk_of(const source from, const int step, const int i) {
    return from == FROM_Q4 ? step + 2 * i : 2 * step + i;
}

INLINE void load_step(const source from, const segment* s, size_t group, size_t quad, const int step, int8x16_t w[4]) {
    const uint8_t* base = s->data + group * packed_group_bytes(from) + quad * 32;
    UNROLL
    for (int p = 0; p < 2; ++p) {
        if (from == FROM_Q8) {
            w[p] = vreinterpretq_s8_u8(vld1q_u8(base + 512 * step + 16 * p));
            w[2 + p] = vreinterpretq_s8_u8(vld1q_u8(base + 512 * step + 256 + 16 * p));
        } else if (from == FROM_Q4) {
            const uint8x16_t raw = vld1q_u8(base + 256 * step + 16 * p);
            w[p] = vreinterpretq_s8_u8(vshlq_n_u8(raw, 4));
            w[2 + p] = vreinterpretq_s8_u8(vandq_u8(raw, vdupq_n_u8(0xF0)));
        } else {
            int8x16_t codes[2];
            decode_q6(base + 16 * p, base + 256 + 16 * p, base + LW_Q6_LOW_BYTES + 16 * p, step, codes);
            w[p] = codes[0];
            w[2 + p] = codes[1];
        }
    }
}

// Loads four f16 into the lower half; the upper half is 0.
INLINE float16x8_t four_halves(const uint8_t* p) {
    return vcombine_f16(vreinterpret_f16_u8(vld1_u8(p)), vdup_n_f16(0));
}

// load_start from any address that a load instruction can use.
INLINE int32x4_t load_now(const int32_t* from) {
    int32x4_t v;
    __asm__ volatile("ldr %q0, %1" : "=w"(v) : "m"(*(const int32_t(*)[4])from));
    return v;
}

INLINE float32x4_t load_zero(void) {
    static const int32_t zero[4] = {0};
    return vreinterpretq_f32_s32(load_now(zero));
}

// The integer value of a sum that started at LW_MAGIC_BITS.
INLINE float32x4_t sum_float(int32x4_t sum, float32x4_t magic) { return vsubq_f32(vreinterpretq_f32_s32(sum), magic); }

// The integer sum times the scale, rounded once; +0 if it is 0.
INLINE float32x4_t scaled(float32x4_t sum, float32x4_t scale) { return vfmaq_f32(load_zero(), sum, scale); }

// The scales of a group of four outputs: one, or for Q6_K one for each half. `super` is their f16 scale in Q6_K.
INLINE void load_scales(const source from, const segment* s, size_t group, size_t quad, float32x4_t super,
                        float32x4_t scale[2]) {
    const uint8_t* at = s->data + group * packed_group_bytes(from) + scale_offset(from);
    if (from == FROM_Q6) {
        UNROLL
        for (int h = 0; h < 2; ++h) {
            const int16x8_t codes = vmovl_s8(vld1_s8((const int8_t*)at + h * LW_PANEL + 4 * quad));
            const int32x4_t biased = vaddw_s16(vdupq_n_s32(LW_MAGIC_BITS), vget_low_s16(codes));
            scale[h] = vmulq_f32(super, vsubq_f32(vreinterpretq_f32_s32(biased), vdupq_n_f32(LW_MAGIC)));  // exact
        }
    } else {  // a widening product takes one slot, FCVTL two; Q4_0 codes are 16 times too large
        const float16x8_t halves = vcombine_f16(vreinterpret_f16_u8(vld1_u8(at + 8 * quad)), vdup_n_f16(0));
        scale[0] = vfmlalq_low_f16(load_zero(), halves, vdupq_n_f16(from == FROM_Q4 ? 0.0625f : 1));
    }
}

// The f16 scale of four outputs for a segment of Q6_K.
INLINE float32x4_t super_scale(const source from, const segment* s, size_t quad) {
    return from == FROM_Q6 ? load_half4(s->super + 8 * quad) : vdupq_n_f32(0);
}

// [s0 s1 s0 s1] and [s2 s3 s2 s3]
INLINE void duplicate(float32x4_t scale, float32x4_t out[2]) {
    const float64x2_t twos = vreinterpretq_f64_f32(scale);
    out[0] = vreinterpretq_f32_f64(vdupq_laneq_f64(twos, 0));
    out[1] = vreinterpretq_f32_f64(vdupq_laneq_f64(twos, 1));
}

// find_starts for the rows of pair `pair`, in the order of 2x2 sums.
INLINE void find_pair_starts(const int bias, const bool halves, const lw_activations* x, size_t pair, size_t index,
                             int32_t to[8][4]) {
    const int32_t* totals = x->totals + lw_totals_offset(x, 2 * pair, index * LW_SEGMENT);
    int32_t other[8][4];
    find_starts(bias, halves, totals, to[0]);
    find_starts(bias, halves, totals + x->stride / 16, other[0]);
    UNROLL
    for (int i = halves ? 0 : 1; i < 8; i += halves ? 1 : 2)
        vst1q_s32(to[i], vcombine_s32(vld1_s32(to[i]), vld1_s32(other[i])));
}

// [groups][a a b b]: the activation scales of a pair of rows from segment `index` on.
INLINE const float* pair_scales(const lw_activations* x, size_t pair, size_t index) {
    return x->scale + lw_scale_offset(x, 2 * pair, index * LW_SEGMENT_GROUPS);
}

// `pairs` pairs of rows by 4 * `quads` outputs over one segment, added to results[pair of rows][pair of outputs].
// `starts`, FROM_Q6 only: the start of the sums of each pair and step.
INLINE void tile(const source from, const int pairs, const int quads, const segment* s, const lw_activations* x,
                 const int32_t starts[4][8][4], size_t quad, float* results) {
    const bool halves = from == FROM_Q6;  // steps of 16 inputs
    const float32x4_t magic = vdupq_n_f32(LW_MAGIC);
    float32x4_t acc[4][8], super[4];
    const size_t stride = 2 * x->stride, x_scale_stride = x->segments * LW_SEGMENT_GROUPS * 4;
    const int8_t* q = x->q + 2 * s->k;
    const float* x_scale = pair_scales(x, 0, s->index);
    UNROLL
    for (int r = 0; r < pairs; ++r) UNROLL
    for (int j = 0; j < 2 * quads; ++j) acc[r][j] = vld1q_f32(results + 2 * r * LW_PANEL + 8 * quad + 4 * j);
    UNROLL
    for (int j = 0; j < quads; ++j) super[j] = super_scale(from, s, quad + j);
    for (size_t g = 0; g < s->groups; ++g, x_scale += 4) {
        UNROLL
        for (int j = 0; j < quads; ++j) {
            float32x4_t single[2], scale[2][2];  // [half][pair of outputs]
            load_scales(from, s, g, quad + j, super[j], single);
            UNROLL
            for (int h = 0; h <= halves; ++h) duplicate(single[h], scale[h]);
            UNROLL
            for (int h = 0; h <= halves; ++h) {
                int8x16_t w[2][4];
                UNROLL
                for (int i = 0; i < 2 - halves; ++i) load_step(from, s, g, quad + j, h + i, w[i]);
                UNROLL
                for (int r = 0; r < pairs; ++r) UNROLL
                for (int p = 0; p < 2; ++p) {
                    int32x4_t sum = load_now(halves ? starts[r][2 * g + h] : lw_magic_start);
                    UNROLL
                    for (int i = 0; i < 4 - 2 * halves; ++i) {
                        const int8_t* inputs = q + r * stride + g * 64 + chunk_of(from, h + i / 2, i % 2) * 16;
                        sum = vmmlaq_s32(sum, vld1q_s8(inputs), w[i / 2][2 * (i % 2) + p]);
                    }
                    const float32x4_t u = scaled(sum_float(sum, magic), scale[h][p]);
                    acc[r][2 * j + p] = vfmaq_f32(acc[r][2 * j + p], u, vld1q_f32(x_scale + r * x_scale_stride));
                }
            }
        }
    }
    UNROLL
    for (int r = 0; r < pairs; ++r) UNROLL
    for (int j = 0; j < 2 * quads; ++j) vst1q_f32(results + 2 * r * LW_PANEL + 8 * quad + 4 * j, acc[r][j]);
}

// Loads the inputs of a group for one row, for SDOT with two outputs by eight inputs. Each eight inputs are there
// twice, and the last four are negated. Sums of the negated ones start at minus the magic number. So adding neighbours
// as floats cancels the magic number and leaves the sum of both.
INLINE void spread_inputs(const int8_t* q, int8x16_t to[4]) {
    const int8x16_t signs = {1, 1, 1, 1, -1, -1, -1, -1, 1, 1, 1, 1, -1, -1, -1, -1};
    UNROLL
    for (int half = 0; half < 2; ++half) {
        const int64x2_t twos = vreinterpretq_s64_s8(vmulq_s8(vld1q_s8(q + 16 * half), signs));
        to[2 * half] = vreinterpretq_s8_s64(vdupq_laneq_s64(twos, 0));
        to[2 * half + 1] = vreinterpretq_s8_s64(vdupq_laneq_s64(twos, 1));
    }
}

// Start values of the two sums of one row in a step whose codes are `bias` too large and whose inputs have the sum
// `total`. Computed in integer registers, which leaves the vector pipes free.
INLINE void find_row_start(const int bias, int32_t total, int32_t to[4]) {
    const uint64_t start = (uint32_t)(LW_MAGIC_BITS - bias * total) | (uint64_t)(LW_MAGIC_BITS | 0x80000000u) << 32,
                   twice[2] = {start, start};
    memcpy(to, twice, sizeof twice);
}

static const uint32_t lw_row_start[4] = {LW_MAGIC_BITS, LW_MAGIC_BITS | 0x80000000u, LW_MAGIC_BITS,
                                         LW_MAGIC_BITS | 0x80000000u};

// Sums of four outputs, made from two partial sums each.
INLINE float32x4_t fold(const int32x4_t sum[2]) {
    return vpaddq_f32(vreinterpretq_f32_s32(sum[0]), vreinterpretq_f32_s32(sum[1]));
}

// Starts a sum and adds two products; as assembly, because the compiler otherwise copies the sum from register to
// register.
INLINE int32x4_t dot_twice(const int32_t start[4], int8x16_t w0, int8x16_t x0, int8x16_t w1, int8x16_t x1) {
    int32x4_t sum;
    __asm__(
        "ldr %q0, %5\n\t"
        "sdot %0.4s, %1.16b, %2.16b\n\t"
        "sdot %0.4s, %3.16b, %4.16b"
        : "=&w"(sum)
        : "w"(w0), "w"(x0), "w"(w1), "w"(x1), "m"(*(const int32_t(*)[4])start));
    return sum;
}

// One step of four outputs of one row of Q6_K: 16 inputs, whose sums begin at `start`.
INLINE float32x4_t q6_step(const segment* s, size_t group, size_t quad, const int step, const int8x16_t in[4],
                           const int32_t start[4], float32x4_t scale) {
    int32x4_t sum[2];
    int8x16_t w[4];
    load_step(FROM_Q6, s, group, quad, step, w);
    UNROLL
    for (int p = 0; p < 2; ++p) sum[p] = dot_twice(start, w[p], in[2 * step], w[2 + p], in[2 * step + 1]);
    return vmulq_f32(fold(sum), scale);  // may be -0, which changes no result but 0, and that one is stored as +0
}

// One row by a segment of Q6_K, added to acc[8 quads].
INLINE void row_of_q6(const segment* s, const lw_activations* x, float32x4_t acc[QUADS]) {
    const int8_t* q = x->q + s->index * LW_SEGMENT;
    const float* x_scale = x->scale + s->index * LW_SEGMENT_GROUPS;
    const int32_t* totals = x->totals + s->index * (LW_SEGMENT / 16);
    float supers[LW_PANEL], magics[LW_PANEL];
    store_supers(s, supers, magics);
    for (size_t g = 0; g < LW_SEGMENT_GROUPS; ++g) {
        int8x16_t in[4];
        int32_t starts[2][4];
        spread_inputs(q + g * LW_GROUP, in);
        find_row_start(32, totals[2 * g], starts[0]);
        find_row_start(32, totals[2 * g + 1] - totals[2 * g], starts[1]);
        const float32x4_t da = load_lane(x_scale + g);
        UNROLL
        for (size_t quad = 0; quad < QUADS; quad += 2) {
            float32x4x2_t scale[2];
            scales_of_q6(s, supers, magics, g, quad, scale);
            UNROLL
            for (size_t j = 0; j < 2; ++j) UNROLL
            for (int h = 0; h < 2; ++h)
                acc[quad + j] = fma_lane(acc[quad + j], q6_step(s, g, quad + j, h, in, starts[h], scale[h].val[j]), da);
        }
    }
}

// All outputs of a panel for 1 to 4 pairs of rows. Fewer pairs take more outputs at once, so that enough sums are in
// flight.
INLINE void pairs_by_panel(const source from, const int pairs, const segment* s, const lw_activations* x,
                           float* results) {
    const int quads = pairs == 1 ? 2 : 1;
    int32_t starts[4][8][4];
    for (int r = 0; r < pairs && from == FROM_Q6; ++r) find_pair_starts(32, true, x, r, s->index, starts[r]);
    for (size_t quad = 0; quad < QUADS; quad += quads)
        tile(from, pairs, quads, s, x, (const int32_t(*)[8][4])starts, quad, results);
}

INLINE void up_to_4_pairs(const source from, size_t pairs, const segment* s, const lw_activations* x, float* results) {
    switch (pairs) {
        case 1:
            pairs_by_panel(from, 1, s, x, results);
            break;
        case 2:
            pairs_by_panel(from, 2, s, x, results);
            break;
        case 3:
            pairs_by_panel(from, 3, s, x, results);
            break;
        default:
            pairs_by_panel(from, 4, s, x, results);
            break;
    }
}

// Reorders the results of two rows, in place, from 2x2 blocks to one row after the other.
INLINE void separate_rows(float* pair) {
    float32x4_t block[2 * QUADS];
    for (size_t i = 0; i < 2 * QUADS; ++i) block[i] = vld1q_f32(pair + 4 * i);
    for (size_t i = 0; i < QUADS; ++i) {
        vst1q_f32(pair + 4 * i, vcombine_f32(vget_low_f32(block[2 * i]), vget_low_f32(block[2 * i + 1])));
        vst1q_f32(pair + LW_PANEL + 4 * i, vcombine_f32(vget_high_f32(block[2 * i]), vget_high_f32(block[2 * i + 1])));
    }
}

// One row, or pairs of rows one after the other. So many groups are done at a time that each pair finds the weights in
// the first-level cache.
INLINE void rows_by_panel(const lw_mm_rows_fn rows, const lw_matrix* w, const lw_activations* x, size_t panel,
                          const workspace* work) {
    const size_t pairs = (x->rows + 1) / 2, block = pairs > 1 ? 4 * LW_SEGMENT_GROUPS : w->groups;
    for (size_t g = 0; g < w->groups; g += block)
        for (size_t pair = 0; pair < pairs; ++pair) {
            const lw_mm_rows t = {.q = x->q + pair * 2 * x->stride + g * x->row_block * LW_GROUP,
                                  .packed = w->data + panel * w->panel_bytes + g * (w->panel_bytes / w->groups),
                                  .groups = w->groups - g < block ? w->groups - g : block,
                                  .x_scale = x->scale + lw_scale_offset(x, 2 * pair, g),
                                  .results = work->results + pair * 2 * LW_PANEL,
                                  .fetch_ahead = pair == 0 ? lw_cpu_fetch_distance() : 0};
            rows(&t);
        }
}

INLINE void gemv(const source from, const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out,
                 void* scratch) {
    const workspace work = workspace_of(scratch, 1);
    if (from != FROM_Q6) rows_by_panel(from == FROM_Q4 ? gemv_q4__i8mm : gemv_q8__i8mm, w, x, panel, &work);
    if (from == FROM_Q6) {
        float32x4_t acc[QUADS];
        UNROLL
        for (size_t i = 0; i < QUADS; ++i) acc[i] = vdupq_n_f32(0);
        for (size_t i = 0; i < x->segments; ++i) {
            const segment s = segment_of(w, panel, i, LW_Q6_GROUP_BYTES);
            lw_fetch_ahead_of(w, panel, i, x->segments);
            row_of_q6(&s, x, acc);
        }
        UNROLL
        for (size_t i = 0; i < QUADS; ++i) vst1q_f32(work.results + 4 * i, acc[i]);
    }
    lw_store_panel(w, panel, 1, work.results, out);
}

// One to four pairs of rows.
INLINE void gemm_in_registers(const source from, const lw_matrix* w, const lw_activations* x, size_t panel,
                              lw_output out, void* scratch) {
    const workspace work = workspace_of(scratch, x->rows);
    const size_t pairs = (x->rows + 1) / 2;
    const bool done = from == FROM_Q8 || (from == FROM_Q4 && pairs == 1);
    if (done) rows_by_panel(from == FROM_Q4 ? gemm_2_q4__i8mm : gemm_2_q8__i8mm, w, x, panel, &work);
    for (size_t i = 0; i < x->segments && !done; ++i) {
        const segment s = segment_of(w, panel, i, packed_group_bytes(from));
        lw_fetch_ahead_of(w, panel, i, x->segments);
        up_to_4_pairs(from, pairs, &s, x, work.results);
    }
    for (size_t pair = 0; pair < pairs; ++pair) separate_rows(work.results + pair * 2 * LW_PANEL);
    lw_store_panel(w, panel, x->rows, work.results, out);
}

#endif
