// lw_encode: whole texts as one ragged batch. No keys and values are kept: each layer writes its own over those of the
// layer before. They lie in blocks because attention reads blocks. Each text has consecutive blocks.
#include "status.h"
#include "step/ahead.h"
#include "step/run.h"

uint32_t lw_model_dims(const lw_model* model) {
    if (model == NULL || !model->config.pooled) return 0;
    return (1 + model->config.patches.n_taps) * lw_dense_inputs(model, model->config.n_dense);
}

static lw_status check_text(const lw_session* s, const lw_texts* texts, uint32_t t) {
    const uint32_t begin = texts->start[t], end = texts->start[t + 1], most = s->model->config.context_length;
    if (end <= begin) return lw_fail(LW_ERR_ARGUMENT, "text %u: it must have a token, and start must ascend", t);
    if (end - begin > most)
        return lw_fail(LW_ERR_ARGUMENT, "text %u: %u tokens, must be at most %u", t, end - begin, most);
    return LW_OK;
}

static lw_status check_tokens(const lw_session* s, const lw_texts* texts, uint32_t t) {
    const lw_model_config* c = &s->model->config;
    const uint32_t types = c->n_token_types > 0 ? c->n_token_types : 1;
    for (uint32_t i = texts->start[t]; i < texts->start[t + 1]; ++i) {
        if (texts->token_ids[i] >= c->vocab_size)
            return lw_fail(LW_ERR_ARGUMENT, "text %u: token id %u, the vocabulary has %u", t, texts->token_ids[i],
                           c->vocab_size);
        if (texts->token_types != NULL && texts->token_types[i] >= types)
            return lw_fail(LW_ERR_ARGUMENT, "text %u: token type %u, the model has %u", t, texts->token_types[i],
                           types);
    }
    return LW_OK;
}

// Whether, in all layers, the last token of a text of `n` tokens sees one of the first `seen` tokens.
static bool sees_some(const lw_model* model, uint32_t n, uint32_t seen) {
    for (uint32_t i = 0; i < model->config.n_layers; ++i) {
        const lw_attention_config* c = &model->layers[i].config.attention;
        if (c->n_heads > 0 && (!c->both_ways || lw_seen_first(n - 1, c->window) >= seen)) return false;
    }
    return true;
}

static lw_status check_seen(const lw_session* s, const lw_texts* texts, uint32_t t) {
    const uint32_t n = texts->start[t + 1] - texts->start[t], seen = texts->seen[t];
    if (seen == n) return LW_OK;
    if (seen < 1 || seen > n || texts->pooling != LW_POOL_NONE || !sees_some(s->model, n, seen))
        return lw_fail(LW_ERR_ARGUMENT,
                       "text %u: %u of %u tokens are seen, must be all; fewer only with pooling %d, attention both ways"
                       " and one in each token's window",
                       t, seen, n, LW_POOL_NONE);
    return LW_OK;
}

static lw_status check_texts(const lw_session* s, const lw_texts* texts, const float* out) {
    if (s == NULL || texts == NULL || out == NULL || texts->start == NULL || texts->token_ids == NULL)
        return lw_fail(LW_ERR_ARGUMENT,
                       "lw_encode: session, texts, their start and token_ids, and out must not be NULL");
    if (!s->model->config.pooled)
        return lw_fail(LW_ERR_ARGUMENT, "lw_encode: the session's model makes logits: lw_step runs it");
    if (lw_is_tower(&s->model->config))
        return lw_fail(LW_ERR_ARGUMENT, "lw_encode: the session's model reads pictures: lw_see_begin takes them");
    if ((unsigned)texts->pooling > LW_POOL_LATE || texts->normalize > 1)
        return lw_fail(LW_ERR_ARGUMENT, "lw_encode: pooling is %d and normalize %u, must be 0 to %d and 0 or 1",
                       (int)texts->pooling, texts->normalize, LW_POOL_LATE);
    if (texts->n_texts < 1 || texts->n_texts > s->config.max_batch_logits)
        return lw_fail(LW_ERR_ARGUMENT, "lw_encode: %u texts, must be 1 to %u", texts->n_texts,
                       s->config.max_batch_logits);
    if (texts->start[0] != 0) return lw_fail(LW_ERR_ARGUMENT, "lw_encode: start[0] is %u, must be 0", texts->start[0]);
    for (uint32_t t = 0; t < texts->n_texts; ++t) LW_RETURN_IF_FAILED(check_text(s, texts, t));
    if (texts->start[texts->n_texts] > s->config.max_batch_tokens)
        return lw_fail(LW_ERR_ARGUMENT, "lw_encode: %u tokens, must be at most %u", texts->start[texts->n_texts],
                       s->config.max_batch_tokens);
    for (uint32_t t = 0; t < texts->n_texts; ++t) LW_RETURN_IF_FAILED(check_tokens(s, texts, t));
    for (uint32_t t = 0; texts->seen != NULL && t < texts->n_texts; ++t) LW_RETURN_IF_FAILED(check_seen(s, texts, t));
    return LW_OK;
}

// Lists the rows that are needed after the last attention; returns their number.
static uint32_t keep_rows(lw_session* s, const lw_texts* texts) {
    const bool first = texts->pooling == LW_POOL_FIRST;
    if (!first && texts->pooling != LW_POOL_LAST) return texts->start[texts->n_texts];  // all rows
    for (uint32_t t = 0; t < texts->n_texts; ++t) s->kept_rows[t] = first ? texts->start[t] : texts->start[t + 1] - 1;
    return texts->n_texts;
}

static void lay_out(lw_session* s, const lw_texts* texts) {
    uint32_t block = 0;
    for (uint32_t t = 0; t < texts->n_texts; ++t) {
        s->first_blocks[t] = block;
        block += (texts->start[t + 1] - texts->start[t] + LW_BLOCK_TOKENS - 1) / LW_BLOCK_TOKENS;
    }
    for (uint32_t i = 0; i < texts->start[texts->n_texts]; ++i)
        s->b.token_type[i] = texts->token_types != NULL ? texts->token_types[i] : 0;
}

lw_status lw_encode(lw_session* session, const lw_texts* texts, float* out) {
    LW_RETURN_IF_FAILED(check_texts(session, texts, out));
    lay_out(session, texts);
    const lw_batch batch = {.n_seqs = texts->n_texts,
                            .n_logits = keep_rows(session, texts),
                            .block_table_stride = 1,  // a text's blocks are consecutive: its table begins at its first
                                                      // block
                            .token_ids = texts->token_ids,
                            .query_start = texts->start,
                            .context_lens = session->no_context,
                            .block_tables = session->all_blocks,
                            .logit_rows = session->kept_rows,
                            .table_rows = session->first_blocks};
    session->texts = texts;
    const lw_status status = lw_run_batch(session, &batch, out, NULL);
    session->texts = NULL;
    return status;
}
