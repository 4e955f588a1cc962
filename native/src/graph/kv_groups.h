// Which layers of a model share the blocks of its KV cache.
//
// A block holds the keys and values of LW_BLOCK_TOKENS tokens in the layers of one group. Groups have the same number of slots
// for layers, so that any block can serve any of them; layers of a group have one window, so that what has slid out of it
// can be given back. A slot has room for the largest layer; smaller ones share it, as many of a size as there is room for.
// A layer that reuses another layer's keys and values has the same slot.
#ifndef LW_GRAPH_KV_GROUPS_H
#define LW_GRAPH_KV_GROUPS_H

#include "model/model.h"

typedef struct lw_kv_groups {
    uint32_t n_groups;
    uint32_t n_slots;                    // of each group; some of the last group of a window may be empty
    uint32_t windows[LW_MAX_KV_GROUPS];  // tokens seen in the layers of each; 0 = all
} lw_kv_groups;

typedef struct lw_kv_place {  // of a layer
    uint16_t group;
    uint32_t slot;
    size_t offset;  // in the slot's part of a block
} lw_kv_place;

// Bytes of a layer's keys and values in one block.
size_t lw_kv_bytes(const lw_attention_config* c, lw_type kv_type);
// The attention of the layer whose keys and values take most bytes.
const lw_attention_config* lw_largest_kv(const lw_model* model, lw_type kv_type);
// One group for each window, or several; or one for all layers. Where `places` is not NULL it gets [n_layers].
lw_kv_groups lw_group_layers(const lw_model* model, lw_type kv_type, bool by_window, lw_kv_place* places);

#endif
