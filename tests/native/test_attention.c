// Attention of every level against its definition, written here token by token and bit for bit.
//
// Shapes are drawn at random: contexts across several splits of 1024 tokens, windows, groups of query heads, head
// sizes that are no multiple of a vector, f16 and f32 caches, scattered blocks, unwritten tokens that hold NaN. Each job
// is done whole and in splits, the last one first.
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/half.h"
#include "kernels/lane_ops.h"

enum { MAX_BLOCKS = 128, MAX_ROWS = 80, HEADS = 3 };

static uint64_t state = 1;

static uint64_t draw(uint64_t below) {  // splitmix64
    uint64_t x = state += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return (x ^ x >> 31) % below;
}

static float uniform(void) { return (float)draw(1 << 24) * 0x1p-23f - 1.0f; }

typedef struct sample {
    lw_attention_job job;
    size_t context, kv_heads;
    uint8_t* cache;
    float *q, *out;
    uint32_t blocks[MAX_BLOCKS];
} sample;

static void* allocate(size_t bytes) {
    void* p = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (p == NULL) exit(2);
    return memset(p, 0xFF, bytes);  // NaN in f16 and f32
}

static void put(const sample* s, size_t index, uint8_t* base, float value) {
    if (s->job.kv.is_f16)
        ((uint16_t*)base)[index] = lw_float_to_half(value);
    else
        ((float*)base)[index] = value;
}

static float get(const sample* s, size_t index, const uint8_t* base) {
    return s->job.kv.is_f16 ? lw_half_to_float(((const uint16_t*)base)[index]) : ((const float*)base)[index];
}

static uint8_t* head_at(const sample* s, size_t block) {
    return s->cache + s->blocks[block] * s->job.kv.block_bytes + s->job.kv_head * s->job.kv.head_bytes;
}

static sample make(void) {
    static const size_t dims[] = {8, 18, 64, 64, 80, 128};
    sample s = {.kv_heads = 1 + draw(HEADS)};
    lw_kv_view* kv = &s.job.kv;
    kv->is_f16 = draw(4) > 0;
    kv->head_dim = dims[draw(6)];
    kv->value_dim = lw_align_floats(kv->head_dim);
    const size_t element = kv->is_f16 ? 2 : 4;
    kv->value_offset = LW_BLOCK_TOKENS * kv->head_dim * element;
    kv->head_bytes = kv->value_offset + LW_BLOCK_TOKENS * kv->value_dim * element;
    kv->block_bytes = kv->head_bytes * s.kv_heads;
    s.job.group = 1 + draw(9);
    s.job.n_tokens = draw(3) == 0 ? 1 : 1 + draw(MAX_ROWS / s.job.group);
    s.context = s.job.n_tokens + draw(draw(2) ? 100 : MAX_BLOCKS * LW_BLOCK_TOKENS - MAX_ROWS);
    s.job.first_position = s.context - s.job.n_tokens;
    s.job.window = draw(3) == 0 ? 1 + draw(s.context + 10) : 0;
    s.job.kv_head = draw(s.kv_heads);
    s.cache = allocate(MAX_BLOCKS * kv->block_bytes);
    kv->base = s.cache;
    for (uint32_t i = 0; i < MAX_BLOCKS; ++i) s.blocks[i] = i * 37 % MAX_BLOCKS;
    const float scale = draw(2) ? 1.0f : 30.0f;  // flat and peaked softmax
    for (size_t t = 0; t < s.context; ++t) {
        uint8_t* head = head_at(&s, t / LW_BLOCK_TOKENS);
        for (size_t d = 0; d < kv->head_dim; ++d) put(&s, d * LW_BLOCK_TOKENS + t % LW_BLOCK_TOKENS, head, uniform());
        for (size_t d = 0; d < kv->value_dim; ++d)
            put(&s, t % LW_BLOCK_TOKENS * kv->value_dim + d, head + kv->value_offset,
                d < kv->head_dim ? uniform() : 0.0f);
    }
    s.job.q_stride = s.job.out_stride = s.job.group * kv->head_dim + draw(20);
    s.q = allocate(s.job.n_tokens * s.job.q_stride * sizeof(float));
    s.out = allocate(s.job.n_tokens * s.job.q_stride * sizeof(float));
    for (size_t i = 0; i < s.job.n_tokens * s.job.q_stride; ++i) s.q[i] = scale * uniform();
    s.job.q = s.q;
    s.job.out = s.out;
    return s;
}

static void release(sample* s) {
    free(s->cache);
    free(s->q);
    free(s->out);
}

static float exp_of(float x) {  // the contract's exponential, which has tests of its own through every softmax
    float in[LW_LANES] = {x}, out[LW_LANES];
    lw_level_lane_ops[LW_LEVEL_SCALAR]->exp(out, in, LW_LANES, 0.0f, 1.0f);
    return out[0];
}

typedef struct softmax {
    float largest, sums[LW_LANES], values[256];
} softmax;

// Tokens first .. end-1 of one block, all of which the query sees.
static void step_block(const sample* s, softmax* p, const float* q, size_t first, size_t end) {
    const lw_kv_view* kv = &s->job.kv;
    const uint8_t* head = head_at(s, first / LW_BLOCK_TOKENS);
    const size_t base = first / LW_BLOCK_TOKENS * LW_BLOCK_TOKENS;
    float probability[LW_BLOCK_TOKENS] = {0}, largest = p->largest;
    for (size_t t = first - base; t < end - base; ++t) {
        for (size_t d = 0; d < kv->head_dim; ++d)
            probability[t] = fmaf(q[d], get(s, d * LW_BLOCK_TOKENS + t, head), probability[t]);
        if (probability[t] > largest) largest = probability[t];
    }
    const float shrink = p->largest == largest ? 1.0f : exp_of(p->largest - largest);
    for (size_t t = 0; t < LW_BLOCK_TOKENS; ++t)
        probability[t] = t < first - base || t >= end - base ? 0.0f : exp_of(probability[t] - largest);
    for (size_t i = 0; i < LW_LANES; ++i)
        p->sums[i] = (p->sums[i] * shrink + probability[i]) + probability[LW_LANES + i];
    for (size_t d = 0; d < kv->head_dim; ++d) {
        p->values[d] *= shrink;
        for (size_t t = first - base; t < end - base; ++t)
            p->values[d] = fmaf(probability[t], get(s, t * kv->value_dim + d, head + kv->value_offset), p->values[d]);
    }
    p->largest = largest;
}

static void merge(softmax* total, const softmax* split, size_t dims) {
    if (total->largest == -INFINITY) {
        *total = *split;
        return;
    }
    const float largest = total->largest > split->largest ? total->largest : split->largest;
    const float a = exp_of(total->largest - largest), b = exp_of(split->largest - largest);
    for (size_t i = 0; i < LW_LANES; ++i) total->sums[i] = fmaf(split->sums[i], b, total->sums[i] * a);
    for (size_t d = 0; d < dims; ++d) total->values[d] = fmaf(split->values[d], b, total->values[d] * a);
    total->largest = largest;
}

// One query row: blocks in order, afresh in every split, splits merged in order.
static void define_row(const sample* s, size_t token, size_t head, float* out) {
    const float* q = s->q + token * s->job.q_stride + head * s->job.kv.head_dim;
    const size_t end = s->job.first_position + token + 1, window = s->job.window;
    size_t first = window != 0 && end > window ? end - window : 0;
    softmax total = {.largest = -INFINITY};
    while (first < end) {
        const size_t split_end = (first / LW_SPLIT_TOKENS + 1) * LW_SPLIT_TOKENS;
        softmax split = {.largest = -INFINITY};
        while (first < end && first < split_end) {
            const size_t block_end = (first / LW_BLOCK_TOKENS + 1) * LW_BLOCK_TOKENS;
            step_block(s, &split, q, first, block_end < end ? block_end : end);
            first = block_end;
        }
        merge(&total, &split, s->job.kv.head_dim);
    }
    for (int width = LW_LANES / 2; width > 0; width /= 2)
        for (int i = 0; i < width; ++i) total.sums[i] += total.sums[i + width];
    const float scale = 1.0f / total.sums[0];
    for (size_t d = 0; d < s->job.kv.head_dim; ++d) out[d] = total.values[d] * scale;
}

// Number of rows whose bits differ.
static size_t compare(const sample* s, const char* level) {
    size_t failed = 0;
    for (size_t t = 0; t < s->job.n_tokens; ++t)
        for (size_t h = 0; h < s->job.group; ++h) {
            float expected[256];
            define_row(s, t, h, expected);
            const float* got = s->out + t * s->job.q_stride + h * s->job.kv.head_dim;
            if (memcmp(expected, got, s->job.kv.head_dim * sizeof(float)) == 0) continue;
            if (failed++ == 0)
                printf(
                    "%s: context %zu, %zu tokens, group %zu, head_dim %zu, window %zu: token %zu, head %zu differs\n",
                    level, s->context, s->job.n_tokens, s->job.group, s->job.kv.head_dim, s->job.window, t, h);
        }
    return failed;
}

static void attend_in_splits(const sample* s, const lw_lane_ops* ops) {
    const lw_tokens splits = lw_attention_splits(s->job.first_position, s->job.n_tokens, s->job.window);
    const size_t rows = lw_attention_rows(s->job.n_tokens, s->job.group);
    const size_t floats = lw_attention_state_floats(rows, s->job.kv.value_dim), n = splits.end - splits.first;
    float* states = allocate(n * floats * sizeof(float));
    for (size_t i = n; i-- > 0;) ops->attention_split(&s->job, splits.first + i, states + i * floats);
    ops->attention_merge(&s->job, states, n);
    free(states);
}

int main(int argc, char** argv) {
    const unsigned long samples = argc > 1 ? strtoul(argv[1], NULL, 10) : 40;
    const uint64_t saved = lw_fp_enter();
    size_t failed = 0, passed = 0;
    for (unsigned long i = 0; i < samples; ++i) {
        sample s = make();
        s.job.blocks = s.blocks;
        s.job.scratch =
            allocate(sizeof(float) * lw_attention_scratch_floats(s.job.n_tokens, s.job.group, s.job.kv.value_dim));
        for (int level = 0; level < LW_LEVEL_COUNT; ++level) {
            if (!(lw_cpu_levels() >> level & 1)) continue;
            for (int in_splits = 0; in_splits < 2; ++in_splits) {
                memset(s.out, 0xFF, s.job.n_tokens * s.job.q_stride * sizeof(float));
                if (in_splits)
                    attend_in_splits(&s, lw_level_lane_ops[level]);
                else
                    lw_level_lane_ops[level]->attention(&s.job);
                const size_t wrong = compare(&s, lw_level_names[level]);
                *(wrong > 0 ? &failed : &passed) += 1;
            }
        }
        free(s.job.scratch);
        release(&s);
    }
    lw_fp_restore(saved);
    printf("%zu passed, %zu failed\n", passed, failed);
    return failed != 0;
}
