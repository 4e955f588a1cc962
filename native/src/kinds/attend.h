// What attention keeps in a session, and the phase in which queries meet keys.
#ifndef LW_KINDS_ATTEND_H
#define LW_KINDS_ATTEND_H

#include <stdatomic.h>

#include "graph/worker.h"
#include "kinds/kind.h"

typedef struct lw_tile {  // query tokens of one sequence that attention handles together
    uint32_t sequence;
    uint32_t first_row;  // row of the batch
    uint32_t n_tokens;
    uint32_t length;  // of its sequence where queries see both ways, else 0
    // A tile with a long context is there once for each split of its context; they meet in `states`.
    uint32_t n_splits, split;  // of how many, which one; 0 of 0: a whole context
    float* states;             // [jobs of a tile][n_splits][floats of a state]
    atomic_uint* done;         // [jobs of a tile] splits computed, between phases all 0
} lw_tile;

// The tiles of a batch in layers that see alike and have as many heads of one size.
typedef struct lw_tiling {
    uint32_t window, both_ways;
    const lw_attention_config* heads;  // of the first such layer
    size_t n;                          // of the batch
    size_t jobs;                       // of each tile of the batch, lw_tile_jobs
    lw_tile* tiles;                    // [rows + split_tiles]
} lw_tiling;

typedef struct lw_attention_own {
    size_t q_width, kv_width, gate_width, tile_jobs;  // of the widest layers
    float *q, *k, *v;  // [rows][heads * head_dim]; k of latent attention: rows of the cache
    float* attn;       // [rows][n_heads * head_dim] the result
    float* gate;       // [rows][n_heads * head_dim]
    // Room for contexts that are split among threads (attend.c): states, tiles of a tiling beyond one for each row, and
    // splits_done[split_tiles][tile_jobs].
    size_t split_floats, split_tiles;
    float* split_states;
    atomic_uint* splits_done;
    size_t n_tilings;
    struct {
        lw_tiling tiling;    // number i of n_tilings: one for each way in which layers see and each kind of heads
        uint16_t tiling_of;  // of layer i
    } layers[];
} lw_attention_own;

static inline lw_attention_own* lw_attention_of(const lw_session* s) { return s->of_kind[LW_KIND_ATTENTION]; }

enum { LW_ATTENTION_ROWS = 64 };  // query rows (tokens x heads of a group) that share one pass over the keys

enum { LW_LATENT_HEADS = 16 };  // most heads of a job that share latent rows

// Jobs that a tile is: its KV heads. Heads that share latent rows are parts of equal size, `least` or more of them as far as
// there are heads.
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

// Widens the room for splits by a tiling.
void lw_widen_splits(lw_session* s, const lw_tiling* tiling);
// Fills all tilings for a batch.
void lw_make_tiles(lw_session* s, const lw_batch* batch);
// Where attention reads queries and writes results, both [rows][heads][dimensions], and what a thread does with the results
// of heads first .. first + n - 1 of some rows when they are complete; NULL: nothing.
typedef struct lw_attended {
    const float* q;
    float* out;
    void (*finish)(lw_worker* w, const lw_layer* layer, lw_rows rows, size_t first, size_t n);
} lw_attended;
// A phase of attention over layer `index`.
void lw_attend(lw_worker* w, uint32_t index, lw_attended of);
// Whether lw_attend leaves the codes of its result in b->codes.
bool lw_attend_makes_codes(const lw_worker* w, uint32_t index);
// Rotates and stores the keys and values of a layer (attention.c).
void lw_store_keys(lw_worker* w, const lw_layer* layer, uint32_t index);

#endif
