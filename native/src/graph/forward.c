// The forward step: one parallel region over the whole ragged batch, a barrier between phases.
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "graph/session.h"
#include "ops/math.h"
#include "ops/matmul.h"
#include "status.h"

typedef struct step {
    lw_session* session;
    const lw_batch* batch;
    float* logits;
    size_t n_rows;  // tokens of the batch
    size_t n_tiles;
    atomic_bool non_finite;
} step;

typedef struct worker {  // one thread's view of the step
    step* step;
    lw_session* s;
    const lw_model* model;
    const lw_model_config* c;
    const lw_lane_ops* ops;
    lw_buffers* b;
    unsigned thread;
    size_t phase;
    size_t rows;  // rows being worked on: all tokens, or those with logits after the last attention
    void* scratch;
    lw_profile_thread* profile;  // or NULL
} worker;

static lw_work* this_phase(worker* w) { return &w->s->phases[w->phase]; }

static void end_phase(worker* w, lw_operation operation) {
    ++w->phase;
    lw_pool_barrier(w->s->pool);
    lw_profile_wait(w->profile, operation);
}

// Charges one row's work: so many floats read or written, and so many codes.
static void charge_row(worker* w, lw_operation operation, size_t floats, size_t codes) {
    lw_profile_work(w->profile, operation, 0, floats * sizeof(float) + codes, 0);
}

static lw_activations activations(const worker* w, size_t cols, const float* values) {
    return (lw_activations){.rows = w->rows,
                            .cols = cols,
                            .stride = lw_activation_stride(cols),
                            .segments = (cols + LW_SEGMENT - 1) / LW_SEGMENT,
                            .row_block = w->rows > 1 ? lw_level_layouts[w->model->level].row_block : 1,
                            .q = w->b->codes,
                            .scale = w->b->scales,
                            .prefix = w->b->prefix,
                            .f32 = values};
}

static void quantize_row(worker* w, const lw_activations* x, size_t row, const float* values) {
    if (!w->ops->quantize(x, row, values)) atomic_store(&w->step->non_finite, true);
    if (row + 1 == x->rows && x->rows % x->row_block != 0)  // the unused partner of the last row
        for (size_t k = 0; k < x->stride; k += 8) memset((int8_t*)x->q + lw_q_offset(x, x->rows, k), 0, 8);
}

static bool any_quantized(const lw_packed* const* matrices, size_t n) {
    for (size_t i = 0; i < n; ++i)
        if (lw_is_quantized(matrices[i]->matrix.type)) return true;
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
    const lw_batch* batch = w->step->batch;
    size_t row, end;
    while (lw_work_take(this_phase(w), w->rows, 1, &row, &end)) {
        lw_unpack_row(&w->model->embedding.matrix, batch->token_ids[row], w->b->x + row * w->c->hidden_size);
        fill_angles(w, row, w->b->position[row]);
        charge_row(w, LW_OP_EMBED, w->c->hidden_size + w->c->head_dim, 0);
    }
    end_phase(w, LW_OP_EMBED);
}

// norm = rmsnorm(x) and, for quantized matrices, its codes.
static lw_activations normalize(worker* w, lw_operation operation, const float* weight, bool quantized) {
    const size_t n = w->c->hidden_size;
    const lw_activations out = activations(w, n, w->b->norm);
    size_t row, end;
    while (lw_work_take(this_phase(w), w->rows, 1, &row, &end)) {
        w->ops->rmsnorm(w->b->norm + row * n, w->b->x + row * n, weight, n, w->c->rms_norm_eps);
        if (quantized) quantize_row(w, &out, row, w->b->norm + row * n);
        charge_row(w, operation, 2 * n, quantized ? n : 0);
    }
    end_phase(w, operation);
    return out;
}

static void multiply(worker* w, lw_operation operation, const lw_product* products, size_t n, const lw_activations* x) {
    const lw_matmul_worker self = {w->scratch, w->profile, operation};
    lw_matmul(this_phase(w), products, n, x, w->s->config.n_threads, &self);
    if (w->thread == 0) {
        lw_counters* counters = &w->s->counters;
        *(x->rows == 1 ? &counters->gemv_calls : &counters->gemm_calls) += n;
        *(x->rows == 1 ? &counters->gemv_rows : &counters->gemm_rows) += n * x->rows;
    }
    end_phase(w, operation);
}

static lw_product product(const worker* w, const lw_packed* matrix, float* out, bool add) {
    return lw_product_of(&matrix->matrix, w->model->level, w->rows, out, add);
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
    size_t row, end;
    while (lw_work_take(this_phase(w), w->rows, 1, &row, &end)) {
        float *q = w->b->q + row * q_size, *k = w->b->k + row * kv_size, *v = w->b->v + row * kv_size;
        add_vector(q, layer->q_bias, q_size);
        add_vector(k, layer->k_bias, kv_size);
        add_vector(v, layer->v_bias, kv_size);
        finish_heads(w, row, q, c->n_heads, layer->q_norm);
        finish_heads(w, row, k, c->n_kv_heads, layer->k_norm);
        for (size_t i = 0; i < q_size; ++i) q[i] *= scale;
        const uint32_t position = w->b->position[row];
        const uint32_t* table = batch->block_tables + (size_t)w->b->sequence[row] * batch->block_table_stride;
        lw_kv_write(&w->s->kv, index, table[position / LW_BLOCK_TOKENS], position % LW_BLOCK_TOKENS, k, v);
        charge_row(w, LW_OP_ROTATE, 2 * q_size + 3 * kv_size, 0);
    }
    end_phase(w, LW_OP_ROTATE);
}

// Charges one job of attention: the keys and values it reads, queries and results, two products for each token seen.
static void charge_attention(worker* w, const lw_attention_job* job) {
    if (w->profile == NULL) return;
    const uint64_t last = job->first_position + job->n_tokens, dims = job->kv.head_dim + job->kv.value_dim;
    uint64_t seen = 0, first = last;  // tokens seen by all queries; the first one that any of them sees
    for (uint64_t position = job->first_position; position < last; ++position) {
        const uint64_t n = job->window != 0 && position + 1 > job->window ? job->window : position + 1;
        seen += n;
        if (position + 1 - n < first) first = position + 1 - n;
    }
    const uint64_t cache_bytes = (last - first) * dims * (job->kv.is_f16 ? 2 : 4);
    const uint64_t row_bytes = 2 * job->n_tokens * job->group * job->kv.head_dim * sizeof(float);
    lw_profile_work(w->profile, LW_OP_ATTENTION, 0, cache_bytes + row_bytes, seen * job->group * dims);
}

static void attend(worker* w, uint32_t index) {
    const lw_model_config* c = w->c;
    const size_t q_size = (size_t)c->n_heads * c->head_dim, group = c->n_heads / c->n_kv_heads;
    const size_t jobs = w->step->n_tiles * c->n_kv_heads;
    const lw_batch* batch = w->step->batch;
    size_t item, end;
    while (lw_work_take(this_phase(w), jobs, 1, &item, &end)) {
        // Late tiles see the most keys: they go first, so that none is left over at the end.
        const lw_tile* tile = &w->b->tiles[w->step->n_tiles - 1 - item / c->n_kv_heads];
        const size_t head = item % c->n_kv_heads;
        const size_t offset = tile->first_row * q_size + head * group * c->head_dim;
        const lw_attention_job job = {
            .kv = lw_kv_layer(&w->s->kv, index),
            .blocks = batch->block_tables + (size_t)tile->sequence * batch->block_table_stride,
            .kv_head = head,
            .n_tokens = tile->n_tokens,
            .first_position = w->b->position[tile->first_row],
            .window = c->sliding_window,
            .group = group,
            .q = w->b->q + offset,
            .q_stride = q_size,
            .out = w->b->attn + offset,
            .out_stride = q_size,
            .scratch = w->scratch};
        w->ops->attention(&job);
        charge_attention(w, &job);
    }
    end_phase(w, LW_OP_ATTENTION);
}

static lw_activations quantize_rows(worker* w, size_t cols, const float* values, bool quantized) {
    const lw_activations out = activations(w, cols, values);
    size_t row, end;
    while (quantized && lw_work_take(this_phase(w), w->rows, 1, &row, &end)) {
        quantize_row(w, &out, row, values + row * cols);
        charge_row(w, LW_OP_ATTN_CODES, cols, cols);
    }
    end_phase(w, LW_OP_ATTN_CODES);
    return out;
}

static lw_activations activate(worker* w, bool quantized) {
    const size_t n = w->c->ffn_size;
    const lw_activations out = activations(w, n, w->b->gate);
    size_t row, end;
    while (lw_work_take(this_phase(w), w->rows, 1, &row, &end)) {
        float* gate = w->b->gate + row * n;
        w->ops->silu_mul(gate, gate, w->b->up + row * n, n);
        if (quantized) quantize_row(w, &out, row, gate);
        charge_row(w, LW_OP_ACTIVATE, 3 * n, quantized ? n : 0);
    }
    end_phase(w, LW_OP_ACTIVATE);
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
    end_phase(w, LW_OP_ATTN_CODES);
}

static void attention_half(worker* w, const lw_layer* layer, uint32_t index) {
    const lw_packed* inputs[] = {&layer->q, &layer->k, &layer->v};
    const lw_activations x = normalize(w, LW_OP_ATTN_NORM, layer->attn_norm, any_quantized(inputs, 3));
    const lw_product qkv[] = {product(w, &layer->q, w->b->q, false), product(w, &layer->k, w->b->k, false),
                              product(w, &layer->v, w->b->v, false)};
    multiply(w, LW_OP_QKV, qkv, 3, &x);
    rotate_and_store(w, layer, index);
    attend(w, index);
    if (index + 1 == w->c->n_layers) keep_logit_rows(w);
    if (w->rows == 0) return;
    const lw_packed* output = &layer->attn_output;
    const lw_activations values = quantize_rows(w, output->matrix.cols, w->b->attn, any_quantized(&output, 1));
    const lw_product o = product(w, output, w->b->x, true);
    multiply(w, LW_OP_ATTN_OUTPUT, &o, 1, &values);
}

static void ffn_half(worker* w, const lw_layer* layer) {
    const lw_packed* inputs[] = {&layer->gate, &layer->up};
    const lw_activations x = normalize(w, LW_OP_FFN_NORM, layer->ffn_norm, any_quantized(inputs, 2));
    const lw_product gate_up[] = {product(w, &layer->gate, w->b->gate, false), product(w, &layer->up, w->b->up, false)};
    multiply(w, LW_OP_GATE_UP, gate_up, 2, &x);
    const lw_packed* down = &layer->down;
    const lw_activations values = activate(w, any_quantized(&down, 1));
    const lw_product product_down = product(w, down, w->b->x, true);
    multiply(w, LW_OP_DOWN, &product_down, 1, &values);
}

static void logits(worker* w) {
    const lw_matrix* head = lw_model_head(w->model);
    const lw_activations x = normalize(w, LW_OP_OUTPUT_NORM, w->model->output_norm, lw_is_quantized(head->type));
    const lw_product product = lw_product_of(head, w->model->level, w->rows, w->step->logits, false);
    multiply(w, LW_OP_HEAD, &product, 1, &x);
}

static void run_step(void* context, unsigned thread) {
    step* state = context;
    lw_session* s = state->session;
    worker w = {.step = state,
                .s = s,
                .model = s->model,
                .c = &s->model->config,
                .ops = s->model->ops,
                .b = &s->b,
                .thread = thread,
                .rows = state->n_rows,
                .scratch = s->scratch + thread * s->scratch_bytes,
                .profile = lw_session_profile_thread(s, thread)};
    lw_profile_begin(w.profile);
    embed(&w);
    for (uint32_t i = 0; i < w.c->n_layers; ++i) {
        attention_half(&w, &w.model->layers[i], i);
        if (w.rows == 0) return;  // nobody asked for logits: keys and values are all there is to do
        ffn_half(&w, &w.model->layers[i]);
    }
    logits(&w);
}

// Positions of the rows, and the tiles that attention works on.
static size_t lay_out(lw_session* s, const lw_batch* batch) {
    const uint32_t most = (uint32_t)lw_tile_tokens(&s->model->config);
    size_t n_tiles = 0;
    for (uint32_t sequence = 0; sequence < batch->n_seqs; ++sequence) {
        const uint32_t begin = batch->query_start[sequence], end = batch->query_start[sequence + 1];
        for (uint32_t row = begin; row < end; ++row) {
            s->b.sequence[row] = sequence;
            s->b.position[row] = batch->context_lens[sequence] + (row - begin);
        }
        for (uint32_t row = begin; row < end; row += most)
            s->b.tiles[n_tiles++] = (lw_tile){sequence, row, end - row < most ? end - row : most};
    }
    return n_tiles;
}

lw_status lw_forward(lw_session* session, const lw_batch* batch, float* logits_out) {
    step state = {.session = session,
                  .batch = batch,
                  .logits = logits_out,
                  .n_rows = batch->query_start[batch->n_seqs],
                  .n_tiles = lay_out(session, batch)};
    for (size_t i = 0; i < session->n_phases; ++i)
        atomic_store_explicit(&session->phases[i].next, 0, memory_order_relaxed);
    lw_pool_run(session->pool, run_step, &state);
    ++session->counters.steps;
    session->counters.tokens += state.n_rows;
    if (atomic_load(&state.non_finite))
        return lw_fail(LW_ERR_NONFINITE, "step: NaN or infinity in the activations of this batch");
    return LW_OK;
}
