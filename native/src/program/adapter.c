#include "model/adapter.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "program/slots.h"
#include "status.h"

static bool has_orders(const lw_model* model) {
    for (uint32_t i = 0; i < model->config.n_layers; ++i) {
        const lw_layer* layer = &model->layers[i];
        if (layer->attn_input_order || layer->attn_output_order || layer->ffn_input_order) return true;
    }
    return false;
}

lw_status lw_adapter_create(const lw_model* model, lw_adapter** out) {
    if (model == NULL || out == NULL)
        return lw_fail(LW_ERR_ARGUMENT, "lw_adapter_create: model and out must not be NULL");
    if (!model->finished) return lw_fail(LW_ERR_ARGUMENT, "lw_adapter_create: the model is not finished");
    if (has_orders(model))
        return lw_fail(LW_ERR_ARGUMENT,
                       "adapters need a model whose inputs are in their own order; those of this one"
                       " are in act-order");
    lw_adapter* adapter = calloc(1, sizeof *adapter);
    if (adapter == NULL) return lw_fail(LW_ERR_MEMORY, "no memory for an adapter");
    adapter->model = model;
    adapter->layers = calloc(model->config.n_layers, sizeof *adapter->layers);
    adapter->pool = lw_pool_open(1, NULL);
    if (adapter->layers == NULL || adapter->pool == NULL) {
        lw_adapter_close(adapter);
        return lw_fail(LW_ERR_MEMORY, "no memory for an adapter of %u layers", model->config.n_layers);
    }
    *out = adapter;
    return LW_OK;
}

void lw_adapter_close(lw_adapter* adapter) {
    if (adapter == NULL) return;
    lw_pool_close(adapter->pool);
    lw_arena_free(&adapter->arena);
    free(adapter->layers);
    free(adapter);
}

uint64_t lw_adapter_bytes(const lw_adapter* adapter) { return adapter != NULL ? adapter->bytes : 0; }

static const lw_role adapted_roles[LW_ADAPTED_COUNT] = {
    [LW_ADAPTED_Q] = LW_ATTN_Q,
    [LW_ADAPTED_K] = LW_ATTN_K,
    [LW_ADAPTED_V] = LW_ATTN_V,
    [LW_ADAPTED_ATTN_GATE] = LW_ATTN_GATE,
    [LW_ADAPTED_STATE_IN] = LW_STATE_IN,
    [LW_ADAPTED_STATE_KEYS] = LW_STATE_KEYS,
    [LW_ADAPTED_STATE_VALUES] = LW_STATE_VALUES,
    [LW_ADAPTED_STATE_GATE] = LW_STATE_GATE,
    [LW_ADAPTED_STATE_DECAY] = LW_STATE_DECAY,
    [LW_ADAPTED_STATE_BETA] = LW_STATE_BETA,
    [LW_ADAPTED_ATTN_OUTPUT] = LW_ATTN_OUTPUT,
    [LW_ADAPTED_STATE_OUT] = LW_STATE_OUT,
    [LW_ADAPTED_GATE] = LW_FFN_GATE,
    [LW_ADAPTED_UP] = LW_FFN_UP,
    [LW_ADAPTED_DOWN] = LW_FFN_DOWN,
};

// The adapted matrix of a role. LW_ADAPTED_COUNT if adapters cannot change matrices of this role.
static lw_adapted adapted_by(lw_role role) {
    lw_adapted which = LW_ADAPTED_Q;
    while (which < LW_ADAPTED_COUNT && adapted_roles[which] != role) ++which;
    return which;
}

static lw_status check_shapes(const char* name, const lw_slot* slot, const lw_tensor* a, const lw_tensor* b) {
    if (a->rows < 1 || a->rows > LW_MAX_ADAPTER_RANK)
        return lw_fail(LW_ERR_FORMAT, "%s: A has rank %u, must be 1 to %d", name, a->rows, LW_MAX_ADAPTER_RANK);
    if (a->cols != slot->cols)
        return lw_fail(LW_ERR_FORMAT, "%s: A has shape (%u, %u), must be (%u, %u)", name, a->rows, a->cols, a->rows,
                       slot->cols);
    if (b->rows != slot->rows || b->cols != a->rows)
        return lw_fail(LW_ERR_FORMAT, "%s: B has shape (%u, %u), must be (%u, %u)", name, b->rows, b->cols, slot->rows,
                       a->rows);
    return LW_OK;
}

static lw_status check_types(const lw_adapter* adapter, const char* name, const lw_tensor* a, const lw_tensor* b) {
    if (a->type != LW_F32 && a->type != LW_F16 && a->type != LW_BF16)
        return lw_fail(LW_ERR_FORMAT, "%s: A has type %s, must be f32, f16 or bf16", name, lw_type_name(a->type));
    if (b->type != a->type || (adapter->rank > 0 && a->type != adapter->type))
        return lw_fail(LW_ERR_FORMAT, "%s: A has type %s and B %s; all of an adapter must have one type", name,
                       lw_type_name(a->type), lw_type_name(b->type));
    return LW_OK;
}

// Compares the kernels of a type with scalar before their first use. The model has done so for the types of its own
// matrices.
static lw_status check_kernels(lw_adapter* adapter, lw_type type) {
    if (adapter->rank > 0 || adapter->model->holds[type]) return LW_OK;
    bool holds[LW_TYPE_LIMIT] = {false};
    holds[type] = true;
    return lw_selftest(adapter->model, adapter->pool, holds);
}

lw_status lw_adapter_load(lw_adapter* adapter, lw_role role, uint32_t layer, const lw_tensor* a, const lw_tensor* b,
                          float scale) {
    if (adapter == NULL || a == NULL || b == NULL || a->data == NULL || b->data == NULL)
        return lw_fail(LW_ERR_ARGUMENT, "lw_adapter_load: adapter, A and B must not be NULL");
    const lw_model* model = adapter->model;
    const lw_adapted which = adapted_by(role);
    if (which == LW_ADAPTED_COUNT || layer >= model->config.n_layers)
        return lw_fail(LW_ERR_ARGUMENT, "no matrix of role %d in layer %u can be adapted", (int)role, layer);
    if (role == LW_ATTN_Q && model->layers[layer].config.attention.latent_rank > 0)
        return lw_fail(LW_ERR_ARGUMENT, "layer %u has latent attention, whose Q cannot be adapted", layer);
    if ((role == LW_ATTN_Q || role == LW_ATTN_OUTPUT) && model->layers[layer].config.attention.shared_rows)
        return lw_fail(LW_ERR_ARGUMENT,
                       "layer %u has attention to shared rows, whose Q and attention output cannot be adapted", layer);
    const lw_state_config* state = &model->layers[layer].config.state;
    if ((role == LW_STATE_DECAY && state->decay_rank > 0) || (role == LW_STATE_GATE && state->gate_rank > 0))
        return lw_fail(
            LW_ERR_ARGUMENT, "layer %u has a state whose %s reads a product of %u values; it cannot be adapted", layer,
            role == LW_STATE_DECAY ? "decay" : "gate", role == LW_STATE_DECAY ? state->decay_rank : state->gate_rank);
    const lw_slot slot = lw_model_slot((lw_model*)model, role, layer);
    if (!slot.wanted)
        return lw_fail(LW_ERR_ARGUMENT, "layer %u has no %s that can be adapted%s", layer, slot.name,
                       model->layers[layer].config.ffn.kind == LW_FFN_EXPERTS ? ": experts cannot" : "");
    char name[64], part[72];
    snprintf(name, sizeof name, "layer %u %s", layer, slot.name);
    lw_low_rank* low = &adapter->layers[layer][which];
    if (low->a.rows != 0) return lw_fail(LW_ERR_FORMAT, "%s: adapted already", name);
    if (!isfinite(scale)) return lw_fail(LW_ERR_FORMAT, "%s: scale %g, must be finite", name, (double)scale);
    LW_RETURN_IF_FAILED(check_shapes(name, &slot, a, b));
    LW_RETURN_IF_FAILED(check_types(adapter, name, a, b));
    LW_RETURN_IF_FAILED(check_kernels(adapter, a->type));
    lw_low_rank made = {.scale = scale};
    snprintf(part, sizeof part, "%s, A", name);
    LW_RETURN_IF_FAILED(lw_pack_matrix(model->level, adapter->pool, &adapter->arena, part, a, a->type, &made.a));
    snprintf(part, sizeof part, "%s, B", name);
    LW_RETURN_IF_FAILED(lw_pack_matrix(model->level, adapter->pool, &adapter->arena, part, b, b->type, &made.b));
    adapter->type = a->type;
    if (a->rows > adapter->rank) adapter->rank = a->rows;
    adapter->bytes += made.a.panels * (uint64_t)made.a.panel_bytes + made.b.panels * (uint64_t)made.b.panel_bytes;
    *low = made;
    return LW_OK;
}
