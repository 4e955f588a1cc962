// Sparse attention (DeepSeek V3.2, "lightning indexer"): each query sees the index_topk tokens of the largest index
// scores. Layers without an index of their own use what the layer before has chosen, so the session has one list of each
// row. A query that sees no more tokens than index_topk needs no scores.
#include "kinds/index.h"

#include <string.h>

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

static lw_status check_index(const lw_model_config* model, uint32_t layer) {
    const lw_layer_config* l = &model->layers[layer];
    const lw_attention_config* c = &l->attention;
    const lw_place at = lw_place_of_layer(layer, "");
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
    const bool here = c->index_heads > 0;
    switch (role) {
        case LW_INDEX_QUERY:
            return LW_MATRIX(index_query, "index queries", c->index_heads * c->index_dim, c->query_rank, here);
        case LW_INDEX_KEY:
            return LW_MATRIX(index_key, "index key", c->index_dim, model->hidden_size, here);
        case LW_INDEX_KEY_NORM:
            return LW_VECTOR(index_key_norm, "norm of the index key", c->index_dim, here);
        case LW_INDEX_KEY_NORM_BIAS:
            return LW_VECTOR(index_key_norm_bias, "norm of the index key, bias", c->index_dim, here);
        case LW_INDEX_WEIGHTS:
            return LW_MATRIX(index_weights, "weights of index heads", c->index_heads, model->hidden_size, here);
        default:
            return (lw_tensor_spec){0};
    }
}

static bool has_index(const lw_model_config* model, const lw_layer_config* layer) {
    (void)model;
    return layer->attention.index_heads > 0;
}

typedef struct index_own {
    size_t queries, heads, dim;  // maximum over the layers
    size_t longest;              // tokens of a sequence, in whole blocks
    size_t topk, scored;         // 0 where no sequence is longer than index_topk; scored: tokens that have scores
    float *q, *k, *weights;      // [rows][queries], [rows][dim], [rows][heads]
    uint32_t* chosen;            // [rows][topk]
    float* scores;               // [threads][scored]
} index_own;

static index_own* of(const lw_session* s) { return s->of_kind[LW_KIND_INDEX]; }

const float* lw_index_keys(const lw_session* s) { return of(s)->k; }
float* lw_index_queries(const lw_session* s) { return of(s)->q; }

size_t lw_index_room(const lw_session* s) { return of(s) != NULL ? of(s)->longest : SIZE_MAX; }

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
    lw_widen(&own->topk, c->index_topk);
    own->scored = own->longest;
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
    found[1] = (lw_mixer_input){&layer->index_weights, of(w->s)->weights, LW_ADAPTED_COUNT, 0};
    return 2;
}

void lw_make_index_row(lw_worker* w, const lw_layer* layer, size_t row) {
    const lw_attention_config* c = &layer->config.attention;
    const size_t dim = c->index_dim, turned = c->rope_dim, half = turned / 2;
    const float *cosine = w->b->cosine[c->rope] + row * half, *sine = w->b->sine[c->rope] + row * half;
    float *k = of(w->s)->k + row * dim, *q = of(w->s)->q + row * c->index_heads * dim;
    w->ops->layernorm(k, k, layer->index_key_norm, layer->index_key_norm_bias, dim, c->latent_eps);
    w->ops->rope(k, cosine, sine, turned);
    for (size_t head = 0; head < c->index_heads; ++head) w->ops->rope(q + head * dim, cosine, sine, turned);
    lw_charge_row(w, LW_OP_ROTATE, 2 * (c->index_heads + 1) * dim, 0);
}

// Bits that sort as unsigned numbers in the order of the scores; both zeros are one number.
static uint32_t key_of(float score) {
    const float value = score + 0.0f;
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

// Writes the indices of the k largest of n scores, ascending; of equal scores the first ones. k is below n.
static void choose_largest(const float* scores, size_t n, size_t k, uint32_t* out) {
    enum { PARTS = 3, BITS = 11, BINS = 1 << BITS };
    uint32_t kth = 0, known = 0;  // the bits of the k-th largest key that are known
    size_t left = k;              // as many keys that equal it so far are among the k largest
    for (int part = 0; part < PARTS; ++part) {
        const int shift = 32 - BITS * (part + 1) > 0 ? 32 - BITS * (part + 1) : 0;
        const uint32_t bits = ~known >> shift & (BINS - 1);
        uint32_t counts[BINS] = {0}, bin = bits;
        for (size_t i = 0; i < n; ++i) {
            const uint32_t key = key_of(scores[i]);
            if ((key & known) == kth) ++counts[key >> shift & bits];
        }
        for (; counts[bin] < left; --bin) left -= counts[bin];
        kth |= bin << shift;
        known |= bits << shift;
    }
    for (size_t i = 0, chosen = 0; chosen < k; ++i) {
        const uint32_t key = key_of(scores[i]);
        if (key < kth || (key == kth && left == 0)) continue;
        left -= key == kth;
        out[chosen++] = (uint32_t)i;
    }
}

// Writes the scores of some tokens of a row to out[token].
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
        .scores = out + tokens.first,
        .scratch = w->scratch,
    };
    w->ops->index_scores(&job);
    if (!w->ops->are_finite(out + tokens.first, n)) lw_note_non_finite(w);
    lw_profile_work(w->profile, LW_OP_ATTENTION, 0, n * dim * (job.kv.type == LW_F16 ? 2 : 4), n * heads * dim);
}

static void choose_of_row(lw_worker* w, const lw_attention_config* c, size_t row, const float* scores) {
    index_own* own = of(w->s);
    choose_largest(scores, w->b->position[row] + 1, c->index_topk, own->chosen + row * own->topk);
    lw_charge_row(w, LW_OP_ATTENTION, 4 * ((size_t)w->b->position[row] + 1), 0);
}

// The tokens that the rows see, at most, or 0 if no row sees more than index_topk.
static size_t most_seen(const lw_worker* w, const lw_attention_config* c) {
    size_t most = 0;
    for (size_t row = 0; row < w->rows; ++row) lw_widen(&most, (size_t)w->b->position[row] + 1);
    return most > c->index_topk ? most : 0;
}

// Phases for fewer rows than threads: the scores piece by piece, then the choice.
static void choose_in_pieces(lw_worker* w, const lw_layer* layer, uint32_t index, size_t most) {
    enum { PIECE = 16 * LW_BLOCK_TOKENS };
    const lw_attention_config* c = &layer->config.attention;
    const index_own* own = of(w->s);
    const size_t pieces = (most + PIECE - 1) / PIECE;
    lw_taker parts = lw_this_phase(w, w->rows * pieces);
    for (size_t item; lw_take_item(&parts, &item);) {
        const size_t row = item / pieces, first = item % pieces * PIECE, seen = (size_t)w->b->position[row] + 1;
        if (seen <= c->index_topk || first >= seen) continue;
        const size_t end = first + PIECE < seen ? first + PIECE : seen;
        score_tokens(w, layer, index, row, (lw_tokens){first, end}, own->scores + row * own->scored);
    }
    lw_end_phase(w, LW_OP_ATTENTION);
    lw_taker rows = lw_this_phase(w, w->rows);
    for (size_t row; lw_take_item(&rows, &row);)
        if (w->b->position[row] >= c->index_topk) choose_of_row(w, c, row, own->scores + row * own->scored);
    lw_end_phase(w, LW_OP_ATTENTION);
}

void lw_choose_tokens(lw_worker* w, const lw_layer* layer, uint32_t index) {
    const lw_attention_config* c = &layer->config.attention;
    const size_t most = most_seen(w, c);
    if (most == 0) return;
    if (w->rows < w->s->threads) {
        choose_in_pieces(w, layer, index, most);
        return;
    }
    float* scores = of(w->s)->scores + w->thread * of(w->s)->scored;
    lw_taker items = lw_this_phase(w, w->rows);
    for (size_t row; lw_take_item(&items, &row);) {
        const size_t seen = (size_t)w->b->position[row] + 1;
        if (seen <= c->index_topk) continue;
        score_tokens(w, layer, index, row, (lw_tokens){0, seen}, scores);
        choose_of_row(w, c, row, scores);
    }
    lw_end_phase(w, LW_OP_ATTENTION);
}

const uint32_t* lw_chosen_tokens(const lw_worker* w, const lw_attention_config* c, size_t row) {
    if (c->index_topk == 0 || w->b->position[row] < c->index_topk) return NULL;
    return of(w->s)->chosen + row * of(w->s)->topk;
}

const lw_kind lw_kind_index = {.check = check_index,
                               .tensor = index_tensor,
                               .has = has_index,
                               .own_bytes = sizeof(index_own),
                               .widen = widen_index,
                               .take = take_index,
                               .inputs = index_inputs};
