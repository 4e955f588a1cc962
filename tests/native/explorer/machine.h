// The memory of C11 as a machine that runs threads one at a time and can be made to show everything the standard allows.
//
// Each atomic object has its messages: the values ever stored there, in modification order. A load may read any message
// that its thread does not know to be overwritten; a store may enter the order anywhere behind what its thread knows;
// read-modify-writes stand right behind what they read. Release attaches to a message what its thread knows, acquire takes
// it over; a read-modify-write hands on what it read (C++20's release sequences, shorter than C11's). Sequentially consistent
// accesses must in addition agree with one total order: the condition on `psc` of RC11 (Lahav et al., PLDI 2017) without
// fences, which the library has none of. A thread's stores follow its loads, as RC11 has it: no value comes out of thin air.
#ifndef EXPLORER_MACHINE_H
#define EXPLORER_MACHINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MAX_THREADS = 5, MAX_LOCATIONS = 48, MAX_MESSAGES = 600, MAX_HERE = 120, MAX_IN_ORDER = 512 };
enum { NOTHING = UINT16_MAX, ELSEWHERE = -1, ORDER_WORDS = MAX_IN_ORDER / 64 };

typedef struct knowledge {
    uint16_t clock[MAX_THREADS];     // events of each thread that happen before
    uint16_t newest[MAX_LOCATIONS];  // of each atomic object the message that older ones cannot be read behind
} knowledge;

void join_knowledge(knowledge* into, const knowledge* from);

// What the memory keeps of one thread.
typedef struct memory_of_thread {
    knowledge known;
    // For the total order of sequentially consistent events (order.c).
    int last_location;                 // of its last event
    uint16_t before_run[MAX_THREADS];  // clock before the last events at that one location
    uint16_t last_in_order, n_unfollowed;
    uint16_t unfollowed[8];        // of its events in the order those with no event at another location behind them
    uint16_t postponed_after;      // a message: what it is to read comes later
    uint16_t behind;               // a message: what it is to read is not older
    const struct location* reads;  // while it picks a message
    bool advance;                  // its next load must read something newer than what it knows
} memory_of_thread;

typedef struct message {
    uint64_t value;
    knowledge released;
    uint16_t position;  // in the modification order
    bool modified;      // a read-modify-write stands behind it
    bool by_modification;
} message;

typedef struct location {
    uintptr_t address;  // 0: it has been written as plain memory and begins anew
    size_t bytes;
    uint16_t n, newest;  // messages, the one that was made last
    uint16_t at[MAX_HERE];
} location;

typedef struct ordered_event {  // a sequentially consistent one
    uint8_t thread, location;
    uint16_t clock, read, wrote;
    uint16_t followed;  // clock of its thread's next event at another location; 0: none yet
    uint64_t before[ORDER_WORDS];
} ordered_event;

extern message messages[MAX_MESSAGES];
extern location locations[MAX_LOCATIONS];
extern ordered_event ordered[MAX_IN_ORDER];
extern unsigned n_messages, n_locations, n_ordered;
static inline unsigned position_of(uint16_t id) { return messages[id].position; }
static inline bool is_before(const ordered_event* e, unsigned other) {
    return e->before[other / 64] >> (other % 64) & 1;
}

void reset_memory(void);
void start_thread_memory(memory_of_thread* thread);

// Every access is checked against all others that it is not ordered with (races.c).
typedef enum access_kind { PLAIN_READ, PLAIN_WRITE, ATOMIC_READ, ATOMIC_WRITE, N_ACCESSES } access_kind;
typedef struct word_uses {
    uint32_t execution;
    bool forbidden, listed;
    uint16_t clock[N_ACCESSES][MAX_THREADS];
} word_uses;
void reset_races(void);
void note_access(const volatile void* address, size_t bytes, access_kind kind);
void forbid_accesses(const volatile void* address, size_t bytes);  // memory given back
// Calls `use` for each word that some thread of the running ones does not know all uses of; `base` is what all know.
void for_unknown_uses(const uint16_t* base, void (*use)(uintptr_t address, const word_uses* uses));

// The total order of sequentially consistent events (order.c).
void count_event(int location);  // of the current thread; ELSEWHERE: at plain memory
void add_to_order(unsigned location, uint16_t read, uint16_t wrote);

// Accesses of the current thread.
void plain_access(const volatile void* address, size_t bytes, access_kind kind);
uint64_t load(volatile void* address, size_t bytes, int order);
void store(volatile void* address, size_t bytes, uint64_t value, int order);
typedef uint64_t modification(uint64_t old, uint64_t operand);
uint64_t modify(volatile void* address, size_t bytes, modification* by, uint64_t operand, int order);
bool compare_exchange(volatile void* address, size_t bytes, uint64_t* expected, uint64_t desired, int order,
                      int failure_order);
// A load by the kernel on behalf of this thread, which knows in addition what `behind` says.
uint64_t load_behind(volatile void* address, size_t bytes, const knowledge* behind);
// The current thread waits for others: its next load must read something newer, and it does not run before there is.
void wait_for_a_newer_message(void);

#endif
