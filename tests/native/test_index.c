// Index scores of every level against their definition, written here token by token and bit for bit: sums over heads,
// and the largest product of each head in blocks of tokens. Blocks of the cache are scattered and hold f32 or f16 keys;
// tokens that have no scores hold NaN.
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/half.h"
#include "kernels/lane_ops.h"
#include "kv_cache.h"

enum { BLOCKS = 24, HEADS = 21, DIM = 80, TOKENS = BLOCKS * LW_BLOCK_TOKENS };

static uint64_t state = 1;

static uint64_t draw(uint64_t below) {  // splitmix64
    uint64_t x = state += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return (x ^ x >> 31) % below;
}

static float uniform(void) { return (float)draw(1 << 24) * 0x1p-23f - 1.0f; }

typedef struct sample {
    lw_index_job job;
    float keys[TOKENS][DIM];  // as they are stored
    float q[HEADS * DIM], weights[HEADS];
    uint32_t blocks[BLOCKS];
    uint8_t* cache;
} sample;

static void* allocate(size_t bytes) {
    void* p = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (p == NULL) exit(2);
    return memset(p, 0xFF, bytes);  // NaN in f16 and f32
}

static void store(sample* s, size_t token) {
    const lw_kv_view* kv = &s->job.kv;
    const size_t lane = token % LW_BLOCK_TOKENS;
    uint8_t* keys = s->cache + s->blocks[token / LW_BLOCK_TOKENS] * kv->block_bytes + kv->index_offset;
    for (size_t d = 0; d < kv->index_dim; ++d) {
        const float key = uniform();
        const uint16_t half = lw_float_to_half(key);
        if (kv->type == LW_F32)
            ((float*)keys)[d * LW_BLOCK_TOKENS + lane] = key;
        else
            ((uint16_t*)keys)[d * LW_BLOCK_TOKENS + lane] = half;
        s->keys[token][d] = kv->type == LW_F32 ? key : lw_half_to_float(half);
    }
}

// As latent attention and as plain heads have them; beside codes, too.
static void make(sample* s) {
    static const lw_type types[] = {LW_F32, LW_F16, LW_I8, LW_I4};
    const bool latent = draw(2) == 0;
    const lw_attention_config config = {.n_heads = 2,
                                        .n_kv_heads = latent ? 1 : 2,
                                        .head_dim = 16,
                                        .latent_rank = latent ? 32 : 0,
                                        .rope_dim = latent ? 8 : 0,
                                        .index_dim = 2 + 2 * (uint32_t)draw(DIM / 2)};
    lw_kv_cache cache;
    lw_kv_describe(&config, types[draw(latent ? 2 : 4)], BLOCKS, &cache);
    s->cache = allocate(cache.slot_bytes);
    cache.block.data = s->cache;
    s->job = (lw_index_job){.kv = lw_kv_slot(&cache, 0),
                            .blocks = s->blocks,
                            .heads = 1 + draw(HEADS),
                            .q = s->q,
                            .weights = s->weights,
                            .together = LW_BLOCK_TOKENS * (1 + draw(4))};
    const size_t groups = TOKENS / s->job.together, first = draw(groups);
    s->job.tokens = (lw_tokens){first * s->job.together, (first + 1 + draw(groups - first)) * s->job.together};
    s->job.stride = groups + draw(3);
    for (uint32_t i = 0; i < BLOCKS; ++i) s->blocks[i] = i;
    for (uint32_t i = BLOCKS; i-- > 1;) {
        const uint32_t other = (uint32_t)draw(i + 1), kept = s->blocks[i];
        s->blocks[i] = s->blocks[other];
        s->blocks[other] = kept;
    }
    for (size_t i = 0; i < s->job.heads * config.index_dim; ++i) s->q[i] = uniform();
    for (size_t i = 0; i < s->job.heads; ++i) s->weights[i] = uniform();
    for (size_t token = s->job.tokens.first; token < s->job.tokens.end; ++token) store(s, token);
    s->job.scratch = allocate(sizeof(float) * lw_index_scratch_floats(s->job.heads, config.index_dim));
}

static float product(const sample* s, size_t head, size_t token) {
    const size_t dim = s->job.kv.index_dim;
    float sum = 0;
    for (size_t d = 0; d < dim; ++d) sum = fmaf(s->q[head * dim + d], s->keys[token][d], sum);
    return sum;
}

static bool sums_alike(sample* s, const lw_lane_ops* ops) {
    float found[TOKENS];
    s->job.scores = found;
    ops->index_scores(&s->job);
    for (size_t token = s->job.tokens.first; token < s->job.tokens.end; ++token) {
        float wanted = 0;
        for (size_t head = 0; head < s->job.heads; ++head) {
            const float one = product(s, head, token);
            wanted = fmaf(s->weights[head], one > 0 ? one : 0, wanted);
        }
        if (found[token - s->job.tokens.first] != wanted) return false;
    }
    return true;
}

// Beside the scores nothing is written. A product that is not finite makes its block's score NaN, and no other one.
static bool largest_alike(sample* s, const lw_lane_ops* ops, float odd) {
    float found[HEADS * (TOKENS / LW_BLOCK_TOKENS + 3)];
    memset(found, 0xFF, sizeof found);
    const size_t together = s->job.together, n = (s->job.tokens.end - s->job.tokens.first) / together;
    const size_t head_of_odd = draw(s->job.heads) * s->job.kv.index_dim;
    const float kept = s->q[head_of_odd];
    if (odd != 0) s->q[head_of_odd] = odd;
    s->job.scores = found;
    ops->index_largest(&s->job);
    bool alike = true;
    for (size_t head = 0; head < s->job.heads; ++head)
        for (size_t at = 0; at < s->job.stride; ++at) {
            float largest = -INFINITY;
            bool finite = at < n;
            for (size_t i = 0; at < n && i < together; ++i) {
                const float one = product(s, head, s->job.tokens.first + at * together + i);
                finite &= isfinite(one) != 0;
                largest = one > largest ? one : largest;
            }
            const float score = found[head * s->job.stride + at];
            alike &= finite ? score == largest && !(score == 0 && signbit(score)) : isnan(score) != 0;
        }
    s->q[head_of_odd] = kept;
    return alike;
}

int main(int argc, char** argv) {
    const unsigned long samples = argc > 1 ? strtoul(argv[1], NULL, 10) : 60;
    const uint64_t saved = lw_fp_enter();
    size_t failed = 0, passed = 0;
    sample* s = allocate(sizeof *s);
    for (unsigned long i = 0; i < samples; ++i) {
        make(s);
        for (int level = 0; level < LW_LEVEL_COUNT; ++level) {
            if (!(lw_cpu_levels() >> level & 1)) continue;
            const lw_lane_ops* ops = lw_level_lane_ops[level];
            const bool all[] = {sums_alike(s, ops), largest_alike(s, ops, 0), largest_alike(s, ops, NAN),
                                largest_alike(s, ops, -INFINITY)};
            for (size_t one = 0; one < sizeof all; ++one) {
                if (!all[one]) printf("%s: sample %lu, check %zu differs\n", lw_level_names[level], i, one);
                *(all[one] ? &passed : &failed) += 1;
            }
        }
        free(s->job.scratch);
        free(s->cache);
    }
    free(s);
    lw_fp_restore(saved);
    printf("%zu passed, %zu failed\n", passed, failed);
    return failed != 0;
}
