// The part of a pooled model after its layers: output norm, pooling, dense heads, and normalization of the result.
#include <math.h>
#include <string.h>

#include "step/run.h"

// Sum of the squares of n values, in 16 lanes as other sums are.
static float sum_of_squares(const float* x, size_t n) {
    float lanes[LW_LANES] = {0};
    for (size_t i = 0; i < n; ++i) lanes[i % LW_LANES] = fmaf(x[i], x[i], lanes[i % LW_LANES]);
    for (size_t width = LW_LANES / 2; width > 0; width /= 2)
        for (size_t i = 0; i < width; ++i) lanes[i] += lanes[i + width];
    return lanes[0];
}

static void check_row(const lw_worker* w, const float* x, size_t n) {
    if (!w->ops->are_finite(x, n)) atomic_store(&w->step->non_finite, true);
}

// Normalizes a finished result if the texts ask for it, and checks that it is finite.
static void finish_row(const lw_worker* w, float* x, size_t n) {
    if (w->s->texts->normalize) {
        const float length = sqrtf(sum_of_squares(x, n)), by = length > 1e-12f ? length : 1e-12f;
        for (size_t i = 0; i < n; ++i) x[i] /= by;
    }
    check_row(w, x, n);
}

// How rows of `size` values become results: those of each text become their mean, or each is one.
typedef struct pooled_rows {
    size_t size;
    bool mean;
    bool finished;  // nothing is done to the results after this
} pooled_rows;

// Makes one row of the pooled result.
static void pool_row(const lw_worker* w, float* out, const float* rows, size_t row, pooled_rows as) {
    if (!as.mean) {
        memcpy(out, rows + row * as.size, as.size * sizeof(float));
        return;
    }
    const size_t first = w->s->texts->start[row], end = w->s->texts->start[row + 1];
    memset(out, 0, as.size * sizeof(float));
    for (size_t i = first; i < end; ++i) lw_add_vector(out, rows + i * as.size, as.size);
    const float by = 1.0f / (float)(end - first);
    for (size_t i = 0; i < as.size; ++i) out[i] *= by;
}

static void pool(lw_worker* w, const float* rows, float* out, pooled_rows as) {
    if (as.mean) w->rows = w->s->texts->n_texts;
    lw_taker items = lw_this_phase(w, w->rows);
    for (size_t row; lw_take_item(&items, &row);) {
        pool_row(w, out + row * as.size, rows, row, as);
        if (as.finished) finish_row(w, out + row * as.size, as.size);
        lw_charge_row(w, LW_OP_HEAD, 2 * as.size, 0);
    }
    lw_end_phase(w, LW_OP_HEAD);
}

static lw_activations dense_inputs(lw_worker* w, const lw_dense* dense, const float* values) {
    const lw_activations x = lw_activations_in(w, dense->matrix.cols, &w->b->codes, values);
    if (!lw_reads_codes(w, &dense->matrix)) return x;
    lw_taker items = lw_this_phase(w, w->rows);
    for (size_t row; lw_take_item(&items, &row);) {
        lw_quantize_segments(w, &x, row, 0, x.segments, values + row * x.cols);
        lw_charge_row(w, LW_OP_HEAD, x.cols, x.cols);
    }
    lw_end_phase(w, LW_OP_HEAD);
    return x;
}

static void run_dense(lw_worker* w, const lw_dense* dense, const float* values, float* out, bool finished) {
    const size_t n = dense->config.outputs;
    const lw_activations x = dense_inputs(w, dense, values);
    const lw_product product = lw_product_at(w, &dense->matrix, out, false);
    lw_multiply(w, LW_OP_HEAD, &product, 1, &x);
    lw_taker items = lw_this_phase(w, w->rows);
    for (size_t row; lw_take_item(&items, &row);) {
        float* y = out + row * n;
        lw_add_vector(y, dense->bias, n);
        check_row(w, y, n);  // before the activation: tanh turns infinity and NaN into 1
        if (dense->config.activation != LW_IDENTITY) w->ops->activate(y, y, NULL, n, dense->config.activation);
        if (dense->norm != NULL) lw_normalize_row(w, y, y, dense->norm, dense->norm_bias, n);
        if (finished) finish_row(w, y, n);
        lw_charge_row(w, LW_OP_HEAD, 2 * n, 0);
    }
    lw_end_phase(w, LW_OP_HEAD);
}

// The mean of n rows, in the place of the first; they are added up in order.
static void take_mean(float* rows, size_t n, size_t hidden) {
    for (size_t i = 1; i < n; ++i) lw_add_vector(rows, rows + i * hidden, hidden);
    const float by = 1.0f / (float)n;
    for (size_t i = 0; i < hidden; ++i) rows[i] *= by;
}

static void adjust_mean(const lw_worker* w, float* x) {
    const lw_patches* c = &w->c->patches;
    const float *shift = w->model->mean_shift, *scale = w->model->mean_scale;
    for (size_t i = 0; c->mean_factor != 0 && i < w->c->hidden_size; ++i) x[i] *= c->mean_factor;
    for (size_t i = 0; c->shifts_mean && i < w->c->hidden_size; ++i) x[i] = (x[i] - shift[i]) * scale[i];
}

// Joins the rows of each block of a picture, which are in the first of the pooled buffers. Returns where they are then.
static float* join(lw_worker* w) {
    const size_t hidden = w->c->hidden_size, block = lw_block_patches(w->c);
    float *values = w->b->pooled[0], *out = w->b->pooled[1];
    w->rows /= block;
    if (!w->c->patches.mean_of_block) return values;  // they lie one after the other
    lw_taker items = lw_this_phase(w, w->rows);
    for (size_t row; lw_take_item(&items, &row);) {
        float* rows = values + row * block * hidden;
        take_mean(rows, block, hidden);
        adjust_mean(w, rows);
        memcpy(out + row * hidden, rows, hidden * sizeof(float));
        lw_charge_row(w, LW_OP_HEAD, (block + 2) * hidden, 0);
    }
    lw_end_phase(w, LW_OP_HEAD);
    return out;
}

static void normalize_inputs(lw_worker* w, const lw_dense* dense, float* values) {
    const size_t n = dense->matrix.cols;
    const lw_dense_config* c = &dense->config;
    lw_taker items = lw_this_phase(w, w->rows);
    for (size_t row; lw_take_item(&items, &row);) {
        float* x = values + row * n;
        if (c->input_norm == LW_INPUT_RMS)
            w->ops->rmsnorm(x, x, dense->input_norm, n, c->input_eps);
        else
            w->ops->layernorm(x, x, dense->input_norm, dense->input_norm_bias, n, c->input_eps);
        lw_charge_row(w, LW_OP_HEAD, 2 * n, 0);
    }
    lw_end_phase(w, LW_OP_HEAD);
}

// Runs the heads of group `group` on values in one of the pooled buffers. Their result goes to `out`, or if that is
// NULL to a pooled buffer. Returns where it is.
static float* run_group(lw_worker* w, uint32_t group, float* values, float* out) {
    const uint32_t n = lw_dense_group(w->c);
    const bool late = w->s->texts->pooling == LW_POOL_LATE;
    for (uint32_t i = 0; i < n; ++i) {
        const lw_dense* dense = &w->model->dense[group * n + i];
        float* other = values == w->b->pooled[0] ? w->b->pooled[1] : w->b->pooled[0];
        float* to = i + 1 == n && out != NULL ? out : other;
        if (dense->config.input_norm != LW_INPUT_NONE) normalize_inputs(w, dense, values);
        run_dense(w, dense, values, to, i + 1 == n && !late);
        values = to;
    }
    return values;
}

// A phase: puts the results of a group among the parts of the picture's rows.
static void put_part(lw_worker* w, uint32_t group, const float* values) {
    const size_t n = lw_dense_inputs(w->model, w->c->n_dense), stride = (1 + w->c->patches.n_taps) * n;
    lw_taker items = lw_this_phase(w, w->rows);
    for (size_t row; lw_take_item(&items, &row);) {
        memcpy(w->step->logits + row * stride + group * n, values + row * n, n * sizeof(float));
        lw_charge_row(w, LW_OP_HEAD, 2 * n, 0);
    }
    lw_end_phase(w, LW_OP_HEAD);
}

void lw_tap_rows(lw_worker* w, uint32_t tap) {
    const size_t rows = w->rows;
    pool(w, w->b->x, w->b->pooled[0], (pooled_rows){w->c->hidden_size, false, false});
    put_part(w, 1 + tap, run_group(w, 1 + tap, join(w), NULL));
    w->rows = rows;
}

void lw_pool_texts(lw_worker* w) {
    const lw_norm by = {.weight = w->model->output_norm,
                        .bias = w->model->output_norm_bias,
                        .scale = 1,
                        .eps = w->c->patches.output_eps};
    const lw_activations rows = lw_normalize(w, LW_OP_OUTPUT_NORM, by, false);
    const uint32_t n_dense = w->c->n_dense;
    const bool tapped = w->c->patches.n_taps > 0, late = w->s->texts->pooling == LW_POOL_LATE && n_dense > 0;
    const bool mean = !late && (w->s->texts->pooling == LW_POOL_MEAN || w->s->texts->pooling == LW_POOL_LATE);
    float* values = n_dense > 0 ? w->b->pooled[0] : w->step->logits;
    pool(w, rows.f32, values, (pooled_rows){w->c->hidden_size, mean, n_dense == 0});
    if (lw_is_tower(w->c)) values = join(w);
    if (n_dense > 0) values = run_group(w, 0, values, tapped || late ? NULL : w->step->logits);
    if (tapped) put_part(w, 0, values);
    if (late) pool(w, values, w->step->logits, (pooled_rows){lw_dense_inputs(w->model, n_dense), true, true});
}
