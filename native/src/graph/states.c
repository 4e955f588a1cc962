#include "graph/states.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

bool lw_states_open(const size_t* floats, uint32_t n_layers, uint32_t n_places, uint32_t max_guesses, lw_states* out) {
    *out = (lw_states){.n_places = n_places, .max_guesses = max_guesses};
    for (uint32_t i = 0; i < n_layers; ++i) out->place_floats += floats[i];
    if (out->place_floats == 0) return true;
    const size_t bytes = out->place_floats * sizeof(float);
    if (n_places > SIZE_MAX / bytes) return false;
    out->offsets = calloc(n_layers, sizeof *out->offsets);
    out->is_used = calloc(n_places, sizeof *out->is_used);
    out->n_guesses = calloc(n_places, sizeof *out->n_guesses);
    out->n_begun = calloc(n_places, sizeof *out->n_begun);
    out->n_copied = calloc(n_places, sizeof *out->n_copied);
    if (out->offsets == NULL || out->is_used == NULL) return false;
    if (out->n_guesses == NULL || out->n_begun == NULL || out->n_copied == NULL) return false;
    for (uint32_t i = 1; i < n_layers; ++i) out->offsets[i] = out->offsets[i - 1] + floats[i - 1];
    return lw_block_map(n_places * bytes, &out->block);
}

void lw_states_close(lw_states* states) {
    lw_block_unmap(&states->block);
    free(states->offsets);
    free(states->is_used);
    free(states->n_guesses);
    free(states->n_begun);
    free(states->n_copied);
    *states = (lw_states){0};
}

static void copy_counts(uint32_t* n, const lw_batch* batch) {
    for (uint32_t i = 0; i < batch->n_state_copies; ++i)
        n[batch->state_copies[2 * i + 1]] = n[batch->state_copies[2 * i]];
}

void lw_count_copied_guesses(const lw_states* states, const lw_batch* batch) {
    if (states->max_guesses == 0) return;
    memcpy(states->n_copied, states->n_begun, states->n_places * sizeof *states->n_copied);
    copy_counts(states->n_copied, batch);
}

void lw_note_guesses(const lw_states* states, uint32_t* n, const lw_batch* batch) {
    if (states->max_guesses == 0) return;
    copy_counts(n, batch);
    for (uint32_t i = 0; i < batch->n_seqs; ++i)
        n[lw_table_row(batch, i)] = batch->guesses != NULL ? batch->guesses[i] : 0;
}

void lw_forget_begun_guesses(const lw_states* states) {
    if (states->max_guesses > 0) memcpy(states->n_begun, states->n_guesses, states->n_places * sizeof *states->n_begun);
}

void lw_states_copy(const lw_states* states, const uint32_t* copies, uint32_t n_copies, unsigned thread,
                    unsigned n_threads) {
    const size_t lines = states->place_floats / LW_LANES;
    const size_t begin = lines * thread / n_threads * LW_LANES, end = lines * (thread + 1) / n_threads * LW_LANES;
    float* data = states->block.data;
    for (uint32_t i = 0; i < n_copies; ++i) {
        const size_t from = copies[2 * i], to = copies[2 * i + 1];
        if (from != to)
            memcpy(data + to * states->place_floats + begin, data + from * states->place_floats + begin,
                   (end - begin) * sizeof(float));
    }
}
