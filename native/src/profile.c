#include "profile.h"

#include <stdlib.h>

lw_profile* lw_profile_open(unsigned n_threads, size_t n_kernels) {
    const size_t n_columns = n_kernels + 1;
    lw_profile* profile = calloc(1, sizeof *profile);
    if (profile == NULL) return NULL;
    profile->threads = aligned_alloc(_Alignof(lw_profile_thread), n_threads * sizeof *profile->threads);
    if (profile->threads != NULL) profile->n_threads = n_threads;
    _Bool complete = profile->threads != NULL;
    for (unsigned i = 0; i < profile->n_threads; ++i) {
        profile->threads[i] = (lw_profile_thread){.n_columns = n_columns};
        profile->threads[i].cells = calloc(LW_OPERATION_COUNT * n_columns, sizeof(lw_profile_cell));
        complete &= profile->threads[i].cells != NULL;
    }
    if (complete) return profile;
    lw_profile_close(profile);
    return NULL;
}

void lw_profile_close(lw_profile* profile) {
    if (profile == NULL) return;
    for (unsigned i = 0; i < profile->n_threads; ++i) free(profile->threads[i].cells);
    free(profile->threads);
    free(profile);
}

lw_profile_cell lw_profile_total(const lw_profile* profile, lw_operation operation, size_t column) {
    lw_profile_cell total = {0};
    for (unsigned i = 0; i < profile->n_threads; ++i) {
        const lw_profile_cell* cell = lw_profile_at(&profile->threads[i], operation, column);
        total.work_ns += cell->work_ns;
        total.wait_ns += cell->wait_ns;
        total.bytes += cell->bytes;
        total.macs += cell->macs;
    }
    return total;
}
