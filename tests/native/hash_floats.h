// One number for the bits of many floats: FNV-1a.
#ifndef HASH_FLOATS_H
#define HASH_FLOATS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static const uint64_t hash_of_nothing = 0xCBF29CE484222325u;

// The hash of what `hash` is of, and of n floats after it.
static inline uint64_t hash_floats(uint64_t hash, const float* x, size_t n) {
    for (size_t i = 0; i < n; ++i) {
        uint32_t bits;
        memcpy(&bits, x + i, 4);
        for (int b = 0; b < 4; ++b) hash = (hash ^ (bits >> (8 * b) & 0xFF)) * 0x100000001B3u;
    }
    return hash;
}

#endif
