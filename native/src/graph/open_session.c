#include <stdlib.h>
#include <string.h>

#include "graph/ahead.h"
#include "graph/observe.h"
#include "graph/session.h"
#include "numa.h"
#include "ops/sample.h"
#include "status.h"

enum { MOST_GUESSES = 256 };

static size_t larger(size_t a, size_t b) { return a > b ? a : b; }

static void widen_by_state(lw_widths* widths, const lw_layer* layer) {
    const lw_state_config* c = &layer->config.state;
    if (c->kind == LW_NO_STATE) return;
    const size_t inner = lw_state_inner(c, (uint32_t)widths->hidden);
    widths->mixed_in = larger(widths->mixed_in, layer->state_in.rows);
    widths->mixed = larger(widths->mixed, inner);
    if (c->kind == LW_SHORT_CONV) return;
    widths->state_gate = larger(widths->state_gate, inner);
    widths->n_state_heads = larger(widths->n_state_heads, c->n_heads);
}

static void widen_by_attention(lw_widths* widths, const lw_attention_config* c) {
    const size_t q = (size_t)c->n_heads * larger(c->head_dim, lw_output_dim(c));
    widths->q = larger(widths->q, q);
    widths->kv = larger(widths->kv, (size_t)c->n_kv_heads * lw_key_dim(c));
    widths->half = larger(widths->half, c->head_dim / 2);
    if (c->n_heads > 0) widths->tile_jobs = larger(widths->tile_jobs, lw_tile_jobs(c, c->n_heads));
    if (c->output_gate) widths->attn_gate = larger(widths->attn_gate, q);
    if (c->latent_rank == 0) return;
    widths->query_rank = larger(widths->query_rank, c->query_rank);
    widths->absorbed = larger(widths->absorbed, (size_t)c->n_heads * lw_key_dim(c));
    widths->latents = larger(widths->latents, (size_t)c->n_heads * c->latent_rank);
    widths->latent_heads = larger(widths->latent_heads, c->n_heads);
    widths->head_part = larger(widths->head_part, larger(c->head_dim - c->rope_dim, c->latent_rank));
}

static void widen(lw_widths* widths, const lw_layer* layer, bool float_activations) {
    const lw_ffn_config* c = &layer->config.ffn;
    widen_by_attention(widths, &layer->config.attention);
    widen_by_state(widths, layer);
    if (c->kind != LW_FFN_EXPERTS) {
        widths->gated = larger(widths->gated, c->size);
        return;
    }
    widths->gated = larger(widths->gated, c->shared_size);
    widths->shared = larger(widths->shared, c->shared_size);
    widths->expert = larger(widths->expert, c->size);
    widths->n_experts = larger(widths->n_experts, c->n_experts);
    widths->n_used = larger(widths->n_used, c->n_used);
    widths->float_experts |= float_activations || !lw_is_quantized(layer->experts_up.type) ||
                             (!c->ungated && !lw_is_quantized(layer->experts_gate.type));
}

static void measure(lw_session* s) {
    s->widths = (lw_widths){.hidden = s->model->config.hidden_size, .gated = s->model->config.per_layer_size};
    s->widths.mtp = lw_model_mtp(s->model) != NULL ? 2 * s->widths.hidden : 0;
    for (uint32_t i = 0; i < s->model->config.n_layers; ++i)
        widen(&s->widths, &s->model->layers[i], s->config.float_activations);
    for (uint32_t i = 0; s->model->config.pooled && i <= s->model->config.n_dense; ++i)
        s->widths.dense = larger(s->widths.dense, lw_dense_inputs(s->model, i));
}

static size_t widest_input(const lw_widths* w) {
    const size_t of_ffn = larger(larger(larger(w->gated, w->expert), w->dense), w->mtp);
    const size_t of_attention = larger(larger(w->q, w->query_rank), w->head_part);
    return lw_round_up(larger(larger(larger(w->hidden, of_attention), w->mixed), of_ffn), LW_SEGMENT);
}

static bool are_tiled_alike(const lw_tiling* t, const lw_attention_config* c) {
    return t->window == c->window && t->both_ways == c->both_ways && t->heads->n_heads == c->n_heads &&
           t->heads->n_kv_heads == c->n_kv_heads && lw_key_dim(t->heads) == lw_key_dim(c) &&
           lw_result_dim(t->heads) == lw_result_dim(c);
}

// Gives each way in which the model's layers see, and each kind of heads, a tiling; returns how many there are.
static size_t find_tilings(lw_session* s) {
    size_t n = 0;
    for (uint32_t i = 0; i < s->model->config.n_layers; ++i) {
        if (!lw_has_attention(&s->model->layers[i])) continue;
        const lw_attention_config* c = &s->model->layers[i].config.attention;
        size_t at = 0;
        while (at < n && !are_tiled_alike(&s->tilings[at], c)) ++at;
        s->tiling_of[i] = (uint16_t)at;
        if (at == n) s->tilings[n++] = (lw_tiling){.window = c->window, .both_ways = c->both_ways, .heads = c};
    }
    return n;
}

// Hands out parts of one block; with base NULL it only adds up their sizes.
typedef struct arena {
    uint8_t* base;
    size_t used;
} arena;

static void* take(arena* a, size_t bytes) {
    void* part = a->base ? a->base + a->used : NULL;
    a->used = lw_round_up(a->used + bytes, 64);
    return part;
}

static lw_codes take_codes(arena* a, const lw_model* model, size_t rows, size_t widest) {
    const size_t segments = widest / LW_SEGMENT, groups = segments * LW_SEGMENT_GROUPS;
    lw_activations x = {.rows = rows, .cols = widest};
    lw_lay_out_activations(&x, lw_level_layouts[model->level]);
    return (lw_codes){.q = take(a, (rows + 1) * lw_activation_stride(widest)),
                      .scales = take(a, lw_scale_floats(&x) * sizeof(float)),
                      .totals = take(a, (rows + 1) * (lw_activation_stride(widest) / 16) * sizeof(int32_t)),
                      .sums = model->has_minimums ? take(a, rows * segments * LW_SUMS * sizeof(float)) : NULL,
                      .outlying = take(a, rows * segments),
                      .outliers = take(a, rows * groups * sizeof(lw_outlier))};
}

// Whether in some layer an FFN reads what attention beside it does.
static bool has_parts_beside(const lw_model* model) {
    for (uint32_t i = 0; i < model->config.n_layers; ++i)
        if (model->layers[i].config.wiring != LW_IN_TURN) return true;
    return false;
}

static void take_buffers(arena* a, lw_session* s) {
    const lw_widths* w = &s->widths;
    const lw_model* model = s->model;
    lw_buffers* b = &s->b;
    const size_t rows = s->config.max_batch_tokens, row = rows * sizeof(float);
    const size_t ffn = lw_round_up(w->gated, LW_SEGMENT);
    b->x = take(a, row * w->hidden);
    b->norm = take(a, row * w->hidden);
    b->before = has_parts_beside(model) ? take(a, row * w->hidden) : NULL;
    b->q = take(a, row * w->q);
    b->k = take(a, row * w->kv);
    b->v = take(a, row * w->kv);
    b->attn = take(a, row * w->q);
    b->latent_query = take(a, row * w->query_rank);
    b->absorbed = take(a, row * w->absorbed);
    b->latents = take(a, row * w->latents);
    const size_t mtp = lw_model_mtp(model) != NULL ? w->hidden : 0;
    b->hidden = take(a, row * mtp);
    b->mtp_inputs = take(a, row * 2 * mtp);
    b->predicted = take(a, s->config.n_states * mtp * sizeof(float));
    b->layer_inputs = take(a, row * model->config.n_layers * model->config.per_layer_size);
    b->attn_gate = take(a, row * w->attn_gate);
    b->mixed_in = take(a, row * w->mixed_in);
    b->mixed = take(a, row * w->mixed);
    b->state_gate = take(a, row * w->state_gate);
    b->decay = take(a, row * w->n_state_heads);
    b->beta = take(a, row * w->n_state_heads);
    const size_t accepted = (size_t)s->config.n_states * s->config.max_guesses * sizeof(float);
    b->accepted_in = take(a, accepted * (w->n_state_heads > 0 ? w->mixed_in : 0));
    b->accepted_decay = take(a, accepted * w->n_state_heads);
    b->accepted_beta = take(a, accepted * w->n_state_heads);
    b->gate = take(a, row * ffn);
    b->up = take(a, row * ffn);
    for (uint32_t i = 0; i < model->config.n_ropes; ++i) {
        b->cosine[i] = take(a, row * (model->ropes[i].rotated / 2));
        b->sine[i] = take(a, row * (model->ropes[i].rotated / 2));
    }
    b->token = take(a, rows * sizeof *b->token);
    b->sequence = take(a, rows * sizeof *b->sequence);
    b->position = take(a, rows * sizeof *b->position);
    b->token_type = take(a, model->config.pooled ? rows * sizeof *b->token_type : 0);
    for (size_t i = 0; i < 2; ++i) b->pooled[i] = take(a, model->config.n_dense > 0 ? row * w->dense : 0);
    b->codes = take_codes(a, model, rows, widest_input(w));
    b->ffn_codes = take_codes(a, model, rows, ffn);
    const size_t of_heads = w->latent_heads * lw_round_up(rows, 2);  // rows may lie in pairs
    b->head_codes = take_codes(a, model, of_heads, lw_round_up(w->head_part, LW_SEGMENT));
}

static void take_experts(arena* a, lw_session* s) {
    const lw_widths* w = &s->widths;
    if (w->n_experts == 0) return;
    lw_expert_buffers* e = &s->b.experts;
    const size_t rows = s->config.max_batch_tokens, chosen = rows * w->n_used, row = chosen * sizeof(float);
    const size_t groups = larger(w->n_experts < chosen ? w->n_experts : chosen, 1) + 1;
    const size_t gathered = chosen + groups;  // rows lie in pairs
    const size_t hidden = lw_round_up(w->hidden, LW_SEGMENT), size = lw_round_up(w->expert, LW_SEGMENT);
    const size_t activated = chosen * size + rows * lw_round_up(w->shared, LW_SEGMENT);
    e->scores = take(a, rows * w->n_experts * sizeof(float));
    e->experts = take(a, chosen * sizeof *e->experts);
    e->weights = take(a, rows * (w->n_used + 1) * sizeof(float));
    e->slots = take(a, chosen * sizeof *e->slots);
    e->sources = take(a, chosen * sizeof *e->sources);
    e->counts = take(a, w->n_experts * sizeof *e->counts);
    e->groups = take(a, groups * sizeof *e->groups);
    e->most_runs = larger(size, lw_round_up(w->shared, LW_SEGMENT)) / LW_SEGMENT;
    e->runs_done = take(a, groups * e->most_runs * sizeof *e->runs_done);
    e->in = take_codes(a, s->model, gathered, hidden);
    e->activated = take_codes(a, s->model, gathered, size);
    e->in_values = take(a, w->float_experts ? row * w->hidden : 0);
    e->gate = take(a, activated * sizeof(float));
    e->up = take(a, activated * sizeof(float));
    e->out = take(a, row * w->hidden + rows * sizeof(float) * (w->shared > 0 ? w->hidden : 0));
}

static void take_texts(arena* a, lw_session* s) {
    if (!s->model->config.pooled) return;
    const size_t texts = s->config.max_batch_logits * sizeof(uint32_t);
    s->first_blocks = take(a, texts);
    s->no_context = take(a, texts);
    s->kept_rows = take(a, texts);
    s->all_blocks = take(a, s->config.n_blocks * sizeof *s->all_blocks);
    for (uint32_t i = 0; a->base != NULL && i < s->config.n_blocks; ++i) s->all_blocks[i] = i;
}

static void take_adapted(arena* a, lw_session* s) {
    const size_t rows = s->config.max_batch_tokens, rank = s->config.max_adapter_rank;
    if (rank == 0) return;
    for (size_t i = 0; i < 2; ++i) s->b.spans[i] = take(a, rows * sizeof(lw_span));
    for (size_t i = 0; i < LW_ADAPTED_TOGETHER; ++i) s->b.addends[i] = take(a, rows * sizeof(lw_addend));
    s->b.partial = take(a, rows * s->partial_floats * sizeof(float));
    s->b.low = take(a, rows * LW_ADAPTED_TOGETHER * rank * sizeof(float));
    s->b.parts_done = take(a, rows * LW_ADAPTED_TOGETHER * sizeof *s->b.parts_done);
}

static void take_all(arena* a, lw_session* s) {
    const size_t rows = s->config.max_batch_tokens, threads = s->config.n_threads;
    const size_t hidden = lw_round_up(s->widths.hidden, LW_SEGMENT);
    const size_t segments = lw_round_up(s->widths.gated, LW_SEGMENT) / LW_SEGMENT;
    take_buffers(a, s);
    take_experts(a, s);
    take_adapted(a, s);
    take_texts(a, s);
    for (size_t i = 0; i < s->n_tilings; ++i)
        s->tilings[i].tiles = take(a, (rows + s->split_tiles) * sizeof *s->tilings[i].tiles);
    s->b.split_states = take(a, s->split_floats * sizeof(float));
    s->b.splits_done = take(a, s->split_tiles * s->widths.tile_jobs * sizeof *s->b.splits_done);
    s->phases = take(a, s->n_phases * sizeof *s->phases);
    s->run_panels_done = take(a, segments * LW_MAX_CUTS * sizeof *s->run_panels_done);
    s->drawn_tokens = take(a, s->config.max_batch_logits * sizeof *s->drawn_tokens);
    s->own = take(a, threads * sizeof *s->own);
    s->copies = take(a, threads * sizeof *s->copies);
    for (size_t i = 0; i < threads; ++i) {
        const lw_own own = {.codes = take_codes(a, s->model, LW_OWN_ROWS, hidden),
                            .norm = take(a, LW_OWN_ROWS * hidden * 4)};
        if (a->base) s->own[i] = own;
    }
    if (s->config.observe_inputs) s->observed = take(a, threads * lw_observed_cells(s) * sizeof *s->observed);
    a->used = lw_round_up(a->used, 4096);
    s->scratch = take(a, threads * s->scratch_bytes);
    s->draw_scratch = take(a, threads * s->draw_scratch_bytes);
}

static size_t attention_scratch_bytes(const lw_session* s) {
    size_t floats = 0;
    for (size_t i = 0; i < s->n_tilings; ++i) {
        const lw_attention_config* c = s->tilings[i].heads;
        // With most jobs a tile is as many rows as it can be.
        const size_t jobs = lw_tile_jobs(c, c->n_heads), dim = lw_align_floats(lw_key_dim(c));
        floats = larger(floats, lw_attention_scratch_floats(lw_tile_tokens(c, jobs), c->n_heads / jobs, dim));
    }
    return floats * sizeof(float);
}

static bool open_memory(lw_session* s) {
    const lw_model_config* c = &s->model->config;
    s->n_tilings = find_tilings(s);
    size_t scratch = lw_matmul_scratch_bytes(s->config.max_batch_tokens);
    const size_t attention = attention_scratch_bytes(s);
    if (s->config.float_activations)
        scratch = lw_decoded_scratch_bytes(s->config.max_batch_tokens, widest_input(&s->widths));
    if (attention > scratch) scratch = attention;
    if (c->hidden_size * sizeof(float) > scratch) scratch = c->hidden_size * sizeof(float);  // a row before its order
    for (uint32_t i = 0; s->config.max_guesses > 0 && i < c->n_layers; ++i)                  // a piece of a state
        scratch = larger(scratch, s->model->layers[i].config.state.key_dim * LW_RECUR_COLUMNS * sizeof(float));
    scratch = larger(scratch, (size_t)c->n_layers * c->per_layer_size * sizeof(float));
    s->scratch_bytes = lw_round_up(scratch, 4096);
    s->draw_scratch_bytes = c->pooled ? 0 : lw_round_up(lw_sample_scratch_bytes(c->vocab_size), 4096);
    lw_size_splits(s);
    s->partial_floats = lw_partial_floats(s);
    s->n_phases = (size_t)c->n_layers * 32 + 32;
    arena a = {0};
    take_all(&a, s);
    if (!lw_block_map(a.used, &s->memory)) return false;
    a = (arena){.base = s->memory.data};
    take_all(&a, s);
    for (uint32_t i = 0; i < s->config.n_threads; ++i)
        s->copies[i] = lw_model_copy(s->model, s->config.copies != NULL ? s->config.copies[i] : 0);
    if (!lw_kv_open(&s->kv, s->groups.n_slots)) return false;
    for (uint32_t i = 0; i < c->n_layers; ++i)
        if (lw_has_attention(&s->model->layers[i]))
            s->kv_of[i] = lw_kv_part(&s->kv, &s->model->layers[i].config.attention, s->places[i].offset);
    lw_place_block(&s->model->nodes, &s->kv.block);
    if (!lw_states_open(s->model, s->config.n_states, s->config.max_guesses, &s->states)) return false;
    if (s->states.block.data != NULL) lw_place_block(&s->model->nodes, &s->states.block);
    return true;
}

static lw_status check_config(const lw_session_config* c, bool pooled) {
    if (c->n_threads < 1 || c->n_threads > 256)
        return lw_fail(LW_ERR_ARGUMENT, "session: %u threads, must be 1 to 256", c->n_threads);
    if (c->n_blocks < 1 && !pooled) return lw_fail(LW_ERR_ARGUMENT, "session: n_blocks is 0, must be at least 1");
    if (c->max_batch_tokens < 1 || c->max_batch_tokens > 65536)
        return lw_fail(LW_ERR_ARGUMENT, "session: max_batch_tokens is %u, must be 1 to 65536", c->max_batch_tokens);
    if (c->max_batch_logits < 1 || c->max_batch_logits > c->max_batch_tokens)
        return lw_fail(LW_ERR_ARGUMENT, "session: max_batch_logits is %u, must be 1 to max_batch_tokens (%u)",
                       c->max_batch_logits, c->max_batch_tokens);
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
        return lw_fail(LW_ERR_ARGUMENT, "session: kv_type %d, must be F16 (1), F32 (0) or I8 (24)", (int)c->kv_type);
    return LW_OK;
}

static lw_status check_states(const lw_model* model, uint32_t n_states, uint32_t max_guesses) {
    const bool has_states = lw_state_place_bytes(model, 0) > 0;
    if (max_guesses > (has_states ? MOST_GUESSES : 0))
        return lw_fail(LW_ERR_ARGUMENT, "session: max_guesses is %u, must be %s", max_guesses,
                       has_states ? "at most 256" : "0: no layer of the model has a state");
    if (has_states == (n_states > 0)) return LW_OK;
    return lw_fail(
        LW_ERR_ARGUMENT, "session: n_states is %u, must be %s", n_states,
        has_states ? "at least 1: layers of the model have a state" : "0: no layer of the model has a state");
}

static lw_status check_kv_type(const lw_model* model, lw_type kv_type) {
    for (uint32_t i = 0; kv_type == LW_I8 && i < model->config.n_layers; ++i) {
        const lw_attention_config* c = &model->layers[i].config.attention;
        if (c->alibi || c->latent_rank > 0)
            return lw_fail(LW_ERR_ARGUMENT, "session: kv_type I8 (24), must be F16 or F32 where %s",
                           c->alibi ? "scores fall by distance" : "attention is latent");
    }
    return LW_OK;
}

static lw_status check_places(const lw_model* model, const lw_session_config* c) {
    for (uint32_t i = 0; c->copies != NULL && i < c->n_threads; ++i)
        if (c->copies[i] > model->n_copies)
            return lw_fail(LW_ERR_ARGUMENT, "session: copies[%u] is %u, the model has %u", i, c->copies[i],
                           1 + model->n_copies);
    return c->cpus != NULL ? lw_check_cpus("session", c->cpus, c->n_threads) : LW_OK;
}

lw_status lw_session_open(const lw_model* model, const lw_session_config* config, lw_session** out) {
    if (model == NULL || config == NULL || out == NULL)
        return lw_fail(LW_ERR_ARGUMENT, "lw_session_open: model, config and out must not be NULL");
    if (!model->finished) return lw_fail(LW_ERR_ARGUMENT, "lw_session_open: the model is not finished");
    LW_RETURN_IF_FAILED(check_config(config, model->config.pooled != 0));
    LW_RETURN_IF_FAILED(check_places(model, config));
    LW_RETURN_IF_FAILED(check_kv_type(model, config->kv_type));
    LW_RETURN_IF_FAILED(check_states(model, config->n_states, config->max_guesses));
    lw_session* s = aligned_alloc(_Alignof(lw_session), sizeof *s);
    if (s == NULL) return lw_fail(LW_ERR_MEMORY, "no memory for a session");
    memset(s, 0, sizeof *s);
    pthread_mutex_init(&s->lock, NULL);  // cannot fail on Linux
    s->model = model;
    s->config = *config;
    // Each text has a block that is not full at most.
    if (model->config.pooled)
        s->config.n_blocks = config->max_batch_tokens / LW_BLOCK_TOKENS + config->max_batch_logits;
    lw_kv_describe(lw_largest_kv(model, config->kv_type), config->kv_type, s->config.n_blocks, &s->kv);
    measure(s);
    s->tilings = calloc(model->config.n_layers, sizeof *s->tilings);
    s->tiling_of = calloc(model->config.n_layers, sizeof *s->tiling_of);
    s->places = calloc(model->config.n_layers, sizeof *s->places);
    s->kv_of = calloc(model->config.n_layers, sizeof *s->kv_of);
    if (s->places != NULL)
        s->groups = lw_group_layers(model, config->kv_type, config->groups_by_window != 0, s->places);
    s->pool = lw_pool_open(config->n_threads, config->cpus);
    if (s->pool != NULL && config->n_cpus > 0) lw_pool_limit_cpus(s->pool, config->n_cpus);
    if (s->tilings == NULL || s->tiling_of == NULL || s->places == NULL || s->kv_of == NULL || s->pool == NULL ||
        !open_memory(s)) {
        lw_session_close(s);
        return lw_fail(LW_ERR_MEMORY, "no memory or threads for a session of %u blocks, %u tokens and %u threads",
                       config->n_blocks, config->max_batch_tokens, config->n_threads);
    }
    s->config.cpus = s->config.copies = NULL;  // borrowed for the call
    *out = s;
    return LW_OK;
}

void lw_session_close(lw_session* session) {
    if (session == NULL) return;
    atomic_store(&session->closing, true);
    while (lw_gate_release(&session->draws)) continue;  // wakes waiters: they see `closing` and draw nothing
    lw_ahead_close(session->ahead);
    lw_pool_close(session->pool);
    lw_profile_close(session->profile);
    lw_kv_close(&session->kv);
    lw_states_close(&session->states);
    lw_block_unmap(&session->memory);
    free(session->tilings);
    free(session->tiling_of);
    free(session->places);
    free(session->kv_of);
    pthread_mutex_destroy(&session->lock);
    free(session);
}

lw_status lw_session_hold_draws(lw_session* session) {
    if (session == NULL) return lw_fail(LW_ERR_ARGUMENT, "lw_session_hold_draws: session must not be NULL");
    lw_gate_hold(&session->draws);
    return LW_OK;
}

lw_status lw_session_release_draws(lw_session* session) {
    if (session == NULL) return lw_fail(LW_ERR_ARGUMENT, "lw_session_release_draws: session must not be NULL");
    if (!lw_gate_release(&session->draws))
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
