// Small pooled models with everything that encoders have, their weights made by a counter-based generator.
#ifndef POOLED_MODELS_H
#define POOLED_MODELS_H

#include "small_model.h"

enum { CONTEXT = 1100, MOST = CONTEXT * 192 };

typedef struct variant {
    const char* name;
    lw_type type;
    bool after;  // norms after additions, learned positions, token types; else before them, and RoPE
    lw_type kv;
    lw_pooling pooling;
    uint32_t hidden, heads, ffn, n_dense;
} variant;

static const variant variants[] = {
    {"f32 norms after", LW_F32, true, LW_F32, LW_POOL_MEAN, 72, 4, 100, 0},
    {"q8_0 norms after", LW_Q8_0, true, LW_F32, LW_POOL_MEAN, 192, 6, 352, 0},
    {"q4_0 norms after, rows", LW_Q4_0, true, LW_F16, LW_POOL_NONE, 128, 2, 256, 1},
    {"f32 norms before", LW_F32, false, LW_F32, LW_POOL_FIRST, 64, 2, 96, 2},
    {"q8_0 norms before", LW_Q8_0, false, LW_F16, LW_POOL_LAST, 192, 3, 160, 2},
    {"q8_0 norms before, int8 keys", LW_Q8_0, false, LW_I8, LW_POOL_FIRST, 128, 4, 288, 1},
};
enum { N_VARIANTS = sizeof variants / sizeof *variants };

static const lw_dense_config dense[2] = {{.outputs = 96, .bias = 1, .activation = LW_TANH},
                                         {.outputs = 3, .activation = LW_GELU, .norm = 1}};

typedef struct layered {
    lw_rope ropes[2];
    lw_layer_config layers[2];
    lw_model_config model;
} layered;

static inline void set_config(const variant* v, layered* out) {
    const lw_rope ropes[2] = {{.theta = 1e4, .rotated = v->hidden / v->heads / 2 * 2, .scale = 1},
                              {.theta = 1e5, .rotated = 16, .scale = 1}};
    memcpy(out->ropes, ropes, sizeof ropes);
    for (uint32_t l = 0; l < 2; ++l) {
        out->layers[l] = (lw_layer_config){
            .attention = {.n_heads = v->heads,
                          .n_kv_heads = v->heads,
                          .head_dim = v->hidden / v->heads,
                          .both_ways = 1,
                          .window = v->after || l == 0 ? 0 : 17,
                          .rope = v->after ? LW_NO_ROPE : (int32_t)l,
                          .qkv_bias = v->after,
                          .output_bias = v->after},
            .ffn = {.kind = v->after ? LW_FFN_PLAIN : LW_FFN_GATED,
                    .size = v->ffn,
                    .bias = v->after,
                    .activation = v->after ? (l == 0 ? LW_GELU : LW_RELU) : (l == 0 ? LW_GELU_TANH : LW_GELU)},
            .attn_norm_replaces = v->after || l == 0,
            .ffn_norm_replaces = v->after};
    }
    out->model = (lw_model_config){.n_layers = 2,
                                   .hidden_size = v->hidden,
                                   .vocab_size = VOCAB,
                                   .context_length = CONTEXT,
                                   .rms_norm_eps = 1e-5f,
                                   .embedding_scale = 1,
                                   .logit_scale = 1,
                                   .n_ropes = v->after ? 0 : 2,
                                   .ropes = out->ropes,
                                   .layers = out->layers,
                                   .norm = LW_NORM_LAYER,
                                   .norm_bias = v->after,
                                   .pooled = 1,
                                   .n_positions = v->after ? CONTEXT : 0,
                                   .n_token_types = v->after ? 2 : 0,
                                   .n_dense = v->n_dense,
                                   .dense = dense};
}

static float large = 1;  // a factor of the output norm's and the first dense head's weights

static inline lw_status load_float(lw_model* model, lw_role role, uint32_t layer, uint32_t rows, uint32_t cols,
                                   lw_type target) {
    static float values[MOST];
    const lw_tensor tensor = float_tensor(values, rows, cols, 100 * (uint32_t)role + layer);
    for (size_t i = 0; rows > 1 && i < (size_t)rows * cols; ++i) values[i] *= 4;
    const bool enlarged = role == LW_OUTPUT_NORM || (role == LW_DENSE && layer == 0);
    for (size_t i = 0; enlarged && i < (size_t)rows * cols; ++i) values[i] *= large;
    return lw_model_load(model, role, layer, &tensor, rows > 1 ? target : LW_F32);
}

static inline void load_layer(lw_model* model, const variant* v, uint32_t l) {
    const uint32_t h = v->hidden, f = v->ffn;
    const struct {
        lw_role role;
        uint32_t rows, cols;
        bool wanted;
    } all[] = {{LW_ATTN_NORM, 1, h, true},
               {LW_ATTN_Q, h, h, true},
               {LW_ATTN_K, h, h, true},
               {LW_ATTN_V, h, h, true},
               {LW_ATTN_OUTPUT, h, h, true},
               {LW_FFN_NORM, 1, h, true},
               {LW_FFN_GATE, f, h, !v->after},
               {LW_FFN_UP, f, h, true},
               {LW_FFN_DOWN, h, f, true},
               {LW_ATTN_NORM_BIAS, 1, h, v->after},
               {LW_FFN_NORM_BIAS, 1, h, v->after},
               {LW_ATTN_Q_BIAS, 1, h, v->after},
               {LW_ATTN_K_BIAS, 1, h, v->after},
               {LW_ATTN_V_BIAS, 1, h, v->after},
               {LW_ATTN_OUTPUT_BIAS, 1, h, v->after},
               {LW_FFN_UP_BIAS, 1, f, v->after},
               {LW_FFN_DOWN_BIAS, 1, h, v->after}};
    for (size_t i = 0; i < sizeof all / sizeof *all; ++i)
        if (all[i].wanted)
            expect(load_float(model, all[i].role, l, all[i].rows, all[i].cols, v->type) == LW_OK, "a layer's tensor");
}

static uint32_t copies = 1;  // of the weights, on one node

static inline lw_model* make_model(const variant* v, const char* isa) {
    layered config;
    lw_model* model = NULL;
    set_config(v, &config);
    expect(lw_model_create(&config.model, isa, 2, &model) == LW_OK, v->name);
    if (model == NULL) exit(1);
    const uint32_t nodes[2] = {0, 0};
    expect(copies == 1 || lw_model_place(model, LW_NUMA_REPLICATE, nodes, copies) == LW_OK, "lw_model_place");
    for (uint32_t l = 0; l < 2; ++l) load_layer(model, v, l);
    expect(load_float(model, LW_TOKEN_EMBEDDING, 0, VOCAB, v->hidden, v->type) == LW_OK, "token embedding");
    expect(load_float(model, LW_OUTPUT_NORM, 0, 1, v->hidden, LW_F32) == LW_OK, "output norm");
    if (v->after) {
        ARGUMENT(lw_model_finish(NULL), "must not be NULL");
        REFUSED(lw_model_finish(model), LW_ERR_FORMAT, "output norm bias: missing");
        expect(load_float(model, LW_OUTPUT_NORM_BIAS, 0, 1, v->hidden, LW_F32) == LW_OK, "output norm bias");
        REFUSED(load_float(model, LW_POSITION_EMBEDDING, 0, CONTEXT, v->hidden, LW_Q8_0), LW_ERR_FORMAT,
                "must be f32, f16 or bf16");
        expect(load_float(model, LW_POSITION_EMBEDDING, 0, CONTEXT, v->hidden, LW_F32) == LW_OK, "positions");
        expect(load_float(model, LW_TOKEN_TYPE_EMBEDDING, 0, 2, v->hidden, LW_F32) == LW_OK, "token types");
    }
    for (uint32_t i = 0; i < v->n_dense; ++i) {
        const uint32_t inputs = i == 0 ? v->hidden : dense[i - 1].outputs;
        expect(load_float(model, LW_DENSE, i, dense[i].outputs, inputs, v->type) == LW_OK, "dense head");
        if (dense[i].bias)
            expect(load_float(model, LW_DENSE_BIAS, i, 1, dense[i].outputs, LW_F32) == LW_OK, "its bias");
        if (dense[i].norm)
            expect(load_float(model, LW_DENSE_NORM, i, 1, dense[i].outputs, LW_F32) == LW_OK, "its norm");
    }
    ARGUMENT(load_float(model, LW_DENSE, v->n_dense, 96, v->hidden, LW_F32), "no tensor of role");
    expect(lw_model_finish(model) == LW_OK, "the model is complete");
    return model;
}

// A session for so many tokens and texts at once.
static inline lw_session* open_pooled(const lw_model* model, const variant* v, uint32_t threads, uint32_t tokens,
                                      uint32_t texts) {
    const lw_session_config config = {
        .n_threads = threads, .max_batch_tokens = tokens, .max_batch_logits = texts, .kv_type = v->kv};
    lw_session* session = NULL;
    expect(lw_session_open(model, &config, &session) == LW_OK, "a session of a pooled model");
    if (session == NULL) exit(1);
    return session;
}

#endif
