// Runs a program with threads in every order that can make a difference, and with every value that its loads may read.
//
// Sources are compiled with gcc -fsanitize=thread, which calls a function for each of their accesses to memory, plain or
// atomic; those functions are ours (hooks.c) and not the sanitizer's. Threads are coroutines. An execution is what each load
// read and in which order each object was written; each is met once: the thread that runs goes on until it must wait, and a
// load either reads one of the messages there are or is postponed until there is another. A state that has been met before,
// all that can matter to what follows taken into account (state.c), is not followed again.
#ifndef EXPLORER_H
#define EXPLORER_H

#include <setjmp.h>
#include <ucontext.h>

#include "machine.h"

typedef struct object object;

typedef struct thread {
    // Offsets 0 and 8 are known to entries.c.
    void** frame;     // of the source that has called us: [1] is where it goes on
    char* own_stack;  // ours while it waits
    memory_of_thread memory;
    bool (*may_go)(const struct thread*);  // NULL: it may
    const void* waits_for;
    const unsigned* turn_of;
    unsigned wait_turn;
    const object* queue;  // of a futex that the kernel looks at for it since turn wait_turn
    bool postponed;       // by choice: an execution in which it never goes on is met elsewhere
    bool started, finished;
    uint64_t stage;    // of the call it is in
    uint64_t outcome;  // of that call, as far as decided
    void* (*run)(void*);
    void* argument;
    jmp_buf context;
    ucontext_t start;
} thread;

extern thread threads[MAX_THREADS];
extern unsigned n_threads;
extern thread* self;
static inline unsigned self_index(void) { return (unsigned)(self - threads); }

// One of `n` ways to go on; all are taken in time. What is decided and about what tells states apart.
unsigned choose(unsigned n, const char* what, uintptr_t about);
// Of the choices that may be made only so often in one execution, as spurious wake-ups.
bool choose_rarity(void);
unsigned rarities_left(void);
void wait_until(bool (*may_go)(const thread*), const void* waits_for, bool postponed);
bool thread_may_go(const thread* t);
bool others_may_go(void);
thread* create_thread(void* (*run)(void*), void* argument);
// Ends the execution as one that cannot be.
_Noreturn void abandon(void);
// Ends the exploration: prints what is wrong and what led to it.
_Noreturn void report(const char* what, ...) __attribute__((format(printf, 1, 2)));
#define expect(condition) ((condition) ? (void)0 : report("%s:%d: not so: %s", __FILE__, __LINE__, #condition))

// For reports and mutations: each atomic operation of the sources is known by its return address.
void note_event(const char* what, const volatile void* address, uint64_t value, int order, const void* site);
int order_at(const void* site, int order);

// Memory that all executions find the same, stacks after it.
void* arena(size_t bytes, size_t alignment);
void arena_bounds(uintptr_t* begin, uintptr_t* end);
size_t arena_used(void);
const char* stack_top(const thread* t);

struct object {  // a mutex, a condition or the kernel's queue of a futex (system.c)
    uintptr_t address;
    thread* holder;
    unsigned turns[2];  // what is done to one happens in some order; of two kinds one is postponed for the other only
    unsigned last_wake;
    knowledge known;
    bool waiting[MAX_THREADS];
};
enum { MAX_OBJECTS = 16 };
extern object objects[MAX_OBJECTS];
extern unsigned n_objects;
extern uint64_t given_back;  // tells which memory was
void reset_system(void);

bool is_new_state(void);

typedef struct scenario {
    const char* name;
    void (*run)(void);
} scenario;
extern const scenario scenarios[];
void observe(unsigned outcome);                      // is printed at the end, once
const char* program_text(void);                      // the second argument
unsigned parameter(char name, unsigned by_default);  // -n4 on the command line: 'n', 4

#endif
