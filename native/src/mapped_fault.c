// lw_guard_mapping: prints a line before SIGBUS ends the process because a mapped file shrank.
//
// The handler interrupts the process anywhere: it reads atomics and fixed memory, and calls only functions that POSIX
// allows in signal handlers. One thread at a time changes a range; it writes `begin` last, and clears it first.
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "status.h"

enum { MAX_RANGES = 1024, NAME_BYTES = 256 };

typedef struct guarded {
    atomic_uintptr_t begin;  // 0 = free
    atomic_uintptr_t end;
    char name[NAME_BYTES];  // the end of the name, if the name is longer
} guarded;

static guarded ranges[MAX_RANGES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;  // held to change ranges
static struct sigaction before;
static _Bool installed;
static atomic_flag said = ATOMIC_FLAG_INIT;

static const guarded* find(uintptr_t address) {
    for (const guarded* range = ranges; range < ranges + MAX_RANGES; ++range) {
        const uintptr_t begin = atomic_load(&range->begin);
        if (begin != 0 && address >= begin && address < atomic_load(&range->end)) return range;
    }
    return NULL;
}

static void say(const char* name) {
    static const char first[] = "lanewise: ";
    static const char rest[] =
        ": this file is in use and a part of it can no longer be read: it was truncated, or its disk failed. Replace "
        "model files by rename, never in place, and start again\n";
    char line[sizeof first + NAME_BYTES + sizeof rest];
    size_t n = sizeof first - 1;
    memcpy(line, first, n);
    for (size_t i = 0; i < NAME_BYTES && name[i] != 0; ++i)
        line[n++] = name[i] >= ' ' && name[i] != 127 ? name[i] : '?';
    memcpy(line + n, rest, sizeof rest - 1);
    if (write(STDERR_FILENO, line, n + sizeof rest - 1) < 0) return;  // stderr is closed: the message is lost
}

static void on_fault(int signal, siginfo_t* info, void* context) {
    const _Bool of_memory = info->si_code > 0;  // a memory error, and not a signal that a process sent
    const guarded* range = of_memory ? find((uintptr_t)info->si_addr) : NULL;
    if (range == NULL && (before.sa_flags & SA_SIGINFO) != 0) {
        before.sa_sigaction(signal, info, context);
        return;
    }
    if (range == NULL && before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
        before.sa_handler(signal);
        return;
    }
    if (range == NULL && !of_memory && before.sa_handler == SIG_IGN) return;
    if (range != NULL) {
        while (atomic_flag_test_and_set(&said)) pause();  // another thread's fault is about to end the process
        say(range->name);
    }
    // A faulting read runs again and ends the process; a signal that was sent is sent again.
    const struct sigaction standard = {.sa_handler = SIG_DFL};
    sigaction(signal, &standard, NULL);
    if (!of_memory) raise(signal);
}

static lw_status install(void) {
    if (installed) return LW_OK;
    struct sigaction ours = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART};
    sigemptyset(&ours.sa_mask);
    if (sigaction(SIGBUS, NULL, &before) != 0 || sigaction(SIGBUS, &ours, NULL) != 0)
        return lw_fail(LW_ERR_SYSTEM, "lw_guard_mapping: sigaction refused a handler for SIGBUS");
    installed = 1;
    return LW_OK;
}

static guarded* at(uintptr_t begin) {
    for (guarded* range = ranges; range < ranges + MAX_RANGES; ++range)
        if (atomic_load(&range->begin) == begin) return range;
    return NULL;
}

static lw_status add(uintptr_t begin, uint64_t n_bytes, const char* name) {
    LW_RETURN_IF_FAILED(install());
    if (at(begin) != NULL) return lw_fail(LW_ERR_ARGUMENT, "lw_guard_mapping: this range is guarded already");
    guarded* range = at(0);
    if (range == NULL)
        return lw_fail(LW_ERR_MEMORY, "lw_guard_mapping: %d ranges are guarded already, the maximum", MAX_RANGES);
    const size_t length = strlen(name), kept = length < NAME_BYTES ? length : NAME_BYTES - 1;
    memcpy(range->name, name + (length - kept), kept + 1);
    atomic_store(&range->end, begin + n_bytes);
    atomic_store(&range->begin, begin);
    return LW_OK;
}

lw_status lw_guard_mapping(const void* begin, uint64_t n_bytes, const char* name) {
    if (begin == NULL || name == NULL || n_bytes == 0 || n_bytes > UINTPTR_MAX - (uintptr_t)begin)
        return lw_fail(LW_ERR_ARGUMENT,
                       "lw_guard_mapping: begin and name must not be NULL, n_bytes must be 1 or more without overflow");
    pthread_mutex_lock(&lock);
    const lw_status status = add((uintptr_t)begin, n_bytes, name);
    pthread_mutex_unlock(&lock);
    return status;
}

lw_status lw_unguard_mapping(const void* begin) {
    pthread_mutex_lock(&lock);
    guarded* range = begin != NULL ? at((uintptr_t)begin) : NULL;
    if (range != NULL) atomic_store(&range->begin, 0);
    pthread_mutex_unlock(&lock);
    return range != NULL ? LW_OK : lw_fail(LW_ERR_ARGUMENT, "lw_unguard_mapping: no guarded range begins there");
}
