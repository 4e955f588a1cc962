// A model of two layers whose weights fit in a page or two, with biases, norms and both float and 8-bit matrices.
#ifndef SMALL_MODEL_H
#define SMALL_MODEL_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lanewise.h"
#include "uniform_model.h"

enum { LAYERS = 2, HIDDEN = 64, FFN = 96, HEADS = 2, KV_HEADS = 1, DIM = 32, VOCAB = 50, MAX_VALUES = FFN * HIDDEN };

static int failed, passed;

static inline void expect(bool ok, const char* what) {
    ++*(ok ? &passed : &failed);
    if (!ok) printf("%s (last error: %s)\n", what, lw_last_error());
}

// Calls that were refused, as they are written.
static const char* calls[1024];
static int n_calls;

static inline void refused(lw_status found, const char* call, lw_status wanted, const char* says) {
    calls[n_calls++] = call;
    char what[512];
    snprintf(what, sizeof what, "%s: status %d, must be %d and say '%s'", call, (int)found, (int)wanted, says);
    expect(found == wanted && strstr(lw_last_error(), says) != NULL, what);
}

#define REFUSED(call, status, says) refused(call, #call, status, says)
#define ARGUMENT(call, says) REFUSED(call, LW_ERR_ARGUMENT, says)
// Calls that have no status.
#define HARMLESS(call) (calls[n_calls++] = #call, (void)(call))

static inline void list_calls(void) {
    for (int i = 0; i < n_calls; ++i) printf("%.*s\n", (int)strcspn(calls[i], "("), calls[i]);
}

static inline int report(void) {
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}

static inline uniform_config small_config(void) {
    return (uniform_config){.n_layers = LAYERS,
                            .hidden_size = HIDDEN,
                            .ffn_size = FFN,
                            .n_heads = HEADS,
                            .n_kv_heads = KV_HEADS,
                            .head_dim = DIM,
                            .vocab_size = VOCAB,
                            .context_length = 128,
                            .qkv_bias = 1,
                            .qk_norm = 1,
                            .rms_norm_eps = 1e-5f,
                            .rope_theta = 10000};
}

static inline void fill_values(float* values, size_t n, uint32_t seed) {
    uint32_t state = 2463534242u + seed;
    for (size_t i = 0; i < n; ++i) {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        values[i] = (float)(int32_t)state * 0x1p-34f;  // up to 1/8 either way
    }
}

typedef struct small_tensor {
    lw_role role;
    uint32_t rows, cols;
    lw_type target;
} small_tensor;

static const small_tensor small_tensors[] = {
    {LW_TOKEN_EMBEDDING, VOCAB, HIDDEN, LW_F32},
    {LW_OUTPUT, VOCAB, HIDDEN, LW_F32},
    {LW_OUTPUT_NORM, 1, HIDDEN, LW_F32},
    {LW_ATTN_NORM, 1, HIDDEN, LW_F32},
    {LW_ATTN_Q, HEADS* DIM, HIDDEN, LW_F32},
    {LW_ATTN_K, KV_HEADS* DIM, HIDDEN, LW_F32},
    {LW_ATTN_V, KV_HEADS* DIM, HIDDEN, LW_F32},
    {LW_ATTN_Q_BIAS, 1, HEADS* DIM, LW_F32},
    {LW_ATTN_K_BIAS, 1, KV_HEADS* DIM, LW_F32},
    {LW_ATTN_V_BIAS, 1, KV_HEADS* DIM, LW_F32},
    {LW_ATTN_Q_NORM, 1, DIM, LW_F32},
    {LW_ATTN_K_NORM, 1, DIM, LW_F32},
    {LW_ATTN_OUTPUT, HIDDEN, HEADS* DIM, LW_Q8_0},
    {LW_FFN_NORM, 1, HIDDEN, LW_F32},
    {LW_FFN_GATE, FFN, HIDDEN, LW_Q8_0},
    {LW_FFN_UP, FFN, HIDDEN, LW_Q8_0},
    {LW_FFN_DOWN, HIDDEN, FFN, LW_Q8_0},
};
enum { SMALL_TENSORS = sizeof small_tensors / sizeof *small_tensors };

// A tensor of float values, for which `values` has room.
static inline lw_tensor float_tensor(float* values, uint32_t rows, uint32_t cols, uint32_t seed) {
    fill_values(values, (size_t)rows * cols, seed);
    return (lw_tensor){
        .data = values, .n_bytes = (uint64_t)rows * cols * sizeof(float), .type = LW_F32, .rows = rows, .cols = cols};
}

static inline lw_status load_tensor(lw_model* model, const small_tensor* t, uint32_t layer) {
    static float values[MAX_VALUES];
    const lw_tensor tensor = float_tensor(values, t->rows, t->cols, 100 * (uint32_t)t->role + layer);
    return lw_model_load(model, t->role, layer, &tensor, t->rows > 1 ? t->target : LW_F32);
}

static inline lw_status load_all(lw_model* model) {
    for (int i = 0; i < SMALL_TENSORS; ++i)
        for (uint32_t layer = 0; layer < (small_tensors[i].role >= LW_ATTN_NORM ? LAYERS : 1); ++layer) {
            const lw_status status = load_tensor(model, &small_tensors[i], layer);
            if (status != LW_OK) return status;
        }
    return LW_OK;
}

// One batch of a single sequence in one block of the cache, with logits for its last token.
typedef struct one_sequence {
    uint32_t tokens[32], starts[2], context, block, row, copies[8];
    lw_sampling sampling;
    lw_draw draw;
    lw_batch batch;
    float logits[VOCAB];
    lw_sampled drawn;
} one_sequence;

static inline lw_sampling plain_sampling(void) {
    return (lw_sampling){.temperature = 1, .top_p = 1, .repetition_penalty = 1, .seed = 7};
}

// Points the batch to its parts again, which are where `s` lies.
static inline void set_batch(one_sequence* s, uint32_t n_tokens, uint32_t context, uint32_t block) {
    s->starts[1] = n_tokens;
    s->context = context;
    s->block = block;
    s->row = n_tokens - 1;
    s->sampling = plain_sampling();
    s->draw = (lw_draw){.sampling = &s->sampling, .position = context + n_tokens, .forced_token = -1};
    s->batch = (lw_batch){.n_seqs = 1,
                          .n_logits = 1,
                          .block_table_stride = 1,
                          .token_ids = s->tokens,
                          .query_start = s->starts,
                          .context_lens = &s->context,
                          .block_tables = &s->block,
                          .logit_rows = &s->row,
                          .draws = &s->draw};
    for (uint32_t i = 0; i < 32; ++i) s->tokens[i] = (7 * i + 3) % VOCAB;
}

static inline lw_session_config small_session(uint32_t threads, lw_type kv_type) {
    return (lw_session_config){.n_threads = threads,
                               .n_blocks = 8,
                               .max_batch_tokens = 64,
                               .max_batch_logits = 4,
                               .kv_type = kv_type,
                               .max_adapter_rank = 4};
}

#endif
