// Latent attention (MLA) in its absorbed form: queries are multiplied by the matrices of keys, results by those of values, so
// that the cache holds one row of a token for all heads. Prompts go the same way: no bit depends on how they are cut.
#include <string.h>

#include "graph/worker.h"

// A matrix for each head, one below the other: head h of row r reads `inputs` values at from + r * from_stride + h *
// from_step, and its `outputs` results are at `to` likewise.
typedef struct head_matrices {
    const lw_matrix* stacked;
    size_t inputs, outputs;
    const float* from;
    size_t from_stride, from_step;
    float* to;
    size_t to_stride, to_step;
} head_matrices;

static head_matrices keys_of(const lw_worker* w, const lw_layer* layer) {
    const lw_attention_config* c = &layer->config.attention;
    const size_t key = lw_key_dim(c);
    return (head_matrices){&layer->latent_keys,
                           c->head_dim - c->rope_dim,
                           c->latent_rank,
                           w->b->q,
                           layer->q.rows,
                           c->head_dim,
                           w->b->absorbed,
                           c->n_heads * key,
                           key};
}

static head_matrices values_of(const lw_worker* w, const lw_layer* layer) {
    const lw_attention_config* c = &layer->config.attention;
    const size_t rank = c->latent_rank;
    return (head_matrices){&layer->latent_values, rank, c->value_dim, w->b->latents,
                           c->n_heads * rank,     rank, w->b->attn,   layer->attn_output.cols,
                           c->value_dim};
}

// The rows of one head as the inputs of its matrix.
static lw_activations inputs_of(const lw_worker* w, const head_matrices* m, size_t head) {
    const size_t place = head * lw_round_up(w->rows, lw_level_layouts[w->model->level].row_block);
    lw_activations x =
        lw_activations_at(w, w->rows, m->inputs, &w->b->head_codes, place, m->from + head * m->from_step);
    x.f32_stride = m->from_stride;
    return x;
}

static void quantize_heads(lw_worker* w, const head_matrices* m, size_t row, size_t first, size_t n) {
    if (!lw_reads_codes(w, m->stacked)) return;
    for (size_t head = first; head < first + n; ++head) {
        const lw_activations x = inputs_of(w, m, head);
        lw_quantize_segments(w, &x, row, 0, x.segments, x.f32 + row * x.f32_stride);
    }
}

// A phase: panels of all heads, in pieces of rows where there are many.
static void multiply_heads(lw_worker* w, lw_operation operation, const head_matrices* m) {
    const size_t of_head = m->outputs / LW_PANEL, panels = m->stacked->rows / LW_PANEL;
    const lw_product p = lw_product_of_rows(w, m->stacked, w->rows, m->to, false);
    const lw_matmul_worker self = {w->scratch, w->profile, operation};
    const lw_cuts cuts = lw_cut_rows(w->rows, panels, w->s->config.n_threads);
    lw_taker items = lw_this_phase(w, panels * cuts.n);
    size_t begin, end;
    while (lw_take_share(&items, &begin, &end))
        for (size_t item = begin; item < end; ++item) {
            const size_t panel = item / cuts.n, head = panel / of_head;
            const lw_activations x = inputs_of(w, m, head);
            const lw_rows rows = lw_piece(cuts, w->rows, item % cuts.n);
            // Kernels add the number of the panel times 32 to the row's address.
            float* to = m->to + head * m->to_step - head * m->outputs;
            lw_product_panel(&p, &x, rows, panel, (lw_output){to, m->to_stride, false}, w->scratch);
            lw_matmul_charge(&self, &p, &x, rows, panel % of_head);
        }
    lw_count_products(w, 1, w->rows);
    lw_end_phase(w, operation);
}

void lw_make_latent_queries(lw_worker* w, const lw_layer* layer) {
    const lw_attention_config* c = &layer->config.attention;
    const size_t rank = c->query_rank;
    if (rank == 0) return;
    const lw_activations x = lw_activations_in(w, rank, &w->b->codes, w->b->latent_query);
    const bool quantized = lw_reads_codes(w, &layer->q);
    lw_taker items = lw_this_phase(w, w->rows);
    for (size_t row; lw_take_item(&items, &row);) {
        float* values = w->b->latent_query + row * rank;
        w->ops->rmsnorm(values, values, layer->latent_query_norm, rank, c->latent_eps);
        if (quantized) lw_quantize_segments(w, &x, row, 0, x.segments, values);
        lw_charge_row(w, LW_OP_ROTATE, 2 * rank, quantized ? rank : 0);
    }
    lw_end_phase(w, LW_OP_ROTATE);
    const lw_product product = lw_product_at(w, &layer->q, w->b->q, false);
    lw_multiply(w, LW_OP_QKV, &product, 1, &x);
}

void lw_make_latent_row(lw_worker* w, const lw_layer* layer, size_t row, float scale) {
    const lw_attention_config* c = &layer->config.attention;
    const size_t rank = c->latent_rank, turned = c->rope_dim, half = turned / 2, key = lw_key_dim(c);
    const float *cosine = w->b->cosine[c->rope] + row * half, *sine = w->b->sine[c->rope] + row * half;
    float* stored = w->b->k + row * key;
    w->ops->rmsnorm(stored, stored, layer->latent_norm, rank, c->latent_eps);
    w->ops->rope(stored + rank, cosine, sine, turned);
    const head_matrices m = keys_of(w, layer);
    float* q = w->b->q + row * m.from_stride;
    for (size_t i = 0; i < m.from_stride; ++i) q[i] *= scale;
    for (size_t head = 0; head < c->n_heads; ++head) {
        float* part = w->b->absorbed + row * m.to_stride + head * key + rank;
        memcpy(part, q + head * c->head_dim + m.inputs, turned * sizeof *part);
        w->ops->rope(part, cosine, sine, turned);
    }
    quantize_heads(w, &m, row, 0, c->n_heads);
    lw_charge_row(w, LW_OP_ROTATE, 2 * m.from_stride + 2 * key, m.from_stride);
}

void lw_absorb_keys(lw_worker* w, const lw_layer* layer) {
    const head_matrices m = keys_of(w, layer);
    multiply_heads(w, LW_OP_QKV, &m);
}

void lw_quantize_latents(lw_worker* w, const lw_layer* layer, const lw_tile* tile, size_t first, size_t n) {
    const head_matrices m = values_of(w, layer);
    for (size_t row = tile->first_row; row < tile->first_row + tile->n_tokens; ++row) {
        quantize_heads(w, &m, row, first, n);
        lw_charge_row(w, LW_OP_ATTN_CODES, n * m.inputs, n * m.inputs);
    }
}

void lw_expand_values(lw_worker* w, const lw_layer* layer) {
    const head_matrices m = values_of(w, layer);
    multiply_heads(w, LW_OP_ATTN_OUTPUT, &m);
}
