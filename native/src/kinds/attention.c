// Attention: biases, norms and RoPE of Q, K and V, the KV cache, and the output projection. Queries meet keys in
// attend.c.
#include <math.h>
#include <string.h>

#include "graph/observe.h"
#include "kinds/attend.h"
#include "kinds/index.h"
#include "kinds/latent.h"
#include "kinds/stages.h"
#include "ops/math.h"

// Checks a layer that may read the keys and values of an earlier layer.
static lw_status check_shared_kv(const lw_place* at, const lw_model_config* model, uint32_t layer) {
    const lw_attention_config* c = &model->layers[layer].attention;
    LW_RETURN_IF_FAILED(lw_check_range(at, "shares_kv", c->shares_kv, 0, layer > 0 && !model->pooled));
    LW_RETURN_IF_FAILED(lw_check_range(at, "kv_layer", c->kv_layer, 0, c->shares_kv ? layer - 1 : 0));
    if (!c->shares_kv) return LW_OK;
    const lw_attention_config* of = &model->layers[c->kv_layer].attention;
    // A reader is one token behind the model, which has given back the first token of the window.
    const uint32_t window = model->layers[layer].mtp && of->window > 1 ? of->window - 1 : of->window;
    if (of->n_heads == 0 || of->shares_kv || of->n_kv_heads != c->n_kv_heads || of->head_dim != c->head_dim ||
        (c->latent_rank == 0 && of->value_dim != c->value_dim) || c->window != window || of->latent_rank > 0)
        return lw_fail(LW_ERR_ARGUMENT,
                       "model config: %skv_layer is %u, which must have keys and values of its own, %u KV heads of %u"
                       " and a window of %u",
                       at->text, c->kv_layer, c->n_kv_heads, c->head_dim, c->window);
    if (c->values_are_keys || c->value_norm || c->value_scale != 0)
        return lw_fail(LW_ERR_ARGUMENT,
                       "model config: %svalues_are_keys, value_norm and value_scale must be 0 where shares_kv is 1",
                       at->text);
    return LW_OK;
}

static lw_status check_turned(const lw_place* at, const lw_model_config* model, const lw_attention_config* c) {
    if (c->rope == LW_NO_ROPE) return LW_OK;
    if (c->rope < 0 || (uint32_t)c->rope >= model->n_ropes)
        return lw_fail(LW_ERR_ARGUMENT, "model config: %srope is %d, there are %u", at->text, c->rope, model->n_ropes);
    return lw_check_range(at, "rotated dimensions", model->ropes[c->rope].rotated, 2, c->head_dim);
}

// All layers share the ALiBi slopes of the first layer that has attention, so their configs must agree with it.
static lw_status check_slopes(const lw_place* at, const lw_model_config* model, const lw_attention_config* c) {
    const lw_layer_config* first = model->layers;
    while (first->attention.n_heads == 0) ++first;
    const lw_attention_config* f = &first->attention;
    if (c->n_heads != f->n_heads)
        return lw_fail(LW_ERR_ARGUMENT,
                       "model config: %salibi with %u heads, must be %u as in the first layer that has attention",
                       at->text, c->n_heads, f->n_heads);
    if (c->alibi != f->alibi || c->score_scale != f->score_scale)
        return lw_fail(
            LW_ERR_ARGUMENT,
            "model config: %salibi is %u and score_scale %g, must be %u and %g as in the first layer that has"
            " attention",
            at->text, c->alibi, (double)c->score_scale, f->alibi, (double)f->score_scale);
    return LW_OK;
}

static lw_status check_attention(const lw_model_config* model, uint32_t layer) {
    const lw_attention_config* c = &model->layers[layer].attention;
    const lw_place at = lw_place_of_layer(layer, "");
    if (c->n_heads == 0) return lw_check_absent(&at, "attention", c, sizeof *c);
    LW_RETURN_IF_FAILED(lw_check_range(&at, "n_heads", c->n_heads, 1, 1024));
    LW_RETURN_IF_FAILED(lw_check_range(&at, "n_kv_heads", c->n_kv_heads, 1, c->n_heads));
    LW_RETURN_IF_FAILED(lw_check_range(&at, "head_dim", c->head_dim, 2, LW_MAX_HEAD_DIM));
    LW_RETURN_IF_FAILED(lw_check_range(&at, "qk_norm", (uint64_t)c->qk_norm, 0, LW_QK_NORM_LAYER));
    LW_RETURN_IF_FAILED(lw_check_flag(&at, "qkv_bias", c->qkv_bias));
    LW_RETURN_IF_FAILED(lw_check_flag(&at, "output_bias", c->output_bias));
    LW_RETURN_IF_FAILED(lw_check_range(&at, "output_gate", c->output_gate, 0, 2));
    LW_RETURN_IF_FAILED(lw_check_range(&at, "gate_softplus", c->gate_softplus, 0, c->output_gate > 0));
    LW_RETURN_IF_FAILED(lw_check_range(&at, "inner_norm", c->inner_norm, 0, c->latent_rank == 0 && !model->norm_bias));
    LW_RETURN_IF_FAILED(lw_check_flag(&at, "sinks", c->sinks));
    LW_RETURN_IF_FAILED(lw_check_range(&at, "alibi", c->alibi, 0, 2));
    LW_RETURN_IF_FAILED(lw_check_range(&at, "distances", c->distances, 0, 1 << 16));
    LW_RETURN_IF_FAILED(lw_check_flag(&at, "disentangled", c->disentangled));
    if (c->disentangled)  // all keys of a block have a column, those behind the text's end too
        LW_RETURN_IF_FAILED(
            lw_check_range(&at, "distances", c->distances, (uint64_t)model->context_length + 30, 1 << 16));
    LW_RETURN_IF_FAILED(lw_check_range(&at, "both_ways", c->both_ways, 0, 2));
    if (c->both_ways > 0 && (c->both_ways == 2) == (model->pooled != 0))
        return lw_fail(LW_ERR_ARGUMENT, "model config: %sboth_ways is %u, must be 0 or %d", at.text, c->both_ways,
                       model->pooled ? 1 : 2);
    if (c->both_ways == 2) LW_RETURN_IF_FAILED(lw_check_range(&at, "latent_rank", c->latent_rank, 0, 0));
    LW_RETURN_IF_FAILED(lw_check_number(&at, "score_scale", (double)c->score_scale, 0, 1e3));
    LW_RETURN_IF_FAILED(lw_check_number(&at, "score_softcap", (double)c->score_softcap, 0, 1e6));
    LW_RETURN_IF_FAILED(lw_check_flag(&at, "values_are_keys", c->values_are_keys));
    LW_RETURN_IF_FAILED(lw_check_flag(&at, "value_norm", c->value_norm));
    LW_RETURN_IF_FAILED(lw_check_number(&at, "value_scale", (double)c->value_scale, 0, 1e3));
    LW_RETURN_IF_FAILED(lw_check_number(&at, "qkv_clip", (double)c->qkv_clip, 0, 1e30));
    LW_RETURN_IF_FAILED(check_shared_kv(&at, model, layer));
    LW_RETURN_IF_FAILED(lw_check_number(&at, "position_beta", (double)c->position_beta, 0, 1e3));
    if (c->position_beta > 0)
        LW_RETURN_IF_FAILED(lw_check_range(&at, "position_original", c->position_original, 1, 1 << 28));
    LW_RETURN_IF_FAILED(lw_check_range(&at, "position_offset", c->position_offset, 0, c->position_beta > 0));
    LW_RETURN_IF_FAILED(lw_check_multiple(&at, "chunk", c->chunk, LW_BLOCK_TOKENS));
    if (c->chunk > 0 && (c->window > 0 || c->both_ways > 0 || c->latent_rank > 0))
        return lw_fail(LW_ERR_ARGUMENT,
                       "model config: %schunk is %u, with which window, both_ways and latent_rank must be 0", at.text,
                       c->chunk);
    if (c->head_dim % 2 != 0)
        return lw_fail(LW_ERR_ARGUMENT, "model config: %shead_dim is %u, must be even", at.text, c->head_dim);
    if (c->n_heads % c->n_kv_heads != 0)
        return lw_fail(LW_ERR_ARGUMENT, "model config: %s%u heads cannot share %u KV heads evenly", at.text, c->n_heads,
                       c->n_kv_heads);
    if (c->alibi) LW_RETURN_IF_FAILED(check_slopes(&at, model, c));
    return check_turned(&at, model, c);
}

static lw_tensor_spec attention_tensor(const lw_model_config* model, const lw_layer_config* l, lw_role role) {
    const uint32_t hidden = model->hidden_size, inputs = lw_reads_pairs(l) ? 2 * hidden : hidden;
    const lw_attention_config* c = &l->attention;
    const uint32_t q = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim;
    const bool whole = c->qk_norm == LW_QK_NORM_WHOLE || c->qk_norm == LW_QK_NORM_LAYER,
               norm = c->qk_norm != LW_QK_NORM_NONE;
    const bool here = l->attention.n_heads > 0, latent = c->latent_rank > 0, own = here && !c->shares_kv && !latent,
               shared = here && c->shared_rows, values = own && !c->values_are_keys && !shared;
    const uint32_t outputs = shared ? c->output_groups * c->output_rank : c->n_heads * lw_output_dim(c),
                   of_values = c->n_kv_heads * lw_output_dim(c);
    switch (role) {
        case LW_ATTN_Q:
            return LW_MATRIX(q, "attention Q", q, c->query_rank > 0 ? c->query_rank : inputs, here);
        case LW_ATTN_K:
            return LW_MATRIX(k, "attention K", kv, inputs, own);
        case LW_ATTN_V:
            return LW_MATRIX(v, "attention V", of_values, inputs, values);
        case LW_ATTN_GATE:
            return LW_MATRIX(attn_gate, "attention gate", c->output_gate == 2 ? c->n_heads : outputs, inputs,
                             c->output_gate > 0);
        case LW_ATTN_Q_BIAS:
            return LW_VECTOR(q_bias, "attention Q bias", q, c->qkv_bias);
        case LW_ATTN_K_BIAS:
            return LW_VECTOR(k_bias, "attention K bias", kv, own && c->qkv_bias);
        case LW_ATTN_V_BIAS:
            return LW_VECTOR(v_bias, "attention V bias", of_values, values && c->qkv_bias);
        case LW_ATTN_Q_NORM:
            return LW_VECTOR(q_norm, "attention Q norm", whole ? q : c->head_dim, norm);
        case LW_ATTN_K_NORM:
            return LW_VECTOR(k_norm, "attention K norm", whole ? kv : c->head_dim, (own && norm) || shared);
        case LW_ATTN_OUTPUT:
            return LW_MATRIX(attn_output, "attention output", hidden, outputs, here);
        case LW_ATTN_INNER_NORM:
            return LW_VECTOR(attn_inner_norm, "norm of what attention output reads", outputs, c->inner_norm);
        case LW_ATTN_OUTPUT_BIAS:
            return LW_VECTOR(attn_output_bias, "attention output bias", hidden, c->output_bias);
        case LW_ATTN_SINKS:
            return LW_VECTOR(sinks, "attention sinks", c->n_heads, c->sinks);
        case LW_ATTN_DISTANCES:
            return LW_VECTOR(distances, "what scores change by", c->n_heads * (2 * c->distances + 1),
                             c->distances > 0 && !c->disentangled);
        case LW_ATTN_POSITION_KEYS:
            return LW_VECTOR(position_keys, "keys of distances", q * (2 * c->distances + 1), c->disentangled);
        case LW_ATTN_POSITION_QUERIES:
            return LW_VECTOR(position_queries, "queries of distances", q * (2 * c->distances + 1), c->disentangled);
        case LW_ATTN_INPUT_ORDER:
            return LW_VECTOR(attn_input_order, "order of Q, K and V", inputs,
                             here && !latent && !shared && l->state.kind == LW_NO_STATE);
        case LW_ATTN_OUTPUT_ORDER:
            return LW_VECTOR(attn_output_order, "order of attention output", outputs, here && !shared);
        default:
            return (lw_tensor_spec){0};
    }
}

static bool has_attention(const lw_model_config* model, const lw_layer_config* layer) {
    (void)model;
    return layer->attention.n_heads > 0;
}

static bool are_tiled_alike(const lw_tiling* t, const lw_attention_config* c) {
    return t->window == c->window && t->heads->chunk == c->chunk && t->both_ways == c->both_ways &&
           t->heads->index_topk == c->index_topk && t->heads->index_block == c->index_block &&
           t->heads->n_heads == c->n_heads && t->heads->n_kv_heads == c->n_kv_heads &&
           lw_key_dim(t->heads) == lw_key_dim(c) && lw_result_dim(t->heads) == lw_result_dim(c);
}

// Finds the layer's tiling. A new one is added unless an earlier layer has the same window, direction and heads.
static void find_tiling(lw_session* s, const lw_attention_config* c, uint32_t index) {
    lw_attention_own* own = lw_attention_of(s);
    size_t at = 0;
    while (at < own->n_tilings && !are_tiled_alike(&own->layers[at].tiling, c)) ++at;
    own->layers[index].tiling_of = (uint16_t)at;
    if (at < own->n_tilings) return;
    own->layers[own->n_tilings++].tiling = (lw_tiling){.window = c->window, .both_ways = c->both_ways, .heads = c};
    lw_widen_splits(s, &own->layers[at].tiling);
    lw_widen_stages(s, &own->layers[at].tiling);
    // With the most jobs, a tile has the most tokens.
    const size_t jobs = lw_tile_jobs(c, c->n_heads), dim = lw_align_floats(lw_key_dim(c));
    lw_widen(&own->tile_jobs, jobs);
    lw_widen(&s->widths.scratch,
             lw_attention_scratch_floats(lw_tile_tokens(c, jobs), c->n_heads / jobs, dim) * sizeof(float));
}

static void widen_attention(lw_session* s, const lw_layer* layer, uint32_t index) {
    const lw_attention_config* c = &layer->config.attention;
    lw_attention_own* own = lw_attention_of(s);
    const size_t outputs = lw_output_dim(c), head = c->head_dim > outputs ? c->head_dim : outputs;
    const size_t q = c->n_heads * head;
    lw_widen(&own->q_width, q);
    lw_widen(&own->kv_width, (size_t)c->n_kv_heads * lw_key_dim(c));
    if (c->output_gate) lw_widen(&own->gate_width, q);
    lw_widen(&s->widths.input, q);
    lw_widen(&s->widths.adapted, q);
    lw_widen(&s->widths.angles, c->head_dim / 2);
    if (!c->shared_rows) find_tiling(s, c, index);
}

static void take_attention(lw_session* s, lw_parts* parts) {
    lw_attention_own* own = lw_attention_of(s);
    const size_t rows = s->config.max_batch_tokens, row = rows * sizeof(float);
    own->q = lw_take(parts, row * own->q_width);
    own->k = lw_take(parts, row * own->kv_width);
    own->v = lw_take(parts, row * own->kv_width);
    own->attn = lw_take(parts, row * own->q_width);
    own->gate = lw_take(parts, row * own->gate_width);
    for (size_t i = 0; i < own->n_tilings; ++i)
        own->layers[i].tiling.tiles = lw_take(parts, (rows + own->split_tiles) * sizeof(lw_tile));
    own->split_states = lw_take(parts, own->split_floats * sizeof(float));
    own->splits_done = lw_take(parts, own->split_tiles * own->tile_jobs * sizeof *own->splits_done);
    lw_take_stages(s, parts);
}

static size_t attention_inputs(const lw_worker* w, const lw_layer* layer, lw_mixer_input* found) {
    const lw_attention_own* own = lw_attention_of(w->s);
    const bool q_reads_norm = layer->config.attention.query_rank == 0;
    size_t n = 0;
    if (q_reads_norm) found[n++] = (lw_mixer_input){&layer->q, own->q, LW_ADAPTED_Q, 0};
    if (layer->k.rows > 0) found[n++] = (lw_mixer_input){&layer->k, own->k, LW_ADAPTED_K, 0};
    if (layer->v.rows > 0) found[n++] = (lw_mixer_input){&layer->v, own->v, LW_ADAPTED_V, 0};
    if (layer->attn_gate.rows > 0) found[n++] = (lw_mixer_input){&layer->attn_gate, own->gate, LW_ADAPTED_ATTN_GATE, 0};
    return n;
}

// The norm of Q or K (qk_norm): of each head by itself, or of all heads together.
static void normalize_heads(const lw_worker* w, const lw_attention_config* c, float* heads, size_t n_heads,
                            const float* norm) {
    if (norm == NULL) return;
    const size_t dim = c->head_dim;
    if (c->qk_norm == LW_QK_NORM_LAYER) {
        for (size_t i = 0; i < n_heads * dim; i += dim)
            w->ops->layernorm(heads + i, heads + i, norm + i, NULL, dim, w->c->rms_norm_eps);
        return;
    }
    const bool whole = c->qk_norm == LW_QK_NORM_WHOLE;
    const size_t n = whole ? n_heads * dim : dim;
    for (size_t i = 0; i < n_heads * dim; i += n) w->ops->rmsnorm(heads + i, heads + i, norm, n, w->c->rms_norm_eps);
}

// Clips to -most .. most, unless `most` is 0. NaN stays NaN.
static void limit(float* x, size_t n, float most) {
    if (most == 0) return;
    for (size_t i = 0; i < n; ++i) x[i] = x[i] > most ? most : x[i] < -most ? -most : x[i];
}

static void turn_heads(const lw_worker* w, const lw_attention_config* c, size_t row, float* heads, size_t n_heads) {
    if (c->rope == LW_NO_ROPE) return;
    const size_t rotated = w->model->ropes[c->rope].rotated, half = rotated / 2;
    const float *cosine = w->b->cosine[c->rope] + row * half, *sine = w->b->sine[c->rope] + row * half;
    for (size_t h = 0; h < n_heads; ++h) w->ops->rope(heads + h * c->head_dim, cosine, sine, rotated);
}

// Norm, clipping and RoPE of one row's heads of Q or K, in the order that the layer's qk_norm asks for.
static void make_heads(const lw_worker* w, const lw_attention_config* c, size_t row, float* heads, size_t n_heads,
                       const float* norm) {
    const bool turned = c->qk_norm == LW_QK_NORM_TURNED;
    if (!turned) normalize_heads(w, c, heads, n_heads, norm);
    limit(heads, n_heads * c->head_dim, c->qkv_clip);
    turn_heads(w, c, row, heads, n_heads);
    if (turned) normalize_heads(w, c, heads, n_heads, norm);
}

// The factor of the query at a position.
static float query_scale(const lw_attention_config* c, uint32_t position) {
    const float scale = lw_score_scale(c);
    if (c->position_beta == 0) return scale;
    const uint32_t turns = 1 + (position + c->position_offset) / c->position_original;
    return scale * (float)(1 + (double)c->position_beta * lw_log((double)turns));
}

// Values come first: they may be copies of the keys before norm and RoPE.
static void make_keys_and_values(const lw_worker* w, const lw_layer* layer, size_t row) {
    const lw_attention_config* c = &layer->config.attention;
    const size_t dim = lw_output_dim(c), size = (size_t)c->n_kv_heads * c->head_dim, of_values = c->n_kv_heads * dim;
    lw_attention_own* own = lw_attention_of(w->s);
    if (c->latent_rank > 0) {
        lw_make_latent_key(w, layer, row);
        return;
    }
    float *k = own->k + row * size, *v = own->v + row * of_values;
    lw_add_vector(k, layer->k_bias, size);
    lw_add_vector(v, layer->v_bias, of_values);
    if (c->values_are_keys) memcpy(v, k, size * sizeof(float));
    limit(v, of_values, c->qkv_clip);
    for (size_t i = 0; c->value_norm && i < of_values; i += dim)
        w->ops->rmsnorm(v + i, v + i, w->model->ones, dim, w->c->rms_norm_eps);
    for (size_t i = 0; c->value_scale != 0 && i < of_values; ++i) v[i] *= c->value_scale;
    make_heads(w, c, row, k, c->n_kv_heads, layer->k_norm);
}

// An FFN in parallel with attention reads x before attention's result is added, so x is copied.
static void keep_before(const lw_worker* w, const lw_layer* layer, size_t row) {
    const size_t hidden = w->c->hidden_size, at = row * hidden;
    if (layer->config.wiring != LW_IN_TURN) memcpy(w->b->before + at, w->b->x + at, hidden * sizeof(float));
}

// Bias, QK norm, RoPE and scaling of one row. The bias of the output projection is added to the residual stream here,
// because no other thread reads the stream in this phase.
static void rotate_row(lw_worker* w, const lw_layer* layer, size_t row) {
    const lw_attention_config* c = &layer->config.attention;
    const size_t q_size = (size_t)c->n_heads * c->head_dim, kv_size = (size_t)c->n_kv_heads * c->head_dim;
    float* q = lw_attention_of(w->s)->q + row * q_size;
    keep_before(w, layer, row);
    lw_add_vector(w->b->x + row * w->c->hidden_size, layer->attn_output_bias, w->c->hidden_size);
    if (c->latent_rank > 0) {
        lw_make_latent_row(w, layer, row, query_scale(c, w->b->position[row]));
        if (c->index_heads > 0) lw_make_index_row(w, layer, row);
        return;
    }
    lw_add_vector(q, layer->q_bias, q_size);
    make_heads(w, c, row, q, c->n_heads, layer->q_norm);
    if (!c->shares_kv) make_keys_and_values(w, layer, row);
    const float scale = query_scale(c, w->b->position[row]);
    for (size_t i = 0; i < q_size; ++i) q[i] *= scale;
    if (c->index_heads > 0) lw_make_index_row(w, layer, row);
    lw_charge_row(w, LW_OP_ROTATE, 2 * q_size + 3 * kv_size, 0);
}

// Writes the keys and values of rows row .. end - 1 to the cache. Rows in the same block are one write.
static void store_rows(lw_worker* w, uint32_t index, size_t row, size_t end) {
    const lw_batch* batch = w->step->batch;
    const lw_attention_own* own = lw_attention_of(w->s);
    const lw_kv_place place = w->s->places[index];
    const lw_kv_cache* kv = &w->s->kv_of[index];
    const size_t kv_size = kv->n_kv_heads * kv->head_dim;
    for (size_t n; row < end; row += n) {
        const uint32_t sequence = w->b->sequence[row], position = w->b->position[row];
        const size_t last = batch->query_start[sequence + 1], offset = position % LW_BLOCK_TOKENS;
        n = (last < end ? last : end) - row;
        if (n > LW_BLOCK_TOKENS - offset) n = LW_BLOCK_TOKENS - offset;
        const uint32_t block = lw_block_table(w->s, batch, sequence, place.group)[position / LW_BLOCK_TOKENS];
        const float* index = kv->index_dim > 0 ? lw_index_keys(w->s) + row * kv->index_dim : NULL;
        const float* values = own->v + row * kv->n_kv_heads * kv->result_dim;
        const lw_kv_rows rows = {n, own->k + row * kv_size, values, index};
        if (!lw_kv_write(kv, w->ops, place.slot, block, (uint32_t)offset, rows)) lw_note_non_finite(w);
    }
}

// Number of rows that a thread takes at once. Keys of neighbouring tokens share cache lines, and two threads should not
// write to the same line in turns.
static size_t rows_together(const lw_worker* w) {
    enum { MOST = 64 / sizeof(float), SHARES = 4 };  // tokens in a cache line of keys; shares for each thread
    const size_t n = w->rows / (w->s->threads * SHARES);
    return n < 1 ? 1 : n < MOST ? n : MOST;
}

static void rotate_and_store(lw_worker* w, const lw_layer* layer, uint32_t index, bool with_queries) {
    const size_t together = rows_together(w);
    lw_taker items = lw_this_phase(w, (w->rows + together - 1) / together);
    for (size_t item; lw_take_item(&items, &item);) {
        const size_t first = item * together, end = first + together < w->rows ? first + together : w->rows;
        for (size_t row = first; row < end; ++row)
            with_queries ? rotate_row(w, layer, row) : make_keys_and_values(w, layer, row);
        if (!layer->config.attention.shares_kv) store_rows(w, index, first, end);
    }
    lw_end_phase(w, LW_OP_ROTATE);
}

// The input of the output projection: attention's result behind the gate of latent attention and its norm, if it has
// them, in the matrix's input order, and its codes unless lw_attend has made them.
static lw_activations attention_values(lw_worker* w, const lw_layer* layer, bool have_codes) {
    const size_t cols = layer->attn_output.cols;
    const float *order = layer->attn_output_order, *norm = layer->attn_inner_norm;
    const lw_matrix* reader = &layer->attn_output;
    const bool quantized = lw_reads_codes(w, reader);
    const lw_row_codes as = lw_codes_for(w, layer, &reader, 1);
    const lw_attention_own* own = lw_attention_of(w->s);
    float* values = order != NULL ? own->q : own->attn;  // the queries are no longer needed
    const lw_activations out = lw_activations_in(w, cols, &w->b->codes, values);
    const bool gated = lw_gates_latent(layer), changed = gated || order != NULL || norm != NULL;
    if (have_codes || (!changed && !as.floats && !quantized)) return out;
    lw_taker items = lw_this_phase(w, w->rows);
    for (size_t row; lw_take_item(&items, &row);) {
        float* result = own->attn + row * cols;
        if (gated) lw_pass_gate(w, layer, row, 0, cols);
        if (norm != NULL) lw_normalize_row(w, result, result, norm, NULL, cols);
        if (order != NULL) lw_put_in_order(values + row * cols, result, order, cols);
        if (quantized || as.floats) lw_quantize_row(w, &out, row, values + row * cols, as, quantized);
        lw_charge_row(w, LW_OP_ATTN_CODES, changed ? 2 * cols : cols, quantized ? cols : 0);
    }
    lw_end_phase(w, LW_OP_ATTN_CODES);
    return out;
}

static void mix_attention(lw_worker* w, const lw_layer* layer, uint32_t index) {
    const bool latent = layer->config.attention.latent_rank > 0;
    if (layer->config.attention.shared_rows) return;  // shared.c
    if (latent) lw_make_latent_queries(w, layer);
    rotate_and_store(w, layer, index, true);
    if (layer->config.attention.index_heads > 0) lw_choose_tokens(w, layer, index);
    if (latent) lw_absorb_keys(w, layer);
    const lw_attention_own* own = lw_attention_of(w->s);
    if (latent)
        lw_attend(w, index, (lw_attended){lw_latent_queries(w->s), lw_latent_results(w->s), lw_quantize_latents});
    else
        lw_attend(w, index, (lw_attended){own->q, own->attn, NULL});
    if (latent) lw_expand_values(w, layer);
}

void lw_store_keys(lw_worker* w, const lw_layer* layer, uint32_t index) { rotate_and_store(w, layer, index, false); }

static void keep_attention(lw_worker* w, const lw_layer* layer) {
    const lw_attention_own* own = lw_attention_of(w->s);
    const size_t cols = layer->config.attention.shared_rows ? layer->q.rows : layer->attn_output.cols;
    lw_keep_rows(own->attn, cols, w->step->batch);
    if (lw_gates_latent(layer)) lw_keep_rows(own->gate, layer->attn_gate.rows, w->step->batch);
}

static void add_attention(lw_worker* w, const lw_layer* layer, uint32_t index) {
    if (layer->config.attention.shared_rows) return;
    const lw_activations values = attention_values(w, layer, lw_attend_makes_codes(w, index));
    lw_observe(w, LW_OP_ATTN_OUTPUT, index, lw_inputs_of(&values));
    lw_project(w, LW_OP_ATTN_OUTPUT, index, LW_ADAPTED_ATTN_OUTPUT, 1, lw_inputs_of(&values));
    lw_add_product(w, LW_OP_ATTN_OUTPUT, &layer->attn_output, layer->attn_result_norm, &values, LW_ADAPTED_ATTN_OUTPUT);
}

void lw_begin_attention(lw_worker* w, const lw_layer* layer, uint32_t index) {
    rotate_and_store(w, layer, index, true);
}

void lw_end_attention(lw_worker* w, const lw_layer* layer, uint32_t index) {
    const lw_attention_own* own = lw_attention_of(w->s);
    lw_attend(w, index, (lw_attended){own->q, own->attn, NULL});
    add_attention(w, layer, index);
}

const lw_kind lw_kind_attention = {.check = check_attention,
                                   .tensor = attention_tensor,
                                   .has = has_attention,
                                   .own_bytes = sizeof(lw_attention_own),
                                   .own_bytes_of_layer = sizeof(((lw_attention_own*)0)->layers[0]),
                                   .widen = widen_attention,
                                   .take = take_attention,
                                   .prepare = lw_make_tiles,
                                   .inputs = attention_inputs,
                                   .first_adapted = LW_ADAPTED_Q,
                                   .n_adapted = LW_ADAPTED_ATTN_GATE + 1,
                                   .mix = mix_attention,
                                   .keep = keep_attention,
                                   .add = add_attention};
