// The mixers of a layer, which mix the rows of a sequence: attention, a state, or both in parallel.
#include "graph/observe.h"
#include "kinds/kinds.h"
#include "kinds/taps.h"
#include "step/run.h"

enum { MAX_INPUTS = 3 * LW_MAX_MIXER_INPUTS };  // a layer has at most three kinds with inputs

static bool mixes(const lw_worker* w, const lw_layer* layer, size_t kind) {
    return lw_kinds[kind]->inputs != NULL && lw_has_kind(w->model, layer, kind);
}

void lw_multiply_inputs(lw_worker* w, const lw_layer* layer, uint32_t index) {
    lw_mixer_input inputs[MAX_INPUTS];
    const lw_matrix* matrices[MAX_INPUTS];
    lw_product products[MAX_INPUTS];
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
    lw_norm by = lw_norm_before_mixer(layer, layer->attn_input_order);
    by.codes = lw_codes_for(w, layer, matrices, n);
    const lw_activations x = lw_reads_pairs(&layer->config)
                                 ? lw_head_inputs(w)
                                 : lw_normalize(w, LW_OP_ATTN_NORM, by, lw_any_reads_codes(w, matrices, n));
    lw_observe(w, LW_OP_QKV, index, lw_inputs_of(&x));
    lw_project(w, LW_OP_QKV, index, (lw_adapted)first, end - first, lw_inputs_of(&x));
    for (size_t i = 0; i < n; ++i) {
        products[i] = inputs[i].which == LW_ADAPTED_COUNT
                          ? lw_product_at(w, inputs[i].matrix, inputs[i].out, false)
                          : lw_adapted_product_at(w, inputs[i].matrix, inputs[i].out, false, inputs[i].which);
        if (inputs[i].stride > 0) products[i].out.stride = inputs[i].stride;
    }
    lw_multiply(w, LW_OP_QKV, products, n, &x);
}

// A phase after the model's last mixer: only the rows that get logits are kept.
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

// The mixers' `mix` runs from the last kind to the first, their `add` from the first to the last. Attention is the
// first kind: it leaves the codes of its result in b->codes, and its `add` reads them before another kind overwrites
// them.
void lw_mix(lw_worker* w, const lw_layer* layer, uint32_t index) {
    lw_multiply_inputs(w, layer, index);
    for (size_t i = LW_N_KINDS; i-- > 0;)
        if (lw_kinds[i]->mix != NULL && lw_has_kind(w->model, layer, i)) lw_kinds[i]->mix(w, layer, index);
    if (index == w->model->last_mixer) keep_logit_rows(w, layer);
    if (w->rows == 0) return;
    for (size_t i = 0; i < LW_N_KINDS; ++i)
        if (lw_kinds[i]->add != NULL && lw_has_kind(w->model, layer, i)) lw_kinds[i]->add(w, layer, index);
}
