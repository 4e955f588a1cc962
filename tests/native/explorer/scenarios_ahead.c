// Steps begun ahead (graph/ahead.c), with draws that another thread releases.
#include "explorer.h"
#include "graph/session.h"
#include "scenarios.h"
#include "status.h"
#include "step/ahead.h"
#include "system.h"

enum { FAILS = 7 };

lw_status lw_fail(lw_status status, const char* format, ...) {
    (void)format;
    return status;
}
const char* lw_last_error(void) { return "why"; }
lw_status lw_check_step(const lw_session* s, const lw_batch* batch, const float* logits, const lw_sampled* drawn) {
    (void)s, (void)batch, (void)logits, (void)drawn;
    return LW_OK;
}
void lw_note_begun(lw_session* s, const lw_batch* batch) { s->n_drawn = batch->n_logits; }

void lw_forget_begun_guesses(const lw_states* states) { (void)states; }

// A step that reads its batch and what the step before it drew, waits for its mask, and writes what it has drawn.
lw_status lw_run_batch(lw_session* s, const lw_batch* batch, float* logits, lw_sampled* drawn) {
    s->announce(s->ahead);
    if (batch->token_ids[0] == FAILS) return LW_ERR_NONFINITE;
    if (!lw_gate_is_open(&s->draw_gate)) lw_gate_wait(&s->draw_gate);
    *logits = (float)(batch->token_ids[0] + *s->drawn_tokens);
    drawn->token = (uint32_t)*logits + (batch->block_copies != NULL ? *batch->block_copies : 0);
    *s->drawn_tokens = drawn->token;
    ++s->counters.steps;
    return LW_OK;
}

typedef struct step {
    uint32_t token;
    lw_batch batch;
    float logits;
    lw_sampled drawn;
} step;

static lw_session* open_session(void) {
    lw_session* s = calloc(1, sizeof *s);
    s->drawn_tokens = calloc(1, sizeof *s->drawn_tokens);
    return s;
}

static void close_session(lw_session* s) {
    lw_ahead_close(s->ahead);
    free(s->drawn_tokens);
    free(s);
}

static void start(lw_session* s, step* one, uint32_t token, const uint32_t* mask) {
    *one = (step){.token = token};
    one->batch = (lw_batch){.n_logits = 1, .token_ids = &one->token, .block_copies = mask};
    expect(lw_session_start(s, &one->batch, &one->logits, &one->drawn) == LW_OK);
}

static void finish(lw_session* s, step* one, lw_status status, uint32_t drawn) {
    lw_finished times;
    expect(lw_session_finish(s, &times) == status);
    expect(one->drawn.token == drawn);
    *one = (step){0};  // it is ours again
}

static void await_one(lw_session* s) {
    for (uint32_t done = 0; !done;) expect(lw_session_await(s, 1, &done) == LW_OK);
}

void steps_ahead(void) {
    lw_session* s = open_session();
    step a, b;
    start(s, &a, 1, NULL);
    start(s, &b, 2, NULL);
    expect(lw_session_start(s, &b.batch, &b.logits, &b.drawn) == LW_ERR_ARGUMENT);
    await_one(s);
    finish(s, &a, LW_OK, 1);
    start(s, &a, 4, NULL);
    finish(s, &b, LW_OK, 3);
    await_one(s);
    finish(s, &a, LW_OK, 7);
    expect(s->counters.steps == 3 && !lw_steps_are_ahead(s));
    close_session(s);
}

// What is begun behind a step that fails fails too, what is begun once all are finished does not.
void steps_that_fail(void) {
    lw_session* s = open_session();
    step a, b;
    start(s, &a, FAILS, NULL);
    start(s, &b, 1, NULL);
    await_one(s);
    finish(s, &a, LW_ERR_NONFINITE, 0);
    expect(s->n_drawn == 0);
    finish(s, &b, LW_ERR_ARGUMENT, 0);
    start(s, &a, 2, NULL);
    finish(s, &a, LW_OK, 2);
    close_session(s);
}

typedef struct mask {
    lw_session* session;
    uint32_t bits[2];
} mask;

static void* write_masks(void* argument) {
    mask* m = argument;
    for (unsigned i = 0; i < parameter('h', 2); ++i) {
        m->bits[i] = 10;
        expect(lw_gate_release(&m->session->draw_gate));
    }
    return NULL;
}

void held_draws(void) {
    lw_session* s = open_session();
    mask m = {.session = s};
    for (unsigned i = 0; i < parameter('h', 2); ++i) lw_gate_hold(&s->draw_gate);
    step a;
    pthread_t writer;
    start(s, &a, 1, &m.bits[parameter('h', 2) - 1]);
    pthread_create(&writer, NULL, write_masks, &m);
    await_one(s);
    finish(s, &a, LW_OK, 11);
    expect(!lw_gate_release(&s->draw_gate));
    pthread_join(writer, NULL);
    close_session(s);
}
