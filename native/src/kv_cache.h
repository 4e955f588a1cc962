// The paged cache of keys and values: for every layer and block, per KV head, keys [head_dim][32 tokens] (a lane is a
// token) and values [32 tokens][value_dim] (a lane is a head dimension).
#ifndef LW_KV_CACHE_H
#define LW_KV_CACHE_H

#include "kernels/lane_ops.h"
#include "memory.h"

typedef struct lw_kv_cache {
    lw_block block;
    lw_type type;
    uint32_t n_blocks;
    uint32_t n_kv_heads;
    size_t head_dim, value_dim;
    size_t head_bytes, block_bytes, layer_bytes;
} lw_kv_cache;

// Sizes only; `block` stays empty.
void lw_kv_describe(const lw_model_config* config, lw_type type, uint32_t n_blocks, lw_kv_cache* out);
bool lw_kv_open(lw_kv_cache* cache, uint32_t n_layers);
void lw_kv_close(lw_kv_cache* cache);

lw_kv_view lw_kv_layer(const lw_kv_cache* cache, uint32_t layer);
// Writes one token's key and value, [n_kv_heads][head_dim] floats each, to place `offset` of `block`.
void lw_kv_write(const lw_kv_cache* cache, uint32_t layer, uint32_t block, uint32_t offset, const float* key,
                 const float* value);

#endif
