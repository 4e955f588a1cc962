// The models of test_golden.c: every weight type and every kind of layer, weights made by a counter-based generator.
#ifndef GOLDEN_MODELS_H
#define GOLDEN_MODELS_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "golden_variants.h"
#include "kernels/format.h"
#include "lanewise.h"
#include "model/gguf_blocks.h"
#include "uniform_model.h"

static bool perturb;

static uint64_t mix(uint64_t x) {  // splitmix64
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

static float uniform(uint64_t key) { return (float)(int32_t)(mix(key) >> 32) * 0x1p-31f; }

static uint16_t half_of(uint64_t key) {  // f16 of about 2^-6 .. 2^-5
    return (uint16_t)(0x2400 + (mix(key) & 0x3FF));
}

static void check(lw_status status) {
    if (status == LW_OK) return;
    printf("status %d: %s\n", (int)status, lw_last_error());
    exit(2);
}

static void put_half(uint8_t* to, uint64_t key, int exponents) {  // so many powers of two smaller, either sign
    const uint16_t bits = (uint16_t)((half_of(key) - exponents * 0x400) | (mix(key) >> 63 << 15));
    memcpy(to, &bits, 2);
}

// Rows of a coded type: any codes, scales that make weights of about the size of the other types'.
static void fill_coded(uint8_t* data, lw_type type, lw_format f, uint32_t rows, uint32_t cols, uint64_t key) {
    const uint64_t bytes = rows * lw_row_bytes(type, cols);
    for (uint64_t i = 0; i < bytes; ++i) data[i] = (uint8_t)mix(key + i);
    const lw_stored_row s = lw_stored_row_of(f, cols);
    for (uint32_t row = 0; lw_gguf_block_bytes(type) == 0 && row < rows; ++row, data += s.bytes) {
        const int smaller = f.low == 8 ? 4 : 0;
        for (size_t at = s.scales; f.scale == LW_SCALE_F16 && at < s.minimums; at += 2)
            put_half(data + at, key + row * s.bytes + at, smaller);
        for (size_t at = s.scales; f.scale == LW_SCALE_E4M3 && at < s.minimums; ++at) data[at] = 32 + data[at] % 64;
        const bool whole = f.scale == LW_SCALE_ONE || f.scale == LW_SCALE_E4M3;
        const float scale = (float)(1 + mix(key + row) % 1024) * (whole ? 0x1p-20f : 0x1p-26f);
        if (f.super == LW_SUPER_ROW) memcpy(data + s.supers, &scale, sizeof scale);
    }
    if (lw_gguf_block_bytes(type) == 0) return;
    const size_t first = type == LW_Q2_K ? 80 : type == LW_Q3_K ? 108 : 0;
    const int smaller = type == LW_IQ4_NL ? 4 : type == LW_IQ4_XS ? 8 : f.super == LW_SUPER_BLOCK ? 5 : 0;
    const bool two = f.minimum != LW_MINIMUM_NONE;
    for (uint64_t at = 0; at < bytes; at += lw_gguf_block_bytes(type)) {
        if (type == LW_MXFP4) data[at] = (uint8_t)(118 + data[at] % 4);
        if (type != LW_MXFP4) put_half(data + at + first, key + at, smaller);
        if (two) put_half(data + at + first + 2, key + at + 1, smaller);
    }
}

// Rows of `type` with values of about `size`.
static void fill(uint8_t* data, lw_type type, uint64_t weights, float size, uint64_t key) {
    for (uint64_t i = 0; type == LW_F32 && i < weights; ++i) {
        const float value = size * uniform(key + i);
        memcpy(data + 4 * i, &value, 4);
    }
    for (uint64_t i = 0; type == LW_F16 && i < weights; ++i) {
        const uint16_t bits = (uint16_t)(half_of(key + i) + (size > 0.5f ? 0x1400 : 0) + (mix(key + i) & 1) * 0x8000);
        memcpy(data + 2 * i, &bits, 2);
    }
    for (uint64_t i = 0; type == LW_BF16 && i < weights; ++i) {
        const float value = size * uniform(key + i);
        memcpy(data + 2 * i, (const uint8_t*)&value + 2, 2);
    }
    if (type == LW_F32 || type == LW_F16 || type == LW_BF16) return;
    const uint64_t block = type == LW_Q6_K ? 256 : 32, bytes = type == LW_Q4_0 ? 18 : type == LW_Q8_0 ? 34 : 210;
    for (uint64_t b = 0; b < weights / block; ++b, data += bytes) {
        for (uint64_t i = 0; i < bytes; ++i) data[i] = (uint8_t)mix(key + b * 256 + i);
        uint16_t scale = half_of(key + b);
        if (type == LW_Q8_0) scale = (uint16_t)(scale - 0x1000);  // codes are 16 times larger
        if (type == LW_Q6_K) scale = (uint16_t)(scale - 0x2000);  // and scales multiply codes of 32
        memcpy(data + (type == LW_Q6_K ? 208 : 0), &scale, 2);
    }
}

static void load(lw_model* model, lw_role role, uint32_t layer, lw_type type, uint32_t rows, uint32_t cols, float size,
                 uint32_t rope_heads) {
    const uint64_t bytes = rows * lw_row_bytes(type, cols);
    uint8_t* data = malloc(bytes);
    if (data == NULL) exit(2);
    lw_format f;
    const uint64_t key = (uint64_t)role << 48 | (uint64_t)layer << 40;
    if (lw_find_format(type, &f))
        fill_coded(data, type, f, rows, cols, key);
    else
        fill(data, type, (uint64_t)rows * cols, size, key);
    if (role == LW_STATE_RATE)  // the sign of each
        for (uint32_t i = 0; i < cols; ++i) data[4 * i + 3] |= 0x80;
    // Of an f32 weight a bit that rounding cannot hide: the lowest may be lost in the sum that it goes into.
    if (perturb && (role == LW_FFN_DOWN || role == LW_EXPERTS_DOWN) && layer == 0)
        data[bytes / 2 + (type == LW_F32 ? 2 : 0)] ^= 1;
    static const int8_t table[16] = {-127, -96, -71, -50, -33, -20, -9, -2, 4, 11, 21, 34, 49, 70, 95, 127};
    const lw_tensor tensor = {data, bytes, type, rows, cols, rope_heads, table};
    check(lw_model_load(model, role, layer, &tensor, type));
    free(data);
}

static void load_order(lw_model* model, lw_role role, uint32_t layer, uint32_t n) {
    float* order = malloc(n * sizeof(float));
    if (order == NULL) exit(2);
    for (uint32_t i = 0; i < n; ++i) order[i] = (float)((i * 37 + layer) % n);  // n is a power of two
    const lw_tensor tensor = {.data = order, .n_bytes = n * sizeof(float), .type = LW_F32, .rows = 1, .cols = n};
    check(lw_model_load(model, role, layer, &tensor, LW_F32));
    free(order);
}

static lw_type matrix_type(const variant* v, int i) {
    return v->matrices == MIXED ? v->mixed[i] : (lw_type)v->matrices;
}

static lw_model* create_model(const variant* v, const char* isa, lw_layer_config layers[2]) {
    float factors[128];
    for (uint32_t i = 0; i < 128; ++i) factors[i] = i < 8 ? 1.0f : 1.0f + (float)i / 16;
    const uniform_config alike = {.n_layers = 2,
                                  .hidden_size = v->hidden,
                                  .ffn_size = v->ffn,
                                  .n_heads = v->heads,
                                  .n_kv_heads = v->kv_heads,
                                  .head_dim = v->head_dim,
                                  .vocab_size = VOCAB,
                                  .context_length = 512,
                                  .sliding_window = v->window,
                                  .tied_embeddings = v->tied,
                                  .qkv_bias = v->bias,
                                  .qk_norm = v->norm,
                                  .rms_norm_eps = 1e-5f,
                                  .rope_theta = 10000,
                                  .rope_factors = v->factors ? factors : NULL};
    // Half of each head, scaled.
    const lw_rope ropes[2] = {uniform_rope(&alike), {.theta = 1e6, .rotated = v->head_dim / 2, .scale = 1.25f}};
    for (uint32_t l = 0; l < 2; ++l) {
        layers[l] = uniform_layer(&alike);
        change_layer(v, l, &layers[l]);
    }
    lw_model_config config = uniform_model(&alike, ropes, layers);
    if (v->layers == LATENT || v->layers == INDEXED || v->layers == CHANNELS) config.n_ropes = 2;
    if (v->layers == ODD_ONES) {
        config.n_ropes = 2;
        config.embedding_scale = 3;
        config.logit_scale = 0.125f;
    }
    if (v->layers == BESIDE) {
        config.norm = LW_NORM_LAYER;
        config.norm_bias = v->bias;
        config.output_bias = 1;
        config.n_positions = config.context_length;
    }
    if (v->layers == CAPPED) config.logit_softcap = 2.5f;
    config.per_layer_size = per_layer_size(v);
    lw_model* model;
    check(lw_model_create(&config, isa, 2, &model));
    return model;
}

static void load_vector(lw_model* model, lw_role role, uint32_t layer, uint32_t size, float values, bool wanted) {
    if (wanted) load(model, role, layer, LW_F32, 1, size, values, 0);
}

static void load_index(lw_model* model, const variant* v, const lw_attention_config* c, uint32_t l) {
    const uint32_t dim = c->index_dim;
    load(model, LW_INDEX_QUERY, l, matrix_type(v, 0), c->index_heads * dim, c->query_rank, 0.2f, 0);
    load(model, LW_INDEX_KEY, l, matrix_type(v, 1), dim, v->hidden, 0.2f, 0);
    load_vector(model, LW_INDEX_KEY_NORM, l, dim, 1.0f, true);
    load_vector(model, LW_INDEX_KEY_NORM_BIAS, l, dim, 0.1f, true);
    load(model, LW_INDEX_WEIGHTS, l, matrix_type(v, 2), c->index_heads, v->hidden, 0.2f, 0);
}

static void load_latent(lw_model* model, const variant* v, const lw_attention_config* c, uint32_t l) {
    const uint32_t h = v->hidden, rank = c->latent_rank, query = c->query_rank;
    if (query > 0) load(model, LW_LATENT_QUERY, l, matrix_type(v, 0), query, h, 0.2f, 0);
    load_vector(model, LW_LATENT_QUERY_NORM, l, query, 1.0f, query > 0);
    load(model, LW_ATTN_Q, l, matrix_type(v, 0), c->n_heads * c->head_dim, query > 0 ? query : h, 0.2f, 0);
    load(model, LW_LATENT_DOWN, l, matrix_type(v, 1), rank + c->rope_dim, h, 0.2f, 0);
    load_vector(model, LW_LATENT_NORM, l, rank, 1.0f, true);
    load(model, LW_LATENT_KEYS, l, matrix_type(v, 1), c->n_heads * rank, c->head_dim - c->rope_dim, 0.2f, 0);
    load(model, LW_LATENT_VALUES, l, matrix_type(v, 2), c->n_heads * c->value_dim, rank, 0.2f, 0);
    const uint32_t gates = c->output_gate == 2 ? c->n_heads : c->n_heads * c->value_dim;
    if (c->output_gate) load(model, LW_ATTN_GATE, l, matrix_type(v, 2), gates, h, 0.2f, 0);
    load(model, LW_ATTN_OUTPUT, l, matrix_type(v, 3), h, c->n_heads * c->value_dim, 0.2f, 0);
    if (c->index_heads > 0) load_index(model, v, c, l);
}

static void load_attention(lw_model* model, const variant* v, const lw_attention_config* c, uint32_t l) {
    if (c->latent_rank > 0) {
        load_latent(model, v, c, l);
        return;
    }
    const uint32_t q = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim, h = v->hidden;
    const uint32_t q_heads = v->interleaved ? c->n_heads : 0, k_heads = v->interleaved ? c->n_kv_heads : 0;
    const bool whole = c->qk_norm == LW_QK_NORM_WHOLE || c->qk_norm == LW_QK_NORM_LAYER,
               norm = c->qk_norm != LW_QK_NORM_NONE;
    const bool keys = !c->shares_kv, values = keys && !c->values_are_keys;
    load(model, LW_ATTN_Q, l, matrix_type(v, 0), q, h, 0.2f, q_heads);
    if (keys) load(model, LW_ATTN_K, l, matrix_type(v, 1), kv, h, 0.2f, k_heads);
    if (values) load(model, LW_ATTN_V, l, matrix_type(v, 2), kv, h, 0.2f, 0);
    load_vector(model, LW_ATTN_Q_BIAS, l, q, 0.1f, c->qkv_bias);
    load_vector(model, LW_ATTN_K_BIAS, l, kv, 0.1f, c->qkv_bias && keys);
    load_vector(model, LW_ATTN_V_BIAS, l, kv, 0.1f, c->qkv_bias && values);
    load_vector(model, LW_ATTN_Q_NORM, l, whole ? q : c->head_dim, 1.0f, norm);
    load_vector(model, LW_ATTN_K_NORM, l, whole ? kv : c->head_dim, 1.0f, norm && keys);
    const uint32_t gates = c->output_gate == 2 ? c->n_heads : q;
    if (c->output_gate) load(model, LW_ATTN_GATE, l, matrix_type(v, 2), gates, h, 0.2f, 0);
    // rows of q inputs: q4_0 and q8_0 need multiples of 32, which every quantized variant has
    load(model, LW_ATTN_OUTPUT, l, matrix_type(v, 3), h, q, 0.2f, 0);
    load_vector(model, LW_ATTN_OUTPUT_BIAS, l, h, 0.1f, c->output_bias);
    load_vector(model, LW_ATTN_SINKS, l, c->n_heads, 2.0f, c->sinks);
    if (has_orders(v)) {
        load_order(model, LW_ATTN_INPUT_ORDER, l, h);
        load_order(model, LW_ATTN_OUTPUT_ORDER, l, q);
        load_order(model, LW_FFN_INPUT_ORDER, l, h);
    }
}

static void load_state(lw_model* model, const variant* v, const lw_state_config* c, uint32_t l) {
    const uint32_t h = v->hidden, n = c->n_heads, keys = 2 * c->n_key_heads * c->key_dim;
    const uint32_t inner = c->kind == LW_SHORT_CONV ? h : n * c->value_dim, channels = inner + keys;
    const bool each = c->kind == LW_CHANNEL_DELTA, delta = each || c->kind == LW_GATED_DELTA;
    const uint32_t decays = each ? n * c->key_dim : n, rank = c->decay_rank, gate_rank = c->gate_rank;
    const uint32_t inputs = c->kind == LW_SHORT_CONV ? 3 * h : each ? keys / 2 : channels;
    load(model, LW_STATE_IN, l, matrix_type(v, 0), inputs, h, 0.2f, 0);
    if (each) load(model, LW_STATE_KEYS, l, matrix_type(v, 1), keys / 2, h, 0.2f, 0);
    if (each) load(model, LW_STATE_VALUES, l, matrix_type(v, 2), inner, h, 0.2f, 0);
    if (rank > 0) load(model, LW_STATE_DECAY_DOWN, l, matrix_type(v, 2), rank, h, 0.2f, 0);
    if (gate_rank > 0) load(model, LW_STATE_GATE_DOWN, l, matrix_type(v, 1), gate_rank, h, 0.2f, 0);
    load(model, LW_STATE_OUT, l, matrix_type(v, 3), h, inner, 0.2f, 0);
    load_vector(model, LW_STATE_CONV, l, channels * c->taps, 0.5f, true);
    load_vector(model, LW_STATE_CONV_BIAS, l, channels, 0.1f, c->conv_bias);
    if (c->kind == LW_SHORT_CONV) return;
    load(model, LW_STATE_GATE, l, matrix_type(v, 1), inner, gate_rank > 0 ? gate_rank : h, 0.2f, 0);
    load(model, LW_STATE_DECAY, l, matrix_type(v, 2), decays, rank > 0 ? rank : h, 0.2f, 0);
    if (delta) load(model, LW_STATE_BETA, l, matrix_type(v, 2), n, h, 0.2f, 0);
    load_vector(model, LW_STATE_DECAY_BIAS, l, decays, 1.0f, true);
    load_vector(model, LW_STATE_RATE, l, n, -0.5f, true);
    load_vector(model, LW_STATE_SKIP, l, n, 1.0f, !delta);
    load_vector(model, LW_STATE_NORM, l, delta ? c->value_dim : inner, 1.0f, delta || c->norm_size > 0);
}

static void load_gated(lw_model* model, const variant* v, const lw_ffn_config* c, uint32_t l) {
    const uint32_t h = v->hidden;
    if (c->kind == LW_FFN_GATED) load(model, LW_FFN_GATE, l, matrix_type(v, 4), c->size, h, 0.2f, 0);
    load(model, LW_FFN_UP, l, matrix_type(v, 5), c->size, h, 0.2f, 0);
    load(model, LW_FFN_DOWN, l, matrix_type(v, 6), h, c->size, 0.2f, 0);
    load_vector(model, LW_FFN_GATE_BIAS, l, c->size, 0.1f, c->bias);
    load_vector(model, LW_FFN_UP_BIAS, l, c->size, 0.1f, c->bias);
    load_vector(model, LW_FFN_DOWN_BIAS, l, h, 0.1f, c->bias);
}

static void load_experts(lw_model* model, const variant* v, const lw_ffn_config* c, uint32_t l) {
    const uint32_t h = v->hidden, n = c->n_experts, shared = c->shared_size, latent = c->latent_size;
    const uint32_t width = latent > 0 ? latent : h;
    const lw_role norms[] = {LW_ROUTER_NORM, LW_EXPERTS_NORM, LW_SHARED_RESULT_NORM, LW_EXPERTS_RESULT_NORM};
    for (size_t i = 0; i < 4; ++i) load_vector(model, norms[i], l, h, 1.0f, c->own_norms);
    load_vector(model, LW_ROUTER_SCALES, l, n, 1.0f, c->own_norms);
    load(model, LW_ROUTER, l, l == 0 ? LW_F32 : LW_BF16, n, h, 0.5f, 0);
    load_vector(model, LW_ROUTER_BIAS, l, n, 0.3f, c->router_bias);
    load_vector(model, LW_ROUTER_CHOICE_BIAS, l, n, 0.3f, c->choice_bias);
    if (latent > 0) load(model, LW_EXPERTS_IN, l, matrix_type(v, 3), latent, h, 0.2f, 0);
    if (!c->ungated) load(model, LW_EXPERTS_GATE, l, matrix_type(v, 4), n * c->size, width, 0.2f, 0);
    load(model, LW_EXPERTS_UP, l, matrix_type(v, 5), n * c->size, width, 0.2f, 0);
    load(model, LW_EXPERTS_DOWN, l, matrix_type(v, 6), n * width, c->size, 0.2f, 0);
    if (latent > 0) load(model, LW_EXPERTS_OUT, l, matrix_type(v, 2), h, latent, 0.2f, 0);
    load_vector(model, LW_EXPERTS_GATE_BIAS, l, n * c->size, 0.1f, c->bias && !c->ungated);
    load_vector(model, LW_EXPERTS_UP_BIAS, l, n * c->size, 0.1f, c->bias);
    load_vector(model, LW_FFN_DOWN_BIAS, l, h, 0.1f, c->down_bias);
    load_vector(model, LW_EXPERTS_DOWN_BIAS, l, n * h, 0.1f, c->bias);
    if (shared == 0) return;
    if (!c->ungated) load(model, LW_SHARED_GATE, l, matrix_type(v, 5), shared, h, 0.2f, 0);
    load(model, LW_SHARED_UP, l, matrix_type(v, 6), shared, h, 0.2f, 0);
    load(model, LW_SHARED_DOWN, l, matrix_type(v, 4), h, shared, 0.2f, 0);
    if (c->shared_gate) load(model, LW_SHARED_ROUTER, l, LW_F32, 1, h, 0.3f, 0);
}

// What is there once per model besides the embedding, the output and its norm.
static void load_ends(lw_model* model, const variant* v) {
    const uint32_t own = per_layer_size(v);
    if (own > 0) {
        load(model, LW_PER_LAYER_EMBEDDING, 0, v->embedding, VOCAB, 2 * own, 0.5f, 0);
        load(model, LW_PER_LAYER_PROJECTION, 0, matrix_type(v, 0), 2 * own, v->hidden, 0.2f, 0);
        load_vector(model, LW_PER_LAYER_NORM, 0, own, 1.0f, true);
    }
    if (v->layers != BESIDE) return;
    load(model, LW_POSITION_EMBEDDING, 0, LW_F16, 512, v->hidden, 1.0f, 0);
    load_vector(model, LW_OUTPUT_BIAS, 0, VOCAB, 1.0f, true);
    load_vector(model, LW_OUTPUT_NORM_BIAS, 0, v->hidden, 0.1f, v->bias);
}

static void load_norms(lw_model* model, const variant* v, const lw_layer_config* c, uint32_t l) {
    const bool biases = v->layers == BESIDE && v->bias,
               own = c->ffn.kind != LW_FFN_NONE && !c->no_input_norms && c->wiring != LW_PARALLEL_ONE_NORM;
    const uint32_t size = per_layer_size(v);
    if (size > 0) {
        load(model, LW_PER_LAYER_GATE, l, matrix_type(v, 1), size, v->hidden, 0.2f, 0);
        load(model, LW_PER_LAYER_OUT, l, matrix_type(v, 2), v->hidden, size, 0.2f, 0);
        load_vector(model, LW_PER_LAYER_RESULT_NORM, l, v->hidden, 1.0f, true);
    }
    load_vector(model, LW_ATTN_NORM, l, v->hidden, 1.0f, !c->no_input_norms);
    load_vector(model, LW_ATTN_NORM_BIAS, l, v->hidden, 0.1f, biases);
    load_vector(model, LW_ATTN_RESULT_NORM, l, v->hidden, 1.0f, c->result_norms);
    load_vector(model, LW_FFN_NORM, l, v->hidden, 1.0f, own);
    load_vector(model, LW_FFN_NORM_BIAS, l, v->hidden, 0.1f, own && biases);
    load_vector(model, LW_ATTN_INNER_NORM, l, c->attention.n_heads * c->attention.head_dim, 1.0f,
                c->attention.inner_norm);
    load_vector(model, LW_FFN_INNER_NORM, l, c->ffn.size, 1.0f, c->ffn.inner_norm);
    load_vector(model, LW_FFN_RESULT_NORM, l, v->hidden, 1.0f, c->result_norms);
}

static lw_model* open_model(const variant* v, const char* isa) {
    lw_layer_config layers[2];
    lw_model* model = create_model(v, isa, layers);
    load(model, LW_TOKEN_EMBEDDING, 0, v->embedding, VOCAB, v->hidden, 1.0f, 0);
    if (!v->tied) load(model, LW_OUTPUT, 0, v->embedding, VOCAB, v->hidden, 0.2f, 0);
    load(model, LW_OUTPUT_NORM, 0, LW_F32, 1, v->hidden, 1.0f, 0);
    load_ends(model, v);
    for (uint32_t l = 0; l < 2; ++l) {
        load_norms(model, v, &layers[l], l);
        if (layers[l].state.kind != LW_NO_STATE) load_state(model, v, &layers[l].state, l);
        if (layers[l].attention.n_heads > 0) load_attention(model, v, &layers[l].attention, l);
        if (layers[l].ffn.kind == LW_FFN_NONE) continue;
        if (layers[l].ffn.kind == LW_FFN_EXPERTS)
            load_experts(model, v, &layers[l].ffn, l);
        else
            load_gated(model, v, &layers[l].ffn, l);
    }
    check(lw_model_finish(model));
    return model;
}

#endif
