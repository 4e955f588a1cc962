// A prediction head (lw_layer_config.mtp). A step of the model makes its keys and values of all tokens, so that they lie
// beside those of the layers, and leaves the last row it needs in the place of the sequence's states. What the head
// predicts is made by batches of its own.
#include <string.h>

#include "graph/observe.h"

static uint32_t head_index(const lw_worker* w) { return w->c->n_layers - 1; }

static const lw_layer* head_of(const lw_worker* w) { return &w->model->layers[head_index(w)]; }

// Row `guess` of what a sequence's place keeps: 0 that of its last token, then those of guesses behind it.
static float* kept_row(const lw_worker* w, uint32_t sequence, size_t guess) {
    const uint32_t place = lw_table_row(w->step->batch, sequence);
    return lw_state_at(&w->s->states, place, head_index(w)) + guess * lw_hidden_stride(w->model);
}

// The hidden row before a row; NULL before the first token, whose keys and values no query sees.
static const float* row_before(const lw_worker* w, size_t row) {
    const lw_batch* batch = w->step->batch;
    const uint32_t sequence = w->b->sequence[row];
    if (batch->runs == LW_RUN_HEAD_AGAIN)
        return w->b->predicted + lw_table_row(batch, sequence) * (size_t)w->c->hidden_size;
    if (row > batch->query_start[sequence]) return w->b->hidden + (row - 1) * w->c->hidden_size;
    if (w->b->position[row] == 0) return NULL;
    return kept_row(w, sequence, batch->accepted != NULL ? batch->accepted[sequence] : 0);
}

static void make_input(lw_worker* w, const lw_layer* head, size_t row, float* out) {
    const size_t hidden = w->c->hidden_size;
    const float* before = row_before(w, row);
    float* embedding = w->scratch;
    lw_unpack_row(&w->model->embedding, w->b->token[row], embedding);
    for (size_t i = 0; w->c->embedding_scale != 1 && i < hidden; ++i) embedding[i] *= w->c->embedding_scale;
    lw_normalize_row(w, out, embedding, head->mtp_embedding_norm, NULL, hidden);
    if (before != NULL)
        lw_normalize_row(w, out + hidden, before, head->mtp_hidden_norm, NULL, hidden);
    else
        memset(out + hidden, 0, hidden * sizeof(float));
}

// x = projection (norm(embedding), norm(row before)).
void lw_enter_head(lw_worker* w) {
    const lw_layer* head = head_of(w);
    const size_t cols = 2 * (size_t)w->c->hidden_size;
    const bool quantized = lw_reads_codes(w, &head->mtp_projection);
    const lw_activations x = lw_activations_in(w, cols, &w->b->codes, w->b->mtp_inputs);
    lw_taker items = lw_this_phase(w, w->rows);
    for (size_t row; lw_take_item(&items, &row);) {
        float* values = w->b->mtp_inputs + row * cols;
        make_input(w, head, row, values);
        if (quantized) lw_quantize_segments(w, &x, row, 0, x.segments, values);
        lw_charge_row(w, LW_OP_EMBED, 3 * cols, quantized ? cols : 0);
    }
    lw_end_phase(w, LW_OP_EMBED);
    const lw_product product = lw_product_at(w, &head->mtp_projection, w->b->x, false);
    lw_multiply(w, LW_OP_EMBED, &product, 1, &x);
}

void lw_leave_head(lw_worker* w) {
    const lw_layer* head = head_of(w);
    const size_t hidden = w->c->hidden_size;
    lw_taker items = lw_this_phase(w, w->rows);  // one of each sequence
    for (size_t row; lw_take_item(&items, &row);) {
        float* out = w->b->predicted + lw_table_row(w->step->batch, (uint32_t)row) * hidden;
        lw_normalize_row(w, out, w->b->x + row * hidden, head->mtp_norm, NULL, hidden);
        lw_charge_row(w, LW_OP_OUTPUT_NORM, 2 * hidden, 0);
    }
    lw_end_phase(w, LW_OP_OUTPUT_NORM);
}

void lw_keep_hidden(lw_worker* w) {
    const lw_batch* batch = w->step->batch;
    const size_t hidden = w->c->hidden_size;
    lw_taker items = lw_this_phase(w, w->rows);
    for (size_t row; lw_take_item(&items, &row);) {
        lw_normalize_row(w, w->b->hidden + row * hidden, w->b->x + row * hidden, w->model->output_norm, NULL, hidden);
        lw_charge_row(w, LW_OP_OUTPUT_NORM, 2 * hidden, 0);
    }
    lw_end_phase(w, LW_OP_OUTPUT_NORM);
    if (w->thread == 0 && batch->n_logits < w->rows) lw_keep_rows(w->b->x, hidden, batch);
    w->rows = batch->n_logits;
    lw_end_phase(w, LW_OP_OUTPUT_NORM);
}

static void store_keys(lw_worker* w, const lw_layer* head, uint32_t index) {
    const lw_matrix* matrices[] = {&head->k, &head->v};
    const lw_norm by = lw_norm_before_mixer(head, head->attn_input_order);
    const lw_activations x = lw_normalize(w, LW_OP_ATTN_NORM, by, lw_any_reads_codes(w, matrices, 2));
    const lw_product products[] = {lw_product_at(w, &head->k, w->b->k, false),
                                   lw_product_at(w, &head->v, w->b->v, false)};
    lw_multiply(w, LW_OP_QKV, products, 2, &x);
    lw_store_keys(w, head, index);
}

// Of a sequence without tokens in the batch: the last of its guesses that were right is its last token.
static void take_accepted(const lw_worker* w, uint32_t sequence) {
    const uint32_t accepted = w->step->batch->accepted != NULL ? w->step->batch->accepted[sequence] : 0;
    if (accepted == 0) return;
    memcpy(kept_row(w, sequence, 0), kept_row(w, sequence, accepted), w->c->hidden_size * sizeof(float));
}

// Keeps the rows that the next step, or the head, begins with, over those of the step before, which have been read.
static void keep_last_rows(lw_worker* w) {
    const lw_batch* batch = w->step->batch;
    const size_t hidden = w->c->hidden_size;
    lw_taker items = lw_this_phase(w, batch->n_seqs);
    for (size_t sequence; lw_take_item(&items, &sequence);) {
        const uint32_t end = batch->query_start[sequence + 1];
        if (end == batch->query_start[sequence]) {
            take_accepted(w, (uint32_t)sequence);
            continue;
        }
        const size_t guesses = batch->guesses != NULL ? batch->guesses[sequence] : 0;
        const size_t first = end - 1 - guesses;
        for (size_t i = 0; i <= guesses; ++i)
            memcpy(kept_row(w, (uint32_t)sequence, i), w->b->hidden + (first + i) * hidden, hidden * sizeof(float));
        lw_charge_row(w, LW_OP_COMBINE, 2 * (1 + guesses) * hidden, 0);
    }
    lw_end_phase(w, LW_OP_COMBINE);
}

void lw_feed_head(lw_worker* w) {
    const size_t with_logits = w->rows;
    w->rows = w->step->n_rows;
    w->feeds_head = true;
    lw_enter_head(w);
    store_keys(w, head_of(w), head_index(w));
    keep_last_rows(w);
    w->rows = with_logits;
}
