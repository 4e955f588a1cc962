// What gcc -fsanitize=thread calls for each access of the sources.
#include <stdatomic.h>
#include <string.h>

#include "explorer.h"

#define SITE (self->frame[1])

void __tsan_init(void) {}
// What calls have left on the stack is not part of a state.
static void clear_dead_stack(void) {
    enum { DEAD = 512 };
    memset((char*)self->frame - DEAD, 0, DEAD);
}

void do___tsan_func_entry(void* caller) {
    (void)caller;
    clear_dead_stack();
}
void do___tsan_func_exit(void) { clear_dead_stack(); }

static void plain(const void* p, size_t bytes, access_kind kind) {
    clear_dead_stack();
    plain_access(p, bytes, kind);
}

#define PLAIN(size)                                                              \
    void do___tsan_read##size(void* p) { plain(p, size, PLAIN_READ); }           \
    void do___tsan_write##size(void* p) { plain(p, size, PLAIN_WRITE); }         \
    void do___tsan_unaligned_read##size(void* p) { plain(p, size, PLAIN_READ); } \
    void do___tsan_unaligned_write##size(void* p) { plain(p, size, PLAIN_WRITE); }
PLAIN(1);
PLAIN(2);
PLAIN(4);
PLAIN(8);
PLAIN(16);

void do___tsan_read_range(void* p, size_t bytes) { plain(p, bytes, PLAIN_READ); }
void do___tsan_write_range(void* p, size_t bytes) { plain(p, bytes, PLAIN_WRITE); }

static uint64_t add(uint64_t old, uint64_t x) { return old + x; }
static uint64_t subtract(uint64_t old, uint64_t x) { return old - x; }
static uint64_t and (uint64_t old, uint64_t x) { return old & x; }
static uint64_t or (uint64_t old, uint64_t x) { return old | x; }
static uint64_t xor (uint64_t old, uint64_t x) { return old ^ x; } static uint64_t replace(uint64_t old, uint64_t x) {
    (void)old;
    return x;
}

// A weaker order of a compare-exchange is that of its failure too.
static int weaker_of(int order, int other) { return order == memory_order_relaxed ? order : other; }

#define MODIFY(bits, type, name, by)                                            \
    type do___tsan_atomic##bits##_##name(type volatile* p, type x, int order) { \
        clear_dead_stack();                                                     \
        const int at = order_at(SITE, order);                                   \
        const type old = (type)modify((void*)p, sizeof *p, by, x, at);          \
        note_event(#name, p, old, at, SITE);                                    \
        return old;                                                             \
    }
#define COMPARE(bits, type, name)                                                                                 \
    int do___tsan_atomic##bits##_##name(type volatile* p, type* expected, type desired, int order, int failure) { \
        clear_dead_stack();                                                                                       \
        const int at = order_at(SITE, order);                                                                     \
        uint64_t value = *expected;                                                                               \
        const bool done = compare_exchange((void*)p, sizeof *p, &value, desired, at, weaker_of(at, failure));     \
        note_event(done ? #name : #name " fails", p, value, at, SITE);                                            \
        if (!done) *expected = (type)value;                                                                       \
        return done;                                                                                              \
    }
#define ATOMIC(bits, type)                                                     \
    type do___tsan_atomic##bits##_load(const type volatile* p, int order) {    \
        clear_dead_stack();                                                    \
        const int at = order_at(SITE, order);                                  \
        const type value = (type)load((void*)p, sizeof *p, at);                \
        note_event("load", p, value, at, SITE);                                \
        return value;                                                          \
    }                                                                          \
    void do___tsan_atomic##bits##_store(type volatile* p, type x, int order) { \
        clear_dead_stack();                                                    \
        const int at = order_at(SITE, order);                                  \
        store((void*)p, sizeof *p, x, at);                                     \
        note_event("store", p, x, at, SITE);                                   \
    }                                                                          \
    MODIFY(bits, type, exchange, replace)                                      \
    MODIFY(bits, type, fetch_add, add)                                         \
    MODIFY(bits, type, fetch_sub, subtract)                                    \
    MODIFY(bits, type, fetch_and, and)                                         \
    MODIFY(bits, type, fetch_or, or)                                           \
    MODIFY(bits, type, fetch_xor, xor)                                         \
    COMPARE(bits, type, compare_exchange_strong)                               \
    COMPARE(bits, type, compare_exchange_weak)
ATOMIC(8, uint8_t);
ATOMIC(16, uint16_t);
ATOMIC(32, uint32_t);
ATOMIC(64, uint64_t);

void do___tsan_atomic_thread_fence(int order) {
    (void)order;
    report("a fence, which the memory machine does not know");
}
