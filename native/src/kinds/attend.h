// The buffers of attention in a session, and the phase in which queries meet keys.
#ifndef LW_KINDS_ATTEND_H
#define LW_KINDS_ATTEND_H

#include <stdatomic.h>

#include "graph/worker.h"
#include "kinds/kind.h"

typedef struct lw_tile {  // query tokens of one sequence that attention handles together
    uint32_t sequence;
    uint32_t first_row;  // row of the batch
    uint32_t n_tokens;
    uint32_t length;  // tokens of the sequence if attention is bidirectional, else 0
    // A tile with a long context is listed once for each split of its context. All its entries share `states` and
    // `done`.
    uint32_t n_splits, split;  // number of splits, and which one this is; 0, 0: the whole context
    float* states;             // [jobs of a tile][n_splits][floats of a state] softmax states
    atomic_uint* done;         // [jobs of a tile] splits computed; all 0 between phases
} lw_tile;

// The tiles of a batch, for all layers with the same window, direction, number of heads and head size.
typedef struct lw_tiling {
    uint32_t window, both_ways;
    const lw_attention_config* heads;  // of the first of these layers
    size_t n;                          // tiles of the batch
    size_t jobs;                       // jobs of each tile of the batch (lw_tile_jobs)
    lw_tile* tiles;                    // [rows + split_tiles]
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
    size_t n_tilings;
    struct {
        lw_tiling tiling;    // entry i < n_tilings: layers with the same window, direction and heads share one
        uint16_t tiling_of;  // the tiling of layer i
    } layers[];
} lw_attention_own;

static inline lw_attention_own* lw_attention_of(const lw_session* s) { return s->of_kind[LW_KIND_ATTENTION]; }

enum { LW_ATTENTION_ROWS = 64 };  // query rows (tokens x heads of a group) that share one pass over the keys

enum { LW_LATENT_HEADS = 16 };  // most heads in one job of latent attention

// Number of jobs of a tile: one for each KV head. In latent attention all heads share the latent rows. There the heads
// are cut into equal parts: at least `least` parts, but not more parts than heads.
static inline size_t lw_tile_jobs(const lw_attention_config* c, size_t least) {
    if (c->latent_rank == 0) return c->n_kv_heads;
    size_t parts = 1 + (c->n_heads - 1) / LW_LATENT_HEADS;
    if (parts < least) parts = least;
    if (parts >= c->n_heads) return c->n_heads;
    while (c->n_heads % parts != 0) ++parts;
    return parts;
}

static inline size_t lw_tile_tokens(const lw_attention_config* c, size_t jobs) {
    const size_t group = c->n_heads / jobs;
    return group >= LW_ATTENTION_ROWS ? 1 : LW_ATTENTION_ROWS / group;
}

// Makes the session's room for splits large enough for a tiling.
void lw_widen_splits(lw_session* s, const lw_tiling* tiling);
// Fills all tilings for a batch.
void lw_make_tiles(lw_session* s, const lw_batch* batch);
// Where attention reads queries and writes results, both [rows][heads][dimensions]. The thread that completes the
// results of heads first .. first + n - 1 of some rows calls `finish`, unless it is NULL.
typedef struct lw_attended {
    const float* q;
    float* out;
    void (*finish)(lw_worker* w, const lw_layer* layer, lw_rows rows, size_t first, size_t n);
} lw_attended;
// A phase: attention of layer `index`.
void lw_attend(lw_worker* w, uint32_t index, lw_attended of);
// Whether lw_attend leaves the codes of its result in b->codes.
bool lw_attend_makes_codes(const lw_worker* w, uint32_t index);
// Finishes the keys (norm, RoPE) and values of a layer and stores them in the cache (attention.c).
void lw_store_keys(lw_worker* w, const lw_layer* layer, uint32_t index);

#endif
