// Runs one operation over lanes once, so that its instructions can be counted under emulation:
//     one_operation NAME LEVEL SIZE [GROUP [HEAD_DIM]]
// attention_f16 and attention_int8 run a decode step of one KV head over SIZE tokens, for GROUP query heads of HEAD_DIM
// dimensions (default 4 and 64). rmsnorm and quantize run over SIZE values. Prints the number of multiply-accumulates
// or values. Exits with 1 if scalar gives other bits.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../fill_cache.h"

static uint32_t state = 1;

static float draw(void) {
    state = state * 1664525u + 1013904223u;
    return (float)(state >> 8) * 0x1p-23f - 1.0f;
}

static float* floats(size_t n) {
    float* p = aligned_alloc(64, (n * sizeof(float) + 63) / 64 * 64);
    if (p == NULL) exit(2);
    for (size_t i = 0; i < n; ++i) p[i] = draw();
    return p;
}

static int compare(const void* got, const void* want, size_t bytes, const char* what) {
    if (memcmp(got, want, bytes) == 0) return 0;
    fprintf(stderr, "%s: scalar gives other bits\n", what);
    return 1;
}

static int attention(const lw_lane_ops* const ops[2], lw_type type, size_t tokens, size_t group, size_t head_dim) {
    const lw_attention_config config = {.n_kv_heads = 1, .head_dim = (uint32_t)head_dim};
    const uint32_t n_blocks = (uint32_t)((tokens + LW_BLOCK_TOKENS - 1) / LW_BLOCK_TOKENS);
    lw_kv_cache cache;
    lw_kv_describe(&config, type, n_blocks, &cache);
    uint32_t* blocks = malloc(n_blocks * sizeof *blocks);
    if (blocks == NULL || !lw_kv_open(&cache, 1)) exit(2);
    for (uint32_t i = 0; i < n_blocks; ++i) blocks[i] = i;
    fill_cache(&cache);
    const size_t width = group * head_dim;
    float *q = floats(width), *out[] = {floats(width), floats(width)};
    lw_attention_job job = {.kv = lw_kv_slot(&cache, 0),
                            .blocks = blocks,
                            .n_tokens = 1,
                            .first_position = tokens - 1,
                            .group = group,
                            .q = q,
                            .q_stride = width,
                            .out_stride = width,
                            .scratch = floats(lw_attention_scratch_floats(1, group, cache.value_dim))};
    for (int i = 0; i < 2; ++i) {
        job.out = out[i];
        ops[i]->attention(&job);
    }
    printf("%zu\n", 2 * tokens * width);
    const int status = compare(out[0], out[1], width * sizeof(float), "attention");
    float* parts[] = {q, out[0], out[1], job.scratch};
    for (int i = 0; i < 4; ++i) free(parts[i]);
    free(blocks);
    lw_kv_close(&cache);
    return status;
}

static int rmsnorm(const lw_lane_ops* const ops[2], size_t n) {
    float *x = floats(n), *weight = floats(n), *out[] = {floats(n), floats(n)};
    for (int i = 0; i < 2; ++i) ops[i]->rmsnorm(out[i], x, weight, n, 1e-5f);
    printf("%zu\n", n);
    const int status = compare(out[0], out[1], n * sizeof(float), "rmsnorm");
    float* parts[] = {x, weight, out[0], out[1]};
    for (int i = 0; i < 4; ++i) free(parts[i]);
    return status;
}

static int quantize(const lw_lane_ops* const ops[2], lw_level level, size_t n) {
    float* values = floats(n);
    lw_activations x[2];
    for (int i = 0; i < 2; ++i) {
        x[i] = (lw_activations){.rows = 1, .cols = n};
        lw_lay_out_activations(&x[i], lw_level_layouts[level]);
        x[i].q = calloc(2, lw_activation_stride(n));
        x[i].scale = calloc(lw_scale_floats(&x[i]), sizeof(float));
        x[i].totals = calloc(lw_activation_stride(n) / 8, sizeof(int32_t));
        x[i].outlying = calloc(x[i].segments, 1);
        x[i].outliers = calloc(x[i].segments * LW_SEGMENT_GROUPS, sizeof(lw_outlier));
        ops[i]->quantize(&x[i], 0, 0, x[i].segments, values);
    }
    printf("%zu\n", n);
    const int status = compare(x[0].q, x[1].q, n, "codes") |
                       compare(x[0].scale, x[1].scale, x[0].segments * LW_SEGMENT_GROUPS * sizeof(float), "scales");
    for (int i = 0; i < 2; ++i) {
        free((void*)x[i].q);
        free((void*)x[i].scale);
        free((void*)x[i].totals);
        free((void*)x[i].outlying);
        free((void*)x[i].outliers);
    }
    free(values);
    return status;
}

int main(int argc, char** argv) {
    lw_level level;
    if (argc < 4 || lw_level_by_name(argv[2], &level) != LW_OK) return 2;
    const size_t n = strtoul(argv[3], NULL, 10), group = argc > 4 ? strtoul(argv[4], NULL, 10) : 4;
    const size_t head_dim = argc > 5 ? strtoul(argv[5], NULL, 10) : 64;
    const lw_lane_ops* const ops[] = {lw_level_lane_ops[level], lw_level_lane_ops[LW_LEVEL_SCALAR]};
    if (strcmp(argv[1], "attention_f16") == 0) return attention(ops, LW_F16, n, group, head_dim);
    if (strcmp(argv[1], "attention_int8") == 0) return attention(ops, LW_I8, n, group, head_dim);
    if (strcmp(argv[1], "rmsnorm") == 0) return rmsnorm(ops, n);
    if (strcmp(argv[1], "quantize") == 0) return quantize(ops, level, n);
    return fprintf(stderr, "no operation is called %s\n", argv[1]), 2;
}
