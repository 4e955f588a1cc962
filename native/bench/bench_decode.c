// Speed of decode at a long context without a prefill: a model of a given shape with random weights, its cache filled
// with random codes, one sequence. Prints milliseconds a step and tokens per second for every type of cache.
//
// Usage: bench_decode SHAPE [CONTEXT [THREADS [STEPS]]], SHAPE llama-1b or qwen3-0.6b. Weights are Q4_0, embedding and
// head Q6_K, as in the files people use.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fill_cache.h"
#include "graph/session.h"
#include "profile.h"

typedef struct shape {
    const char* name;
    lw_model_config config;
} shape;

static const shape shapes[] = {
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

static const struct cache_type {
    const char* name;
    lw_type type;
} caches[] = {{"f16", LW_F16}, {"int8", LW_I8}};

static double now(void) { return 1e-9 * (double)lw_profile_now(); }

static void check(lw_status status) {
    if (status == LW_OK) return;
    fprintf(stderr, "%s\n", lw_last_error());
    exit(2);
}

static void load(lw_model* model, lw_role role, uint32_t layer, lw_type type, uint32_t rows, uint32_t cols) {
    const uint64_t bytes = rows * lw_row_bytes(type, cols), block = type == LW_Q4_0 ? 18 : 210;
    uint8_t* data = malloc(bytes);
    if (data == NULL) exit(2);
    for (uint64_t i = 0; i < bytes; ++i) data[i] = (uint8_t)(i * 2654435761u >> 13);
    for (uint64_t i = 0; type != LW_F32 && i < bytes;
         i += block)  // a scale of about 2^-8, or 2^-18 beside those of Q6_K
        memcpy(data + i + (type == LW_Q4_0 ? 0 : 208), &(uint16_t){type == LW_Q4_0 ? 0x1C00 : 0x0040}, 2);
    for (uint64_t i = 0; type == LW_F32 && i < bytes; i += 4) memcpy(data + i, &(float){1.0f}, 4);
    const lw_tensor tensor = {data, bytes, type, rows, cols, 0, NULL};
    check(lw_model_load(model, role, layer, &tensor, type));
    free(data);
}

static lw_model* open_model(const lw_model_config* c, uint32_t threads) {
    lw_model* model;
    check(lw_model_create(c, NULL, threads, &model));
    const uint32_t q = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim, hidden = c->hidden_size;
    load(model, LW_TOKEN_EMBEDDING, 0, LW_Q6_K, c->vocab_size, hidden);
    load(model, LW_OUTPUT_NORM, 0, LW_F32, 1, hidden);
    for (uint32_t l = 0; l < c->n_layers; ++l) {
        load(model, LW_ATTN_NORM, l, LW_F32, 1, hidden);
        load(model, LW_ATTN_Q, l, LW_Q4_0, q, hidden);
        load(model, LW_ATTN_K, l, LW_Q4_0, kv, hidden);
        load(model, LW_ATTN_V, l, LW_Q4_0, kv, hidden);
        if (c->qk_norm) load(model, LW_ATTN_Q_NORM, l, LW_F32, 1, c->head_dim);
        if (c->qk_norm) load(model, LW_ATTN_K_NORM, l, LW_F32, 1, c->head_dim);
        load(model, LW_ATTN_OUTPUT, l, LW_Q4_0, hidden, q);
        load(model, LW_FFN_NORM, l, LW_F32, 1, hidden);
        load(model, LW_FFN_GATE, l, LW_Q4_0, c->ffn_size, hidden);
        load(model, LW_FFN_UP, l, LW_Q4_0, c->ffn_size, hidden);
        load(model, LW_FFN_DOWN, l, LW_Q4_0, hidden, c->ffn_size);
    }
    check(lw_model_finish(model));
    return model;
}

static double median(double* x, uint32_t n) {
    for (uint32_t i = 1; i < n; ++i)
        for (uint32_t j = i; j > 0 && x[j] < x[j - 1]; --j) {
            const double t = x[j];
            x[j] = x[j - 1];
            x[j - 1] = t;
        }
    return x[n / 2];
}

int main(int argc, char** argv) {
    const shape* s = NULL;
    for (size_t i = 0; argc > 1 && i < sizeof shapes / sizeof *shapes; ++i)
        if (strcmp(argv[1], shapes[i].name) == 0) s = &shapes[i];
    if (s == NULL) {
        fprintf(stderr, "usage: bench_decode llama-1b|qwen3-0.6b [CONTEXT [THREADS [STEPS]]]\n");
        return 2;
    }
    const uint32_t context = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 8192;
    const uint32_t threads = argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : 1;
    const uint32_t steps = argc > 4 ? (uint32_t)strtoul(argv[4], NULL, 10) : 16;
    lw_model* model = open_model(&s->config, threads);
    const uint32_t blocks = context / LW_BLOCK_TOKENS + 1;
    enum { TYPES = sizeof caches / sizeof *caches };
    lw_session* sessions[TYPES];
    uint32_t* table = malloc(blocks * sizeof *table);
    float* logits = malloc(s->config.vocab_size * sizeof *logits);
    double* seconds = malloc(TYPES * steps * sizeof *seconds);
    if (table == NULL || logits == NULL || seconds == NULL) exit(2);
    for (uint32_t i = 0; i < blocks; ++i) table[i] = i;
    for (int k = 0; k < TYPES; ++k) {
        const lw_session_config config = {.n_threads = threads,
                                          .n_blocks = blocks,
                                          .max_batch_tokens = 1,
                                          .max_batch_logits = 1,
                                          .kv_type = caches[k].type};
        check(lw_session_open(model, &config, &sessions[k]));
        fill_cache(&sessions[k]->kv);
    }
    for (uint32_t step = 0; step < steps; ++step)  // in turns: other work on the machine slows all down alike
        for (int k = 0; k < TYPES; ++k) {
            const uint32_t token = 1 + step, start[] = {0, 1}, row = 0;
            const lw_batch batch = {1, 1, blocks, &token, start, &context, table, &row, NULL, NULL, NULL, 0, NULL};
            const double begin = now();
            check(lw_step(sessions[k], &batch, logits, NULL));
            seconds[(uint32_t)k * steps + step] = now() - begin;
        }
    double first = 0;
    for (int k = 0; k < TYPES; ++k) {
        const double typical = median(seconds + (uint32_t)k * steps, steps);
        first = k == 0 ? typical : first;
        printf("%s, context %u, %u threads, cache %-4s  %8.2f ms  %7.2f tokens/s  %.2f x\n", s->name, context, threads,
               caches[k].name, 1e3 * typical, 1 / typical, first / typical);
        lw_session_close(sessions[k]);
    }
    lw_model_close(model);
    free(table);
    free(logits);
    free(seconds);
    return 0;
}
