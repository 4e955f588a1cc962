// The CPU that a thread runs on, and the memory node that pages come from.
#ifndef LW_NUMA_H
#define LW_NUMA_H

#include <stddef.h>
#include <stdint.h>

#include "lanewise.h"

enum { LW_MAX_CPUS = 8192 };  // size of masks; no kernel is built for more

typedef struct lw_cpu_mask {
    unsigned long bits[LW_MAX_CPUS / (8 * sizeof(unsigned long))];
} lw_cpu_mask;

static inline _Bool lw_cpu_in_mask(const lw_cpu_mask* mask, uint32_t cpu) {
    const uint32_t word = 8 * sizeof(unsigned long);
    return cpu < LW_MAX_CPUS && (mask->bits[cpu / word] >> cpu % word & 1);
}

lw_cpu_mask lw_mask_of(uint32_t cpu);
// The mask of the calling thread; false when the system refuses.
_Bool lw_get_affinity(lw_cpu_mask* out);
_Bool lw_set_affinity(const lw_cpu_mask* mask);
// Number of CPUs that `cpus` names or, if it is NULL, that the calling thread may run on; 0 when the system refuses.
uint32_t lw_count_cpus(const uint32_t* cpus, uint32_t n_cpus);
// LW_OK if the calling thread may run on each of the CPUs; errors begin with `who`.
lw_status lw_check_cpus(const char* who, const uint32_t* cpus, uint32_t n_cpus);

enum { LW_MAX_NODES = 1024 };  // size of masks; no kernel is built for more

// Pages (huge pages, if the block has them) go to these nodes in turn. A single node is a preference: other nodes are
// used when its memory is used up. No nodes: the system chooses.
typedef struct lw_nodes {
    uint32_t n;
    unsigned long bits[LW_MAX_NODES / (8 * sizeof(unsigned long))];
} lw_nodes;

lw_nodes lw_nodes_of(const uint32_t* nodes, uint32_t n);  // each below LW_MAX_NODES
// Applies to whole pages that have not been touched yet. Only advice: if it is refused, speed suffers.
void lw_place_pages(const lw_nodes* nodes, void* begin, size_t bytes);

#endif
