// What mixes the rows of sequences: attention, a state, or both side by side.
#include "graph/observe.h"
#include "kinds/kinds.h"
#include "step/run.h"

enum { MOST_INPUTS = 2 * LW_MOST_MIXER_INPUTS };  // of the kinds that one layer can have

static bool mixes(const lw_worker* w, const lw_layer* layer, size_t kind) {
    return lw_kinds[kind]->inputs != NULL && lw_has_kind(w->model, layer, kind);
}

// All products of the normalized rows as one phase, and before it the low-rank inputs of the adapted matrices among them.
static void multiply_inputs(lw_worker* w, const lw_layer* layer, uint32_t index) {
    lw_mixer_input inputs[MOST_INPUTS];
    const lw_matrix* matrices[MOST_INPUTS];
    lw_product products[MOST_INPUTS];
    size_t n = 0, first = LW_ADAPTED_COUNT, end = 0;
    for (size_t kind = 0; kind < LW_N_KINDS; ++kind) {
        if (!mixes(w, layer, kind)) continue;
        const lw_kind* k = lw_kinds[kind];
        n += k->inputs(w, layer, inputs + n);
        if (k->n_adapted == 0) continue;
        if (k->first_adapted < first) first = k->first_adapted;
        if (k->first_adapted + k->n_adapted > end) end = k->first_adapted + k->n_adapted;
    }
    for (size_t i = 0; i < n; ++i) matrices[i] = inputs[i].matrix;
    const lw_norm by = lw_norm_before_mixer(layer, layer->attn_input_order);
    const lw_activations x = lw_normalize(w, LW_OP_ATTN_NORM, by, lw_any_reads_codes(w, matrices, n));
    lw_observe(w, LW_OP_QKV, index, lw_inputs_of(&x));
    lw_project(w, LW_OP_QKV, index, (lw_adapted)first, end - first, lw_inputs_of(&x));
    for (size_t i = 0; i < n; ++i)
        products[i] = inputs[i].which == LW_ADAPTED_COUNT
                          ? lw_product_at(w, inputs[i].matrix, inputs[i].out, false)
                          : lw_adapted_product_at(w, inputs[i].matrix, inputs[i].out, false, inputs[i].which);
    lw_multiply(w, LW_OP_QKV, products, n, &x);
}

// A phase after the last layer that mixes rows: only the rows that get logits go on.
static void keep_logit_rows(lw_worker* w, const lw_layer* layer) {
    const lw_batch* batch = w->step->batch;
    if (w->thread == 0 && batch->n_logits < w->rows) {
        lw_keep_rows(w->b->x, w->c->hidden_size, batch);
        if (w->b->before != NULL) lw_keep_rows(w->b->before, w->c->hidden_size, batch);
        for (size_t kind = 0; kind < LW_N_KINDS; ++kind)
            if (lw_kinds[kind]->keep != NULL && lw_has_kind(w->model, layer, kind)) lw_kinds[kind]->keep(w, layer);
    }
    w->rows = batch->n_logits;
    w->adapted = w->step->adapted_logits;
    lw_end_phase(w, LW_OP_ATTN_CODES);
}

// Mixers compute from the last kind to the first and are added from the first to the last: attention, which comes first,
// leaves the codes of its result where its output projection reads them.
void lw_mix(lw_worker* w, const lw_layer* layer, uint32_t index) {
    multiply_inputs(w, layer, index);
    for (size_t i = LW_N_KINDS; i-- > 0;)
        if (lw_kinds[i]->mix != NULL && lw_has_kind(w->model, layer, i)) lw_kinds[i]->mix(w, layer, index);
    if (index == w->model->last_mixer) keep_logit_rows(w, layer);
    if (w->rows == 0) return;
    for (size_t i = 0; i < LW_N_KINDS; ++i)
        if (lw_kinds[i]->add != NULL && lw_has_kind(w->model, layer, i)) lw_kinds[i]->add(w, layer, index);
}
