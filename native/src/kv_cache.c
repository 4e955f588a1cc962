#include "kv_cache.h"

#include <string.h>

#include "kernels/half.h"

static size_t element_bytes(lw_type type) { return type == LW_F16 ? 2 : 4; }

void lw_kv_describe(const lw_model_config* config, lw_type type, uint32_t n_blocks, lw_kv_cache* out) {
    const size_t value_dim = lw_round_up(config->head_dim, LW_LANES);
    const size_t head_bytes = LW_BLOCK_TOKENS * (config->head_dim + value_dim) * element_bytes(type);
    *out = (lw_kv_cache){.type = type,
                         .n_blocks = n_blocks,
                         .n_kv_heads = config->n_kv_heads,
                         .head_dim = config->head_dim,
                         .value_dim = value_dim,
                         .head_bytes = head_bytes,
                         .block_bytes = head_bytes * config->n_kv_heads,
                         .layer_bytes = head_bytes * config->n_kv_heads * n_blocks};
}

bool lw_kv_open(lw_kv_cache* cache, uint32_t n_layers) {
    return lw_block_map(cache->layer_bytes * n_layers, &cache->block);
}

void lw_kv_close(lw_kv_cache* cache) { lw_block_unmap(&cache->block); }

lw_kv_view lw_kv_layer(const lw_kv_cache* cache, uint32_t layer) {
    return (lw_kv_view){.base = (const uint8_t*)cache->block.data + layer * cache->layer_bytes,
                        .block_bytes = cache->block_bytes,
                        .head_bytes = cache->head_bytes,
                        .value_offset = LW_BLOCK_TOKENS * cache->head_dim * element_bytes(cache->type),
                        .head_dim = cache->head_dim,
                        .value_dim = cache->value_dim,
                        .is_f16 = cache->type == LW_F16};
}

static void write_f16(uint16_t* keys, uint16_t* values, size_t offset, const float* key, const float* value,
                      size_t dim) {
    for (size_t d = 0; d < dim; ++d) {
        keys[d * LW_BLOCK_TOKENS + offset] = lw_float_to_half(key[d]);
        values[d] = lw_float_to_half(value[d]);
    }
}

static void write_f32(float* keys, float* values, size_t offset, const float* key, const float* value, size_t dim) {
    for (size_t d = 0; d < dim; ++d) keys[d * LW_BLOCK_TOKENS + offset] = key[d];
    memcpy(values, value, dim * sizeof(float));
}

void lw_kv_write(const lw_kv_cache* cache, uint32_t layer, uint32_t block, uint32_t offset, const float* key,
                 const float* value) {
    const size_t dim = cache->head_dim, keys_size = dim * LW_BLOCK_TOKENS;
    uint8_t* base = (uint8_t*)cache->block.data + layer * cache->layer_bytes + block * cache->block_bytes;
    for (uint32_t h = 0; h < cache->n_kv_heads; ++h, base += cache->head_bytes, key += dim, value += dim) {
        if (cache->type == LW_F16)
            write_f16((uint16_t*)base, (uint16_t*)base + keys_size + offset * cache->value_dim, offset, key, value,
                      dim);
        else
            write_f32((float*)base, (float*)base + keys_size + offset * cache->value_dim, offset, key, value, dim);
    }
}
