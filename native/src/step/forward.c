// The forward step: one parallel region over the whole ragged batch, with a barrier between phases.
#include <string.h>

#include "graph/observe.h"
#include "kinds/hyper.h"
#include "kinds/kinds.h"
#include "kinds/mtp.h"
#include "kinds/streams.h"
#include "kinds/taps.h"
#include "ops/math.h"
#include "status.h"
#include "step/run.h"

void lw_fill_angles(lw_worker* w, size_t row, const uint32_t at[LW_AXES]) {
    for (uint32_t rope = 0; rope < w->c->n_ropes; ++rope) {
        const lw_angles* angles = &w->model->ropes[rope];
        const size_t half = angles->rotated / 2;
        for (size_t i = 0; i < half; ++i) {
            double sine, cosine;
            lw_sincos((double)at[angles->axes[i]] * (double)angles->frequencies[i], &sine, &cosine);
            w->b->cosine[rope][row * half + i] = (float)cosine * angles->scale;
            w->b->sine[rope][row * half + i] = (float)sine * angles->scale;
        }
    }
}

static void fill_angles(lw_worker* w, size_t row) {
    const lw_batch* batch = w->step->batch;
    const size_t tokens = batch->query_start[batch->n_seqs];
    uint32_t at[LW_AXES];
    for (size_t axis = 0; axis < LW_AXES; ++axis)
        at[axis] = batch->positions != NULL ? batch->positions[axis * tokens + row] : w->b->position[row];
    lw_fill_angles(w, row, at);
}

// Adds the embedding of the token type, then the embedding of the position.
static void add_embeddings(lw_worker* w, size_t row, float* x) {
    const lw_matrix* tables[] = {&w->model->token_type_embedding, &w->model->position_embedding};
    const uint32_t at[] = {w->c->pooled ? w->b->token_type[row] : 0, w->b->position[row]};
    for (size_t i = 0; i < 2; ++i) {
        if (tables[i]->rows == 0) continue;
        lw_unpack_row(tables[i], at[i], w->scratch);
        lw_add_vector(x, w->scratch, w->c->hidden_size);
    }
}

static void embed(lw_worker* w) {
    const size_t hidden = w->c->hidden_size;
    lw_taker items = lw_this_phase(w, w->rows);
    for (size_t row; lw_take_item(&items, &row);) {
        float* x = w->b->x + row * hidden;
        lw_embed_row(w, row, x);
        add_embeddings(w, row, x);
        fill_angles(w, row);
        lw_charge_row(w, LW_OP_EMBED, hidden + 2 * w->s->widths.angles, 0);
    }
    lw_end_phase(w, LW_OP_EMBED);
}

static bool changes_logits(const lw_model* model) {
    return model->output_bias != NULL || model->config.logit_softcap > 0;
}

// Adds the bias to the logits, then applies the softcap.
static void finish_logits(lw_worker* w) {
    enum { TOGETHER = 4096 };
    const size_t vocab = w->c->vocab_size, parts = (vocab + TOGETHER - 1) / TOGETHER;
    lw_taker items = lw_this_phase(w, w->rows * parts);
    for (size_t item; lw_take_item(&items, &item);) {
        const size_t first = item % parts * TOGETHER, n = vocab - first < TOGETHER ? vocab - first : TOGETHER;
        float* row = w->step->logits + item / parts * vocab + first;
        if (w->model->output_bias != NULL) lw_add_vector(row, w->model->output_bias + first, n);
        if (w->c->logit_softcap > 0) w->ops->softcap(row, n, w->c->logit_softcap);
        lw_charge_row(w, LW_OP_HEAD, 2 * n, 0);
    }
    lw_end_phase(w, LW_OP_HEAD);
}

static void logits(lw_worker* w) {
    const lw_matrix* head = lw_model_head(w->model);
    lw_norm by = {.weight = w->model->output_norm, .bias = w->model->output_norm_bias, .scale = w->c->logit_scale};
    if (w->step->batch->runs != LW_RUN_MODEL) {
        const lw_layer* of = lw_model_mtp(w->model);
        by.weight = of->mtp_norm;
        by.scale = w->c->logit_scale;
        if (of->head_output.rows > 0) {
            lw_head_logits(w, of, by);
            return;
        }
    }
    const lw_activations x = lw_normalize(w, LW_OP_OUTPUT_NORM, by, lw_reads_codes(w, head));
    lw_observe(w, LW_OP_HEAD, 0, lw_inputs_of(&x));
    const lw_product product = lw_product_at(w, head, w->step->logits, false);
    lw_multiply(w, LW_OP_HEAD, &product, 1, &x);
    if (changes_logits(w->model)) finish_logits(w);
}

// Scales the residual stream at the end of a layer.
static void scale_rows(lw_worker* w, float scale) {
    const size_t hidden = w->c->hidden_size;
    lw_taker items = lw_this_phase(w, w->rows);
    for (size_t row; lw_take_item(&items, &row);) {
        float* x = w->b->x + row * hidden;
        for (size_t i = 0; i < hidden; ++i) x[i] *= scale;
        lw_charge_row(w, LW_OP_COMBINE, 2 * hidden, 0);
    }
    lw_end_phase(w, LW_OP_COMBINE);
}

void lw_run_parts(lw_worker* w, const lw_layer* layer, uint32_t index) {
    for (size_t kind = 0; kind < LW_N_KINDS; ++kind)
        if (lw_kinds[kind]->run != NULL && lw_has_kind(w->model, layer, kind)) lw_kinds[kind]->run(w, layer, index);
    const float scale = layer->config.output_scale;
    if (scale != 0 && scale != 1) scale_rows(w, scale);
}

// A phase: adds part 1 + i of the rows that are given to x.
static void add_taps(lw_worker* w, uint32_t i) {
    const size_t hidden = w->c->hidden_size;
    lw_taker items = lw_this_phase(w, w->rows);
    for (size_t row; lw_take_item(&items, &row);) {
        const float* given = w->step->batch->rows[row];
        if (given == NULL) continue;
        lw_add_vector(w->b->x + row * hidden, given + (1 + i) * hidden, hidden);
        lw_charge_row(w, LW_OP_COMBINE, 3 * hidden, 0);
    }
    lw_end_phase(w, LW_OP_COMBINE);
}

static void enter_layer(lw_worker* w, const lw_layer* layer) {
    for (size_t kind = 0; kind < LW_N_KINDS; ++kind)
        if (lw_kinds[kind]->enter != NULL && lw_has_kind(w->model, layer, kind)) lw_kinds[kind]->enter(w, layer);
}

static void run_layers(lw_worker* w, uint32_t first, uint32_t end) {
    for (uint32_t i = first; i < end; ++i) {
        const lw_layer* layer = &w->model->layers[i];
        if (w->step->batch->runs == LW_RUN_MODEL) lw_keep_tap(w, i);
        enter_layer(w, layer);
        if (lw_mixes(&layer->config)) lw_mix(w, layer, i);
        if (w->rows == 0) return;  // no row has logits: the step only writes keys, values and states
        lw_run_parts(w, layer, i);
        if (i < w->c->n_taps && w->step->batch->rows != NULL) add_taps(w, i);
    }
}

static void run_model(lw_worker* w) {
    const bool has_head = lw_model_mtp(w->model) != NULL;
    embed(w);
    for (size_t kind = 0; kind < LW_N_KINDS; ++kind)
        if (w->s->of_kind[kind] != NULL && lw_kinds[kind]->begin != NULL) lw_kinds[kind]->begin(w);
    run_layers(w, 0, lw_own_layers(w->model));
    lw_keep_tap(w, lw_own_layers(w->model));
    if (w->c->pooled) {
        lw_pool_texts(w);
        return;
    }
    if (w->c->n_streams > 0 && w->rows > 0) lw_join_streams(w);
    if (w->c->hyper_streams > 0 && w->rows > 0) lw_join_hyper(w);
    if (has_head) lw_keep_hidden(w);
    if (w->rows > 0) logits(w);
    if (has_head) lw_feed_head(w);
}

// Runs the prediction head alone.
static void run_head(lw_worker* w) {
    embed(w);  // only its RoPE angles are needed
    lw_enter_head(w);
    w->c = &w->model->head_config;
    run_layers(w, lw_own_layers(w->model), w->c->n_layers);
    lw_leave_head(w);
    logits(w);
}

static void run_step(void* context, unsigned thread) {
    lw_step_state* state = context;
    lw_session* s = state->session;
    lw_worker w = {.step = state,
                   .s = s,
                   .model = s->replica_of_thread[thread],
                   .c = &s->model->config,
                   .ops = s->model->ops,
                   .b = &s->b,
                   .thread = thread,
                   .rows = state->n_rows,
                   .adapted = state->adapted,
                   .scratch = s->scratch + thread * s->scratch_bytes,
                   .profile = lw_session_profile_thread(s, thread)};
    lw_profile_begin(w.profile);
    if (thread == 0 && s->announce != NULL) s->announce(s->ahead);
    state->run(&w);
}

static void run_batch(lw_worker* w) {
    const lw_batch* batch = w->step->batch;
    lw_states_copy(&w->s->states, batch->state_copies, batch->n_state_copies, w->thread, w->s->threads);
    if (batch->runs == LW_RUN_MODEL)
        run_model(w);
    else
        run_head(w);
    if (w->rows > 0 && !w->c->pooled) lw_draw_rows(w);
}

// Writes token, sequence and position of each row.
static void lay_out(lw_session* s, const lw_batch* batch) {
    for (uint32_t sequence = 0; sequence < batch->n_seqs; ++sequence) {
        const uint32_t begin = batch->query_start[sequence], end = batch->query_start[sequence + 1];
        for (uint32_t row = begin; row < end; ++row) {
            const uint32_t id = batch->token_ids != NULL ? batch->token_ids[row] : 0;
            s->b.token[row] = (id & LW_DRAWN_BEFORE) != 0 ? s->drawn_tokens[id & ~(uint32_t)LW_DRAWN_BEFORE] : id;
            s->b.sequence[row] = sequence;
            s->b.position[row] = batch->context_lens[sequence] + (row - begin);
        }
    }
}

// The number of threads for a batch.
static unsigned threads_for(const lw_session* s, const lw_batch* batch) {
    const lw_step_limit* limit = &s->limit;
    uint64_t context = 0;
    for (uint32_t i = 0; i < batch->n_seqs; ++i) context += batch->context_lens[i];
    const bool small = batch->query_start[batch->n_seqs] <= limit->max_rows && context <= limit->max_context;
    return small ? limit->threads : s->config.n_threads;
}

static lw_status outcome(const lw_step_state* state) {
    if (atomic_load(&state->non_finite))
        return lw_fail(LW_ERR_NONFINITE, "step: NaN or infinity in the activations of this batch");
    if (state->batch->draws != NULL && atomic_load(&state->session->closing))
        return lw_fail(LW_ERR_SYSTEM, "step: the session is being closed");
    return LW_OK;
}

lw_status lw_run_rows(lw_session* session, const lw_batch* batch, float* logits_out, lw_sampled* drawn,
                      void (*run)(lw_worker* w)) {
    lay_out(session, batch);
    session->threads = lw_pool_use(session->pool, threads_for(session, batch));
    for (size_t kind = 0; kind < LW_N_KINDS; ++kind)
        if (session->of_kind[kind] != NULL && lw_kinds[kind]->prepare != NULL) lw_kinds[kind]->prepare(session, batch);
    lw_step_state state = {.session = session,
                           .batch = batch,
                           .logits = logits_out,
                           .drawn = drawn,
                           .run = run,
                           .n_rows = batch->query_start[batch->n_seqs],
                           .adapted = lw_make_spans(session, batch, false),
                           .adapted_logits = lw_make_spans(session, batch, true)};
    for (size_t i = 0; i < session->n_phases; ++i)
        atomic_store_explicit(&session->phases[i].next, 0, memory_order_relaxed);
    atomic_store_explicit(&session->projected, 0, memory_order_relaxed);
    lw_pool_run(session->pool, run_step, &state);
    return outcome(&state);
}

lw_status lw_forward(lw_session* session, const lw_batch* batch, float* logits_out, lw_sampled* drawn) {
    const lw_status status = lw_run_rows(session, batch, logits_out, drawn, run_batch);
    if (batch->runs == LW_RUN_MODEL) {
        ++session->counters.steps;
        session->counters.tokens += batch->query_start[batch->n_seqs];
    }
    return status;
}
