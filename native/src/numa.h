// Which CPU a thread runs on, and which memory node pages come from.
#ifndef LW_NUMA_H
#define LW_NUMA_H

#include <stddef.h>
#include <stdint.h>

#include "lanewise.h"

enum { LW_MAX_CPUS = 8192 };  // what masks have room for; kernels are built for no more

typedef struct lw_cpu_mask {
    unsigned long bits[LW_MAX_CPUS / (8 * sizeof(unsigned long))];
} lw_cpu_mask;

static inline _Bool lw_cpu_in_mask(const lw_cpu_mask* mask, uint32_t cpu) {
    const uint32_t word = 8 * sizeof(unsigned long);
    return cpu < LW_MAX_CPUS && (mask->bits[cpu / word] >> cpu % word & 1);
}

lw_cpu_mask lw_mask_of(uint32_t cpu);
// Of the calling thread; false when the system refuses.
_Bool lw_get_affinity(lw_cpu_mask* out);
_Bool lw_set_affinity(const lw_cpu_mask* mask);
// How many CPUs `cpus` names or, with NULL, the calling thread may run on; 0 when the system refuses.
uint32_t lw_count_cpus(const uint32_t* cpus, uint32_t n_cpus);
// LW_OK when the calling thread may run on each of the CPUs; errors say that they are of `who`.
lw_status lw_check_cpus(const char* who, const uint32_t* cpus, uint32_t n_cpus);

enum { LW_MAX_NODES = 1024 };  // what masks have room for; kernels are built for no more

// The nodes that pages go to in turn, one page (huge, where the block has such) after the other; a single node is a
// preference, which gives way when its memory is used up. No nodes: wherever the system puts them.
typedef struct lw_nodes {
    uint32_t n;
    unsigned long bits[LW_MAX_NODES / (8 * sizeof(unsigned long))];
} lw_nodes;

lw_nodes lw_nodes_of(const uint32_t* nodes, uint32_t n);  // each below LW_MAX_NODES
// Applies to whole pages that were not touched yet. Advice: refusal costs speed only.
void lw_place_pages(const lw_nodes* nodes, void* begin, size_t bytes);

#endif
