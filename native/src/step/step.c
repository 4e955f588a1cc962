// Runs one step of a session, either at once or on the session's thread for steps started ahead.
#include "step/run.h"

void lw_count_native(lw_session* session, uint64_t start) {
    session->counters.native_seconds += 1e-9 * (double)(lw_profile_now() - start);
    pthread_mutex_lock(&session->lock);
    session->published = session->counters;
    pthread_mutex_unlock(&session->lock);
}

void lw_note_begun(lw_session* s, const lw_batch* batch) {
    s->n_drawn = batch->draws != NULL ? batch->n_logits : 0;
    if (batch->runs == LW_RUN_MODEL) lw_note_guesses(&s->states, s->states.n_begun, batch);
}

lw_status lw_run_batch(lw_session* s, const lw_batch* batch, float* logits, lw_sampled* drawn) {
    const uint64_t start = lw_profile_now();
    for (uint32_t i = 0; i < batch->n_block_copies; ++i)
        lw_kv_copy(&s->kv, s->groups.n_slots, batch->block_copies[2 * i], batch->block_copies[2 * i + 1]);
    if (batch->runs == LW_RUN_MODEL) lw_note_guesses(&s->states, s->states.n_guesses, batch);
    const lw_status status = lw_forward(s, batch, logits, drawn);
    if (status == LW_OK && batch->draws != NULL)
        for (uint32_t i = 0; i < batch->n_logits; ++i) s->drawn_tokens[i] = drawn[i].token;
    lw_count_native(s, start);
    return status;
}
