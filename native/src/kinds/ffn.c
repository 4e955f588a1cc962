// FFNs without experts, gated and plain (ffn.h).
#include "kinds/ffn.h"

#include <float.h>
#include <math.h>

#include "graph/observe.h"
#include "kinds/kind.h"

// Checks the config of a layer without an FFN.
static lw_status check_nothing_else(const lw_place* at, const lw_model_config* model, uint32_t layer) {
    const lw_layer_config* c = &model->layers[layer];
    if (c->attention.n_heads == 0 && c->state.kind == LW_NO_STATE)
        return lw_fail(LW_ERR_ARGUMENT, "model config: %skind is %d, and the layer has neither attention nor a state",
                       at->text, (int)c->ffn.kind);
    lw_ffn_config rest = c->ffn;
    rest.kind = LW_FFN_GATED;  // the value 0
    return lw_check_absent(at, "FFN", &rest, sizeof rest);
}

static lw_status check_ffn(const lw_model_config* model, uint32_t layer) {
    const lw_ffn_config* c = &model->layers[layer].ffn;
    const lw_place at = lw_place_of_layer(layer, " FFN");
    LW_RETURN_IF_FAILED(lw_check_range(&at, "kind", (uint64_t)c->kind, 0, LW_FFN_NONE));
    if (c->kind == LW_FFN_NONE) return check_nothing_else(&at, model, layer);
    LW_RETURN_IF_FAILED(lw_check_range(&at, "size", c->size, 1, 1 << 19));
    LW_RETURN_IF_FAILED(lw_check_flag(&at, "bias", c->bias));
    LW_RETURN_IF_FAILED(lw_check_range(&at, "down_bias", c->down_bias, 0, c->kind != LW_FFN_EXPERTS || !c->bias));
    LW_RETURN_IF_FAILED(lw_check_range(&at, "own_norms", c->own_norms, 0, c->kind == LW_FFN_EXPERTS));
    LW_RETURN_IF_FAILED(
        lw_check_range(&at, "inner_norm", c->inner_norm, 0, c->kind == LW_FFN_GATED && !model->norm_bias));
    const bool of_dense = c->activation == LW_TANH || c->activation == LW_IDENTITY;
    const bool limited = c->activation == LW_LIMITED, capped = c->activation == LW_CAPPED || limited;
    const lw_activation last = capped ? LW_LIMITED : c->kind == LW_FFN_EXPERTS ? LW_RELU_SQUARED : LW_XIELU;
    LW_RETURN_IF_FAILED(lw_check_range(&at, "activation", (uint64_t)c->activation, 0, of_dense ? LW_RELU : last));
    if ((capped || c->activation == LW_CLAMPED) && (c->kind == LW_FFN_PLAIN || c->ungated))
        return lw_fail(LW_ERR_ARGUMENT, "model config: %sactivation is %d, which needs a gate", at.text,
                       (int)c->activation);
    const bool cut = c->kind == LW_FFN_GATED && !c->bias;
    LW_RETURN_IF_FAILED(lw_check_number(&at, "cutoff", (double)c->cutoff, 0, cut ? 10 : 0));
    const double least_limit = limited ? 1e-3 : 0;
    if (capped) LW_RETURN_IF_FAILED(lw_check_number(&at, "limit", (double)c->limit, least_limit, 1e6));
    const bool shared = capped && (!limited || c->shared_size > 0);
    LW_RETURN_IF_FAILED(
        lw_check_number(&at, "shared_limit", (double)c->shared_limit, shared ? least_limit : 0, shared ? 1e6 : 0));
    if (c->activation == LW_CLAMPED) {
        LW_RETURN_IF_FAILED(lw_check_number(&at, "limit", (double)c->limit, 1e-3, 1e6));
        LW_RETURN_IF_FAILED(lw_check_number(&at, "alpha", (double)c->alpha, 1e-3, 1e3));
    }
    if (c->activation == LW_XIELU) {
        LW_RETURN_IF_FAILED(lw_check_number(&at, "limit", (double)c->limit, 1e-6, 1e6));
        LW_RETURN_IF_FAILED(lw_check_number(&at, "alpha", (double)c->alpha, 1e-6, 1e6));
    }
    return c->kind == LW_FFN_EXPERTS ? LW_OK : lw_check_range(&at, "n_experts", c->n_experts, 0, 0);
}

static lw_tensor_spec gated_tensor(const lw_model_config* model, const lw_layer_config* l, lw_role role) {
    const uint32_t hidden = model->hidden_size;
    const lw_ffn_config* c = &l->ffn;
    const bool gated = c->kind == LW_FFN_GATED, here = gated || c->kind == LW_FFN_PLAIN, bias = here && c->bias;
    const bool down_bias = bias || (lw_has_ffn(l) && c->down_bias);
    switch (role) {
        case LW_FFN_GATE:
            return LW_MATRIX(gate, "FFN gate", c->size, hidden, gated);
        case LW_FFN_UP:
            return LW_MATRIX(up, "FFN up", c->size, hidden, here);
        case LW_FFN_DOWN:
            return LW_MATRIX(down, "FFN down", hidden, c->size, here);
        case LW_FFN_INNER_NORM:
            return LW_VECTOR(ffn_inner_norm, "norm of what FFN down reads", c->size, c->inner_norm);
        case LW_FFN_GATE_BIAS:
            return LW_VECTOR(gate_bias, "FFN gate bias", c->size, gated && bias);
        case LW_FFN_UP_BIAS:
            return LW_VECTOR(up_bias, "FFN up bias", c->size, bias);
        case LW_FFN_DOWN_BIAS:
            return LW_VECTOR(down_bias, "FFN down bias", hidden, down_bias);
        case LW_FFN_INPUT_ORDER:
            return LW_VECTOR(ffn_input_order, "order of gate and up", hidden, here);
        default:
            return (lw_tensor_spec){0};
    }
}

enum {
    SEGMENT_PANELS = LW_SEGMENT / LW_PANEL,
    // Weights are prefetched in the order of one matrix, so each switch to the other matrix costs a wait for memory.
    // Steps of few rows wait for weights most of the time, so their runs are long. (Zen 5, 1B, one row: runs of 1
    // segment 32 GB/s.)
    FEW_ROWS = 8,
    LONG_RUN = 8,
};

size_t lw_run_of(size_t rows) { return rows <= FEW_ROWS ? LONG_RUN : 1; }

static size_t panels_of_size(size_t size) { return (size + LW_PANEL - 1) / LW_PANEL; }

// Number of panels of run `run` in gate, and in up.
static size_t panels_of(const lw_gate_up* g, size_t run) {
    const size_t all = g->run * SEGMENT_PANELS, left = panels_of_size(g->size) - run * all;
    return left < all ? left : all;
}

// Address of row `row` of a segment in the results of gate or up.
static float* segment_row(const lw_gate_up* g, float* buffer, size_t segment, size_t row) {
    if (g->quantized) return buffer + (segment * g->rows + row) * LW_SEGMENT;
    return buffer + row * g->size + segment * LW_SEGMENT;
}

static void multiply_panel(const lw_gate_up* g, size_t run, lw_rows rows, size_t place) {
    const size_t n = panels_of(g, run), panel = run * g->run * SEGMENT_PANELS + place % n,
                 segment = panel / SEGMENT_PANELS;
    const lw_product* p = place < n ? &g->gate : &g->up;
    float* to = place < n ? g->gate_to : g->up_to;
    // Kernels add panel number * LW_PANEL to the row's address. Here panels of earlier experts are subtracted.
    lw_output out = {to - g->first_panel * LW_PANEL, g->size, false};
    if (g->quantized)
        out = (lw_output){segment_row(g, to, segment, 0) - segment * LW_SEGMENT - g->first_panel * LW_PANEL, LW_SEGMENT,
                          false};
    lw_product_panel(p, &g->in, rows, g->first_panel + panel, out, g->w->scratch);
    const lw_matmul_worker self = {g->w->scratch, g->w->profile, LW_OP_GATE_UP};
    lw_matmul_charge(&self, p, &g->in, rows, panel);
}

// gate = gate, at most limit, times up in -limit .. limit; a limit of 0 is none.
static void cap(float* gate, const float* up, size_t n, float limit) {
    if (limit == 0) limit = INFINITY;
    for (size_t i = 0; i < n; ++i) {
        const float g = gate[i] > limit ? limit : gate[i], u = up[i] > limit ? limit : up[i];
        gate[i] = g * (u < -limit ? -limit : u);
    }
}

static void activate(const lw_gate_up* g, float* gate, float* up, size_t first, size_t n) {
    const lw_ffn_config* c = g->config;
    if (g->gate_bias != NULL) lw_add_vector(gate, g->gate_bias + first, n);
    if (g->up_bias != NULL) lw_add_vector(up, g->up_bias + first, n);
    if (c->activation == LW_CLAMPED)
        g->w->ops->clamped_swiglu(gate, gate, up, n, c->limit, c->alpha);
    else if (c->activation == LW_CAPPED) {
        g->w->ops->activate(gate, gate, NULL, n, LW_SILU);
        cap(gate, up, n, g->limit);
    } else if (c->activation == LW_LIMITED) {
        g->w->ops->clamp(gate, gate, n, -FLT_MAX, g->limit);
        g->w->ops->clamp(up, up, n, -g->limit, g->limit);
        g->w->ops->silu_mul(gate, gate, up, n);
    } else if (c->activation == LW_XIELU)
        g->w->ops->xielu(gate, gate, g->matrices == 2 ? up : NULL, n, c->limit, c->alpha);
    else if (c->activation == LW_SILU && g->matrices == 2)
        g->w->ops->silu_mul(gate, gate, up, n);
    else
        g->w->ops->activate(gate, gate, g->matrices == 2 ? up : NULL, n, c->activation);
}

static void weigh(float* gate, float* up, size_t n, float weight) {
    for (size_t i = 0; i < n; ++i) gate[i] *= weight;
    for (size_t i = 0; up != NULL && i < n; ++i) up[i] *= weight;
}

static void activate_segment(lw_gate_up* g, size_t segment, lw_rows rows) {
    lw_worker* w = g->w;
    const size_t first = segment * LW_SEGMENT, left = g->size - first, n = left < LW_SEGMENT ? left : LW_SEGMENT;
    for (size_t row = rows.first; row < rows.first + rows.n; ++row) {
        float *gate = segment_row(g, g->gate_to, segment, row), *up = segment_row(g, g->up_to, segment, row);
        if (g->weights != NULL) weigh(gate, g->matrices == 2 ? up : NULL, n, g->weights[row]);
        activate(g, gate, up, first, n);
        if (g->quantized) lw_quantize_segments(w, &g->out, row, segment, 1, gate);
    }
    lw_charge_row(w, LW_OP_ACTIVATE, (1 + g->matrices) * n * rows.n, g->quantized ? n * rows.n : 0);
}

static void activate_run(lw_gate_up* g, size_t run, lw_rows rows) {
    if (g->config->cutoff != 0) return;  // whole rows come first
    const size_t first = run * g->run;
    for (size_t segment = first; segment < first + g->run && segment * LW_SEGMENT < g->size; ++segment)
        activate_segment(g, segment, rows);
}

// Computes up to `most` panels of one run and one piece of its rows, starting at item `item`. Returns how many.
static size_t take_of_piece(lw_gate_up* g, size_t item, size_t most) {
    const size_t of_run = g->matrices * g->run * SEGMENT_PANELS * g->cuts.n, run = item / of_run;
    const size_t all = g->matrices * panels_of(g, run);
    const size_t piece = item % of_run / all, first = item % of_run % all, n = all - first < most ? all - first : most;
    const lw_rows rows = lw_piece(g->cuts, g->rows, piece);
    for (size_t place = first; place < first + n; ++place) multiply_panel(g, run, rows, place);
    atomic_uint* done = &g->runs_done[run * g->cuts.n + piece];
    if (atomic_fetch_add_explicit(done, (unsigned)n, memory_order_acq_rel) + n == all) {
        atomic_store_explicit(done, 0, memory_order_relaxed);  // for the next layer, which starts after a barrier
        activate_run(g, run, rows);
    }
    return n;
}

void lw_gate_up_take(lw_gate_up* g, size_t begin, size_t end) {
    while (begin < end) begin += take_of_piece(g, begin, end - begin);
}

typedef struct ffn_own {
    size_t size;                   // maximum over the layers
    atomic_uint* run_panels_done;  // [segments of size][LW_MAX_CUTS] panels done of each run; all 0 between phases
} ffn_own;

static bool has_ffn(const lw_model_config* model, const lw_layer_config* layer) {
    (void)model;
    return layer->ffn.kind == LW_FFN_GATED || layer->ffn.kind == LW_FFN_PLAIN;
}

static void widen_ffn(lw_session* s, const lw_layer* layer, uint32_t index) {
    (void)index;
    ffn_own* own = s->of_kind[LW_KIND_FFN];
    const size_t size = layer->config.ffn.size;
    lw_widen(&own->size, size);
    lw_widen(&s->widths.inner, size);
    lw_widen(&s->widths.input, size);
    lw_widen(&s->widths.adapted, size);
}

static void take_ffn(lw_session* s, lw_parts* parts) {
    ffn_own* own = s->of_kind[LW_KIND_FFN];
    const size_t segments = lw_round_up(own->size, LW_SEGMENT) / LW_SEGMENT;
    own->run_panels_done = lw_take(parts, segments * LW_MAX_CUTS * sizeof *own->run_panels_done);
}

// Whether what down reads is made row by row, when all of a row is there.
static bool needs_whole_rows(const lw_layer* layer) { return layer->ffn_inner_norm != NULL || layer->config.row_codes; }

// The norm before the down projection, and its codes.
static void finish_rows(lw_worker* w, const lw_layer* layer, const lw_activations* x) {
    const lw_matrix* reader = &layer->down;
    const bool quantized = lw_reads_codes(w, reader);
    const lw_row_codes as = lw_codes_for(w, layer, &reader, 1);
    const size_t n = x->cols;
    lw_taker items = lw_this_phase(w, w->rows);
    for (size_t row; lw_take_item(&items, &row);) {
        float* values = (float*)x->f32 + row * n;
        if (layer->ffn_inner_norm != NULL) lw_normalize_row(w, values, values, layer->ffn_inner_norm, NULL, n);
        if (quantized || as.floats) lw_quantize_row(w, x, row, values, as, quantized);
        lw_charge_row(w, LW_OP_ACTIVATE, 2 * n, quantized ? n : 0);
    }
    lw_end_phase(w, LW_OP_ACTIVATE);
}

// Sets what of a row's gate is below its mean plus `cutoff` deviations to 0, and takes that from the rest.
static void cut_row(const lw_gate_up* g, size_t row) {
    const size_t size = g->size;
    double sum = 0, squares = 0;
    for (size_t i = 0; i < size; ++i) sum += (double)segment_row(g, g->gate_to, i / LW_SEGMENT, row)[i % LW_SEGMENT];
    const double mean = sum / (double)size;
    for (size_t i = 0; i < size; ++i) {
        const double past = (double)segment_row(g, g->gate_to, i / LW_SEGMENT, row)[i % LW_SEGMENT] - mean;
        squares += past * past;
    }
    const float least = (float)(mean + (double)g->config->cutoff * sqrt(squares / (double)size));
    for (size_t i = 0; i < size; ++i) {
        float* gate = &segment_row(g, g->gate_to, i / LW_SEGMENT, row)[i % LW_SEGMENT];
        *gate = *gate - least < 0 ? 0 : *gate - least;  // NaN stays NaN
    }
}

// A phase: cuts and activates whole rows.
static void cut_and_activate(lw_gate_up* g) {
    lw_worker* w = g->w;
    lw_taker items = lw_this_phase(w, g->rows);
    for (size_t row; lw_take_item(&items, &row);) {
        cut_row(g, row);
        for (size_t segment = 0; segment * LW_SEGMENT < g->size; ++segment)
            activate_segment(g, segment, (lw_rows){row, 1});
        lw_charge_row(w, LW_OP_ACTIVATE, 4 * g->size, 0);
    }
    lw_end_phase(w, LW_OP_ACTIVATE);
}

// Returns the input of the down projection.
static lw_activations gate_up(lw_worker* w, const lw_layer* layer, const lw_activations* x) {
    const bool plain = layer->config.ffn.kind == LW_FFN_PLAIN;
    const size_t size = layer->config.ffn.size, matrices = plain ? 1 : 2, panels = matrices * panels_of_size(size);
    const lw_product up = lw_adapted_product_at(w, &layer->up, plain ? w->b->gate : w->b->up, false, LW_ADAPTED_UP);
    lw_gate_up g = {.w = w,
                    .config = &layer->config.ffn,
                    .matrices = matrices,
                    .gate = up,
                    .gate_bias = plain ? layer->up_bias : layer->gate_bias,
                    .in = *x,
                    .out = lw_activations_in(w, size, &w->b->ffn_codes, w->b->gate),
                    .rows = w->rows,
                    .size = size,
                    .gate_to = w->b->gate,
                    .up_to = w->b->up,
                    .runs_done = ((const ffn_own*)w->s->of_kind[LW_KIND_FFN])->run_panels_done,
                    .cuts = lw_cut_rows(w->rows, panels, w->s->threads),
                    .run = lw_run_of(w->rows),
                    .quantized = lw_reads_codes(w, &layer->down) && !needs_whole_rows(layer),
                    .limit = layer->config.ffn.limit};
    if (!plain) {
        g.gate = lw_adapted_product_at(w, &layer->gate, w->b->gate, false, LW_ADAPTED_GATE);
        g.up = up;
        g.up_bias = layer->up_bias;
    }
    size_t begin, end;
    lw_taker items = lw_this_phase(w, panels * g.cuts.n);
    while (lw_take_share(&items, &begin, &end)) lw_gate_up_take(&g, begin, end);
    lw_count_products(w, matrices, x->rows);
    lw_end_phase(w, LW_OP_GATE_UP);
    if (layer->config.ffn.cutoff != 0) cut_and_activate(&g);
    if (needs_whole_rows(layer)) finish_rows(w, layer, &g.out);
    return g.out;
}

// Call after the down projection: no thread reads the residual stream until the next norm.
static void add_down_bias(lw_worker* w, const float* bias) {
    const size_t hidden = w->c->hidden_size;
    lw_taker items = lw_this_phase(w, w->rows);
    for (size_t row; lw_take_item(&items, &row);) {
        lw_add_vector(w->b->x + row * hidden, bias, hidden);
        lw_charge_row(w, LW_OP_COMBINE, 2 * hidden, 0);
    }
    lw_end_phase(w, LW_OP_COMBINE);
}

static void run_ffn(lw_worker* w, const lw_layer* layer, uint32_t index) {
    const lw_matrix* inputs[] = {&layer->gate, &layer->up};
    const size_t n = 2;
    lw_norm by = lw_norm_before_ffn(w, layer, layer->ffn_input_order);
    by.codes = lw_codes_for(w, layer, inputs, n);
    const lw_activations x = lw_normalize(w, LW_OP_FFN_NORM, by, lw_any_reads_codes(w, inputs, n));
    lw_observe(w, LW_OP_GATE_UP, index, lw_inputs_of(&x));
    lw_project(w, LW_OP_GATE_UP, index, LW_ADAPTED_GATE, 2, lw_inputs_of(&x));
    const lw_activations values = gate_up(w, layer, &x);
    lw_inputs activated = lw_inputs_of(&values);
    if (lw_reads_codes(w, &layer->down) && !needs_whole_rows(layer)) {
        activated.row_stride = LW_SEGMENT;
        activated.segment_stride = w->rows * LW_SEGMENT;
    }
    lw_observe(w, LW_OP_DOWN, index, activated);
    lw_project(w, LW_OP_DOWN, index, LW_ADAPTED_DOWN, 1, activated);
    lw_add_product(w, LW_OP_DOWN, &layer->down, layer->ffn_result_norm, &values, LW_ADAPTED_DOWN);
    if (layer->down_bias != NULL) add_down_bias(w, layer->down_bias);
}

const lw_kind lw_kind_ffn = {.check = check_ffn,
                             .tensor = gated_tensor,
                             .has = has_ffn,
                             .own_bytes = sizeof(ffn_own),
                             .widen = widen_ffn,
                             .take = take_ffn,
                             .run = run_ffn};
