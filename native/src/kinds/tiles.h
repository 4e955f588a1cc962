// How attention cuts a batch, and its buffers in a session.
#ifndef LW_KINDS_TILES_H
#define LW_KINDS_TILES_H

#include <stdatomic.h>

#include "graph/session.h"
#include "kernels/lane_ops.h"
#include "kinds/kind.h"

typedef struct lw_tile {  // query tokens of one sequence that attention handles together
    uint32_t sequence;
    uint32_t first_row;  // row of the batch
    uint32_t n_tokens;
    // Position of the first token, but below index_topk in layers with an index: a query that sees as many tokens as it
    // may attends to a text of just these.
    uint32_t position;
    uint32_t chunk_start;  // in layers with a chunk: where the tile's chunk starts, and position is that in the chunk
    uint32_t length;       // tokens of the sequence if attention is bidirectional, else 0
    // A tile with a long context is listed once for each split of its context. All its entries share `states` and
    // `done`.
    uint32_t n_splits, split;  // number of splits, and which one this is; 0, 0: the whole context
    float* states;             // [jobs of a tile][n_splits][floats of a state] softmax states
    atomic_uint* done;         // [jobs of a tile] splits computed; all 0 between phases
    // In stages: scores[n_tokens][n_heads][score_span] of the tokens from first_score on. `done` has jobs x parts
    // counters, and jobs_done has [jobs], of parts computed.
    float* scores;
    size_t first_score, score_span;
    atomic_uint* jobs_done;
} lw_tile;

// Scores that one job of the first stage computes.
typedef struct lw_score_piece {
    uint32_t tile;
    lw_tokens tokens;
} lw_score_piece;

// Attention in two stages (stages.c): first the scores, piece by piece of the context, then the values. A job of the
// second stage is `heads` heads and `dims` dimensions of what would be one job.
typedef struct lw_stages {
    size_t n_pieces;         // 0: not in stages
    lw_score_piece* pieces;  // [threads]
    size_t heads, dims;      // of each part but the last
    size_t head_parts, dim_parts;
} lw_stages;

// Memory of the stages of one tiling at a time.
typedef struct lw_stage_room {
    float *scores, *states;
    atomic_uint* counters;  // all 0 between phases
    size_t n_scores, n_states, n_counters;
} lw_stage_room;

// The tiles of a batch, for all layers with the same window, direction, number of heads and head size.
typedef struct lw_tiling {
    uint32_t window, both_ways;
    const lw_attention_config* heads;  // of the first of these layers
    size_t n;                          // tiles of the batch
    size_t jobs;                       // jobs of each tile of the batch (lw_tile_jobs)
    lw_tile* tiles;                    // [rows + split_tiles]
    lw_stages stages;
} lw_tiling;

typedef struct lw_attention_own {
    size_t q_width, kv_width, gate_width, tile_jobs;  // maximum over the layers
    float *q, *k, *v;  // [rows][heads * head_dim]; in latent attention k holds the rows of the cache
    float* attn;       // [rows][n_heads * head_dim] results
    float* gate;       // [rows][n_heads * head_dim]
    // Room for splits (attend.c): floats of softmax states, tiles of a tiling beyond one for each row, and the counters
    // splits_done[split_tiles][tile_jobs].
    size_t split_floats, split_tiles;
    float* split_states;
    atomic_uint* splits_done;
    lw_stage_room stage_room;
    size_t n_tilings;
    struct {
        lw_tiling tiling;    // entry i < n_tilings: layers with the same window, direction and heads share one
        uint16_t tiling_of;  // the tiling of layer i
    } layers[];
} lw_attention_own;

static inline lw_attention_own* lw_attention_of(const lw_session* s) { return s->of_kind[LW_KIND_ATTENTION]; }

enum { LW_ATTENTION_ROWS = 64 };  // query rows (tokens x heads of a group) that share one pass over the keys

enum { LW_LATENT_HEADS = 16 };  // most heads in one job of latent attention to all tokens

// Number of jobs of a tile: one for each KV head. In latent attention all heads share the latent rows. There the heads
// are cut into equal parts: at least `least` parts, but not more parts than heads.
static inline size_t lw_tile_jobs(const lw_attention_config* c, size_t least) {
    if (c->latent_rank == 0) return c->n_kv_heads;
    // Each job collects the chosen tokens again, so that there it has many heads.
    const size_t most = c->index_topk > 0 ? LW_ATTENTION_ROWS : LW_LATENT_HEADS;
    size_t parts = 1 + (c->n_heads - 1) / most;
    if (parts < least) parts = least;
    if (parts >= c->n_heads) return c->n_heads;
    while (c->n_heads % parts != 0) ++parts;
    return parts;
}

static inline size_t lw_tile_tokens(const lw_attention_config* c, size_t jobs) {
    const size_t group = c->n_heads / jobs;
    return group >= LW_ATTENTION_ROWS ? 1 : LW_ATTENTION_ROWS / group;
}

enum { LW_JOBS_PER_THREAD = 4 };  // of a phase of attention, so that threads end at about the same time

// Floats of the softmax state of a job of `heads` heads.
static inline size_t lw_state_floats(const lw_attention_config* c, size_t heads, size_t n_tokens) {
    return lw_attention_state_floats(lw_attention_rows(n_tokens, heads), lw_align_floats(lw_result_dim(c)));
}

// The splits over which the tokens seen by a tile spread.
static inline lw_tokens lw_splits_of(const lw_tile* tile, size_t window) {
    return lw_attention_splits(tile->position, tile->n_tokens, window, tile->length);
}

// Makes tile `index` its own first split of `count`, and appends the further ones to the list.
static inline void lw_list_splits(lw_tiling* tiling, size_t index, size_t count, float* states) {
    lw_tile* tile = &tiling->tiles[index];
    tile->n_splits = (uint32_t)count;
    tile->states = states;
    for (size_t i = 1; i < count; ++i) {
        tiling->tiles[tiling->n] = *tile;
        tiling->tiles[tiling->n++].split = (uint32_t)i;
    }
}

// Jobs of the second stage for each job of a tile; 1 if not in stages.
static inline size_t lw_parts_of(const lw_tiling* tiling) {
    return tiling->stages.n_pieces > 0 ? tiling->stages.head_parts * tiling->stages.dim_parts : 1;
}

#endif
