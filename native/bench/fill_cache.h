// Made-up contents of a KV cache for benchmarks.
#ifndef LW_BENCH_FILL_CACHE_H
#define LW_BENCH_FILL_CACHE_H

#include "kv_cache.h"

// Fills a cache with f16 values of 2^-4 to 2^-3 of either sign, or with arbitrary codes of one scale.
static inline void fill_cache(const lw_kv_cache* cache) {
    uint16_t* const halves = cache->block.data;
    const size_t bytes = (size_t)((char*)cache->block.mapping + cache->block.mapped - (char*)cache->block.data);
    for (size_t i = 0; i < bytes / 2; ++i) halves[i] = (uint16_t)(0x2C00 | (i * 2654435761u >> 16 & 0x83FF));
    uint8_t* head = cache->block.data;
    uint8_t* const end = head + bytes / cache->head_bytes * cache->head_bytes;
    for (; lw_kv_codes(cache->type) && head < end; head += cache->head_bytes)
        for (size_t i = 0; i < 2 * LW_BLOCK_TOKENS; ++i) ((float*)(head + cache->scale_offset))[i] = 0x1p-10f;
}

#endif
