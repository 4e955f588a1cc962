// The attention of a layer: what Q, K and V go through, the cache, and the output projection.
#include <math.h>
#include <string.h>

#include "graph/observe.h"
#include "ops/math.h"

// The norm of Q or K: of each head, or of all together.
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

// NaN stays what it is.
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

// One row's heads of Q or K: norm, limits and RoPE, in the order that the layer has them.
static void make_heads(const lw_worker* w, const lw_attention_config* c, size_t row, float* heads, size_t n_heads,
                       const float* norm) {
    const bool turned = c->qk_norm == LW_QK_NORM_TURNED;
    if (!turned) normalize_heads(w, c, heads, n_heads, norm);
    limit(heads, n_heads * c->head_dim, c->qkv_clip);
    turn_heads(w, c, row, heads, n_heads);
    if (turned) normalize_heads(w, c, heads, n_heads, norm);
}

// What the query at a position is multiplied by.
static float query_scale(const lw_attention_config* c, uint32_t position) {
    const float scale = lw_score_scale(c);
    if (c->position_beta == 0) return scale;
    const uint32_t turns = 1 + position / c->position_original;
    return scale * (float)(1 + (double)c->position_beta * lw_log((double)turns));
}

// Values are done with before the keys that they may be turn.
static void make_keys_and_values(const lw_worker* w, const lw_layer* layer, size_t row) {
    const lw_attention_config* c = &layer->config.attention;
    const size_t size = (size_t)c->n_kv_heads * c->head_dim;
    float *k = w->b->k + row * size, *v = w->b->v + row * size;
    lw_add_vector(k, layer->k_bias, size);
    lw_add_vector(v, layer->v_bias, size);
    if (c->values_are_keys) memcpy(v, k, size * sizeof(float));
    limit(v, size, c->qkv_clip);
    for (size_t h = 0; c->value_norm && h < c->n_kv_heads; ++h)
        w->ops->rmsnorm(v + h * c->head_dim, v + h * c->head_dim, w->model->ones, c->head_dim, w->c->rms_norm_eps);
    make_heads(w, c, row, k, c->n_kv_heads, layer->k_norm);
}

// What an FFN beside attention reads is kept before attention's result is added to it.
static void keep_before(const lw_worker* w, const lw_layer* layer, size_t row) {
    const size_t hidden = w->c->hidden_size, at = row * hidden;
    if (layer->config.wiring != LW_IN_TURN) memcpy(w->b->before + at, w->b->x + at, hidden * sizeof(float));
}

// Bias, QK norm, RoPE and scaling of one row. No thread reads the residual stream meanwhile: the bias of the
// output projection is added to it.
static void rotate_row(lw_worker* w, const lw_layer* layer, size_t row) {
    const lw_attention_config* c = &layer->config.attention;
    const size_t q_size = (size_t)c->n_heads * c->head_dim, kv_size = (size_t)c->n_kv_heads * c->head_dim;
    float* q = w->b->q + row * q_size;
    keep_before(w, layer, row);
    lw_add_vector(w->b->x + row * w->c->hidden_size, layer->attn_output_bias, w->c->hidden_size);
    if (c->latent_rank > 0) {
        lw_make_latent_row(w, layer, row, query_scale(c, w->b->position[row]));
        return;
    }
    lw_add_vector(q, layer->q_bias, q_size);
    make_heads(w, c, row, q, c->n_heads, layer->q_norm);
    if (!c->shares_kv) make_keys_and_values(w, layer, row);
    const float scale = query_scale(c, w->b->position[row]);
    for (size_t i = 0; i < q_size; ++i) q[i] *= scale;
    lw_charge_row(w, LW_OP_ROTATE, 2 * q_size + 3 * kv_size, 0);
}

// Keys and values of some rows to the cache, as many at once as lie in one block.
static void store_rows(lw_worker* w, uint32_t index, size_t row, size_t end) {
    const lw_batch* batch = w->step->batch;
    const lw_kv_place place = w->s->places[index];
    const lw_kv_cache* kv = &w->s->kv_of[index];
    const size_t kv_size = kv->n_kv_heads * kv->head_dim;
    for (size_t n; row < end; row += n) {
        const uint32_t sequence = w->b->sequence[row], position = w->b->position[row];
        const size_t last = batch->query_start[sequence + 1], offset = position % LW_BLOCK_TOKENS;
        n = (last < end ? last : end) - row;
        if (n > LW_BLOCK_TOKENS - offset) n = LW_BLOCK_TOKENS - offset;
        const uint32_t block = lw_block_table(w->s, batch, sequence, place.group)[position / LW_BLOCK_TOKENS];
        const lw_kv_rows rows = {n, w->b->k + row * kv_size, w->b->v + row * kv_size};
        if (!lw_kv_write(kv, w->ops, place.slot, block, (uint32_t)offset, rows)) lw_note_non_finite(w);
    }
}

// Rows that a thread takes together: keys of neighbours share cache lines, which no two threads should write by turns.
static size_t rows_together(const lw_worker* w) {
    enum { MOST = 64 / sizeof(float), SHARES = 4 };  // a cache line of keys; of each thread
    const size_t n = w->rows / (w->s->config.n_threads * SHARES);
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

// The input of the output projection: the result of attention in its order, and its codes unless they are there already.
static lw_activations attention_values(lw_worker* w, const lw_layer* layer, bool have_codes) {
    const size_t cols = layer->attn_output.cols;
    const float* order = layer->attn_output_order;
    const bool quantized = lw_reads_codes(w, &layer->attn_output);
    float* values = order != NULL ? w->b->q : w->b->attn;  // queries are not needed any more
    const lw_activations out = lw_activations_in(w, cols, &w->b->codes, values);
    if (have_codes || (order == NULL && !quantized)) return out;
    lw_taker items = lw_this_phase(w, w->rows);
    for (size_t row; lw_take_item(&items, &row);) {
        if (order != NULL) lw_put_in_order(values + row * cols, w->b->attn + row * cols, order, cols);
        if (quantized) lw_quantize_segments(w, &out, row, 0, out.segments, values + row * cols);
        lw_charge_row(w, LW_OP_ATTN_CODES, order != NULL ? 2 * cols : cols, quantized ? cols : 0);
    }
    lw_end_phase(w, LW_OP_ATTN_CODES);
    return out;
}

bool lw_attention(lw_worker* w, const lw_layer* layer, uint32_t index) {
    const bool latent = layer->config.attention.latent_rank > 0;
    if (latent) lw_make_latent_queries(w, layer);
    rotate_and_store(w, layer, index, true);
    if (latent) lw_absorb_keys(w, layer);
    const bool have_codes = lw_attend(w, index);
    if (latent) lw_expand_values(w, layer);
    return have_codes;
}

void lw_store_keys(lw_worker* w, const lw_layer* layer, uint32_t index) { rotate_and_store(w, layer, index, false); }

void lw_add_attention(lw_worker* w, const lw_layer* layer, uint32_t index, bool have_codes) {
    const lw_activations values = attention_values(w, layer, have_codes);
    lw_observe(w, LW_OP_ATTN_OUTPUT, index, lw_inputs_of(&values));
    lw_project(w, LW_OP_ATTN_OUTPUT, index, LW_ADAPTED_ATTN_OUTPUT, 1, lw_inputs_of(&values));
    lw_add_product(w, LW_OP_ATTN_OUTPUT, &layer->attn_output, layer->attn_result_norm, &values, LW_ADAPTED_ATTN_OUTPUT);
}
