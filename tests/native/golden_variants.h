// The variants of golden_models.h: what each of test_golden.c's models is.
#ifndef GOLDEN_VARIANTS_H
#define GOLDEN_VARIANTS_H

#include <stdbool.h>
#include <string.h>

#include "lanewise.h"

enum { N_SEQS = 9, MAX_TOKENS = 40, VOCAB = 301, BLOCKS_PER_SEQ = 2 };

typedef struct variant {
    const char* name;
    int matrices;  // a type, or MIXED
    lw_type embedding;
    uint32_t hidden, ffn, heads, kv_heads, head_dim, window;
    bool tied, bias, norm, factors, interleaved;
    lw_type kv;
    const lw_type* mixed;  // used when `matrices` is MIXED
    int layers;            // ALIKE, or a kind of config_of
} variant;

enum { MIXED = -1 };

// What the layers of a variant are, beyond what its numbers say.
enum {
    ALIKE,
    EXPERTS,
    SINKS_AND_EXPERTS,
    ODD_ONES,
    SHORT_CONVS,
    DELTAS,
    CHANNELS,
    SSDS,
    BOTH,
    UNGATED_EXPERTS,
    LATENT_EXPERTS,
    BESIDE,
    CAPPED,
    OTHER_HEADS,
    SHARED,
    PER_LAYER,
    LATENT,
    INDEXED,
    FALLING,
    OWN_NORMS,
    ROW_CODES
};

// The layer that has a state; the other one has attention. Of BOTH both have both.
static uint32_t state_layer(const variant* v);

// Types of Q, K, V, output, gate, up and down.
static const lw_type k_quants_types[] = {LW_Q4_K, LW_Q5_K, LW_Q3_K, LW_Q2_K, LW_Q4_K, LW_IQ4_XS, LW_Q6_K};
static const lw_type legacy_types[] = {LW_Q4_1, LW_Q5_0, LW_Q5_1, LW_MXFP4, LW_IQ4_NL, LW_Q4_1, LW_Q5_1};
static const lw_type codebooks_types[] = {LW_CB2, LW_CB3, LW_CB4, LW_T2, LW_T2, LW_CB2, LW_CB3};
static const lw_type groups_types[] = {LW_Q4_G64, LW_Q4_G128, LW_A4_G32, LW_A4_G64, LW_A4_G128, LW_A8_G32, LW_A8_G128};
static const lw_type fp4_types[] = {LW_FP4, LW_Q2_G64, LW_Q2_G128, LW_FP4, LW_FP4, LW_Q2_G64, LW_Q2_G128};
static const lw_type row_scales_types[] = {LW_FP6, LW_W8A8, LW_FP6, LW_W8A8, LW_FP6, LW_FP6, LW_W8A8};

static const variant variants[] = {
    {"q4_0+q6_k head", LW_Q4_0, LW_Q6_K, 256, 512, 4, 2, 64, 0, true, false, false, true, true, LW_F16, NULL, ALIKE},
    {"q8_0 bias", LW_Q8_0, LW_Q8_0, 288, 352, 6, 2, 48, 0, false, true, false, false, false, LW_F16, NULL, ALIKE},
    {"q4_0 qk norm", LW_Q4_0, LW_Q4_0, 192, 320, 4, 4, 80, 0, true, false, true, false, false, LW_F32, NULL, ALIKE},
    {"f16 window", LW_F16, LW_F16, 72, 100, 4, 1, 18, 24, false, false, false, false, false, LW_F16, NULL, ALIKE},
    {"bf16", LW_BF16, LW_BF16, 64, 96, 2, 2, 32, 0, true, false, false, false, false, LW_F16, NULL, ALIKE},
    {"f32", LW_F32, LW_F32, 64, 172, 8, 4, 8, 0, true, false, false, false, true, LW_F32, NULL, ALIKE},
    {"k-quants", MIXED, LW_Q4_K, 256, 512, 4, 2, 64, 0, true, false, false, false, false, LW_F16, k_quants_types,
     ALIKE},
    {"legacy", MIXED, LW_IQ4_NL, 192, 352, 6, 2, 32, 0, true, false, false, false, false, LW_F16, legacy_types, ALIKE},
    {"codebooks", MIXED, LW_CB4, 192, 352, 6, 2, 32, 0, false, false, false, false, false, LW_F16, codebooks_types,
     ALIKE},
    {"groups", MIXED, LW_A8_G32, 192, 352, 6, 2, 32, 0, true, false, false, false, false, LW_F16, groups_types, ALIKE},
    {"fp4 and 2 bits", MIXED, LW_FP4, 192, 352, 6, 2, 32, 0, true, false, false, false, false, LW_F16, fp4_types,
     ALIKE},
    {"row scales", MIXED, LW_FP6, 192, 352, 6, 2, 32, 0, true, false, false, false, false, LW_F16, row_scales_types,
     ALIKE},
    {"q4_0 int8 cache", LW_Q4_0, LW_Q4_0, 256, 512, 8, 2, 32, 0, true, false, false, false, false, LW_I8, NULL, ALIKE},
    {"f32 int8 cache, window", LW_F32, LW_F32, 60, 96, 3, 1, 18, 24, true, false, false, false, false, LW_I8, NULL,
     ALIKE},
    {"q4_0 cache of 4 bits", LW_Q4_0, LW_Q4_0, 256, 512, 8, 2, 32, 0, true, false, false, false, false, LW_I4, NULL,
     ALIKE},
    {"f32 cache of 8 and 4 bits, window", LW_F32, LW_F32, 60, 96, 3, 1, 18, 24, true, false, false, false, false,
     LW_I8_I4, NULL, ALIKE},
    {"orders", LW_A4_G64, LW_F16, 256, 512, 4, 2, 64, 0, true, false, false, false, false, LW_F16, NULL, ALIKE},
    {"q4_0 adapters", LW_Q4_0, LW_Q4_0, 288, 608, 6, 2, 48, 0, true, false, false, false, true, LW_F16, NULL, ALIKE},
    {"f32 adapters", LW_F32, LW_F32, 60, 172, 3, 1, 18, 24, true, true, true, false, false, LW_F32, NULL, ALIKE},
    {"q4_0 experts", LW_Q4_0, LW_Q8_0, 256, 96, 4, 2, 64, 0, true, false, true, false, false, LW_F16, NULL, EXPERTS},
    {"legacy experts", MIXED, LW_Q8_0, 192, 160, 6, 2, 32, 0, true, true, false, false, false, LW_F16, legacy_types,
     EXPERTS},
    {"mxfp4 sinks and experts", LW_MXFP4, LW_Q8_0, 192, 96, 6, 2, 32, 0, false, true, false, true, false, LW_F16, NULL,
     SINKS_AND_EXPERTS},
    {"f32 sinks and experts", LW_F32, LW_F32, 96, 64, 4, 1, 18, 0, true, true, false, false, false, LW_I8, NULL,
     SINKS_AND_EXPERTS},
    {"q4_0 ungated experts", LW_Q4_0, LW_Q8_0, 192, 160, 6, 2, 32, 0, true, true, false, false, false, LW_F16, NULL,
     UNGATED_EXPERTS},
    {"f32 ungated experts", LW_F32, LW_F32, 96, 64, 4, 1, 18, 0, true, false, false, false, false, LW_F32, NULL,
     UNGATED_EXPERTS},
    {"q4_0 latent experts", LW_Q4_0, LW_Q8_0, 288, 160, 6, 2, 48, 0, true, false, false, false, false, LW_F16, NULL,
     LATENT_EXPERTS},
    {"f32 latent experts", LW_F32, LW_F32, 96, 64, 4, 1, 18, 0, true, false, false, false, false, LW_F32, NULL,
     LATENT_EXPERTS},
    {"q8_0 odd ones", LW_Q8_0, LW_Q8_0, 192, 352, 6, 2, 32, 0, true, false, false, false, false, LW_F16, NULL,
     ODD_ONES},
    {"q4_0 short convolution", LW_Q4_0, LW_Q8_0, 288, 352, 6, 2, 48, 0, true, false, true, false, false, LW_F16, NULL,
     SHORT_CONVS},
    {"f32 short convolution", LW_F32, LW_F32, 84, 96, 3, 1, 18, 24, true, false, false, false, false, LW_F32, NULL,
     SHORT_CONVS},
    {"q8_0 delta rule", LW_Q8_0, LW_Q8_0, 256, 352, 4, 2, 64, 0, true, false, true, false, false, LW_F16, NULL, DELTAS},
    {"f32 delta rule", LW_F32, LW_F32, 60, 96, 3, 1, 18, 0, false, false, false, false, false, LW_F32, NULL, DELTAS},
    {"q8_0 delta rule of channels", LW_Q8_0, LW_Q8_0, 256, 352, 4, 1, 64, 0, true, false, false, false, false, LW_F16,
     NULL, CHANNELS},
    {"f32 delta rule of channels", LW_F32, LW_F32, 60, 96, 3, 1, 20, 0, false, false, false, false, false, LW_F32, NULL,
     CHANNELS},
    {"k-quants state space", MIXED, LW_Q4_K, 256, 512, 4, 2, 64, 24, true, false, false, false, false, LW_F16,
     k_quants_types, SSDS},
    {"f32 state space", LW_F32, LW_F32, 60, 96, 3, 1, 18, 0, true, false, false, false, false, LW_F32, NULL, SSDS},
    {"q4_0 attention and state", LW_Q4_0, LW_Q6_K, 256, 352, 4, 2, 64, 0, true, false, false, false, false, LW_F16,
     NULL, BOTH},
    {"f32 attention and state", LW_F32, LW_F32, 60, 96, 3, 1, 18, 24, false, true, false, false, false, LW_F32, NULL,
     BOTH},
    {"q4_0 beside", LW_Q4_0, LW_Q8_0, 288, 352, 6, 2, 48, 0, true, true, false, false, true, LW_F16, NULL, BESIDE},
    {"f32 beside, adapters", LW_F32, LW_F32, 60, 96, 3, 1, 18, 24, false, false, false, false, false, LW_F32, NULL,
     BESIDE},
    {"q8_0 capped", LW_Q8_0, LW_Q8_0, 192, 352, 6, 2, 32, 24, true, false, true, false, true, LW_F16, NULL, CAPPED},
    {"f32 capped, int8 cache", LW_F32, LW_F32, 60, 96, 3, 1, 18, 0, true, false, false, false, false, LW_I8, NULL,
     CAPPED},
    {"q4_0 other heads", LW_Q4_0, LW_Q8_0, 256, 352, 8, 4, 64, 24, true, false, true, false, false, LW_F16, NULL,
     OTHER_HEADS},
    {"f32 other heads, int8 cache", LW_F32, LW_F32, 60, 96, 3, 1, 18, 24, true, true, false, false, false, LW_I8, NULL,
     OTHER_HEADS},
    {"q8_0 shared keys", LW_Q8_0, LW_Q8_0, 256, 352, 4, 2, 64, 0, true, false, true, false, false, LW_F16, NULL,
     SHARED},
    {"q4_0 per layer", LW_Q4_0, LW_Q8_0, 256, 352, 4, 2, 64, 0, true, false, true, false, false, LW_F16, NULL,
     PER_LAYER},
    {"q4_0 falling scores, norms of heads", LW_Q4_0, LW_Q8_0, 288, 352, 6, 2, 48, 24, true, false, false, false, true,
     LW_F16, NULL, FALLING},
    {"f32 falling scores, norms of heads", LW_F32, LW_F32, 60, 96, 3, 1, 18, 0, true, false, false, false, false,
     LW_F32, NULL, FALLING},
    {"q4_0 experts with norms", LW_Q4_0, LW_Q8_0, 256, 96, 4, 2, 64, 0, true, false, true, false, false, LW_F16, NULL,
     OWN_NORMS},
    {"f32 experts with norms", LW_F32, LW_F32, 96, 64, 4, 1, 18, 0, true, false, false, false, false, LW_F32, NULL,
     OWN_NORMS},
    {"f32 per layer", LW_F32, LW_F32, 60, 24, 3, 1, 18, 0, true, false, false, false, false, LW_F32, NULL, PER_LAYER},
    {"q8_0 latent", LW_Q8_0, LW_Q8_0, 192, 352, 20, 1, 64, 0, true, false, false, false, false, LW_F16, NULL, LATENT},
    {"q4_0 latent", LW_Q4_0, LW_Q4_0, 128, 96, 4, 1, 192, 24, true, false, false, false, false, LW_F16, NULL, LATENT},
    {"f32 latent", LW_F32, LW_F32, 60, 96, 3, 1, 20, 0, false, false, false, false, false, LW_F32, NULL, LATENT},
    {"q8_0 index", LW_Q8_0, LW_Q8_0, 192, 352, 20, 1, 64, 0, true, false, false, false, false, LW_F16, NULL, INDEXED},
    {"f32 index", LW_F32, LW_F32, 60, 96, 3, 1, 20, 0, false, false, false, false, false, LW_F32, NULL, INDEXED},
    {"cb2 row codes", LW_CB2, LW_Q8_0, 256, 352, 4, 1, 64, 0, true, false, false, false, false, LW_F16, NULL,
     ROW_CODES},
    {"f32 row codes", LW_F32, LW_F32, 60, 100, 3, 3, 20, 0, false, false, false, false, false, LW_F32, NULL, ROW_CODES},
};

static uint32_t state_layer(const variant* v) { return v->layers == SSDS; }

// Of LATENT: as DeepSeek V3's, then as V2-Lite's, whose queries have no rank.
static void make_latent(const variant* v, uint32_t layer, lw_attention_config* a) {
    a->rope = 1;
    a->latent_rank = layer == 0 ? 96 : 32;
    a->rope_dim = v->head_dim / 2;
    a->value_dim = layer == 0 ? 64 : 32;
    a->query_rank = layer == 0 ? 160 : 0;
    a->latent_eps = 1e-6f;
    a->score_scale = layer == 0 ? 0.17f : 0;
}

// Of INDEXED: an odd number of index heads, then the same choice in a layer without an index.
static void make_indexed(const variant* v, uint32_t layer, lw_attention_config* a) {
    make_latent(v, 0, a);
    a->index_topk = v->heads == 3 ? 3 : 7;
    a->index_heads = layer == 0 ? v->heads + v->heads % 2 + 1 : 0;
    a->index_dim = layer == 0 ? v->head_dim : 0;
}

// The variant whose matrices before the last read their inputs in another order.
static bool has_orders(const variant* v) { return strcmp(v->name, "orders") == 0; }

// The variant of which most sequences have one of three adapters.
static bool has_adapters(const variant* v) { return strstr(v->name, "adapters") != NULL; }

enum { N_ADAPTERS = 3 };
static lw_adapter* adapters[N_ADAPTERS];
static bool without_adapters;  // in spite of all

// Neighbours with the same one, one alone, some without.
static const lw_adapter* adapter_of(const variant* v, uint32_t seq) {
    static const int of[N_SEQS] = {0, 0, -1, 1, 2, -1, 1, 1, 0};
    return has_adapters(v) && !without_adapters && of[seq] >= 0 ? adapters[of[seq]] : NULL;
}

// Experts with every router there is. Layer 1 always has the other kind.
static lw_ffn_config experts_of(const variant* v, uint32_t layer) {
    lw_ffn_config c = {.kind = LW_FFN_EXPERTS,
                       .size = v->ffn,
                       .n_experts = 6,
                       .n_used = 2,
                       .n_groups = 1,
                       .groups_used = 1,
                       .scale = 1};
    if (v->layers == LATENT_EXPERTS) {
        c.ungated = layer == 0;
        c.activation = layer == 0 ? LW_RELU_SQUARED : LW_SILU;
        c.latent_size = layer == 0 ? 2 * v->hidden / 3 : v->hidden;
        c.renormalize = 1;
        c.shared_size = layer == 0 ? 96 : 0;
    } else if (v->layers == UNGATED_EXPERTS) {
        c.ungated = 1;
        c.bias = v->bias;
        c.down_bias = !v->bias;
        c.activation = layer == 0 ? LW_RELU_SQUARED : LW_GELU;
        c.router = LW_ROUTER_SIGMOID;
        c.choice_bias = c.renormalize = 1;
        c.divisor_extra = 1e-20f;
        c.shared_size = layer == 0 ? 96 : 0;
    } else if (v->layers == SINKS_AND_EXPERTS) {
        c.bias = c.router_bias = 1;
        c.router = LW_ROUTER_TOP_SOFTMAX;
        c.activation = LW_CLAMPED;
        c.limit = 0.5f;
        c.alpha = 1.702f;
    } else if (layer == 0) {
        c.router = LW_ROUTER_SOFTMAX;
        c.renormalize = 1;
        c.shared_size = 64;
        c.shared_gate = 1;
    } else {
        c.router = LW_ROUTER_SIGMOID;
        c.choice_bias = c.renormalize = 1;
        c.n_groups = 3;
        c.groups_used = 2;
        c.n_used = 3;
        c.divisor_extra = 1e-20f;
        c.scale = 2.5f;
        c.shared_size = 96;
    }
    return c;
}

// Whole models' sizes where matrices are quantized; small odd ones where they are not. The last layer of a variant with
// SSD is nothing but that.
static void change_state_layer(const variant* v, uint32_t layer, lw_layer_config* out) {
    const bool large = v->matrices != LW_F32;
    if (v->layers != BOTH && layer != state_layer(v)) {
        out->attention.output_gate = v->layers == DELTAS;
        if (v->layers == CHANNELS) {
            make_latent(v, 1, &out->attention);
            out->attention.rope = large ? out->attention.rope : LW_NO_ROPE;
            out->attention.output_gate = large ? 2 : 1;
        }
        return;
    }
    if (v->layers != BOTH) out->attention = (lw_attention_config){0};
    if (v->layers == BOTH) out->attention.output_gate = layer == 0 ? 2 : 0;
    out->state = (lw_state_config){.kind = LW_SHORT_CONV, .taps = large ? 3 : 5};
    if (v->layers == SHORT_CONVS) return;
    out->state = (lw_state_config){.kind = v->layers == DELTAS ? LW_GATED_DELTA : LW_SSD,
                                   .taps = 4,
                                   .n_heads = large ? 4 : 3,
                                   .value_dim = large ? 128 : 48,
                                   .n_key_heads = large ? 2 : 1,
                                   .key_dim = large ? 64 : 16,
                                   .keys_in_turn = large,
                                   .norm_eps = 1e-5f};
    if (v->layers == CHANNELS) {
        out->state.kind = LW_CHANNEL_DELTA;
        out->state.keys_in_turn = 0;
        out->state.decay_rank = large ? 64 : 0;
        out->state.gate_rank = large ? 96 : 7;
        out->state.decay_floor = large ? 0 : 5;
        return;
    }
    if (v->layers == DELTAS) {
        out->ffn.kind = large ? LW_FFN_GATED : LW_FFN_PLAIN;
        out->ffn.activation = large ? LW_SILU : LW_RELU_SQUARED;
        return;
    }
    out->state.value_dim = large ? 64 : 16;
    out->state.conv_bias = large;
    out->state.norm_size = large ? 128 : 0;
    if (v->layers == SSDS || (!large && layer == 1)) out->ffn = (lw_ffn_config){.kind = LW_FFN_NONE};
}

static void change_layer(const variant* v, uint32_t layer, lw_layer_config* out) {
    lw_attention_config* a = &out->attention;
    if (v->layers >= SHORT_CONVS && v->layers <= BOTH) change_state_layer(v, layer, out);
    if (v->layers == EXPERTS || v->layers == SINKS_AND_EXPERTS || v->layers == UNGATED_EXPERTS ||
        v->layers == LATENT_EXPERTS)
        out->ffn = experts_of(v, layer);
    if (v->layers == SINKS_AND_EXPERTS) {
        a->window = layer == 0 ? 24 : 0;
        a->sinks = a->output_bias = 1;
    }
    if (v->layers == OTHER_HEADS && layer == 1) {  // Gemma 4's: half as many KV heads of eight times the size
        a->n_heads = v->heads / 2 + v->heads % 2;
        a->n_kv_heads = v->kv_heads / 2 + v->kv_heads % 2;
        a->head_dim = v->head_dim * 8;
        a->window = 0;
        a->values_are_keys = a->value_norm = 1;
    }
    if (v->layers == LATENT) make_latent(v, layer, a);
    if (v->layers == INDEXED) make_indexed(v, layer, a);
    if (v->layers == SHARED) {
        a->shares_kv = layer == 1;
        a->n_heads = layer == 1 ? 2 * v->heads : v->heads;
        a->value_norm = layer == 0;
    }
    if (v->layers == PER_LAYER) {
        out->result_norms = 1;
        out->ffn.activation = LW_GELU_TANH;
        out->output_scale = layer == 1 ? 0.375f : 0;
    }
    if (v->layers == OWN_NORMS) {
        out->ffn = experts_of(v, 0);
        out->ffn.bias = out->ffn.down_bias = out->ffn.shared_gate = 0;
        out->ffn.shared_size = 96;
        out->ffn.activation = LW_GELU_TANH;
        out->ffn.own_norms = out->result_norms = 1;
    }
    if (v->layers == ROW_CODES) {
        a->inner_norm = out->ffn.inner_norm = out->row_codes = 1;
        out->ffn.activation = layer == 0 ? LW_SILU : LW_RELU_SQUARED;
    }
    if (v->layers == FALLING) {
        a->alibi = layer == 0 ? 2 : 0;
        a->rope = layer == 0 ? LW_NO_ROPE : a->rope;
        a->qk_norm = layer == 0 ? LW_QK_NORM_NONE : LW_QK_NORM_LAYER;
    }
    if (v->layers == BESIDE) {
        out->wiring = layer == 0 ? LW_PARALLEL : LW_PARALLEL_ONE_NORM;
        a->output_bias = out->ffn.bias = layer == 0;
    }
    if (v->layers == CAPPED) {
        a->score_softcap = layer == 0 ? 0.75f : 0;
        a->qk_norm = layer == 0 ? LW_QK_NORM_TURNED : a->qk_norm;
        out->result_norms = 1;
        out->no_input_norms = layer == 1;
        out->output_scale = layer == 0 ? 0.625f : 0;
        out->ffn.activation = LW_XIELU;
        out->ffn.kind = layer == 0 ? LW_FFN_PLAIN : LW_FFN_GATED;
        out->ffn.alpha = 0.875f;
        out->ffn.limit = 1.375f;
    }
    if (v->layers != ODD_ONES) return;
    a->qk_norm = LW_QK_NORM_WHOLE;
    a->window = layer == 0 ? 0 : 24;
    a->rope = layer == 0 ? 1 : LW_NO_ROPE;
    a->score_scale = layer == 0 ? 0.11f : 0;
    a->position_beta = layer == 0 ? 0.1f : 0;
    a->position_original = 8;
    out->ffn.bias = 1;
}

static uint32_t per_layer_size(const variant* v) {
    return v->layers != PER_LAYER ? 0 : v->matrices == LW_F32 ? 30 : 64;
}

#endif
