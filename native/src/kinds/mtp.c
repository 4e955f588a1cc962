// A head for multi-token prediction (lw_layer_config.mtp). Each step of the model also computes the head's keys and
// values of all tokens and stores them in the cache. The step keeps the last hidden rows that the head needs in the
// sequence's state place. The head itself runs in batches of its own.
//
// A head that guesses blocks (blocks.c) needs no such rows, and has no place.
//
// A place holds [1 + max_guesses][row_stride] floats of its sequence: the hidden row (after the output norm) of the
// last token, then the hidden rows of the guesses that follow it.
#include "kinds/mtp.h"

#include <string.h>

#include "graph/observe.h"
#include "kinds/attend.h"
#include "kinds/blocks.h"
#include "kinds/kind.h"
#include "kinds/taps.h"

// A head that reads the model's keys.
static lw_status check_reader(const lw_model_config* c, uint32_t layer) {
    const lw_layer_config* l = &c->layers[layer];
    static const lw_place model = {""};
    const lw_place at = lw_place_of_layer(layer, "");
    LW_RETURN_IF_FAILED(lw_check_range(&model, "reader_layers", c->reader_layers, 0,
                                       c->pooled || c->n_layers == 0 ? 0 : c->n_layers - 1));
    LW_RETURN_IF_FAILED(lw_check_range(&model, "reader_size", c->reader_size, 1, c->hidden_size));
    LW_RETURN_IF_FAILED(lw_check_number(&model, "reader_eps", (double)c->reader_eps, 1e-12, 1));
    const uint32_t first = c->n_layers - c->reader_layers, mtp = layer < first ? 0 : layer == first ? 1 : 2;
    LW_RETURN_IF_FAILED(lw_check_range(&at, "mtp", l->mtp, mtp, mtp));
    LW_RETURN_IF_FAILED(lw_check_taps(c, layer));
    if (mtp == 0) return LW_OK;
    const lw_attention_config* a = &l->attention;
    const bool in_turn = !l->attn_norm_replaces && !l->ffn_norm_replaces && l->wiring == LW_IN_TURN;
    if (!in_turn || l->state.kind != LW_NO_STATE || l->ffn.kind != LW_FFN_GATED || c->norm != LW_NORM_RMS ||
        a->n_heads == 0 || !a->shares_kv || a->kv_layer >= first)
        return lw_fail(LW_ERR_ARGUMENT,
                       "model config: %smtp is %u, must be 0 but with a gated FFN, parts in turn, RMS norms, and with"
                       " attention to keys of one of the model's %u layers",
                       at.text, l->mtp, first);
    return LW_OK;
}

static lw_status check_mtp(const lw_model_config* c, uint32_t layer) {
    const lw_layer_config* l = &c->layers[layer];
    const lw_place at = lw_place_of_layer(layer, "");
    if (c->reader_layers > 0) return check_reader(c, layer);
    if (lw_has_block_head(c)) return lw_check_block_head(c, layer);
    LW_RETURN_IF_FAILED(lw_check_range(&at, "mtp", l->mtp, 0, layer > 0 && layer + 1 == c->n_layers && !c->pooled));
    LW_RETURN_IF_FAILED(lw_check_taps(c, layer));
    if (!l->mtp) return LW_OK;
    const bool plain = !l->attn_norm_replaces && !l->ffn_norm_replaces && !l->result_norms && l->wiring == LW_IN_TURN;
    const lw_attention_config* a = &l->attention;
    if (!plain || l->state.kind != LW_NO_STATE || l->ffn.kind == LW_FFN_NONE || c->per_layer_size > 0 ||
        c->norm != LW_NORM_RMS)
        return lw_fail(LW_ERR_ARGUMENT,
                       "model config: %smtp is 1, must be 0 but with an FFN, parts in turn, RMS norms before them only,"
                       " and without a state or a per_layer_size",
                       at.text);
    if (a->n_heads == 0 || a->window > 0 || a->chunk > 0 || a->shares_kv || a->values_are_keys)
        return lw_fail(LW_ERR_ARGUMENT,
                       "model config: %smtp is 1, must be 0 but with attention to all tokens, of keys and values of its"
                       " own",
                       at.text);
    return LW_OK;
}

static lw_tensor_spec mtp_tensor(const lw_model_config* model, const lw_layer_config* l, lw_role role) {
    const bool here = l->mtp == 1, reads = here && model->reader_layers > 0, blocks = l->head.block > 0;
    const bool normed = here && !reads;
    const uint32_t hidden = model->hidden_size, own = reads ? model->reader_size : hidden;
    switch (role) {
        case LW_MTP_EMBEDDING_NORM:
            return LW_VECTOR(mtp_embedding_norm, "prediction head's norm of embeddings", hidden, normed && !blocks);
        case LW_MTP_HIDDEN_NORM:
            return LW_VECTOR(mtp_hidden_norm, "prediction head's norm of hidden rows", hidden, normed);
        case LW_MTP_PROJECTION:
            return LW_MATRIX(mtp_projection, "prediction head's projection", own, 2 * hidden,
                             here && l->head.n_taps == 0);
        case LW_MTP_NORM:
            return LW_VECTOR(mtp_norm, "prediction head's output norm", own, here);
        case LW_HEAD_RETURN:
            return LW_MATRIX(head_return, "prediction head's way back", hidden, own, reads);
        case LW_HEAD_OUTPUT:
            if (reads) return LW_MATRIX(head_output, "prediction head's output", model->vocab_size, own, reads);
            return lw_taps_tensor(model, l, role);
        default:
            return lw_taps_tensor(model, l, role);
    }
}

static bool has_mtp(const lw_model_config* model, const lw_layer_config* layer) {
    (void)model;
    return layer->mtp == 1;
}

static size_t row_stride(const lw_model_config* c) { return lw_round_up(c->hidden_size, LW_LANES); }

static size_t kept_of_mtp(const lw_model_config* model, const lw_layer_config* layer, uint32_t max_guesses) {
    if (layer->head.block > 0) return 0;
    return (1 + (size_t)max_guesses) * row_stride(model);
}

static const lw_mtp_own* of(const lw_worker* w) { return lw_mtp_of(w); }

static void widen_mtp(lw_session* s, const lw_layer* layer, uint32_t index) {
    (void)index;
    if (layer->config.head.block == 0) lw_widen(&s->widths.input, 2 * s->widths.hidden);
    lw_widen_taps(s, layer);
}

static void take_mtp(lw_session* s, lw_parts* parts) {
    lw_mtp_own* own = s->of_kind[LW_KIND_MTP];
    const size_t row = s->widths.hidden * sizeof(float), rows = s->config.max_batch_tokens;
    own->hidden = lw_take(parts, rows * row);
    own->inputs = lw_guesses_blocks(s->model) ? NULL : lw_take(parts, rows * 2 * row);
    own->predicted = lw_take(parts, s->config.n_states * row);
    lw_take_taps(s, parts, lw_model_mtp(s->model));
}

static uint32_t head_index(const lw_worker* w) { return lw_own_layers(w->model); }

static const lw_layer* head_of(const lw_worker* w) { return &w->model->layers[head_index(w)]; }

static bool reads_keys(const lw_worker* w) { return w->c->reader_layers > 0; }

static bool has_taps(const lw_layer* head) { return head->config.head.n_taps > 0; }

// Row `guess` of a sequence's place: row 0 belongs to the last token, the rows after it to the guesses.
static float* kept_row(const lw_worker* w, uint32_t sequence, size_t guess) {
    const uint32_t place = lw_table_row(w->step->batch, sequence);
    return lw_state_at(&w->s->states, place, head_index(w)) + guess * row_stride(w->c);
}

// The hidden row of the token before a row. NULL for the first token: no query sees its keys and values.
static const float* row_before(const lw_worker* w, size_t row) {
    const lw_batch* batch = w->step->batch;
    const uint32_t sequence = w->b->sequence[row];
    if (batch->runs == LW_RUN_HEAD_AGAIN)
        return of(w)->predicted + lw_table_row(batch, sequence) * (size_t)w->c->hidden_size;
    if (row > batch->query_start[sequence]) return of(w)->hidden + (row - 1) * w->c->hidden_size;
    if (w->b->position[row] == 0) return NULL;
    return kept_row(w, sequence, batch->accepted != NULL ? batch->accepted[sequence] : 0);
}

static void make_input(lw_worker* w, const lw_layer* head, size_t row, float* out) {
    const size_t hidden = w->c->hidden_size;
    const float* before = row_before(w, row);
    float* embedding = w->scratch;
    lw_embed_row(w, row, embedding);
    if (reads_keys(w)) {  // which has no norms, and is not run at the first token
        memcpy(out, embedding, hidden * sizeof(float));
        memcpy(out + hidden, before, hidden * sizeof(float));
        return;
    }
    lw_normalize_row(w, out, embedding, head->mtp_embedding_norm, NULL, hidden);
    if (before != NULL)
        lw_normalize_row(w, out + hidden, before, head->mtp_hidden_norm, NULL, hidden);
    else
        memset(out + hidden, 0, hidden * sizeof(float));
}

// x = projection(norm(embedding), norm(hidden row of the token before)).
static void project_inputs(lw_worker* w, const lw_layer* head) {
    const size_t cols = 2 * (size_t)w->c->hidden_size;
    const bool quantized = lw_reads_codes(w, &head->mtp_projection);
    const lw_activations x = lw_activations_in(w, cols, &w->b->codes, of(w)->inputs);
    lw_taker items = lw_this_phase(w, w->rows);
    for (size_t row; lw_take_item(&items, &row);) {
        float* values = of(w)->inputs + row * cols;
        make_input(w, head, row, values);
        if (quantized) lw_quantize_segments(w, &x, row, 0, x.segments, values);
        lw_charge_row(w, LW_OP_EMBED, 3 * cols, quantized ? cols : 0);
    }
    lw_end_phase(w, LW_OP_EMBED);
    const lw_product product = lw_product_at(w, &head->mtp_projection, w->b->x, false);
    lw_multiply(w, LW_OP_EMBED, &product, 1, &x);
}

void lw_enter_head(lw_worker* w) {
    const lw_layer* head = head_of(w);
    if (head->config.head.block > 0) {
        lw_enter_block(w, head);
    } else if (has_taps(head)) {
        w->c = &w->model->head_config;
        lw_enter_taps(w, head, row_before);
    } else {
        project_inputs(w, head);
    }
}

// Brings a reader's rows back to the model's width.
static void return_rows(lw_worker* w, const lw_layer* head) {
    const size_t hidden = w->model->config.hidden_size;
    const lw_norm by = {.weight = head->mtp_norm, .scale = 1};
    const lw_activations x = lw_normalize(w, LW_OP_OUTPUT_NORM, by, lw_reads_codes(w, &head->head_return));
    const lw_product product = lw_product_at(w, &head->head_return, of(w)->hidden, false);
    lw_multiply(w, LW_OP_OUTPUT_NORM, &product, 1, &x);
    lw_taker items = lw_this_phase(w, w->rows);
    for (size_t row; lw_take_item(&items, &row);)
        memcpy(of(w)->predicted + lw_table_row(w->step->batch, (uint32_t)row) * hidden, of(w)->hidden + row * hidden,
               hidden * sizeof(float));
    lw_end_phase(w, LW_OP_OUTPUT_NORM);
}

void lw_leave_head(lw_worker* w) {
    const lw_layer* head = head_of(w);
    if (reads_keys(w)) {
        return_rows(w, head);
        return;
    }
    if (head->config.head.block > 0) {
        lw_leave_block(w);
        return;
    }
    const size_t hidden = w->c->hidden_size;
    lw_taker items = lw_this_phase(w, w->rows);  // one row for each sequence
    for (size_t row; lw_take_item(&items, &row);) {
        float* out = of(w)->predicted + lw_table_row(w->step->batch, (uint32_t)row) * hidden;
        if (has_taps(head))
            memcpy(out, w->b->x + row * hidden, hidden * sizeof(float));
        else
            lw_normalize_row(w, out, w->b->x + row * hidden, head->mtp_norm, NULL, hidden);
        lw_charge_row(w, LW_OP_OUTPUT_NORM, 2 * hidden, 0);
    }
    lw_end_phase(w, LW_OP_OUTPUT_NORM);
}

static void normalize_hidden(lw_worker* w) {
    const size_t hidden = w->c->hidden_size;
    lw_taker items = lw_this_phase(w, w->rows);
    for (size_t row; lw_take_item(&items, &row);) {
        lw_normalize_row(w, of(w)->hidden + row * hidden, w->b->x + row * hidden, w->model->output_norm, NULL, hidden);
        lw_charge_row(w, LW_OP_OUTPUT_NORM, 2 * hidden, 0);
    }
    lw_end_phase(w, LW_OP_OUTPUT_NORM);
}

void lw_keep_hidden(lw_worker* w) {
    const lw_batch* batch = w->step->batch;
    const size_t hidden = w->c->hidden_size;
    if (!has_taps(head_of(w))) normalize_hidden(w);
    if (w->model->last_mixer != UINT32_MAX) return;  // a layer has dropped the other rows before
    if (w->thread == 0 && batch->n_logits < w->rows) lw_keep_rows(w->b->x, hidden, batch);
    w->rows = batch->n_logits;
    lw_end_phase(w, LW_OP_OUTPUT_NORM);
}

static void store_keys(lw_worker* w, const lw_layer* head, uint32_t index) {
    const bool latent = head->config.attention.latent_rank > 0;
    const lw_matrix* matrices[] = {latent ? &head->latent_down : &head->k, &head->v};
    const size_t n = latent ? 1 : 2;
    const lw_norm by = lw_norm_before_mixer(head, head->attn_input_order);
    const lw_activations x =
        has_taps(head) ? lw_head_inputs(w) : lw_normalize(w, LW_OP_ATTN_NORM, by, lw_any_reads_codes(w, matrices, n));
    const lw_attention_own* attention = lw_attention_of(w->s);
    const lw_product products[] = {lw_product_at(w, matrices[0], attention->k, false),
                                   lw_product_at(w, matrices[1], attention->v, false)};
    lw_multiply(w, LW_OP_QKV, products, n, &x);
    lw_store_keys(w, head, index);
}

// For a sequence without tokens in the batch: its last accepted guess becomes its last token.
static void take_accepted(const lw_worker* w, uint32_t sequence) {
    const uint32_t accepted = w->step->batch->accepted != NULL ? w->step->batch->accepted[sequence] : 0;
    if (accepted == 0) return;
    memcpy(kept_row(w, sequence, 0), kept_row(w, sequence, accepted), w->c->hidden_size * sizeof(float));
}

// The hidden row of a row of the batch. NULL where a reader's step has dropped it: no guess follows such a row, since no
// token is drawn behind it.
static const float* hidden_row(const lw_worker* w, size_t row) {
    const lw_batch* batch = w->step->batch;
    if (!reads_keys(w)) return of(w)->hidden + row * w->c->hidden_size;
    size_t first = 0, end = batch->n_logits;
    while (first < end) {
        const size_t middle = first + (end - first) / 2;
        batch->logit_rows[middle] < row ? (first = middle + 1) : (end = middle);
    }
    const bool found = first < batch->n_logits && batch->logit_rows[first] == row;
    return found ? of(w)->hidden + first * w->c->hidden_size : NULL;
}

// Keeps the rows from which the next step or the head starts. They replace the rows kept by the step before, which have
// been read.
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
        for (size_t i = 0; i <= guesses; ++i) {
            const float* row = hidden_row(w, first + i);
            if (row != NULL) memcpy(kept_row(w, (uint32_t)sequence, i), row, hidden * sizeof(float));
        }
        lw_charge_row(w, LW_OP_COMBINE, 2 * (1 + guesses) * hidden, 0);
    }
    lw_end_phase(w, LW_OP_COMBINE);
}

void lw_feed_head(lw_worker* w) {
    const size_t with_logits = w->rows;
    w->rows = w->step->n_rows;
    w->feeds_head = true;
    if (lw_guesses_blocks(w->model)) {
        w->c = &w->model->head_config;
        if (w->step->batch->skips_head) {
            lw_skip_blocks(w, head_index(w));
        } else {
            lw_fuse_taps(w, head_of(w));
            lw_feed_blocks(w, head_index(w));
        }
    } else if (!reads_keys(w)) {
        w->c = &w->model->head_config;
        if (has_taps(head_of(w))) lw_fuse_taps(w, head_of(w));
        lw_enter_head(w);
        store_keys(w, head_of(w), head_index(w));
    }
    if (!lw_guesses_blocks(w->model)) keep_last_rows(w);
    w->c = &w->model->config;
    w->rows = with_logits;
}

const lw_kind lw_kind_mtp = {.check = check_mtp,
                             .tensor = mtp_tensor,
                             .has = has_mtp,
                             .kept_floats = kept_of_mtp,
                             .own_bytes = sizeof(lw_mtp_own),
                             .widen = widen_mtp,
                             .take = take_mtp};
