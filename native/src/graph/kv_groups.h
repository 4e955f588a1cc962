// Which layers of a model share the blocks of its KV cache.
//
// A block holds the keys and values of LW_BLOCK_TOKENS tokens for the layers of one group. All groups have the same
// number of slots for layers, so any block can serve any group. The layers of a group have the same window, so a block
// can be freed once its tokens have left the window. A slot has room for the largest layer. Smaller layers of one size
// share a slot, as many as fit. A layer that reuses another layer's keys and values has that layer's place.
#ifndef LW_GRAPH_KV_GROUPS_H
#define LW_GRAPH_KV_GROUPS_H

#include "model/model.h"

typedef struct lw_kv_groups {
    uint32_t n_groups;
    uint32_t n_slots;                    // in each group; the last group of a window may have empty slots
    uint32_t windows[LW_MAX_KV_GROUPS];  // tokens that the layers of each group see; 0: all
} lw_kv_groups;

typedef struct lw_kv_place {  // where a layer's keys and values are
    uint16_t group;
    uint32_t slot;
    size_t offset;  // bytes from the start of the slot's part of a block
} lw_kv_place;

// Bytes of a layer's keys and values in one block.
size_t lw_kv_bytes(const lw_attention_config* c, lw_type kv_type);
// The attention config of the layer whose keys and values take the most bytes.
const lw_attention_config* lw_largest_kv(const lw_model* model, lw_type kv_type);
// Groups the layers: by window, with one or more groups for each, or all in one group. If `places` is not NULL, it gets
// [2 * n_layers] places: of keys and values, then of entries (lw_attention_config.compress).
lw_kv_groups lw_group_layers(const lw_model* model, lw_type kv_type, bool by_window, lw_kv_place* places);

#endif
