#include "kinds/taps.h"

#include <string.h>

static const float unknown = -1e30f;  // logit of tokens that a head does not know

lw_status lw_check_taps(const lw_model_config* c, uint32_t layer) {
    const lw_layer_config* l = &c->layers[layer];
    const lw_head_config* head = &l->head;
    const lw_place at = lw_place_of_layer(layer, " head");
    if (head->n_taps == 0) return lw_check_absent(&at, "head with taps", head, sizeof *head);
    const bool blocks = head->block > 0;
    LW_RETURN_IF_FAILED(lw_check_range(&at, "n_taps", head->n_taps, 0, l->mtp == 1 ? LW_MAX_HEAD_TAPS : 0));
    LW_RETURN_IF_FAILED(lw_check_range(&at, "n_taps", head->n_taps, blocks ? 1 : LW_HEAD_TAPS,
                                       blocks ? LW_MAX_HEAD_TAPS : LW_HEAD_TAPS));
    if (blocks) LW_RETURN_IF_FAILED(lw_check_range(&at, "block", head->block, 2, LW_MAX_HEAD_BLOCK));
    for (uint32_t i = 0; i < head->n_taps; ++i)
        LW_RETURN_IF_FAILED(lw_check_range(&at, "taps", head->taps[i], 1, layer));
    LW_RETURN_IF_FAILED(lw_check_range(&at, "fusion_norm", head->fusion_norm, 0, !blocks));
    LW_RETURN_IF_FAILED(lw_check_range(&at, "norm_adds", head->norm_adds, 0, !blocks));
    LW_RETURN_IF_FAILED(lw_check_number(&at, "embedding_scale", (double)head->embedding_scale, 0, blocks ? 1e6 : 0));
    LW_RETURN_IF_FAILED(lw_check_flag(&at, "own_embedding", head->own_embedding));
    LW_RETURN_IF_FAILED(lw_check_range(&at, "chooses", head->chooses, 0, head->outputs > 0));
    LW_RETURN_IF_FAILED(lw_check_range(&at, "outputs", head->outputs,
                                       head->outputs == 0 || head->chooses ? 0 : c->vocab_size, c->vocab_size));
    LW_RETURN_IF_FAILED(lw_check_number(&at, "norm_eps", (double)head->norm_eps, 1e-12, 1));
    return lw_check_range(&at, "latent_rank", l->attention.latent_rank, 0, 0);
}

lw_tensor_spec lw_taps_tensor(const lw_model_config* model, const lw_layer_config* l, lw_role role) {
    const uint32_t hidden = model->hidden_size;
    const lw_head_config* head = &l->head;
    switch (role) {
        case LW_HEAD_FUSION:
            return LW_MATRIX(head_fusion, "prediction head's matrix of taps", hidden, head->n_taps * hidden,
                             head->n_taps > 0);
        case LW_HEAD_FUSION_NORM:
            return LW_VECTOR(head_fusion_norm, "prediction head's norm of taps", head->n_taps * hidden,
                             head->fusion_norm);
        case LW_HEAD_EMBEDDING:
            return LW_MATRIX(head_embedding, "prediction head's embedding", model->vocab_size, hidden,
                             head->own_embedding);
        case LW_HEAD_OUTPUT:
            return LW_MATRIX(head_output, "prediction head's output", head->outputs, hidden, head->outputs > 0);
        case LW_HEAD_TOKENS:
            return LW_VECTOR(head_tokens, "prediction head's tokens", head->outputs, head->chooses);
        default:
            return (lw_tensor_spec){0};
    }
}

void lw_widen_taps(lw_session* s, const lw_layer* head) {
    lw_widen(&s->widths.input, head->config.head.n_taps * s->widths.hidden);
}

void lw_take_taps(lw_session* s, lw_parts* parts, const lw_layer* head) {
    lw_mtp_own* own = s->of_kind[LW_KIND_MTP];
    const lw_head_config* c = &head->config.head;
    own->taps = lw_take(parts, s->config.max_batch_tokens * c->n_taps * s->widths.hidden * sizeof(float));
    own->logits = lw_take(parts, c->chooses ? s->config.max_batch_logits * (size_t)c->outputs * sizeof(float) : 0);
}

void lw_keep_tap(lw_worker* w, uint32_t index) {
    const lw_layer* head = lw_model_mtp(w->model);
    const size_t hidden = w->c->hidden_size, n = head != NULL ? head->config.head.n_taps : 0;
    for (size_t tap = 0; tap < n; ++tap) {
        if (head->config.head.taps[tap] != index || w->step->batch->skips_head) continue;
        lw_taker items = lw_this_phase(w, w->rows);
        for (size_t row; lw_take_item(&items, &row);) {
            memcpy(lw_mtp_of(w)->taps + (row * n + tap) * hidden, w->b->x + row * hidden, hidden * sizeof(float));
            lw_charge_row(w, LW_OP_COMBINE, 2 * hidden, 0);
        }
        lw_end_phase(w, LW_OP_COMBINE);
    }
}

void lw_fuse_taps(lw_worker* w, const lw_layer* head) {
    const size_t cols = head->head_fusion.cols;
    float* taps = lw_mtp_of(w)->taps;
    const bool quantized = lw_reads_codes(w, &head->head_fusion);
    const lw_activations x = lw_activations_in(w, cols, &w->b->codes, taps);
    lw_taker items = lw_this_phase(w, w->rows);
    for (size_t row; lw_take_item(&items, &row);) {
        float* values = taps + row * cols;
        if (head->head_fusion_norm != NULL) lw_normalize_row(w, values, values, head->head_fusion_norm, NULL, cols);
        if (quantized) lw_quantize_segments(w, &x, row, 0, x.segments, values);
        lw_charge_row(w, LW_OP_EMBED, cols, quantized ? cols : 0);
    }
    lw_end_phase(w, LW_OP_EMBED);
    const lw_product product = lw_product_at(w, &head->head_fusion, lw_mtp_of(w)->hidden, false);
    lw_multiply(w, LW_OP_EMBED, &product, 1, &x);
}

lw_activations lw_head_inputs(const lw_worker* w) {
    return lw_activations_in(w, 2 * (size_t)w->c->hidden_size, &w->b->codes, lw_mtp_of(w)->inputs);
}

void lw_embed_for_head(const lw_worker* w, const lw_layer* head, size_t row, float* out) {
    const float* const* given = w->step->batch->rows;
    if (head->head_embedding.rows > 0 && (given == NULL || given[row] == NULL))
        lw_unpack_row(&head->head_embedding, w->b->token[row], out);
    else
        lw_embed_row(w, row, out);
}

void lw_enter_taps(lw_worker* w, const lw_layer* head, const float* (*before_row)(const lw_worker* w, size_t row)) {
    const size_t hidden = w->c->hidden_size;
    const lw_matrix* readers[] = {&head->q, &head->k, &head->v};
    const bool quantized = lw_any_reads_codes(w, readers, 3);
    const lw_activations x = lw_head_inputs(w);
    lw_taker items = lw_this_phase(w, w->rows);
    for (size_t row; lw_take_item(&items, &row);) {
        float *values = lw_mtp_of(w)->inputs + row * 2 * hidden, *normed = values + hidden;
        const float* before = before_row(w, row);
        lw_embed_for_head(w, head, row, w->scratch);
        lw_normalize_row(w, values, w->scratch, head->mtp_embedding_norm, NULL, hidden);
        if (before != NULL)
            lw_normalize_row(w, normed, before, head->mtp_hidden_norm, NULL, hidden);
        else
            memset(normed, 0, hidden * sizeof(float));
        const float* first = before != NULL && !head->config.head.norm_adds ? before : normed;
        memcpy(w->b->x + row * hidden, first, hidden * sizeof(float));
        if (quantized) lw_quantize_segments(w, &x, row, 0, x.segments, values);
        lw_charge_row(w, LW_OP_EMBED, 4 * hidden, quantized ? 2 * hidden : 0);
    }
    lw_end_phase(w, LW_OP_EMBED);
}

// Gives each output to its token.
static void spread(lw_worker* w, const lw_layer* head) {
    const size_t vocab = w->c->vocab_size, outputs = head->config.head.outputs;
    lw_taker items = lw_this_phase(w, w->rows);
    for (size_t row; lw_take_item(&items, &row);) {
        const float* own = lw_mtp_of(w)->logits + row * outputs;
        float* all = w->step->logits + row * vocab;
        for (size_t i = 0; i < vocab; ++i) all[i] = unknown;
        for (size_t i = 0; i < outputs; ++i) all[(uint32_t)head->head_tokens[i]] = own[i];
        lw_charge_row(w, LW_OP_HEAD, vocab + 3 * outputs, 0);
    }
    lw_end_phase(w, LW_OP_HEAD);
}

void lw_head_logits(lw_worker* w, const lw_layer* head, lw_norm by) {
    const bool chooses = head->config.head.chooses;
    const lw_activations x = lw_normalize(w, LW_OP_OUTPUT_NORM, by, lw_reads_codes(w, &head->head_output));
    float* out = chooses ? lw_mtp_of(w)->logits : w->step->logits;
    const lw_product product = lw_product_at(w, &head->head_output, out, false);
    lw_multiply(w, LW_OP_HEAD, &product, 1, &x);
    if (chooses) spread(w, head);
}
