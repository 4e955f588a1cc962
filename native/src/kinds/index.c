// Sparse attention (DeepSeek V3.2, "lightning indexer"): each query sees the index_topk tokens of the largest index
// scores. Layers without an index of their own use what the layer before has chosen, so the session has one list of each
// row. A query that sees no more tokens than index_topk needs no scores.
//
// With an index_block (MiniMax M3) whole blocks are chosen, for each index head others. These are whole blocks of the
// cache: a table of just these, in order, is what attention reads in place of the sequence's own.
#include "kinds/index.h"

#include "kinds/choice.h"
#include "kinds/kind.h"

static lw_status check_shared(const lw_place* at, const lw_model_config* model, uint32_t layer) {
    const uint32_t topk = model->layers[layer].attention.index_topk;
    while (layer > 0 && model->layers[layer - 1].attention.index_heads == 0) --layer;
    const uint32_t before = layer > 0 ? model->layers[layer - 1].attention.index_topk : 0;
    if (before == topk) return LW_OK;
    return lw_fail(LW_ERR_ARGUMENT,
                   "model config: %sindex_heads is 0, for which a layer before must have index_heads and an index_topk"
                   " of %u",
                   at->text, topk);
}

// Blocks of plain heads, each index head for as many KV heads.
static lw_status check_blocks(const lw_place* at, const lw_model_config* model, const lw_layer_config* l) {
    enum { MOST = 4096 };
    const lw_attention_config* c = &l->attention;
    const bool may = c->latent_rank == 0 && c->window == 0 && c->chunk == 0 && c->both_ways == 0 && !c->shares_kv &&
                     !c->alibi && c->distances == 0 && c->rope != LW_NO_ROPE && !model->pooled && !l->mtp;
    LW_RETURN_IF_FAILED(lw_check_range(at, "index_block", c->index_block, 0, may ? MOST : 0));
    LW_RETURN_IF_FAILED(lw_check_multiple(at, "index_block", c->index_block, LW_BLOCK_TOKENS));
    LW_RETURN_IF_FAILED(lw_check_range(at, "index_topk", c->index_topk, c->index_block, 1 << 20));
    LW_RETURN_IF_FAILED(lw_check_multiple(at, "index_topk", c->index_topk, c->index_block));
    LW_RETURN_IF_FAILED(lw_check_range(at, "index_local", c->index_local, 1, c->index_topk / c->index_block));
    LW_RETURN_IF_FAILED(lw_check_range(at, "index_heads", c->index_heads, 1, c->n_kv_heads));
    if (c->n_kv_heads % c->index_heads != 0)
        return lw_fail(LW_ERR_ARGUMENT, "model config: %sindex_heads is %u, must divide the %u KV heads", at->text,
                       c->index_heads, c->n_kv_heads);
    if (c->rope < 0 || (uint32_t)c->rope >= model->n_ropes) return LW_OK;  // attention's check says so
    const uint32_t turned = model->ropes[c->rope].rotated;
    LW_RETURN_IF_FAILED(lw_check_range(at, "index_dim", c->index_dim, turned, LW_MAX_HEAD_DIM));
    return lw_check_multiple(at, "index_dim", c->index_dim, 2);
}

static lw_status check_index(const lw_model_config* model, uint32_t layer) {
    const lw_layer_config* l = &model->layers[layer];
    const lw_attention_config* c = &l->attention;
    const lw_place at = lw_place_of_layer(layer, "");
    if (c->shared_rows) return LW_OK;  // checked in shared.c
    if (c->index_block > 0) return check_blocks(&at, model, l);
    LW_RETURN_IF_FAILED(lw_check_range(&at, "index_local", c->index_local, 0, 0));
    const bool may = c->latent_rank > 0 && c->query_rank > 0 && c->window == 0 && c->rope != LW_NO_ROPE && !l->mtp;
    LW_RETURN_IF_FAILED(lw_check_range(&at, "index_topk", c->index_topk, 0, may ? 1 << 20 : 0));
    LW_RETURN_IF_FAILED(lw_check_range(&at, "index_heads", c->index_heads, 0, c->index_topk > 0 ? 256 : 0));
    const bool own = c->index_heads > 0;
    LW_RETURN_IF_FAILED(
        lw_check_range(&at, "index_dim", c->index_dim, own ? c->rope_dim : 0, own ? LW_MAX_HEAD_DIM : 0));
    LW_RETURN_IF_FAILED(lw_check_multiple(&at, "index_dim", c->index_dim, 2));
    return c->index_topk > 0 && !own ? check_shared(&at, model, layer) : LW_OK;
}

static lw_tensor_spec index_tensor(const lw_model_config* model, const lw_layer_config* l, lw_role role) {
    const lw_attention_config* c = &l->attention;
    const bool here = c->index_heads > 0, of_tokens = here && !c->shared_rows, blocks = c->index_block > 0;
    switch (role) {
        case LW_INDEX_QUERY:
            return LW_MATRIX(index_query, "index queries", c->index_heads * c->index_dim,
                             blocks ? model->hidden_size : c->query_rank, here);
        case LW_INDEX_QUERY_NORM:
            return LW_VECTOR(index_query_norm, "norm of index queries", c->index_dim, blocks);
        case LW_INDEX_KEY:
            return LW_MATRIX(index_key, "index key", c->index_dim, model->hidden_size, of_tokens);
        case LW_INDEX_KEY_NORM:
            return LW_VECTOR(index_key_norm, "norm of the index key", c->index_dim, of_tokens);
        case LW_INDEX_KEY_NORM_BIAS:
            return LW_VECTOR(index_key_norm_bias, "norm of the index key, bias", c->index_dim, of_tokens && !blocks);
        case LW_INDEX_WEIGHTS:
            return LW_MATRIX(index_weights, "weights of index heads", c->index_heads, model->hidden_size,
                             here && !blocks);
        default:
            return (lw_tensor_spec){0};
    }
}

static bool has_index(const lw_model_config* model, const lw_layer_config* layer) {
    (void)model;
    return layer->attention.index_heads > 0 && !layer->attention.shared_rows;
}

typedef struct index_own {
    size_t queries, heads, dim;  // maximum over the layers
    size_t longest;              // tokens of a sequence, in whole blocks
    size_t topk, scored;         // 0 where no sequence is longer than index_topk; scored: scores of a row
    float *q, *k, *weights;      // [rows][queries], [rows][dim], [rows][heads]
    uint32_t* chosen;            // [rows][topk] tokens, or a table of blocks of the cache for each index head
    float* scores;               // [threads][scored]; of blocks [head][scored / heads]
} index_own;

static index_own* of(const lw_session* s) { return s->of_kind[LW_KIND_INDEX]; }

const float* lw_index_keys(const lw_session* s) { return of(s)->k; }
float* lw_index_queries(const lw_session* s) { return of(s)->q; }

size_t lw_index_room(const lw_session* s) { return of(s) != NULL ? of(s)->longest : SIZE_MAX; }

// Entries of one index head's table of chosen blocks.
static size_t table_size(const lw_attention_config* c) { return c->index_topk / LW_BLOCK_TOKENS; }

static void widen_index(lw_session* s, const lw_layer* layer, uint32_t index) {
    (void)index;
    const lw_attention_config* c = &layer->config.attention;
    const size_t cached = (size_t)s->config.n_blocks * LW_BLOCK_TOKENS, context = s->model->config.context_length;
    index_own* own = of(s);
    own->longest = lw_round_up(cached < context ? cached : context, LW_BLOCK_TOKENS);
    lw_widen(&own->queries, (size_t)c->index_heads * c->index_dim);
    lw_widen(&own->heads, c->index_heads);
    lw_widen(&own->dim, c->index_dim);
    lw_widen(&s->widths.scratch, lw_index_scratch_floats(c->index_heads, c->index_dim) * sizeof(float));
    if (own->longest <= c->index_topk) return;
    const bool blocks = c->index_block > 0;
    lw_widen(&own->topk, blocks ? c->index_heads * table_size(c) : c->index_topk);
    lw_widen(&own->scored, blocks ? c->index_heads * (own->longest / c->index_block + 1) : own->longest);
}

static void take_index(lw_session* s, lw_parts* parts) {
    index_own* own = of(s);
    const size_t rows = s->config.max_batch_tokens, row = rows * sizeof(float);
    own->q = lw_take(parts, row * own->queries);
    own->k = lw_take(parts, row * own->dim);
    own->weights = lw_take(parts, row * own->heads);
    own->chosen = lw_take(parts, rows * own->topk * sizeof *own->chosen);
    own->scores = lw_take(parts, s->config.n_threads * own->scored * sizeof *own->scores);
}

static size_t index_inputs(const lw_worker* w, const lw_layer* layer, lw_mixer_input* found) {
    found[0] = (lw_mixer_input){&layer->index_key, of(w->s)->k, LW_ADAPTED_COUNT, 0};
    if (layer->config.attention.index_block > 0) {
        found[1] = (lw_mixer_input){&layer->index_query, of(w->s)->q, LW_ADAPTED_COUNT, 0};
        return 2;
    }
    found[1] = (lw_mixer_input){&layer->index_weights, of(w->s)->weights, LW_ADAPTED_COUNT, 0};
    return 2;
}

void lw_make_index_row(lw_worker* w, const lw_layer* layer, size_t row) {
    const lw_attention_config* c = &layer->config.attention;
    const bool blocks = c->index_block > 0;
    const size_t dim = c->index_dim, turned = w->model->ropes[c->rope].rotated, half = turned / 2;
    const float *cosine = w->b->cosine[c->rope] + row * half, *sine = w->b->sine[c->rope] + row * half;
    float *k = of(w->s)->k + row * dim, *q = of(w->s)->q + row * c->index_heads * dim;
    if (blocks)
        w->ops->rmsnorm(k, k, layer->index_key_norm, dim, w->c->rms_norm_eps);
    else
        w->ops->layernorm(k, k, layer->index_key_norm, layer->index_key_norm_bias, dim, c->latent_eps);
    w->ops->rope(k, cosine, sine, turned);
    for (size_t head = 0; head < c->index_heads; ++head, q += dim) {
        if (blocks) w->ops->rmsnorm(q, q, layer->index_query_norm, dim, w->c->rms_norm_eps);
        w->ops->rope(q, cosine, sine, turned);
    }
    lw_charge_row(w, LW_OP_ROTATE, 2 * (c->index_heads + 1) * dim, 0);
}

// How many tokens of a row have scores: not those of blocks that it sees anyway.
static size_t scored_of(const lw_worker* w, const lw_attention_config* c, size_t row) {
    const size_t position = w->b->position[row], block = c->index_block;
    if (position < c->index_topk) return 0;
    return block > 0 ? (position / block + 1 - c->index_local) * block : position + 1;
}

// Scores of each index head in a row's list.
static size_t stride_of(const lw_worker* w, const lw_attention_config* c) { return of(w->s)->scored / c->index_heads; }

static bool score_blocks(lw_worker* w, const lw_attention_config* c, lw_index_job job) {
    job.together = c->index_block;
    job.stride = stride_of(w, c);
    w->ops->index_largest(&job);
    bool finite = true;
    for (size_t head = 0; head < job.heads; ++head)
        finite &=
            w->ops->are_finite(job.scores + head * job.stride, (job.tokens.end - job.tokens.first) / job.together);
    return finite;
}

// Writes the scores of some tokens of a row to out[token], or those of their blocks to out[block] of each head.
static void score_tokens(lw_worker* w, const lw_layer* layer, uint32_t index, size_t row, lw_tokens tokens,
                         float* out) {
    const lw_attention_config* c = &layer->config.attention;
    const lw_kv_place place = w->s->places[index];
    const size_t heads = c->index_heads, dim = c->index_dim, n = tokens.end - tokens.first;
    const lw_index_job job = {
        .kv = lw_kv_slot(&w->s->kv_of[index], place.slot),
        .blocks = lw_block_table(w->s, w->step->batch, w->b->sequence[row], place.group),
        .tokens = tokens,
        .heads = heads,
        .q = of(w->s)->q + row * heads * dim,
        .weights = of(w->s)->weights + row * heads,
        .scores = out + tokens.first / (c->index_block > 0 ? c->index_block : 1),
        .scratch = w->scratch,
    };
    if (c->index_block == 0) w->ops->index_scores(&job);
    const bool finite = c->index_block > 0 ? score_blocks(w, c, job) : w->ops->are_finite(job.scores, n);
    if (!finite) lw_note_non_finite(w);
    lw_profile_work(w->profile, LW_OP_ATTENTION, 0, n * dim * (job.kv.type == LW_F32 ? 4 : 2), n * heads * dim);
}

// Makes the tables of a row. Entries behind the query's own block of the cache are not read.
static void choose_blocks(lw_worker* w, const lw_attention_config* c, uint32_t index, size_t row, const float* scores) {
    index_own* own = of(w->s);
    const uint32_t* blocks = lw_block_table(w->s, w->step->batch, w->b->sequence[row], w->s->places[index].group);
    const size_t block = c->index_block, parts = block / LW_BLOCK_TOKENS, all = c->index_topk / block,
                 scored = scored_of(w, c, row) / block, k = all - c->index_local,
                 last = w->b->position[row] / LW_BLOCK_TOKENS;
    for (size_t head = 0; head < c->index_heads; ++head) {
        uint32_t* table = own->chosen + row * own->topk + head * table_size(c);
        lw_choose_largest(scores + head * stride_of(w, c), scored, k, table);
        for (size_t i = k; i < all; ++i) table[i] = (uint32_t)(scored + i - k);
        // From the last one on, as each becomes several entries.
        for (size_t i = all; i-- > 0;) {
            const size_t first = table[i] * parts;
            for (size_t part = parts; part-- > 0;)
                table[i * parts + part] = first + part <= last ? blocks[first + part] : 0;
        }
    }
    lw_charge_row(w, LW_OP_ATTENTION, 4 * scored * c->index_heads, 0);
}

static void choose_of_row(lw_worker* w, const lw_attention_config* c, uint32_t index, size_t row, const float* scores) {
    index_own* own = of(w->s);
    if (c->index_block > 0) {
        choose_blocks(w, c, index, row, scores);
        return;
    }
    lw_choose_largest(scores, w->b->position[row] + 1, c->index_topk, own->chosen + row * own->topk);
    lw_charge_row(w, LW_OP_ATTENTION, 4 * ((size_t)w->b->position[row] + 1), 0);
}

void lw_choose_tokens(lw_worker* w, const lw_layer* layer, uint32_t index) {
    enum { PIECE = 16 * LW_BLOCK_TOKENS };
    const uint32_t block = layer->config.attention.index_block;
    const lw_scored_choice choice = {of(w->s)->scores, of(w->s)->scored, block > 0 ? lw_round_up(PIECE, block) : PIECE,
                                     scored_of,        score_tokens,     choose_of_row};
    lw_choose_rows(w, layer, index, &choice);
}

const uint32_t* lw_chosen_tokens(const lw_worker* w, const lw_attention_config* c, size_t row) {
    if (c->index_topk == 0 || c->index_block > 0 || w->b->position[row] < c->index_topk) return NULL;
    return of(w->s)->chosen + row * of(w->s)->topk;
}

const uint32_t* lw_chosen_blocks(const lw_worker* w, const lw_attention_config* c, size_t row, size_t kv_head) {
    if (c->index_block == 0 || w->b->position[row] < c->index_topk) return NULL;
    const size_t head = kv_head * c->index_heads / c->n_kv_heads;
    return of(w->s)->chosen + row * of(w->s)->topk + head * table_size(c);
}

const lw_kind lw_kind_index = {.check = check_index,
                               .tensor = index_tensor,
                               .has = has_index,
                               .own_bytes = sizeof(index_own),
                               .widen = widen_index,
                               .take = take_index,
                               .inputs = index_inputs};
