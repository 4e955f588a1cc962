// The FFN of a layer with experts. Each expert works on the rows that have chosen it, as on a batch of its own.
//
// Each row is quantized once, and its codes are gathered into one group for each expert. The shared expert is a group
// of all rows. All groups go through gate and up in one phase, and through down in another. Each pair of row and expert
// has a result of its own. A row's results are added in the order in which it chose its experts, so they do not depend
// on other rows.
//
// Experts with a latent_size read a projection of the row, and their sum goes through another one.
#include <string.h>

#include "graph/observe.h"
#include "kinds/ffn.h"
#include "kinds/route.h"

static bool is_shared(const lw_expert_group* group) { return group->expert == LW_SHARED_EXPERT; }

static size_t chosen_rows(const lw_worker* w, const lw_layer* layer) { return w->rows * layer->config.ffn.n_used; }

static size_t size_of(const lw_layer* layer, const lw_expert_group* group) {
    return is_shared(group) ? layer->config.ffn.shared_size : layer->config.ffn.size;
}

// What the shared expert and the other ones read.
typedef struct expert_inputs {
    lw_activations shared, routed;
} expert_inputs;

// The input of a group's gate and up. If the batch has one row, it is not gathered.
static lw_activations input_of(const lw_worker* w, const lw_expert_group* group, const expert_inputs* x) {
    const lw_experts_own* e = lw_experts_of(w->s);
    if (is_shared(group)) return x->shared;
    if (w->rows == 1) return x->routed;
    const size_t width = x->routed.cols;
    return lw_activations_at(w, group->rows, width, &e->in, group->place, e->in_values + group->first * width);
}

// Start of a group's results in a buffer that has `size` floats for each row of an expert.
static float* part_of(const lw_worker* w, const lw_layer* layer, const lw_expert_group* group, float* buffer,
                      size_t size) {
    return buffer + (is_shared(group) ? chosen_rows(w, layer) : group->first) * size;
}

// The input of a group's down projection.
static lw_activations activated_of(const lw_worker* w, const lw_layer* layer, const lw_expert_group* group) {
    const lw_experts_own* e = lw_experts_of(w->s);
    const size_t size = size_of(layer, group), whole = lw_round_up(layer->config.ffn.size, LW_SEGMENT);
    const float* values = part_of(w, layer, group, e->gate, whole);
    if (is_shared(group)) return lw_activations_at(w, group->rows, size, &w->b->ffn_codes, 0, values);
    return lw_activations_at(w, group->rows, size, &e->activated, group->place, values);
}

// Number of matrices before down: gate and up, or up alone.
static size_t inner_matrices(const lw_layer* layer) { return layer->config.ffn.ungated ? 1 : 2; }

static lw_gate_up gate_up_of(lw_worker* w, const lw_layer* layer, size_t index, const expert_inputs* x) {
    const lw_experts_own* e = lw_experts_of(w->s);
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
                    .quantized = lw_reads_codes(w, shared ? &layer->down : &layer->experts_down),
                    .weights = shared || !layer->config.ffn.weighs_inputs ? NULL : e->row_weights + group->first,
                    .limit = shared ? layer->config.ffn.shared_limit : layer->config.ffn.limit};
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

static void gather(lw_worker* w, const expert_inputs* x, bool codes, bool values) {
    const lw_experts_own* e = lw_experts_of(w->s);
    const lw_activations* from = &x->routed;
    const size_t width = from->cols;
    lw_taker items = lw_this_phase(w, e->n_groups);
    for (size_t i; lw_take_item(&items, &i);) {
        const lw_expert_group* group = &e->groups[i];
        if (is_shared(group)) continue;
        const lw_activations in = input_of(w, group, x);
        for (size_t row = 0; row < group->rows; ++row) {
            const size_t source = e->sources[group->first + row];
            if (codes) lw_copy_codes(&in, row, from, source);
            if (values) memcpy((float*)in.f32 + row * width, from->f32 + source * width, width * sizeof(float));
        }
        lw_charge_row(w, LW_OP_ROUTE, values ? 2 * group->rows * width : 0, codes ? 2 * group->rows * width : 0);
    }
    lw_end_phase(w, LW_OP_ROUTE);
}

// Number of values of a result of the group's down projection.
static size_t result_of(const lw_worker* w, const lw_layer* layer, const lw_expert_group* group) {
    return is_shared(group) ? w->c->hidden_size : lw_routed_width(&layer->config.ffn, w->c->hidden_size);
}

// Computes panels first .. first + n - 1 of a group's down projection.
static void multiply_down(lw_worker* w, const lw_layer* layer, const lw_expert_group* group, size_t first, size_t n) {
    const size_t width = result_of(w, layer, group), panels = width / LW_PANEL;
    const lw_matrix* down = is_shared(group) ? &layer->down : &layer->experts_down;
    const size_t before = is_shared(group) ? 0 : group->expert * panels;
    const lw_activations x = activated_of(w, layer, group);
    // Kernels add panel number * LW_PANEL to the row's address. Here panels of earlier experts are subtracted.
    float* to = part_of(w, layer, group, lw_experts_of(w->s)->out, width) - before * LW_PANEL;
    const lw_product p = lw_product_of_rows(w, down, group->rows, to, false);
    const lw_matmul_worker self = {w->scratch, w->profile, LW_OP_DOWN};
    const lw_rows rows = {0, group->rows};
    for (size_t panel = first; panel < first + n; ++panel) {
        lw_product_panel(&p, &x, rows, before + panel, (lw_output){to, width, false}, w->scratch);
        lw_matmul_charge(&self, &p, &x, rows, panel);
    }
}

// Number of work items of a group in a phase: panels of gate and up, or of down.
static size_t items_of(const lw_worker* w, const lw_layer* layer, const lw_expert_group* group,
                       lw_operation operation) {
    if (operation == LW_OP_DOWN) return result_of(w, layer, group) / LW_PANEL;
    return inner_matrices(layer) * size_of(layer, group) / LW_PANEL;
}

static void take_items(lw_worker* w, const lw_layer* layer, size_t index, const expert_inputs* x,
                       lw_operation operation, size_t first, size_t n) {
    if (operation == LW_OP_DOWN) {
        multiply_down(w, layer, &lw_experts_of(w->s)->groups[index], first, n);
        return;
    }
    lw_gate_up g = gate_up_of(w, layer, index, x);
    lw_gate_up_take(&g, first, first + n);
}

// A phase over groups first .. last - 1: gate and up, or down.
static void multiply_groups(lw_worker* w, const lw_layer* layer, const expert_inputs* x, lw_operation operation,
                            size_t first, size_t last) {
    const lw_experts_own* e = lw_experts_of(w->s);
    size_t begin, end, all = 0;
    for (size_t i = first; i < last; ++i) all += items_of(w, layer, &e->groups[i], operation);
    lw_taker items = lw_this_phase(w, all);
    while (lw_take_share(&items, &begin, &end)) {
        size_t before = 0;  // items of the groups before group i
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

// sum += the weighted results of a row's experts, columns first .. first + n - 1.
static void add_routed(lw_worker* w, const lw_layer* layer, float* sum, size_t row, size_t first, size_t n) {
    const lw_experts_own* e = lw_experts_of(w->s);
    const lw_ffn_config* c = &layer->config.ffn;
    const size_t width = lw_routed_width(c, w->c->hidden_size), used = c->n_used;
    for (size_t i = 0; i < used; ++i) {
        float* result = e->out + e->slots[row * used + i] * width + first;
        if (c->bias) lw_add_vector(result, layer->down_bias + e->experts[row * used + i] * width + first, n);
        w->ops->add_weighted(sum, result, n, e->weights[row * (used + 1) + i]);
    }
}

// x += the weighted sum of a row's results, columns first .. first + n - 1. With a latent_size: x += the shared
// expert's result.
static void combine_part(lw_worker* w, const lw_layer* layer, size_t row, size_t first, size_t n) {
    const lw_experts_own* e = lw_experts_of(w->s);
    const lw_ffn_config* c = &layer->config.ffn;
    const size_t hidden = w->c->hidden_size, used = c->n_used;
    float sum[COMBINED_COLS] = {0};
    if (c->latent_size == 0) add_routed(w, layer, sum, row, first, n);
    if (c->shared_size > 0)
        w->ops->add_weighted(sum, e->out + (chosen_rows(w, layer) + row) * hidden + first, n,
                             e->weights[row * (used + 1) + used]);
    if (c->down_bias) lw_add_vector(sum, layer->down_bias + first, n);
    lw_add_vector(w->b->x + row * hidden + first, sum, n);
}

static size_t parts_of(size_t cols) { return (cols + COMBINED_COLS - 1) / COMBINED_COLS; }

static size_t cols_of(size_t part, size_t cols) {
    const size_t left = cols - part * COMBINED_COLS;
    return left < COMBINED_COLS ? left : COMBINED_COLS;
}

static void combine(lw_worker* w, const lw_layer* layer) {
    const size_t hidden = w->c->hidden_size, parts = parts_of(hidden);
    lw_taker items = lw_this_phase(w, w->rows * parts);
    for (size_t item; lw_take_item(&items, &item);) {
        const size_t n = cols_of(item % parts, hidden);
        combine_part(w, layer, item / parts, item % parts * COMBINED_COLS, n);
        lw_charge_row(w, LW_OP_COMBINE, n * (layer->config.ffn.n_used + 2), 0);
    }
    lw_end_phase(w, LW_OP_COMBINE);
}

// x += a row's results. With own_norms there is a norm of the experts' sum, one of the shared expert's result, and one
// of both together.
static void combine_normed(lw_worker* w, const lw_layer* layer, size_t row) {
    const lw_experts_own* e = lw_experts_of(w->s);
    const size_t hidden = w->c->hidden_size, used = layer->config.ffn.n_used;
    const float* weights = e->weights + row * (used + 1);
    float *sum = w->b->norm + row * hidden, *shared = e->out + (chosen_rows(w, layer) + row) * hidden;
    memset(sum, 0, hidden * sizeof *sum);
    for (size_t i = 0; i < used; ++i)
        w->ops->add_weighted(sum, e->out + e->slots[row * used + i] * hidden, hidden, weights[i]);
    lw_normalize_result(w, sum, layer->experts_result_norm);
    lw_normalize_result(w, shared, layer->shared_result_norm);
    lw_add_vector(sum, shared, hidden);
    lw_normalize_result(w, sum, layer->ffn_result_norm);
    lw_add_vector(w->b->x + row * hidden, sum, hidden);
}

// The router, the shared expert and the routed experts each read x through a norm of their own. The norms share a
// buffer, so each one is computed when the result of the one before has been read.
static void experts_with_norms(lw_worker* w, const lw_layer* layer, uint32_t index) {
    const bool gated = !layer->config.ffn.ungated;
    const lw_matrix *shared[] = {&layer->up, gated ? &layer->gate : &layer->up},
                    *inputs[] = {&layer->experts_up, gated ? &layer->experts_gate : &layer->experts_up};
    lw_activations x = lw_normalize(w, LW_OP_FFN_NORM, (lw_norm){.weight = layer->router_norm, .scale = 1}, false);
    lw_route(w, layer, &x);
    const lw_norm before_shared = lw_norm_before_ffn(w, layer, NULL);
    x = lw_normalize(w, LW_OP_FFN_NORM, before_shared, lw_any_reads_codes(w, shared, 2));
    expert_inputs read = {.shared = x};
    multiply_groups(w, layer, &read, LW_OP_GATE_UP, 0, 1);
    const bool codes = lw_any_reads_codes(w, inputs, 2),
               values = !lw_reads_codes(w, inputs[0]) || !lw_reads_codes(w, inputs[1]);
    x = lw_normalize(w, LW_OP_FFN_NORM, (lw_norm){.weight = layer->experts_norm, .scale = 1}, codes);
    lw_observe(w, LW_OP_GATE_UP, index, lw_inputs_of(&x));
    read.routed = x;
    if (w->rows > 1) gather(w, &read, codes, values);
    multiply_groups(w, layer, &read, LW_OP_GATE_UP, 1, lw_experts_of(w->s)->n_groups);
    multiply_groups(w, layer, &read, LW_OP_DOWN, 0, lw_experts_of(w->s)->n_groups);
    lw_taker items = lw_this_phase(w, w->rows);
    for (size_t row; lw_take_item(&items, &row);) {
        combine_normed(w, layer, row);
        lw_charge_row(w, LW_OP_COMBINE, w->c->hidden_size * (layer->config.ffn.n_used + 5), 0);
    }
    lw_end_phase(w, LW_OP_COMBINE);
}

// The latent values of all rows, as an input of matrices.
static lw_activations latents_of(const lw_worker* w, const lw_layer* layer) {
    const lw_experts_own* e = lw_experts_of(w->s);
    return lw_activations_in(w, layer->config.ffn.latent_size, &e->latent_codes, e->latents);
}

// What experts with a latent_size read.
static lw_activations enter_latents(lw_worker* w, const lw_layer* layer, const lw_activations* x, bool codes) {
    const lw_activations to = latents_of(w, layer);
    const lw_product product = lw_product_at(w, &layer->experts_in, lw_experts_of(w->s)->latents, false);
    lw_multiply(w, LW_OP_GATE_UP, &product, 1, x);
    if (!codes) return to;
    lw_taker items = lw_this_phase(w, w->rows);
    for (size_t row; lw_take_item(&items, &row);) {
        lw_quantize_segments(w, &to, row, 0, to.segments, to.f32 + row * to.cols);
        lw_charge_row(w, LW_OP_ROUTE, to.cols, to.cols);
    }
    lw_end_phase(w, LW_OP_ROUTE);
    return to;
}

// x += the output projection of the weighted sum of results.
static void leave_latents(lw_worker* w, const lw_layer* layer) {
    const lw_activations sums = latents_of(w, layer);
    const bool codes = lw_reads_codes(w, &layer->experts_out);
    const size_t parts = parts_of(sums.cols);
    lw_taker items = lw_this_phase(w, w->rows * parts);
    for (size_t item; lw_take_item(&items, &item);) {
        const size_t row = item / parts, first = item % parts * COMBINED_COLS, n = cols_of(item % parts, sums.cols);
        float* sum = lw_experts_of(w->s)->latents + row * sums.cols + first;
        memset(sum, 0, n * sizeof *sum);
        add_routed(w, layer, sum, row, first, n);
        if (codes) lw_quantize_segments(w, &sums, row, first / LW_SEGMENT, (n + LW_SEGMENT - 1) / LW_SEGMENT, sum);
        lw_charge_row(w, LW_OP_COMBINE, n * (layer->config.ffn.n_used + 1), codes ? n : 0);
    }
    lw_end_phase(w, LW_OP_COMBINE);
    lw_add_product(w, LW_OP_DOWN, &layer->experts_out, NULL, &sums, LW_ADAPTED_COUNT);
}

void lw_run_experts(lw_worker* w, const lw_layer* layer, uint32_t index) {
    if (layer->config.ffn.own_norms) {
        experts_with_norms(w, layer, index);
        return;
    }
    const lw_ffn_config* c = &layer->config.ffn;
    const bool gated = !c->ungated, latent = c->latent_size > 0;
    const lw_matrix *inner[] = {&layer->experts_up, gated ? &layer->experts_gate : &layer->experts_up},
                    *outer[] = {latent ? &layer->experts_in : inner[0], latent ? &layer->experts_in : inner[1],
                                &layer->up, gated ? &layer->gate : &layer->up};
    const bool codes = lw_any_reads_codes(w, inner, 2),
               values = !lw_reads_codes(w, inner[0]) || !lw_reads_codes(w, inner[1]);
    const lw_norm by = lw_norm_before_ffn(w, layer, NULL);
    const bool quantized = lw_any_reads_codes(w, outer, c->shared_size > 0 ? 4 : 2);
    const lw_activations normed = lw_normalize(w, LW_OP_FFN_NORM, by, quantized);
    lw_observe(w, LW_OP_GATE_UP, index, lw_inputs_of(&normed));
    lw_route(w, layer, &normed);
    const expert_inputs x = {normed, latent ? enter_latents(w, layer, &normed, codes) : normed};
    if (w->rows > 1) gather(w, &x, codes, values);
    multiply_groups(w, layer, &x, LW_OP_GATE_UP, 0, lw_experts_of(w->s)->n_groups);
    multiply_groups(w, layer, &x, LW_OP_DOWN, 0, lw_experts_of(w->s)->n_groups);
    if (!latent || c->shared_size > 0) combine(w, layer);
    if (latent) leave_latents(w, layer);
}
