// Models whose layers are all alike, with full RoPE and a gated FFN, for tests and benches.
#ifndef BENCH_UNIFORM_MODEL_H
#define BENCH_UNIFORM_MODEL_H

#include "lanewise.h"

typedef struct uniform_config {
    uint32_t n_layers, hidden_size, ffn_size, n_heads, n_kv_heads, head_dim, vocab_size, context_length;
    uint32_t sliding_window;  // 0: all tokens
    uint32_t tied_embeddings, qkv_bias;
    uint32_t qk_norm;  // 1: a norm of each head
    float rms_norm_eps;
    double rope_theta;
    const float* rope_factors;  // [head_dim / 2] or NULL
} uniform_config;

static inline lw_layer_config uniform_layer(const uniform_config* c) {
    return (lw_layer_config){.attention = {.n_heads = c->n_heads,
                                           .n_kv_heads = c->n_kv_heads,
                                           .head_dim = c->head_dim,
                                           .window = c->sliding_window,
                                           .qkv_bias = c->qkv_bias,
                                           .qk_norm = c->qk_norm ? LW_QK_NORM_HEAD : LW_QK_NORM_NONE},
                             .ffn = {.kind = LW_FFN_GATED, .size = c->ffn_size}};
}

static inline lw_rope uniform_rope(const uniform_config* c) {
    return (lw_rope){.theta = c->rope_theta, .rotated = c->head_dim, .scale = 1, .factors = c->rope_factors};
}

static inline lw_model_config uniform_model(const uniform_config* c, const lw_rope* rope,
                                            const lw_layer_config* layers) {
    return (lw_model_config){.n_layers = c->n_layers,
                             .hidden_size = c->hidden_size,
                             .vocab_size = c->vocab_size,
                             .context_length = c->context_length,
                             .tied_embeddings = c->tied_embeddings,
                             .rms_norm_eps = c->rms_norm_eps,
                             .embedding_scale = 1,
                             .logit_scale = 1,
                             .n_ropes = 1,
                             .ropes = rope,
                             .layers = layers};
}

// Calls lw_model_create for such a model. It has at most 100 layers, or more layers than the library accepts.
static inline lw_status uniform_create(const uniform_config* c, const char* isa, uint32_t n_threads, lw_model** out) {
    lw_layer_config layers[100];
    for (uint32_t i = 0; i < 100; ++i) layers[i] = uniform_layer(c);
    const lw_rope rope = uniform_rope(c);
    const lw_model_config config = uniform_model(c, &rope, layers);
    return lw_model_create(&config, isa, n_threads, out);
}

#endif
