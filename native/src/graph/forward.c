// The forward step: one parallel region over the whole ragged batch, a barrier between phases.
#include <math.h>
#include <string.h>

#include "graph/worker.h"
#include "ops/math.h"
#include "ops/sample.h"
#include "status.h"

typedef lw_worker worker;

lw_activations lw_activations_in(const worker* w, size_t cols, const lw_codes* codes, const float* values) {
    lw_activations x = {.rows = w->rows,
                        .cols = cols,
                        .q = codes->q,
                        .scale = codes->scales,
                        .totals = codes->totals,
                        .sums = codes->sums,
                        .outlying = codes->outlying,
                        .outliers = codes->outliers,
                        .f32 = values};
    lw_lay_out_activations(&x, lw_level_layouts[w->model->level]);
    return x;
}

void lw_quantize_segments(worker* w, const lw_activations* x, size_t row, size_t first, size_t n, const float* values) {
    if (!w->ops->quantize(x, row, first, n, values)) atomic_store(&w->step->non_finite, true);
    if (row + 1 != x->rows || x->rows % x->row_block == 0) return;
    for (size_t k = first * LW_SEGMENT; k < (first + n) * LW_SEGMENT; k += 8) {  // the unused partner of the last row
        memset((int8_t*)x->q + lw_q_offset(x, x->rows, k), 0, 8);
        memset((float*)x->scale + lw_scale_offset(x, x->rows, k / LW_GROUP), 0, 2 * sizeof(float));
        ((int32_t*)x->totals)[lw_totals_offset(x, x->rows, k)] = 0;
    }
}

static void quantize_row(worker* w, const lw_activations* x, size_t row, const float* values) {
    lw_quantize_segments(w, x, row, 0, x->segments, values);
}

static bool any_reads_codes(const worker* w, const lw_matrix* const* matrices, size_t n) {
    for (size_t i = 0; i < n; ++i)
        if (lw_reads_codes(w, matrices[i])) return true;
    return false;
}

static void fill_angles(worker* w, size_t row, uint32_t position) {
    const size_t half = w->c->head_dim / 2;
    for (size_t i = 0; i < half; ++i) {
        double sine, cosine;
        lw_sincos((double)position * (double)w->model->rope_frequencies[i], &sine, &cosine);
        w->b->cosine[row * half + i] = (float)cosine;
        w->b->sine[row * half + i] = (float)sine;
    }
}

static void embed(worker* w) {
    lw_taker items = lw_this_phase(w, w->rows);
    for (size_t row; lw_take_item(&items, &row);) {
        lw_unpack_row(&w->model->embedding, w->b->token[row], w->b->x + row * w->c->hidden_size);
        fill_angles(w, row, w->b->position[row]);
        lw_charge_row(w, LW_OP_EMBED, w->c->hidden_size + w->c->head_dim, 0);
    }
    lw_end_phase(w, LW_OP_EMBED);
}

static void put_in_order(float* out, const float* values, const float* order, size_t n) {
    for (size_t i = 0; i < n; ++i) out[i] = values[(uint32_t)order[i]];
}

// What comes before some matrices: the weight of the RMSNorm, and the order of their inputs or NULL.
typedef struct norm {
    const float *weight, *order;
} norm;

static void normalize_row(worker* w, const lw_activations* out, size_t row, norm by, bool quantized) {
    const size_t n = w->c->hidden_size;
    float* values = (float*)out->f32 + row * n;
    float* normed = by.order != NULL ? w->scratch : values;
    w->ops->rmsnorm(normed, w->b->x + row * n, by.weight, n, w->c->rms_norm_eps);
    if (by.order != NULL) put_in_order(values, normed, by.order, n);
    if (quantized) quantize_row(w, out, row, values);
}

// norm = rmsnorm(x) and, for quantized matrices, its codes.
static lw_activations normalize(worker* w, lw_operation operation, norm by, bool quantized) {
    const size_t n = w->c->hidden_size;
    if (w->rows <= LW_OWN_ROWS) {  // every thread for itself: a row takes less time than waiting for each other
        const lw_own* own = &w->s->own[w->thread];
        const lw_activations out = lw_activations_in(w, n, &own->codes, own->norm);
        for (size_t row = 0; row < w->rows; ++row) normalize_row(w, &out, row, by, quantized);
        const size_t values = w->thread == 0 ? n * w->rows : 0;  // bytes count once
        lw_charge_row(w, operation, 2 * values, quantized ? values : 0);
        return out;
    }
    const lw_activations out = lw_activations_in(w, n, &w->b->codes, w->b->norm);
    lw_taker items = lw_this_phase(w, w->rows);
    for (size_t row; lw_take_item(&items, &row);) {
        normalize_row(w, &out, row, by, quantized);
        lw_charge_row(w, operation, 2 * n, quantized ? n : 0);
    }
    lw_end_phase(w, operation);
    return out;
}

void lw_count_products(worker* w, size_t n, size_t rows) {
    if (w->thread != 0) return;
    lw_counters* counters = &w->s->counters;
    *(rows == 1 ? &counters->gemv_calls : &counters->gemm_calls) += n;
    *(rows == 1 ? &counters->gemv_rows : &counters->gemm_rows) += n * rows;
}

static void multiply(worker* w, lw_operation operation, const lw_product* products, size_t n, const lw_activations* x) {
    const lw_matmul_worker self = {w->scratch, w->profile, operation};
    const size_t panels = lw_count_panels(products, n);
    const lw_cuts cuts = lw_cut_rows(x->rows, panels, w->s->config.n_threads);
    lw_matmul(lw_this_phase(w, panels * cuts.n), cuts, products, x, &self);
    lw_count_products(w, n, x->rows);
    lw_end_phase(w, operation);
}

static void add_vector(float* out, const float* bias, size_t n) {
    if (bias == NULL) return;
    for (size_t i = 0; i < n; ++i) out[i] += bias[i];
}

static void finish_heads(const worker* w, size_t row, float* heads, size_t n_heads, const float* norm) {
    const size_t dim = w->c->head_dim, half = dim / 2;
    for (size_t h = 0; h < n_heads; ++h, heads += dim) {
        if (norm != NULL) w->ops->rmsnorm(heads, heads, norm, dim, w->c->rms_norm_eps);
        w->ops->rope(heads, w->b->cosine + row * half, w->b->sine + row * half, dim);
    }
}

// Bias, QK norm, RoPE and scaling of Q; keys and values go to the cache.
static void rotate_and_store(worker* w, const lw_layer* layer, uint32_t index) {
    const lw_model_config* c = w->c;
    const size_t q_size = (size_t)c->n_heads * c->head_dim, kv_size = (size_t)c->n_kv_heads * c->head_dim;
    const float scale = 1.0f / sqrtf((float)c->head_dim);
    const lw_batch* batch = w->step->batch;
    lw_taker items = lw_this_phase(w, w->rows);
    for (size_t row; lw_take_item(&items, &row);) {
        float *q = w->b->q + row * q_size, *k = w->b->k + row * kv_size, *v = w->b->v + row * kv_size;
        add_vector(q, layer->q_bias, q_size);
        add_vector(k, layer->k_bias, kv_size);
        add_vector(v, layer->v_bias, kv_size);
        finish_heads(w, row, q, c->n_heads, layer->q_norm);
        finish_heads(w, row, k, c->n_kv_heads, layer->k_norm);
        for (size_t i = 0; i < q_size; ++i) q[i] *= scale;
        const uint32_t position = w->b->position[row];
        const uint32_t* table = lw_block_table(batch, w->b->sequence[row]);
        const uint32_t block = table[position / LW_BLOCK_TOKENS];
        if (!lw_kv_write(&w->s->kv, w->ops, index, block, position % LW_BLOCK_TOKENS, k, v))
            atomic_store(&w->step->non_finite, true);
        lw_charge_row(w, LW_OP_ROTATE, 2 * q_size + 3 * kv_size, 0);
    }
    lw_end_phase(w, LW_OP_ROTATE);
}

// The input of the output projection: the result of attention in its order, and its codes unless they are there already.
static lw_activations attention_values(worker* w, const lw_layer* layer, bool have_codes) {
    const size_t cols = layer->attn_output.cols;
    const float* order = layer->attn_output_order;
    const bool quantized = lw_reads_codes(w, &layer->attn_output);
    float* values = order != NULL ? w->b->q : w->b->attn;  // queries are not needed any more
    const lw_activations out = lw_activations_in(w, cols, &w->b->codes, values);
    if (have_codes || (order == NULL && !quantized)) return out;
    lw_taker items = lw_this_phase(w, w->rows);
    for (size_t row; lw_take_item(&items, &row);) {
        if (order != NULL) put_in_order(values + row * cols, w->b->attn + row * cols, order, cols);
        if (quantized) quantize_row(w, &out, row, values + row * cols);
        lw_charge_row(w, LW_OP_ATTN_CODES, order != NULL ? 2 * cols : cols, quantized ? cols : 0);
    }
    lw_end_phase(w, LW_OP_ATTN_CODES);
    return out;
}

// After the last attention only the rows that need logits go on.
static void keep_logit_rows(worker* w) {
    const lw_batch* batch = w->step->batch;
    const size_t hidden = w->c->hidden_size, q_size = (size_t)w->c->n_heads * w->c->head_dim;
    if (w->thread == 0 && batch->n_logits < w->rows) {
        for (size_t i = 0; i < batch->n_logits; ++i) {  // rows ascend, so none is overwritten before it is read
            const size_t row = batch->logit_rows[i];
            memmove(w->b->x + i * hidden, w->b->x + row * hidden, hidden * sizeof(float));
            memmove(w->b->attn + i * q_size, w->b->attn + row * q_size, q_size * sizeof(float));
        }
    }
    w->rows = batch->n_logits;
    w->adapted = w->step->adapted_logits;
    lw_end_phase(w, LW_OP_ATTN_CODES);
}

static void attention_half(worker* w, const lw_layer* layer, uint32_t index) {
    const lw_matrix* inputs[] = {&layer->q, &layer->k, &layer->v};
    const lw_activations x =
        normalize(w, LW_OP_ATTN_NORM, (norm){layer->attn_norm, layer->attn_input_order}, any_reads_codes(w, inputs, 3));
    lw_observe(w, LW_OP_QKV, index, lw_inputs_of(&x));
    lw_project(w, LW_OP_QKV, index, LW_ADAPTED_Q, 3, lw_inputs_of(&x));
    const lw_product qkv[] = {lw_adapted_product_at(w, &layer->q, w->b->q, false, LW_ADAPTED_Q),
                              lw_adapted_product_at(w, &layer->k, w->b->k, false, LW_ADAPTED_K),
                              lw_adapted_product_at(w, &layer->v, w->b->v, false, LW_ADAPTED_V)};
    multiply(w, LW_OP_QKV, qkv, 3, &x);
    rotate_and_store(w, layer, index);
    const bool have_codes = lw_attend(w, index);
    if (index + 1 == w->c->n_layers) keep_logit_rows(w);
    if (w->rows == 0) return;
    const lw_activations values = attention_values(w, layer, have_codes);
    lw_observe(w, LW_OP_ATTN_OUTPUT, index, lw_inputs_of(&values));
    lw_project(w, LW_OP_ATTN_OUTPUT, index, LW_ADAPTED_ATTN_OUTPUT, 1, lw_inputs_of(&values));
    const lw_product o = lw_adapted_product_at(w, &layer->attn_output, w->b->x, true, LW_ADAPTED_ATTN_OUTPUT);
    multiply(w, LW_OP_ATTN_OUTPUT, &o, 1, &values);
}

static void ffn_half(worker* w, const lw_layer* layer, uint32_t index) {
    const lw_matrix* inputs[] = {&layer->gate, &layer->up};
    const lw_activations x =
        normalize(w, LW_OP_FFN_NORM, (norm){layer->ffn_norm, layer->ffn_input_order}, any_reads_codes(w, inputs, 2));
    lw_observe(w, LW_OP_GATE_UP, index, lw_inputs_of(&x));
    lw_project(w, LW_OP_GATE_UP, index, LW_ADAPTED_GATE, 2, lw_inputs_of(&x));
    const lw_activations values = lw_gate_up(w, layer, &x);
    lw_inputs activated = lw_inputs_of(&values);
    if (lw_reads_codes(w, &layer->down)) {
        activated.row_stride = LW_SEGMENT;
        activated.segment_stride = w->rows * LW_SEGMENT;
    }
    lw_observe(w, LW_OP_DOWN, index, activated);
    lw_project(w, LW_OP_DOWN, index, LW_ADAPTED_DOWN, 1, activated);
    const lw_product down = lw_adapted_product_at(w, &layer->down, w->b->x, true, LW_ADAPTED_DOWN);
    multiply(w, LW_OP_DOWN, &down, 1, &values);
}

static void logits(worker* w) {
    const lw_matrix* head = lw_model_head(w->model);
    const lw_activations x =
        normalize(w, LW_OP_OUTPUT_NORM, (norm){w->model->output_norm, NULL}, lw_reads_codes(w, head));
    lw_observe(w, LW_OP_HEAD, 0, lw_inputs_of(&x));
    const lw_product product = lw_product_at(w, head, w->step->logits, false);
    multiply(w, LW_OP_HEAD, &product, 1, &x);
}

static void run_step(void* context, unsigned thread) {
    lw_step_state* state = context;
    lw_session* s = state->session;
    worker w = {.step = state,
                .s = s,
                .model = s->copies[thread],
                .c = &s->model->config,
                .ops = s->model->ops,
                .b = &s->b,
                .thread = thread,
                .rows = state->n_rows,
                .adapted = state->adapted,
                .scratch = s->scratch + thread * s->scratch_bytes,
                .profile = lw_session_profile_thread(s, thread)};
    lw_profile_begin(w.profile);
    if (thread == 0) lw_ahead_announce(s->ahead);
    embed(&w);
    for (uint32_t i = 0; i < w.c->n_layers; ++i) {
        attention_half(&w, &w.model->layers[i], i);
        if (w.rows == 0) return;  // nobody asked for logits: keys and values are all there is to do
        ffn_half(&w, &w.model->layers[i], i);
    }
    logits(&w);
    lw_draw_rows(&w);
}

// Token, sequence and position of each row.
static void lay_out(lw_session* s, const lw_batch* batch) {
    for (uint32_t sequence = 0; sequence < batch->n_seqs; ++sequence) {
        const uint32_t begin = batch->query_start[sequence], end = batch->query_start[sequence + 1];
        for (uint32_t row = begin; row < end; ++row) {
            const uint32_t id = batch->token_ids[row];
            s->b.token[row] = (id & LW_DRAWN_BEFORE) != 0 ? s->drawn_tokens[id & ~(uint32_t)LW_DRAWN_BEFORE] : id;
            s->b.sequence[row] = sequence;
            s->b.position[row] = batch->context_lens[sequence] + (row - begin);
        }
    }
}

static lw_status outcome(const lw_step_state* state) {
    if (atomic_load(&state->non_finite))
        return lw_fail(LW_ERR_NONFINITE, "step: NaN or infinity in the activations of this batch");
    if (state->batch->draws != NULL && atomic_load(&state->session->closing))
        return lw_fail(LW_ERR_SYSTEM, "step: the session is being closed");
    const unsigned failed = atomic_load(&state->failed_draw);
    if (failed == 0) return LW_OK;
    if (atomic_load(&state->draw_failure) == LW_DRAW_NOTHING_ALLOWED)
        return lw_fail(LW_ERR_NO_TOKEN, "draw %u: bias and mask allow no token", failed - 1);
    return lw_fail(LW_ERR_NONFINITE, "draw %u: the logits hold NaN or infinity", failed - 1);
}

lw_status lw_forward(lw_session* session, const lw_batch* batch, float* logits_out, lw_sampled* drawn) {
    lay_out(session, batch);
    lw_step_state state = {.session = session,
                           .batch = batch,
                           .logits = logits_out,
                           .drawn = drawn,
                           .n_rows = batch->query_start[batch->n_seqs],
                           .n_tiles = lw_make_tiles(session, batch),
                           .adapted = lw_make_spans(session, batch, false),
                           .adapted_logits = lw_make_spans(session, batch, true)};
    for (size_t i = 0; i < session->n_phases; ++i)
        atomic_store_explicit(&session->phases[i].next, 0, memory_order_relaxed);
    atomic_store_explicit(&session->projected, 0, memory_order_relaxed);
    lw_pool_run(session->pool, run_step, &state);
    ++session->counters.steps;
    session->counters.tokens += state.n_rows;
    return outcome(&state);
}
