// Guesses of sequences that have a state: what counts has the bits of steps without them, whatever was guessed, how many
// of them came true, and whoever is beside; and what is refused.
#include <limits.h>
#include <unistd.h>

#include "state_model.h"

enum { N_SEQS = 3, LENGTH = 60, MOST = 4, N_STATES = 2 * N_SEQS, BLOCKS = 2, TURNS = 40 };

static uint64_t random_state = 88172645463325252u;

static uint32_t below(uint32_t n) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)(random_state >> 33) % n;
}

static uint32_t least(uint32_t a, uint32_t b) { return a < b ? a : b; }

static uint32_t token_at(uint32_t sequence, uint32_t at) { return (7 * at + 13 * sequence + at * at) % VOCAB; }

// Some steps' worth of arrays.
typedef struct many_sequences {
    uint32_t tokens[64], starts[N_SEQS + 1], contexts[N_SEQS], places[N_SEQS], tables[N_STATES][BLOCKS], rows[64];
    uint32_t guesses[N_SEQS], accepted[N_SEQS], copies[2 * N_SEQS];
    float logits[64][VOCAB];
    lw_batch batch;
} many_sequences;

static void begin(many_sequences* m) {
    memset(m, 0, sizeof *m);
    m->batch = (lw_batch){.block_table_stride = BLOCKS,
                          .token_ids = m->tokens,
                          .query_start = m->starts,
                          .context_lens = m->contexts,
                          .block_tables = m->tables[0],
                          .table_rows = m->places,
                          .logit_rows = m->rows,
                          .state_copies = m->copies,
                          .guesses = m->guesses,
                          .accepted = m->accepted};
}

// One more sequence: `n` of its tokens, of which the last `guesses` are guessed, the first `right` of these well.
static void add(many_sequences* m, uint32_t sequence, uint32_t place, uint32_t context, uint32_t n, uint32_t guesses,
                uint32_t right, uint32_t accepted) {
    lw_batch* b = &m->batch;
    const uint32_t s = b->n_seqs++;
    for (uint32_t i = 0; i < n; ++i) {
        const uint32_t token = token_at(sequence, context + i), row = m->starts[s] + i;
        m->tokens[row] = i < n - guesses + right ? token : (token + 1 + below(VOCAB - 1)) % VOCAB;
        m->rows[b->n_logits++] = row;
    }
    m->starts[s + 1] = m->starts[s] + n;
    m->contexts[s] = context;
    m->places[s] = place;
    m->guesses[s] = guesses;
    m->accepted[s] = accepted;
    for (uint32_t i = 0; i < BLOCKS; ++i) m->tables[place][i] = BLOCKS * sequence + i;
}

static lw_session* open_guessing(const lw_model* model, uint32_t threads) {
    lw_session_config config = small_session(threads, LW_F32);
    config.max_adapter_rank = 0;
    config.max_batch_logits = config.max_batch_tokens;
    config.n_states = N_STATES;
    config.max_guesses = MOST;
    lw_session* session = NULL;
    if (lw_session_open(model, &config, &session) != LW_OK) exit(2);
    return session;
}

// Logits behind every token, by one step for each sequence.
static float wanted[N_SEQS][LENGTH][VOCAB];

static void run_plainly(const lw_model* model) {
    static many_sequences m;
    lw_session* session = open_guessing(model, 1);
    for (uint32_t s = 0; s < N_SEQS; ++s) {
        begin(&m);
        add(&m, s, s, 0, LENGTH, 0, 0, 0);
        m.batch.guesses = m.batch.accepted = NULL;
        expect(lw_step(session, &m.batch, m.logits[0], NULL) == LW_OK, "a step without guesses");
        memcpy(wanted[s], m.logits, sizeof wanted[s]);
    }
    lw_session_close(session);
}

// How far a sequence is: the guesses that its place remembers and how many of them are right.
typedef struct progress {
    uint32_t at, place, guesses, right;
} progress;

// What may follow in one step: some tokens, then guesses; with its state in another place perhaps, copied there.
static void take_turn(many_sequences* m, uint32_t sequence, progress* p, bool moves) {
    const uint32_t accepted = below(p->right + 1), context = p->at + accepted;
    const uint32_t certain = least(1 + below(3) * below(4), LENGTH - context);
    const uint32_t guesses = least(below(MOST + 1), LENGTH - context - certain), right = below(guesses + 1);
    if (moves) {
        const uint32_t to = (p->place + N_SEQS) % N_STATES;
        m->copies[2 * m->batch.n_state_copies] = p->place;
        m->copies[2 * m->batch.n_state_copies++ + 1] = to;
        p->place = to;
    }
    add(m, sequence, p->place, context, certain + guesses, guesses, right, accepted);
    *p = (progress){context + certain, p->place, guesses, right};
}

static bool are_right(const many_sequences* m, const progress* all, const uint32_t* sequences) {
    for (uint32_t s = 0; s < m->batch.n_seqs; ++s) {
        const uint32_t first = m->starts[s], n = m->starts[s + 1] - first - m->guesses[s] + all[sequences[s]].right;
        for (uint32_t i = 0; i < n; ++i)
            if (memcmp(m->logits[first + i], wanted[sequences[s]][m->contexts[s] + i], sizeof m->logits[0]) != 0)
                return false;
    }
    return true;
}

static void test_bits(const lw_model* model, uint32_t threads, bool started) {
    static many_sequences m;
    lw_session* session = open_guessing(model, threads);
    bool same = true;
    uint32_t n_accepted = 0;
    for (int turn = 0; turn < TURNS; ++turn) {
        progress all[N_SEQS];
        for (uint32_t s = 0; s < N_SEQS; ++s) all[s] = (progress){.place = s};
        for (;;) {
            uint32_t sequences[N_SEQS];
            begin(&m);
            for (uint32_t s = 0; s < N_SEQS; ++s) {
                if (all[s].at + all[s].right >= LENGTH || below(4) == 0) continue;
                sequences[m.batch.n_seqs] = s;
                take_turn(&m, s, &all[s], below(3) == 0);
                n_accepted += m.accepted[m.batch.n_seqs - 1];
            }
            if (m.batch.n_seqs == 0) {
                if (all[0].at + all[0].right >= LENGTH) break;
                continue;
            }
            if (started) {
                lw_finished times;
                expect(lw_session_start(session, &m.batch, m.logits[0], NULL) == LW_OK &&
                           lw_session_finish(session, &times) == LW_OK,
                       "a step with guesses that is started");
            } else {
                expect(lw_step(session, &m.batch, m.logits[0], NULL) == LW_OK, "a step with guesses");
            }
            same = same && are_right(&m, all, sequences);
        }
    }
    expect(same && n_accepted > TURNS, "whatever is guessed, what counts has the bits of steps without guesses");
    lw_session_close(session);
}

// Steps that nobody asks for logits of, and arrays left out: what is remembered and accepted is so all the same.
static void test_without_logits(const lw_model* model) {
    static many_sequences m;
    lw_session* session = open_guessing(model, 2);
    for (uint32_t accepted = 0; accepted <= MOST; ++accepted) {
        begin(&m);
        add(&m, 1, 0, 0, 10 + MOST, MOST, MOST, 0);
        m.batch.n_logits = 0;
        m.batch.accepted = NULL;
        expect(lw_step(session, &m.batch, m.logits[0], NULL) == LW_OK, "guesses without logits");
        begin(&m);
        add(&m, 1, 0, 10 + accepted, 5, 0, 0, accepted);
        m.batch.guesses = NULL;
        expect(lw_step(session, &m.batch, m.logits[0], NULL) == LW_OK, "a step behind them");
        expect(memcmp(m.logits, wanted[1][10 + accepted], 5 * sizeof m.logits[0]) == 0, "accepted guesses are there");
        if (accepted == 0) continue;
        // The test can fail: a state without the guesses is another one.
        begin(&m);
        add(&m, 1, 0, 0, 10 + MOST, MOST, MOST, 0);
        expect(lw_step(session, &m.batch, m.logits[0], NULL) == LW_OK, "guesses once more");
        begin(&m);
        add(&m, 1, 0, 10 + accepted, 5, 0, 0, accepted - 1);
        expect(lw_step(session, &m.batch, m.logits[0], NULL) == LW_OK, "a step that forgets one");
        expect(memcmp(m.logits, wanted[1][10 + accepted], sizeof m.logits[0]) != 0, "which can be seen");
    }
    lw_session_close(session);
}

// One token more of some sequences, of which one guess came true.
static void run_head(lw_session* session, uint32_t first, uint32_t end, lw_runs runs, bool started, uint32_t accepted,
                     float out[][VOCAB]) {
    static many_sequences m;
    lw_finished times;
    const bool again = runs == LW_RUN_HEAD_AGAIN;
    begin(&m);
    for (uint32_t s = first; s < end; ++s) add(&m, s, s, again ? 20 : 19, 1, 0, 0, again ? 0 : accepted);
    m.batch.runs = runs;
    if (started)
        expect(lw_session_start(session, &m.batch, out[first], NULL) == LW_OK &&
                   lw_session_finish(session, &times) == LW_OK,
               "a head that is started");
    else
        expect(lw_step(session, &m.batch, out[first], NULL) == LW_OK, "a head alone");
}

// A head gives each sequence its own, alone and beside others.
static void test_heads(const lw_model* model) {
    static many_sequences m;
    static float alone[2][N_SEQS][VOCAB], together[2][N_SEQS][VOCAB];
    for (uint32_t threads = 1; threads < 4; ++threads) {
        lw_session* session = open_guessing(model, threads);
        begin(&m);
        for (uint32_t s = 0; s < N_SEQS; ++s) add(&m, s, s, 0, 20, 2, 1, 0);
        expect(lw_step(session, &m.batch, m.logits[0], NULL) == LW_OK, "a step before the head's");
        for (uint32_t s = 0; threads == 1 && s < N_SEQS; ++s)
            for (int i = 0; i < 2; ++i) run_head(session, s, s + 1, LW_RUN_HEAD + i, false, 1, alone[i]);
        for (int i = 0; i < 2; ++i) run_head(session, 0, N_SEQS, LW_RUN_HEAD + i, threads == 2, 1, together[i]);
        expect(memcmp(alone, together, sizeof alone) == 0, "what heads predict has its bits");
        run_head(session, 0, N_SEQS, LW_RUN_HEAD, false, 0, together[0]);
        expect(memcmp(alone, together, sizeof alone) != 0, "the test can fail: another row before");
        lw_session_close(session);
    }
}

static void refuse(lw_session* session, many_sequences* m, const char* says) {
    ARGUMENT(lw_step(session, &m->batch, m->logits[0], NULL), says);
    ARGUMENT(lw_session_start(session, &m->batch, m->logits[0], NULL), says);
}

// What a step that was started behind one that failed would have remembered, copied and forgotten did not come to pass.
static void test_a_step_that_is_skipped(lw_model* model) {
    static many_sequences first, bad, behind;
    lw_finished times;
    lw_session* session = open_guessing(model, 2);
    begin(&first);
    add(&first, 0, 0, 0, 8, 2, 2, 0);
    expect(lw_step(session, &first.batch, first.logits[0], NULL) == LW_OK, "two guesses");
    begin(&bad);
    add(&bad, 1, 1, 0, 4, 1, 1, 0);
    begin(&behind);
    add(&behind, 0, 3, 8, 4, 1, 1, 2);
    behind.copies[1] = 3, behind.batch.n_state_copies = 1;
    float* weight = &model->layers[2].state_norm[0];
    const float kept = *weight;
    *weight = NAN;
    expect(lw_session_start(session, &bad.batch, bad.logits[0], NULL) == LW_OK, "a step that will fail");
    expect(lw_session_start(session, &behind.batch, behind.logits[0], NULL) == LW_OK, "one behind it");
    expect(lw_session_finish(session, &times) == LW_ERR_NONFINITE, "it fails");
    *weight = kept;
    ARGUMENT(lw_session_finish(session, &times), "the step before this one failed");
    begin(&bad);
    add(&bad, 0, 3, 8, 1, 0, 0, 1);
    refuse(session, &bad, "its place remembers 0");
    expect(lw_step(session, &behind.batch, behind.logits[0], NULL) == LW_OK, "the other one, once more");
    expect(memcmp(behind.logits, wanted[0][8], 4 * sizeof behind.logits[0]) == 0, "from guesses that were kept");
    lw_session_close(session);
}

static void test_refusals(const lw_model* model) {
    static many_sequences m;
    lw_session* session = open_guessing(model, 1);
    begin(&m);
    add(&m, 0, 0, 0, 8, MOST + 1, 0, 0);
    refuse(session, &m, "sequence 0 has 5 guesses, must be below its 8 tokens, at most 4");
    begin(&m);
    add(&m, 0, 0, 0, 3, 3, 0, 0);
    refuse(session, &m, "sequence 0 has 3 guesses, must be below its 3 tokens, at most 4");
    begin(&m);
    add(&m, 0, 0, 0, 8, 2, 2, 0);
    expect(lw_step(session, &m.batch, m.logits[0], NULL) == LW_OK, "two guesses");
    begin(&m);
    add(&m, 0, 0, 9, 1, 0, 0, 3);
    refuse(session, &m, "3 guesses of sequence 0 are accepted, its place remembers 2");
    m.accepted[0] = UINT_MAX;
    refuse(session, &m, "4294967295 guesses of sequence 0 are accepted, its place remembers 2");
    begin(&m);
    add(&m, 0, 0, 2, 1, 0, 0, 2);
    refuse(session, &m, "2 guesses of sequence 0 are accepted, it has a context of 2");
    begin(&m);
    add(&m, 0, 1, 8, 1, 0, 0, 2);
    refuse(session, &m, "2 guesses of sequence 0 are accepted, its place remembers 0");
    m.copies[1] = 1, m.batch.n_state_copies = 1;  // with what place 0 remembers
    expect(lw_step(session, &m.batch, m.logits[0], NULL) == LW_OK, "guesses are copied with a state");
    expect(memcmp(m.logits, wanted[0][8], sizeof m.logits[0]) == 0, "and count there");
    m.batch.n_state_copies = 0;
    refuse(session, &m, "2 guesses of sequence 0 are accepted, its place remembers 0");
    lw_session_close(session);
}

static void test_sessions(const lw_model* model) {
    lw_session* session = NULL;
    lw_session_config config = small_session(1, LW_F32);
    config.n_states = 1;
    config.max_guesses = 257;
    ARGUMENT(lw_session_open(model, &config, &session), "max_guesses is 257, must be at most 256");
    const uniform_config plain = small_config();
    lw_model* other = NULL;
    expect(
        uniform_create(&plain, NULL, 1, &other) == LW_OK && load_all(other) == LW_OK && lw_model_finish(other) == LW_OK,
        "a model without states");
    config.n_states = 0;
    config.max_guesses = 1;
    ARGUMENT(lw_session_open(other, &config, &session), "max_guesses is 1, must be 0: no layer");
    config.max_guesses = 0;
    expect(lw_session_open(other, &config, &session) == LW_OK, "a session without states");
    static many_sequences m;
    begin(&m);
    add(&m, 0, 0, 0, 4, 1, 1, 0);
    m.batch.n_logits = 1;
    refuse(session, &m, "sequence 0 has 1 guesses, must be below its 4 tokens, at most 0");
    m.guesses[0] = 0;
    expect(lw_step(session, &m.batch, m.logits[0], NULL) == LW_OK, "none");
    m.accepted[0] = 1;
    refuse(session, &m, "1 guesses of sequence 0 are accepted, its place remembers 0");
    lw_session_close(session);
    lw_kv_layout layout;
    expect(lw_model_kv_layout(other, LW_F32, 0, &layout) == LW_OK && layout.guess_bytes == 0, "no state, no bytes");
    expect(lw_model_kv_layout(model, LW_F32, 0, &layout) == LW_OK, "the layout of a model with states");
    // Inputs of 64 and three times 192 channels; decays and betas of twice four heads in a line each, and in five lines
    // those of four heads with a decay for each of 16 channels.
    expect(layout.guess_bytes == 4 * (64 + 3 * 192 + 2 * 16 + 80), "bytes of a guess");
    lw_model_close(other);
}

int main(void) {
    alarm(300);  // what hangs fails
    lw_model* model = new_model();
    test_sessions(model);
    run_plainly(model);
    for (uint32_t threads = 1; threads < 4; ++threads) test_bits(model, threads, threads == 2);
    test_without_logits(model);
    test_refusals(model);
    test_a_step_that_is_skipped(model);
    lw_model_close(model);
    has_head = true;
    lw_model* guessing = new_model();
    for (uint32_t threads = 1; threads < 4; ++threads) test_bits(guessing, threads, threads == 2);
    test_without_logits(guessing);
    test_heads(guessing);
    lw_model_close(guessing);
    return report();
}
