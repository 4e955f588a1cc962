// Latent attention (MLA) in its absorbed form. Queries are multiplied by the key matrices, results by the value
// matrices, so the cache holds one latent row of each token for all heads. Prompts are computed in the same way: no bit
// depends on how a prompt is cut.
#include "kinds/latent.h"

#include <string.h>

#include "kinds/attend.h"
#include "kinds/index.h"
#include "kinds/kind.h"
#include "kinds/stacked.h"

static lw_status check_latent(const lw_model_config* model, uint32_t layer) {
    const lw_attention_config* c = &model->layers[layer].attention;
    const lw_place at = lw_place_of_layer(layer, "");
    if (c->shared_rows) return LW_OK;  // checked in shared.c
    LW_RETURN_IF_FAILED(lw_check_range(&at, "latent_rank", c->latent_rank, 0, model->pooled ? 0 : LW_MAX_LATENT_RANK));
    const bool latent = c->latent_rank > 0;
    LW_RETURN_IF_FAILED(lw_check_range(&at, "rope_dim", c->rope_dim, latent ? 2 : 0, latent ? c->head_dim - 1 : 0));
    const uint32_t most = latent ? 1024 : c->values_are_keys ? 0 : c->head_dim;
    LW_RETURN_IF_FAILED(lw_check_range(&at, "value_dim", c->value_dim, latent ? LW_PANEL : 0, most));
    LW_RETURN_IF_FAILED(lw_check_range(&at, "query_rank", c->query_rank, 0, latent ? 1 << 16 : 0));
    LW_RETURN_IF_FAILED(lw_check_number(&at, "latent_eps", (double)c->latent_eps, 0, latent ? 1 : 0));
    if (!latent) return LW_OK;
    LW_RETURN_IF_FAILED(lw_check_multiple(&at, "latent_rank", c->latent_rank, LW_PANEL));
    LW_RETURN_IF_FAILED(lw_check_multiple(&at, "value_dim", c->value_dim, LW_PANEL));
    LW_RETURN_IF_FAILED(lw_check_range(&at, "n_kv_heads", c->n_kv_heads, 1, 1));
    if (c->qkv_bias || c->qk_norm != LW_QK_NORM_NONE || c->alibi || c->distances || c->disentangled ||
        c->values_are_keys || c->value_norm || c->value_scale != 0 || c->qkv_clip != 0 || c->shares_kv)
        return lw_fail(LW_ERR_ARGUMENT,
                       "model config: %slatent_rank is %u, with which qkv_bias, qk_norm, alibi, distances,"
                       " values_are_keys, value_norm, value_scale, qkv_clip and shares_kv must be 0",
                       at.text, c->latent_rank);
    if (c->rope != LW_NO_ROPE && model->ropes[c->rope].rotated != c->rope_dim)
        return lw_fail(LW_ERR_ARGUMENT, "model config: %srope_dim is %u, which its rope must turn all of", at.text,
                       c->rope_dim);
    return LW_OK;
}

static lw_tensor_spec latent_tensor(const lw_model_config* model, const lw_layer_config* l, lw_role role) {
    const uint32_t hidden = model->hidden_size;
    const lw_attention_config* c = &l->attention;
    const uint32_t rank = c->latent_rank, query = c->query_rank;
    const bool here = rank > 0;
    switch (role) {
        case LW_LATENT_QUERY:
            return LW_MATRIX(latent_query, "latent query", query, hidden, query > 0);
        case LW_LATENT_QUERY_NORM:
            return LW_VECTOR(latent_query_norm, "norm of the latent query", query, query > 0);
        case LW_LATENT_DOWN:
            return LW_MATRIX(latent_down, "latent down", rank + c->rope_dim, hidden, here);
        case LW_LATENT_NORM:
            return LW_VECTOR(latent_norm, "latent norm", rank, here);
        case LW_LATENT_KEYS:
            return LW_MATRIX(latent_keys, "latent keys", c->n_heads * rank, c->head_dim - c->rope_dim, here);
        case LW_LATENT_VALUES:
            return LW_MATRIX(latent_values, "latent values", c->n_heads * c->value_dim, rank, here);
        default:
            return (lw_tensor_spec){0};
    }
}

static bool has_latent(const lw_model_config* model, const lw_layer_config* layer) {
    (void)model;
    return layer->attention.latent_rank > 0;
}

typedef struct latent {
    size_t query_rank, absorbed, latents, heads, head_part;  // maximum over the layers
    float* query;                                            // [rows][query_rank]
    float* absorbed_queries;  // [rows][n_heads * lw_key_dim] queries that meet the latent rows
    float* results;           // [rows][n_heads * latent_rank] weighted sums of latent rows
    lw_codes codes;           // inputs of the heads' matrices: all rows of head 0, then of head 1, ...
} latent;

static latent* of(const lw_worker* w) { return w->s->of_kind[LW_KIND_LATENT]; }

float* lw_latent_queries(const lw_session* s) { return ((latent*)s->of_kind[LW_KIND_LATENT])->absorbed_queries; }
float* lw_latent_results(const lw_session* s) { return ((latent*)s->of_kind[LW_KIND_LATENT])->results; }

static void widen_latent(lw_session* s, const lw_layer* layer, uint32_t index) {
    (void)index;
    const lw_attention_config* c = &layer->config.attention;
    latent* own = s->of_kind[LW_KIND_LATENT];
    lw_widen(&own->query_rank, c->query_rank);
    lw_widen(&own->absorbed, (size_t)c->n_heads * lw_key_dim(c));
    lw_widen(&own->latents, (size_t)c->n_heads * c->latent_rank);
    lw_widen(&own->heads, c->n_heads);
    lw_widen(&own->head_part, c->head_dim - c->rope_dim);
    lw_widen(&own->head_part, c->latent_rank);
    lw_widen(&s->widths.input, c->query_rank);
}

static void take_latent(lw_session* s, lw_parts* parts) {
    latent* own = s->of_kind[LW_KIND_LATENT];
    const size_t rows = s->config.max_batch_tokens, row = rows * sizeof(float);
    own->query = lw_take(parts, row * own->query_rank);
    own->absorbed_queries = lw_take(parts, row * own->absorbed);
    own->results = lw_take(parts, row * own->latents);
    const size_t of_heads = own->heads * lw_round_up(rows, 2);  // codes of rows may lie in pairs
    own->codes = lw_take_codes(parts, s->model, of_heads, lw_round_up(own->head_part, LW_SEGMENT));
}

static size_t latent_inputs(const lw_worker* w, const lw_layer* layer, lw_mixer_input* found) {
    const bool query = layer->config.attention.query_rank > 0;
    if (query) *found++ = (lw_mixer_input){&layer->latent_query, of(w)->query, LW_ADAPTED_COUNT, 0};
    *found = (lw_mixer_input){&layer->latent_down, lw_attention_of(w->s)->k, LW_ADAPTED_COUNT, 0};
    return 1 + query;
}

static lw_stacked keys_of(const lw_worker* w, const lw_layer* layer) {
    const lw_attention_config* c = &layer->config.attention;
    const size_t key = lw_key_dim(c);
    return (lw_stacked){
        &layer->latent_keys, &of(w)->codes, c->head_dim - c->rope_dim, c->latent_rank,   lw_attention_of(w->s)->q,
        layer->q.rows,       c->head_dim,   of(w)->absorbed_queries,   c->n_heads * key, key};
}

static lw_stacked values_of(const lw_worker* w, const lw_layer* layer) {
    const lw_attention_config* c = &layer->config.attention;
    const size_t rank = c->latent_rank;
    return (lw_stacked){&layer->latent_values,   &of(w)->codes,     rank, c->value_dim,
                        of(w)->results,          c->n_heads * rank, rank, lw_attention_of(w->s)->attn,
                        layer->attn_output.cols, c->value_dim};
}

void lw_make_latent_queries(lw_worker* w, const lw_layer* layer) {
    const lw_attention_config* c = &layer->config.attention;
    const size_t rank = c->query_rank;
    if (rank == 0) return;
    const lw_activations x = lw_activations_in(w, rank, &w->b->codes, of(w)->query);
    const bool has_index = layer->index_query.rows > 0;
    const lw_matrix* const readers[] = {&layer->q, &layer->index_query};
    const bool quantized = lw_any_reads_codes(w, readers, 1 + has_index);
    lw_taker items = lw_this_phase(w, w->rows);
    for (size_t row; lw_take_item(&items, &row);) {
        float* values = of(w)->query + row * rank;
        w->ops->rmsnorm(values, values, layer->latent_query_norm, rank, c->latent_eps);
        if (quantized) lw_quantize_segments(w, &x, row, 0, x.segments, values);
        lw_charge_row(w, LW_OP_ROTATE, 2 * rank, quantized ? rank : 0);
    }
    lw_end_phase(w, LW_OP_ROTATE);
    lw_product products[2] = {lw_product_at(w, &layer->q, lw_attention_of(w->s)->q, false)};
    if (has_index) products[1] = lw_product_at(w, &layer->index_query, lw_index_queries(w->s), false);
    lw_multiply(w, LW_OP_QKV, products, 1 + has_index, &x);
}

// RoPE of the rope_dim values of a query's head or of a key, if the layer has it.
static void turn_part(const lw_worker* w, const lw_attention_config* c, size_t row, float* part) {
    if (c->rope == LW_NO_ROPE) return;
    const size_t at = row * (c->rope_dim / 2);
    w->ops->rope(part, w->b->cosine[c->rope] + at, w->b->sine[c->rope] + at, c->rope_dim);
}

void lw_make_latent_key(const lw_worker* w, const lw_layer* layer, size_t row) {
    const lw_attention_config* c = &layer->config.attention;
    const size_t rank = c->latent_rank;
    float* stored = lw_attention_of(w->s)->k + row * lw_key_dim(c);
    w->ops->rmsnorm(stored, stored, layer->latent_norm, rank, c->latent_eps);
    turn_part(w, c, row, stored + rank);
}

void lw_make_latent_row(lw_worker* w, const lw_layer* layer, size_t row, float scale) {
    const lw_attention_config* c = &layer->config.attention;
    const size_t rank = c->latent_rank, turned = c->rope_dim, key = lw_key_dim(c);
    lw_make_latent_key(w, layer, row);
    const lw_stacked m = keys_of(w, layer);
    float* q = lw_attention_of(w->s)->q + row * m.from_stride;
    for (size_t i = 0; i < m.from_stride; ++i) q[i] *= scale;
    for (size_t head = 0; head < c->n_heads; ++head) {
        float* part = of(w)->absorbed_queries + row * m.to_stride + head * key + rank;
        memcpy(part, q + head * c->head_dim + m.inputs, turned * sizeof *part);
        turn_part(w, c, row, part);
    }
    lw_quantize_stacked(w, &m, row, 0, c->n_heads);
    lw_charge_row(w, LW_OP_ROTATE, 2 * m.from_stride + 2 * key, m.from_stride);
}

void lw_absorb_keys(lw_worker* w, const lw_layer* layer) {
    const lw_stacked m = keys_of(w, layer);
    lw_multiply_stacked(w, LW_OP_QKV, &m);
}

void lw_quantize_latents(lw_worker* w, const lw_layer* layer, lw_rows rows, size_t first, size_t n) {
    const lw_stacked m = values_of(w, layer);
    for (size_t row = rows.first; row < rows.first + rows.n; ++row) {
        lw_quantize_stacked(w, &m, row, first, n);
        lw_charge_row(w, LW_OP_ATTN_CODES, n * m.inputs, n * m.inputs);
    }
}

void lw_expand_values(lw_worker* w, const lw_layer* layer) {
    const lw_stacked m = values_of(w, layer);
    lw_multiply_stacked(w, LW_OP_ATTN_OUTPUT, &m);
}

const lw_kind lw_kind_latent = {.check = check_latent,
                                .tensor = latent_tensor,
                                .has = has_latent,
                                .own_bytes = sizeof(latent),
                                .widen = widen_latent,
                                .take = take_latent,
                                .inputs = latent_inputs,
                                .first_adapted = LW_ADAPTED_Q};
