#include "graph/states.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static size_t layer_floats(const lw_model* model, uint32_t layer, uint32_t max_guesses) {
    if (model->layers[layer].config.mtp) return (1 + (size_t)max_guesses) * lw_hidden_stride(model);
    return lw_lay_out_state(&model->layers[layer].config.state, model->config.hidden_size, max_guesses).end;
}

uint64_t lw_state_place_bytes(const lw_model* model, uint32_t max_guesses) {
    uint64_t floats = 0;
    for (uint32_t i = 0; i < model->config.n_layers; ++i) floats += layer_floats(model, i, max_guesses);
    return floats * sizeof(float);
}

bool lw_states_open(const lw_model* model, uint32_t n_places, uint32_t max_guesses, lw_states* out) {
    const size_t bytes = lw_state_place_bytes(model, max_guesses);
    *out = (lw_states){.n_places = n_places, .place_floats = bytes / sizeof(float), .max_guesses = max_guesses};
    if (bytes == 0) return true;
    if (n_places > SIZE_MAX / bytes) return false;
    out->offsets = calloc(model->config.n_layers, sizeof *out->offsets);
    out->is_used = calloc(n_places, sizeof *out->is_used);
    out->n_guesses = calloc(n_places, sizeof *out->n_guesses);
    out->n_begun = calloc(n_places, sizeof *out->n_begun);
    out->n_copied = calloc(n_places, sizeof *out->n_copied);
    if (out->offsets == NULL || out->is_used == NULL) return false;
    if (out->n_guesses == NULL || out->n_begun == NULL || out->n_copied == NULL) return false;
    for (uint32_t i = 1; i < model->config.n_layers; ++i)
        out->offsets[i] = out->offsets[i - 1] + layer_floats(model, i - 1, max_guesses);
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
