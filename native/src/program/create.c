#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/format.h"
#include "kinds/kind.h"
#include "model/model.h"
#include "model/panels.h"
#include "ops/math.h"
#include "program/slots.h"
#include "status.h"

static bool make_frequencies(lw_angles* out, const lw_rope* rope) {
    const uint32_t half = rope->rotated / 2;
    *out = (lw_angles){.rotated = rope->rotated, .scale = rope->scale};
    out->frequencies = malloc(half * sizeof(float));
    if (out->frequencies == NULL) return false;
    const double log_theta = lw_log(rope->theta);
    for (uint32_t i = 0; i < half; ++i) {
        out->axes[i] = rope->axes != NULL ? (uint8_t)rope->axes[i] : 0;
        if (rope->frequencies != NULL) {
            out->frequencies[i] = rope->frequencies[i];
            continue;
        }
        const float frequency = (float)lw_exp(-(2.0 * i / rope->rotated) * log_theta);
        out->frequencies[i] = rope->factors ? frequency / rope->factors[i] : frequency;
    }
    return true;
}

// ALiBi slope i of n heads; n is a power of two.
static float slope(uint32_t i, uint32_t n) { return (float)lw_exp(-8 * 0.6931471805599453 * (i + 1) / n); }

// Makes the ALiBi slopes, which all layers share.
static bool make_slopes(lw_model* model, const lw_attention_config* c) {
    const uint32_t heads = c->n_heads;
    if (heads == 0) return true;  // no layer of a tower asks for any
    model->slopes = malloc(heads * sizeof *model->slopes);
    if (model->slopes == NULL) return false;
    uint32_t n = 1;
    while (2 * n <= heads) n *= 2;
    const float scale = c->alibi == 2 ? lw_score_scale(c) : 1;
    for (uint32_t i = 0; i < heads; ++i) model->slopes[i] = scale * (i < n ? slope(i, n) : slope(2 * (i - n), 2 * n));
    return true;
}

static bool make_ones(lw_model* model) {
    uint32_t most = model->config.embedding_norm ? model->config.hidden_size : 1;
    for (uint32_t i = 0; i < model->config.n_layers; ++i) {
        const uint32_t dim = model->layers[i].config.attention.head_dim;
        if (dim > most) most = dim;
    }
    model->ones = malloc(most * sizeof *model->ones);
    for (uint32_t i = 0; model->ones != NULL && i < most; ++i) model->ones[i] = 1;
    return model->ones != NULL;
}

static void add_head(lw_model* model) {
    const lw_head_config* head = &lw_model_mtp(model)->config.head;
    const bool reads_keys = model->config.reader_layers > 0;
    uint32_t last = lw_own_layers(model);
    do --last;
    while (last > 0 && !lw_mixes(&model->layers[last].config));
    bool reads_all = head->n_taps == 0 && !reads_keys;
    for (uint32_t i = 0; i < head->n_taps; ++i) reads_all |= head->taps[i] > last;
    model->last_mixer = reads_all ? UINT32_MAX : last;
    model->head_config = model->config;
    if (head->n_taps == 0 && !reads_keys) return;
    model->head_config.rms_norm_eps = reads_keys ? model->config.reader_eps : head->norm_eps;
    model->head_config.embedding_scale = head->embedding_scale > 0 ? head->embedding_scale : 1;
    if (head->block == 0) model->head_config.logit_scale = 1;
    if (reads_keys) model->head_config.hidden_size = model->config.reader_size;
}

static bool fill_model(lw_model* model, const lw_model_config* config) {
    bool ok = model->layers != NULL && model->pool != NULL;
    for (uint32_t i = config->n_layers; ok && i-- > 0;) {
        const lw_layer_config* c = &config->layers[i];
        model->layers[i].config = *c;
        if (c->attention.n_heads > 0) model->first_attention = i;
        if (i > model->last_mixer && (c->attention.n_heads > 0 || c->state.kind != LW_NO_STATE)) model->last_mixer = i;
    }
    if (ok && lw_model_mtp(model) != NULL) add_head(model);
    const uint64_t saved = lw_fp_enter();
    ok = ok && make_slopes(model, lw_model_heads(model)) && make_ones(model);
    for (uint32_t i = 0; ok && i < config->n_ropes; ++i) ok = make_frequencies(&model->ropes[i], &config->ropes[i]);
    lw_fp_restore(saved);
    return ok;
}

lw_status lw_model_create(const lw_model_config* config, const char* isa, uint32_t n_threads, lw_model** out) {
    if (config == NULL || out == NULL)
        return lw_fail(LW_ERR_ARGUMENT, "lw_model_create: config and out must not be NULL");
    LW_RETURN_IF_FAILED(lw_program_check(config));
    if (n_threads < 1 || n_threads > LW_MAX_THREADS)
        return lw_fail(LW_ERR_ARGUMENT, "lw_model_create: %u threads, must be 1 to %d", n_threads, LW_MAX_THREADS);
    lw_level level;
    LW_RETURN_IF_FAILED(lw_level_by_name(isa, &level));
    lw_model* model = calloc(1, sizeof *model);
    if (model == NULL) return lw_fail(LW_ERR_MEMORY, "no memory for a model");
    model->config = *config;
    model->config.ropes = NULL;
    model->config.layers = NULL;
    model->config.dense = NULL;
    for (uint32_t i = 0; i < config->n_dense; ++i) model->dense[i].config = config->dense[i];
    model->level = level;
    model->ops = lw_level_lane_ops[level];
    model->layers = calloc(config->n_layers > 0 ? config->n_layers : 1, sizeof *model->layers);
    model->pool = lw_pool_open(n_threads, NULL);
    if (!fill_model(model, config)) {
        lw_model_close(model);
        return lw_fail(LW_ERR_MEMORY, "no memory or threads for a model of %u layers", config->n_layers);
    }
    *out = model;
    return LW_OK;
}

static void describe_slot(char* text, size_t size, const lw_slot* slot, lw_role role, uint32_t layer) {
    if (lw_is_of_dense(role))
        snprintf(text, size, "%s %u", slot->name, layer);
    else if (lw_is_of_layers(role))
        snprintf(text, size, "layer %u %s", layer, slot->name);
    else
        snprintf(text, size, "%s", slot->name);
}

static lw_status find_slot(lw_model* model, lw_role role, uint32_t layer, lw_slot* slot, char name[64]) {
    if ((unsigned)role >= LW_ROLE_COUNT || layer >= lw_role_layers(model, role))
        return lw_fail(LW_ERR_ARGUMENT, "no tensor of role %d in layer %u", (int)role, layer);
    *slot = lw_model_slot(model, role, layer);
    describe_slot(name, 64, slot, role, layer);
    return LW_OK;
}

// Finds the slot of a tensor that is about to be loaded, and the tensor's name for messages.
static lw_status open_slot(lw_model* model, lw_role role, uint32_t layer, uint32_t rows, uint32_t cols, lw_slot* slot,
                           char name[64]) {
    if (model->finished) return lw_fail(LW_ERR_ARGUMENT, "the model is finished already: no tensor can be loaded");
    LW_RETURN_IF_FAILED(find_slot(model, role, layer, slot, name));
    if (!slot->wanted) return lw_fail(LW_ERR_FORMAT, "%s: the model's config says it has none", name);
    if (rows != slot->rows || cols != slot->cols)
        return lw_fail(LW_ERR_FORMAT, "%s: shape (%u, %u), must be (%u, %u)", name, rows, cols, slot->rows, slot->cols);
    return LW_OK;
}

static lw_status check_target(const char* name, lw_role role, lw_type target) {
    const bool reads_floats = role == LW_ROUTER || role == LW_POSITION_EMBEDDING || role == LW_TOKEN_TYPE_EMBEDDING ||
                              role == LW_HYPER_ATTN || role == LW_HYPER_FFN || role == LW_HYPER_HEAD;
    if (!reads_floats || target == LW_F32 || target == LW_F16 || target == LW_BF16) return LW_OK;
    return lw_fail(LW_ERR_FORMAT, "%s: type %s, must be f32, f16 or bf16", name, lw_type_name(target));
}

// Loading with rope_heads reorders the dimensions of keys. If the values are the same numbers as the keys, their
// dimensions would be reordered, too.
static lw_status check_order_of_heads(const lw_model* model, const char* name, lw_role role, uint32_t layer,
                                      const lw_tensor* tensor) {
    if (role != LW_ATTN_K || tensor->rope_heads == 0 || !model->layers[layer].config.attention.values_are_keys)
        return LW_OK;
    return lw_fail(LW_ERR_FORMAT, "%s: rope_heads is %u, must be 0 where values are keys", name, tensor->rope_heads);
}

// On Arm, F16 weights are held as bfloat16 if no value changes: their products have the same bits, and a bfloat16 is
// widened by one operation or by the load itself, where F16 takes up to four times as many slots.
static lw_type type_to_hold(const lw_model* model, const lw_tensor* tensor, lw_type target) {
#if defined(__aarch64__)
    if (target == LW_F16 && lw_fits_bfloat(model->pool, tensor)) return LW_BF16;
#else
    (void)model, (void)tensor;
#endif
    return target;
}

static void remember_type(lw_model* model, lw_type type) {
    lw_format f;
    model->holds[type] = true;
    if (lw_find_format(type, &f) && f.minimum != LW_MINIMUM_NONE) model->has_minimums = true;
}

lw_status lw_model_load(lw_model* model, lw_role role, uint32_t layer, const lw_tensor* tensor, lw_type target) {
    if (model == NULL || tensor == NULL || tensor->data == NULL)
        return lw_fail(LW_ERR_ARGUMENT, "lw_model_load: model and tensor must not be NULL");
    lw_slot slot = {0};
    char name[64];
    LW_RETURN_IF_FAILED(open_slot(model, role, layer, tensor->rows, tensor->cols, &slot, name));
    LW_RETURN_IF_FAILED(check_order_of_heads(model, name, role, layer, tensor));
    if (slot.vector != NULL) return lw_copy_vector(name, tensor, slot.vector);
    LW_RETURN_IF_FAILED(check_target(name, role, target));
    target = type_to_hold(model, tensor, target);
    LW_RETURN_IF_FAILED(lw_pack_matrix(model->level, model->pool, &model->arena, name, tensor, target, slot.matrix));
    remember_type(model, target);
    return LW_OK;
}

static lw_status load_packed(lw_model* model, const lw_packed_tensor* tensor, lw_load how) {
    lw_slot slot = {0};
    char name[64];
    LW_RETURN_IF_FAILED(open_slot(model, tensor->role, tensor->layer, tensor->rows, tensor->cols, &slot, name));
    const char* shown = tensor->name != NULL ? tensor->name : name;
    if (tensor->data == NULL) return lw_fail(LW_ERR_ARGUMENT, "%s: its data must not be NULL", shown);
    if (slot.vector != NULL) return lw_take_packed_vector(shown, tensor, slot.vector);
    LW_RETURN_IF_FAILED(check_target(shown, tensor->role, tensor->type));
    LW_RETURN_IF_FAILED(lw_take_packed_matrix(model, shown, tensor, how, slot.matrix));
    remember_type(model, tensor->type);
    return LW_OK;
}

lw_status lw_model_load_packed(lw_model* model, const lw_packed_tensor* tensors, uint32_t n_tensors, lw_load how) {
    if (model == NULL || (tensors == NULL && n_tensors > 0))
        return lw_fail(LW_ERR_ARGUMENT, "lw_model_load_packed: model and tensors must not be NULL");
    if (how != LW_LOAD_MAP && how != LW_LOAD_COPY)
        return lw_fail(LW_ERR_ARGUMENT, "lw_model_load_packed: no way of loading has the number %d", (int)how);
    for (uint32_t i = 0; i < n_tensors; ++i) LW_RETURN_IF_FAILED(load_packed(model, &tensors[i], how));
    return LW_OK;
}

static bool is_loaded(const lw_slot* slot) {
    return slot->matrix != NULL ? slot->matrix->rows != 0 : *slot->vector != NULL;
}

lw_status lw_model_packed(const lw_model* model, lw_role role, uint32_t layer, lw_packed_tensor* out) {
    if (model == NULL || out == NULL)
        return lw_fail(LW_ERR_ARGUMENT, "lw_model_packed: model and out must not be NULL");
    lw_slot slot = {0};
    char name[64];
    LW_RETURN_IF_FAILED(find_slot((lw_model*)model, role, layer, &slot, name));
    if (!slot.wanted || !is_loaded(&slot)) return lw_fail(LW_ERR_ARGUMENT, "%s: not loaded", name);
    lw_describe_packed(&slot, out);
    out->role = role;
    out->layer = layer;
    return LW_OK;
}

uint32_t lw_model_reads_layout(const lw_model* model, lw_type type, const char* layout) {
    lw_layout found;
    return model != NULL && layout != NULL && lw_layout_by_name(layout, &found) &&
           lw_layouts_agree(type, found, lw_level_layouts[model->level]);
}

static lw_status check_complete(lw_model* model) {
    for (int role = 0; role < LW_ROLE_COUNT; ++role) {
        const uint32_t layers = lw_role_layers(model, (lw_role)role);
        for (uint32_t layer = 0; layer < layers; ++layer) {
            const lw_slot slot = lw_model_slot(model, (lw_role)role, layer);
            if (!slot.wanted || lw_is_optional((lw_role)role) || is_loaded(&slot)) continue;
            char name[64];
            describe_slot(name, sizeof name, &slot, (lw_role)role, layer);
            return lw_fail(LW_ERR_FORMAT, "%s: missing", name);
        }
    }
    return LW_OK;
}

// Whether `order` is a permutation of 0 .. n - 1. `seen` has room for n flags.
static bool is_order(const float* order, uint32_t n, bool* seen) {
    memset(seen, 0, n * sizeof *seen);
    for (uint32_t i = 0; i < n; ++i) {
        if (!(order[i] >= 0 && order[i] < (float)n) || order[i] != floorf(order[i])) return false;
        bool* one = &seen[(uint32_t)order[i]];
        if (*one) return false;
        *one = true;
    }
    return true;
}

static lw_status check_orders(lw_model* model) {
    static const lw_role roles[] = {LW_ATTN_INPUT_ORDER, LW_ATTN_OUTPUT_ORDER, LW_FFN_INPUT_ORDER};
    const lw_model_config* c = &model->config;
    size_t widest = c->hidden_size;
    for (uint32_t layer = 0; layer < c->n_layers; ++layer) {
        const lw_attention_config* a = &model->layers[layer].config.attention;
        const size_t q = (size_t)a->n_heads * lw_output_dim(a);
        if (q > widest) widest = q;
    }
    bool* seen = malloc(widest * sizeof *seen);
    if (seen == NULL) return lw_fail(LW_ERR_MEMORY, "no memory to check orders of %zu inputs", widest);
    lw_status status = LW_OK;
    for (uint32_t layer = 0; status == LW_OK && layer < c->n_layers; ++layer)
        for (size_t i = 0; status == LW_OK && i < sizeof roles / sizeof *roles; ++i) {
            const lw_slot slot = lw_model_slot(model, roles[i], layer);
            if (!slot.wanted || !is_loaded(&slot) || is_order(*slot.vector, slot.cols, seen)) continue;
            status = lw_fail(LW_ERR_FORMAT, "layer %u %s: must hold each number from 0 to %u once", layer, slot.name,
                             slot.cols - 1);
        }
    free(seen);
    return status;
}

// With a rate above 0 a state would grow from token to token.
static lw_status check_rates(const lw_model* model) {
    for (uint32_t layer = 0; layer < model->config.n_layers; ++layer) {
        const lw_layer* l = &model->layers[layer];
        for (uint32_t i = 0; l->state_rate != NULL && i < l->config.state.n_heads; ++i)
            if (!(l->state_rate[i] <= 0))
                return lw_fail(LW_ERR_FORMAT, "layer %u state rate: that of head %u is %g, must be 0 or less", layer, i,
                               (double)l->state_rate[i]);
    }
    return LW_OK;
}

static lw_status check_head_tokens(const lw_model* model) {
    const lw_layer* head = lw_model_mtp(model);
    for (uint32_t i = 0; head != NULL && head->head_tokens != NULL && i < head->config.head.outputs; ++i) {
        const float token = head->head_tokens[i];
        if (!(token >= 0 && token < (float)model->config.vocab_size) || token != floorf(token))
            return lw_fail(LW_ERR_FORMAT, "prediction head's tokens: number %u is %g, must be a token below %u", i,
                           (double)token, model->config.vocab_size);
    }
    return LW_OK;
}

static lw_status check_router_tables(const lw_model* model) {
    for (uint32_t layer = 0; layer < model->config.n_layers; ++layer) {
        const lw_ffn_config* c = &model->layers[layer].config.ffn;
        const float* table = model->layers[layer].router_table;
        for (size_t i = 0; table != NULL && i < (size_t)model->config.vocab_size * c->n_used; ++i)
            if (!(table[i] >= 0 && table[i] < (float)c->n_experts) || table[i] != floorf(table[i]))
                return lw_fail(LW_ERR_FORMAT,
                               "layer %u experts of tokens: one of token %zu is %g, must be an expert below %u", layer,
                               i / c->n_used, (double)table[i], c->n_experts);
    }
    return LW_OK;
}

lw_status lw_model_finish(lw_model* model) {
    if (model == NULL) return lw_fail(LW_ERR_ARGUMENT, "lw_model_finish: model must not be NULL");
    if (model->finished) return lw_fail(LW_ERR_ARGUMENT, "lw_model_finish: the model is finished already");
    LW_RETURN_IF_FAILED(check_complete(model));
    LW_RETURN_IF_FAILED(check_orders(model));
    LW_RETURN_IF_FAILED(check_rates(model));
    LW_RETURN_IF_FAILED(check_head_tokens(model));
    LW_RETURN_IF_FAILED(check_router_tables(model));
    LW_RETURN_IF_FAILED(lw_selftest(model, model->pool, model->holds));
    LW_RETURN_IF_FAILED(lw_replicate(model));
    lw_pool_close(model->pool);
    model->pool = NULL;
    model->finished = true;
    return LW_OK;
}

static uint64_t bytes_of(const lw_matrix* packed) { return packed->panels * (uint64_t)packed->panel_bytes; }

// Adds a matrix to what the model holds, and `parts` of its `of` equal parts to what a step of one token reads.
static void count_matrix(const lw_matrix* packed, lw_model_info* out, bool in_layer, uint32_t parts, uint32_t of) {
    const uint64_t bytes = bytes_of(packed);
    const uint64_t weights = (uint64_t)packed->rows * packed->cols;
    out->packed_bytes += bytes;
    out->held_weights += weights;
    out->matrix_bytes += bytes / of * parts;
    out->matrix_weights += weights / of * parts;
    if (in_layer) out->layer_weights += weights / of * parts;
    if (of > 1) out->expert_bytes += bytes / of * parts;
}

// A step computes only the keys and values of a prediction head.
static bool is_of_step(const lw_layer* l, const lw_matrix* matrix) {
    if (l->config.mtp && l->config.attention.shares_kv) return false;  // all of it runs between steps
    return !l->config.mtp || matrix == &l->mtp_projection || matrix == &l->head_fusion || matrix == &l->k ||
           matrix == &l->v;
}

lw_status lw_model_describe(const lw_model* model, lw_model_info* out) {
    if (model == NULL || out == NULL)
        return lw_fail(LW_ERR_ARGUMENT, "lw_model_describe: model and out must not be NULL");
    *out = (lw_model_info){.numerics = LW_NUMERICS};
    snprintf(out->isa, sizeof out->isa, "%s", lw_level_names[model->level]);
    for (uint32_t i = 0; i < model->config.n_layers; ++i)
        for (int m = 0; m < LW_LAYER_MATRICES; ++m) {
            const lw_layer* layer = &model->layers[i];
            const lw_matrix* matrix = &layer->matrices[m];
            const lw_ffn_config* ffn = &layer->config.ffn;
            const bool chosen = matrix >= &layer->experts_gate && ffn->kind == LW_FFN_EXPERTS;
            const uint32_t parts = chosen ? ffn->n_used : 1;
            count_matrix(matrix, out, true, is_of_step(layer, matrix) ? parts : 0, chosen ? ffn->n_experts : 1);
        }
    if (!model->config.pooled) count_matrix(lw_model_head(model), out, false, 1, 1);
    count_matrix(&model->per_layer_projection, out, false, 1, 1);
    count_matrix(&model->streams_in, out, false, 1, 1);
    count_matrix(&model->streams_out, out, false, 1, 1);
    count_matrix(&model->patches, out, false, 1, 1);
    for (uint32_t i = 0; i < model->config.n_dense; ++i) count_matrix(&model->dense[i].matrix, out, false, 1, 1);
    out->packed_bytes *= 1 + model->n_replicas;
    // Tables in which rows are looked up have no copies.
    if (!model->config.tied_embeddings || model->config.pooled) out->packed_bytes += bytes_of(&model->embedding);
    out->packed_bytes += bytes_of(&model->position_embedding) + bytes_of(&model->token_type_embedding) +
                         bytes_of(&model->per_layer_embedding);
    return LW_OK;
}

void lw_model_close(lw_model* model) {
    if (model == NULL) return;
    for (int role = 0; model->layers != NULL && role < LW_ROLE_COUNT; ++role) {
        const uint32_t layers = lw_role_layers(model, (lw_role)role);
        for (uint32_t layer = 0; layer < layers; ++layer) {
            const lw_slot slot = lw_model_slot(model, (lw_role)role, layer);
            if (slot.vector == NULL) continue;
            free(*slot.vector);
            *slot.vector = NULL;  // two roles may share one slot, so it must not be freed twice
        }
    }
    lw_pool_close(model->pool);
    lw_free_replicas(model);
    lw_arena_free(&model->arena);
    free(model->layers);
    free(model->slopes);
    free(model->ones);
    for (int i = 0; i < LW_MAX_ROPES; ++i) free(model->ropes[i].frequencies);
    free(model);
}
