// Which tensors a program has. The kinds of its layers' parts are asked for theirs.
#include "kinds/kinds.h"
#include "program/slots.h"

static lw_tensor_spec model_tensor(const lw_model_config* c, lw_role role) {
    const uint32_t per_layer = (c->n_layers - c->reader_layers) * c->per_layer_size,
                   values = 3 * c->patches.side * c->patches.side;
    const uint32_t others = c->n_streams > 0 ? (c->n_streams - 1) * c->hidden_size : 0;
    switch (role) {
        case LW_TOKEN_EMBEDDING:
            return LW_MATRIX_SPEC(lw_model, embedding, "token embedding", c->vocab_size, c->hidden_size,
                                  !lw_is_tower(c));
        case LW_PATCHES:
            return LW_MATRIX_SPEC(lw_model, patches, "patches", c->hidden_size, lw_patch_inputs(c), lw_is_tower(c));
        case LW_PATCHES_BIAS:
            return LW_VECTOR_SPEC(lw_model, patches_bias, "patches bias", c->hidden_size, c->patches.bias);
        case LW_MEAN_SHIFT:
            return LW_VECTOR_SPEC(lw_model, mean_shift, "shift of means", c->hidden_size, c->patches.shifts_mean);
        case LW_MEAN_SCALE:
            return LW_VECTOR_SPEC(lw_model, mean_scale, "scale of means", c->hidden_size, c->patches.shifts_mean);
        case LW_OUTPUT:
            return LW_MATRIX_SPEC(lw_model, output, "output", c->vocab_size, c->hidden_size,
                                  !c->tied_embeddings && !c->pooled);
        case LW_OUTPUT_NORM:
            return LW_VECTOR_SPEC(lw_model, output_norm, "output norm", c->hidden_size, !c->patches.no_output_norm);
        case LW_OUTPUT_NORM_BIAS:
            return LW_VECTOR_SPEC(lw_model, output_norm_bias, "output norm bias", c->hidden_size,
                                  c->norm_bias && !c->patches.no_output_norm);
        case LW_PATCHES_NORM:
            return LW_VECTOR_SPEC(lw_model, patches_norm, "norm of patches", c->hidden_size, c->patches.norm);
        case LW_PATCHES_NORM_BIAS:
            return LW_VECTOR_SPEC(lw_model, patches_norm_bias, "norm of patches, bias", c->hidden_size,
                                  c->patches.norm && c->norm_bias);
        case LW_PATCHES_INPUT_NORM:
            return LW_VECTOR_SPEC(lw_model, patches_input_norm, "norm of a patch's values", values,
                                  c->patches.input_norm);
        case LW_PATCHES_INPUT_NORM_BIAS:
            return LW_VECTOR_SPEC(lw_model, patches_input_norm_bias, "norm of a patch's values, bias", values,
                                  c->patches.input_norm && c->norm_bias);
        case LW_OUTPUT_BIAS:
            return LW_VECTOR_SPEC(lw_model, output_bias, "output bias", c->vocab_size, c->output_bias);
        case LW_PER_LAYER_EMBEDDING:
            return LW_MATRIX_SPEC(lw_model, per_layer_embedding, "per-layer embedding",
                                  c->per_layer_rows > 0 ? c->per_layer_rows : c->vocab_size, per_layer,
                                  per_layer > 0 && !c->per_layer_projected);
        case LW_STREAMS_IN:
            return LW_MATRIX_SPEC(lw_model, streams_in, "streams in", others, c->hidden_size, others > 0);
        case LW_STREAMS_OUT:
            return LW_MATRIX_SPEC(lw_model, streams_out, "streams out", others, c->hidden_size, others > 0);
        case LW_HYPER_HEAD:
            return LW_MATRIX_SPEC(lw_model, hyper_head, "weights of streams behind the layers", c->hyper_streams,
                                  c->hyper_streams * c->hidden_size, c->hyper_streams > 0);
        case LW_HYPER_HEAD_BASE:
            return LW_VECTOR_SPEC(lw_model, hyper_head_base, "base of weights behind the layers", c->hyper_streams,
                                  c->hyper_streams > 0);
        case LW_HYPER_HEAD_SCALE:
            return LW_VECTOR_SPEC(lw_model, hyper_head_scale, "scale of weights behind the layers", 1,
                                  c->hyper_streams > 0);
        case LW_PER_LAYER_PROJECTION:
            return LW_MATRIX_SPEC(lw_model, per_layer_projection, "per-layer projection", per_layer, c->hidden_size,
                                  per_layer > 0);
        case LW_PER_LAYER_NORM:
            return LW_VECTOR_SPEC(lw_model, per_layer_norm, "per-layer norm", c->per_layer_size, per_layer > 0);
        case LW_POSITION_EMBEDDING:
            return LW_MATRIX_SPEC(lw_model, position_embedding, "position embedding", c->n_positions, c->hidden_size,
                                  c->n_positions > 0);
        case LW_TOKEN_TYPE_EMBEDDING:
            return LW_MATRIX_SPEC(lw_model, token_type_embedding, "token type embedding", c->n_token_types,
                                  c->hidden_size, c->n_token_types > 0);
        default:
            return (lw_tensor_spec){0};
    }
}

static lw_tensor_spec dense_tensor(const lw_dense_config* d, uint32_t inputs, bool norm_bias, lw_role role) {
    const uint32_t outputs = d->outputs;
    switch (role) {
        case LW_DENSE:
            return LW_MATRIX_SPEC(lw_dense, matrix, "dense head", outputs, inputs, true);
        case LW_DENSE_INPUT_NORM:
            return LW_VECTOR_SPEC(lw_dense, input_norm, "norm of a dense head's input", inputs,
                                  d->input_norm != LW_INPUT_NONE);
        case LW_DENSE_INPUT_NORM_BIAS:
            return LW_VECTOR_SPEC(lw_dense, input_norm_bias, "bias of the norm of a dense head's input", inputs,
                                  d->input_norm == LW_INPUT_LAYER);
        case LW_DENSE_BIAS:
            return LW_VECTOR_SPEC(lw_dense, bias, "dense head bias", outputs, d->bias);
        case LW_DENSE_NORM:
            return LW_VECTOR_SPEC(lw_dense, norm, "dense head norm", outputs, d->norm);
        case LW_DENSE_NORM_BIAS:
            return LW_VECTOR_SPEC(lw_dense, norm_bias, "dense head norm bias", outputs, d->norm && norm_bias);
        default:
            return (lw_tensor_spec){0};
    }
}

static lw_tensor_spec layer_tensor(const lw_model_config* model, const lw_layer_config* layer, lw_role role) {
    lw_tensor_spec found = {0};
    lw_model_config seen = *model;  // by parts of the layer; a head's own tensors join both widths
    if (layer->mtp && model->reader_layers > 0) seen.hidden_size = model->reader_size;
    for (size_t kind = 0; found.name == NULL && kind < LW_N_KINDS; ++kind)
        found = lw_kinds[kind]->tensor(kind == LW_KIND_MTP ? model : &seen, layer, role);
    return found;
}

bool lw_is_of_dense(lw_role role) {
    return (role >= LW_DENSE && role <= LW_DENSE_NORM_BIAS) || role == LW_DENSE_INPUT_NORM ||
           role == LW_DENSE_INPUT_NORM_BIAS;
}

bool lw_is_of_layers(lw_role role) {
    return (role >= LW_ATTN_NORM && role < LW_OUTPUT_NORM_BIAS) ||
           (role >= LW_ATTN_RESULT_NORM && role < LW_OUTPUT_BIAS) ||
           (role >= LW_PER_LAYER_GATE && role <= LW_MTP_NORM) || role == LW_CLAMPS ||
           (role >= LW_EXPERTS_IN && role <= LW_LAUREL_NORM) || (role >= LW_HEAD_FUSION && role <= LW_ROUTER_TABLE);
}

bool lw_is_optional(lw_role role) { return role >= LW_ATTN_INPUT_ORDER && role <= LW_FFN_INPUT_ORDER; }

uint32_t lw_role_layers(const lw_model* model, lw_role role) {
    if (lw_is_of_dense(role)) return model->config.n_dense;
    return lw_is_of_layers(role) ? model->config.n_layers : 1;
}

lw_slot lw_model_slot(lw_model* model, lw_role role, uint32_t index) {
    const lw_model_config* c = &model->config;
    lw_tensor_spec spec;
    void* base = model;
    if (lw_is_of_dense(role)) {
        base = &model->dense[index];
        spec = dense_tensor(&model->dense[index].config, lw_dense_inputs(model, index), c->norm_bias, role);
    } else if (lw_is_of_layers(role)) {
        base = &model->layers[index];
        spec = layer_tensor(c, &model->layers[index].config, role);
    } else {
        spec = model_tensor(c, role);
    }
    void* place = (char*)base + spec.place;
    return (lw_slot){.name = spec.name,
                     .matrix = spec.is_vector ? NULL : place,
                     .vector = spec.is_vector ? place : NULL,
                     .rows = spec.rows,
                     .cols = spec.cols,
                     .wanted = spec.wanted};
}

// Roles in the order in which a step reads the tensors: before the layers, in each layer, after the layers.
static const lw_role first_roles[] = {
    LW_TOKEN_EMBEDDING,   LW_PATCHES_INPUT_NORM,   LW_PATCHES_INPUT_NORM_BIAS, LW_PATCHES,
    LW_PATCHES_BIAS,      LW_TOKEN_TYPE_EMBEDDING, LW_POSITION_EMBEDDING,      LW_PATCHES_NORM,
    LW_PATCHES_NORM_BIAS, LW_PER_LAYER_EMBEDDING,  LW_PER_LAYER_PROJECTION,    LW_PER_LAYER_NORM,
    LW_STREAMS_IN};
static const lw_role layer_roles[] = {LW_HYPER_ATTN,
                                      LW_HYPER_ATTN_BASE,
                                      LW_HYPER_ATTN_SCALE,
                                      LW_STREAM_NORM,
                                      LW_STREAM_ROUTER,
                                      LW_STREAM_PREDICTION,
                                      LW_STREAM_CORRECTION,
                                      LW_STREAM_SCALE,
                                      LW_MTP_EMBEDDING_NORM,
                                      LW_MTP_HIDDEN_NORM,
                                      LW_MTP_PROJECTION,
                                      LW_HEAD_FUSION_NORM,
                                      LW_HEAD_FUSION,
                                      LW_HEAD_EMBEDDING,
                                      LW_MTP_NORM,
                                      LW_ATTN_NORM,
                                      LW_LATENT_QUERY,
                                      LW_LATENT_QUERY_NORM,
                                      LW_LATENT_DOWN,
                                      LW_LATENT_NORM,
                                      LW_INDEX_KEY,
                                      LW_INDEX_KEY_NORM,
                                      LW_INDEX_KEY_NORM_BIAS,
                                      LW_INDEX_WEIGHTS,
                                      LW_COMPRESS_ROWS,
                                      LW_COMPRESS_GATE,
                                      LW_COMPRESS_POSITIONS,
                                      LW_COMPRESS_NORM,
                                      LW_INDEX_ROWS,
                                      LW_INDEX_GATE,
                                      LW_INDEX_POSITIONS,
                                      LW_INDEX_NORM,
                                      LW_INDEX_QUERY,
                                      LW_INDEX_QUERY_NORM,
                                      LW_ATTN_Q,
                                      LW_ATTN_K,
                                      LW_ATTN_V,
                                      LW_ATTN_Q_BIAS,
                                      LW_ATTN_K_BIAS,
                                      LW_ATTN_V_BIAS,
                                      LW_ATTN_Q_NORM,
                                      LW_ATTN_K_NORM,
                                      LW_LATENT_KEYS,
                                      LW_LATENT_VALUES,
                                      LW_ATTN_SINKS,
                                      LW_ATTN_DISTANCES,
                                      LW_ATTN_POSITION_KEYS,
                                      LW_ATTN_POSITION_QUERIES,
                                      LW_ATTN_GATE,
                                      LW_ATTN_INNER_NORM,
                                      LW_ATTN_GROUPS,
                                      LW_ATTN_OUTPUT,
                                      LW_ATTN_OUTPUT_BIAS,
                                      LW_LAUREL_DOWN,
                                      LW_LAUREL_UP,
                                      LW_LAUREL_NORM,
                                      LW_STATE_IN,
                                      LW_STATE_KEYS,
                                      LW_STATE_VALUES,
                                      LW_STATE_GATE_DOWN,
                                      LW_STATE_DECAY_DOWN,
                                      LW_STATE_GATE,
                                      LW_STATE_DECAY,
                                      LW_STATE_CONV,
                                      LW_STATE_DECAY_BIAS,
                                      LW_STATE_RATE,
                                      LW_STATE_BETA,
                                      LW_STATE_SKIP,
                                      LW_STATE_CONV_BIAS,
                                      LW_STATE_NORM,
                                      LW_STATE_OUT,
                                      LW_ATTN_NORM_BIAS,
                                      LW_ATTN_RESULT_NORM,
                                      LW_FFN_NORM,
                                      LW_FFN_NORM_BIAS,
                                      LW_FFN_RESULT_NORM,
                                      LW_FFN_GATE,
                                      LW_FFN_UP,
                                      LW_FFN_INNER_NORM,
                                      LW_FFN_DOWN,
                                      LW_FFN_GATE_BIAS,
                                      LW_FFN_UP_BIAS,
                                      LW_HYPER_FFN,
                                      LW_HYPER_FFN_BASE,
                                      LW_HYPER_FFN_SCALE,
                                      LW_ROUTER_TABLE,
                                      LW_ROUTER,
                                      LW_ROUTER_BIAS,
                                      LW_ROUTER_CHOICE_BIAS,
                                      LW_EXPERTS_IN,
                                      LW_EXPERTS_GATE,
                                      LW_EXPERTS_UP,
                                      LW_EXPERTS_DOWN,
                                      LW_EXPERTS_OUT,
                                      LW_EXPERTS_GATE_BIAS,
                                      LW_EXPERTS_UP_BIAS,
                                      LW_EXPERTS_DOWN_BIAS,
                                      LW_FFN_DOWN_BIAS,
                                      LW_SHARED_GATE,
                                      LW_SHARED_UP,
                                      LW_SHARED_DOWN,
                                      LW_SHARED_ROUTER,
                                      LW_ROUTER_NORM,
                                      LW_EXPERTS_NORM,
                                      LW_SHARED_RESULT_NORM,
                                      LW_EXPERTS_RESULT_NORM,
                                      LW_ROUTER_SCALES,
                                      LW_PER_LAYER_GATE,
                                      LW_PER_LAYER_OUT,
                                      LW_PER_LAYER_RESULT_NORM,
                                      LW_CLAMPS,
                                      LW_HEAD_RETURN,
                                      LW_HEAD_OUTPUT,
                                      LW_HEAD_TOKENS,
                                      LW_ATTN_INPUT_ORDER,
                                      LW_ATTN_OUTPUT_ORDER,
                                      LW_FFN_INPUT_ORDER};
static const lw_role last_roles[] = {LW_HYPER_HEAD,  LW_HYPER_HEAD_BASE, LW_HYPER_HEAD_SCALE, LW_STREAMS_OUT,
                                     LW_OUTPUT_NORM, LW_OUTPUT_BIAS,     LW_OUTPUT_NORM_BIAS, LW_MEAN_SHIFT,
                                     LW_MEAN_SCALE,  LW_OUTPUT};
static const lw_role dense_roles[] = {LW_DENSE_INPUT_NORM, LW_DENSE_INPUT_NORM_BIAS, LW_DENSE, LW_DENSE_BIAS,
                                      LW_DENSE_NORM,       LW_DENSE_NORM_BIAS};

#define COUNT(array) (sizeof(array) / sizeof *(array))
_Static_assert(COUNT(first_roles) + COUNT(layer_roles) + COUNT(last_roles) + COUNT(dense_roles) == LW_ROLE_COUNT,
               "each role stands in one of the lists");

typedef struct tensor_list {
    lw_program_tensor* out;
    uint32_t capacity, n;
} tensor_list;

static void add(tensor_list* list, lw_role role, uint32_t layer, lw_tensor_spec spec) {
    if (!spec.wanted) return;
    if (list->n < list->capacity)
        list->out[list->n] = (lw_program_tensor){.role = role,
                                                 .of_layer = lw_is_of_layers(role),
                                                 .layer = layer,
                                                 .rows = spec.rows,
                                                 .cols = spec.cols,
                                                 .is_vector = spec.is_vector,
                                                 .optional = lw_is_optional(role)};
    ++list->n;
}

lw_status lw_program_tensors(const lw_model_config* config, lw_program_tensor* out, uint32_t capacity, uint32_t* n) {
    if (n == NULL || (out == NULL && capacity > 0))
        return lw_fail(LW_ERR_ARGUMENT, "lw_program_tensors: out and n must not be NULL");
    LW_RETURN_IF_FAILED(lw_program_check(config));
    tensor_list list = {out, capacity, 0};
    for (size_t i = 0; i < COUNT(first_roles); ++i) add(&list, first_roles[i], 0, model_tensor(config, first_roles[i]));
    for (uint32_t layer = 0; layer < config->n_layers; ++layer)
        for (size_t i = 0; i < COUNT(layer_roles); ++i)
            add(&list, layer_roles[i], layer, layer_tensor(config, &config->layers[layer], layer_roles[i]));
    for (size_t i = 0; i < COUNT(last_roles); ++i) add(&list, last_roles[i], 0, model_tensor(config, last_roles[i]));
    for (uint32_t head = 0; head < config->n_dense; ++head) {
        const uint32_t inputs =
            lw_dense_begins(config, head) ? lw_pooled_size(config) : config->dense[head - 1].outputs;
        for (size_t i = 0; i < COUNT(dense_roles); ++i)
            add(&list, dense_roles[i], head,
                dense_tensor(&config->dense[head], inputs, config->norm_bias, dense_roles[i]));
    }
    *n = list.n;
    return LW_OK;
}
