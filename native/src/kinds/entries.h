// The buffers of attention to shared rows (lw_attention_config.shared_rows, DeepSeek V4), and the entries that it sees
// besides the tokens of its window.
#ifndef LW_KINDS_ENTRIES_H
#define LW_KINDS_ENTRIES_H

#include "graph/worker.h"
#include "kinds/kind.h"

typedef struct lw_shared_own {
    // Maximum over the layers. listed_bytes: of a block of what is listed.
    size_t query_rank, groups_width, group_inputs, group_parts, beside_width, values_width, index_width, index_heads,
        index_queries_width, topk, scored, n_listed, listed_bytes, entry_floats;
    size_t longest;                        // tokens of a sequence, in whole blocks
    float* query;                          // [rows][query_rank]
    float *values, *gates;                 // [rows][outputs of LW_COMPRESS_ROWS]
    float *index_values, *index_gates;     // [rows][outputs of LW_INDEX_ROWS]
    float* beside;                         // [rows][lw_beside_dim] these four, as they are stored with a token
    float *index_queries, *index_weights;  // [rows][index_heads * index_dim], [rows][index_heads]
    uint32_t* chosen;                      // [rows][topk] entries that a row sees, ascending
    float* scores;                         // [threads][scored] of entries
    float* entry;                          // [threads][entry_floats] what an entry is made of
    uint8_t* listed;                       // [threads][n_listed / 32][listed_bytes] what a query sees
    uint32_t* blocks;                      // [n_listed / 32] 0, 1, 2, ...
    float* groups;                         // [rows][output_groups * output_rank]
    lw_codes codes;                        // inputs of LW_ATTN_GROUPS
} lw_shared_own;

static inline lw_shared_own* lw_shared_of(const lw_session* s) { return s->of_kind[LW_KIND_SHARED]; }

// Tokens that a sequence may have, by the room for what its queries see; SIZE_MAX without such layers.
size_t lw_shared_room(const lw_session* s);

// Turns pairs of values, 2i and 2i + 1, by angle i of `half`; `sign` is 1, or -1 to turn back.
static inline void lw_turn_pairs(float* x, const float* cosine, const float* sine, size_t half, float sign) {
    for (size_t i = 0; i < half; ++i) {
        const float a = x[2 * i], b = x[2 * i + 1], s = sine[i] * sign;
        x[2 * i] = a * cosine[i] - b * s;
        x[2 * i + 1] = b * cosine[i] + a * s;
    }
}

// The entries that a query at a position may see.
static inline size_t lw_entries_seen(const lw_attention_config* c, size_t position) {
    return c->compress > 0 ? (position + 1) / c->compress : 0;
}
void lw_widen_entries(lw_session* s, const lw_attention_config* c);
void lw_take_entries(lw_session* s, lw_parts* parts);
// Phases: makes the entries that end in the batch, whose tokens are in the cache; then chooses entries for each row.
void lw_make_entries(lw_worker* w, const lw_layer* layer, uint32_t index);
void lw_choose_entries(lw_worker* w, const lw_layer* layer, uint32_t index);
// Lists what a row sees: copies the rows of its window and its entries to this thread's `listed`, in the cache's type.
// Returns their number.
size_t lw_list_seen(lw_worker* w, const lw_layer* layer, uint32_t index, size_t row);

// This thread's part of `listed`.
static inline uint8_t* lw_listed_of(const lw_worker* w) {
    const lw_shared_own* own = lw_shared_of(w->s);
    return own->listed + w->thread * (own->n_listed / LW_BLOCK_TOKENS) * own->listed_bytes;
}

#endif
