#include "kv_cache.h"

#include <string.h>

#include "kernels/half.h"

// What is stored beside keys and values of a type.
static lw_type beside_type(lw_type type) { return lw_kv_codes(type) ? LW_F16 : type; }

void lw_kv_describe(const lw_attention_config* config, lw_type type, uint32_t n_blocks, lw_kv_cache* out) {
    const bool latent = config->latent_rank > 0 || config->shared_rows;
    const size_t head_dim = lw_key_dim(config), value_dim = lw_round_up(lw_result_dim(config), LW_LANES);
    // 8-bit codes are multiplied in groups of four dimensions or tokens, so keys are padded like values.
    const size_t padded = lw_round_up(head_dim, LW_LANES), key_dim = lw_kv_codes(type) ? padded : head_dim,
                 scales = lw_kv_codes(type) ? 2 * sizeof(float) : 0;
    // Bytes of a token's key and value. Packed values are padded to pairs of lanes.
    // What comes behind the values of a latent row is never packed.
    const size_t whole = latent ? key_dim - value_dim : 0;
    const size_t key_bytes = lw_kv_packs_keys(type) ? (key_dim - whole) / 2 + whole : key_dim * lw_kv_element(type),
                 value_bytes = latent                     ? 0
                               : lw_kv_packs_values(type) ? lw_value_pairs(value_dim) * LW_LANES
                                                          : value_dim * lw_kv_element(type);
    const size_t head_bytes = LW_BLOCK_TOKENS * (key_bytes + value_bytes + scales),
                 of_heads = head_bytes * config->n_kv_heads,
                 index_bytes = LW_BLOCK_TOKENS * lw_beside_dim(config) * lw_kv_element(beside_type(type));
    *out = (lw_kv_cache){.type = type,
                         .n_blocks = n_blocks,
                         .n_kv_heads = config->n_kv_heads,
                         .head_dim = head_dim,
                         .result_dim = lw_result_dim(config),
                         .key_dim = padded,
                         .value_dim = value_dim,
                         .index_dim = lw_beside_dim(config),
                         .index_offset = of_heads,
                         .latent = latent,
                         .value_offset = LW_BLOCK_TOKENS * key_bytes,
                         .scale_offset = head_bytes - LW_BLOCK_TOKENS * scales,
                         .head_bytes = head_bytes,
                         .block_bytes = of_heads + index_bytes,
                         .slot_bytes = (of_heads + index_bytes) * n_blocks};
}

bool lw_kv_open(lw_kv_cache* cache, uint32_t n_slots) {
    if (n_slots == 0 || cache->slot_bytes == 0) return true;  // a tower without layers keeps nothing
    // slot_bytes is below 2^60 for every config that lw_model_create takes
    if (cache->slot_bytes > SIZE_MAX / n_slots) return false;
    return lw_block_map(cache->slot_bytes * n_slots, &cache->block);
}

lw_kv_cache lw_kv_part(const lw_kv_cache* cache, const lw_attention_config* config, size_t offset) {
    lw_kv_cache part;
    lw_kv_describe(config, cache->type, cache->n_blocks, &part);
    part.block = cache->block;
    part.block_bytes = cache->block_bytes;
    part.slot_bytes = cache->slot_bytes;
    part.offset = offset;
    return part;
}

void lw_kv_close(lw_kv_cache* cache) { lw_block_unmap(&cache->block); }

lw_kv_view lw_kv_slot(const lw_kv_cache* cache, uint32_t slot) {
    return (lw_kv_view){.base = (const uint8_t*)cache->block.data + slot * cache->slot_bytes + cache->offset,
                        .block_bytes = cache->block_bytes,
                        .head_bytes = cache->head_bytes,
                        .value_offset = cache->value_offset,
                        .scale_offset = cache->scale_offset,
                        .head_dim = cache->head_dim,
                        .result_dim = cache->result_dim,
                        .key_dim = cache->key_dim,
                        .value_dim = cache->value_dim,
                        .index_dim = cache->index_dim,
                        .index_offset = cache->index_offset,
                        .type = cache->type,
                        .latent = cache->latent};
}

// Writes the keys of one head. In a block each dimension has one lane per token. The loop goes dimension by dimension,
// so that a cache line is written once for all tokens.
static void write_keys(lw_type type, void* head, uint32_t offset, const float* keys, size_t n, size_t dim,
                       size_t stride) {
    for (size_t d = 0; d < dim; ++d) {
        const float* from = keys + d;
        const size_t at = d * LW_BLOCK_TOKENS + offset;
        if (type == LW_F16)
            for (size_t t = 0; t < n; ++t) ((uint16_t*)head)[at + t] = lw_float_to_half(from[t * stride]);
        else
            for (size_t t = 0; t < n; ++t) ((float*)head)[at + t] = from[t * stride];
    }
}

static void write_values(const lw_kv_cache* cache, void* values, uint32_t offset, lw_kv_rows rows) {
    const size_t dim = cache->result_dim;
    for (size_t t = 0; t < rows.n; ++t) {
        const float* from = rows.values + t * cache->n_kv_heads * dim;
        const size_t at = (offset + t) * cache->value_dim;
        if (cache->type == LW_F16)
            for (size_t d = 0; d < dim; ++d) ((uint16_t*)values)[at + d] = lw_float_to_half(from[d]);
        else
            memcpy((float*)values + at, from, dim * sizeof(float));
    }
}

bool lw_kv_write(const lw_kv_cache* cache, const lw_lane_ops* ops, uint32_t slot, uint32_t block, uint32_t offset,
                 lw_kv_rows rows) {
    const size_t dim = cache->head_dim, stride = cache->n_kv_heads * dim, of_value = cache->result_dim;
    const lw_kv_view view = lw_kv_slot(cache, slot);
    uint8_t* head = (uint8_t*)cache->block.data + slot * cache->slot_bytes + block * cache->block_bytes + cache->offset;
    bool finite = true;
    write_keys(beside_type(cache->type), head + cache->index_offset, offset, rows.index, rows.n, cache->index_dim,
               cache->index_dim);
    if (cache->latent && !lw_kv_codes(cache->type)) {
        write_keys(cache->type, head, offset, rows.keys, rows.n, dim, stride);
        return true;
    }
    for (uint32_t h = 0; h < cache->n_kv_heads; ++h, head += cache->head_bytes) {
        if (!lw_kv_codes(cache->type)) {
            write_keys(cache->type, head, offset, rows.keys, rows.n, dim, stride);
            write_values(cache, head + cache->value_offset, offset, rows);
        }
        for (size_t t = 0; lw_kv_codes(cache->type) && t < rows.n; ++t)
            finite &= ops->store_kv(&view, head, offset + t, rows.keys + t * stride,
                                    cache->latent ? NULL : rows.values + t * cache->n_kv_heads * of_value);
        rows.keys += dim;
        if (!cache->latent) rows.values += of_value;
    }
    return finite;
}

void lw_kv_copy(const lw_kv_cache* cache, uint32_t n_slots, uint32_t source, uint32_t target) {
    if (source == target) return;
    uint8_t* slot = cache->block.data;
    for (uint32_t i = 0; i < n_slots; ++i, slot += cache->slot_bytes)
        memcpy(slot + target * cache->block_bytes, slot + source * cache->block_bytes, cache->block_bytes);
}
