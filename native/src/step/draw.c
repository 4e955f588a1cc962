// The last phase of a step: one token is drawn for every row of logits. Threads share out the rows.
#include <math.h>

#include "ops/sample.h"
#include "status.h"
#include "step/run.h"

// Waits until all holds on the session's draws are released. Before that the caller may still be writing masks.
static void wait_for_masks(lw_worker* w) {
    if (lw_gate_is_open(&w->s->draw_gate)) return;
    const uint64_t start = lw_profile_now();
    lw_gate_wait(&w->s->draw_gate);
    if (w->thread == 0) w->s->counters.held_seconds += 1e-9 * (double)(lw_profile_now() - start);
    lw_profile_wait(w->profile, LW_OP_SAMPLE);
}

// The input token of a row of logits if the step before drew it. Otherwise NULL: the caller knew the token.
static const uint32_t* token_drawn_before(const lw_worker* w, size_t row) {
    const lw_batch* batch = w->step->batch;
    const uint32_t id = batch->token_ids[batch->logit_rows[row]];
    return (id & LW_DRAWN_BEFORE) != 0 ? &w->s->drawn_tokens[id & ~(uint32_t)LW_DRAWN_BEFORE] : NULL;
}

void lw_draw_rows(lw_worker* w) {
    lw_step_state* step = w->step;
    if (step->batch->draws == NULL || atomic_load(&step->non_finite)) return;
    wait_for_masks(w);
    const size_t vocab = w->c->vocab_size, rows = atomic_load(&w->s->closing) ? 0 : w->rows;
    const lw_sample_scratch scratch =
        lw_sample_scratch_at(w->s->draw_scratch + w->thread * w->s->draw_scratch_bytes, vocab);
    lw_taker items = lw_this_phase(w, rows);
    for (size_t row; lw_take_item(&items, &row);) {
        step->drawn[row] = lw_sample_row(w->ops, step->logits + row * vocab, vocab, &step->batch->draws[row],
                                         token_drawn_before(w, row), scratch);
        lw_charge_row(w, LW_OP_SAMPLE, vocab, 0);
    }
    if (w->profile != NULL) lw_end_phase(w, LW_OP_SAMPLE);  // without a profile the end of the run is barrier enough
}

static lw_status check_ids(const char* what, uint32_t row, const uint32_t* ids, uint32_t n, uint32_t vocab) {
    for (uint32_t i = 0; i < n; ++i)
        if (ids[i] >= vocab)
            return lw_fail(LW_ERR_ARGUMENT, "draw %u: %s token %u, the vocabulary has %u", row, what, ids[i], vocab);
    return LW_OK;
}

static lw_status check_range(uint32_t row, const char* field, float value, bool ok, const char* must_be) {
    if (ok) return LW_OK;  // comparisons with NaN are false, so NaN is refused
    return lw_fail(LW_ERR_ARGUMENT, "draw %u: %s %g, must be %s", row, field, (double)value, must_be);
}

static lw_status check_bias(uint32_t row, const lw_sampling* p, uint32_t vocab) {
    if (p->n_bias > 0 && (p->bias_ids == NULL || p->bias_values == NULL))
        return lw_fail(LW_ERR_ARGUMENT, "draw %u: bias_ids and bias_values must not be NULL", row);
    for (uint32_t i = 0; i < p->n_bias; ++i) {
        const float value = p->bias_values[i];
        LW_RETURN_IF_FAILED(check_range(row, "bias", value, value < INFINITY, "a number below infinity"));
    }
    return check_ids("bias", row, p->bias_ids, p->n_bias, vocab);
}

static lw_status check_sampling(uint32_t row, const lw_sampling* p) {
    const float t = p->temperature, repetition = p->repetition_penalty;
    LW_RETURN_IF_FAILED(check_range(row, "temperature", t, t >= 0 && t <= 1e6f, "0 to 1e6"));
    LW_RETURN_IF_FAILED(check_range(row, "top_p", p->top_p, p->top_p > 0 && p->top_p <= 1, "above 0 and at most 1"));
    LW_RETURN_IF_FAILED(check_range(row, "min_p", p->min_p, p->min_p >= 0 && p->min_p <= 1, "0 to 1"));
    LW_RETURN_IF_FAILED(
        check_range(row, "repetition_penalty", repetition, repetition > 0 && isfinite(repetition), "positive"));
    if (!isfinite(p->presence_penalty) || !isfinite(p->frequency_penalty))
        return lw_fail(LW_ERR_ARGUMENT, "draw %u: penalties must be finite", row);
    if (p->n_top_logprobs > LW_MAX_TOP_LOGPROBS)
        return lw_fail(LW_ERR_ARGUMENT, "draw %u: n_top_logprobs %u, must be at most %d", row, p->n_top_logprobs,
                       LW_MAX_TOP_LOGPROBS);
    return LW_OK;
}

static lw_status check_draw(uint32_t row, const lw_draw* d, uint32_t vocab) {
    if (d->sampling == NULL) return lw_fail(LW_ERR_ARGUMENT, "draw %u: sampling must not be NULL", row);
    LW_RETURN_IF_FAILED(check_sampling(row, d->sampling));
    LW_RETURN_IF_FAILED(check_bias(row, d->sampling, vocab));
    if (d->sampling->top_ids != NULL)
        LW_RETURN_IF_FAILED(check_ids("top", row, d->sampling->top_ids, d->sampling->n_top_logprobs, vocab));
    if (d->n_prompt > d->n_history)
        return lw_fail(LW_ERR_ARGUMENT, "draw %u: n_prompt %u exceeds n_history %u", row, d->n_prompt, d->n_history);
    if (d->n_history > 0 && d->history == NULL)
        return lw_fail(LW_ERR_ARGUMENT, "draw %u: history must not be NULL", row);
    if (d->forced_token >= (int64_t)vocab)
        return lw_fail(LW_ERR_ARGUMENT, "draw %u: forced_token %lld, the vocabulary has %u", row,
                       (long long)d->forced_token, vocab);
    return check_ids("history", row, d->history, d->n_history, vocab);
}

lw_status lw_check_draws(const lw_session* s, const lw_batch* batch) {
    if (batch->draws == NULL) return LW_OK;
    for (uint32_t i = 0; i < batch->n_logits; ++i)
        LW_RETURN_IF_FAILED(check_draw(i, &batch->draws[i], s->model->config.vocab_size));
    return LW_OK;
}
