// The bytes of a fuzzer, read as numbers: zeros follow the last of them, so that every input means something.
#ifndef LW_FUZZ_INPUT_H
#define LW_FUZZ_INPUT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct fuzz_input {
    const uint8_t* data;
    size_t left;
} fuzz_input;

// Called by libFuzzer, or by replay.c.
int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

static inline void take_bytes(fuzz_input* in, void* to, size_t n) {
    const size_t given = n < in->left ? n : in->left;
    memset(to, 0, n);
    memcpy(to, in->data, given);
    in->data += given;
    in->left -= given;
}

static inline uint8_t take_byte(fuzz_input* in) {
    uint8_t value;
    take_bytes(in, &value, 1);
    return value;
}

static inline uint32_t take_word(fuzz_input* in) {
    uint32_t value;
    take_bytes(in, &value, 4);
    return value;
}

// 0 .. n - 1, of one byte while n fits in one.
static inline uint32_t take_below(fuzz_input* in, uint32_t n) {
    uint32_t value = take_byte(in);
    if (n > 256) value |= (uint32_t)take_byte(in) << 8;
    return value % n;
}

static inline bool take_flag(fuzz_input* in) { return take_byte(in) & 1; }

// Any finite float, often one at an end of the range.
static inline float take_float(fuzz_input* in) {
    static const uint32_t ends[] = {0,          0x80000000, 1,          0x80000001, 0x007FFFFF, 0x00800000,
                                    0x7F7FFFFF, 0xFF7FFFFF, 0x3F800000, 0xBF800000, 0x0DA24260, 0x7149F2CA};
    const uint8_t way = take_byte(in);
    uint32_t bits = way < 64 ? ends[way % 12] : take_word(in);
    if (way >= 192) bits = (bits & 0x87FFFFFF) | 0x38000000;  // near 1
    if ((bits & 0x7F800000) == 0x7F800000) bits ^= 0x40000000;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

// A difference between two ways that must agree: said, and then the process ends, which a fuzzer takes for a crash.
#define FUZZ_CHECK(condition, ...)                 \
    do {                                           \
        if (!(condition)) {                        \
            fprintf(stderr, "FUZZ: " __VA_ARGS__); \
            fprintf(stderr, "\n");                 \
            abort();                               \
        }                                          \
    } while (0)

#endif
