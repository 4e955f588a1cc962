// The index of sparse attention: which tokens a query sees.
#ifndef LW_KINDS_INDEX_H
#define LW_KINDS_INDEX_H

#include "graph/worker.h"

// The index keys of all rows, [rows][index_dim]; where the product of the index queries goes, [rows][index_heads *
// index_dim].
const float* lw_index_keys(const lw_session* s);
float* lw_index_queries(const lw_session* s);
// Most tokens of a sequence for which the session has room; SIZE_MAX without an index.
size_t lw_index_room(const lw_session* s);
// Works on one row: the norm of its index key, and RoPE of its index key and its index queries.
void lw_make_index_row(lw_worker* w, const lw_layer* layer, size_t row);
// Phases: each query that sees more than index_topk tokens chooses as many, or blocks of them. All index keys must be in the cache.
void lw_choose_tokens(lw_worker* w, const lw_layer* layer, uint32_t index);
// The tokens that row `row` has chosen, [index_topk] and ascending; NULL if it sees all tokens up to its own, or chooses
// blocks.
const uint32_t* lw_chosen_tokens(const lw_worker* w, const lw_attention_config* c, size_t row);
// The blocks of the cache that row `row` has chosen for a KV head, in order, [index_topk / 32]: its last ones are those of
// its own index block. NULL if it sees all tokens up to its own, or chooses tokens.
const uint32_t* lw_chosen_blocks(const lw_worker* w, const lw_attention_config* c, size_t row, size_t kv_head);

#endif
