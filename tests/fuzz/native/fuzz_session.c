// Calls of a session in any order, right and wrong ones: steps, steps ahead, draws, holds, adapters, copies of blocks.
//
// What is right must give the bits that each sequence gives alone, from its first token, at level scalar; what is wrong
// must be refused and change nothing.
#include "session_heads.h"
#include "session_wrong.h"

typedef struct fuzzed {
    fuzz_input* in;
    uint32_t variant, level, n_groups;
    bool has_states;
    lw_session* session;
    lw_session_config config;
    sequence sequences[SEQUENCES];
    one_step* begun[LW_STEPS_AHEAD];
    uint32_t n_begun, n_holds;
    uint32_t n_drawn;            // by the step that was begun last
    uint32_t drawn[MAX_LOGITS];  // by the step that was run last
} fuzzed;

static void open_session(fuzzed* f) {
    f->config = (lw_session_config){.n_threads = 1 + take_below(f->in, 3),
                                    .n_blocks = MAX_GROUPS * BLOCKS,
                                    .max_batch_tokens = 1 + take_below(f->in, MAX_BATCH),
                                    .kv_type = kv_types[take_below(f->in, KV_TYPES)],
                                    .max_adapter_rank = take_flag(f->in) ? TINY_MAX_RANK : 0,
                                    .observe_inputs = 1};
    f->config.max_batch_logits = 1 + take_below(f->in, MAX_LOGITS);
    if (f->config.max_batch_logits > f->config.max_batch_tokens)
        f->config.max_batch_logits = f->config.max_batch_tokens;
    const lw_model* model = tiny_model(f->variant, f->level);
    if (tiny_variants[f->variant].kind == TINY_LATENT && f->config.kv_type == LW_I8_I4) {
        FUZZ_CHECK(lw_session_open(model, &f->config, &f->session) == LW_ERR_ARGUMENT, "latent rows of two types");
        f->config.kv_type = LW_F16;
    }
    f->config.groups_by_window = take_flag(f->in);
    lw_kv_layout layout;
    FUZZ_CHECK(lw_model_kv_layout(model, f->config.kv_type, f->config.groups_by_window, &layout) == LW_OK, "layout");
    f->n_groups = layout.n_groups;
    FUZZ_CHECK(f->n_groups <= MAX_GROUPS, "%u groups", f->n_groups);
    f->has_states = layout.state_bytes > 0;
    f->config.n_states = f->has_states ? SEQUENCES : 0;
    f->config.max_guesses = f->has_states ? take_below(f->in, MAX_GUESSES + 1) : 0;
    const lw_status status = lw_session_open(model, &f->config, &f->session);
    FUZZ_CHECK(status == LW_OK, "no session: %s", lw_last_error());
    memset(f->sequences, 0, sizeof f->sequences);
    const uint32_t turn = take_below(f->in, BLOCKS);
    for (uint32_t i = 0; i < SEQUENCES * SEQUENCE_BLOCKS; ++i)
        f->sequences[i % SEQUENCES].table[i / SEQUENCES] = (i * 5 + turn) % BLOCKS;
    f->n_drawn = 0;
}

static void release_all(fuzzed* f) {
    for (; f->n_holds > 0; --f->n_holds)
        FUZZ_CHECK(lw_session_release_draws(f->session) == LW_OK, "release: %s", lw_last_error());
}

// Adds what a step has computed to what is known. None fails, whatever its draws find.
static void conclude(fuzzed* f, one_step* step, lw_status status) {
    FUZZ_CHECK(status == LW_OK, "a step fails: %s", lw_last_error());
    resolve(step, f->sequences, f->drawn);
    resolve(step, step->after, f->drawn);
    for (uint32_t i = 0; i < f->n_begun; ++i) resolve(step, f->begun[i]->after, f->drawn);
    compare_with_reference(step, f->variant, f->config.kv_type);
    for (uint32_t i = 0; step->batch.draws != NULL && i < step->batch.n_logits; ++i)
        f->drawn[i] = step->results[i].token;
}

static one_step* new_step(fuzzed* f) {
    one_step* step = calloc(1, sizeof *step);
    if (step == NULL) exit(2);
    step->n_groups = f->n_groups;
    step->has_states = f->has_states;
    step->has_head = tiny_has_head(&tiny_variants[f->variant]);
    const lw_adapter* const* adapters =
        f->config.max_adapter_rank > 0 ? (const lw_adapter* const*)tiny_adapters[f->variant][f->level] : NULL;
    take_step(f->in, step, &f->config, f->sequences, adapters, f->n_begun > 0, f->n_drawn);
    return step;
}

static void finish(fuzzed* f) {
    lw_finished times;
    if (f->n_begun == 0) {
        FUZZ_CHECK(lw_session_finish(f->session, &times) == LW_ERR_ARGUMENT, "finishes nothing");
        return;
    }
    release_all(f);
    one_step* step = f->begun[0];
    f->begun[0] = f->begun[1];
    --f->n_begun;
    const lw_status status = lw_session_finish(f->session, &times);
    conclude(f, step, status);
    free(step);
}

static void finish_all(fuzzed* f) {
    while (f->n_begun > 0) finish(f);
}

static void run_step(fuzzed* f) {
    finish_all(f);
    release_all(f);
    one_step* step = new_step(f);
    const lw_status status = lw_step(f->session, &step->batch, step->logits, step->results);
    if (is_empty(step)) {
        FUZZ_CHECK(status == LW_ERR_ARGUMENT, "a step without tokens gives %d", (int)status);
    } else {
        conclude(f, step, status);
        f->n_drawn = step->batch.draws != NULL ? step->batch.n_logits : 0;
    }
    free(step);
}

static void begin_step(fuzzed* f) {
    if (f->n_begun == LW_STEPS_AHEAD) finish(f);
    one_step* step = new_step(f);
    const lw_status status = lw_session_start(f->session, &step->batch, step->logits, step->results);
    if (is_empty(step)) {
        FUZZ_CHECK(status == LW_ERR_ARGUMENT, "a step without tokens is started: %d", (int)status);
        free(step);
        return;
    }
    FUZZ_CHECK(status == LW_OK, "start: %s", lw_last_error());
    f->n_drawn = step->batch.draws != NULL ? step->batch.n_logits : 0;
    f->begun[f->n_begun++] = step;
}

// What the prediction head makes of some sequences, and again of what it made; some of them are refused.
static void run_heads(fuzzed* f) {
    finish_all(f);
    release_all(f);
    const lw_adapter* const* adapters =
        f->config.max_adapter_rank > 0 ? (const lw_adapter* const*)tiny_adapters[f->variant][f->level] : NULL;
    heads h;
    take_heads(f->in, &h, &f->config, f->sequences, f->n_groups, adapters);
    for (h.n_known = 1; h.n_rows > 0 && h.n_known <= h.n_steps; ++h.n_known) {
        one_step* step = calloc(1, sizeof *step);
        if (step == NULL) exit(2);
        const bool is_wrong = take_byte(f->in) < 20;
        take_head_step(f->in, &h, step, f->n_drawn, f->drawn);
        if (is_wrong) spoil_head(f->in, step);
        const lw_status status = lw_step(f->session, &step->batch, step->logits, step->results);
        FUZZ_CHECK(status == (is_wrong ? LW_ERR_ARGUMENT : LW_OK), "a head's step (%s) gives %d: %s",
                   is_wrong ? step->fault : "right", (int)status, lw_last_error());
        if (is_wrong) {
            free(step);
            return;
        }
        compare_heads(&h, step, f->variant, f->config.kv_type);
        f->n_drawn = step->batch.draws != NULL ? step->batch.n_logits : 0;
        for (uint32_t i = 0; i < f->n_drawn; ++i) f->drawn[i] = step->results[i].token;
        free(step);
    }
}

// A step with one fault, which must be refused and write nothing.
static void wrong_step(fuzzed* f) {
    finish_all(f);
    sequence saved[SEQUENCES];
    memcpy(saved, f->sequences, sizeof saved);
    one_step* step = new_step(f);
    memset(step->logits, 0xA5, sizeof step->logits);
    memset(step->results, 0xA5, sizeof step->results);
    one_step* before = malloc(sizeof *before);
    if (before == NULL) exit(2);
    if (!is_empty(step) && spoil(f->in, step, &f->config, f->n_drawn)) {
        memcpy(before, step, sizeof *before);
        const lw_status status = take_flag(f->in)
                                     ? lw_step(f->session, &step->batch, step->logits, step->results)
                                     : lw_session_start(f->session, &step->batch, step->logits, step->results);
        FUZZ_CHECK(status == LW_ERR_ARGUMENT, "a wrong step (%s) gives %d", step->fault, (int)status);
        FUZZ_CHECK(memcmp(before, step, sizeof *before) == 0, "a wrong step (%s) writes", step->fault);
    }
    memcpy(f->sequences, saved, sizeof saved);
    free(before);
    free(step);
}

static void other_calls(fuzzed* f) {
    lw_counters counters;
    uint32_t done = 0;
    switch (take_below(f->in, 6)) {
        case 0:
            FUZZ_CHECK(lw_session_counters(f->session, &counters) == LW_OK, "%s", lw_last_error());
            break;
        case 1: {
            const lw_status status = lw_session_await(f->session, take_byte(f->in) * 1000u, &done);
            FUZZ_CHECK(status == (f->n_begun > 0 ? LW_OK : LW_ERR_ARGUMENT), "await gives %d", (int)status);
            break;
        }
        case 2:
            if (f->n_holds == 0)
                FUZZ_CHECK(lw_session_release_draws(f->session) == LW_ERR_ARGUMENT, "releases what nobody holds");
            break;
        case 3: {
            finish_all(f);
            lw_profile_row rows[4];
            lw_input_stats inputs[4];
            uint32_t n;
            FUZZ_CHECK(lw_session_profile(f->session, take_flag(f->in)) == LW_OK, "%s", lw_last_error());
            FUZZ_CHECK(lw_session_profile_rows(f->session, rows, take_below(f->in, 5), &n) == LW_OK, "rows");
            FUZZ_CHECK(lw_session_inputs(f->session, inputs, 4, &n) == LW_OK, "inputs");
            break;
        }
        default:
            wrong_calls(f->in, f->session);
    }
}

static void close_session(fuzzed* f) {
    if (take_flag(f->in)) finish_all(f);
    lw_session_close(f->session);  // with steps begun and draws held, too
    while (f->n_begun > 0) free(f->begun[--f->n_begun]);
    f->n_holds = 0;
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    fuzz_input in = {data, size};
    const uint8_t model = take_byte(&in);
    fuzzed f = {.in = &in, .variant = model % TINY_WITHOUT_STATES, .level = take_below(&in, TINY_LEVELS)};
    if (model >= 128) f.variant = TINY_WITHOUT_STATES + model % (TINY_VARIANTS - TINY_WITHOUT_STATES);
    if (tiny_model(f.variant, f.level) == NULL) return 0;
    open_session(&f);
    while (in.left > 0) {
        const uint32_t what = take_below(&in, 16);
        if (what < 5 && tiny_has_head(&tiny_variants[f.variant]) && take_flag(&in))
            run_heads(&f);
        else if (what < 5)
            run_step(&f);
        else if (what < 9)
            begin_step(&f);
        else if (what < 11)
            finish(&f);
        else if (what == 11 && f.n_begun < LW_STEPS_AHEAD && f.n_holds < 3)
            f.n_holds += lw_session_hold_draws(f.session) == LW_OK;
        else if (what == 12)
            release_all(&f);
        else if (what == 13)
            wrong_step(&f);
        else if (what == 14)
            other_calls(&f);
        else if (take_byte(&in) < 64) {
            close_session(&f);
            open_session(&f);
        }
    }
    close_session(&f);
    return 0;
}
