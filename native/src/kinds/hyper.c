// Residual streams that are mixed (manifold-constrained hyper-connections, DeepSeek V4). In front of attention and of
// the FFN x becomes a weighted sum of the streams. Both leave only their result in x, and then each stream becomes a
// mixture of all streams and of that result. The weights are made from all streams of the token.
#include "kinds/hyper.h"

#include <math.h>
#include <string.h>

#include "kinds/kind.h"

enum { MAX_STREAMS = 8, MAX_WEIGHTS = MAX_STREAMS * (MAX_STREAMS + 2), PART = 256 };

static bool may_be_mixed(const lw_model_config* c, const lw_layer_config* l) {
    return l->attention.shared_rows && l->state.kind == LW_NO_STATE && l->ffn.kind == LW_FFN_EXPERTS &&
           !l->ffn.own_norms && l->wiring == LW_IN_TURN && !l->result_norms && !l->attn_norm_replaces &&
           !l->ffn_norm_replaces && !l->mtp && (l->output_scale == 0 || l->output_scale == 1) && c->n_streams == 0 &&
           c->per_layer_size == 0 && c->n_taps == 0 && !c->pooled;
}

static lw_status check_hyper(const lw_model_config* model, uint32_t layer) {
    static const lw_place nowhere = {""};
    const uint32_t n = model->hyper_streams;
    LW_RETURN_IF_FAILED(lw_check_range(&nowhere, "hyper_streams", n, 0, MAX_STREAMS));
    LW_RETURN_IF_FAILED(lw_check_range(&nowhere, "hyper_iterations", model->hyper_iterations, n > 0, n > 0 ? 1000 : 0));
    LW_RETURN_IF_FAILED(lw_check_number(&nowhere, "hyper_eps", (double)model->hyper_eps, 0, n > 0 ? 1 : 0));
    if (n == 0 || may_be_mixed(model, &model->layers[layer])) return LW_OK;
    return lw_fail(LW_ERR_ARGUMENT,
                   "model config: hyper_streams is %u, and layer %u must have attention to shared rows and experts, in"
                   " turn, without other norms, streams and inputs of layers",
                   n, layer);
}

static lw_tensor_spec hyper_tensor(const lw_model_config* model, const lw_layer_config* l, lw_role role) {
    const uint32_t n = model->hyper_streams, weights = n * (n + 2), all = n * model->hidden_size;
    (void)l;
    switch (role) {
        case LW_HYPER_ATTN:
            return LW_MATRIX(hyper_attn, "weights of streams before attention", weights, all, n > 0);
        case LW_HYPER_ATTN_BASE:
            return LW_VECTOR(hyper_attn_base, "base of weights before attention", weights, n > 0);
        case LW_HYPER_ATTN_SCALE:
            return LW_VECTOR(hyper_attn_scale, "scale of weights before attention", 3, n > 0);
        case LW_HYPER_FFN:
            return LW_MATRIX(hyper_ffn, "weights of streams before the FFN", weights, all, n > 0);
        case LW_HYPER_FFN_BASE:
            return LW_VECTOR(hyper_ffn_base, "base of weights before the FFN", weights, n > 0);
        case LW_HYPER_FFN_SCALE:
            return LW_VECTOR(hyper_ffn_scale, "scale of weights before the FFN", 3, n > 0);
        default:
            return (lw_tensor_spec){0};
    }
}

static bool has_hyper(const lw_model_config* model, const lw_layer_config* layer) {
    (void)layer;
    return model->hyper_streams > 0;
}

typedef struct hyper_own {
    float* streams;  // [rows][hyper_streams][hidden_size]
    float* weights;  // [rows][hyper_streams * (hyper_streams + 2)] of the sum, of the result, of the mixture
} hyper_own;

static hyper_own* of(const lw_worker* w) { return w->s->of_kind[LW_KIND_HYPER]; }

static size_t weights_of(const lw_worker* w) { return (size_t)w->c->hyper_streams * (w->c->hyper_streams + 2); }

static size_t all_of(const lw_worker* w) { return (size_t)w->c->hyper_streams * w->c->hidden_size; }

static void take_hyper(lw_session* s, lw_parts* parts) {
    const lw_model_config* c = &s->model->config;
    const size_t row = s->config.max_batch_tokens * sizeof(float) * c->hyper_streams;
    hyper_own* own = s->of_kind[LW_KIND_HYPER];
    own->streams = lw_take(parts, row * c->hidden_size);
    own->weights = lw_take(parts, row * (c->hyper_streams + 2));
}

static void begin_hyper(lw_worker* w) {
    const size_t hidden = w->c->hidden_size, n = w->c->hyper_streams;
    lw_taker items = lw_this_phase(w, w->rows);
    for (size_t row; lw_take_item(&items, &row);) {
        for (size_t i = 0; i < n; ++i)
            memcpy(of(w)->streams + (row * n + i) * hidden, w->b->x + row * hidden, hidden * sizeof(float));
        lw_charge_row(w, LW_OP_EMBED, (1 + n) * hidden, 0);
    }
    lw_end_phase(w, LW_OP_EMBED);
}

static void sigmoid(const lw_worker* w, float* x, size_t n, float times, float more) {
    w->ops->exp(x, x, n, 0, -1);
    for (size_t i = 0; i < n; ++i) x[i] = times / (1 + x[i]) + more;
}

// Divides `n` numbers, each `step` after the one before, by their sum and hyper_eps.
static void divide(const lw_worker* w, float* x, size_t n, size_t step) {
    float sum = 0;
    for (size_t i = 0; i < n; ++i) sum += x[i * step];
    sum += w->c->hyper_eps;
    for (size_t i = 0; i < n; ++i) x[i * step] /= sum;
}

// Makes rows and columns of a mixture add up to about 1 (Sinkhorn and Knopp).
static void balance(const lw_worker* w, float* mixture) {
    const size_t n = w->c->hyper_streams;
    for (size_t i = 0; i < n; ++i) {
        float* row = mixture + i * n;
        const float largest = w->ops->max(row, n), sum = w->ops->sum_exp(row, n, largest, 1);
        w->ops->exp(row, row, n, largest, 1);
        for (size_t k = 0; k < n; ++k) row[k] = row[k] / sum + w->c->hyper_eps;
    }
    for (uint32_t turn = 0; turn < w->c->hyper_iterations; ++turn) {
        for (size_t i = 0; turn > 0 && i < n; ++i) divide(w, mixture + i * n, n, 1);
        for (size_t k = 0; k < n; ++k) divide(w, mixture + k, n, n);
    }
}

// Makes a row's weights from the products of its streams; `all` of them, or only those of the sum.
static void finish_weights(lw_worker* w, float* weights, const float* streams, const float* base, const float* scale,
                           bool all) {
    const size_t n = w->c->hyper_streams, size = all_of(w), last = all ? n * (n + 2) : n;
    double square = 0;
    for (size_t i = 0; i < size; ++i) square += (double)streams[i] * (double)streams[i];
    const float by = (float)(1 / sqrt(square / (double)size + (double)w->c->rms_norm_eps));
    for (size_t i = 0; i < last; ++i) weights[i] = weights[i] * by * scale[i < n ? 0 : i < 2 * n ? 1 : 2] + base[i];
    if (!w->ops->are_finite(weights, last)) {
        lw_note_non_finite(w);
        memset(weights, 0, last * sizeof *weights);
    }
    sigmoid(w, weights, n, 1, w->c->hyper_eps);
    if (!all) return;
    sigmoid(w, weights + n, n, 2, 0);
    balance(w, weights + 2 * n);
}

// Phases: x becomes the weighted sum of the streams.
static void collapse(lw_worker* w, lw_operation operation, const lw_matrix* matrix, const float* base,
                     const float* scale) {
    const size_t hidden = w->c->hidden_size, n = w->c->hyper_streams, size = all_of(w), stride = matrix->rows;
    const lw_activations streams = lw_activations_in(w, size, &w->b->codes, of(w)->streams);
    const lw_product product = lw_product_at(w, matrix, of(w)->weights, false);
    lw_multiply(w, operation, &product, 1, &streams);
    lw_taker items = lw_this_phase(w, w->rows);
    for (size_t row; lw_take_item(&items, &row);) {
        const float* own = of(w)->streams + row * size;
        float *weights = of(w)->weights + row * stride, *x = w->b->x + row * hidden;
        finish_weights(w, weights, own, base, scale, stride > n);
        memset(x, 0, hidden * sizeof *x);
        for (size_t i = 0; i < n; ++i) w->ops->add_weighted(x, own + i * hidden, hidden, weights[i]);
        lw_charge_row(w, operation, (2 * n + 1) * hidden, 0);
    }
    lw_end_phase(w, operation);
}

// Each stream becomes a mixture of all streams and of the result in x.
static void mix_row(lw_worker* w, size_t row) {
    const size_t hidden = w->c->hidden_size, n = w->c->hyper_streams;
    const float *weights = of(w)->weights + row * weights_of(w), *of_result = weights + n, *mixture = weights + 2 * n;
    float* streams = of(w)->streams + row * all_of(w);
    for (size_t first = 0; first < hidden; first += PART) {
        const size_t size = hidden - first < PART ? hidden - first : PART;
        float mixed[MAX_STREAMS][PART] = {{0}};
        for (size_t i = 0; i < n; ++i) {
            for (size_t k = 0; k < n; ++k)
                w->ops->add_weighted(mixed[i], streams + k * hidden + first, size, mixture[k * n + i]);
            w->ops->add_weighted(mixed[i], w->b->x + row * hidden + first, size, of_result[i]);
        }
        for (size_t i = 0; i < n; ++i) memcpy(streams + i * hidden + first, mixed[i], size * sizeof(float));
    }
    lw_charge_row(w, LW_OP_COMBINE, (2 * n + 1) * hidden, 0);
}

static void expand(lw_worker* w) {
    lw_taker items = lw_this_phase(w, w->rows);
    for (size_t row; lw_take_item(&items, &row);) mix_row(w, row);
    lw_end_phase(w, LW_OP_COMBINE);
}

static void enter_hyper(lw_worker* w, const lw_layer* layer) {
    collapse(w, LW_OP_ATTN_NORM, &layer->hyper_attn, layer->hyper_attn_base, layer->hyper_attn_scale);
}

static void between_hyper(lw_worker* w, const lw_layer* layer, uint32_t index) {
    (void)index;
    expand(w);
    collapse(w, LW_OP_FFN_NORM, &layer->hyper_ffn, layer->hyper_ffn_base, layer->hyper_ffn_scale);
}

static void leave_hyper(lw_worker* w, const lw_layer* layer, uint32_t index) {
    (void)layer;
    (void)index;
    expand(w);
}

static void keep_hyper(lw_worker* w, const lw_layer* layer) {
    (void)layer;
    lw_keep_rows(of(w)->streams, all_of(w), w->step->batch);
    lw_keep_rows(of(w)->weights, weights_of(w), w->step->batch);
}

void lw_join_hyper(lw_worker* w) {
    collapse(w, LW_OP_OUTPUT_NORM, &w->model->hyper_head, w->model->hyper_head_base, w->model->hyper_head_scale);
}

const lw_kind lw_kind_hyper = {.check = check_hyper,
                               .tensor = hyper_tensor,
                               .has = has_hyper,
                               .own_bytes = sizeof(hyper_own),
                               .take = take_hyper,
                               .begin = begin_hyper,
                               .enter = enter_hyper,
                               .add = between_hyper,
                               .keep = keep_hyper,
                               .run = leave_hyper};
