// What sessions refuse, what a step that fails leaves behind, and closing at any time.
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <unistd.h>

#include "small_model.h"

static lw_model* new_model(void) {
    const uniform_config config = small_config();
    lw_model* model = NULL;
    if (uniform_create(&config, NULL, 2, &model) != LW_OK || load_all(model) != LW_OK) exit(2);
    if (lw_model_finish(model) != LW_OK) exit(2);
    return model;
}

static lw_session* new_session(const lw_model* model, uint32_t threads, lw_type kv_type) {
    const lw_session_config config = small_session(threads, kv_type);
    lw_session* session = NULL;
    if (lw_session_open(model, &config, &session) != LW_OK) exit(2);
    return session;
}

static void test_configs(const lw_model* model) {
    lw_session* const untouched = (lw_session*)(uintptr_t)0x5A5A;
    lw_session* session = untouched;
    lw_session_config c = small_session(1, LW_F32);
    ARGUMENT(lw_session_open(NULL, &c, &session), "must not be NULL");
    ARGUMENT(lw_session_open(model, NULL, &session), "must not be NULL");
    ARGUMENT(lw_session_open(model, &c, NULL), "must not be NULL");
#define FIELD(field, value, says)                             \
    do {                                                      \
        c = small_session(1, LW_F32), c.field = value;        \
        ARGUMENT(lw_session_open(model, &c, &session), says); \
    } while (0)
    FIELD(n_threads, 0, "0 threads");
    FIELD(n_threads, UINT_MAX, "4294967295 threads");
    FIELD(n_blocks, 0, "n_blocks is 0");
    FIELD(kv_type, LW_Q4_0, "kv_type 2");
    FIELD(kv_type, (lw_type)-1, "kv_type -1");
    FIELD(max_batch_tokens, 0, "max_batch_tokens is 0");
    FIELD(max_batch_tokens, UINT_MAX, "max_batch_tokens is 429");
    FIELD(max_batch_logits, 0, "max_batch_logits is 0");
    FIELD(max_batch_logits, 65, "max_batch_logits is 65");
    FIELD(max_adapter_rank, 513, "max_adapter_rank is 513");
    FIELD(float_activations, 2, "float_activations is 2");
    FIELD(observe_inputs, 2, "observe_inputs is 2");
    FIELD(groups_by_window, 2, "groups_by_window is 2");
    FIELD(replica_of_thread, &(uint32_t){1}, "replica_of_thread[0] is 1, the model has 1");
    FIELD(cpus, &(uint32_t){UINT_MAX}, "cpus[0] is 4294967295");
#undef FIELD
    expect(session == untouched, "a refused call writes no session");
    HARMLESS(lw_session_close(NULL));
}

static void test_no_session(lw_session* session) {
    lw_counters counters;
    lw_finished finished;
    lw_profile_row row;
    uint32_t n = 77;
    ARGUMENT(lw_session_hold_draws(NULL), "must not be NULL");
    ARGUMENT(lw_session_limit_threads(NULL, 1, 1, 1), "must not be NULL");
    ARGUMENT(lw_session_release_draws(NULL), "must not be NULL");
    ARGUMENT(lw_session_release_draws(session), "nothing holds the draws");
    ARGUMENT(lw_session_counters(NULL, &counters), "must not be NULL");
    ARGUMENT(lw_session_counters(session, NULL), "must not be NULL");
    ARGUMENT(lw_session_await(NULL, 0, &n), "must not be NULL");
    ARGUMENT(lw_session_await(session, 0, NULL), "must not be NULL");
    ARGUMENT(lw_session_await(session, UINT64_MAX, &n), "no step was started");
    ARGUMENT(lw_session_finish(NULL, &finished), "must not be NULL");
    ARGUMENT(lw_session_finish(session, NULL), "must not be NULL");
    ARGUMENT(lw_session_finish(session, &finished), "no step was started");
    ARGUMENT(lw_session_profile(NULL, 1), "must not be NULL");
    ARGUMENT(lw_session_profile_rows(NULL, &row, 1, &n), "must not be NULL");
    ARGUMENT(lw_session_profile_rows(session, NULL, 1, &n), "must not be NULL");
    ARGUMENT(lw_session_profile_rows(session, &row, 1, NULL), "must not be NULL");
    lw_input_stats inputs;
    ARGUMENT(lw_session_inputs(NULL, &inputs, 1, &n), "must not be NULL");
    ARGUMENT(lw_session_inputs(session, NULL, 1, &n), "must not be NULL");
    ARGUMENT(lw_session_inputs(session, &inputs, 1, NULL), "must not be NULL");
    expect(n == 77, "a refused call writes no number");
}

// The batch as it is now is refused, by both ways to run one, before anything is written or copied.
static void refuse_batch(lw_session* session, one_sequence* s, const char* says) {
    memset(s->logits, 0x5A, sizeof s->logits);
    memset(&s->drawn, 0x5A, sizeof s->drawn);
    ARGUMENT(lw_step(session, &s->batch, s->logits, &s->drawn), says);
    ARGUMENT(lw_session_start(session, &s->batch, s->logits, &s->drawn), says);
    const unsigned char *logits = (unsigned char*)s->logits, *drawn = (unsigned char*)&s->drawn;
    bool same = true;
    for (size_t i = 0; i < sizeof s->logits; ++i) same &= logits[i] == 0x5A;
    for (size_t i = 0; i < sizeof s->drawn; ++i) same &= drawn[i] == 0x5A;
    expect(same, "a batch that is refused writes nothing");
    set_batch(s, 3, 0, 0);
}

static void test_batches(lw_session* session, const lw_model* other_model) {
    static one_sequence s;
    set_batch(&s, 3, 0, 0);
    ARGUMENT(lw_step(NULL, &s.batch, s.logits, &s.drawn), "must not be NULL");
    ARGUMENT(lw_step(session, NULL, s.logits, &s.drawn), "must not be NULL");
    ARGUMENT(lw_step(session, &s.batch, NULL, &s.drawn), "must not be NULL");
    ARGUMENT(lw_step(session, &s.batch, s.logits, NULL), "drawn must not be NULL");
    ARGUMENT(lw_session_start(NULL, &s.batch, s.logits, &s.drawn), "must not be NULL");
    ARGUMENT(lw_session_start(session, NULL, s.logits, &s.drawn), "must not be NULL");
    ARGUMENT(lw_session_start(session, &s.batch, NULL, &s.drawn), "must not be NULL");
    ARGUMENT(lw_session_start(session, &s.batch, s.logits, NULL), "drawn must not be NULL");
#define BATCH(change, says)              \
    do {                                 \
        change;                          \
        refuse_batch(session, &s, says); \
    } while (0)
    BATCH(s.batch.token_ids = NULL, "token_ids must not be NULL");
    BATCH(s.batch.query_start = NULL, "query_start must not");
    BATCH(s.batch.context_lens = NULL, "context_lens must");
    BATCH(s.batch.block_tables = NULL, "block_tables must not be");
    BATCH(s.batch.logit_rows = NULL, "logit_rows must not be NULL");
    BATCH(s.batch.n_block_copies = 1, "block_copies must not be NULL");
    BATCH(s.batch.n_seqs = 0, "must have a sequence");
    BATCH(s.starts[0] = 1, "query_start[0] must be 0");
    BATCH((s.starts[0] = 0, s.starts[1] = 0), "0 tokens, must be 1 to 64");
    BATCH(s.starts[1] = UINT_MAX, "tokens");
    BATCH(s.batch.block_table_stride = 0, "its table of 0 blocks");
    BATCH(s.context = 30, "its table of 1 blocks holds fewer");
    BATCH(s.context = UINT_MAX, "must be at most 2147483648");
    BATCH(s.block = 8, "block 8, the cache has 8");
    BATCH((s.context = UINT_MAX, s.batch.block_table_stride = UINT_MAX), "must be at most 2147483648");
    BATCH(s.tokens[1] = VOCAB, "token id 50");
    BATCH(s.tokens[1] = 1u << 31, "token id 2147483648");
    BATCH(s.tokens[2] = LW_DRAWN_BEFORE, "draw 0 of the step before is asked for, which has 0");
    BATCH(s.tokens[2] = UINT_MAX, "draw 3221225471 of the step before");
    BATCH(s.row = 3, "logit_rows[0] is 3");
    BATCH(s.batch.n_logits = UINT_MAX, "4294967295 rows of logits, must be at most 4");

    const uint32_t twice[] = {1, 1}, descending[] = {0, 3, 1};
    BATCH((s.batch.n_logits = 2, s.batch.logit_rows = twice), "logit_rows[1] is 1, must ascend");
    BATCH((s.batch.n_seqs = 2, s.batch.query_start = descending, s.batch.context_lens = (uint32_t[]){0, 0},
           s.batch.block_tables = (uint32_t[]){0, 1}),
          "query_start[2] descends");

    const uint32_t copies[] = {0, 1, 2, 9};
    BATCH((s.batch.n_block_copies = 2, s.batch.block_copies = copies), "block_copies[1] has block 9, the cache has 8");
    BATCH((s.batch.n_block_copies = 1u << 31, s.batch.block_copies = copies),
          "block_copies[1] has block 9, the cache has 8");

    lw_adapter* foreign = NULL;
    if (lw_adapter_create(other_model, &foreign) != LW_OK) exit(2);
    BATCH(s.batch.adapters = (const lw_adapter*[]){foreign}, "belongs to another model");

    lw_adapter_close(foreign);
    BATCH(s.draw.sampling = NULL, "sampling must not be NULL");
    BATCH(s.sampling.temperature = NAN, "temperature nan");
    BATCH(s.sampling.top_p = NAN, "top_p nan");
    BATCH(s.sampling.min_p = NAN, "min_p nan");
    BATCH(s.sampling.repetition_penalty = NAN, "repetition_penalty nan, must be positive");
    BATCH(s.sampling.presence_penalty = NAN, "must be finite");
    BATCH(s.sampling.frequency_penalty = INFINITY, "be finite");
    BATCH(s.sampling.n_top_logprobs = UINT_MAX, "n_top_logprobs 4294967295");
    BATCH(s.sampling.n_bias = 1, "bias_ids and");
    const uint32_t ids[] = {VOCAB};
    const float nan[] = {NAN}, zero[] = {0};
    BATCH((s.sampling.n_top_logprobs = 1, s.sampling.top_ids = ids), "top token 50");
    BATCH((s.sampling.n_bias = 1, s.sampling.bias_ids = ids), "bias_values must not be NULL");
    BATCH((s.sampling.n_bias = 1, s.sampling.bias_ids = ids, s.sampling.bias_values = zero), "bias token 50");
    BATCH((s.sampling.n_bias = 1, s.sampling.bias_ids = ids, s.sampling.bias_values = nan), "bias nan");
    BATCH(s.draw.n_prompt = 1, "n_prompt 1 exceeds");
    BATCH(s.draw.n_history = 1, "history must not be NULL");
    BATCH((s.draw.n_history = 1, s.draw.history = ids), "history token 50");
    BATCH(s.draw.forced_token = VOCAB, "forced_token");
#undef BATCH
    expect(lw_step(session, &s.batch, s.logits, &s.drawn) == LW_OK, "a session goes on after all that");
    s.tokens[2] = LW_DRAWN_BEFORE + 1;
    refuse_batch(session, &s, "draw 1 of the step before is asked for, which has 1");
}

// An adapter that makes keys, values and all after them infinite.
static lw_adapter* hostile_adapter(const lw_model* model) {
    static float a[HIDDEN], b[KV_HEADS * DIM];
    for (int i = 0; i < HIDDEN; ++i) a[i] = 1e30f;
    for (int i = 0; i < KV_HEADS * DIM; ++i) b[i] = 1e30f;
    const lw_tensor down = {.data = a, .n_bytes = sizeof a, .type = LW_F32, .rows = 1, .cols = HIDDEN};
    const lw_tensor up = {.data = b, .n_bytes = sizeof b, .type = LW_F32, .rows = KV_HEADS * DIM, .cols = 1};
    lw_adapter* adapter = NULL;
    if (lw_adapter_create(model, &adapter) != LW_OK) exit(2);
    for (uint32_t layer = 0; layer < LAYERS; ++layer) {
        if (lw_adapter_load(adapter, LW_ATTN_V, layer, &down, &up, 1) != LW_OK) exit(2);
        if (lw_adapter_load(adapter, LW_ATTN_K, layer, &down, &up, 1) != LW_OK) exit(2);
    }
    return adapter;
}

static bool same_logits(const float* found, const float* wanted) {
    return memcmp(found, wanted, VOCAB * sizeof(float)) == 0;
}

// A step fails as it runs: its copies are made, its own places hold anything, and the rest of the cache is as it was.
static void test_what_a_failed_step_leaves(const lw_model* model, lw_type kv_type) {
    static one_sequence first, next, s;
    lw_adapter* hostile = hostile_adapter(model);
    lw_session* session = new_session(model, 2, kv_type);
    const lw_adapter* adapters[] = {hostile};
    set_batch(&first, 20, 0, 0);
    expect(lw_step(session, &first.batch, first.logits, &first.drawn) == LW_OK, "a prompt in block 0");
    set_batch(&next, 1, 20, 0);
    expect(lw_step(session, &next.batch, next.logits, &next.drawn) == LW_OK, "and the token after it");

    // 0 -> 1, 1 -> 2 and then others over block 3, all of whose keys and values are infinite.
    set_batch(&s, 30, 0, 3);
    const uint32_t copies[] = {0, 1, 1, 2};
    s.batch.block_copies = copies, s.batch.n_block_copies = 2, s.batch.adapters = adapters;
    REFUSED(lw_step(session, &s.batch, s.logits, &s.drawn), LW_ERR_NONFINITE, "NaN or infinity");
    set_batch(&s, 1, 20, 2);
    expect(lw_step(session, &s.batch, s.logits, &s.drawn) == LW_OK && same_logits(s.logits, next.logits),
           "the copies of a step that failed as it ran are made, in their order");
    set_batch(&s, 1, 20, 0);
    expect(lw_step(session, &s.batch, s.logits, &s.drawn) == LW_OK && same_logits(s.logits, next.logits),
           "the blocks of others are as they were");
    set_batch(&s, 20, 0, 3);
    expect(lw_step(session, &s.batch, s.logits, &s.drawn) == LW_OK && same_logits(s.logits, first.logits),
           "what a failed step left in a block does not reach who has it next");

    set_batch(&s, 1, 20, 1);
    s.batch.adapters = adapters;
    REFUSED(lw_step(session, &s.batch, s.logits, &s.drawn), LW_ERR_NONFINITE, "NaN or infinity");
    s.tokens[0] = LW_DRAWN_BEFORE;
    ARGUMENT(lw_step(session, &s.batch, s.logits, &s.drawn), "which has 0");
    set_batch(&s, 1, 20, 1);
    expect(lw_step(session, &s.batch, s.logits, &s.drawn) == LW_OK && same_logits(s.logits, next.logits),
           "the same tokens may be run again");
    lw_session_close(session);
    lw_adapter_close(hostile);
}

static bool has_failed(const lw_sampled* drawn, lw_status status) {
    return drawn->status == status && drawn->token == 0 && drawn->n_top == 0 && drawn->logprob == 0;
}

// Of two sequences in a step nothing may be drawn in one: the other gets what it gets alone, and so does a step behind,
// which reads 0 in the place of the token that is not there.
static void test_a_draw_that_fails_alone(const lw_model* model, lw_type kv_type) {
    static one_sequence first, s;
    lw_session* session = new_session(model, 2, kv_type);
    const uint32_t nothing[(VOCAB + 31) / 32] = {0}, tokens[] = {1, 2, 3, 7, 8}, starts[] = {0, 3, 5},
                                          tables[] = {0, 1};
    const uint32_t none[] = {0, 0}, rows[] = {2, 4}, behind[] = {LW_DRAWN_BEFORE, LW_DRAWN_BEFORE + 1}, ends[] = {3, 2};
    lw_sampled alone[2], drawn[2], named[2], known[2];
    set_batch(&first, 3, 0, 2);
    set_batch(&s, 2, 0, 3);
    s.sampling.n_top_logprobs = 2, s.sampling.want_logprob = 1;
    s.tokens[0] = 7, s.tokens[1] = 8;
    expect(lw_step(session, &s.batch, s.logits, &alone[1]) == LW_OK && alone[1].status == LW_OK, "a sequence alone");
    const lw_sampling forbidden = {.top_p = 1, .repetition_penalty = 1, .mask = nothing, .want_logprob = 1};
    const lw_draw draws[] = {{.sampling = &forbidden, .position = 3, .forced_token = -1}, s.draw};
    lw_batch both = {.n_seqs = 2, .n_logits = 2, .block_table_stride = 1, .token_ids = tokens, .query_start = starts};
    both.context_lens = none, both.block_tables = tables, both.logit_rows = rows, both.draws = draws;
    static float logits[2 * VOCAB], logits_behind[2 * VOCAB];
    lw_batch next = both;
    next.token_ids = behind, next.query_start = (const uint32_t[]){0, 1, 2}, next.context_lens = ends;
    next.logit_rows = (const uint32_t[]){0, 1};
    lw_finished times;
    expect(lw_session_start(session, &both, logits, drawn) == LW_OK, "a step of which a draw will fail");
    expect(lw_session_start(session, &next, logits_behind, named) == LW_OK, "and one behind it");
    expect(lw_session_finish(session, &times) == LW_OK, "a draw that fails fails no step");
    expect(has_failed(&drawn[0], LW_ERR_NO_TOKEN), "it says why");
    expect(memcmp(&drawn[1], &alone[1], sizeof drawn[1]) == 0, "the other draw is what it is alone");
    expect(same_logits(logits + VOCAB, s.logits), "and so are its logits");
    expect(lw_session_finish(session, &times) == LW_OK && has_failed(&named[0], LW_ERR_NO_TOKEN), "the step behind it");
    next.token_ids = (const uint32_t[]){0, drawn[1].token};
    expect(lw_step(session, &next, logits, known) == LW_OK && memcmp(known, named, sizeof known) == 0 &&
               memcmp(logits, logits_behind, sizeof logits) == 0,
           "it had 0 where nothing was drawn");
    lw_session_close(session);
}

// A step begun behind one that fails is not run, and copies nothing.
static void test_steps_behind_a_failed_one(const lw_model* model) {
    static one_sequence first, next, s, behind;
    lw_adapter* hostile = hostile_adapter(model);
    lw_session* session = new_session(model, 1, LW_F16);
    const lw_adapter* adapters[] = {hostile};
    const uint32_t copies[] = {0, 1};
    lw_finished times = {77, 77};
    uint32_t done = 0;
    set_batch(&first, 20, 0, 0);
    set_batch(&next, 1, 20, 0);
    expect(lw_step(session, &first.batch, first.logits, &first.drawn) == LW_OK, "a prompt in block 0");
    expect(lw_step(session, &next.batch, next.logits, &next.drawn) == LW_OK, "and the token after it");
    set_batch(&s, 5, 0, 1);
    expect(lw_step(session, &s.batch, s.logits, &s.drawn) == LW_OK, "another prompt in block 1");
    set_batch(&s, 1, 5, 1);
    expect(lw_step(session, &s.batch, s.logits, &s.drawn) == LW_OK, "and the token after it");
    float wanted[VOCAB];
    memcpy(wanted, s.logits, sizeof wanted);

    s.batch.adapters = adapters;
    set_batch(&behind, 1, 20, 0);
    behind.batch.block_copies = copies, behind.batch.n_block_copies = 1;
    lw_session_hold_draws(session);
    expect(lw_session_start(session, &next.batch, next.logits, &next.drawn) == LW_OK, "a step that waits is started");
    expect(lw_session_start(session, &s.batch, s.logits, &s.drawn) == LW_OK, "and one behind it that will fail");
    ARGUMENT(lw_session_start(session, &behind.batch, behind.logits, &behind.drawn), "2 steps are not finished");
    ARGUMENT(lw_step(session, &behind.batch, behind.logits, &behind.drawn), "not finished");
    ARGUMENT(lw_session_profile(session, 1), "not finished");
    ARGUMENT(lw_session_profile_rows(session, NULL, 0, &done), "not finished");
    ARGUMENT(lw_session_inputs(session, NULL, 0, &done), "not finished");
    expect(lw_session_await(session, 0, &done) == LW_OK && !done, "waiting for no time ends at once");
    expect(lw_session_await(session, 1, &done) == LW_OK && !done, "waiting for a nanosecond ends too");
    lw_session_release_draws(session);
    expect(lw_session_await(session, UINT64_MAX, &done) == LW_OK && done, "waiting for ever ends with the step");
    expect(lw_session_finish(session, &times) == LW_OK, "the step that waited");
    expect(lw_session_start(session, &behind.batch, behind.logits, &behind.drawn) == LW_OK, "one behind that fails");
    REFUSED(lw_session_finish(session, &times), LW_ERR_NONFINITE, "NaN or infinity");
    expect(times.begin_ns > 77 && times.end_ns > times.begin_ns, "a step that failed says when it ran");
    ARGUMENT(lw_session_finish(session, &times), "the step before this one failed");
    expect(times.begin_ns == 0 && times.end_ns == 0, "one that was not run says so");
    set_batch(&s, 1, 5, 1);
    expect(lw_step(session, &s.batch, s.logits, &s.drawn) == LW_OK && same_logits(s.logits, wanted),
           "its copies are not made");
    lw_session_close(session);
    lw_adapter_close(hostile);
}

// One token's logit is infinite or NaN, the others are numbers: no draw goes on as if nothing were, at any level.
static void test_one_bad_logit(const char* isa, uint32_t token) {
    static float head[VOCAB * HIDDEN], norm[HIDDEN];
    static one_sequence s;
    lw_model* model = NULL;
    const uniform_config config = small_config();
    if (uniform_create(&config, isa, 1, &model) != LW_OK || load_all(model) != LW_OK) exit(2);
    const lw_tensor output = float_tensor(head, VOCAB, HIDDEN, 1), output_norm = float_tensor(norm, 1, HIDDEN, 2);
    for (uint32_t i = 0; i < HIDDEN; ++i) norm[i] = 1e6f;
    for (uint32_t i = 0; i < HIDDEN; ++i) head[token * HIDDEN + i] = 3e38f;
    if (lw_model_load(model, LW_OUTPUT, 0, &output, LW_F32) != LW_OK) exit(2);
    if (lw_model_load(model, LW_OUTPUT_NORM, 0, &output_norm, LW_F32) != LW_OK) exit(2);
    if (lw_model_finish(model) != LW_OK) exit(2);
    lw_session* session = new_session(model, 1, LW_F32);
    set_batch(&s, 3, 0, 0);
    s.batch.draws = NULL;
    expect(lw_step(session, &s.batch, s.logits, NULL) == LW_OK, "logits may be anything where nothing is drawn");
    for (uint32_t i = 0; i < VOCAB; ++i) expect(isfinite(s.logits[i]) == (i != token), "one logit is no number");
    s.batch.draws = &s.draw;
    for (int greedy = 0; greedy < 2; ++greedy) {
        s.sampling.temperature = greedy ? 0 : 1;
        expect(lw_step(session, &s.batch, s.logits, &s.drawn) == LW_OK, "a step with a logit that is no number");
        expect(has_failed(&s.drawn, LW_ERR_NONFINITE), "a draw from a logit that is no number");
    }
    s.draw.forced_token = (token + 1) % VOCAB;
    expect(lw_step(session, &s.batch, s.logits, &s.drawn) == LW_OK, "a token whose logit is a number");
    expect(has_failed(&s.drawn, LW_ERR_NONFINITE), "a forced draw beside a logit that is no number");
    lw_session_close(session);
    lw_model_close(model);
}

static void test_bad_logits(void) {
    static const char* const levels[] = {"scalar", "avx2",    "avx512vnni", "avx512vbmi", "amx",
                                         "neon",   "dotprod", "i8mm",       "sve"};
    for (size_t i = 0; i < sizeof levels / sizeof *levels; ++i) {
        if (lw_cpu_check(levels[i]) != LW_OK) continue;
        test_one_bad_logit(levels[i], 0);
        test_one_bad_logit(levels[i], 17);
        test_one_bad_logit(levels[i], VOCAB - 1);
    }
}

static void test_closing(const lw_model* model, uint32_t profile) {
    static one_sequence s, behind;
    lw_session* session = new_session(model, 3, LW_F32);
    lw_session_profile(session, profile);
    set_batch(&s, 3, 0, 0);
    set_batch(&behind, 1, 3, 0);
    behind.tokens[0] = LW_DRAWN_BEFORE;
    lw_session_hold_draws(session);
    lw_session_hold_draws(session);
    expect(lw_session_start(session, &s.batch, s.logits, &s.drawn) == LW_OK, "a step whose draws are held is started");
    expect(lw_session_start(session, &behind.batch, behind.logits, &behind.drawn) == LW_OK, "and one behind it");
    memset(&s.drawn, 0x5A, sizeof s.drawn);
    memset(&behind.logits, 0x5A, sizeof behind.logits);
    lw_session_close(session);
    const unsigned char *drawn = (unsigned char*)&s.drawn, *logits = (unsigned char*)behind.logits;
    expect(drawn[0] == 0x5A && drawn[sizeof s.drawn - 1] == 0x5A, "held draws are not made by closing");
    expect(logits[0] == 0x5A && logits[sizeof behind.logits - 1] == 0x5A, "what was not run yet is not run any more");
    session = new_session(model, 1, LW_F32);
    lw_session_hold_draws(session);
    lw_session_close(session);
}

static void run_reference(const lw_model* model, uint32_t threads, uint32_t is_reference, float logits[VOCAB]) {
    static one_sequence s;
    lw_session_config config = small_session(threads, LW_F16);
    config.float_activations = config.observe_inputs = is_reference;
    lw_session* session = NULL;
    if (lw_session_open(model, &config, &session) != LW_OK) exit(2);
    set_batch(&s, 20, 0, 0);
    expect(lw_step(session, &s.batch, logits, &s.drawn) == LW_OK, "a step of a reference");
    lw_input_stats inputs[4 * LAYERS + 1];
    uint32_t n = 77;
    expect(lw_session_inputs(session, inputs, 4 * LAYERS + 1, &n) == LW_OK, "its inputs");
    expect(n == (is_reference ? 4 * LAYERS + 1 : 0), "inputs of every product are observed, or none");
    if (is_reference) {
        expect(inputs[3].values == 20 * FFN && strcmp(inputs[3].operation, "down") == 0, "inputs of every row");
        expect(inputs[n - 1].values == HIDDEN && inputs[n - 1].largest > 0, "of the head, those with logits");
    }
    lw_session_close(session);
}

static void test_float_activations(const lw_model* model) {
    static float codes[VOCAB], one[VOCAB], three[VOCAB];
    run_reference(model, 1, 0, codes);
    run_reference(model, 1, 1, one);
    run_reference(model, 3, 1, three);
    float largest = 0, furthest = 0;
    for (size_t i = 0; i < VOCAB; ++i) {
        const float size = fabsf(one[i]), apart = fabsf(one[i] - codes[i]);
        largest = size > largest ? size : largest;
        furthest = apart > furthest ? apart : furthest;
    }
    expect(memcmp(one, three, sizeof one) == 0, "float activations give the same bits for any number of threads");
    expect(furthest > 0 && furthest < 0.05f * largest, "logits of codes are near those of floats, and others");
}

int main(int argc, char** argv) {
    alarm(300);  // what hangs fails
    lw_model *model = new_model(), *other = new_model();
    test_configs(model);
    lw_session* session = new_session(model, 2, LW_F16);
    test_no_session(session);
    test_batches(session, other);
    lw_session_close(session);
    test_what_a_failed_step_leaves(model, LW_F32);
    test_what_a_failed_step_leaves(model, LW_F16);
    test_what_a_failed_step_leaves(model, LW_I8);
    test_what_a_failed_step_leaves(model, LW_I4);
    test_steps_behind_a_failed_one(model);
    test_a_draw_that_fails_alone(model, LW_F16);
    test_bad_logits();
    test_float_activations(model);
    for (uint32_t profile = 0; profile < 2; ++profile)
        for (int i = 0; i < 20; ++i) test_closing(model, profile);
    lw_model_close(model);
    lw_model_close(other);
    if (argc > 1 && strcmp(argv[1], "--calls") == 0) list_calls();
    return report();
}
