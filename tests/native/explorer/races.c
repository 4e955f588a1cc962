// Data races: every word of four bytes remembers who used it when. Neighbours in one word count as one object.
#include <string.h>

#include "explorer.h"

enum { WORD = 4, GLOBALS = 1 << 16, MAX_LISTED = 1 << 14 };

extern char __data_start[], _end[];  // of the program's own variables
static word_uses in_arena[(1 << 18) / WORD], in_globals[GLOBALS / WORD];
static uint32_t execution;
static uintptr_t listed[MAX_LISTED];  // words with uses that not everybody may know
static unsigned n_listed;

void reset_races(void) {
    ++execution;
    n_listed = 0;
}

static word_uses* uses_of(uintptr_t address) {
    static uintptr_t begin, end;
    if (end == 0) arena_bounds(&begin, &end);
    word_uses* uses = NULL;
    if (address >= begin && address < end) uses = &in_arena[(address - begin) / WORD];
    const uintptr_t globals = (uintptr_t)__data_start / WORD * WORD;
    if (address >= globals && address < globals + GLOBALS && address < (uintptr_t)_end)
        uses = &in_globals[(address - globals) / WORD];
    if (uses != NULL && uses->execution != execution) {
        memset(uses, 0, sizeof *uses);
        uses->execution = execution;
    }
    return uses;
}

static bool conflict(access_kind a, access_kind b) {
    if ((a == PLAIN_READ || a == ATOMIC_READ) && (b == PLAIN_READ || b == ATOMIC_READ)) return false;
    return a == PLAIN_READ || a == PLAIN_WRITE || b == PLAIN_READ || b == PLAIN_WRITE;
}

static void check(const word_uses* uses, access_kind kind, const volatile void* address) {
    static const char* const names[] = {"read", "write", "atomic read", "atomic write"};
    const uint16_t* known = self->memory.known.clock;
    if (uses->forbidden) report("%s of memory that was given back", names[kind]);
    for (access_kind other = 0; other < N_ACCESSES; ++other) {
        if (!conflict(kind, other)) continue;
        for (unsigned t = 0; t < n_threads; ++t)
            if (uses->clock[other][t] > known[t] && t != self_index())
                report("data race: %s by thread %u, %s by thread %u, %p", names[kind], self_index(), names[other], t,
                       (void*)address);
    }
}

void note_access(const volatile void* address, size_t bytes, access_kind kind) {
    const uintptr_t end = (uintptr_t)address + bytes;
    for (uintptr_t word = (uintptr_t)address / WORD * WORD; word < end; word += WORD) {
        word_uses* uses = uses_of(word);
        if (uses == NULL) return;
        check(uses, kind, address);
        uses->clock[kind][self_index()] = self->memory.known.clock[self_index()];
        if (uses->listed) continue;
        uses->listed = true;
        if (n_listed == MAX_LISTED) report("more words in use than there is room for");
        listed[n_listed++] = word;
    }
}

void forbid_accesses(const volatile void* address, size_t bytes) {
    for (size_t i = 0; i < bytes; i += WORD) uses_of((uintptr_t)address + i)->forbidden = true;
}

static bool is_known(const word_uses* uses, const uint16_t* base) {
    for (access_kind kind = 0; kind < N_ACCESSES; ++kind)
        for (unsigned t = 0; t < n_threads; ++t)
            if (uses->clock[kind][t] > base[t]) return false;
    return true;
}

void for_unknown_uses(const uint16_t* base, void (*use)(uintptr_t address, const word_uses* uses)) {
    unsigned kept = 0;
    for (unsigned i = 0; i < n_listed; ++i) {
        word_uses* uses = uses_of(listed[i]);
        if (is_known(uses, base)) {  // and will be: nobody forgets
            uses->listed = false;
            continue;
        }
        use(listed[i], uses);
        listed[kept++] = listed[i];
    }
    n_listed = kept;
}
