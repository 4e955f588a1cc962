#include "memory.h"

#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { HUGE_PAGE = 2 << 20, ARENA_BLOCK = 64 << 20 };

_Bool lw_block_map(size_t bytes, lw_block* out) {
    *out = (lw_block){0};
    const size_t align = bytes >= HUGE_PAGE ? HUGE_PAGE : 1;
    if (bytes == 0 || bytes > SIZE_MAX - 2 * (size_t)HUGE_PAGE) return 0;
    const size_t mapped = lw_round_up(bytes, align) + (align > 1 ? align : 0);
    char* mapping = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping == MAP_FAILED) return 0;
    char* data = (char*)lw_round_up((uintptr_t)mapping, align);
    // Only advice: if it is refused, speed suffers. The tail stays on small pages, or each block would waste most of a
    // huge one.
    if (align > 1) madvise(data, bytes / align * align, MADV_HUGEPAGE);
    *out = (lw_block){data, mapping, mapped};
    return 1;
}

void lw_block_unmap(lw_block* block) {
    if (block->mapping) munmap(block->mapping, block->mapped);
    *block = (lw_block){0};
}

void lw_place_block(const lw_nodes* nodes, const lw_block* block) {
    lw_place_pages(nodes, block->mapping, block->mapped);
}

void* lw_arena_take(lw_arena* arena, size_t bytes) {
    if (bytes == 0 || bytes > SIZE_MAX / 2) return NULL;
    bytes = lw_round_up(bytes, 64);
    if (bytes > arena->left) {
        lw_block* blocks = realloc(arena->blocks, (arena->n_blocks + 1) * sizeof *blocks);
        if (blocks == NULL) return NULL;
        arena->blocks = blocks;
        lw_block* block = &blocks[arena->n_blocks];
        const size_t size = bytes > ARENA_BLOCK ? lw_round_up(bytes, HUGE_PAGE) : ARENA_BLOCK;
        if (!lw_block_map(size, block)) return NULL;
        lw_place_block(&arena->nodes, block);
        ++arena->n_blocks;
        arena->next = block->data;
        arena->left = size;
    }
    void* taken = arena->next;
    arena->next += bytes;
    arena->left -= bytes;
    return taken;
}

void lw_arena_free(lw_arena* arena) {
    for (size_t i = 0; i < arena->n_blocks; ++i) lw_block_unmap(&arena->blocks[i]);
    free(arena->blocks);
    *arena = (lw_arena){0};
}
