// What mixes the rows of sequences: attention, a state, or both side by side.
#include <string.h>

#include "graph/observe.h"

// A matrix that reads norm(x), where its product goes, and which of those with adapters it is.
typedef struct input {
    const lw_matrix* matrix;
    float* out;
    lw_adapted which;
} input;

enum { MOST_INPUTS = 10 };

// Only inputs that the layer has; an absent matrix has 0 rows.
static size_t find_inputs(const lw_worker* w, const lw_layer* layer, input found[MOST_INPUTS]) {
    const lw_buffers* b = w->b;
    static const lw_matrix none;
    const bool q_reads_norm = layer->config.attention.query_rank == 0;
    const input all[MOST_INPUTS] = {{q_reads_norm ? &layer->q : &none, b->q, LW_ADAPTED_Q},
                                    {&layer->k, b->k, LW_ADAPTED_K},
                                    {&layer->v, b->v, LW_ADAPTED_V},
                                    {&layer->latent_query, b->latent_query, LW_ADAPTED_COUNT},
                                    {&layer->latent_down, b->k, LW_ADAPTED_COUNT},
                                    {&layer->attn_gate, b->attn_gate, LW_ADAPTED_ATTN_GATE},
                                    {&layer->state_in, b->mixed_in, LW_ADAPTED_STATE_IN},
                                    {&layer->state_gate, b->state_gate, LW_ADAPTED_STATE_GATE},
                                    {&layer->state_decay, b->decay, LW_ADAPTED_STATE_DECAY},
                                    {&layer->state_beta, b->beta, LW_ADAPTED_STATE_BETA}};
    size_t n = 0;
    for (size_t i = 0; i < MOST_INPUTS; ++i)
        if (all[i].matrix->rows > 0) found[n++] = all[i];
    return n;
}

static void multiply_inputs(lw_worker* w, const lw_layer* layer, uint32_t index) {
    input inputs[MOST_INPUTS];
    const size_t n = find_inputs(w, layer, inputs);
    const lw_matrix* matrices[MOST_INPUTS];
    for (size_t i = 0; i < n; ++i) matrices[i] = inputs[i].matrix;
    const lw_norm by = lw_norm_before_mixer(layer, layer->attn_input_order);
    const lw_activations x = lw_normalize(w, LW_OP_ATTN_NORM, by, lw_any_reads_codes(w, matrices, n));
    lw_observe(w, LW_OP_QKV, index, lw_inputs_of(&x));
    const lw_adapted first = lw_has_attention(layer) ? LW_ADAPTED_Q : LW_ADAPTED_STATE_IN;
    const lw_adapted end = lw_has_state(layer) ? LW_ADAPTED_STATE_BETA + 1 : LW_ADAPTED_ATTN_GATE + 1;
    lw_project(w, LW_OP_QKV, index, first, (size_t)(end - first), lw_inputs_of(&x));
    lw_product products[MOST_INPUTS];
    for (size_t i = 0; i < n; ++i)
        products[i] = inputs[i].which == LW_ADAPTED_COUNT
                          ? lw_product_at(w, inputs[i].matrix, inputs[i].out, false)
                          : lw_adapted_product_at(w, inputs[i].matrix, inputs[i].out, false, inputs[i].which);
    lw_multiply(w, LW_OP_QKV, products, n, &x);
}

void lw_keep_rows(float* buffer, size_t cols, const lw_batch* batch) {
    for (size_t i = 0; i < batch->n_logits; ++i)  // rows ascend, so none is overwritten before it is read
        memmove(buffer + i * cols, buffer + batch->logit_rows[i] * cols, cols * sizeof(float));
}

// A phase after the last layer that mixes rows: only those that need logits go on, with the results of its parts.
static void keep_logit_rows(lw_worker* w, const lw_layer* layer) {
    const lw_batch* batch = w->step->batch;
    if (w->thread == 0 && batch->n_logits < w->rows) {
        lw_keep_rows(w->b->x, w->c->hidden_size, batch);
        if (w->b->before != NULL) lw_keep_rows(w->b->before, w->c->hidden_size, batch);
        if (w->c->per_layer_size > 0) lw_keep_rows(w->b->layer_inputs, w->c->n_layers * w->c->per_layer_size, batch);
        if (lw_has_attention(layer)) lw_keep_rows(w->b->attn, layer->attn_output.cols, batch);
        if (lw_has_state(layer)) lw_keep_rows(w->b->mixed, layer->state_out.cols, batch);
        if (layer->state_gate.rows > 0) lw_keep_rows(w->b->state_gate, layer->state_out.cols, batch);
    }
    w->rows = batch->n_logits;
    w->adapted = w->step->adapted_logits;
    lw_end_phase(w, LW_OP_ATTN_CODES);
}

void lw_mix(lw_worker* w, const lw_layer* layer, uint32_t index) {
    const bool attends = lw_has_attention(layer), recurs = lw_has_state(layer);
    multiply_inputs(w, layer, index);
    if (recurs) lw_recur(w, layer, index);
    const bool have_codes = attends && lw_attention(w, layer, index);
    if (index == w->model->last_mixer) keep_logit_rows(w, layer);
    if (w->rows == 0) return;
    if (attends) lw_add_attention(w, layer, index, have_codes);
    if (recurs) lw_add_state(w, layer, index);
}
