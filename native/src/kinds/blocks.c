#include "kinds/blocks.h"

#include <string.h>

#include "kinds/attend.h"
#include "kinds/taps.h"

// The head's first layer; n_layers if there is none.
static uint32_t first_of(const lw_model_config* c) {
    uint32_t first = 0;
    while (first < c->n_layers && c->layers[first].head.block == 0) ++first;
    return first;
}

bool lw_has_block_head(const lw_model_config* c) { return first_of(c) < c->n_layers; }

lw_status lw_check_block_head(const lw_model_config* c, uint32_t layer) {
    const lw_layer_config* l = &c->layers[layer];
    const lw_place at = lw_place_of_layer(layer, "");
    const uint32_t first = first_of(c), mtp = layer < first ? 0 : layer == first ? 1 : 2;
    LW_RETURN_IF_FAILED(lw_check_range(&at, "mtp", l->mtp, mtp, mtp));
    if (mtp == 0) return lw_check_taps(c, layer);
    LW_RETURN_IF_FAILED(lw_check_range(&at, "block", l->head.block, 0, first == 0 || c->pooled ? 0 : UINT32_MAX));
    LW_RETURN_IF_FAILED(lw_check_taps(c, layer));
    const bool plain = !l->attn_norm_replaces && !l->ffn_norm_replaces && l->wiring == LW_IN_TURN;
    if (!plain || l->state.kind != LW_NO_STATE || l->ffn.kind == LW_FFN_NONE || c->norm != LW_NORM_RMS)
        return lw_fail(LW_ERR_ARGUMENT,
                       "model config: %smtp is %u, must be 0 but with an FFN, parts in turn, RMS norms, and without a"
                       " state",
                       at.text, l->mtp);
    const lw_attention_config* a = &l->attention;
    const uint32_t block = c->layers[first].head.block;
    const bool sees_block = a->window == 0 || a->window >= block;
    if (a->n_heads == 0 || !sees_block || a->chunk > 0 || a->shares_kv || a->values_are_keys || a->latent_rank > 0 ||
        a->index_topk > 0 || a->shared_rows)
        return lw_fail(LW_ERR_ARGUMENT,
                       "model config: %smtp is %u, must be 0 but with attention to keys and values of its own, all of"
                       " them or in a window of at least the block's %u",
                       at.text, l->mtp, block);
    return LW_OK;
}

void lw_feed_blocks(lw_worker* w, uint32_t first) {
    const lw_layer* head = &w->model->layers[first];
    bool quantized = false;
    for (uint32_t i = first; i < w->c->n_layers; ++i)
        quantized |= lw_reads_codes(w, &w->model->layers[i].k) || lw_reads_codes(w, &w->model->layers[i].v);
    const lw_norm by = {.weight = head->mtp_hidden_norm, .scale = 1, .of = lw_mtp_of(w)->hidden};
    const lw_activations x = lw_normalize(w, LW_OP_ATTN_NORM, by, quantized);
    const lw_attention_own* attention = lw_attention_of(w->s);
    for (uint32_t i = first; i < w->c->n_layers; ++i) {
        const lw_layer* layer = &w->model->layers[i];
        const lw_product products[] = {lw_product_at(w, &layer->k, attention->k, false),
                                       lw_product_at(w, &layer->v, attention->v, false)};
        lw_multiply(w, LW_OP_QKV, products, 2, &x);
        lw_store_keys(w, layer, i);
    }
}

void lw_skip_blocks(lw_worker* w, uint32_t first) {
    const lw_attention_own* attention = lw_attention_of(w->s);
    for (uint32_t i = first; i < w->c->n_layers; ++i) {
        const lw_layer* layer = &w->model->layers[i];
        const size_t keys = layer->k.rows, values = layer->v.rows;
        lw_taker items = lw_this_phase(w, w->rows);
        for (size_t row; lw_take_item(&items, &row);) {
            memset(attention->k + row * keys, 0, keys * sizeof(float));
            memset(attention->v + row * values, 0, values * sizeof(float));
            lw_charge_row(w, LW_OP_QKV, keys + values, 0);
        }
        lw_end_phase(w, LW_OP_QKV);
        lw_store_keys(w, layer, i);
    }
}

void lw_enter_block(lw_worker* w, const lw_layer* head) {
    w->c = &w->model->head_config;
    const size_t hidden = w->c->hidden_size;
    lw_taker items = lw_this_phase(w, w->rows);
    for (size_t row; lw_take_item(&items, &row);) {
        lw_embed_for_head(w, head, row, w->b->x + row * hidden);
        lw_charge_row(w, LW_OP_EMBED, hidden, 0);
    }
    lw_end_phase(w, LW_OP_EMBED);
}

void lw_leave_block(lw_worker* w) {
    const lw_batch* batch = w->step->batch;
    if (w->thread == 0 && batch->n_logits < w->rows) lw_keep_rows(w->b->x, w->c->hidden_size, batch);
    w->rows = batch->n_logits;
    lw_end_phase(w, LW_OP_OUTPUT_NORM);
}
