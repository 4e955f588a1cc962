// Rows made of several tokens each, which queries of attention to shared rows see besides their window.
//
// What entries are made of lies beside the token's row in the cache, and an entry lies with the block of its last token.
// So an entry depends on the text alone: it is made of what the cache has, whichever step has stored it there.
#include "kinds/entries.h"

#include <math.h>
#include <string.h>

#include "kernels/half.h"
#include "kinds/choice.h"
#include "kv_cache.h"
#include "ops/math.h"

enum { DIMS = 32, PIECE = 16 };  // dimensions of an entry made together; blocks of entries scored together

static size_t least(size_t a, size_t b) { return a < b ? a : b; }

static size_t tokens_of(const lw_attention_config* c) { return (size_t)c->compress * (1 + c->overlap); }

void lw_widen_entries(lw_session* s, const lw_attention_config* c) {
    lw_shared_own* own = lw_shared_of(s);
    const size_t cached = (size_t)s->config.n_blocks * LW_BLOCK_TOKENS, context = s->model->config.context_length;
    const size_t longest = lw_round_up(least(cached, context), LW_BLOCK_TOKENS);
    own->longest = longest;
    const size_t window = c->window > 0 ? least(c->window, longest) : longest;
    size_t entries = c->compress > 0 ? longest / c->compress : 0;
    if (c->index_topk > 0 && entries > c->index_topk) {
        lw_widen(&own->topk, c->index_topk);
        lw_widen(&own->scored, lw_round_up(entries, LW_BLOCK_TOKENS));
        entries = c->index_topk;
    }
    const size_t widest = c->head_dim > c->index_dim ? c->head_dim : c->index_dim;
    lw_widen(&own->n_listed, lw_round_up(window + entries, LW_BLOCK_TOKENS));
    lw_widen(&own->listed_bytes, widest * LW_BLOCK_TOKENS * lw_kv_element(s->config.kv_type));
    lw_widen(&own->entry_floats, lw_align_floats(2 * tokens_of(c) * DIMS + widest + c->rope_dim));
    lw_widen(&s->widths.scratch, lw_index_scratch_floats(c->index_heads, c->index_dim) * sizeof(float));
}

size_t lw_shared_room(const lw_session* s) { return lw_shared_of(s) != NULL ? lw_shared_of(s)->longest : SIZE_MAX; }

void lw_take_entries(lw_session* s, lw_parts* parts) {
    lw_shared_own* own = lw_shared_of(s);
    const size_t rows = s->config.max_batch_tokens, threads = s->config.n_threads,
                 blocks = own->n_listed / LW_BLOCK_TOKENS;
    own->chosen = lw_take(parts, rows * own->topk * sizeof *own->chosen);
    own->scores = lw_take(parts, threads * own->scored * sizeof *own->scores);
    own->entry = lw_take(parts, threads * own->entry_floats * sizeof *own->entry);
    own->listed = lw_take(parts, threads * blocks * own->listed_bytes);
    own->blocks = lw_take(parts, blocks * sizeof *own->blocks);
    for (size_t i = 0; parts->base != NULL && i < blocks; ++i) own->blocks[i] = (uint32_t)i;
}

// The rows of a layer's tokens, or its entries, as one sequence has them.
typedef struct stored {
    const uint8_t* base;
    size_t block_bytes;
    const uint32_t* blocks;
    size_t lanes;  // tokens or entries in a block
    size_t every;  // tokens of a text for each of them
} stored;

static stored tokens_at(const lw_worker* w, uint32_t index, size_t row) {
    const lw_kv_place place = w->s->places[index];
    const lw_kv_view view = lw_kv_slot(&w->s->kv_of[index], place.slot);
    return (stored){view.base, view.block_bytes, lw_block_table(w->s, w->step->batch, w->b->sequence[row], place.group),
                    LW_BLOCK_TOKENS, 1};
}

static stored entries_at(const lw_worker* w, const lw_attention_config* c, uint32_t index, size_t row) {
    const lw_kv_place place = w->s->places[w->model->config.n_layers + index];
    const lw_kv_cache* kv = &w->s->kv;
    return (stored){(const uint8_t*)kv->block.data + place.slot * kv->slot_bytes + place.offset, kv->block_bytes,
                    lw_block_table(w->s, w->step->batch, w->b->sequence[row], place.group), lw_entries_in_block(c),
                    c->compress};
}

// The block that has token or entry number `at`, which lies there in lane at % lanes.
static const uint8_t* block_of(const stored* from, size_t at) {
    const size_t last = (at + 1) * from->every - 1;
    return from->base + from->blocks[last / LW_BLOCK_TOKENS] * from->block_bytes;
}

static float load(const uint8_t* block, size_t at, lw_type type) {
    return type == LW_F16 ? lw_half_to_float(((const uint16_t*)block)[at]) : ((const float*)block)[at];
}

// An entry, or an index entry.
typedef struct kind_of_entry {
    size_t dim;
    size_t values, gates;  // where a token's values and gates are in what is stored beside its row
    size_t out;            // where the entry is among the dimensions of its lane
    const float *positions, *norm;
} kind_of_entry;

// Loads what DIMS dimensions of an entry are made of: values and gates [tokens][DIMS], 0 behind the last dimension.
static void load_dims(const lw_worker* w, const lw_attention_config* c, const stored* from, size_t offset,
                      const kind_of_entry* k, size_t entry, size_t first, float* values, float* gates) {
    const size_t m = c->compress, before = c->overlap && entry > 0 ? m : 0, n = least(DIMS, k->dim - first);
    const lw_type type = w->s->kv.type;
    for (size_t i = 0; i < before + m; ++i) {
        const size_t token = entry * m - before + i, series = c->overlap && i >= before ? k->dim : 0;
        const size_t lane = token % LW_BLOCK_TOKENS;
        const uint8_t* beside = block_of(from, token) + offset;
        const float* position = k->positions + token % m * (1 + c->overlap) * k->dim + series + first;
        float *value = values + i * DIMS, *gate = gates + i * DIMS;
        for (size_t d = 0; d < n; ++d) {
            value[d] = load(beside, (k->values + series + first + d) * LW_BLOCK_TOKENS + lane, type);
            gate[d] = load(beside, (k->gates + series + first + d) * LW_BLOCK_TOKENS + lane, type) + position[d];
        }
        for (size_t d = n; d < DIMS; ++d) value[d] = gate[d] = 0;
    }
}

// Means of values, weighted by the softmax of gates over `tokens`.
static void weigh(const lw_worker* w, const float* values, float* gates, size_t tokens, float* out, size_t n) {
    float largest[DIMS], sum[DIMS] = {0}, total[DIMS] = {0};
    memcpy(largest, gates, sizeof largest);
    for (size_t i = 1; i < tokens; ++i)
        for (size_t d = 0; d < DIMS; ++d)
            largest[d] = gates[i * DIMS + d] > largest[d] ? gates[i * DIMS + d] : largest[d];
    for (size_t i = 0; i < tokens; ++i)
        for (size_t d = 0; d < DIMS; ++d) gates[i * DIMS + d] -= largest[d];
    w->ops->exp(gates, gates, tokens * DIMS, 0, 1);
    for (size_t i = 0; i < tokens; ++i)
        for (size_t d = 0; d < DIMS; ++d) {
            sum[d] += gates[i * DIMS + d];
            total[d] = fmaf(gates[i * DIMS + d], values[i * DIMS + d], total[d]);
        }
    for (size_t d = 0; d < n; ++d) out[d] = total[d] / sum[d];
}

static void store_entry(const lw_worker* w, const stored* to, const kind_of_entry* k, size_t entry,
                        const float* values) {
    uint8_t* block = (uint8_t*)block_of(to, entry);
    const size_t lane = entry % to->lanes;
    for (size_t d = 0; d < k->dim; ++d) {
        const size_t at = (k->out + d) * to->lanes + lane;
        if (w->s->kv.type == LW_F16)
            ((uint16_t*)block)[at] = lw_float_to_half(values[d]);
        else
            ((float*)block)[at] = values[d];
    }
}

static void make_entry(lw_worker* w, const lw_layer* layer, uint32_t index, size_t row, const kind_of_entry* k) {
    const lw_attention_config* c = &layer->config.attention;
    const size_t m = c->compress, entry = w->b->position[row] / m, half = c->rope_dim / 2;
    const size_t tokens = c->overlap && entry > 0 ? 2 * m : m;
    const stored from = tokens_at(w, index, row), to = entries_at(w, c, index, row);
    float* values = lw_shared_of(w->s)->entry + w->thread * lw_shared_of(w->s)->entry_floats;
    float *gates = values + tokens_of(c) * DIMS, *made = gates + tokens_of(c) * DIMS, *cosine = made + k->dim,
          *sine = cosine + half;
    for (size_t first = 0; first < k->dim; first += DIMS) {
        load_dims(w, c, &from, w->s->kv_of[index].index_offset, k, entry, first, values, gates);
        weigh(w, values, gates, tokens, made + first, least(DIMS, k->dim - first));
    }
    if (!w->ops->are_finite(made, k->dim)) lw_note_non_finite(w);
    w->ops->rmsnorm(made, made, k->norm, k->dim, w->c->rms_norm_eps);
    const lw_angles* angles = &w->model->ropes[c->rope];
    for (size_t i = 0; i < half; ++i) {
        double s, o;
        lw_sincos((double)(entry * m) * (double)angles->frequencies[i], &s, &o);
        cosine[i] = (float)o * angles->scale;
        sine[i] = (float)s * angles->scale;
    }
    lw_turn_pairs(made + k->dim - c->rope_dim, cosine, sine, half, 1);
    store_entry(w, &to, k, entry, made);
    lw_charge_row(w, LW_OP_ROTATE, 4 * tokens * k->dim, 0);
}

void lw_make_entries(lw_worker* w, const lw_layer* layer, uint32_t index) {
    const lw_attention_config* c = &layer->config.attention;
    const size_t values = layer->compress_rows.rows, of_index = layer->index_rows.rows;
    const kind_of_entry kinds[2] = {
        {c->head_dim, 0, values, 0, layer->compress_positions, layer->compress_norm},
        {c->index_dim, 2 * values, 2 * values + of_index, c->head_dim, layer->index_positions, layer->index_norm}};
    const size_t n = of_index > 0 ? 2 : 1;
    lw_taker items = lw_this_phase(w, w->rows * n);
    for (size_t item; lw_take_item(&items, &item);)
        if ((w->b->position[item / n] + 1) % c->compress == 0) make_entry(w, layer, index, item / n, &kinds[item % n]);
    lw_end_phase(w, LW_OP_ROTATE);
}

// Copies `n` lanes of `dim` dimensions, which begin at dimension `first` of a stored block, to a listed block.
static void copy_lanes(uint8_t* out, size_t to, const uint8_t* block, size_t lanes, size_t first, size_t lane, size_t n,
                       size_t dim, lw_type type) {
    for (size_t d = 0; d < dim; ++d) {
        const size_t at = d * LW_BLOCK_TOKENS + to, from = (first + d) * lanes + lane;
        for (size_t i = 0; i < n; ++i)
            if (type == LW_F16)
                ((uint16_t*)out)[at + i] = ((const uint16_t*)block)[from + i];
            else
                ((float*)out)[at + i] = ((const float*)block)[from + i];
    }
}

// Where rows are listed: `n` of them so far, in blocks of [dim][32].
typedef struct list {
    uint8_t* blocks;
    size_t block_bytes, dim, n;
    lw_type type;
} list;

// Lists numbers at .. at + n - 1 of what is stored.
static void list_run(list* to, const stored* from, size_t first, size_t at, size_t n) {
    for (size_t together; n > 0; n -= together, at += together, to->n += together) {
        const size_t lane = at % from->lanes, place = to->n % LW_BLOCK_TOKENS;
        uint8_t* out = to->blocks + to->n / LW_BLOCK_TOKENS * to->block_bytes;
        if (place == 0) memset(out, 0, to->block_bytes);  // lanes behind the last one are 0
        together = least(n, least(from->lanes - lane, LW_BLOCK_TOKENS - place));
        copy_lanes(out, place, block_of(from, at), from->lanes, first, lane, together, to->dim, to->type);
    }
}

static list empty_list(const lw_worker* w, size_t dim) {
    const lw_type type = w->s->kv.type;
    return (list){lw_listed_of(w), dim * LW_BLOCK_TOKENS * lw_kv_element(type), dim, 0, type};
}

size_t lw_list_seen(lw_worker* w, const lw_layer* layer, uint32_t index, size_t row) {
    const lw_attention_config* c = &layer->config.attention;
    const size_t position = w->b->position[row], first = lw_seen_first(position, c->window),
                 entries = lw_entries_seen(c, position);
    list to = empty_list(w, c->head_dim);
    const stored tokens = tokens_at(w, index, row);
    list_run(&to, &tokens, 0, first, position + 1 - first);
    if (entries == 0) return to.n;
    const stored from = entries_at(w, c, index, row);
    if (c->index_topk == 0 || entries <= c->index_topk) {
        list_run(&to, &from, 0, 0, entries);
        return to.n;
    }
    const uint32_t* chosen = lw_shared_of(w->s)->chosen + row * lw_shared_of(w->s)->topk;
    for (size_t i = 0, end; i < c->index_topk; i = end) {
        for (end = i + 1; end < c->index_topk && chosen[end] == chosen[end - 1] + 1;) ++end;
        list_run(&to, &from, 0, chosen[i], end - i);
    }
    return to.n;
}

// Writes the index scores of some entries of a row, which begin at a multiple of 32, to out[entry].
static void score_entries(lw_worker* w, const lw_layer* layer, uint32_t index, size_t row, lw_tokens entries,
                          float* out) {
    const lw_attention_config* c = &layer->config.attention;
    const lw_shared_own* own = lw_shared_of(w->s);
    const size_t heads = c->index_heads, dim = c->index_dim,
                 most = least(PIECE, own->n_listed / LW_BLOCK_TOKENS) * LW_BLOCK_TOKENS;
    const stored from = entries_at(w, c, index, row);
    for (size_t first = entries.first; first < entries.end; first += most) {
        list to = empty_list(w, dim);
        const size_t n = least(most, entries.end - first);
        list_run(&to, &from, c->head_dim, first, n);
        const lw_index_job job = {
            .kv = {.base = to.blocks, .block_bytes = to.block_bytes, .index_dim = dim, .type = to.type},
            .blocks = own->blocks,
            .tokens = {0, n},
            .heads = heads,
            .q = own->index_queries + row * heads * dim,
            .weights = own->index_weights + row * heads,
            .scores = out + first,
            .scratch = w->scratch,
        };
        w->ops->index_scores(&job);
        if (!w->ops->are_finite(out + first, n)) lw_note_non_finite(w);
        lw_profile_work(w->profile, LW_OP_ATTENTION, 0, n * dim * lw_kv_element(to.type), n * heads * dim);
    }
}

// How many entries of a row have scores: none if it sees no more than it may choose.
static size_t scored_of(const lw_worker* w, const lw_attention_config* c, size_t row) {
    const size_t seen = lw_entries_seen(c, w->b->position[row]);
    return seen > c->index_topk ? seen : 0;
}

static void choose_of_row(lw_worker* w, const lw_attention_config* c, uint32_t index, size_t row, const float* scores) {
    (void)index;
    lw_shared_own* own = lw_shared_of(w->s);
    const size_t n = lw_entries_seen(c, w->b->position[row]);
    lw_choose_largest(scores, n, c->index_topk, own->chosen + row * own->topk);
    lw_charge_row(w, LW_OP_ATTENTION, 4 * n, 0);
}

void lw_choose_entries(lw_worker* w, const lw_layer* layer, uint32_t index) {
    const lw_shared_own* own = lw_shared_of(w->s);
    const lw_scored_choice choice = {own->scores, own->scored,   PIECE * LW_BLOCK_TOKENS,
                                     scored_of,   score_entries, choose_of_row};
    lw_choose_rows(w, layer, index, &choice);
}
