// What configs of layers may not say: a part of test_arguments.c.
#ifndef LAYER_ARGUMENTS_H
#define LAYER_ARGUMENTS_H

#include <math.h>

#include "small_model.h"

static void* const untouched = (void*)(uintptr_t)0x5A5A;

// A config of one layer with experts, each of whose fields can be spoilt.
typedef struct layered {
    lw_rope rope;
    lw_layer_config layers[2];
    lw_model_config model;
} layered;

static layered good;

static void set_good(void) {
    const uniform_config alike = small_config();
    good.rope = uniform_rope(&alike);
    good.layers[0] = good.layers[1] = uniform_layer(&alike);
    good.layers[1].ffn = (lw_ffn_config){.kind = LW_FFN_EXPERTS,
                                         .size = 32,
                                         .n_experts = 8,
                                         .n_used = 3,
                                         .n_groups = 4,
                                         .groups_used = 2,
                                         .scale = 1,
                                         .shared_size = 64};
    good.model = uniform_model(&alike, &good.rope, good.layers);
}

// Latent attention in a layer of its own.
static void set_latent(void) {
    set_good();
    lw_attention_config* a = &good.layers[1].attention;
    good.rope.rotated = a->rope_dim = DIM / 2;
    a->n_kv_heads = 1;
    a->qkv_bias = 0;
    a->qk_norm = LW_QK_NORM_NONE;
    a->latent_rank = 96;
    a->value_dim = 64;
    a->query_rank = 24;
    a->latent_eps = 1e-6f;
}

static void test_latent_layers(void) {
    lw_model* model = untouched;
    lw_attention_config* a = &good.layers[1].attention;
#define SPOILT(change, says)                                           \
    do {                                                               \
        set_latent();                                                  \
        change;                                                        \
        ARGUMENT(lw_model_create(&good.model, NULL, 1, &model), says); \
    } while (0)
    SPOILT(a->latent_rank = 40, "layer 1: latent_rank is 40, must be a multiple of 32");
    SPOILT(a->latent_rank = 1056, "layer 1: latent_rank is 1056, must be 0 to 1024");
    SPOILT(a->latent_rank = 0, "layer 1: rope_dim is 16, must be 0");
    SPOILT((a->latent_rank = a->rope_dim = 0), "layer 1: value_dim is 64, must be 0");
    SPOILT((a->latent_rank = a->rope_dim = a->value_dim = 0), "layer 1: query_rank is 24, must be 0");
    SPOILT(a->rope_dim = DIM, "layer 1: rope_dim is 32, must be 2 to 31");
    SPOILT(a->rope_dim = 8, "layer 1: rope_dim is 8, which its rope must turn all of");
    SPOILT((a->rope = LW_NO_ROPE, a->index_topk = 5), "layer 1: index_topk is 5, must be 0");
    SPOILT(a->value_dim = 48, "layer 1: value_dim is 48, must be a multiple of 32");
    SPOILT(a->value_dim = 0, "layer 1: value_dim is 0, must be 32 to 1024");
    SPOILT(a->query_rank = 1 << 17, "layer 1: query_rank is 131072");
    SPOILT(a->latent_eps = -1, "layer 1: latent_eps is -1");
    SPOILT(a->n_kv_heads = 2, "layer 1: n_kv_heads is 2, must be 1");
    SPOILT(a->qkv_bias = 1, "layer 1: latent_rank is 96, with which qkv_bias, qk_norm");
    SPOILT(a->qk_norm = LW_QK_NORM_HEAD, "layer 1: latent_rank is 96, with which");
    SPOILT(a->output_gate = 3, "layer 1: output_gate is 3, must be 0 to 2");
    SPOILT(a->alibi = 1, "layer 1: alibi is 1 and score_scale");
    SPOILT(a->distances = 5, "layer 1: latent_rank is 96, with which");
    SPOILT(a->values_are_keys = 1, "layer 1: latent_rank is 96, with which");
    SPOILT(a->qkv_clip = 1, "layer 1: latent_rank is 96, with which");
    SPOILT(a->value_norm = 1, "layer 1: latent_rank is 96, with which");
    SPOILT(a->shares_kv = 1, "layer 1: latent_rank is 96, with which");
    SPOILT((a->window = 8, a->index_topk = 4), "layer 1: index_topk is 4, must be 0");
    SPOILT((a->query_rank = 0, a->index_topk = 4), "layer 1: index_topk is 4, must be 0");
    SPOILT(a->index_heads = 2, "layer 1: index_heads is 2, must be 0");
    SPOILT(a->index_topk = 4, "layer 1: index_heads is 0, for which a layer before must have index_heads");
    SPOILT((a->index_topk = 4, a->index_heads = 2), "layer 1: index_dim is 0, must be 16 to 512");
    SPOILT((a->index_topk = 4, a->index_heads = 2, a->index_dim = 17),
           "layer 1: index_dim is 17, must be a multiple of 2");
    SPOILT((a->index_topk = 4, a->index_heads = 300), "layer 1: index_heads is 300, must be 0 to 256");
    SPOILT(a->index_local = 1, "layer 1: index_local is 1, must be 0");
    SPOILT((a->index_topk = 64, a->index_block = 32), "layer 1: index_block is 32, must be 0");
#undef SPOILT
    set_latent();
    good.layers[0].attention = *a;
    a->shares_kv = 1;
    ARGUMENT(lw_model_create(&good.model, NULL, 1, &model), "layer 1: kv_layer is 0, which must have keys and values");
    expect(model == untouched, "a refused call writes no model");
    set_latent();
    expect(lw_model_create(&good.model, NULL, 1, &model) == LW_OK, "the config itself is good");
    lw_kv_layout kv;
    expect(lw_model_kv_layout(model, LW_F16, 0, &kv) == LW_OK, "it has a cache");
    // One slot for the plain layer, of two vectors of 32, and one for rows of 96 and 16 values.
    const uint64_t row = 96 + DIM / 2, plain = 2 * DIM, slot = row > plain ? row : plain;
    expect(kv.block_bytes == 2 * slot * 2 * LW_BLOCK_TOKENS, "a row of a token has rank and turned values");
    static float values[2 * 96 * DIM];
    const lw_tensor keys = float_tensor(values, 2 * 96, DIM / 2, 1);
    expect(lw_model_load(model, LW_LATENT_KEYS, 1, &keys, LW_F32) == LW_OK, "matrices of heads are loaded stacked");
    REFUSED(lw_model_load(model, LW_LATENT_KEYS, 0, &keys, LW_F32), LW_ERR_FORMAT, "the model's config says");
    REFUSED(lw_model_load(model, LW_ATTN_K, 1, &keys, LW_F32), LW_ERR_FORMAT, "the model's config says");
    REFUSED(lw_model_load(model, LW_LATENT_VALUES, 1, &keys, LW_F32), LW_ERR_FORMAT, "must be (128, 96)");
    lw_model_close(model);
}

// An index of blocks for plain heads.
static void set_blocks(void) {
    set_good();
    lw_attention_config* a = &good.layers[1].attention;
    a->index_topk = 96;
    a->index_block = 32;
    a->index_local = a->index_heads = 1;
    a->index_dim = DIM;
}

static void test_layers_of_blocks(void) {
    lw_model* model = untouched;
    lw_attention_config* a = &good.layers[1].attention;
#define SPOILT(change, says)                                           \
    do {                                                               \
        set_blocks();                                                  \
        change;                                                        \
        ARGUMENT(lw_model_create(&good.model, NULL, 1, &model), says); \
    } while (0)
    SPOILT(a->index_block = 48, "layer 1: index_block is 48, must be a multiple of 32");
    SPOILT(a->index_block = 8192, "layer 1: index_block is 8192, must be 0 to 4096");
    SPOILT(a->index_topk = 0, "layer 1: index_topk is 0, must be 32 to 1048576");
    SPOILT(a->index_topk = 80, "layer 1: index_topk is 80, must be a multiple of 32");
    SPOILT(a->index_local = 0, "layer 1: index_local is 0, must be 1 to 3");
    SPOILT(a->index_local = 4, "layer 1: index_local is 4, must be 1 to 3");
    SPOILT(a->index_heads = 0, "layer 1: index_heads is 0, must be 1");
    SPOILT((a->n_heads = 4, a->n_kv_heads = 4, a->index_heads = 3), "index_heads is 3, must divide the 4 KV heads");
    SPOILT(a->index_dim = DIM - 2, "layer 1: index_dim is 30, must be 32 to 512");
    SPOILT(a->index_dim = DIM + 1, "layer 1: index_dim is 33, must be a multiple of 2");
    SPOILT(a->window = 8, "layer 1: index_block is 32, must be 0");
    SPOILT(a->chunk = 32, "layer 1: index_block is 32, must be 0");
    SPOILT(a->distances = 3, "layer 1: index_block is 32, must be 0");
    SPOILT(a->rope = LW_NO_ROPE, "layer 1: index_block is 32, must be 0");
    SPOILT(a->rope = 1, "layer 1: rope is 1, there are 1");
    SPOILT(a->shares_kv = 1, "layer 1: index_block is 32, must be 0");
#undef SPOILT
    expect(model == untouched, "a refused call writes no model");
    set_blocks();
    expect(lw_model_create(&good.model, NULL, 1, &model) == LW_OK, "the config itself is good");
    lw_kv_layout kv;
    expect(lw_model_kv_layout(model, LW_I8, 0, &kv) == LW_OK, "it has a cache");
    // Two slots, of the layer with an index: codes and scales of a key and a value, halves of an index key.
    const uint64_t token = (uint64_t)a->n_kv_heads * (2 * DIM + 8) + 2 * DIM;
    expect(kv.block_bytes == 2 * token * LW_BLOCK_TOKENS, "a token has an index key beside codes");
    lw_model_close(model);
}

static void test_layers(void) {
    lw_model* model = untouched;
    set_good();
    lw_model_config* c = &good.model;
    lw_attention_config* a = &good.layers[1].attention;
    lw_ffn_config* f = &good.layers[1].ffn;
#define SPOILT(change, says)                                 \
    do {                                                     \
        set_good();                                          \
        change;                                              \
        ARGUMENT(lw_model_create(c, NULL, 1, &model), says); \
    } while (0)
    SPOILT(c->layers = NULL, "layers and ropes must not be NULL");
    SPOILT(c->ropes = NULL, "layers and ropes must not be NULL");
    SPOILT(c->n_ropes = 9, "n_ropes is 9, must be 0 to 8");
    SPOILT(c->embedding_scale = 0, "embedding_scale is 0");
    SPOILT(c->logit_scale = NAN, "logit_scale is nan");
    SPOILT(c->result_eps = -1, "result_eps is -1");
    SPOILT(c->embedding_norm = 2, "embedding_norm is 2, must be 0 to 1");
    SPOILT((c->norm = LW_NORM_LAYER, c->embedding_norm = 1), "embedding_norm is 1, must be 0");
    SPOILT(good.rope.rotated = 31, "rope 0: rotated is 31, must be even");
    SPOILT(good.rope.scale = 0, "rope 0: scale is 0");
    SPOILT(a->rope = 1, "layer 1: rope is 1, there are 1");
    SPOILT(a->rope = -2, "layer 1: rope is -2");
    SPOILT(good.rope.rotated = DIM + 2, "rotated dimensions is 34, must be 2 to 32");
    SPOILT((a->n_heads = 4, a->alibi = 1), "layer 1: alibi with 4 heads, must be 2 as in the first layer that has");
    SPOILT(a->disentangled = 2, "layer 1: disentangled is 2, must be 0 to 1");
    SPOILT((a->disentangled = 1, a->distances = c->context_length + 29), "layer 1: distances is ");
    SPOILT(a->distances = 1 << 17, "layer 1: distances is 131072, must be 0 to 65536");
    SPOILT(a->alibi = 3, "layer 1: alibi is 3, must be 0 to 2");
    SPOILT(a->alibi = 2, "layer 1: alibi is 2 and score_scale 0, must be 0 and 0 as in the first layer that has");
    SPOILT((good.layers[0].attention.alibi = a->alibi = 2, a->score_scale = 0.5f),
           "layer 1: alibi is 2 and score_scale 0.5, must be 2 and 0 as in the first layer that has");
    SPOILT(a->head_dim = 514, "layer 1: head_dim is 514, must be 2 to 512");
    SPOILT(a->values_are_keys = 2, "layer 1: values_are_keys is 2");
    SPOILT(a->value_norm = 2, "layer 1: value_norm is 2");
    SPOILT(a->chunk = 33, "layer 1: chunk is 33, must be a multiple of 32");
    SPOILT((a->chunk = 32, a->window = 5), "layer 1: chunk is 32, with which window");
    SPOILT(a->position_offset = 1, "layer 1: position_offset is 1, must be 0");
    SPOILT(a->value_scale = -1, "layer 1: value_scale is -1");
    SPOILT(a->value_dim = a->head_dim + 1, "layer 1: value_dim is 33, must be 0 to 32");
    SPOILT((a->value_dim = 16, a->values_are_keys = 1), "layer 1: value_dim is 16, must be 0");
    SPOILT((a->shares_kv = 1, a->value_dim = 16), "layer 1: kv_layer is 0, which must have");
    SPOILT(a->gate_softplus = 1, "layer 1: gate_softplus is 1, must be 0");
    SPOILT(a->qkv_clip = -1, "layer 1: qkv_clip is -1");
    SPOILT(good.layers[0].attention.shares_kv = 1, "layer 0: shares_kv is 1, must be 0");
    SPOILT(a->kv_layer = 1, "layer 1: kv_layer is 1, must be 0");
    SPOILT((a->shares_kv = 1, a->kv_layer = 1), "layer 1: kv_layer is 1, must be 0");
    SPOILT((a->shares_kv = 1, a->window = 5),
           "layer 1: kv_layer is 0, which must have keys and values of its own, 1 KV");
    SPOILT((a->shares_kv = 1, a->head_dim = 64), "layer 1: kv_layer is 0, which must have");
    SPOILT((a->shares_kv = 1, a->value_norm = 1), "layer 1: values_are_keys, value_norm and value_scale must");
    SPOILT(a->qk_norm = (lw_qk_norm)5, "layer 1: qk_norm is 5");
    SPOILT(f->own_norms = 2, "own_norms is 2");
    SPOILT(f->own_norms = 1, "own_norms is 1, must be 0 without result_norms, beside attention");
    SPOILT((f->own_norms = good.layers[1].result_norms = 1, f->shared_size = 0),
           "own_norms is 1, must be 0 with biases, a gate of the shared expert or without one");
    SPOILT(a->sinks = 2, "layer 1: sinks is 2");
    SPOILT(a->inner_norm = 2, "layer 1: inner_norm is 2, must be 0 to 1");
    SPOILT(f->inner_norm = 1, "layer 1 FFN: inner_norm is 1, must be 0");
    SPOILT(good.layers[1].row_codes = 1, "layer 1 FFN: row_codes is 1, must be 0");
    SPOILT((good.layers[0].row_codes = 1, good.layers[0].attn_norm_replaces = 1), "row_codes is 1, must be 0");
    SPOILT(a->output_bias = 7, "layer 1: output_bias is 7");
    SPOILT(a->score_scale = NAN, "layer 1: score_scale is nan");
    SPOILT(a->position_beta = 0.5f, "layer 1: position_original is 0");
    SPOILT(a->score_softcap = -1, "layer 1: score_softcap is -1");
    SPOILT(good.layers[0].no_input_norms = 1, "no_input_norms is 1, must be 0");
    SPOILT(good.layers[0].wiring = (lw_wiring)3, "wiring is 3, must be 0 to 2");
    SPOILT((good.layers[0].wiring = LW_PARALLEL, good.layers[0].ffn_norm_replaces = 1), "wiring is 1, must be 0");
    SPOILT((good.layers[0].wiring = LW_PARALLEL, good.layers[0].ffn = (lw_ffn_config){.kind = LW_FFN_NONE}),
           "wiring is 1, must be 0");
    SPOILT(good.layers[0].output_scale = -1, "output_scale is -1");
    SPOILT(good.layers[0].mtp = 1, "layer 0: mtp is 1, must be 0");
    SPOILT(good.layers[1].mtp = 2, "layer 1: mtp is 2, must be 0 to 1");
    SPOILT((good.layers[1].mtp = 1, a->window = 5), "layer 1: mtp is 1, must be 0 but with attention to all tokens");
    SPOILT((good.layers[1].mtp = 1, good.layers[1].ffn = (lw_ffn_config){.kind = LW_FFN_NONE}),
           "layer 1: mtp is 1, must be 0 but with an FFN");
    SPOILT(good.layers[1].head.outputs = 5, "there is no head with taps, all of its config must be 0");
    SPOILT((good.layers[1].mtp = 1, good.layers[1].head = (lw_head_config){.n_taps = 2}), "n_taps is 2, must be 3");
    SPOILT((good.layers[1].mtp = 1, good.layers[1].head = (lw_head_config){3, {1, 2, 1}, .norm_eps = 1e-6F}),
           "taps is 2, must be 1");
#define BLOCKS(...) (good.layers[1].mtp = 1, good.layers[1].head = (lw_head_config){__VA_ARGS__})
    SPOILT(BLOCKS(.n_taps = 0, .block = 4), "there is no head with taps, all of its config must be 0");
    SPOILT(BLOCKS(.n_taps = 17, .block = 4), "layer 1 head: n_taps is 17, must be 0 to 16");
    SPOILT(BLOCKS(1, {2}, .block = 4, .norm_eps = 1e-6F), "layer 1 head: taps is 2, must be 1");
    SPOILT(BLOCKS(1, {1}, .block = 1, .norm_eps = 1e-6F), "layer 1 head: block is 1, must be 2 to 64");
    SPOILT(BLOCKS(1, {1}, .block = 4, .fusion_norm = 1), "layer 1 head: fusion_norm is 1, must be 0");
    SPOILT(BLOCKS(1, {1}, .block = 4, .norm_adds = 1), "layer 1 head: norm_adds is 1, must be 0");
    SPOILT(BLOCKS(1, {1}, .block = 4, .embedding_scale = -1), "layer 1 head: embedding_scale is -1");
    SPOILT(BLOCKS(3, {1, 1, 1}, .norm_eps = 1e-6F, .embedding_scale = 2), "embedding_scale is 2, must be 0 to 0");
    SPOILT((BLOCKS(1, {1}, .block = 4), good.layers[1].mtp = 0), "layer 1: mtp is 0, must be 1");
    SPOILT((BLOCKS(1, {1}, .block = 4, .norm_eps = 1e-6F), good.layers[0].mtp = 1), "layer 0: mtp is 1, must be 0");
    SPOILT((BLOCKS(1, {1}, .block = 4, .norm_eps = 1e-6F), a->window = 3), "a window of at least the block's 4");
    SPOILT((BLOCKS(1, {1}, .block = 4, .norm_eps = 1e-6F), a->shares_kv = 1), "keys and values of its own, all of");
#undef BLOCKS
    SPOILT(c->reader_layers = 9, "reader_layers is 9, must be 0 to 1");
    SPOILT((c->reader_layers = 1, c->reader_size = 1 << 20), "reader_size is 1048576, must be 1 to");
    SPOILT((c->reader_layers = 1, c->reader_size = 8, c->reader_eps = 1e-6F), "layer 1: mtp is 0, must be 1");
    SPOILT((c->reader_layers = 1, c->reader_size = 8, c->reader_eps = 1e-6F, good.layers[1].mtp = 1),
           "attention to keys of one of the model's 1 layers");
    SPOILT(c->logit_softcap = NAN, "logit_softcap is nan");
    SPOILT((c->n_streams = 3, c->laurel_rank = 4, c->per_layer_size = 8), "n_streams is 3, and layer 0 must have");
    SPOILT(c->laurel_rank = 4, "laurel_rank is 4, must be 0");
    SPOILT((c->hyper_streams = 3, c->hyper_iterations = 2), "hyper_streams is 3, and layer 0 must have attention to");
    SPOILT(c->hyper_iterations = 2, "hyper_iterations is 2, must be 0");
    SPOILT(c->hyper_eps = 0.5F, "hyper_eps is 0.5, must be 0 to 0");
    SPOILT(good.layers[1].attention.shared_rows = 1, "layer 1: query_rank is 0, must be 1 to");
    SPOILT(good.layers[1].attention.compress = 4, "layer 1: compress is 4, must be 0");
    SPOILT(good.layers[1].attention.output_rank = 32, "layer 1: output_rank is 32, must be 0");
    SPOILT((f->activation = LW_LIMITED, f->limit = 0), "layer 1 FFN: limit is 0, must be 0.001 to");
    SPOILT(f->cutoff = 1, "layer 1 FFN: cutoff is 1, must be 0 to 0");
    SPOILT(c->per_layer_rows = 4, "per_layer_rows is 4, must be 0");
    SPOILT(c->per_layer_projected = 1, "per_layer_projected is 1, must be 0");
    SPOILT(c->per_layer_size = 4097, "per_layer_size is 4097, must be 0 to 4096");
    SPOILT((c->per_layer_size = 8, f->activation = LW_CLAMPED, f->limit = f->alpha = 1),
           "layer 1: per_layer_size is 8, it must have an FFN");
    SPOILT(c->output_bias = 2, "output_bias is 2");
    SPOILT(c->n_positions = 5, "n_positions is 5, must be 0 or context_length (128)");
    SPOILT(f->groups_by_best = 2, "layer 1 FFN: groups_by_best is 2");
    SPOILT(f->kind = (lw_ffn_kind)4, "layer 1 FFN: kind is 4");
    SPOILT(f->bias = f->down_bias = 1, "layer 1 FFN: down_bias is 1");
    SPOILT(f->size = 33, "layer 1 FFN: size 33, shared_size 64 and hidden_size 64 must be multiples of 32");
    SPOILT(f->shared_size = 1, "shared_size 1");
    SPOILT(f->weighs_inputs = f->bias = 1, "layer 1 FFN: weighs_inputs is 1, must be 0");
    SPOILT(f->bias = 2, "layer 1 FFN: bias is 2");
    SPOILT(f->activation = (lw_activation)11, "layer 1 FFN: activation is 11");
    SPOILT(f->shared_limit = 1, "layer 1 FFN: shared_limit is 1, must be 0");
    SPOILT(f->activation = LW_CLAMPED, "layer 1 FFN: limit is 0");
    SPOILT(f->activation = LW_XIELU, "layer 1 FFN: activation is 8");
    SPOILT((f = &good.layers[0].ffn)->activation = LW_XIELU, "layer 0 FFN: limit is 0");
    SPOILT((f->activation = LW_XIELU, f->limit = 1), "layer 0 FFN: alpha is 0");
    f = &good.layers[1].ffn;
    SPOILT(f->ungated = 2, "layer 1 FFN: ungated is 2");
    SPOILT(f->latent_size = 33, "layer 1 FFN: latent_size is 33, must be a multiple of 32");
    SPOILT(f->latent_size = 96, "layer 1 FFN: latent_size is 96, must be 0 to 64");
    SPOILT((f->latent_size = 32, f->bias = 1), "latent_size is 32, must be a multiple of 32, and 0 with biases");
    SPOILT((f->ungated = 1, f->activation = LW_CLAMPED), "layer 1 FFN: activation is 1, which needs a gate");
    SPOILT(f->n_experts = 0, "layer 1 FFN: n_experts is 0");
    SPOILT(f->n_experts = 4097, "layer 1 FFN: n_experts is 4097");
    SPOILT(f->n_experts = 9, "9 experts do not make 4 equal groups");
    SPOILT(f->n_used = 5, "layer 1 FFN: n_used is 5, must be 1 to 4");
    SPOILT(f->groups_used = 5, "layer 1 FFN: groups_used is 5");
    SPOILT(f->router = (lw_router_kind)4, "layer 1 FFN: router is 4");
    SPOILT(f->scale = 0, "layer 1 FFN: scale is 0");
    SPOILT(f->divisor_least = -1, "layer 1 FFN: divisor_least is -1");
    SPOILT(f->kind = LW_FFN_GATED, "layer 1 FFN: n_experts is 8, must be 0");
#undef SPOILT
    expect(model == untouched, "a refused call writes no model");
    set_good();
    expect(lw_model_create(c, NULL, 1, &model) == LW_OK, "the config itself is good");
    static float values[8 * 32 * HIDDEN];
    const lw_tensor stacked = float_tensor(values, 8 * 32, HIDDEN, 1);
    expect(lw_model_load(model, LW_EXPERTS_GATE, 1, &stacked, LW_Q8_0) == LW_OK, "experts are loaded stacked");
    REFUSED(lw_model_load(model, LW_EXPERTS_GATE, 0, &stacked, LW_Q8_0), LW_ERR_FORMAT, "the model's config says");
    REFUSED(lw_model_load(model, LW_EXPERTS_DOWN, 1, &stacked, LW_Q8_0), LW_ERR_FORMAT, "must be (512, 32)");
    const lw_tensor router = float_tensor(values, 8, HIDDEN, 1);
    REFUSED(lw_model_load(model, LW_ROUTER, 1, &router, LW_Q8_0), LW_ERR_FORMAT, "must be f32, f16 or bf16");
    REFUSED(lw_model_finish(model), LW_ERR_FORMAT, "missing");
    lw_model_close(model);
}

#endif
