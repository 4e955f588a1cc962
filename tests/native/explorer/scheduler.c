// Threads as coroutines, and the ways to go on of every execution, one after the other.
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "explorer.h"

enum { MAX_CHOICES = 2000, STACK = 1 << 15, HEAP = 1 << 17, MAX_EVENTS = 4000, MAX_SITES = 200, MAX_OUTCOMES = 100 };

thread threads[MAX_THREADS];
unsigned n_threads;
thread* self;

static struct {
    uint16_t taken, of;
} choices[MAX_CHOICES];
static unsigned n_choices, n_chosen, rarities, rarities_allowed;
static uint64_t n_complete, n_abandoned, n_dead_ends, n_met;
static bool every_state;
static jmp_buf scheduler;

unsigned choose(unsigned n, const char* what, uintptr_t about) {
    self->stage = (uintptr_t)what * 31 + about;
    if (n <= 1) return 0;
    if (n_chosen == MAX_CHOICES) report("more choices than there is room for");
    if (n_chosen == n_choices) {
        if (!every_state && !is_new_state()) _longjmp(scheduler, 3);
        choices[n_choices].taken = 0;
        choices[n_choices++].of = (uint16_t)n;
    }
    if (choices[n_chosen].of != n) report("an execution that is repeated goes another way");
    return choices[n_chosen++].taken;
}

static bool next_execution(void) {
    while (n_choices > 0 && choices[n_choices - 1].taken + 1 == choices[n_choices - 1].of) --n_choices;
    if (n_choices == 0) return false;
    ++choices[n_choices - 1].taken;
    return true;
}

bool choose_rarity(void) {
    if (rarities == 0 || choose(2, "rarity", 0) == 0) return false;
    --rarities;
    return true;
}

unsigned rarities_left(void) { return rarities; }

// ---- Threads --------------------------------------------------------------------------------------------------------

static _Alignas(64) char memory[HEAP + MAX_THREADS * STACK];
static size_t used;
static _Alignas(64) char own_stacks[MAX_THREADS + 1][STACK];

void* arena(size_t bytes, size_t alignment) {
    used = (used + alignment - 1) / alignment * alignment;
    if (used + bytes > HEAP) report("no memory left");
    used += bytes;
    memset(memory + used - bytes, 0, bytes);
    return memory + used - bytes;
}

size_t arena_used(void) { return used; }
const char* stack_top(const thread* t) { return memory + HEAP + (t - threads + 1) * STACK; }

void arena_bounds(uintptr_t* begin, uintptr_t* end) {
    *begin = (uintptr_t)memory;
    *end = *begin + sizeof memory;
}

bool thread_may_go(const thread* t) { return !t->finished && (t->may_go == NULL || t->may_go(t)); }

bool others_may_go(void) {
    for (unsigned i = 0; i < n_threads; ++i)
        if (&threads[i] != self && thread_may_go(&threads[i])) return true;
    return false;
}

void wait_until(bool (*ready)(const thread*), const void* waits_for, bool postponed) {
    self->may_go = ready;
    self->waits_for = waits_for;
    self->postponed = postponed;
    if (!_setjmp(self->context)) _longjmp(scheduler, 1);
    self->may_go = NULL;
}

static void begin_thread(void) {
    self->run(self->argument);
    self->finished = true;
    _longjmp(scheduler, 1);
}

thread* create_thread(void* (*run)(void*), void* argument) {
    if (n_threads == MAX_THREADS) report("more threads than there is room for");
    thread* t = &threads[n_threads];
    *t = (thread){.run = run, .argument = argument};
    start_thread_memory(&t->memory);
    getcontext(&t->start);
    t->own_stack = own_stacks[n_threads + 1];
    memset(memory + HEAP + n_threads * STACK, 0, STACK);
    t->start.uc_stack.ss_sp = memory + HEAP + n_threads * STACK;
    t->start.uc_stack.ss_size = STACK;
    makecontext(&t->start, begin_thread, 0);
    ++n_threads;
    return t;
}

_Noreturn void abandon(void) { _longjmp(scheduler, 2); }

// ---- What happened --------------------------------------------------------------------------------------------------

typedef struct event {
    const char* what;
    const volatile void* address;
    uint64_t value;
    const void* site;
    unsigned thread;
    int order;
} event;

static event events[MAX_EVENTS];
static unsigned n_events;

void note_event(const char* what, const volatile void* address, uint64_t value, int order, const void* site) {
    if (n_events == MAX_EVENTS) report("an execution that does not end");
    events[n_events++] = (event){what, address, value, site, self_index(), order};
}

static const char* const order_names[] = {"relaxed", "consume", "acquire", "release", "acq_rel", "seq_cst"};

_Noreturn void report(const char* what, ...) {
    va_list args;
    va_start(args, what);
    vprintf(what, args);
    va_end(args);
    printf("\nafter %llu executions; what led to it:\n", (unsigned long long)n_complete);
    for (unsigned i = 0; i < n_events; ++i) {
        const event* e = &events[i];
        printf("  thread %u: %s %p %llu %s @%p\n", e->thread, e->what, (void*)e->address, (unsigned long long)e->value,
               e->order >= 0 ? order_names[e->order] : "", e->site);
    }
    exit(1);
}

static struct {
    const void* site;
    int order;
} sites[MAX_SITES];
static unsigned n_sites;
static const void* weakened;
static int weaker;

int order_at(const void* site, int order) {
    unsigned i = 0;
    while (i < n_sites && sites[i].site != site) ++i;
    if (i == MAX_SITES) report("more atomic operations than there is room for");
    if (i == n_sites) {
        sites[i].site = site;
        sites[n_sites++].order = order;
    }
    return site == weakened ? weaker : order;
}

// ---- Executions -----------------------------------------------------------------------------------------------------

static void run_to_the_end(const scenario* s) {
    n_threads = n_chosen = n_events = 0;
    used = 0;
    rarities = rarities_allowed;
    self = NULL;
    reset_memory();
    reset_system();
    self = create_thread((void* (*)(void*))s->run, NULL);
    for (;;) {
        const int left = _setjmp(scheduler);
        if (left >= 2) {
            ++*(left == 2 ? &n_abandoned : &n_met);
            return;
        }
        unsigned next = 0;
        bool finished = true, postponed = false;
        for (unsigned i = 0; i < n_threads; ++i) {
            finished &= threads[i].finished;
            postponed |= !threads[i].finished && threads[i].postponed && !thread_may_go(&threads[i]);
        }
        while (next < n_threads && !thread_may_go(&threads[next])) ++next;
        if (next == n_threads) {
            if (!finished && !postponed) report("deadlock: nobody can go on");
            ++*(finished ? &n_complete : &n_dead_ends);
            return;
        }
        self = &threads[next];
        if (self->started) _longjmp(self->context, 1);
        self->started = true;
        setcontext(&self->start);
    }
}

static unsigned outcomes[MAX_OUTCOMES], n_outcomes;
static const char* text;
static unsigned parameters[128];

void observe(unsigned outcome) {
    for (unsigned i = 0; i < n_outcomes; ++i)
        if (outcomes[i] == outcome) return;
    if (n_outcomes == MAX_OUTCOMES) report("more outcomes than there is room for");
    outcomes[n_outcomes++] = outcome;
}

const char* program_text(void) { return text; }

unsigned parameter(char name, unsigned by_default) {
    const unsigned given = parameters[(unsigned char)name % 128];
    return given != 0 ? given - 1 : by_default;
}

static void read_arguments(int argc, char** argv) {
    text = argc > 2 ? argv[2] + 1 : "";
    for (int i = 2; i < argc; ++i) {
        if (strncmp(argv[i], "--weaken=", 9) == 0) {  // --weaken=ADDRESS,ORDER
            char* end;
            weakened = (const void*)(uintptr_t)strtoull(argv[i] + 9, &end, 16);
            weaker = atoi(end + 1);
        } else if (argv[i][0] == '-' && argv[i][1] > 0) {
            parameters[(unsigned char)argv[i][1]] = 1 + (unsigned)atoi(argv[i] + 2);
        }
    }
    every_state = parameter('e', 0);
    rarities_allowed = parameter('r', 1);
}

int main(int argc, char** argv) {
    const scenario* s = scenarios;
    while (s->name != NULL && (argc < 2 || strcmp(s->name, argv[1]) != 0)) ++s;
    if (s->name == NULL) return 2;
    read_arguments(argc, argv);
    do run_to_the_end(s);
    while (next_execution());
    for (unsigned i = 0; i < n_outcomes; ++i) printf("outcome %06u\n", outcomes[i]);
    for (unsigned i = 0; i < n_sites; ++i) printf("site %p %d\n", sites[i].site, sites[i].order);
    printf("%s: %llu executions, %llu left for another, %llu that cannot be, %llu met before\n", s->name,
           (unsigned long long)n_complete, (unsigned long long)n_dead_ends, (unsigned long long)n_abandoned,
           (unsigned long long)n_met);
    return 0;
}
