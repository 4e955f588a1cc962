// Large zeroed blocks of anonymous memory, on huge pages if the system grants them.
#ifndef LW_MEMORY_H
#define LW_MEMORY_H

#include <stddef.h>
#include <stdint.h>

#include "numa.h"

typedef struct lw_block {
    void* data;     // aligned to at least 64 bytes; to 2 MiB if the block is that large
    void* mapping;  // address for munmap
    size_t mapped;
} lw_block;

// Returns false when the system refuses; `out` is then all zero.
_Bool lw_block_map(size_t bytes, lw_block* out);
void lw_block_unmap(lw_block* block);
// Places a block on nodes; call it before the block is touched.
void lw_place_block(const lw_nodes* nodes, const lw_block* block);

// Blocks from which the memory of many tensors is cut, so that small tensors and the ends of large ones are on huge
// pages, too. Zero-initialize it. Memory is freed only by lw_arena_free.
typedef struct lw_arena {
    lw_block* blocks;
    size_t n_blocks;
    char* next;
    size_t left;  // bytes from `next`
    lw_nodes nodes;
} lw_arena;

// Returns `bytes` zeroed bytes, 64-byte aligned, or NULL when the system refuses.
void* lw_arena_take(lw_arena* arena, size_t bytes);
void lw_arena_free(lw_arena* arena);

static inline size_t lw_round_up(size_t value, size_t multiple) { return (value + multiple - 1) / multiple * multiple; }

#endif
