// Small models of made-up weights over the C ABI, made once and kept: fuzzers ask for them again and again.
#ifndef LW_FUZZ_TINY_MODEL_H
#define LW_FUZZ_TINY_MODEL_H

#include "input.h"
#include "lanewise.h"
#include "uniform_model.h"

enum {
    TINY_VARIANTS = 12,
    TINY_WITHOUT_STATES = 7,  // the first ones; in the rest sequences have places for their states
    TINY_MAX_LAYERS = 3,
    TINY_ADAPTERS = 2,
    TINY_LEVELS = 5,
    TINY_VOCAB = 50,
    TINY_MAX_RANK = 5
};

// What layers are besides: experts, with sinks and a window in the first one; a delta rule in the first one, and attention
// with a gate in the second; attention beside a state space in the first one, a short convolution in the second; latent
// attention, of a window and with a latent query in the first one; experts with norms of their own; an index of blocks in
// the last one; a prediction head, the last one, behind layers alike, or behind those with a delta rule; a delta rule
// whose channels decay apart.
typedef enum tiny_kind {
    TINY_ALIKE,
    TINY_MIXTURE,
    TINY_STATES,
    TINY_BESIDE,
    TINY_LATENT,
    TINY_OWN_NORMS,
    TINY_BLOCKS,
    TINY_HEAD,
    TINY_STATES_HEAD,
    TINY_CHANNELS
} tiny_kind;

typedef struct tiny_variant {
    uniform_config config;
    lw_type type;  // of its matrices
    tiny_kind kind;
} tiny_variant;

// What they have between them: tied and untied, biases, QK norm, a window, heads that share keys, odd head sizes, experts,
// latent attention, states, prediction heads.
static const tiny_variant tiny_variants[TINY_VARIANTS] = {
    {{.n_layers = 2,
      .hidden_size = 24,
      .ffn_size = 40,
      .n_heads = 3,
      .n_kv_heads = 1,
      .head_dim = 10,
      .vocab_size = TINY_VOCAB,
      .context_length = 96,
      .tied_embeddings = 1,
      .rms_norm_eps = 1e-5f,
      .rope_theta = 10000},
     LW_F32,
     TINY_ALIKE},
    {{.n_layers = 1,
      .hidden_size = 32,
      .ffn_size = 64,
      .n_heads = 4,
      .n_kv_heads = 2,
      .head_dim = 8,
      .vocab_size = TINY_VOCAB,
      .context_length = 96,
      .sliding_window = 35,
      .qkv_bias = 1,
      .rms_norm_eps = 1e-5f,
      .rope_theta = 500000},
     LW_Q4_0,
     TINY_ALIKE},
    {{.n_layers = 2,
      .hidden_size = 64,
      .ffn_size = 96,
      .n_heads = 2,
      .n_kv_heads = 2,
      .head_dim = 32,
      .vocab_size = TINY_VOCAB,
      .context_length = 96,
      .qk_norm = 1,
      .rms_norm_eps = 1e-6f,
      .rope_theta = 10000},
     LW_Q8_0,
     TINY_ALIKE},
    {{.n_layers = 2,
      .hidden_size = 64,
      .ffn_size = 32,
      .n_heads = 2,
      .n_kv_heads = 1,
      .head_dim = 16,
      .vocab_size = TINY_VOCAB,
      .context_length = 96,
      .tied_embeddings = 1,
      .rms_norm_eps = 1e-5f,
      .rope_theta = 10000},
     LW_Q4_0,
     TINY_MIXTURE},
    {{.n_layers = 2,
      .hidden_size = 64,
      .ffn_size = 96,
      .n_heads = 3,
      .n_kv_heads = 1,
      .head_dim = 40,
      .vocab_size = TINY_VOCAB,
      .context_length = 96,
      .rms_norm_eps = 1e-6f,
      .rope_theta = 10000},
     LW_Q8_0,
     TINY_LATENT},
    {{.n_layers = 2,
      .hidden_size = 64,
      .ffn_size = 32,
      .n_heads = 2,
      .n_kv_heads = 1,
      .head_dim = 16,
      .vocab_size = TINY_VOCAB,
      .context_length = 96,
      .tied_embeddings = 1,
      .qk_norm = 1,
      .rms_norm_eps = 1e-6f,
      .rope_theta = 10000},
     LW_Q4_0,
     TINY_OWN_NORMS},
    {{.n_layers = 2,
      .hidden_size = 64,
      .ffn_size = 96,
      .n_heads = 4,
      .n_kv_heads = 2,
      .head_dim = 16,
      .vocab_size = TINY_VOCAB,
      .context_length = 96,
      .qk_norm = 1,
      .rms_norm_eps = 1e-6f,
      .rope_theta = 10000},
     LW_Q8_0,
     TINY_BLOCKS},
    {{.n_layers = 2,
      .hidden_size = 64,
      .ffn_size = 96,
      .n_heads = 2,
      .n_kv_heads = 1,
      .head_dim = 32,
      .vocab_size = TINY_VOCAB,
      .context_length = 96,
      .rms_norm_eps = 1e-6f,
      .rope_theta = 10000},
     LW_Q8_0,
     TINY_STATES},
    {{.n_layers = 2,
      .hidden_size = 40,
      .ffn_size = 24,
      .n_heads = 3,
      .n_kv_heads = 1,
      .head_dim = 10,
      .vocab_size = TINY_VOCAB,
      .context_length = 96,
      .tied_embeddings = 1,
      .rms_norm_eps = 1e-5f,
      .rope_theta = 10000},
     LW_F32,
     TINY_BESIDE},
    {{.n_layers = 2,
      .hidden_size = 64,
      .ffn_size = 96,
      .n_heads = 2,
      .n_kv_heads = 1,
      .head_dim = 16,
      .vocab_size = TINY_VOCAB,
      .context_length = 96,
      .tied_embeddings = 1,
      .qkv_bias = 1,
      .rms_norm_eps = 1e-5f,
      .rope_theta = 10000},
     LW_Q4_0,
     TINY_HEAD},
    {{.n_layers = 3,
      .hidden_size = 64,
      .ffn_size = 96,
      .n_heads = 2,
      .n_kv_heads = 1,
      .head_dim = 32,
      .vocab_size = TINY_VOCAB,
      .context_length = 96,
      .rms_norm_eps = 1e-6f,
      .rope_theta = 10000},
     LW_Q8_0,
     TINY_STATES_HEAD},
    {{.n_layers = 2,
      .hidden_size = 64,
      .ffn_size = 96,
      .n_heads = 2,
      .n_kv_heads = 1,
      .head_dim = 32,
      .vocab_size = TINY_VOCAB,
      .context_length = 96,
      .rms_norm_eps = 1e-6f,
      .rope_theta = 10000},
     LW_Q8_0,
     TINY_CHANNELS},
};

static inline bool tiny_has_head(const tiny_variant* v) { return v->kind == TINY_HEAD || v->kind == TINY_STATES_HEAD; }

static inline void tiny_state(tiny_kind kind, uint32_t layer, lw_layer_config* c) {
    const bool channels = kind == TINY_CHANNELS;
    if (kind == TINY_STATES_HEAD || channels) kind = TINY_STATES;
    const lw_state_config heads = {.kind = channels              ? LW_CHANNEL_DELTA
                                           : kind == TINY_STATES ? LW_GATED_DELTA
                                                                 : LW_SSD,
                                   .taps = 4,
                                   .n_heads = 2,
                                   .value_dim = 32,
                                   .n_key_heads = 1,
                                   .key_dim = 16,
                                   .conv_bias = kind == TINY_BESIDE,
                                   .decay_rank = channels ? 32 : 0,
                                   .gate_rank = channels ? 32 : 0,
                                   .norm_eps = 1e-5f};
    if (layer == 0) c->state = heads;
    if (kind == TINY_STATES && layer == 1) c->attention.output_gate = 1;
    if (kind == TINY_BESIDE && layer == 1) c->state = (lw_state_config){.kind = LW_SHORT_CONV, .taps = 3};
    if ((kind == TINY_STATES) == (layer == 0)) c->attention = (lw_attention_config){0};
}

static inline void tiny_latent(uint32_t layer, lw_attention_config* c) {
    c->latent_rank = c->value_dim = 32;
    c->rope_dim = 8;
    c->latent_eps = 1e-6f;
    c->query_rank = layer == 0 ? 32 : 0;
    c->window = layer == 0 ? 35 : 0;
}

static inline void tiny_blocks(lw_attention_config* c) {
    c->index_block = 32;
    c->index_topk = 64;
    c->index_local = 1;
    c->index_heads = 2;
    c->index_dim = c->head_dim;
}

static inline lw_layer_config tiny_layer(const tiny_variant* v, uint32_t layer) {
    lw_layer_config c = uniform_layer(&v->config);
    const bool is_last = layer + 1 == v->config.n_layers, has_head = tiny_has_head(v),
               mixture = v->kind == TINY_MIXTURE;
    if (v->kind == TINY_STATES || v->kind == TINY_BESIDE || v->kind == TINY_CHANNELS ||
        (v->kind == TINY_STATES_HEAD && !is_last))
        tiny_state(v->kind, layer, &c);
    if (v->kind == TINY_LATENT) tiny_latent(layer, &c.attention);
    if (v->kind == TINY_BLOCKS && is_last) tiny_blocks(&c.attention);
    if (v->kind == TINY_HEAD && !is_last) c.attention.window = 35;
    c.mtp = has_head && is_last;
    c.result_norms = v->kind == TINY_OWN_NORMS;
    if (!mixture && v->kind != TINY_OWN_NORMS) return c;
    c.attention.sinks = c.attention.output_bias = mixture;
    c.attention.window = layer == 0 ? 35 : 0;
    c.ffn = (lw_ffn_config){.kind = LW_FFN_EXPERTS,
                            .size = v->config.ffn_size,
                            .bias = mixture,
                            .activation = mixture ? LW_SILU : LW_GELU_TANH,
                            .n_experts = 5,
                            .n_used = 2,
                            .n_groups = 1,
                            .groups_used = 1,
                            .renormalize = !mixture,
                            .scale = 1,
                            .shared_size = layer == 0 || !mixture ? 64 : 0,
                            .shared_gate = mixture,
                            .own_norms = !mixture};
    return c;
}

static const char* const tiny_isas[TINY_LEVELS] = {"scalar", "avx2", "avx512vnni", "avx512vbmi", NULL};

static inline float* tiny_values(size_t n, uint64_t seed, float scale) {
    float* values = malloc(n * sizeof *values);
    if (values == NULL) exit(2);
    for (size_t i = 0; i < n; ++i) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        values[i] = ((float)(seed >> 40) * 0x1p-23f - 1.0f) * scale;
    }
    return values;
}

// The shape that a model wants for a role of a layer; no rows if it has no such tensor.
static inline void tiny_shape(const tiny_variant* v, lw_role role, uint32_t layer, uint32_t* rows, uint32_t* cols) {
    const uniform_config* c = &v->config;
    const lw_layer_config of_layer = tiny_layer(v, layer);
    const uint32_t q = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim, hidden = c->hidden_size;
    const lw_attention_config* attention = &of_layer.attention;
    const bool attends = attention->n_heads > 0, own = of_layer.ffn.own_norms, norms = of_layer.result_norms;
    const uint32_t size = of_layer.ffn.kind == LW_FFN_EXPERTS ? 0 : c->ffn_size, n = of_layer.ffn.n_experts;
    const uint32_t one = v->kind == TINY_MIXTURE ? 1 : 0, shared = of_layer.ffn.shared_size;
    const uint32_t rank = attention->latent_rank, keys = attends && rank == 0 ? kv : 0;
    const lw_state_config* state = &of_layer.state;
    const bool short_conv = state->kind == LW_SHORT_CONV, heads = state->n_heads > 0,
               each = state->kind == LW_CHANNEL_DELTA, delta = each || state->kind == LW_GATED_DELTA;
    const uint32_t state_keys = state->n_key_heads * state->key_dim,
                   decays = each ? state->n_heads * state->key_dim : state->n_heads,
                   index = attention->index_heads > 0 ? attention->index_dim : 0;
    const uint32_t inner = short_conv ? hidden : state->n_heads * state->value_dim;
    const uint32_t channels = inner + 2 * state_keys;
    const uint32_t shapes[LW_ROLE_COUNT][2] = {
        [LW_TOKEN_EMBEDDING] = {c->vocab_size, hidden},
        [LW_OUTPUT] = {c->tied_embeddings ? 0 : c->vocab_size, hidden},
        [LW_OUTPUT_NORM] = {1, hidden},
        [LW_ATTN_NORM] = {1, hidden},
        [LW_ATTN_Q] = {attends ? q : 0, attention->query_rank > 0 ? attention->query_rank : hidden},
        [LW_ATTN_K] = {keys, hidden},
        [LW_ATTN_V] = {keys, hidden},
        [LW_ATTN_GATE] = {attention->output_gate ? q : 0, hidden},
        [LW_ATTN_Q_BIAS] = {c->qkv_bias ? 1 : 0, q},
        [LW_ATTN_K_BIAS] = {c->qkv_bias ? 1 : 0, kv},
        [LW_ATTN_V_BIAS] = {c->qkv_bias ? 1 : 0, kv},
        [LW_ATTN_Q_NORM] = {c->qk_norm ? 1 : 0, c->head_dim},
        [LW_ATTN_K_NORM] = {c->qk_norm ? 1 : 0, c->head_dim},
        [LW_ATTN_OUTPUT] = {attends ? hidden : 0, rank > 0 ? c->n_heads * attention->value_dim : q},
        [LW_ATTN_OUTPUT_BIAS] = {one, hidden},
        [LW_ATTN_SINKS] = {one, c->n_heads},
        [LW_FFN_NORM] = {1, hidden},
        [LW_FFN_GATE] = {size, hidden},
        [LW_FFN_UP] = {size, hidden},
        [LW_FFN_DOWN] = {size > 0 ? hidden : 0, size},
        [LW_ROUTER] = {n, hidden},
        [LW_EXPERTS_GATE] = {n * c->ffn_size, hidden},
        [LW_EXPERTS_UP] = {n * c->ffn_size, hidden},
        [LW_EXPERTS_DOWN] = {n * hidden, c->ffn_size},
        [LW_EXPERTS_GATE_BIAS] = {one, n * c->ffn_size},
        [LW_EXPERTS_UP_BIAS] = {one, n * c->ffn_size},
        [LW_EXPERTS_DOWN_BIAS] = {one, n * hidden},
        [LW_SHARED_GATE] = {shared, hidden},
        [LW_SHARED_UP] = {shared, hidden},
        [LW_SHARED_DOWN] = {shared > 0 ? hidden : 0, shared},
        [LW_SHARED_ROUTER] = {shared > 0 && of_layer.ffn.shared_gate ? 1 : 0, hidden},
        [LW_STATE_IN] = {short_conv ? 3 * hidden
                         : each     ? state_keys
                                    : channels,
                         hidden},
        [LW_STATE_KEYS] = {each ? state_keys : 0, hidden},
        [LW_STATE_VALUES] = {each ? inner : 0, hidden},
        [LW_STATE_GATE] = {heads ? inner : 0, each ? state->gate_rank : hidden},
        [LW_STATE_GATE_DOWN] = {state->gate_rank, hidden},
        [LW_STATE_DECAY] = {decays, each ? state->decay_rank : hidden},
        [LW_STATE_DECAY_DOWN] = {state->decay_rank, hidden},
        [LW_STATE_BETA] = {delta ? state->n_heads : 0, hidden},
        [LW_STATE_CONV] = {state->taps > 0 ? 1 : 0, channels * state->taps},
        [LW_STATE_CONV_BIAS] = {state->conv_bias, channels},
        [LW_STATE_DECAY_BIAS] = {heads ? 1 : 0, decays},
        [LW_STATE_RATE] = {heads ? 1 : 0, state->n_heads},
        [LW_STATE_SKIP] = {state->kind == LW_SSD ? 1 : 0, state->n_heads},
        [LW_STATE_NORM] = {delta ? 1 : 0, state->value_dim},
        [LW_STATE_OUT] = {inner > 0 ? hidden : 0, inner},
        [LW_ATTN_RESULT_NORM] = {norms, hidden},
        [LW_FFN_RESULT_NORM] = {norms, hidden},
        [LW_ROUTER_NORM] = {own, hidden},
        [LW_EXPERTS_NORM] = {own, hidden},
        [LW_SHARED_RESULT_NORM] = {own, hidden},
        [LW_EXPERTS_RESULT_NORM] = {own, hidden},
        [LW_ROUTER_SCALES] = {own, n},
        [LW_LATENT_QUERY] = {attention->query_rank, hidden},
        [LW_LATENT_QUERY_NORM] = {attention->query_rank > 0, attention->query_rank},
        [LW_LATENT_DOWN] = {rank > 0 ? rank + attention->rope_dim : 0, hidden},
        [LW_LATENT_NORM] = {rank > 0, rank},
        [LW_LATENT_KEYS] = {c->n_heads * rank, c->head_dim - attention->rope_dim},
        [LW_LATENT_VALUES] = {c->n_heads * attention->value_dim, rank},
        [LW_INDEX_QUERY] = {attention->index_heads * index, hidden},
        [LW_INDEX_QUERY_NORM] = {index > 0, index},
        [LW_INDEX_KEY] = {index, hidden},
        [LW_INDEX_KEY_NORM] = {index > 0, index},
        [LW_MTP_EMBEDDING_NORM] = {of_layer.mtp, hidden},
        [LW_MTP_HIDDEN_NORM] = {of_layer.mtp, hidden},
        [LW_MTP_PROJECTION] = {of_layer.mtp ? hidden : 0, 2 * hidden},
        [LW_MTP_NORM] = {of_layer.mtp, hidden},
    };
    *rows = shapes[role][0];
    *cols = shapes[role][1];
}

static inline lw_status tiny_load(lw_model* model, const tiny_variant* v, lw_role role, uint32_t layer) {
    uint32_t rows, cols;
    tiny_shape(v, role, layer, &rows, &cols);
    if (rows == 0) return LW_OK;
    float* values = tiny_values((size_t)rows * cols, 1000u * role + layer, 0.5f);
    for (uint32_t i = 0; role == LW_STATE_RATE && i < cols; ++i) values[i] = -0.1f * (float)(1 + i);
    const lw_tensor tensor = {
        .data = values, .n_bytes = (uint64_t)rows * cols * sizeof *values, .type = LW_F32, .rows = rows, .cols = cols};
    const bool is_float = rows == 1 || role == LW_ROUTER || role == LW_STATE_DECAY || role == LW_STATE_BETA;
    const lw_status status = lw_model_load(model, role, layer, &tensor, is_float ? LW_F32 : v->type);
    free(values);
    return status;
}

static inline lw_status tiny_create(const tiny_variant* v, const char* isa, lw_model** out) {
    lw_layer_config layers[TINY_MAX_LAYERS];
    for (uint32_t i = 0; i < v->config.n_layers; ++i) layers[i] = tiny_layer(v, i);
    lw_rope rope = uniform_rope(&v->config);
    if (v->kind == TINY_LATENT) rope.rotated = layers[0].attention.rope_dim;
    const lw_model_config config = uniform_model(&v->config, &rope, layers);
    return lw_model_create(&config, isa, 1, out);
}

static inline lw_model* tiny_make(const tiny_variant* v, const char* isa) {
    lw_model* model = NULL;
    if (tiny_create(v, isa, &model) != LW_OK) return NULL;
    for (int role = 0; role < LW_ROLE_COUNT; ++role)
        for (uint32_t layer = 0; layer < (role >= LW_ATTN_NORM ? v->config.n_layers : 1); ++layer)
            FUZZ_CHECK(tiny_load(model, v, (lw_role)role, layer) == LW_OK, "%s", lw_last_error());
    FUZZ_CHECK(lw_model_finish(model) == LW_OK, "%s", lw_last_error());
    return model;
}

static lw_model* tiny_models[TINY_VARIANTS][TINY_LEVELS];
static lw_adapter* tiny_adapters[TINY_VARIANTS][TINY_LEVELS][TINY_ADAPTERS];

static inline void tiny_adapt(lw_adapter* adapter, const tiny_variant* v, lw_role role, uint32_t rank, int which) {
    uint32_t rows, cols;
    tiny_shape(v, role, v->config.n_layers - 1, &rows, &cols);
    // Experts, states and queries of latent attention are not adapted.
    if (rows == 0 || (v->kind == TINY_LATENT && role == LW_ATTN_Q)) return;
    float* a = tiny_values((size_t)rank * cols, 77u * role + (unsigned)which, 0.5f);
    float* b = tiny_values((size_t)rank * rows, 78u * role + (unsigned)which, 0.5f);
    const lw_tensor ta = {.data = a, .n_bytes = 4ull * rank * cols, .type = LW_F32, .rows = rank, .cols = cols};
    const lw_tensor tb = {.data = b, .n_bytes = 4ull * rank * rows, .type = LW_F32, .rows = rows, .cols = rank};
    FUZZ_CHECK(lw_adapter_load(adapter, role, v->config.n_layers - 1, &ta, &tb, 0.7f) == LW_OK, "%s", lw_last_error());
    free(a);
    free(b);
}

// A model that stays, or NULL where this CPU has no such level.
static inline lw_model* tiny_model(uint32_t variant, uint32_t level) {
    lw_model** kept = &tiny_models[variant][level];
    const tiny_variant* v = &tiny_variants[variant];
    if (*kept != NULL || (*kept = tiny_make(v, tiny_isas[level])) == NULL) return *kept;
    static const lw_role adapted[TINY_ADAPTERS][3] = {{LW_ATTN_Q, LW_FFN_DOWN, LW_ATTN_OUTPUT},
                                                      {LW_ATTN_V, LW_FFN_GATE, LW_FFN_UP}};
    for (int i = 0; i < TINY_ADAPTERS; ++i) {
        lw_adapter** adapter = &tiny_adapters[variant][level][i];
        FUZZ_CHECK(lw_adapter_create(*kept, adapter) == LW_OK, "%s", lw_last_error());
        for (int k = 0; k < 3; ++k) tiny_adapt(*adapter, v, adapted[i][k], i == 0 ? 2 : TINY_MAX_RANK, i);
    }
    return *kept;
}

#endif
