// All ways to run a step: at once, or started ahead of time. A thread of the session runs started steps
// one after the other, so that the next begins without waiting for the caller to wake.
#include "step/ahead.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "status.h"
#include "step/run.h"
#include "thread_pool.h"

typedef struct started_step {
    lw_batch batch;
    float* logits;
    lw_sampled* drawn;
    lw_status status;
    char error[256];  // why it failed
    lw_finished times;
} started_step;

struct lw_ahead {
    lw_session* session;
    pthread_t thread;
    pthread_mutex_t lock;  // of everything below
    pthread_cond_t begun;  // a step was started, or it is time to quit
    pthread_cond_t ended;  // a step has been run
    started_step steps[LW_STEPS_AHEAD];
    uint64_t n_started, n_run, n_finished;  // of all times; step i is in steps[i % LW_STEPS_AHEAD]
    bool failed;                            // a step has failed: steps started after it cannot be run
    bool quit;
};

static void run(lw_ahead* a, started_step* step) {
    step->times.begin_ns = lw_profile_now();
    step->status = lw_run_batch(a->session, &step->batch, step->logits, step->drawn);
    step->times.end_ns = lw_profile_now();
    if (step->status != LW_OK) snprintf(step->error, sizeof step->error, "%s", lw_last_error());
}

static void skip(started_step* step) {
    step->status = LW_ERR_ARGUMENT;
    strcpy(step->error, "the step before this one failed");
}

static void* runner(void* argument) {
    lw_ahead* a = argument;
    pthread_mutex_lock(&a->lock);
    for (;;) {
        while (a->n_run == a->n_started && !a->quit) pthread_cond_wait(&a->begun, &a->lock);
        if (a->n_run == a->n_started) break;
        started_step* step = &a->steps[a->n_run % LW_STEPS_AHEAD];
        if (a->failed || a->quit) {
            skip(step);
        } else {
            pthread_mutex_unlock(&a->lock);
            run(a, step);
            pthread_mutex_lock(&a->lock);
            a->failed = step->status != LW_OK;
        }
        ++a->n_run;
        // If another step is queued, it signals `ended` from `announce`.
        if (a->failed || a->n_run == a->n_started) pthread_cond_signal(&a->ended);
    }
    pthread_mutex_unlock(&a->lock);
    return NULL;
}

// Wakes the caller that waits for the step before the one that runs now. All threads work on the running step by then:
// the caller may take the CPU of one of them, and the others go on.
static void announce(lw_ahead* a) { pthread_cond_signal(&a->ended); }

static void free_ahead(lw_ahead* a) {
    pthread_cond_destroy(&a->begun);
    pthread_cond_destroy(&a->ended);
    pthread_mutex_destroy(&a->lock);
    free(a);
}

static lw_ahead* open_ahead(lw_session* session) {
    lw_ahead* a = calloc(1, sizeof *a);
    if (a == NULL) return NULL;
    a->session = session;
    pthread_condattr_t attributes;  // making these cannot fail on Linux
    pthread_mutex_init(&a->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&a->begun, NULL);
    pthread_cond_init(&a->ended, &attributes);
    pthread_condattr_destroy(&attributes);
    if (!lw_start_thread(&a->thread, NULL, runner, a)) {
        free_ahead(a);
        return NULL;
    }
    session->announce = announce;  // not without a thread: steps then run by themselves
    return a;
}

void lw_ahead_close(lw_ahead* a) {
    if (a == NULL) return;
    pthread_mutex_lock(&a->lock);
    a->quit = true;
    pthread_cond_signal(&a->begun);
    pthread_mutex_unlock(&a->lock);
    pthread_join(a->thread, NULL);
    free_ahead(a);
}

bool lw_steps_are_ahead(const lw_session* session) {
    // Only the thread that starts and finishes steps changes these counts.
    return session->ahead != NULL && session->ahead->n_started > session->ahead->n_finished;
}

lw_status lw_step(lw_session* session, const lw_batch* batch, float* logits, lw_sampled* drawn) {
    LW_RETURN_IF_FAILED(lw_check_step(session, batch, logits, drawn));
    if (lw_steps_are_ahead(session))
        return lw_fail(LW_ERR_ARGUMENT, "lw_step: a step that was started is not finished");
    const lw_status status = lw_run_batch(session, batch, logits, drawn);
    lw_note_begun(session, batch);
    if (status != LW_OK) session->n_drawn = 0;
    return status;
}

lw_status lw_session_start(lw_session* session, const lw_batch* batch, float* logits, lw_sampled* drawn) {
    LW_RETURN_IF_FAILED(lw_check_step(session, batch, logits, drawn));
    if (session->ahead == NULL) session->ahead = open_ahead(session);
    lw_ahead* a = session->ahead;
    if (a == NULL) return lw_fail(LW_ERR_MEMORY, "no memory or thread for steps started ahead");
    if (a->n_started - a->n_finished == LW_STEPS_AHEAD)
        return lw_fail(LW_ERR_ARGUMENT, "lw_session_start: %d steps are not finished, the most there may be",
                       LW_STEPS_AHEAD);
    lw_note_begun(session, batch);
    pthread_mutex_lock(&a->lock);
    a->steps[a->n_started++ % LW_STEPS_AHEAD] = (started_step){.batch = *batch, .logits = logits, .drawn = drawn};
    pthread_cond_signal(&a->begun);
    pthread_mutex_unlock(&a->lock);
    return LW_OK;
}

lw_status lw_session_await(lw_session* session, uint64_t timeout_ns, uint32_t* done) {
    if (session == NULL || done == NULL)
        return lw_fail(LW_ERR_ARGUMENT, "lw_session_await: session and done must not be NULL");
    if (!lw_steps_are_ahead(session)) return lw_fail(LW_ERR_ARGUMENT, "lw_session_await: no step was started");
    lw_ahead* a = session->ahead;
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    const uint64_t ns = (uint64_t)until.tv_nsec + timeout_ns % 1000000000u;
    until.tv_sec += (time_t)(timeout_ns / 1000000000u + ns / 1000000000u);
    until.tv_nsec = (long)(ns % 1000000000u);
    pthread_mutex_lock(&a->lock);
    int waited = 0;
    while (a->n_run == a->n_finished && waited != ETIMEDOUT)
        waited = pthread_cond_timedwait(&a->ended, &a->lock, &until);
    *done = a->n_run > a->n_finished;
    pthread_mutex_unlock(&a->lock);
    return LW_OK;
}

lw_status lw_session_finish(lw_session* session, lw_finished* out) {
    if (session == NULL || out == NULL)
        return lw_fail(LW_ERR_ARGUMENT, "lw_session_finish: session and out must not be NULL");
    if (!lw_steps_are_ahead(session)) return lw_fail(LW_ERR_ARGUMENT, "lw_session_finish: no step was started");
    lw_ahead* a = session->ahead;
    pthread_mutex_lock(&a->lock);
    while (a->n_run == a->n_finished) pthread_cond_wait(&a->ended, &a->lock);
    const started_step* step = &a->steps[a->n_finished++ % LW_STEPS_AHEAD];
    if (a->n_finished == a->n_started && a->failed) {
        a->failed = false;
        lw_forget_begun_guesses(&session->states);
    }
    *out = step->times;
    const lw_status status = step->status;
    if (status != LW_OK) {
        session->n_drawn = 0;
        lw_fail(status, "%s", step->error);
    }
    pthread_mutex_unlock(&a->lock);
    return status;
}
