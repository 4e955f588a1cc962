// Small programs whose outcomes under C11 are known, to try the explorer itself: explore litmus -Wxr1,Rya0/Wyr1,Rxa1
//
// Threads are divided by slashes, operations by commas: W, R or A (add), an object x or y, the order (x relaxed, s seq_cst, else
// release, acquire or both), then the value, or of a load the register.
#include <stdatomic.h>

#include "explorer.h"
#include "scenarios.h"
#include "system.h"

typedef struct litmus {
    atomic_uint objects[2];
    unsigned registers[4];
} litmus;

typedef struct part {
    litmus* shared;
    const char* program;
} part;

// An order that is no constant would be taken for the strongest.
static void run_one(litmus* l, const char* operation) {
    atomic_uint* object = &l->objects[operation[1] - 'x'];
    const unsigned value = (unsigned)(operation[3] - '0');
#define WRITE(order) atomic_store_explicit(object, value, order)
#define READ(order) (l->registers[value] = atomic_load_explicit(object, order))
#define ADD(order) atomic_fetch_add_explicit(object, value, order)
#define WITH_ORDER(call, between)                            \
    operation[2] == 'x'   ? (void)call(memory_order_relaxed) \
    : operation[2] == 's' ? (void)call(memory_order_seq_cst) \
                          : (void)call(between)
    if (operation[0] == 'W') WITH_ORDER(WRITE, memory_order_release);
    if (operation[0] == 'R') WITH_ORDER(READ, memory_order_acquire);
    if (operation[0] == 'A') WITH_ORDER(ADD, memory_order_acq_rel);
}

static void* run_part(void* argument) {
    const part* p = argument;
    for (const char* at = p->program;; at += 5) {
        run_one(p->shared, at);
        if (at[4] != ',') return NULL;
    }
}

void run_litmus(void) {
    litmus l = {0};
    part parts[4];
    pthread_t handles[4];
    unsigned n = 0;
    const char* at = program_text();
    for (bool more = true; more; ++n) {
        parts[n] = (part){&l, at};
        while (*at != '/' && *at != 0) ++at;
        more = *at++ == '/';
    }
    for (unsigned i = 0; i < n; ++i) pthread_create(&handles[i], NULL, run_part, &parts[i]);
    for (unsigned i = 0; i < n; ++i) pthread_join(handles[i], NULL);
    unsigned outcome = 0;
    for (unsigned i = 0; i < 4; ++i) outcome = outcome * 10 + l.registers[i];
    for (unsigned i = 0; i < 2; ++i) outcome = outcome * 10 + atomic_load_explicit(&l.objects[i], memory_order_relaxed);
    observe(outcome);
}
