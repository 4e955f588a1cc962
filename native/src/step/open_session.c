#include <stdlib.h>
#include <string.h>

#include "graph/observe.h"
#include "kinds/kinds.h"
#include "kinds/tiles.h"
#include "numa.h"
#include "ops/sample.h"
#include "status.h"
#include "step/ahead.h"

enum { MAX_GUESSES = 256 };

// Allocates s->of_kind[kind] for each kind that the model has. Returns false without memory.
static bool open_kinds(lw_session* s) {
    const uint32_t n_layers = s->model->config.n_layers;
    s->of_kind = calloc(LW_N_KINDS, sizeof *s->of_kind);
    if (s->of_kind == NULL) return false;
    for (size_t kind = 0; kind < LW_N_KINDS; ++kind) {
        const lw_kind* k = lw_kinds[kind];
        uint32_t i = 0;
        while (i < n_layers && !lw_has_kind(s->model, &s->model->layers[i], kind)) ++i;
        if (i == n_layers) continue;
        s->of_kind[kind] = calloc(1, k->own_bytes + n_layers * k->own_bytes_of_layer);
        if (s->of_kind[kind] == NULL) return false;
    }
    return true;
}

static void widen(lw_session* s) {
    const lw_model_config* c = &s->model->config;
    lw_widths* widths = &s->widths;
    *widths = (lw_widths){.hidden = c->hidden_size, .input = c->hidden_size};
    for (uint32_t i = 0; c->pooled && i <= c->n_dense; ++i) lw_widen(&widths->dense, lw_dense_inputs(s->model, i));
    lw_widen(&widths->input, widths->dense);
    if (lw_is_tower(c)) {
        lw_widen(&widths->input, lw_patch_inputs(c));
        lw_widen(&widths->inner, lw_patch_inputs(c));
    }
    widths->scratch = 2 * c->hidden_size * sizeof(float);  // a row before it is put in order, sums of rows
    for (uint32_t i = 0; i < c->n_layers; ++i)
        for (size_t kind = 0; kind < LW_N_KINDS; ++kind)
            if (lw_kinds[kind]->widen != NULL && lw_has_kind(s->model, &s->model->layers[i], kind))
                lw_kinds[kind]->widen(s, &s->model->layers[i], i);
    widths->input = lw_round_up(widths->input, LW_SEGMENT);
    const size_t rows = s->config.max_batch_tokens;
    lw_widen(&widths->scratch, s->config.float_activations ? lw_decoded_scratch_bytes(rows, widths->input)
                                                           : lw_matmul_scratch_bytes(rows));
}

// Whether some part reads x as it was before attention: an FFN in parallel with it, or what corrects streams.
static bool has_parts_beside(const lw_model* model) {
    if (model->config.n_streams > 0) return true;
    for (uint32_t i = 0; i < model->config.n_layers; ++i)
        if (model->layers[i].config.wiring != LW_IN_TURN) return true;
    return false;
}

static void take_buffers(lw_session* s, lw_parts* parts) {
    const lw_widths* w = &s->widths;
    const lw_model* model = s->model;
    lw_buffers* b = &s->b;
    const size_t rows = s->config.max_batch_tokens, row = rows * sizeof(float);
    const size_t inner = lw_round_up(w->inner, LW_SEGMENT);
    b->x = lw_take(parts, row * w->hidden);
    b->norm = lw_take(parts, row * w->hidden);
    b->before = has_parts_beside(model) ? lw_take(parts, row * w->hidden) : NULL;
    b->gate = lw_take(parts, row * inner);
    b->up = lw_take(parts, row * inner);
    for (uint32_t i = 0; i < model->config.n_ropes; ++i) {
        b->cosine[i] = lw_take(parts, row * (model->ropes[i].rotated / 2));
        b->sine[i] = lw_take(parts, row * (model->ropes[i].rotated / 2));
    }
    b->token = lw_take(parts, rows * sizeof *b->token);
    b->sequence = lw_take(parts, rows * sizeof *b->sequence);
    b->position = lw_take(parts, rows * sizeof *b->position);
    b->token_type = lw_take(parts, model->config.pooled ? rows * sizeof *b->token_type : 0);
    for (size_t i = 0; i < 2; ++i) b->pooled[i] = lw_take(parts, model->config.n_dense > 0 ? row * w->dense : 0);
    b->codes = lw_take_codes(parts, model, rows, w->input);
    b->ffn_codes = lw_take_codes(parts, model, rows, inner);
}

static void take_texts(lw_session* s, lw_parts* parts) {
    if (!s->model->config.pooled) return;
    const size_t texts = s->config.max_batch_logits * sizeof(uint32_t);
    s->first_blocks = lw_take(parts, texts);
    s->no_context = lw_take(parts, texts);
    s->kept_rows = lw_take(parts, texts);
    s->all_blocks = lw_take(parts, s->config.n_blocks * sizeof *s->all_blocks);
    for (uint32_t i = 0; parts->base != NULL && i < s->config.n_blocks; ++i) s->all_blocks[i] = i;
}

static void take_seeing(lw_session* s, lw_parts* parts) {
    if (!lw_is_tower(&s->model->config)) return;
    const size_t patches = (size_t)s->config.n_blocks * LW_BLOCK_TOKENS;
    const size_t widest = s->widths.input > s->widths.inner ? s->widths.input : s->widths.inner;
    s->seeing.clamped = lw_take(parts, s->config.max_batch_tokens * widest * sizeof(float));
    s->seeing.x = lw_take(parts, patches * s->widths.hidden * sizeof(float));
    if (lw_attention_of(s) != NULL)  // a tower may have no layers
        s->seeing.q = lw_take(parts, patches * lw_attention_of(s)->q_width * sizeof(float));
}

static void take_adapted(lw_session* s, lw_parts* parts) {
    const size_t rows = s->config.max_batch_tokens, rank = s->config.max_adapter_rank;
    if (rank == 0) return;
    for (size_t i = 0; i < 2; ++i) s->b.spans[i] = lw_take(parts, rows * sizeof(lw_span));
    for (size_t i = 0; i < LW_ADAPTED_TOGETHER; ++i) s->b.addends[i] = lw_take(parts, rows * sizeof(lw_addend));
    s->b.partial = lw_take(parts, rows * s->partial_floats * sizeof(float));
    s->b.low = lw_take(parts, rows * LW_ADAPTED_TOGETHER * rank * sizeof(float));
    s->b.parts_done = lw_take(parts, rows * LW_ADAPTED_TOGETHER * sizeof *s->b.parts_done);
}

static void take_all(lw_session* s, lw_parts* parts) {
    const size_t threads = s->config.n_threads;
    const size_t hidden = lw_round_up(s->widths.hidden, LW_SEGMENT);
    take_buffers(s, parts);
    for (size_t kind = 0; kind < LW_N_KINDS; ++kind)
        if (s->of_kind[kind] != NULL && lw_kinds[kind]->take != NULL) lw_kinds[kind]->take(s, parts);
    take_adapted(s, parts);
    take_texts(s, parts);
    take_seeing(s, parts);
    s->phases = lw_take(parts, s->n_phases * sizeof *s->phases);
    s->drawn_tokens = lw_take(parts, s->config.max_batch_logits * sizeof *s->drawn_tokens);
    s->own = lw_take(parts, threads * sizeof *s->own);
    s->replica_of_thread = lw_take(parts, threads * sizeof *s->replica_of_thread);
    for (size_t i = 0; i < threads; ++i) {
        const lw_own own = {.codes = lw_take_codes(parts, s->model, LW_OWN_ROWS, hidden),
                            .norm = lw_take(parts, LW_OWN_ROWS * hidden * 4)};
        if (parts->base) s->own[i] = own;
    }
    if (s->config.observe_inputs) s->observed = lw_take(parts, threads * lw_observed_cells(s) * sizeof *s->observed);
    parts->used = lw_round_up(parts->used, 4096);
    s->scratch = lw_take(parts, threads * s->scratch_bytes);
    s->draw_scratch = lw_take(parts, threads * s->draw_scratch_bytes);
}

static bool open_states(lw_session* s) {
    const uint32_t n_layers = s->model->config.n_layers;
    size_t* floats = calloc(n_layers, sizeof *floats);
    if (floats == NULL) return false;
    for (uint32_t i = 0; i < n_layers; ++i) floats[i] = lw_kept_floats(s->model, i, s->config.max_guesses);
    const bool opened = lw_states_open(floats, n_layers, s->config.n_states, s->config.max_guesses, &s->states);
    free(floats);
    return opened;
}

static bool open_memory(lw_session* s) {
    const lw_model_config* c = &s->model->config;
    if (!open_kinds(s)) return false;
    widen(s);
    s->scratch_bytes = lw_round_up(s->widths.scratch, 4096);
    s->draw_scratch_bytes = c->pooled ? 0 : lw_round_up(lw_sample_scratch_bytes(c->vocab_size), 4096);
    s->partial_floats = lw_partial_floats(s);
    s->n_phases = (size_t)c->n_layers * 48 + 32;
    lw_parts parts = {0};
    take_all(s, &parts);
    if (!lw_block_map(parts.used, &s->memory)) return false;
    parts = (lw_parts){.base = s->memory.data};
    take_all(s, &parts);
    for (uint32_t i = 0; i < s->config.n_threads; ++i)
        s->replica_of_thread[i] =
            lw_model_replica(s->model, s->config.replica_of_thread != NULL ? s->config.replica_of_thread[i] : 0);
    if (!lw_kv_open(&s->kv, s->groups.n_slots)) return false;
    for (uint32_t i = 0; i < c->n_layers; ++i)
        if (lw_has_attention(&s->model->layers[i]))
            s->kv_of[i] = lw_kv_part(&s->kv, &s->model->layers[i].config.attention, s->places[i].offset);
    lw_place_block(&s->model->nodes, &s->kv.block);
    if (!open_states(s)) return false;
    if (s->states.block.data != NULL) lw_place_block(&s->model->nodes, &s->states.block);
    return true;
}

static lw_status check_config(const lw_session_config* c, const lw_model_config* model) {
    const bool pooled = model->pooled != 0, tower = lw_is_tower(model);
    if (c->n_threads < 1 || c->n_threads > LW_MAX_THREADS)
        return lw_fail(LW_ERR_ARGUMENT, "session: %u threads, must be 1 to %d", c->n_threads, LW_MAX_THREADS);
    if (c->n_blocks < 1 && (!pooled || tower))
        return lw_fail(LW_ERR_ARGUMENT, "session: n_blocks is 0, must be at least 1");
    if (c->max_batch_tokens < 1 || c->max_batch_tokens > 65536)
        return lw_fail(LW_ERR_ARGUMENT, "session: max_batch_tokens is %u, must be 1 to 65536", c->max_batch_tokens);
    if (c->max_batch_logits < 1 || c->max_batch_logits > c->max_batch_tokens)
        return lw_fail(LW_ERR_ARGUMENT, "session: max_batch_logits is %u, must be 1 to max_batch_tokens (%u)",
                       c->max_batch_logits, c->max_batch_tokens);
    if (tower && c->max_batch_tokens % lw_block_patches(model) != 0)
        return lw_fail(LW_ERR_ARGUMENT, "session: max_batch_tokens is %u, must be a multiple of a block's %u patches",
                       c->max_batch_tokens, lw_block_patches(model));
    if (c->max_adapter_rank > LW_MAX_ADAPTER_RANK)
        return lw_fail(LW_ERR_ARGUMENT, "session: max_adapter_rank is %u, must be at most %d", c->max_adapter_rank,
                       LW_MAX_ADAPTER_RANK);
    if (pooled && (c->max_adapter_rank > 0 || c->groups_by_window > 0))
        return lw_fail(LW_ERR_ARGUMENT,
                       "session: max_adapter_rank %u and groups_by_window %u, must be 0 where the model is pooled",
                       c->max_adapter_rank, c->groups_by_window);
    if (c->float_activations > 1)
        return lw_fail(LW_ERR_ARGUMENT, "session: float_activations is %u, must be 0 or 1", c->float_activations);
    if (c->observe_inputs > 1)
        return lw_fail(LW_ERR_ARGUMENT, "session: observe_inputs is %u, must be 0 or 1", c->observe_inputs);
    if (c->groups_by_window > 1)
        return lw_fail(LW_ERR_ARGUMENT, "session: groups_by_window is %u, must be 0 or 1", c->groups_by_window);
    if (!lw_is_kv_type(c->kv_type))
        return lw_fail(LW_ERR_ARGUMENT,
                       "session: kv_type %d, must be F16 (1), F32 (0), I8 (24), I4 (300) or I8_I4 (301)",
                       (int)c->kv_type);
    return LW_OK;
}

static lw_status check_states(const lw_model* model, uint32_t n_states, uint32_t max_guesses) {
    const bool has_states = lw_state_place_bytes(model, 0) > 0;
    if (max_guesses > (has_states ? MAX_GUESSES : 0))
        return lw_fail(LW_ERR_ARGUMENT, "session: max_guesses is %u, must be %s", max_guesses,
                       has_states ? "at most 256" : "0: no layer of the model has a state");
    if (has_states == (n_states > 0)) return LW_OK;
    return lw_fail(
        LW_ERR_ARGUMENT, "session: n_states is %u, must be %s", n_states,
        has_states ? "at least 1: layers of the model have a state" : "0: no layer of the model has a state");
}

static lw_status check_kv_type(const lw_model* model, lw_type kv_type) {
    const char* name = kv_type == LW_I8 ? "int8" : kv_type == LW_I4 ? "q4" : "k8v4";
    for (uint32_t i = 0; lw_kv_codes(kv_type) && i < model->config.n_layers; ++i) {
        const lw_attention_config* c = &model->layers[i].config.attention;
        const char* why = c->alibi || c->distances ? "scores change by distance"
                          : c->shared_rows         ? "rows are shared with the entries made of them"
                                                   : NULL;
        if (why != NULL)
            return lw_fail(LW_ERR_ARGUMENT, "kv_type is %d (%s), must be F16 (1, f16) or F32 (0, f32): in layer %u %s",
                           (int)kv_type, name, i, why);
        if (c->latent_rank > 0 && lw_kv_packs_values(kv_type) != lw_kv_packs_keys(kv_type))
            return lw_fail(LW_ERR_ARGUMENT,
                           "kv_type is %d (%s), must be I8 (24, int8), I4 (300, q4), F16 (1, f16) or F32 (0, f32): in "
                           "layer %u one latent row is key and value",
                           (int)kv_type, name, i);
    }
    return LW_OK;
}

static lw_status check_places(const lw_model* model, const lw_session_config* c) {
    for (uint32_t i = 0; c->replica_of_thread != NULL && i < c->n_threads; ++i)
        if (c->replica_of_thread[i] > model->n_replicas)
            return lw_fail(LW_ERR_ARGUMENT, "session: replica_of_thread[%u] is %u, the model has %u", i,
                           c->replica_of_thread[i], 1 + model->n_replicas);
    return c->cpus != NULL ? lw_check_cpus("session", c->cpus, c->n_threads) : LW_OK;
}

lw_status lw_session_open(const lw_model* model, const lw_session_config* config, lw_session** out) {
    if (model == NULL || config == NULL || out == NULL)
        return lw_fail(LW_ERR_ARGUMENT, "lw_session_open: model, config and out must not be NULL");
    if (!model->finished) return lw_fail(LW_ERR_ARGUMENT, "lw_session_open: the model is not finished");
    LW_RETURN_IF_FAILED(check_config(config, &model->config));
    LW_RETURN_IF_FAILED(check_places(model, config));
    LW_RETURN_IF_FAILED(check_kv_type(model, config->kv_type));
    LW_RETURN_IF_FAILED(check_states(model, config->n_states, config->max_guesses));
    lw_session* s = aligned_alloc(_Alignof(lw_session), sizeof *s);
    if (s == NULL) return lw_fail(LW_ERR_MEMORY, "no memory for a session");
    memset(s, 0, sizeof *s);
    pthread_mutex_init(&s->lock, NULL);  // cannot fail on Linux
    s->model = model;
    s->config = *config;
    s->threads = config->n_threads;
    // Each text has at most one block that is not full.
    if (model->config.pooled && !lw_is_tower(&model->config))
        s->config.n_blocks = config->max_batch_tokens / LW_BLOCK_TOKENS + config->max_batch_logits;
    lw_kv_describe(lw_largest_kv(model, config->kv_type), config->kv_type, s->config.n_blocks, &s->kv);
    s->places = calloc(2 * (size_t)model->config.n_layers, sizeof *s->places);
    s->kv_of = calloc(model->config.n_layers, sizeof *s->kv_of);
    if (s->places != NULL)
        s->groups = lw_group_layers(model, config->kv_type, config->groups_by_window != 0, s->places);
    s->pool = lw_pool_open(config->n_threads, config->cpus);
    if (s->pool != NULL && config->n_cpus > 0) lw_pool_limit_cpus(s->pool, config->n_cpus);
    if (s->places == NULL || s->kv_of == NULL || s->pool == NULL || !open_memory(s)) {
        lw_session_close(s);
        return lw_fail(LW_ERR_MEMORY, "no memory or threads for a session of %u blocks, %u tokens and %u threads",
                       config->n_blocks, config->max_batch_tokens, config->n_threads);
    }
    s->config.cpus = s->config.replica_of_thread = NULL;  // the caller's arrays are borrowed only for this call
    *out = s;
    return LW_OK;
}

void lw_session_close(lw_session* session) {
    if (session == NULL) return;
    atomic_store(&session->closing, true);
    while (lw_gate_release(&session->draw_gate)) continue;  // threads that wait see `closing` and draw nothing
    lw_ahead_close(session->ahead);
    lw_pool_close(session->pool);
    lw_profile_close(session->profile);
    lw_kv_close(&session->kv);
    lw_states_close(&session->states);
    lw_block_unmap(&session->memory);
    for (size_t i = 0; session->of_kind != NULL && i < LW_N_KINDS; ++i) free(session->of_kind[i]);
    free(session->of_kind);
    free(session->places);
    free(session->kv_of);
    pthread_mutex_destroy(&session->lock);
    free(session);
}

lw_status lw_session_limit_threads(lw_session* session, uint32_t n_threads, uint32_t max_rows, uint32_t max_context) {
    if (session == NULL) return lw_fail(LW_ERR_ARGUMENT, "lw_session_limit_threads: session must not be NULL");
    if (n_threads < 1 || n_threads > session->config.n_threads)
        return lw_fail(LW_ERR_ARGUMENT, "lw_session_limit_threads: %u threads, must be 1 to the session's %u",
                       n_threads, session->config.n_threads);
    session->limit = (lw_step_limit){n_threads, max_rows, max_context};
    return LW_OK;
}

lw_status lw_session_hold_draws(lw_session* session) {
    if (session == NULL) return lw_fail(LW_ERR_ARGUMENT, "lw_session_hold_draws: session must not be NULL");
    lw_gate_hold(&session->draw_gate);
    return LW_OK;
}

lw_status lw_session_release_draws(lw_session* session) {
    if (session == NULL) return lw_fail(LW_ERR_ARGUMENT, "lw_session_release_draws: session must not be NULL");
    if (!lw_gate_release(&session->draw_gate))
        return lw_fail(LW_ERR_ARGUMENT, "lw_session_release_draws: nothing holds the draws");
    return LW_OK;
}

lw_status lw_session_counters(lw_session* session, lw_counters* out) {
    if (session == NULL || out == NULL)
        return lw_fail(LW_ERR_ARGUMENT, "lw_session_counters: session and out must not be NULL");
    pthread_mutex_lock(&session->lock);
    *out = session->published;
    pthread_mutex_unlock(&session->lock);
    return LW_OK;
}

lw_status lw_model_kv_layout(const lw_model* model, lw_type kv_type, uint32_t groups_by_window, lw_kv_layout* out) {
    if (model == NULL || out == NULL || !lw_is_kv_type(kv_type) || groups_by_window > 1)
        return lw_fail(LW_ERR_ARGUMENT,
                       "lw_model_kv_layout: model and out must not be NULL, kv_type must be F16 (1), F32 (0), I8 (24), "
                       "I4 (300) or I8_I4 (301), groups_by_window 0 or 1");
    if (model->config.pooled)
        return lw_fail(LW_ERR_ARGUMENT, "lw_model_kv_layout: the model is pooled: it has no cache");
    LW_RETURN_IF_FAILED(check_kv_type(model, kv_type));
    const lw_kv_groups groups = lw_group_layers(model, kv_type, groups_by_window != 0, NULL);
    const uint64_t slot_bytes = lw_kv_bytes(lw_largest_kv(model, kv_type), kv_type);
    *out = (lw_kv_layout){.block_bytes = slot_bytes * groups.n_slots,
                          .state_bytes = lw_state_place_bytes(model, 0),
                          .guess_bytes = lw_state_place_bytes(model, 1) - lw_state_place_bytes(model, 0),
                          .n_groups = groups.n_groups};
    for (uint32_t i = 0; i < groups.n_groups; ++i) out->windows[i] = groups.windows[i];
    return LW_OK;
}
