// The FFN of a layer with experts: each works on the rows that have chosen it, as on a batch of its own.
//
// The rows' codes are made once and gathered by expert. All experts, and the shared one, which is a group of all rows, go
// through gate and up in one phase and through down in another, into results of their own for each row and expert; these
// are added up row by row in the order of choice, so no result depends on what other rows there are.
#include <string.h>

#include "graph/ffn.h"
#include "graph/observe.h"
#include "graph/route.h"

static bool is_shared(const lw_expert_group* group) { return group->expert == LW_SHARED_EXPERT; }

static size_t chosen_rows(const lw_worker* w, const lw_layer* layer) { return w->rows * layer->config.ffn.n_used; }

static size_t size_of(const lw_layer* layer, const lw_expert_group* group) {
    return is_shared(group) ? layer->config.ffn.shared_size : layer->config.ffn.size;
}

// The input of a group's gate and up. One row has nothing to gather.
static lw_activations input_of(const lw_worker* w, const lw_expert_group* group, const lw_activations* x) {
    const lw_expert_buffers* e = &w->b->experts;
    if (is_shared(group) || w->rows == 1) return *x;
    const size_t hidden = w->c->hidden_size;
    return lw_activations_at(w, group->rows, hidden, &e->in, group->place, e->in_values + group->first * hidden);
}

// Where a group's results begin in a buffer with `size` floats for each row of an expert.
static float* part_of(const lw_worker* w, const lw_layer* layer, const lw_expert_group* group, float* buffer,
                      size_t size) {
    return buffer + (is_shared(group) ? chosen_rows(w, layer) : group->first) * size;
}

// What a group's down projection reads.
static lw_activations activated_of(const lw_worker* w, const lw_layer* layer, const lw_expert_group* group) {
    const lw_expert_buffers* e = &w->b->experts;
    const size_t size = size_of(layer, group), whole = lw_round_up(layer->config.ffn.size, LW_SEGMENT);
    const float* values = part_of(w, layer, group, e->gate, whole);
    if (is_shared(group)) return lw_activations_at(w, group->rows, size, &w->b->ffn_codes, 0, values);
    return lw_activations_at(w, group->rows, size, &e->activated, group->place, values);
}

// Of what goes before down: gate and up, or up alone.
static size_t inner_matrices(const lw_layer* layer) { return layer->config.ffn.ungated ? 1 : 2; }

static lw_gate_up gate_up_of(lw_worker* w, const lw_layer* layer, size_t index, const lw_activations* x) {
    const lw_expert_buffers* e = &w->b->experts;
    const lw_expert_group* group = &e->groups[index];
    const bool shared = is_shared(group);
    const size_t size = size_of(layer, group), whole = lw_round_up(layer->config.ffn.size, LW_SEGMENT);
    lw_gate_up g = {.w = w,
                    .config = &layer->config.ffn,
                    .matrices = inner_matrices(layer),
                    .in = input_of(w, group, x),
                    .out = activated_of(w, layer, group),
                    .rows = group->rows,
                    .size = size,
                    .first_panel = shared ? 0 : group->expert * (size / LW_PANEL),
                    .gate_to = part_of(w, layer, group, e->gate, whole),
                    .up_to = part_of(w, layer, group, e->up, whole),
                    .runs_done = e->runs_done + index * e->most_runs,
                    .cuts = {1, group->rows},
                    .run = lw_run_of(group->rows),
                    .quantized = lw_reads_codes(w, shared ? &layer->down : &layer->experts_down)};
    const lw_matrix *gate = shared ? &layer->gate : &layer->experts_gate,
                    *up = shared ? &layer->up : &layer->experts_up;
    const float* up_bias = shared || layer->up_bias == NULL ? NULL : layer->up_bias + group->expert * size;
    if (g.matrices == 1) {
        g.gate = lw_product_of_rows(w, up, group->rows, g.gate_to, false);
        g.gate_bias = up_bias;
        return g;
    }
    g.gate = lw_product_of_rows(w, gate, group->rows, g.gate_to, false);
    g.up = lw_product_of_rows(w, up, group->rows, g.up_to, false);
    g.up_bias = up_bias;
    if (up_bias != NULL) g.gate_bias = layer->gate_bias + group->expert * size;
    return g;
}

static void gather(lw_worker* w, const lw_activations* x, bool codes, bool values) {
    const lw_expert_buffers* e = &w->b->experts;
    const size_t hidden = w->c->hidden_size;
    lw_taker items = lw_this_phase(w, e->n_groups);
    for (size_t i; lw_take_item(&items, &i);) {
        const lw_expert_group* group = &e->groups[i];
        if (is_shared(group)) continue;
        const lw_activations in = input_of(w, group, x);
        for (size_t row = 0; row < group->rows; ++row) {
            const size_t source = e->sources[group->first + row];
            if (codes) lw_copy_codes(&in, row, x, source);
            if (values) memcpy((float*)in.f32 + row * hidden, x->f32 + source * hidden, hidden * sizeof(float));
        }
        lw_charge_row(w, LW_OP_ROUTE, values ? 2 * group->rows * hidden : 0, codes ? 2 * group->rows * hidden : 0);
    }
    lw_end_phase(w, LW_OP_ROUTE);
}

// Panels first .. first + n - 1 of a group's down projection.
static void multiply_down(lw_worker* w, const lw_layer* layer, const lw_expert_group* group, size_t first, size_t n) {
    const size_t hidden = w->c->hidden_size, panels = hidden / LW_PANEL;
    const lw_matrix* down = is_shared(group) ? &layer->down : &layer->experts_down;
    const size_t before = is_shared(group) ? 0 : group->expert * panels;
    const lw_activations x = activated_of(w, layer, group);
    // Kernels add the number of the panel times 32 to the row's address.
    float* to = part_of(w, layer, group, w->b->experts.out, hidden) - before * LW_PANEL;
    const lw_product p = lw_product_of_rows(w, down, group->rows, to, false);
    const lw_matmul_worker self = {w->scratch, w->profile, LW_OP_DOWN};
    const lw_rows rows = {0, group->rows};
    for (size_t panel = first; panel < first + n; ++panel) {
        lw_product_panel(&p, &x, rows, before + panel, (lw_output){to, hidden, false}, w->scratch);
        lw_matmul_charge(&self, &p, &x, rows, panel);
    }
}

// What a group has to do in the phase of an operation: panels of gate and up, or of down.
static size_t items_of(const lw_worker* w, const lw_layer* layer, const lw_expert_group* group,
                       lw_operation operation) {
    if (operation == LW_OP_DOWN) return w->c->hidden_size / LW_PANEL;
    return inner_matrices(layer) * size_of(layer, group) / LW_PANEL;
}

static void take_items(lw_worker* w, const lw_layer* layer, size_t index, const lw_activations* x,
                       lw_operation operation, size_t first, size_t n) {
    if (operation == LW_OP_DOWN) {
        multiply_down(w, layer, &w->b->experts.groups[index], first, n);
        return;
    }
    lw_gate_up g = gate_up_of(w, layer, index, x);
    lw_gate_up_take(&g, first, first + n);
}

// A phase of gate and up, or of down, over groups first .. last - 1.
static void multiply_groups(lw_worker* w, const lw_layer* layer, const lw_activations* x, lw_operation operation,
                            size_t first, size_t last) {
    const lw_expert_buffers* e = &w->b->experts;
    size_t begin, end, all = 0;
    for (size_t i = first; i < last; ++i) all += items_of(w, layer, &e->groups[i], operation);
    lw_taker items = lw_this_phase(w, all);
    while (lw_take_share(&items, &begin, &end)) {
        size_t before = 0;  // items of the groups before
        for (size_t i = first; before < end; ++i) {
            const size_t n = items_of(w, layer, &e->groups[i], operation);
            const size_t from = begin > before ? begin - before : 0, to = end - before < n ? end - before : n;
            if (from < to) take_items(w, layer, i, x, operation, from, to - from);
            before += n;
        }
    }
    const size_t matrices = operation == LW_OP_DOWN ? 1 : inner_matrices(layer);
    for (size_t i = first; i < last; ++i) lw_count_products(w, matrices, e->groups[i].rows);
    lw_end_phase(w, operation);
}

enum { COMBINED_COLS = 512 };

// x += the weighted sum of a row's results, columns first .. first + n - 1.
static void combine_part(lw_worker* w, const lw_layer* layer, size_t row, size_t first, size_t n) {
    const lw_expert_buffers* e = &w->b->experts;
    const lw_ffn_config* c = &layer->config.ffn;
    const size_t hidden = w->c->hidden_size, used = c->n_used;
    const float* weights = e->weights + row * (used + 1);
    float sum[COMBINED_COLS] = {0};
    for (size_t i = 0; i < used; ++i) {
        float* result = e->out + e->slots[row * used + i] * hidden + first;
        if (c->bias) lw_add_vector(result, layer->down_bias + e->experts[row * used + i] * hidden + first, n);
        w->ops->add_weighted(sum, result, n, weights[i]);
    }
    if (c->shared_size > 0)
        w->ops->add_weighted(sum, e->out + (chosen_rows(w, layer) + row) * hidden + first, n, weights[used]);
    if (c->down_bias) lw_add_vector(sum, layer->down_bias + first, n);
    lw_add_vector(w->b->x + row * hidden + first, sum, n);
}

static void combine(lw_worker* w, const lw_layer* layer) {
    const size_t hidden = w->c->hidden_size, parts = (hidden + COMBINED_COLS - 1) / COMBINED_COLS;
    lw_taker items = lw_this_phase(w, w->rows * parts);
    for (size_t item; lw_take_item(&items, &item);) {
        const size_t first = item % parts * COMBINED_COLS, left = hidden - first;
        const size_t n = left < COMBINED_COLS ? left : COMBINED_COLS;
        combine_part(w, layer, item / parts, first, n);
        lw_charge_row(w, LW_OP_COMBINE, n * (layer->config.ffn.n_used + 2), 0);
    }
    lw_end_phase(w, LW_OP_COMBINE);
}

// x += what own_norms make of a row's results.
static void combine_normed(lw_worker* w, const lw_layer* layer, size_t row) {
    const lw_expert_buffers* e = &w->b->experts;
    const size_t hidden = w->c->hidden_size, used = layer->config.ffn.n_used;
    const float* weights = e->weights + row * (used + 1);
    float *sum = w->b->norm + row * hidden, *shared = e->out + (chosen_rows(w, layer) + row) * hidden;
    memset(sum, 0, hidden * sizeof *sum);
    for (size_t i = 0; i < used; ++i)
        w->ops->add_weighted(sum, e->out + e->slots[row * used + i] * hidden, hidden, weights[i]);
    lw_normalize_row(w, sum, sum, layer->experts_result_norm, NULL, hidden);
    lw_normalize_row(w, shared, shared, layer->shared_result_norm, NULL, hidden);
    lw_add_vector(sum, shared, hidden);
    lw_normalize_row(w, sum, sum, layer->ffn_result_norm, NULL, hidden);
    lw_add_vector(w->b->x + row * hidden, sum, hidden);
}

// Router, shared expert and the others read norms of their own, which are made one after the other.
static void experts_with_norms(lw_worker* w, const lw_layer* layer, uint32_t index) {
    const bool gated = !layer->config.ffn.ungated;
    const lw_matrix *shared[] = {&layer->up, gated ? &layer->gate : &layer->up},
                    *inputs[] = {&layer->experts_up, gated ? &layer->experts_gate : &layer->experts_up};
    lw_activations x =
        lw_normalize(w, LW_OP_FFN_NORM, (lw_norm){layer->router_norm, NULL, NULL, 1, false, NULL}, false);
    lw_route(w, layer, &x);
    const lw_norm before_shared = lw_norm_before_ffn(w, layer, NULL);
    x = lw_normalize(w, LW_OP_FFN_NORM, before_shared, lw_any_reads_codes(w, shared, 2));
    multiply_groups(w, layer, &x, LW_OP_GATE_UP, 0, 1);
    const bool codes = lw_any_reads_codes(w, inputs, 2),
               values = !lw_reads_codes(w, inputs[0]) || !lw_reads_codes(w, inputs[1]);
    x = lw_normalize(w, LW_OP_FFN_NORM, (lw_norm){layer->experts_norm, NULL, NULL, 1, false, NULL}, codes);
    lw_observe(w, LW_OP_GATE_UP, index, lw_inputs_of(&x));
    if (w->rows > 1) gather(w, &x, codes, values);
    multiply_groups(w, layer, &x, LW_OP_GATE_UP, 1, w->b->experts.n_groups);
    multiply_groups(w, layer, &x, LW_OP_DOWN, 0, w->b->experts.n_groups);
    lw_taker items = lw_this_phase(w, w->rows);
    for (size_t row; lw_take_item(&items, &row);) {
        combine_normed(w, layer, row);
        lw_charge_row(w, LW_OP_COMBINE, w->c->hidden_size * (layer->config.ffn.n_used + 5), 0);
    }
    lw_end_phase(w, LW_OP_COMBINE);
}

void lw_experts(lw_worker* w, const lw_layer* layer, uint32_t index) {
    if (layer->config.ffn.own_norms) {
        experts_with_norms(w, layer, index);
        return;
    }
    const bool gated = !layer->config.ffn.ungated;
    const lw_matrix* inputs[] = {&layer->experts_up, gated ? &layer->experts_gate : &layer->experts_up, &layer->up,
                                 gated ? &layer->gate : &layer->up};
    const size_t n_inputs = layer->config.ffn.shared_size > 0 ? 4 : 2;
    const bool codes = lw_any_reads_codes(w, inputs, n_inputs);
    const bool values = !lw_reads_codes(w, inputs[0]) || !lw_reads_codes(w, inputs[1]);
    const lw_norm by = lw_norm_before_ffn(w, layer, NULL);
    const lw_activations x = lw_normalize(w, LW_OP_FFN_NORM, by, codes);
    lw_observe(w, LW_OP_GATE_UP, index, lw_inputs_of(&x));
    lw_route(w, layer, &x);
    if (w->rows > 1) gather(w, &x, codes, values);
    multiply_groups(w, layer, &x, LW_OP_GATE_UP, 0, w->b->experts.n_groups);
    multiply_groups(w, layer, &x, LW_OP_DOWN, 0, w->b->experts.n_groups);
    combine(w, layer);
}
