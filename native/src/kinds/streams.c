// Several residual streams (AltUp, with LAuReL: Gemma 3n). A layer computes with x, the first stream; the others follow
// it. Before the layer all streams are predicted from one another, and after its FFN all of them are corrected by what
// became of x.
#include "kinds/streams.h"

#include <math.h>
#include <string.h>

#include "kinds/kind.h"

enum { MAX_STREAMS = 8 };

static bool may_have_streams(const lw_model_config* c, const lw_layer_config* l) {
    return l->attention.n_heads > 0 && l->state.kind == LW_NO_STATE && l->ffn.kind == LW_FFN_GATED && l->result_norms &&
           !l->no_input_norms && l->wiring == LW_IN_TURN && !l->attn_norm_replaces && !l->ffn_norm_replaces &&
           !l->mtp && (l->output_scale == 0 || l->output_scale == 1) && c->norm == LW_NORM_RMS && !c->pooled &&
           c->n_taps == 0;
}

static lw_status check_streams(const lw_model_config* model, uint32_t layer) {
    static const lw_place nowhere = {""};
    const uint32_t n = model->n_streams;
    LW_RETURN_IF_FAILED(lw_check_range(&nowhere, "laurel_rank", model->laurel_rank, n > 0, n > 0 ? 1 << 16 : 0));
    if (n == 0) return LW_OK;
    LW_RETURN_IF_FAILED(lw_check_range(&nowhere, "n_streams", n, 2, MAX_STREAMS));
    LW_RETURN_IF_FAILED(lw_check_multiple(&nowhere, "hidden_size", model->hidden_size, LW_PANEL));
    if (!may_have_streams(model, &model->layers[layer]) || model->per_layer_size == 0)
        return lw_fail(LW_ERR_ARGUMENT,
                       "model config: n_streams is %u, and layer %u must have attention, a gated FFN and norms of their"
                       " inputs and results, in turn, and an input of its own",
                       n, layer);
    return LW_OK;
}

static lw_tensor_spec streams_tensor(const lw_model_config* model, const lw_layer_config* l, lw_role role) {
    const uint32_t n = model->n_streams, hidden = model->hidden_size, rank = model->laurel_rank;
    (void)l;
    switch (role) {
        case LW_STREAM_NORM:
            return LW_VECTOR(stream_norm, "norm of streams", hidden, n > 0);
        case LW_STREAM_ROUTER:
            return LW_VECTOR(stream_router, "router of streams", n * hidden, n > 0);
        case LW_STREAM_PREDICTION:
            return LW_VECTOR(stream_prediction, "prediction of streams", n * n * n, n > 0);
        case LW_STREAM_CORRECTION:
            return LW_VECTOR(stream_correction, "correction of streams", n * n, n > 0);
        case LW_STREAM_SCALE:
            return LW_VECTOR(stream_scale, "scale of the corrected stream", hidden, n > 0);
        case LW_LAUREL_DOWN:
            return LW_MATRIX(laurel_down, "LAuReL down", rank, hidden, rank > 0);
        case LW_LAUREL_UP:
            return LW_MATRIX(laurel_up, "LAuReL up", hidden, rank, rank > 0);
        case LW_LAUREL_NORM:
            return LW_VECTOR(laurel_norm, "LAuReL norm", hidden, rank > 0);
        default:
            return (lw_tensor_spec){0};
    }
}

static bool has_streams(const lw_model_config* model, const lw_layer_config* layer) {
    (void)layer;
    return model->n_streams > 0;
}

typedef struct streams_own {
    float* others;   // [n_streams - 1][max_batch_tokens][hidden_size]
    float* low;      // [rows][laurel_rank]
    float* product;  // [rows][hidden_size] of one stream
    float* size;     // [rows] root of the mean square of x
} streams_own;

static streams_own* of(const lw_worker* w) { return w->s->of_kind[LW_KIND_STREAMS]; }

static size_t n_others(const lw_worker* w) { return w->c->n_streams - 1; }

// The rows of a stream other than x.
static float* rows_of(const lw_worker* w, size_t stream) {
    return of(w)->others + stream * w->s->config.max_batch_tokens * w->c->hidden_size;
}

static void widen_streams(lw_session* s, const lw_layer* layer, uint32_t index) {
    (void)layer;
    (void)index;
    lw_widen(&s->widths.input, s->model->config.laurel_rank);
}

static void take_streams(lw_session* s, lw_parts* parts) {
    const lw_model_config* c = &s->model->config;
    streams_own* own = s->of_kind[LW_KIND_STREAMS];
    const size_t row = s->config.max_batch_tokens * sizeof(float);
    own->others = lw_take(parts, row * (c->n_streams - 1) * c->hidden_size);
    own->low = lw_take(parts, row * c->laurel_rank);
    own->product = lw_take(parts, row * c->hidden_size);
    own->size = lw_take(parts, row);
}

static size_t streams_inputs(const lw_worker* w, const lw_layer* layer, lw_mixer_input* found) {
    *found = (lw_mixer_input){&layer->laurel_down, of(w)->low, LW_ADAPTED_COUNT, 0};
    return 1;
}

// The part of a matrix that is one stream's.
static lw_matrix part_of(const lw_matrix* all, size_t stream, uint32_t rows) {
    lw_matrix part = *all;
    part.rows = rows;
    part.panels = rows / LW_PANEL;
    part.data += stream * part.panels * part.panel_bytes;
    return part;
}

static double mean_square(const float* x, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; ++i) sum += (double)x[i] * (double)x[i];
    return sum / (double)n;
}

// Gives a row the size of another one.
static void resize(float* row, size_t n, float size) {
    const double square = mean_square(row, n);
    const float factor = size / (float)sqrt(square > 1e-5 ? square : 1e-5);
    for (size_t i = 0; i < n; ++i) row[i] *= factor;
}

// Streams begin as projections of the embedding, as large as it.
static void begin_streams(lw_worker* w) {
    const size_t hidden = w->c->hidden_size, n = n_others(w);
    const lw_norm none = {.scale = 1};
    const lw_matrix* all = &w->model->streams_in;
    const lw_activations x = lw_normalize(w, LW_OP_EMBED, none, lw_reads_codes(w, all));
    lw_matrix parts[MAX_STREAMS];
    lw_product products[MAX_STREAMS];
    for (size_t i = 0; i < n; ++i) {
        parts[i] = part_of(all, i, w->c->hidden_size);
        products[i] = lw_product_at(w, &parts[i], rows_of(w, i), false);
    }
    lw_multiply(w, LW_OP_EMBED, products, n, &x);
    lw_taker items = lw_this_phase(w, w->rows);
    for (size_t row; lw_take_item(&items, &row);) {
        const float size = (float)sqrt(mean_square(w->b->x + row * hidden, hidden));
        for (size_t i = 0; i < n; ++i) resize(rows_of(w, i) + row * hidden, hidden, size);
        lw_charge_row(w, LW_OP_EMBED, (1 + 2 * n) * hidden, 0);
    }
    lw_end_phase(w, LW_OP_EMBED);
}

// What a row makes of the router: a number for each stream, from -1 to 1. Each is one chain of fma.
static void route_streams(lw_worker* w, const lw_layer* layer, const float* x, float* found) {
    const size_t hidden = w->c->hidden_size, n = w->c->n_streams;
    float* normed = w->scratch;
    float sums[MAX_STREAMS] = {0};
    w->ops->rmsnorm(normed, x, layer->stream_norm, hidden, w->c->rms_norm_eps);
    for (size_t d = 0; d < hidden; ++d) normed[d] *= 1.0f / (float)hidden;
    for (size_t d = 0; d < hidden; ++d)
        for (size_t i = 0; i < n; ++i) sums[i] = fmaf(layer->stream_router[i * hidden + d], normed[d], sums[i]);
    w->ops->activate(found, sums, NULL, n, LW_TANH);
}

// numbers[i] = the chain of fma of row i of a matrix with `cols` columns.
static void combine(float* numbers, const float* matrix, size_t rows, size_t cols, const float* x) {
    for (size_t i = 0; i < rows; ++i) {
        numbers[i] = 0;
        for (size_t k = 0; k < cols; ++k) numbers[i] = fmaf(matrix[i * cols + k], x[k], numbers[i]);
    }
}

// A phase before the layer: every stream becomes itself plus a mixture of all. `before` keeps x.
static void predict_streams(lw_worker* w, const lw_layer* layer) {
    const size_t hidden = w->c->hidden_size, n = w->c->n_streams;
    lw_taker items = lw_this_phase(w, w->rows);
    for (size_t row; lw_take_item(&items, &row);) {
        float routed[MAX_STREAMS], shares[MAX_STREAMS * MAX_STREAMS], *streams[MAX_STREAMS] = {w->b->x + row * hidden};
        for (size_t i = 1; i < n; ++i) streams[i] = rows_of(w, i - 1) + row * hidden;
        route_streams(w, layer, streams[0], routed);
        combine(shares, layer->stream_prediction, n * n, n, routed);
        for (size_t d = 0; d < hidden; ++d) {
            float old[MAX_STREAMS];
            for (size_t i = 0; i < n; ++i) old[i] = streams[i][d];
            for (size_t i = 0; i < n; ++i) {
                float sum = 0;
                for (size_t k = 0; k < n; ++k) sum = fmaf(shares[i * n + k], old[k], sum);
                streams[i][d] = sum + old[i];
            }
        }
        memcpy(w->b->before + row * hidden, streams[0], hidden * sizeof(float));
        lw_charge_row(w, LW_OP_COMBINE, (2 * n + 1) * hidden, 0);
    }
    lw_end_phase(w, LW_OP_COMBINE);
}

// Behind attention: x = (x + norm(x before) + LAuReL's result) / sqrt(2).
static void add_laurel(lw_worker* w, const lw_layer* layer, uint32_t index) {
    (void)index;
    const size_t hidden = w->c->hidden_size, rank = w->c->laurel_rank;
    const lw_activations values = lw_activations_in(w, rank, &w->b->codes, of(w)->low);
    if (lw_reads_codes(w, &layer->laurel_up)) {
        lw_taker items = lw_this_phase(w, w->rows);
        for (size_t row; lw_take_item(&items, &row);) {
            lw_quantize_segments(w, &values, row, 0, values.segments, of(w)->low + row * rank);
            lw_charge_row(w, LW_OP_ATTN_CODES, rank, rank);
        }
        lw_end_phase(w, LW_OP_ATTN_CODES);
    }
    const lw_product product = lw_product_at(w, &layer->laurel_up, of(w)->product, false);
    lw_multiply(w, LW_OP_ATTN_OUTPUT, &product, 1, &values);
    const float half = sqrtf(0.5f), eps = w->c->rms_norm_eps;
    lw_taker items = lw_this_phase(w, w->rows);
    for (size_t row; lw_take_item(&items, &row);) {
        float *x = w->b->x + row * hidden, *result = of(w)->product + row * hidden, *normed = w->scratch;
        w->ops->rmsnorm(normed, w->b->before + row * hidden, layer->attn_norm, hidden, eps);
        w->ops->rmsnorm(result, result, layer->laurel_norm, hidden, eps);
        for (size_t d = 0; d < hidden; ++d) x[d] = (x[d] + (normed[d] + result[d])) * half;
        lw_charge_row(w, LW_OP_ATTN_OUTPUT, 4 * hidden, 0);
    }
    lw_end_phase(w, LW_OP_ATTN_OUTPUT);
}

// A phase behind the FFN: every stream gets a share of what the layer has changed x by. `before` then has the corrected
// x times its scale.
static void correct_streams(lw_worker* w, const lw_layer* layer, uint32_t index) {
    (void)index;
    const size_t hidden = w->c->hidden_size, n = w->c->n_streams;
    lw_taker items = lw_this_phase(w, w->rows);
    for (size_t row; lw_take_item(&items, &row);) {
        float *x = w->b->x + row * hidden, *before = w->b->before + row * hidden;
        float routed[MAX_STREAMS], shares[MAX_STREAMS] = {0};
        route_streams(w, layer, x, routed);
        combine(shares, layer->stream_correction, n, n, routed);
        for (size_t d = 0; d < hidden; ++d) {
            const float change = x[d] - before[d];
            for (size_t i = 1; i < n; ++i) rows_of(w, i - 1)[row * hidden + d] += change * (shares[i] + 1);
            x[d] = before[d] + change * (shares[0] + 1);
            before[d] = x[d] * layer->stream_scale[d];
        }
        lw_charge_row(w, LW_OP_COMBINE, 2 * (n + 1) * hidden, 0);
    }
    lw_end_phase(w, LW_OP_COMBINE);
}

static void keep_streams(lw_worker* w, const lw_layer* layer) {
    (void)layer;
    for (size_t i = 0; i < n_others(w); ++i) lw_keep_rows(rows_of(w, i), w->c->hidden_size, w->step->batch);
    lw_keep_rows(of(w)->low, w->c->laurel_rank, w->step->batch);
}

void lw_add_to_streams(lw_worker* w, lw_operation operation, const lw_matrix* matrix, const float* norm,
                       const lw_activations* values) {
    const size_t hidden = w->c->hidden_size, n = n_others(w);
    const lw_product product = lw_product_at(w, matrix, of(w)->product, false);
    lw_multiply(w, operation, &product, 1, values);
    lw_taker items = lw_this_phase(w, w->rows);
    for (size_t row; lw_take_item(&items, &row);) {
        float* result = of(w)->product + row * hidden;
        lw_normalize_result(w, result, norm);
        for (size_t i = 0; i < n; ++i) lw_add_vector(rows_of(w, i) + row * hidden, result, hidden);
        lw_charge_row(w, operation, (1 + 2 * n) * hidden, 0);
    }
    lw_end_phase(w, operation);
}

void lw_join_streams(lw_worker* w) {
    const size_t hidden = w->c->hidden_size, n = n_others(w);
    for (size_t i = 0; i < n; ++i) {
        const lw_norm none = {.scale = 1, .of = rows_of(w, i)};
        const lw_matrix part = part_of(&w->model->streams_out, i, w->c->hidden_size);
        const lw_activations x = lw_normalize(w, LW_OP_OUTPUT_NORM, none, lw_reads_codes(w, &part));
        const lw_product product = lw_product_at(w, &part, of(w)->product, false);
        lw_multiply(w, LW_OP_OUTPUT_NORM, &product, 1, &x);
        lw_taker items = lw_this_phase(w, w->rows);
        for (size_t row; lw_take_item(&items, &row);) {
            float *to = w->b->x + row * hidden, *result = of(w)->product + row * hidden, *size = of(w)->size + row;
            if (i == 0) *size = (float)sqrt(mean_square(to, hidden));
            resize(result, hidden, *size);
            for (size_t d = 0; d < hidden; ++d) {
                to[d] += result[d];
                if (i + 1 == n) to[d] /= (float)(n + 1);
            }
            lw_charge_row(w, LW_OP_OUTPUT_NORM, 4 * hidden, 0);
        }
        lw_end_phase(w, LW_OP_OUTPUT_NORM);
    }
}

const lw_kind lw_kind_streams = {.check = check_streams,
                                 .tensor = streams_tensor,
                                 .has = has_streams,
                                 .own_bytes = sizeof(streams_own),
                                 .widen = widen_streams,
                                 .take = take_streams,
                                 .begin = begin_streams,
                                 .enter = predict_streams,
                                 .inputs = streams_inputs,
                                 .add = add_laurel,
                                 .keep = keep_streams,
                                 .run = correct_streams};
