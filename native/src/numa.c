#define _GNU_SOURCE
#include "numa.h"

#include <errno.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "status.h"

// From linux/mempolicy.h, which some systems lack.
enum { POLICY_PREFERRED = 1, POLICY_INTERLEAVE = 3 };

lw_cpu_mask lw_mask_of(uint32_t cpu) {
    lw_cpu_mask mask = {{0}};
    const uint32_t word = 8 * sizeof(unsigned long);
    if (cpu < LW_MAX_CPUS) mask.bits[cpu / word] = 1ul << cpu % word;
    return mask;
}

_Bool lw_get_affinity(lw_cpu_mask* out) {
    *out = (lw_cpu_mask){{0}};
    return sched_getaffinity(0, sizeof *out, (cpu_set_t*)out) == 0;
}

_Bool lw_set_affinity(const lw_cpu_mask* mask) {
    return sched_setaffinity(0, sizeof *mask, (const cpu_set_t*)mask) == 0;
}

uint32_t lw_count_cpus(const uint32_t* cpus, uint32_t n_cpus) {
    const uint32_t word = 8 * sizeof(unsigned long);
    lw_cpu_mask mask = {{0}};
    uint32_t count = 0;
    if (cpus == NULL && !lw_get_affinity(&mask)) return 0;
    for (uint32_t i = 0; cpus != NULL && i < n_cpus; ++i)
        if (cpus[i] < LW_MAX_CPUS) mask.bits[cpus[i] / word] |= 1ul << cpus[i] % word;
    for (size_t i = 0; i < sizeof mask.bits / sizeof *mask.bits; ++i)
        count += (uint32_t)__builtin_popcountl(mask.bits[i]);
    return count;
}

lw_status lw_check_cpus(const char* who, const uint32_t* cpus, uint32_t n_cpus) {
    lw_cpu_mask allowed;
    if (!lw_get_affinity(&allowed)) return lw_fail(LW_ERR_SYSTEM, "%s: sched_getaffinity: %s", who, strerror(errno));
    for (uint32_t i = 0; i < n_cpus; ++i)
        if (!lw_cpu_in_mask(&allowed, cpus[i]))
            return lw_fail(LW_ERR_ARGUMENT, "%s: cpus[%u] is %u, must be a CPU in this thread's affinity mask", who, i,
                           cpus[i]);
    return LW_OK;
}

lw_nodes lw_nodes_of(const uint32_t* nodes, uint32_t n) {
    lw_nodes out = {.n = n};
    const uint32_t word = 8 * sizeof(unsigned long);
    for (uint32_t i = 0; i < n; ++i) out.bits[nodes[i] / word] |= 1ul << nodes[i] % word;
    return out;
}

static _Bool bind_memory(const lw_nodes* nodes, void* begin, size_t bytes) {
    const int policy = nodes->n > 1 ? POLICY_INTERLEAVE : POLICY_PREFERRED;
    // The kernel reads one bit less than the number that it is given.
    return syscall(SYS_mbind, begin, bytes, policy, nodes->bits, LW_MAX_NODES + 1ul, 0u) == 0;
}

void lw_place_pages(const lw_nodes* nodes, void* begin, size_t bytes) {
    if (nodes->n > 0) bind_memory(nodes, begin, bytes);
}

lw_status lw_numa_check(const uint32_t* nodes, uint32_t n_nodes) {
    if (nodes == NULL || n_nodes < 1 || n_nodes > LW_MAX_NODES)
        return lw_fail(LW_ERR_ARGUMENT, "numa: %u nodes, must be 1 to %d", n_nodes, LW_MAX_NODES);
    const size_t bytes = (size_t)sysconf(_SC_PAGESIZE);
    void* page = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) return lw_fail(LW_ERR_MEMORY, "numa: no memory for a page");
    lw_status status = LW_OK;
    for (uint32_t i = 0; status == LW_OK && i < n_nodes; ++i) {
        const lw_nodes one = nodes[i] < LW_MAX_NODES ? lw_nodes_of(&nodes[i], 1) : (lw_nodes){0};
        if (one.n == 1 && bind_memory(&one, page, bytes)) continue;
        if (one.n == 0 || errno == EINVAL)
            status = lw_fail(LW_ERR_ARGUMENT, "numa: nodes[%u] is %u, must be a node whose memory this process may use",
                             i, nodes[i]);
        else
            status = lw_fail(LW_ERR_SYSTEM, "numa: mbind: %s", strerror(errno));
    }
    munmap(page, bytes);
    return status;
}
