// Speed of attention alone on one thread: decode (GB/s of keys and values) and prefill (GMAC/s), as a table.
//
// Usage: bench_attention [--isa NAME] [--group 4] [--head-dim 64] [--kv-heads 8] [--kv f16|int8]
// The cache has the layout of a session's cache. For the longer contexts it is larger than the last-level cache.
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fill_cache.h"
#include "profile.h"

typedef struct shape {
    const lw_lane_ops* ops;
    size_t group, head_dim, kv_heads, latent_rank;
    lw_type kv;
} shape;

static double now(void) { return 1e-9 * (double)lw_profile_now(); }

static lw_block map(size_t bytes) {
    lw_block block;
    if (!lw_block_map(bytes, &block)) exit(2);
    return block;
}

static lw_kv_cache describe(const shape* s, size_t context) {
    lw_attention_config config = {.n_kv_heads = (uint32_t)s->kv_heads, .head_dim = (uint32_t)s->head_dim};
    if (s->latent_rank > 0) {
        config.latent_rank = (uint32_t)s->latent_rank;
        config.rope_dim = config.head_dim - config.latent_rank;
    }
    lw_kv_cache cache;
    lw_kv_describe(&config, s->kv, (uint32_t)((context + LW_BLOCK_TOKENS - 1) / LW_BLOCK_TOKENS), &cache);
    return cache;
}

// Fewest seconds of attention for the last `queries` tokens of a context, over all heads of `layers` layers.
static double measure(const shape* s, size_t context, size_t queries, size_t tile, uint32_t layers) {
    lw_kv_cache cache = describe(s, context);
    if (!lw_kv_open(&cache, layers)) exit(2);
    fill_cache(&cache);
    const size_t blocks = cache.n_blocks, q_size = s->kv_heads * s->group * s->head_dim;
    const lw_block q = map(2 * queries * q_size * sizeof(float));
    const lw_block scratch =
        map(sizeof(float) * lw_attention_scratch_floats(tile, s->group, lw_align_floats(cache.head_dim)));
    uint32_t* table = malloc(blocks * sizeof *table);
    if (table == NULL) exit(2);
    for (size_t i = 0; i < blocks; ++i) table[i] = (uint32_t)i;
    float* queries_in = q.data;
    for (size_t i = 0; i < queries * q_size; ++i)
        queries_in[i] = (float)(i * 2654435761u >> 16 & 0xFFFF) * 0x1p-16f - 0.5f;
    double best = 1e30;
    const double begin = now();
    for (int pass = 0; pass < 3 || now() - begin < 0.5; ++pass) {
        const double start = now();
        for (uint32_t layer = 0; layer < layers; ++layer)
            for (size_t first = 0; first < queries; first += tile)
                for (size_t head = 0; head < s->kv_heads; ++head) {
                    const size_t offset = first * q_size + head * s->group * s->head_dim;
                    const lw_attention_job job = {.kv = lw_kv_slot(&cache, layer),
                                                  .blocks = table,
                                                  .kv_head = head,
                                                  .n_tokens = queries - first < tile ? queries - first : tile,
                                                  .first_position = context - queries + first,
                                                  .group = s->group,
                                                  .q = queries_in + offset,
                                                  .q_stride = q_size,
                                                  .out = queries_in + queries * q_size + offset,
                                                  .out_stride = q_size,
                                                  .scratch = scratch.data};
                    s->ops->attention(&job);
                }
        if (now() - start < best) best = now() - start;
    }
    free(table);
    lw_block blocks_to_unmap[] = {q, scratch};
    for (int i = 0; i < 2; ++i) lw_block_unmap(&blocks_to_unmap[i]);
    lw_kv_close(&cache);
    return best;
}

int main(int argc, char** argv) {
    shape s = {NULL, 4, 64, 8, 0, LW_F16};
    const char* isa = lw_cpu_isa();
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--isa") == 0) isa = argv[i + 1];
        if (strcmp(argv[i], "--group") == 0) s.group = strtoul(argv[i + 1], NULL, 10);
        if (strcmp(argv[i], "--head-dim") == 0) s.head_dim = strtoul(argv[i + 1], NULL, 10);
        if (strcmp(argv[i], "--kv") == 0)
            s.kv = strcmp(argv[i + 1], "int8") == 0 ? LW_I8 : strcmp(argv[i + 1], "q4") == 0 ? LW_I4 : LW_F16;
        if (strcmp(argv[i], "--kv-heads") == 0) s.kv_heads = strtoul(argv[i + 1], NULL, 10);
        if (strcmp(argv[i], "--latent-rank") == 0) s.latent_rank = strtoul(argv[i + 1], NULL, 10);
    }
    lw_level level;
    if (lw_cpu_check(isa) != LW_OK || lw_level_by_name(isa, &level) != LW_OK) {
        fprintf(stderr, "%s\n", lw_last_error());
        return 2;
    }
    s.ops = lw_level_lane_ops[level];
    static const size_t decode[][2] = {{128, 32}, {1024, 8}, {8192, 4}, {32768, 1}};  // context, layers
    for (size_t i = 0; i < sizeof decode / sizeof *decode; ++i) {
        const double tokens = (double)(decode[i][0] * decode[i][1]);
        const double seconds = measure(&s, decode[i][0], 1, 1, (uint32_t)decode[i][1]);
        const double bytes = (double)describe(&s, LW_BLOCK_TOKENS).block_bytes / LW_BLOCK_TOKENS;
        printf("decode  context %6zu  %6.2f GB/s  %8.2f million tokens/s\n", decode[i][0],
               tokens * bytes / seconds / 1e9, tokens / seconds / 1e6);
    }
    static const size_t prefill[][2] = {{512, 512}, {2048, 512}, {8192, 512}, {64, 64}};  // context, queries
    for (size_t i = 0; i < sizeof prefill / sizeof *prefill; ++i) {
        const double context = (double)prefill[i][0], queries = (double)prefill[i][1];
        const double pairs = queries * (context - queries) + queries * (queries + 1) / 2;
        const size_t values = s.latent_rank > 0 ? s.latent_rank : s.head_dim;
        const double macs = pairs * (double)(s.kv_heads * s.group * (s.head_dim + values));
        const size_t tile = s.group >= 64 ? 1 : 64 / s.group;
        printf("prefill context %6zu  %6.2f GMAC/s\n", prefill[i][0],
               macs / measure(&s, prefill[i][0], prefill[i][1], tile, 1) / 1e9);
    }
    return 0;
}
