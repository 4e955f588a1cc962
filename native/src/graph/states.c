#include "graph/states.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static size_t layer_floats(const lw_model* model, uint32_t layer) {
    const lw_state_config* c = &model->layers[layer].config.state;
    if (c->kind == LW_NO_STATE) return 0;
    const size_t tail = (size_t)(c->taps - 1) * lw_state_channels(c, model->config.hidden_size);
    return lw_round_up(tail, LW_LANES) + (size_t)c->n_heads * c->key_dim * c->value_dim;
}

uint64_t lw_state_place_bytes(const lw_model* model) {
    uint64_t floats = 0;
    for (uint32_t i = 0; i < model->config.n_layers; ++i) floats += lw_round_up(layer_floats(model, i), LW_LANES);
    return floats * sizeof(float);
}

bool lw_states_open(const lw_model* model, uint32_t n_places, lw_states* out) {
    const size_t bytes = lw_state_place_bytes(model);
    *out = (lw_states){.n_places = n_places, .place_floats = bytes / sizeof(float)};
    if (bytes == 0) return true;
    if (n_places > SIZE_MAX / bytes) return false;
    out->offsets = calloc(model->config.n_layers, sizeof *out->offsets);
    out->is_used = calloc(n_places, sizeof *out->is_used);
    if (out->offsets == NULL || out->is_used == NULL) return false;
    for (uint32_t i = 1; i < model->config.n_layers; ++i)
        out->offsets[i] = out->offsets[i - 1] + lw_round_up(layer_floats(model, i - 1), LW_LANES);
    return lw_block_map(n_places * bytes, &out->block);
}

void lw_states_close(lw_states* states) {
    lw_block_unmap(&states->block);
    free(states->offsets);
    free(states->is_used);
    *states = (lw_states){0};
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
