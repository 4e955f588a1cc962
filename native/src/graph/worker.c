// Functions on rows that all parts of a step use: norms, codes, products.
#include "graph/worker.h"

#include <math.h>
#include <string.h>

lw_activations lw_activations_at(const lw_worker* w, size_t rows, size_t cols, const lw_codes* codes, size_t place,
                                 const float* values) {
    const lw_layout level = lw_level_layouts[w->model->level];
    lw_activations x = {.rows = rows, .cols = cols};
    lw_lay_out_activations(&x, level);
    const size_t groups = x.segments * LW_SEGMENT_GROUPS, stride = lw_activation_stride(cols);
    x.q = codes->q + place * stride;
    x.scale = codes->scales + place * groups * level.row_block;
    x.totals = codes->totals + place * (stride / 16);
    x.sums = codes->sums != NULL ? codes->sums + place * x.segments * LW_SUMS : NULL;
    x.outlying = codes->outlying + place * x.segments;
    x.outliers = codes->outliers + place * groups;
    x.f32 = values;
    return x;
}

lw_activations lw_activations_in(const lw_worker* w, size_t cols, const lw_codes* codes, const float* values) {
    return lw_activations_at(w, w->rows, cols, codes, 0, values);
}

// If rows lie in pairs and the last row has no partner, kernels still read the partner's codes, so they must be 0.
static void clear_partner(const lw_activations* x, size_t row, size_t first, size_t n) {
    if (row + 1 != x->rows || x->rows % x->row_block == 0) return;
    for (size_t k = first * LW_SEGMENT; k < (first + n) * LW_SEGMENT; k += 8) {
        memset((int8_t*)x->q + lw_q_offset(x, x->rows, k), 0, 8);
        memset((float*)x->scale + lw_scale_offset(x, x->rows, k / LW_GROUP), 0, 2 * sizeof(float));
        ((int32_t*)x->totals)[lw_totals_offset(x, x->rows, k)] = 0;
    }
}

void lw_quantize_segments(lw_worker* w, const lw_activations* x, size_t row, size_t first, size_t n,
                          const float* values) {
    if (!w->ops->quantize(x, row, first, n, values)) lw_note_non_finite(w);
    clear_partner(x, row, first, n);
}

enum { CODE_LIMIT = 127 };

// The largest magnitude of a row, at least 1e-5. What is no number is told when codes are made.
static float peak_of(const float* values, size_t n) {
    float peak = 1e-5f;
    for (size_t i = 0; i < n; ++i) peak = fabsf(values[i]) > peak ? fabsf(values[i]) : peak;
    return peak;
}

// What the codes of the values stand for.
static void round_values(float* values, size_t n, float peak) {
    const float scale = peak / CODE_LIMIT, inverse = CODE_LIMIT / peak, magic = 12582912.0f;
    for (size_t i = 0; i < n; ++i) values[i] = ((values[i] * inverse + magic) - magic) * scale;
}

void lw_quantize_row(lw_worker* w, const lw_activations* x, size_t row, float* values, lw_row_codes as,
                     bool quantized) {
    lw_activations by = *x;
    if (as.whole) by.peak = peak_of(values, x->cols);
    if (quantized) lw_quantize_segments(w, &by, row, 0, x->segments, values);
    if (as.floats) round_values(values, x->cols, by.peak);
}

static void copy_segment(const lw_activations* out, size_t at, const lw_activations* x, size_t row, size_t segment) {
    const size_t k = segment * LW_SEGMENT;
    int8_t* to = (int8_t*)out->q + lw_q_offset(out, at, k);
    const int8_t* from = x->q + lw_q_offset(x, row, k);
    for (size_t i = 0; i < LW_SEGMENT; i += 8) memcpy(to + i * out->row_block, from + i * x->row_block, 8);
    // Totals and scales of a row's segment are contiguous. If rows lie in pairs, each scale is stored twice.
    memcpy((int32_t*)out->totals + lw_totals_offset(out, at, k), x->totals + lw_totals_offset(x, row, k),
           LW_SEGMENT / 16 * sizeof(int32_t));
    for (size_t g = segment * LW_SEGMENT_GROUPS; g < (segment + 1) * LW_SEGMENT_GROUPS; ++g) {
        float* scale = (float*)out->scale + lw_scale_offset(out, at, g);
        for (size_t i = 0; i < out->row_block; ++i) scale[i] = x->scale[lw_scale_offset(x, row, g)];
    }
}

void lw_copy_codes(const lw_activations* out, size_t at, const lw_activations* x, size_t row) {
    const size_t n = x->segments;
    for (size_t segment = 0; segment < n; ++segment) copy_segment(out, at, x, row, segment);
    if (x->sums != NULL)
        memcpy((float*)out->sums + at * n * LW_SUMS, x->sums + row * n * LW_SUMS, n * LW_SUMS * sizeof(float));
    memcpy((uint8_t*)out->outlying + at * n, x->outlying + row * n, n);
    memcpy((lw_outlier*)out->outliers + at * n * LW_SEGMENT_GROUPS, x->outliers + row * n * LW_SEGMENT_GROUPS,
           n * LW_SEGMENT_GROUPS * sizeof(lw_outlier));
    clear_partner(out, at, 0, n);
}

void lw_put_in_order(float* out, const float* values, const float* order, size_t n) {
    for (size_t i = 0; i < n; ++i) out[i] = values[(uint32_t)order[i]];
}

void lw_add_vector(float* out, const float* bias, size_t n) {
    if (bias == NULL) return;
    for (size_t i = 0; i < n; ++i) out[i] += bias[i];
}

static void normalize_by(const lw_worker* w, float* out, const float* x, const float* weight, const float* bias,
                         size_t n, float eps) {
    if (w->c->norm == LW_NORM_LAYER)
        w->ops->layernorm(out, x, weight, bias, n, eps);
    else
        w->ops->rmsnorm(out, x, weight, n, eps);
}

void lw_embed_row(const lw_worker* w, size_t row, float* x) {
    const size_t hidden = w->c->hidden_size;
    const float* const* given = w->step->batch->rows;
    if (given != NULL && given[row] != NULL) {
        memcpy(x, given[row], hidden * sizeof(float));
        return;
    }
    lw_unpack_row(&w->model->embedding, w->b->token[row], x);
    if (w->c->embedding_norm) w->ops->rmsnorm(x, x, w->model->ones, hidden, w->c->rms_norm_eps);
    for (size_t i = 0; w->c->embedding_scale != 1 && i < hidden; ++i) x[i] *= w->c->embedding_scale;
}

void lw_normalize_row(const lw_worker* w, float* out, const float* x, const float* weight, const float* bias,
                      size_t n) {
    normalize_by(w, out, x, weight, bias, n, w->c->rms_norm_eps);
}

void lw_normalize_result(const lw_worker* w, float* result, const float* weight) {
    const float eps = w->c->result_eps > 0 ? w->c->result_eps : w->c->rms_norm_eps;
    normalize_by(w, result, result, weight, NULL, w->c->hidden_size, eps);
}

lw_norm lw_norm_before_mixer(const lw_layer* layer, const float* order) {
    return (lw_norm){.weight = layer->attn_norm,
                     .bias = layer->attn_norm_bias,
                     .order = order,
                     .scale = 1,
                     .replaces = layer->config.attn_norm_replaces};
}

lw_norm lw_norm_before_ffn(const lw_worker* w, const lw_layer* layer, const float* order) {
    const lw_layer_config* c = &layer->config;
    lw_norm by = {.weight = layer->ffn_norm,
                  .bias = layer->ffn_norm_bias,
                  .order = order,
                  .scale = 1,
                  .replaces = c->ffn_norm_replaces};
    if (c->wiring != LW_IN_TURN) by.of = w->b->before;
    if (c->wiring == LW_PARALLEL_ONE_NORM) {
        by.weight = layer->attn_norm;
        by.bias = layer->attn_norm_bias;
    }
    return by;
}

static void normalize_row(lw_worker* w, const lw_activations* out, size_t row, lw_norm by, bool quantized) {
    const size_t n = w->c->hidden_size;
    float *x = w->b->x + row * n, *values = (float*)out->f32 + row * n;
    float* normed = by.replaces ? x : by.order != NULL ? w->scratch : values;
    const float* of = by.of != NULL ? by.of + row * n : x;
    if (by.weight != NULL)
        normalize_by(w, normed, of, by.weight, by.bias, n, by.eps > 0 ? by.eps : w->c->rms_norm_eps);
    else
        memcpy(normed, of, n * sizeof(float));
    if (by.order != NULL) lw_put_in_order(values, normed, by.order, n);
    for (size_t i = 0; by.scale != 1 && i < n; ++i) values[i] *= by.scale;
    if (quantized || by.codes.floats) lw_quantize_row(w, out, row, values, by.codes, quantized);
}

lw_activations lw_normalize(lw_worker* w, lw_operation operation, lw_norm by, bool quantized) {
    const size_t n = w->c->hidden_size;
    // Every thread computes all rows itself: this takes less time than a barrier.
    if (w->rows <= LW_OWN_ROWS && !by.replaces) {
        const lw_own* own = &w->s->own[w->thread];
        const lw_activations out = lw_activations_in(w, n, &own->codes, own->norm);
        for (size_t row = 0; row < w->rows; ++row) normalize_row(w, &out, row, by, quantized);
        const size_t values = w->thread == 0 ? n * w->rows : 0;  // bytes count once for all threads
        lw_charge_row(w, operation, 2 * values, quantized ? values : 0);
        return out;
    }
    float* values = by.replaces && by.order == NULL ? w->b->x : w->b->norm;
    const lw_activations out = lw_activations_in(w, n, &w->b->codes, values);
    lw_taker items = lw_this_phase(w, w->rows);
    for (size_t row; lw_take_item(&items, &row);) {
        normalize_row(w, &out, row, by, quantized);
        lw_charge_row(w, operation, 2 * n, quantized ? n : 0);
    }
    lw_end_phase(w, operation);
    return out;
}

void lw_count_products(lw_worker* w, size_t n, size_t rows) {
    if (w->thread != 0) return;
    lw_counters* counters = &w->s->counters;
    *(rows == 1 ? &counters->gemv_calls : &counters->gemm_calls) += n;
    *(rows == 1 ? &counters->gemv_rows : &counters->gemm_rows) += n * rows;
}

void lw_multiply(lw_worker* w, lw_operation operation, const lw_product* products, size_t n, const lw_activations* x) {
    const lw_matmul_worker self = {w->scratch, w->profile, operation};
    const size_t panels = lw_count_panels(products, n);
    const lw_cuts cuts = lw_cut_rows(x->rows, panels, w->s->threads);
    lw_matmul(lw_this_phase(w, panels * cuts.n), cuts, products, x, &self);
    lw_count_products(w, n, x->rows);
    lw_end_phase(w, operation);
}

void lw_add_product(lw_worker* w, lw_operation operation, const lw_matrix* matrix, const float* norm,
                    const lw_activations* values, lw_adapted which) {
    float *x = w->b->x, *result = w->b->norm;  // `norm` is free: the norm before this product has been read
    float* out = norm != NULL ? result : x;
    const lw_product product = which == LW_ADAPTED_COUNT ? lw_product_at(w, matrix, out, norm == NULL)
                                                         : lw_adapted_product_at(w, matrix, out, norm == NULL, which);
    lw_multiply(w, operation, &product, 1, values);
    if (norm == NULL) return;
    const size_t n = w->c->hidden_size;
    lw_taker items = lw_this_phase(w, w->rows);
    for (size_t row; lw_take_item(&items, &row);) {
        lw_normalize_result(w, result + row * n, norm);
        lw_add_vector(x + row * n, result + row * n, n);
        lw_charge_row(w, operation, 3 * n, 0);
    }
    lw_end_phase(w, operation);
}

void lw_keep_rows(float* buffer, size_t cols, const lw_batch* batch) {
    for (size_t i = 0; i < batch->n_logits; ++i)  // logit_rows ascend, so no row is overwritten before it is read
        memmove(buffer + i * cols, buffer + batch->logit_rows[i] * cols, cols * sizeof(float));
}
