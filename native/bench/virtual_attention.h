// Attention of a virtual crew. The library itself cuts it (lw_make_tiles), in a session that has nothing else.
#ifndef BENCH_VIRTUAL_ATTENTION_H
#define BENCH_VIRTUAL_ATTENTION_H

#include "kinds/attend.h"
#include "kinds/stages.h"
#include "memory.h"
#include "virtual_crew.h"

// A model whose layers are alike but for their windows: with full_every n, only every n-th layer sees all tokens.
typedef struct virtual_model {
    const char* name;
    uniform_config config;
    uint32_t full_every;
} virtual_model;

// What a step has to do: `rows` tokens of each of `streams` sequences, each behind `context` others.
typedef struct workload {
    const virtual_model* model;
    size_t streams, rows, context;
    double weight_bytes, value_bytes;  // of a weight of a layer, and of a value in the cache
} workload;

typedef struct attention_shape {
    const lw_tiling* tiling;
    const lw_attention_config* c;
    const workload* load;
} attention_shape;

// Position of a row of the step in its sequence.
static size_t position_of(const workload* w, size_t row) { return w->context + row % w->rows; }

typedef struct virtual_attention {
    lw_session session;
    lw_model model;
    lw_attention_config heads[2];  // of layers with a window, if there are any, and without
    attention_shape shapes[2];
    void* of_kind[LW_N_KINDS];
    lw_block memory;
    uint32_t full_every;
} virtual_attention;

static void take_attention(virtual_attention* v, lw_parts* parts, size_t rows) {
    lw_session* s = &v->session;
    lw_attention_own* own = lw_attention_of(s);
    s->b.position = lw_take(parts, rows * sizeof *s->b.position);
    own->split_states = lw_take(parts, own->split_floats * sizeof(float));
    own->splits_done = lw_take(parts, own->split_tiles * own->tile_jobs * sizeof *own->splits_done);
    lw_take_stages(s, parts);
    for (size_t i = 0; i < own->n_tilings; ++i)
        own->layers[i].tiling.tiles = lw_take(parts, (rows + own->split_tiles) * sizeof(lw_tile));
}

static void open_attention(virtual_attention* v, const workload* w, unsigned threads) {
    const virtual_model* model = w->model;
    const size_t rows = w->streams * w->rows, length = w->rows + w->context;
    memset(v, 0, sizeof *v);
    lw_session* s = &v->session;
    v->model.config.context_length = (uint32_t)length;
    s->model = &v->model;
    s->config =
        (lw_session_config){.n_threads = threads, .n_blocks = (uint32_t)(w->streams * (length / LW_BLOCK_TOKENS + 1))};
    s->threads = threads;
    s->of_kind = v->of_kind;
    lw_attention_own* own = calloc(1, sizeof *own + 2 * sizeof own->layers[0]);
    if (own == NULL) exit(2);
    v->of_kind[LW_KIND_ATTENTION] = own;
    v->full_every = model->full_every;
    own->n_tilings = model->full_every > 1 ? 2 : 1;
    for (size_t i = 0; i < own->n_tilings; ++i) {
        v->heads[i] = uniform_layer(&model->config).attention;
        if (i == 1) v->heads[i].window = 0;
        lw_tiling* tiling = &own->layers[i].tiling;
        *tiling = (lw_tiling){.window = v->heads[i].window, .heads = &v->heads[i]};
        v->shapes[i] = (attention_shape){tiling, &v->heads[i], w};
        lw_widen_splits(s, tiling);
        lw_widen_stages(s, tiling);
        lw_widen(&own->tile_jobs, model->config.n_heads);
    }
    lw_parts parts = {0};
    take_attention(v, &parts, rows);
    if (!lw_block_map(parts.used, &v->memory)) exit(2);
    parts = (lw_parts){.base = v->memory.data};
    take_attention(v, &parts, rows);
    for (size_t i = 0; i < rows; ++i) s->b.position[i] = (uint32_t)position_of(w, i);
    uint32_t* start = calloc(w->streams + 1, sizeof *start);
    if (start == NULL) exit(2);
    for (size_t i = 0; i <= w->streams; ++i) start[i] = (uint32_t)(i * w->rows);
    lw_make_tiles(s, &(lw_batch){.n_seqs = (uint32_t)w->streams, .query_start = start});
    free(start);
}

static void close_attention(virtual_attention* v) {
    free(v->of_kind[LW_KIND_ATTENTION]);
    lw_block_unmap(&v->memory);
}

static const attention_shape* shape_of_layer(const virtual_attention* v, uint32_t layer) {
    return &v->shapes[v->full_every > 1 && (layer + 1) % v->full_every == 0];
}

// Pairs of a query of a tile and a token that it sees, of the tokens in `among`.
static double pairs_of(const attention_shape* a, const lw_tile* tile, lw_tokens among) {
    size_t pairs = 0;
    for (size_t i = 0; i < tile->n_tokens; ++i) {
        lw_tokens seen = lw_attention_tokens(position_of(a->load, tile->first_row) + i, 1, a->c->window, 0);
        if (seen.first < among.first) seen.first = among.first;
        if (seen.end > among.end) seen.end = among.end;
        pairs += seen.end > seen.first ? seen.end - seen.first : 0;
    }
    return (double)pairs;
}

static double score_work(const phase* p, size_t item) {
    const attention_shape* a = p->attention;
    const lw_score_piece* piece = &a->tiling->stages.pieces[item / a->tiling->jobs];
    const double pairs = pairs_of(a, &a->tiling->tiles[piece->tile], piece->tokens);
    return pairs * (double)(a->c->n_heads / a->c->n_kv_heads * a->c->head_dim) / p->m->attention;
}

// A single row takes as long as two. Exponentials take as long as 16 dimensions, and are in the rate once.
static double part_work(const phase* p, double pairs, bool one_token) {
    const lw_stages* stages = &p->attention->tiling->stages;
    const double heads = stages->heads > 1 || !one_token ? (double)stages->heads : 2;
    const double dims = (double)stages->dims, repeated = 16 * (1 - dims / p->attention->c->head_dim);
    return pairs * heads * (dims + repeated) / p->m->attention;
}

static double value_work(const phase* p, size_t item) {
    const attention_shape* a = p->attention;
    const size_t of_tile = a->tiling->jobs * lw_parts_of(a->tiling);
    const lw_tile* tile = &a->tiling->tiles[a->tiling->n - 1 - item / of_tile];
    const size_t group = a->c->n_heads / a->c->n_kv_heads, position = position_of(a->load, tile->first_row);
    lw_tokens tokens = {0, SIZE_MAX};
    if (tile->n_splits > 0) {
        const size_t first = lw_attention_splits(position, tile->n_tokens, a->c->window, 0).first + tile->split;
        tokens = (lw_tokens){first * LW_SPLIT_TOKENS, (first + 1) * LW_SPLIT_TOKENS};
    }
    const double pairs = pairs_of(a, tile, tokens);
    const bool staged = a->tiling->stages.n_pieces > 0;
    double work = staged ? part_work(p, pairs, tile->n_tokens == 1)
                         : pairs * (double)(group * 2 * a->c->head_dim) / p->m->attention;
    // The last split merges all.
    const double part = (double)(staged ? a->tiling->stages.heads * a->tiling->stages.dims : group * a->c->head_dim);
    if (tile->n_splits > 0 && tile->split + 1 == tile->n_splits)
        work += (double)tile->n_splits * (double)tile->n_tokens * part / p->m->values;
    return work;
}

// Keys and values of one layer that a step reads.
static double cache_bytes(const uniform_config* c, const attention_shape* a) {
    const workload* w = a->load;
    const size_t tokens = w->context + w->rows - lw_seen_first(w->context, a->c->window);
    return (double)(w->streams * tokens) * 2 * w->value_bytes * c->n_kv_heads * c->head_dim;
}

#endif
