// A layer with a state: its products, the convolution, the recurrence, and the output projection.
//
// Rows of a sequence go through its state one after the other, whatever chunk or batch they come in; what is shared out
// among threads are channels, and columns of the states of heads.
#include <math.h>

#include "graph/observe.h"
#include "ops/math.h"

// Some channels of a convolution. Those of q and k are a head each, and made to have this length; 0: of v, or of no head.
typedef struct channels {
    size_t first, n;
    float length;
} channels;

static size_t blocks_of(const lw_state_config* c, size_t hidden) {
    return c->kind == LW_SHORT_CONV ? (hidden + LW_SEGMENT - 1) / LW_SEGMENT : 2 * c->n_key_heads + c->n_heads;
}

static channels block_of(const lw_state_config* c, size_t hidden, size_t i) {
    if (c->kind == LW_SHORT_CONV) {
        const size_t first = i * LW_SEGMENT, left = hidden - first;
        return (channels){first, left < LW_SEGMENT ? left : LW_SEGMENT, 0};
    }
    const size_t keys = c->n_key_heads, values = (size_t)c->n_heads * c->value_dim;
    if (c->kind == LW_SSD)
        return i < c->n_heads ? (channels){i * c->value_dim, c->value_dim, 0}
                              : (channels){values + (i - c->n_heads) * c->key_dim, c->key_dim, 0};
    if (i < 2 * keys) return (channels){i * c->key_dim, c->key_dim, i < keys ? 1 / sqrtf((float)c->key_dim) : 1};
    return (channels){2 * keys * c->key_dim + (i - 2 * keys) * c->value_dim, c->value_dim, 0};
}

// The rows of one sequence of the batch, and where its state is.
typedef struct own_rows {
    size_t first, n;
    uint32_t place;
    bool fresh;
} own_rows;

static own_rows rows_of(const lw_batch* batch, size_t sequence) {
    const uint32_t first = batch->query_start[sequence];
    return (own_rows){first, batch->query_start[sequence + 1] - first, lw_table_row(batch, (uint32_t)sequence),
                      batch->context_lens[sequence] == 0};
}

static void convolve_block(lw_worker* w, const lw_layer* layer, uint32_t index, own_rows rows, channels block) {
    const lw_state_config* c = &layer->config.state;
    const size_t hidden = w->c->hidden_size, stride = layer->state_in.rows;
    float* in = w->b->mixed_in + rows.first * stride + block.first;
    lw_convolve_job job = {.rows = rows.n,
                           .channels = block.n,
                           .taps = c->taps,
                           .x = in,
                           .stride = stride,
                           .out = in,
                           .out_stride = stride,
                           .weights = layer->state_conv + block.first * c->taps,
                           .bias = layer->state_conv_bias != NULL ? layer->state_conv_bias + block.first : NULL,
                           .tail = lw_state_at(&w->s->states, rows.place, index) + block.first,
                           .tail_stride = lw_state_channels(c, (uint32_t)hidden),
                           .fresh = rows.fresh};
    if (c->kind == LW_SHORT_CONV) {
        job.before = in;
        job.after = in + hidden;
        job.x = in + 2 * hidden;
        job.out = w->b->mixed + rows.first * hidden + block.first;
        job.out_stride = hidden;
    }
    w->ops->convolve(&job);
    for (size_t row = 0; c->kind != LW_SHORT_CONV && row < rows.n; ++row) {
        float* values = in + row * stride;
        w->ops->activate(values, values, NULL, block.n, LW_SILU);
        if (block.length > 0) w->ops->make_unit(values, block.n, block.length);
    }
    lw_charge_row(w, LW_OP_CONVOLVE, 2 * rows.n * block.n, 0);
}

// ln(1 + exp(x))
static double softplus(double x) {
    if (x > 36) return x;
    return x < -700 ? 0 : lw_log(1 + lw_exp(x));
}

static double bounded_exp(double x) { return x < -700 ? 0 : lw_exp(x < 700 ? x : 700); }

// What the states of one row's heads are multiplied by, in the place of the products that it is made of, and beta or d.
static void weigh_heads(lw_worker* w, const lw_layer* layer, size_t row) {
    const size_t n = layer->config.state.n_heads;
    const bool delta = layer->config.state.kind == LW_GATED_DELTA;
    float *decay = w->b->decay + row * n, *beta = w->b->beta + row * n;
    if (!w->ops->are_finite(decay, n) || (delta && !w->ops->are_finite(beta, n))) {
        atomic_store(&w->step->non_finite, true);
        return;
    }
    for (size_t h = 0; h < n; ++h) {
        const double a = (double)decay[h] + (double)layer->state_decay_bias[h], rate = (double)layer->state_rate[h];
        if (!isfinite(a) || !isfinite(rate)) {
            atomic_store(&w->step->non_finite, true);
            return;
        }
        const double d = softplus(a);
        decay[h] = (float)bounded_exp(rate * d);
        beta[h] = delta ? (float)(1 / (1 + bounded_exp(-(double)beta[h]))) : (float)d;
    }
    lw_charge_row(w, LW_OP_CONVOLVE, 3 * n, 0);
}

// Convolutions of all sequences, and of each row what goes with its heads.
static void convolve(lw_worker* w, const lw_layer* layer, uint32_t index) {
    const lw_state_config* c = &layer->config.state;
    const lw_batch* batch = w->step->batch;
    const size_t blocks = blocks_of(c, w->c->hidden_size), jobs = blocks * batch->n_seqs;
    lw_taker items = lw_this_phase(w, jobs + (c->kind == LW_SHORT_CONV ? 0 : w->rows));
    for (size_t item; lw_take_item(&items, &item);) {
        if (item >= jobs) {
            weigh_heads(w, layer, item - jobs);
            continue;
        }
        // Prompts come last in a batch: what takes longest goes first.
        const own_rows rows = rows_of(batch, batch->n_seqs - 1 - item / blocks);
        convolve_block(w, layer, index, rows, block_of(c, w->c->hidden_size, item % blocks));
    }
    lw_end_phase(w, LW_OP_CONVOLVE);
}

static void recur_columns(lw_worker* w, const lw_layer* layer, uint32_t index, own_rows rows, size_t head,
                          size_t column) {
    const lw_state_config* c = &layer->config.state;
    const size_t stride = layer->state_in.rows, inner = (size_t)c->n_heads * c->value_dim;
    const size_t keys = (size_t)c->n_key_heads * c->key_dim, left = c->value_dim - column;
    const size_t key_head = c->keys_in_turn ? head % c->n_key_heads : head / (c->n_heads / c->n_key_heads);
    const size_t tail = lw_round_up((c->taps - 1) * lw_state_channels(c, 0), LW_LANES);
    const bool ssd = c->kind == LW_SSD;
    const float* in = w->b->mixed_in + rows.first * stride;
    const float* of_key = in + (ssd ? inner : 0) + key_head * c->key_dim;  // q, k or B, C
    const lw_recur_job job = {
        .rows = rows.n,
        .key_dim = c->key_dim,
        .columns = left < LW_RECUR_COLUMNS ? left : LW_RECUR_COLUMNS,
        .state = lw_state_at(&w->s->states, rows.place, index) + tail + (head * c->value_dim + column) * c->key_dim,
        .k = ssd ? of_key : of_key + keys,
        .q = ssd ? of_key + keys : of_key,
        .key_stride = stride,
        .v = in + (ssd ? 0 : 2 * keys) + head * c->value_dim + column,
        .value_stride = stride,
        .decay = w->b->decay + rows.first * c->n_heads + head,
        .beta = w->b->beta + rows.first * c->n_heads + head,
        .head_stride = c->n_heads,
        .skip = ssd ? layer->state_skip[head] : 0,
        .out = w->b->mixed + rows.first * inner + head * c->value_dim + column,
        .out_stride = inner,
        .fresh = rows.fresh};
    (ssd ? w->ops->recur_ssd : w->ops->recur_delta)(&job);
    const size_t cells = c->key_dim * job.columns;
    lw_profile_work(w->profile, LW_OP_RECUR, 0,
                    (2 * cells + rows.n * (2 * c->key_dim + 2 * job.columns)) * sizeof(float),
                    rows.n * cells * (ssd ? 3 : 4));
}

static void recur(lw_worker* w, const lw_layer* layer, uint32_t index) {
    const lw_state_config* c = &layer->config.state;
    const lw_batch* batch = w->step->batch;
    const size_t pieces = (c->value_dim + LW_RECUR_COLUMNS - 1) / LW_RECUR_COLUMNS, jobs = c->n_heads * pieces;
    lw_taker items = lw_this_phase(w, jobs * batch->n_seqs);
    for (size_t item; lw_take_item(&items, &item);)
        recur_columns(w, layer, index, rows_of(batch, batch->n_seqs - 1 - item / jobs), item % jobs / pieces,
                      item % pieces * LW_RECUR_COLUMNS);
    lw_end_phase(w, LW_OP_RECUR);
}

// Values of a row that go through their gate and norm together: whole norms, whole segments and not too few, or all.
static size_t piece_of(size_t inner, size_t norm) {
    enum { LEAST = 512 };
    size_t piece = norm > 0 ? norm : LW_SEGMENT;
    while ((piece < LEAST || piece % LW_SEGMENT != 0) && 2 * piece <= inner) piece *= 2;
    return piece % LW_SEGMENT == 0 && inner % piece == 0 ? piece : inner;
}

static void finish_piece(lw_worker* w, const lw_layer* layer, float* values, const float* gate, size_t first,
                         size_t n) {
    const lw_state_config* c = &layer->config.state;
    const bool ssd = c->kind == LW_SSD;
    const size_t norm = ssd ? c->norm_size : c->value_dim;
    if (ssd) w->ops->silu_mul(values, gate, values, n);
    for (size_t i = 0; norm > 0 && i < n; i += norm)
        w->ops->rmsnorm(values + i, values + i, layer->state_norm + (ssd ? first + i : 0), norm, c->norm_eps);
    if (!ssd) w->ops->silu_mul(values, gate, values, n);
}

// The input of the output projection: results of short convolutions as they are, of heads behind their gates and norms.
static lw_activations finish_values(lw_worker* w, const lw_layer* layer) {
    const lw_state_config* c = &layer->config.state;
    const size_t inner = layer->state_out.cols;
    const bool heads = c->kind != LW_SHORT_CONV, quantized = lw_reads_codes(w, &layer->state_out);
    const lw_activations out = lw_activations_in(w, inner, &w->b->codes, w->b->mixed);
    if (!heads && !quantized) return out;
    const size_t norm = c->kind == LW_SSD ? c->norm_size : c->value_dim;
    const size_t piece = piece_of(inner, norm), pieces = inner / piece;
    lw_taker items = lw_this_phase(w, w->rows * pieces);
    for (size_t item; lw_take_item(&items, &item);) {
        const size_t row = item / pieces, first = item % pieces * piece;
        float* values = w->b->mixed + row * inner + first;
        if (heads) finish_piece(w, layer, values, w->b->state_gate + row * inner + first, first, piece);
        if (quantized)
            lw_quantize_segments(w, &out, row, first / LW_SEGMENT, (piece + LW_SEGMENT - 1) / LW_SEGMENT, values);
        lw_charge_row(w, LW_OP_ATTN_CODES, (heads ? 3 : 1) * piece, quantized ? piece : 0);
    }
    lw_end_phase(w, LW_OP_ATTN_CODES);
    return out;
}

static void multiply_inputs(lw_worker* w, const lw_layer* layer, uint32_t index) {
    const lw_state_config* c = &layer->config.state;
    const size_t n = c->kind == LW_SHORT_CONV ? 1 : c->kind == LW_SSD ? 3 : 4;
    const lw_matrix* inputs[] = {&layer->state_in, &layer->state_gate, &layer->state_decay, &layer->state_beta};
    float* const outputs[] = {w->b->mixed_in, w->b->state_gate, w->b->decay, w->b->beta};
    const lw_norm by = {layer->attn_norm, layer->attn_norm_bias, NULL, 1, layer->config.attn_norm_replaces};
    const lw_activations x = lw_normalize(w, LW_OP_ATTN_NORM, by, lw_any_reads_codes(w, inputs, n));
    lw_observe(w, LW_OP_QKV, index, lw_inputs_of(&x));
    lw_product products[4];
    for (size_t i = 0; i < n; ++i) products[i] = lw_product_at(w, inputs[i], outputs[i], false);
    lw_multiply(w, LW_OP_QKV, products, n, &x);
}

void lw_recur(lw_worker* w, const lw_layer* layer, uint32_t index) {
    const bool heads = layer->config.state.kind != LW_SHORT_CONV;
    const size_t inner = layer->state_out.cols;
    multiply_inputs(w, layer, index);
    convolve(w, layer, index);
    if (heads) recur(w, layer, index);
    if (index == w->model->last_mixer) {
        float* const buffers[] = {w->b->mixed, w->b->state_gate};
        const size_t cols[] = {inner, inner};
        lw_keep_logit_rows(w, buffers, cols, heads ? 2 : 1);
    }
    if (w->rows == 0) return;
    const lw_activations values = finish_values(w, layer);
    lw_observe(w, LW_OP_ATTN_OUTPUT, index, lw_inputs_of(&values));
    lw_add_product(w, LW_OP_ATTN_OUTPUT, &layer->state_out, layer->attn_result_norm, &values, LW_ADAPTED_COUNT);
}
