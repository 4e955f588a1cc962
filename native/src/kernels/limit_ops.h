// Loops that reach one limit of the machine and do nothing else: reading memory, or multiplying int8.
#ifndef LW_KERNELS_LIMIT_OPS_H
#define LW_KERNELS_LIMIT_OPS_H

#include <stddef.h>
#include <stdint.h>

#include "cpu.h"

enum { LW_READ_WAYS = 3 };  // one stream, one stream prefetched, four streams

typedef struct lw_limit_ops {
    // Reads `bytes` (a multiple of 4096, 64-byte aligned) and returns a checksum.
    uint64_t (*read)(const void* data, size_t bytes, int way);
    // Runs `rounds` rounds of the level's fastest int8 multiply-accumulate on registers.
    void (*multiply)(uint64_t rounds);
    uint64_t macs_per_round;
} lw_limit_ops;

extern const lw_limit_ops* const lw_level_limit_ops[LW_LEVEL_COUNT];

#endif
