// lw_sample: one token for every row of logits, rows shared out among the session's threads.
#include <math.h>
#include <stdatomic.h>

#include "graph/session.h"
#include "ops/sample.h"
#include "status.h"

typedef struct draw_job {
    lw_session* session;
    const float* logits;
    uint32_t n_rows;
    const lw_sampling* params;
    lw_sampled* out;
    lw_work rows;
    atomic_uint failed_row;  // 1 + row
    atomic_int failure;
} draw_job;

static void draw_worker(void* context, unsigned thread) {
    draw_job* job = context;
    const lw_session* s = job->session;
    const size_t vocab = s->model->config.vocab_size;
    const lw_sample_scratch scratch = lw_sample_scratch_at(s->draw_scratch + thread * s->draw_scratch_bytes, vocab);
    lw_profile_thread* profile = lw_session_profile_thread(s, thread);
    lw_profile_begin(profile);
    size_t row, end;
    while (lw_work_take(&job->rows, job->n_rows, 1, &row, &end)) {
        const lw_draw result =
            lw_sample_row(s->model->ops, job->logits + row * vocab, vocab, &job->params[row], scratch, &job->out[row]);
        if (result != LW_DRAWN) {
            atomic_store(&job->failure, (int)result);
            atomic_store(&job->failed_row, (unsigned)row + 1);
        }
        lw_profile_work(profile, LW_OP_SAMPLE, 0, vocab * sizeof(float), 0);
    }
    if (profile == NULL) return;  // the pool waits for all threads anyway
    lw_pool_barrier(s->pool);
    lw_profile_wait(profile, LW_OP_SAMPLE);
}

static lw_status check_ids(const char* what, uint32_t row, const uint32_t* ids, uint32_t n, uint32_t vocab) {
    for (uint32_t i = 0; i < n; ++i)
        if (ids[i] >= vocab)
            return lw_fail(LW_ERR_ARGUMENT, "sampling row %u: %s token %u, the vocabulary has %u", row, what, ids[i],
                           vocab);
    return LW_OK;
}

static lw_status check_params(uint32_t row, const lw_sampling* p, uint32_t vocab) {
    if (!(p->temperature >= 0 && p->temperature <= 1e6f))
        return lw_fail(LW_ERR_ARGUMENT, "sampling row %u: temperature %g, must be 0 to 1e6", row,
                       (double)p->temperature);
    if (!(p->top_p > 0 && p->top_p <= 1))
        return lw_fail(LW_ERR_ARGUMENT, "sampling row %u: top_p %g, must be above 0 and at most 1", row,
                       (double)p->top_p);
    if (!(p->min_p >= 0 && p->min_p <= 1))
        return lw_fail(LW_ERR_ARGUMENT, "sampling row %u: min_p %g, must be 0 to 1", row, (double)p->min_p);
    if (!(p->repetition_penalty > 0 && isfinite(p->repetition_penalty)))
        return lw_fail(LW_ERR_ARGUMENT, "sampling row %u: repetition_penalty %g, must be positive", row,
                       (double)p->repetition_penalty);
    if (!isfinite(p->presence_penalty) || !isfinite(p->frequency_penalty))
        return lw_fail(LW_ERR_ARGUMENT, "sampling row %u: penalties must be finite", row);
    if (p->n_top_logprobs > LW_MAX_TOP_LOGPROBS)
        return lw_fail(LW_ERR_ARGUMENT, "sampling row %u: n_top_logprobs %u, must be at most %d", row,
                       p->n_top_logprobs, LW_MAX_TOP_LOGPROBS);
    if (p->n_prompt > p->n_history)
        return lw_fail(LW_ERR_ARGUMENT, "sampling row %u: n_prompt %u exceeds n_history %u", row, p->n_prompt,
                       p->n_history);
    if (p->forced_token >= (int64_t)vocab)
        return lw_fail(LW_ERR_ARGUMENT, "sampling row %u: forced_token %lld, the vocabulary has %u", row,
                       (long long)p->forced_token, vocab);
    LW_RETURN_IF_FAILED(check_ids("history", row, p->history, p->n_history, vocab));
    return check_ids("bias", row, p->bias_ids, p->n_bias, vocab);
}

lw_status lw_sample(lw_session* session, const float* logits, uint32_t n_rows, const lw_sampling* params,
                    lw_sampled* out) {
    if (session == NULL || (n_rows > 0 && (logits == NULL || params == NULL || out == NULL)))
        return lw_fail(LW_ERR_ARGUMENT, "lw_sample: session, logits, params and out must not be NULL");
    const uint64_t start = lw_profile_now();
    for (uint32_t i = 0; i < n_rows; ++i)
        LW_RETURN_IF_FAILED(check_params(i, &params[i], session->model->config.vocab_size));
    draw_job job = {.session = session, .logits = logits, .n_rows = n_rows, .params = params, .out = out};
    lw_pool_run(session->pool, draw_worker, &job);
    lw_session_add_time(session, start);
    const unsigned failed = atomic_load(&job.failed_row);
    if (failed == 0) return LW_OK;
    if (atomic_load(&job.failure) == LW_DRAW_NOTHING_ALLOWED)
        return lw_fail(LW_ERR_ARGUMENT, "sampling row %u: bias and mask allow no token", failed - 1);
    return lw_fail(LW_ERR_NONFINITE, "sampling row %u: the logits hold NaN or infinity", failed - 1);
}
