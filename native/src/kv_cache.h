// The paged cache of keys and values. Each slot (a layer of a group) and block has for each KV head: keys [head_dim][32
// tokens] (a lane is a token), then values [32 tokens][value_dim] (a lane is a head dimension). With LW_I8, LW_I4 and
// LW_I8_I4 it has codes and a scale for each token and head (lw_kv_view). Latent attention has only the keys of one
// head (codes: attention_latent.inc). Behind all heads is what is stored beside them (lw_beside_dim): [values][32 tokens]. Entries of attention to
// shared rows have places of their own in blocks: [dimensions][entries of a block], the index entry's dimensions behind
// the entry's.
#ifndef LW_KV_CACHE_H
#define LW_KV_CACHE_H

#include "kernels/lane_ops.h"
#include "memory.h"

typedef struct lw_kv_cache {
    lw_block block;
    lw_type type;
    uint32_t n_blocks;
    uint32_t n_kv_heads;
    size_t head_dim, result_dim, key_dim, value_dim, index_dim, index_offset;  // see lw_kv_view
    bool latent;
    size_t value_offset, scale_offset;  // see lw_kv_view
    size_t head_bytes, block_bytes, slot_bytes;
    size_t offset;  // byte offset in the slot's part of a block
} lw_kv_cache;

static inline bool lw_is_kv_type(lw_type type) { return type == LW_F32 || type == LW_F16 || lw_kv_codes(type); }

// Bytes of a value in a cache without packed codes.
static inline size_t lw_kv_element(lw_type type) { return lw_kv_codes(type) ? 1 : type == LW_F16 ? 2 : 4; }

// Values that are stored beside the row of a token: the index key, or the values and gates of which entries are made.
static inline uint32_t lw_beside_dim(const lw_attention_config* c) {
    if (!c->shared_rows) return c->index_dim;
    return c->compress > 0 ? 2 * (1 + c->overlap) * (c->head_dim + c->index_dim) : 0;
}

// Entries that end in a block of tokens: as many places are in each block. Bytes of the entries of a block.
static inline size_t lw_entries_in_block(const lw_attention_config* c) {
    return c->compress < LW_BLOCK_TOKENS ? LW_BLOCK_TOKENS / c->compress : 1;
}

static inline size_t lw_entry_bytes(const lw_attention_config* c, lw_type type) {
    if (c->compress == 0) return 0;
    return lw_round_up(lw_entries_in_block(c) * (c->head_dim + c->index_dim) * lw_kv_element(type), 64);
}

// Fills in the sizes only; `block` stays empty.
void lw_kv_describe(const lw_attention_config* config, lw_type type, uint32_t n_blocks, lw_kv_cache* out);
bool lw_kv_open(lw_kv_cache* cache, uint32_t n_slots);
void lw_kv_close(lw_kv_cache* cache);
// The view of a cache for a layer with other heads: its keys and values begin `offset` bytes into each slot's part of a
// block, which has room for them.
lw_kv_cache lw_kv_part(const lw_kv_cache* cache, const lw_attention_config* config, size_t offset);

lw_kv_view lw_kv_slot(const lw_kv_cache* cache, uint32_t slot);
// Keys [n][n_kv_heads][head_dim] and values [n][n_kv_heads][result_dim] of consecutive tokens as floats; latent rows have
// no values.
typedef struct lw_kv_rows {
    size_t n;
    const float *keys, *values;
    const float* index;  // [n][index_dim] index keys
} lw_kv_rows;

// Writes `rows` to `block` from token `offset` on. Returns false when a cache of codes gets a value that is not finite;
// other types store NaN and infinity.
bool lw_kv_write(const lw_kv_cache* cache, const lw_lane_ops* ops, uint32_t slot, uint32_t block, uint32_t offset,
                 lw_kv_rows rows);

// Copies a block to another block, in the first `n_slots` slots.
void lw_kv_copy(const lw_kv_cache* cache, uint32_t n_slots, uint32_t source, uint32_t target);

#endif
