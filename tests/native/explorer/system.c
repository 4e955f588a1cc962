// The system that explored sources see. It promises no more than it must: sleepers may wake up for nothing, a signal
// wakes one thread, and only locks order memory.
#include "system.h"

#include <errno.h>
#include <linux/futex.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/syscall.h>

#include "explorer.h"
#undef memset
#undef memcpy
#undef strcpy

enum { WAITING = 0, WAKING = 1, LOCKING = 0 };
object objects[MAX_OBJECTS];
unsigned n_objects;
uint64_t given_back;

void reset_system(void) {
    n_objects = 0;
    given_back = 0;
}

static object* object_at(const void* address) {
    for (unsigned i = 0; i < n_objects; ++i)
        if (objects[i].address == (uintptr_t)address) return &objects[i];
    if (n_objects == MAX_OBJECTS) report("more locks than there is room for");
    objects[n_objects] = (object){.address = (uintptr_t)address};
    return &objects[n_objects++];
}

static bool had_turn(const thread* t) { return t->turn_of[0] != t->wait_turn; }

// Now, or after another turn of kind `other`.
static void take_turn(object* o, unsigned kind, unsigned other) {
    while (others_may_go() && choose(2, "turn", o->address) == 1) {
        self->turn_of = &o->turns[other];
        self->wait_turn = o->turns[other];
        wait_until(had_turn, o, true);
    }
    ++o->turns[kind];
}

// ---- Memory ---------------------------------------------------------------------------------------------------------

typedef struct block_head {
    size_t bytes;
} block_head;

void* do_explored_aligned_alloc(size_t alignment, size_t bytes) {
    if (alignment < 16) alignment = 16;
    char* block = arena(alignment + bytes, alignment);
    block += alignment;
    ((block_head*)block)[-1].bytes = bytes;
    return block;
}

void* do_explored_malloc(size_t bytes) { return do_explored_aligned_alloc(16, bytes); }

void* do_explored_calloc(size_t n, size_t bytes) {
    void* block = do_explored_malloc(n * bytes);
    return memset(block, 0, n * bytes);
}

void do_explored_free(void* block) {
    if (block == NULL) return;
    const size_t bytes = ((block_head*)block)[-1].bytes;
    plain_access(block, bytes, PLAIN_WRITE);
    forbid_accesses(block, bytes);
    memset(block, 0, bytes);
    given_back += (uintptr_t)block * bytes;
}

void* do_explored_memset(void* to, int value, size_t bytes) {
    plain_access(to, bytes, PLAIN_WRITE);
    return memset(to, value, bytes);
}

void* do_explored_memcpy(void* to, const void* from, size_t bytes) {
    plain_access(from, bytes, PLAIN_READ);
    plain_access(to, bytes, PLAIN_WRITE);
    return memcpy(to, from, bytes);
}

char* do_explored_strcpy(char* to, const char* from) {
    plain_access(to, strlen(from) + 1, PLAIN_WRITE);
    return strcpy(to, from);
}

int do_explored_snprintf(char* to, size_t bytes, const char* format, ...) {
    plain_access(to, bytes, PLAIN_WRITE);
    va_list args;
    va_start(args, format);
    const int n = vsnprintf(to, bytes, format, args);
    va_end(args);
    return n;
}

// ---- Threads --------------------------------------------------------------------------------------------------------

int do_explored_create(pthread_t* out, const pthread_attr_t* attributes, void* (*run)(void*), void* argument) {
    (void)attributes;
    plain_access(out, sizeof *out, PLAIN_WRITE);
    *out = (pthread_t)(create_thread(run, argument) - threads);
    note_event("creates", NULL, *out, -1, NULL);
    return 0;
}

static bool is_over(const thread* t) { return ((const thread*)t->waits_for)->finished; }

int do_explored_join(pthread_t which, void** result) {
    (void)result;
    if (!threads[which].finished) wait_until(is_over, &threads[which], false);
    join_knowledge(&self->memory.known, &threads[which].memory.known);
    note_event("joined", NULL, which, -1, NULL);
    return 0;
}

static bool is_free(const thread* t) { return ((const object*)t->waits_for)->holder == NULL; }
static bool is_free_again(const thread* t) { return is_free(t) && had_turn(t); }

int do_explored_lock(pthread_mutex_t* mutex) {
    object* o = object_at(mutex);
    if (o->holder == self) report("a mutex is locked by its holder");
    if (o->holder != NULL) wait_until(is_free, o, false);
    while (others_may_go() && choose(2, "turn", o->address) == 1) {
        self->turn_of = &o->turns[LOCKING];
        self->wait_turn = o->turns[LOCKING];
        wait_until(is_free_again, o, true);
    }
    ++o->turns[LOCKING];
    o->holder = self;
    join_knowledge(&self->memory.known, &o->known);
    note_event("locks", mutex, 0, -1, NULL);
    return 0;
}

int do_explored_unlock(pthread_mutex_t* mutex) {
    object* o = object_at(mutex);
    if (o->holder != self) report("a mutex is unlocked by another thread");
    o->known = self->memory.known;
    o->holder = NULL;
    note_event("unlocks", mutex, 0, -1, NULL);
    return 0;
}

static bool is_woken(const thread* t) { return !((const object*)t->waits_for)->waiting[t - threads]; }

static void sleep_on(pthread_cond_t* condition, pthread_mutex_t* mutex, bool asleep) {
    object* o = object_at(condition);
    if (asleep) {
        take_turn(o, WAITING, WAKING);
        o->waiting[self_index()] = true;
    }
    note_event(asleep ? "sleeps" : "wakes by itself", condition, 0, -1, NULL);
    do_explored_unlock(mutex);
    if (asleep) wait_until(is_woken, o, false);
    do_explored_lock(mutex);
}

int do_explored_wait(pthread_cond_t* condition, pthread_mutex_t* mutex) {
    sleep_on(condition, mutex, !choose_rarity());
    return 0;
}

int do_explored_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex, const struct timespec* until) {
    (void)until;
    const bool too_late = choose_rarity();
    self->outcome = too_late;
    sleep_on(condition, mutex, !too_late);
    self->outcome = 0;
    return too_late ? ETIMEDOUT : 0;
}

int do_explored_signal(pthread_cond_t* condition) {
    object* o = object_at(condition);
    take_turn(o, WAKING, WAITING);
    unsigned sleepers[MAX_THREADS], n = 0;
    for (unsigned i = 0; i < n_threads; ++i)
        if (o->waiting[i]) sleepers[n++] = i;
    if (n > 0) o->waiting[sleepers[choose(n, "sleeper", o->address)]] = false;
    note_event("signals", condition, n, -1, NULL);
    return 0;
}

int do_explored_clock(clockid_t clock, struct timespec* out) {
    (void)clock;
    plain_access(out, sizeof *out, PLAIN_WRITE);
    *out = (struct timespec){0};
    return 0;
}

int do_explored_yield(void) {
    wait_for_a_newer_message();
    return 0;
}

static bool was_woken(const thread* t) { return ((const object*)t->waits_for)->last_wake > t->wait_turn; }

// The kernel looks at the value and queues the sleeper under a lock of the queue, which whoever wakes takes too: who sleeps
// before is woken, who looks later sees what was written before.
static long futex_wait(void* address, unsigned value) {
    if (choose_rarity()) {
        note_event("wakes by itself", address, value, -1, NULL);
        return EINTR;
    }
    object* o = object_at(address);
    take_turn(o, WAITING, WAKING);
    self->queue = o;
    self->wait_turn = o->turns[WAKING];
    const unsigned found = (unsigned)load_behind(address, sizeof value, &o->known);
    self->queue = NULL;
    note_event(found == value ? "sleeps" : "does not sleep", address, found, -1, NULL);
    if (found != value) return EAGAIN;
    if (o->last_wake <= self->wait_turn) wait_until(was_woken, o, false);
    return 0;
}

static long futex_wake(void* address) {
    object* o = object_at(address);
    take_turn(o, WAKING, WAITING);
    join_knowledge(&o->known, &self->memory.known);
    o->last_wake = o->turns[WAKING];
    note_event("wakes sleepers", address, 0, -1, NULL);
    return 0;
}

long do_explored_syscall(long number, void* address, int operation, unsigned value, ...) {
    if (number != SYS_futex) report("system call %ld", number);
    return operation == FUTEX_WAIT_PRIVATE ? futex_wait(address, value) : futex_wake(address);
}
