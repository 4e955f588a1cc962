// Models of given shapes with random weights, for benchmarks: Q4_0, embedding and head Q6_K, as in the files people
// use.
#ifndef BENCH_RANDOM_MODEL_H
#define BENCH_RANDOM_MODEL_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "graph/session.h"
#include "uniform_model.h"

typedef struct bench_shape {
    const char* name;
    uniform_config config;
} bench_shape;

static const bench_shape bench_shapes[] = {
    {"llama-1b",
     {.n_layers = 16,
      .hidden_size = 2048,
      .ffn_size = 8192,
      .n_heads = 32,
      .n_kv_heads = 8,
      .head_dim = 64,
      .vocab_size = 128256,
      .context_length = 131072,
      .tied_embeddings = 1,
      .rms_norm_eps = 1e-5f,
      .rope_theta = 500000}},
    {"llama-8b",
     {.n_layers = 32,
      .hidden_size = 4096,
      .ffn_size = 14336,
      .n_heads = 32,
      .n_kv_heads = 8,
      .head_dim = 128,
      .vocab_size = 128256,
      .context_length = 131072,
      .tied_embeddings = 1,
      .rms_norm_eps = 1e-5f,
      .rope_theta = 500000}},
    {"qwen3-0.6b",
     {.n_layers = 28,
      .hidden_size = 1024,
      .ffn_size = 3072,
      .n_heads = 16,
      .n_kv_heads = 8,
      .head_dim = 128,
      .vocab_size = 151936,
      .context_length = 40960,
      .tied_embeddings = 1,
      .qk_norm = 1,
      .rms_norm_eps = 1e-6f,
      .rope_theta = 1000000}},
};

// Returns NULL if no shape has that name.
static inline const bench_shape* bench_find_shape(const char* name) {
    for (size_t i = 0; i < sizeof bench_shapes / sizeof *bench_shapes; ++i)
        if (strcmp(name, bench_shapes[i].name) == 0) return &bench_shapes[i];
    return NULL;
}

static inline void bench_check(lw_status status) {
    if (status == LW_OK) return;
    fprintf(stderr, "%s\n", lw_last_error());
    exit(2);
}

static inline void bench_load(lw_model* model, lw_role role, uint32_t layer, lw_type type, uint32_t rows,
                              uint32_t cols) {
    const uint64_t bytes = rows * lw_row_bytes(type, cols), block = type == LW_Q4_0 ? 18 : 210;
    uint8_t* data = malloc(bytes);
    if (data == NULL) exit(2);
    for (uint64_t i = 0; i < bytes; ++i) data[i] = (uint8_t)(i * 2654435761u >> 13);
    for (uint64_t i = 0; type != LW_F32 && i < bytes;
         i += block)  // scales: about 2^-8; for Q6_K 2^-18, as it has sub-scales
        memcpy(data + i + (type == LW_Q4_0 ? 0 : 208), &(uint16_t){type == LW_Q4_0 ? 0x1C00 : 0x0040}, 2);
    for (uint64_t i = 0; type == LW_F32 && i < bytes; i += 4) memcpy(data + i, &(float){1.0f}, 4);
    const lw_tensor tensor = {data, bytes, type, rows, cols, 0, NULL};
    bench_check(lw_model_load(model, role, layer, &tensor, type));
    free(data);
}

static inline lw_model* bench_open_model(const uniform_config* c, uint32_t threads) {
    lw_model* model;
    bench_check(uniform_create(c, NULL, threads, &model));
    const uint32_t q = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim, hidden = c->hidden_size;
    bench_load(model, LW_TOKEN_EMBEDDING, 0, LW_Q6_K, c->vocab_size, hidden);
    bench_load(model, LW_OUTPUT_NORM, 0, LW_F32, 1, hidden);
    for (uint32_t l = 0; l < c->n_layers; ++l) {
        bench_load(model, LW_ATTN_NORM, l, LW_F32, 1, hidden);
        bench_load(model, LW_ATTN_Q, l, LW_Q4_0, q, hidden);
        bench_load(model, LW_ATTN_K, l, LW_Q4_0, kv, hidden);
        bench_load(model, LW_ATTN_V, l, LW_Q4_0, kv, hidden);
        if (c->qk_norm) bench_load(model, LW_ATTN_Q_NORM, l, LW_F32, 1, c->head_dim);
        if (c->qk_norm) bench_load(model, LW_ATTN_K_NORM, l, LW_F32, 1, c->head_dim);
        bench_load(model, LW_ATTN_OUTPUT, l, LW_Q4_0, hidden, q);
        bench_load(model, LW_FFN_NORM, l, LW_F32, 1, hidden);
        bench_load(model, LW_FFN_GATE, l, LW_Q4_0, c->ffn_size, hidden);
        bench_load(model, LW_FFN_UP, l, LW_Q4_0, c->ffn_size, hidden);
        bench_load(model, LW_FFN_DOWN, l, LW_Q4_0, hidden, c->ffn_size);
    }
    bench_check(lw_model_finish(model));
    return model;
}

#endif
