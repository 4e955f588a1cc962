// Layers with a state: the convolution, the recurrence, and the output projection.
//
// The rows of a sequence go through its state one after the other, in whatever chunks or batches they come. Threads
// share out channels of the convolution, and columns of the heads' states.
//
// Accepted guesses of the step before come first. Their keys, values, decays and betas are restored from what the
// sequence's place has kept. The `accepted` buffers have [max_guesses] rows for each sequence of the batch.
#include "kinds/recur.h"

#include <math.h>
#include <string.h>

#include "graph/observe.h"
#include "ops/math.h"

lw_state_layout lw_lay_out_state(const lw_state_config* c, uint32_t hidden, uint32_t max_guesses) {
    lw_state_layout p = {.channels = lw_state_channels(c, hidden)};
    p.guesses = (c->taps - 1) * p.channels;
    // Whole cache lines for the tail and for each guess, so that every guess takes the same space.
    p.decay = lw_round_up(p.guesses, LW_LANES) + max_guesses * lw_round_up(p.channels, LW_LANES);
    const size_t decays = lw_state_decays(c);
    p.beta = p.decay + max_guesses * decays;
    p.heads = p.decay + max_guesses * lw_round_up(decays + c->n_heads, LW_LANES);
    p.end = p.heads + (size_t)c->n_heads * c->key_dim * c->value_dim;
    return p;
}

// A range of channels of a convolution. Each head of q or k in a delta rule has its own channels, which are
// scaled to the L2 norm `length`. All other channels have length 0: they are not scaled.
typedef struct channels {
    size_t first, n;
    float length;
} channels;

static const lw_state_own* of(const lw_worker* w) { return lw_state_of(w->s); }

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

// The rows of one sequence in the batch (the last `guesses` of them are guesses), and where its state is.
typedef struct own_rows {
    size_t first, n, guesses;
    size_t accepted, first_accepted;  // accepted guesses of the step before, and their first row in the `accepted`
                                      // buffers
    uint32_t place;
    bool fresh;
} own_rows;

static own_rows rows_of(const lw_worker* w, size_t sequence) {
    const lw_batch* batch = w->step->batch;
    const uint32_t first = batch->query_start[sequence];
    return (own_rows){.first = first,
                      .n = batch->query_start[sequence + 1] - first,
                      .guesses = batch->guesses != NULL ? batch->guesses[sequence] : 0,
                      .accepted = batch->accepted != NULL ? batch->accepted[sequence] : 0,
                      .first_accepted = sequence * w->s->states.max_guesses,
                      .place = lw_table_row(batch, (uint32_t)sequence),
                      .fresh = batch->context_lens[sequence] == 0};
}

static lw_state_layout parts_of(const lw_worker* w, const lw_state_config* c) {
    return lw_lay_out_state(c, w->c->hidden_size, w->s->states.max_guesses);
}

// Whether the update of a head's state reads these channels: not channels of q, or of C in SSD.
static bool is_kept(const lw_state_config* c, size_t first) {
    const size_t keys = (size_t)c->n_key_heads * c->key_dim;
    if (c->kind == LW_SSD) return first < (size_t)c->n_heads * c->value_dim + keys;
    return lw_is_delta(c) && first >= keys;
}

// SiLU of a convolution's results, and the scaling of q and k.
static void activate(lw_worker* w, float* values, size_t rows, size_t stride, channels block) {
    for (size_t row = 0; row < rows; ++row, values += stride) {
        w->ops->activate(values, values, NULL, block.n, LW_SILU);
        if (block.length > 0) w->ops->make_unit(values, block.n, block.length);
    }
}

static void convolve_block(lw_worker* w, const lw_layer* layer, uint32_t index, own_rows rows, channels block) {
    const lw_state_config* c = &layer->config.state;
    const size_t hidden = w->c->hidden_size, stride = lw_state_width(c, w->c->hidden_size);
    float* in = of(w)->in + rows.first * stride + block.first;
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
                           .tail_stride = parts_of(w, c).channels,
                           .fresh = rows.fresh,
                           .guesses = rows.guesses,
                           .accepted = rows.accepted};
    float* accepted = is_kept(c, block.first) ? of(w)->accepted_in + rows.first_accepted * stride + block.first : NULL;
    if (c->kind == LW_SHORT_CONV) {
        job.before = in;
        job.after = in + hidden;
        job.x = in + 2 * hidden;
        job.out = of(w)->result + rows.first * hidden + block.first;
        job.out_stride = hidden;
    }
    job.accepted_out = accepted;
    w->ops->convolve(&job);
    if (c->kind != LW_SHORT_CONV) {
        activate(w, in, rows.n, stride, block);
        if (accepted != NULL) activate(w, accepted, rows.accepted, stride, block);
    }
    lw_charge_row(w, LW_OP_CONVOLVE, 2 * (rows.n + rows.accepted) * block.n, 0);
}

static double bounded_exp(double x) { return x < -700 ? 0 : lw_exp(x < 700 ? x : 700); }

// Turns the products of one row into the decays of its heads, in place. Also computes beta (gated delta rule) or the
// step size (SSD).
static void weigh_heads(lw_worker* w, const lw_layer* layer, size_t row) {
    const size_t n = layer->config.state.n_heads;
    const bool delta = layer->config.state.kind == LW_GATED_DELTA;
    float *decay = of(w)->decay + row * n, *beta = of(w)->beta + row * n;
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
        const double d = lw_softplus(a);
        decay[h] = (float)bounded_exp(rate * d);
        beta[h] = delta ? (float)(1 / (1 + bounded_exp(-(double)beta[h]))) : (float)d;
    }
    lw_charge_row(w, LW_OP_CONVOLVE, 3 * n, 0);
}

// Heads whose decays one item computes: all, or, where each channel has one, few.
static size_t heads_together(const lw_state_config* c) {
    enum { DECAYS = 512 };
    const size_t some = (DECAYS + c->key_dim - 1) / c->key_dim;
    return c->kind != LW_CHANNEL_DELTA || some > c->n_heads ? c->n_heads : some;
}

// Number of items that compute a row's decays.
static size_t parts_of_row(const lw_state_config* c) {
    const size_t together = heads_together(c);
    return (c->n_heads + together - 1) / together;
}

// The same for a decay of each channel, of a part of a row's heads.
static void weigh_channels(lw_worker* w, const lw_layer* layer, size_t row, size_t part) {
    const lw_state_config* c = &layer->config.state;
    const size_t together = heads_together(c), first = part * together, dim = c->key_dim;
    const size_t n = c->n_heads - first < together ? c->n_heads - first : together;
    float* decay = of(w)->decay + row * lw_state_decays(c) + first * dim;
    float* beta = of(w)->beta + row * c->n_heads + first;
    bool finite = w->ops->are_finite(beta, n);
    for (size_t h = 0; h < n; ++h, decay += dim) {
        const float rate = layer->state_rate[first + h];
        const float* bias = layer->state_decay_bias + (first + h) * dim;
        finite = isfinite(rate) && w->ops->decays(decay, decay, bias, dim, rate, -c->decay_floor) && finite;
    }
    for (size_t h = 0; finite && h < n; ++h) beta[h] = (float)(1 / (1 + bounded_exp(-(double)beta[h])));
    if (!finite) atomic_store(&w->step->non_finite, true);
    lw_charge_row(w, LW_OP_CONVOLVE, 3 * n * dim, 0);
}

static void weigh_row(lw_worker* w, const lw_layer* layer, size_t row, size_t part) {
    if (layer->config.state.kind == LW_CHANNEL_DELTA)
        weigh_channels(w, layer, row, part);
    else
        weigh_heads(w, layer, row);
}

// Decay and beta of a sequence's guesses. First, the values of accepted guesses are copied from the place to the
// buffers. Then the values of this step's guesses overwrite them in the place.
static void weigh_guesses(lw_worker* w, const lw_layer* layer, uint32_t index, own_rows rows) {
    const lw_state_config* c = &layer->config.state;
    const size_t n = c->n_heads, decays = lw_state_decays(c), first_guess = rows.first + rows.n - rows.guesses;
    const lw_state_layout parts = parts_of(w, c);
    float* kept = lw_state_at(&w->s->states, rows.place, index);
    if (rows.accepted > 0) {
        memcpy(of(w)->accepted_decay + rows.first_accepted * decays, kept + parts.decay,
               rows.accepted * decays * sizeof(float));
        memcpy(of(w)->accepted_beta + rows.first_accepted * n, kept + parts.beta, rows.accepted * n * sizeof(float));
    }
    for (size_t i = 0; i < rows.guesses; ++i) {
        for (size_t part = 0; part < parts_of_row(c); ++part) weigh_row(w, layer, first_guess + i, part);
        memcpy(kept + parts.decay + i * decays, of(w)->decay + (first_guess + i) * decays, decays * sizeof(float));
        memcpy(kept + parts.beta + i * n, of(w)->beta + (first_guess + i) * n, n * sizeof(float));
    }
}

static bool is_guess(const lw_worker* w, size_t row) {
    const lw_batch* batch = w->step->batch;
    const uint32_t sequence = w->b->sequence[row];
    return batch->guesses != NULL && row >= batch->query_start[sequence + 1] - batch->guesses[sequence];
}

// A phase: the convolutions of all sequences, and the decays and betas of all rows.
static void convolve(lw_worker* w, const lw_layer* layer, uint32_t index) {
    const lw_state_config* c = &layer->config.state;
    const lw_batch* batch = w->step->batch;
    const bool heads = c->kind != LW_SHORT_CONV, guesses = batch->guesses != NULL || batch->accepted != NULL;
    const size_t blocks = blocks_of(c, w->c->hidden_size), jobs = blocks * batch->n_seqs;
    const size_t of_row = heads ? parts_of_row(c) : 0, rows_end = jobs + of_row * w->rows;
    lw_taker items = lw_this_phase(w, rows_end + (heads && guesses ? batch->n_seqs : 0));
    for (size_t item; lw_take_item(&items, &item);) {
        if (item >= rows_end) {
            weigh_guesses(w, layer, index, rows_of(w, item - rows_end));
            continue;
        }
        if (item >= jobs) {
            const size_t row = (item - jobs) / of_row;
            if (!is_guess(w, row)) weigh_row(w, layer, row, (item - jobs) % of_row);
            continue;
        }
        // Prompts come last in a batch. They take longest, so they go first.
        const own_rows rows = rows_of(w, batch->n_seqs - 1 - item / blocks);
        convolve_block(w, layer, index, rows, block_of(c, w->c->hidden_size, item % blocks));
    }
    lw_end_phase(w, LW_OP_CONVOLVE);
}

static void recur_columns(lw_worker* w, const lw_layer* layer, uint32_t index, own_rows rows, size_t head,
                          size_t column) {
    const lw_state_config* c = &layer->config.state;
    const size_t stride = lw_state_width(c, w->c->hidden_size), inner = (size_t)c->n_heads * c->value_dim;
    const size_t keys = (size_t)c->n_key_heads * c->key_dim, left = c->value_dim - column;
    const size_t key_head = c->keys_in_turn ? head % c->n_key_heads : head / (c->n_heads / c->n_key_heads);
    const bool ssd = c->kind == LW_SSD;
    const bool each = c->kind == LW_CHANNEL_DELTA;
    // Offsets of k, v and q in a row of a delta rule; of B, x and C in SSD.
    const size_t k = (ssd ? inner : keys) + key_head * c->key_dim, v = (ssd ? 0 : 2 * keys) + head * c->value_dim;
    const size_t q = ssd ? k + keys : k - keys;
    const float *in = of(w)->in + rows.first * stride, *known = of(w)->accepted_in + rows.first_accepted * stride;
    const size_t at = rows.first * c->n_heads + head, known_at = rows.first_accepted * c->n_heads + head;
    const size_t decays = lw_state_decays(c), first_decay = each ? head * c->key_dim : head;
    float* heads = lw_state_at(&w->s->states, rows.place, index) + parts_of(w, c).heads;
    const lw_recur_job job = {
        .rows = rows.n,
        .key_dim = c->key_dim,
        .columns = left < LW_RECUR_COLUMNS ? left : LW_RECUR_COLUMNS,
        .state = heads + (head * c->value_dim + column) * c->key_dim,
        .in = {in + k, in + q, in + v + column, of(w)->decay + rows.first * decays + first_decay, of(w)->beta + at},
        .stride = stride,
        .decay_stride = decays,
        .beta_stride = c->n_heads,
        .guesses = rows.guesses,
        .scratch = w->scratch,
        .accepted = rows.accepted,
        .accepted_in = {known + k, NULL, known + v + column,
                        of(w)->accepted_decay + rows.first_accepted * decays + first_decay,
                        of(w)->accepted_beta + known_at},
        .skip = ssd ? layer->state_skip[head] : 0,
        .out = of(w)->result + rows.first * inner + head * c->value_dim + column,
        .out_stride = inner,
        .fresh = rows.fresh};
    (ssd ? w->ops->recur_ssd : each ? w->ops->recur_channels : w->ops->recur_delta)(&job);
    const size_t cells = c->key_dim * job.columns;
    lw_profile_work(w->profile, LW_OP_RECUR, 0,
                    (2 * cells + (rows.n + rows.accepted) * (2 * c->key_dim + 2 * job.columns)) * sizeof(float),
                    (rows.n + rows.accepted) * cells * (ssd ? 3 : 4));
}

static void recur(lw_worker* w, const lw_layer* layer, uint32_t index) {
    const lw_state_config* c = &layer->config.state;
    const lw_batch* batch = w->step->batch;
    const size_t pieces = (c->value_dim + LW_RECUR_COLUMNS - 1) / LW_RECUR_COLUMNS, jobs = c->n_heads * pieces;
    lw_taker items = lw_this_phase(w, jobs * batch->n_seqs);
    for (size_t item; lw_take_item(&items, &item);)
        recur_columns(w, layer, index, rows_of(w, batch->n_seqs - 1 - item / jobs), item % jobs / pieces,
                      item % pieces * LW_RECUR_COLUMNS);
    lw_end_phase(w, LW_OP_RECUR);
}

// Number of values of a row that go through gate and norm in one item: whole norms and whole segments, at least LEAST
// values. If a row cannot be cut in this way, the item is the whole row.
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
    if (c->kind == LW_CHANNEL_DELTA)
        w->ops->sigmoid_mul(values, gate, values, n);
    else if (!ssd)
        w->ops->silu_mul(values, gate, values, n);
}

// The input of the output projection. Results of short convolutions are used as they are. Results of heads go through
// their gates and norms.
static lw_activations finish_values(lw_worker* w, const lw_layer* layer) {
    const lw_state_config* c = &layer->config.state;
    const size_t inner = layer->state_out.cols;
    const bool heads = c->kind != LW_SHORT_CONV, quantized = lw_reads_codes(w, &layer->state_out);
    const lw_activations out = lw_activations_in(w, inner, &w->b->codes, of(w)->result);
    if (!heads && !quantized) return out;
    const size_t norm = c->kind == LW_SSD ? c->norm_size : c->value_dim;
    const size_t piece = piece_of(inner, norm), pieces = inner / piece;
    lw_taker items = lw_this_phase(w, w->rows * pieces);
    for (size_t item; lw_take_item(&items, &item);) {
        const size_t row = item / pieces, first = item % pieces * piece;
        float* values = of(w)->result + row * inner + first;
        if (heads) finish_piece(w, layer, values, of(w)->gate + row * inner + first, first, piece);
        if (quantized)
            lw_quantize_segments(w, &out, row, first / LW_SEGMENT, (piece + LW_SEGMENT - 1) / LW_SEGMENT, values);
        lw_charge_row(w, LW_OP_ATTN_CODES, (heads ? 3 : 1) * piece, quantized ? piece : 0);
    }
    lw_end_phase(w, LW_OP_ATTN_CODES);
    return out;
}

// The products of decays and gate that read products: one phase for the codes, one for each product.
static void multiply_ranks(lw_worker* w, const lw_layer* layer) {
    const lw_state_config* c = &layer->config.state;
    if (c->decay_rank == 0 && c->gate_rank == 0) return;
    const lw_activations of_decay = lw_activations_in(w, c->decay_rank, &w->b->codes, of(w)->decay_down);
    const lw_activations of_gate = lw_activations_in(w, c->gate_rank, &of(w)->gate_codes, of(w)->gate_down);
    const bool decay_codes = c->decay_rank > 0 && lw_reads_codes(w, &layer->state_decay);
    const bool gate_codes = c->gate_rank > 0 && lw_reads_codes(w, &layer->state_gate);
    if (decay_codes || gate_codes) {
        lw_taker items = lw_this_phase(w, w->rows);
        for (size_t row; lw_take_item(&items, &row);) {
            if (decay_codes)
                lw_quantize_segments(w, &of_decay, row, 0, of_decay.segments, of(w)->decay_down + row * c->decay_rank);
            if (gate_codes)
                lw_quantize_segments(w, &of_gate, row, 0, of_gate.segments, of(w)->gate_down + row * c->gate_rank);
            const size_t n = (decay_codes ? c->decay_rank : 0) + (gate_codes ? c->gate_rank : 0);
            lw_charge_row(w, LW_OP_ROTATE, n, n);
        }
        lw_end_phase(w, LW_OP_ROTATE);
    }
    const lw_product decay = lw_product_at(w, &layer->state_decay, of(w)->decay, false);
    const lw_product gate = lw_product_at(w, &layer->state_gate, of(w)->gate, false);
    if (c->decay_rank > 0) lw_multiply(w, LW_OP_QKV, &decay, 1, &of_decay);
    if (c->gate_rank > 0) lw_multiply(w, LW_OP_QKV, &gate, 1, &of_gate);
}

void lw_recur(lw_worker* w, const lw_layer* layer, uint32_t index) {
    multiply_ranks(w, layer);
    convolve(w, layer, index);
    if (layer->config.state.kind != LW_SHORT_CONV) recur(w, layer, index);
}

void lw_add_state(lw_worker* w, const lw_layer* layer, uint32_t index) {
    const lw_activations values = finish_values(w, layer);
    lw_observe(w, LW_OP_ATTN_OUTPUT, index, lw_inputs_of(&values));
    lw_project(w, LW_OP_ATTN_OUTPUT, index, LW_ADAPTED_STATE_OUT, 1, lw_inputs_of(&values));
    lw_add_product(w, LW_OP_ATTN_OUTPUT, &layer->state_out, layer->attn_result_norm, &values, LW_ADAPTED_STATE_OUT);
}
