// Large zeroed blocks of anonymous memory, on huge pages where the system grants them.
#ifndef LW_MEMORY_H
#define LW_MEMORY_H

#include <stddef.h>

typedef struct lw_block {
    void* data;     // aligned to 64 bytes at least, to 2 MiB when the block is that large
    void* mapping;  // what to unmap
    size_t mapped;
} lw_block;

// Returns false when the system refuses; `out` is then all zero.
_Bool lw_block_map(size_t bytes, lw_block* out);
void lw_block_unmap(lw_block* block);

static inline size_t lw_round_up(size_t value, size_t multiple) { return (value + multiple - 1) / multiple * multiple; }

#endif
