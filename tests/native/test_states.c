// Models with states: what is refused of their configs, sessions and batches, that a sequence's state is its own whatever
// place it is in and whoever fails beside it, and what their places take.
#include <limits.h>
#include <math.h>
#include <unistd.h>

#include "kinds/kinds.h"
#include "state_model.h"

enum { N_TOKENS = 21, N_STATES = 5 };

static void test_configs(void) {
    lw_model* model = NULL;
    lw_model_config* c = &good.model;
    lw_state_config *conv = &good.layers[0].state, *delta = &good.layers[2].state, *ssd = &good.layers[3].state,
                    *each = &good.layers[4].state;
#define SPOILT(change, says)                                 \
    do {                                                     \
        set_good();                                          \
        change;                                              \
        ARGUMENT(lw_model_create(c, NULL, 1, &model), says); \
    } while (0)
    SPOILT(conv->kind = (lw_state_kind)5, "layer 0 state: kind is 5, must be 0 to 4");
    SPOILT(conv->taps = 1, "layer 0 state: taps is 1, must be 2 to 8");
    SPOILT(conv->taps = 9, "layer 0 state: taps is 9");
    SPOILT(conv->n_heads = 1, "layer 0 state: there is no head, all of its config must be 0");
    SPOILT(conv->conv_bias = 1, "layer 0 state: there is no head, all of its config must be 0");
    SPOILT(conv->norm_eps = 1e-6f, "layer 0 state: there is no head");
    SPOILT(good.layers[1].state.taps = 3, "layer 1 state: there is no state, all of its config must be 0");
    SPOILT(good.layers[0].attention.alibi = 1, "layer 0: there is no attention, all of its config must be 0");
    SPOILT(good.layers[2].attention.output_gate = 1, "layer 2: there is no attention");
    SPOILT(good.layers[2].ffn.shared_gate = 1, "layer 2 FFN: there is no FFN, all of its config must be 0");
    SPOILT(good.layers[2].ffn_norm_replaces = 1, "layer 2 FFN: ffn_norm_replaces is 1, must be 0");
    SPOILT(good.layers[0].attn_norm_replaces = 1;
           *conv = (lw_state_config){0}, "layer 0 FFN: attn_norm_replaces is 1, must be 0");
    SPOILT(good.layers[3].result_norms = 1, "layer 3 FFN: result_norms is 1, must be 0 with attention beside a state");
    SPOILT(delta->n_heads = 5, "layer 2 state: 5 heads cannot share 2 key heads evenly");
    SPOILT(delta->n_key_heads = 0, "layer 2 state: n_key_heads is 0");
    SPOILT(delta->value_dim = 24, "layer 2 state: value_dim is 24, must be a multiple of 16");
    SPOILT(delta->key_dim = 272, "layer 2 state: key_dim is 272, must be 16 to 256");
    SPOILT(delta->keys_in_turn = 2, "layer 2 state: keys_in_turn is 2");
    SPOILT(delta->conv_bias = 1, "layer 2 state: conv_bias is 1, must be 0");
    SPOILT(delta->norm_size = 32, "layer 2 state: norm_size is 32, must be 0");
    SPOILT(delta->norm_eps = NAN, "layer 2 state: norm_eps is nan");
    SPOILT(ssd->norm_size = 48, "layer 3 state: norm_size is 48, must divide 128");
    SPOILT(ssd->norm_size = 256, "layer 3 state: norm_size is 256, must be 0 to 128");
    SPOILT(delta->decay_rank = 1, "layer 2 state: decay_rank is 1, must be 0");
    SPOILT(ssd->gate_rank = 1, "layer 3 state: gate_rank is 1, must be 0");
    SPOILT(delta->decay_floor = 1, "layer 2 state: decay_floor is 1, must be 0 to 0");
    SPOILT(each->gate_rank = 1 << 17, "layer 4 state: gate_rank is 131072, must be 0 to 65536");
    SPOILT(each->decay_floor = -1, "layer 4 state: decay_floor is -1, must be 0 to 80");
    SPOILT(each->decay_floor = 81, "layer 4 state: decay_floor is 81, must be 0 to 80");
    SPOILT(each->conv_bias = 1, "layer 4 state: conv_bias is 1, must be 0");
    SPOILT(*delta = (lw_state_config){0}, "layer 2 FFN: kind is 3, and the layer has neither attention nor a state");
    SPOILT(good.layers[1].attention.output_gate = 3, "layer 1: output_gate is 3, must be 0 to 2");
    SPOILT(good.layers[1].attention = good.layers[3].attention = (lw_attention_config){0},
           "none of 5 layers has attention");
    SPOILT(c->pooled = 1, "layer 0 state: kind is 1, must be 0");
#undef SPOILT
}

static void test_rates(void) {
    static const float rates[] = {0.25f, 0};
    lw_model* grows = load_model_with(&rates[0]);
    expect(lw_model_finish(grows) == LW_ERR_FORMAT, "a state that grows from token to token");
    const char* says = "layer 2 state rate: that of head 1 is 0.25, must be 0 or less";
    expect(strstr(lw_last_error(), says) != NULL, says);
    lw_model_close(grows);
    lw_model* stays = load_model_with(&rates[1]);
    expect(lw_model_finish(stays) == LW_OK, "one that does not shrink");
    lw_model_close(stays);
}

static lw_session* open_session(const lw_model* model, uint32_t n_states) {
    lw_session_config config = small_session(2, LW_F32);
    config.max_adapter_rank = 0;
    config.n_states = n_states;
    lw_session* session = NULL;
    if (lw_session_open(model, &config, &session) != LW_OK) exit(2);
    return session;
}

static void test_sessions(const lw_model* model) {
    lw_session* session = NULL;
    lw_session_config config = small_session(2, LW_F32);
    ARGUMENT(lw_session_open(model, &config, &session), "n_states is 0, must be at least 1");
    const uniform_config plain = small_config();
    lw_model* other = NULL;
    expect(
        uniform_create(&plain, NULL, 1, &other) == LW_OK && load_all(other) == LW_OK && lw_model_finish(other) == LW_OK,
        "a model without states");
    config.n_states = 1;
    ARGUMENT(lw_session_open(other, &config, &session), "n_states is 1, must be 0");
    lw_kv_layout layout;
    expect(lw_model_kv_layout(other, LW_F32, 0, &layout) == LW_OK && layout.state_bytes == 0, "no state, no bytes");
    expect(lw_model_kv_layout(model, LW_F32, 0, &layout) == LW_OK, "the layout of a model with states");
    // Tails of 2 x 64 and three times 3 x 192 inputs, three times four heads of 16 x 32.
    expect(layout.state_bytes == 4 * (2 * 64 + 3 * 3 * 192 + 3 * 4 * 16 * 32), "bytes of a place");
    expect(layout.block_bytes == 2 * 4 * LW_BLOCK_TOKENS * KV_HEADS * DIM * 2, "two layers have keys and values");
    lw_model_close(other);
}

// Places whose bytes do not fit into 64 bits are refused, not wrapped around.
static void test_sizes(void) {
    enum { LAYERS = 1000 };
    lw_model model = {.config.n_layers = LAYERS, .layers = calloc(LAYERS, sizeof(lw_layer))};
    if (model.layers == NULL) exit(2);
    for (int i = 0; i < LAYERS; ++i)
        model.layers[i].config.state = (lw_state_config){
            .kind = LW_SSD, .taps = 8, .n_heads = 1024, .value_dim = 256, .n_key_heads = 1024, .key_dim = 256};
    const uint64_t bytes = lw_state_place_bytes(&model, 0);
    expect(bytes == 4 * (uint64_t)LAYERS * (7 * 3 * 1024 * 256 + 1024 * 256 * 256), "bytes of the largest place");
    static size_t floats[LAYERS];
    for (uint32_t i = 0; i < LAYERS; ++i) floats[i] = lw_kept_floats(&model, i, 0);
    lw_states states;
    expect(!lw_states_open(floats, LAYERS, (uint32_t)(UINT64_MAX / bytes) + 1, 0, &states),
           "more places than there are bytes");
    lw_states_close(&states);
    free(model.layers);
}

// What is not there cannot be adapted, and the message says what.
static void test_adapters(const lw_model* model) {
    static float values[HIDDEN];
    lw_adapter* adapter = NULL;
    expect(lw_adapter_create(model, &adapter) == LW_OK, "an adapter of a model with states");
    const lw_tensor any = float_tensor(values, 1, HIDDEN, 1);
    ARGUMENT(lw_adapter_load(adapter, LW_ATTN_Q, 0, &any, &any, 1), "layer 0 has no attention Q that can be adapted");
    ARGUMENT(lw_adapter_load(adapter, LW_FFN_UP, 2, &any, &any, 1), "layer 2 has no FFN up that can be adapted");
    ARGUMENT(lw_adapter_load(adapter, LW_FFN_GATE, 3, &any, &any, 1), "layer 3 has no FFN gate that can be adapted");
    ARGUMENT(lw_adapter_load(adapter, LW_STATE_CONV, 0, &any, &any, 1), "no matrix of role 54 in layer 0");
    ARGUMENT(lw_adapter_load(adapter, LW_STATE_KEYS, 2, &any, &any, 1),
             "layer 2 has no state keys that can be adapted");
    ARGUMENT(lw_adapter_load(adapter, LW_STATE_GATE, 4, &any, &any, 1),
             "layer 4 has a state whose gate reads a product of 40 values; it cannot be adapted");
    ARGUMENT(lw_adapter_load(adapter, LW_STATE_DECAY, 4, &any, &any, 1), "whose decay reads a product of 24 values");
    lw_adapter_close(adapter);
}

static void refuse_batch(lw_session* session, one_sequence* s, const char* says) {
    ARGUMENT(lw_step(session, &s->batch, s->logits, &s->drawn), says);
}

static void test_batches(const lw_model* model) {
    lw_session* session = open_session(model, N_STATES);
    one_sequence s = {0};
    const uint32_t far[] = {N_STATES}, copies[] = {0, 1, 1, N_STATES};
    set_batch(&s, 3, 0, 0);
    s.batch.table_rows = far;
    refuse_batch(session, &s, "sequence 0 has its state in place 5, the session has 5");
    set_batch(&s, 3, 0, 0);
    s.batch.n_state_copies = 2;
    refuse_batch(session, &s, "state_copies must not be NULL");
    s.batch.state_copies = copies;
    refuse_batch(session, &s, "state_copies[1] has place 5, the session has 5");
    s.batch.n_state_copies = 1u << 31;
    refuse_batch(session, &s, "state_copies[1] has place 5");
    const uint32_t starts[] = {0, 1, 2}, lens[] = {0, 0}, same[] = {0, 0}, blocks[] = {0, 1};
    set_batch(&s, 2, 0, 0);
    s.batch.n_seqs = 2, s.batch.query_start = starts, s.batch.context_lens = lens, s.batch.table_rows = same;
    s.batch.block_tables = blocks;
    refuse_batch(session, &s, "sequence 1 has its state in place 0, as one before it");
    lw_session_close(session);
}

static const lw_adapter* adapter_of_runs;  // or NULL

// Logits behind `n` tokens, `chunk` at a time, of which only the last one asks for logits; the state in `place`.
static void run(lw_session* session, uint32_t place, uint32_t n, uint32_t chunk, float logits[VOCAB]) {
    uint32_t tables[N_STATES];
    for (uint32_t i = 0; i < N_STATES; ++i) tables[i] = i;
    for (uint32_t at = 0; at < n; at += chunk) {
        one_sequence s = {0};
        set_batch(&s, chunk < n - at ? chunk : n - at, at, 0);
        for (uint32_t i = 0; i < chunk; ++i) s.tokens[i] = (7 * (at + i) + 3) % VOCAB;
        s.batch.table_rows = &place;
        s.batch.block_tables = tables;
        s.batch.adapters = &adapter_of_runs;
        if (chunk < n - at) s.batch.n_logits = 0;
        expect(lw_step(session, &s.batch, s.logits, &s.drawn) == LW_OK, "a chunk");
        memcpy(logits, s.logits, sizeof s.logits);
    }
}

static void test_places(const lw_model* model) {
    float wanted[VOCAB], found[VOCAB];
    lw_session* session = open_session(model, N_STATES);
    run(session, 0, N_TOKENS, N_TOKENS, wanted);
    for (uint32_t chunk = 1; chunk < 9; chunk += 3)
        for (uint32_t place = 0; place < N_STATES; ++place) {
            run(session, place, N_TOKENS, chunk, found);  // what was in the place does not matter
            expect(memcmp(found, wanted, sizeof found) == 0, "a state has the same bits wherever it is, in any chunks");
        }
    lw_session_close(session);
}

static void adapt(lw_adapter* adapter, lw_role role, uint32_t layer, uint32_t cols, uint32_t rows) {
    enum { MOST = 128 };  // rows or columns of what is adapted
    static float down[3 * MOST], up[3 * MOST];
    expect(rows <= MOST && cols <= MOST, "there is room for an adapter's values");
    const lw_tensor a = float_tensor(down, 3, cols, 7), b = float_tensor(up, rows, 3, 8);
    expect(lw_adapter_load(adapter, role, layer, &a, &b, 0.5f) == LW_OK, "a matrix is adapted");
}

// Adapters of what layers do have: nothing of it stays for the products of layers that have something else.
static void test_adapted(const lw_model* model) {
    float plain[VOCAB], wanted[VOCAB], found[VOCAB];
    lw_session_config config = small_session(2, LW_F32);
    config.n_states = N_STATES;
    config.observe_inputs = 1;
    lw_session* session = NULL;
    lw_adapter* adapter = NULL;
    expect(lw_session_open(model, &config, &session) == LW_OK, "a session with adapters and states");
    expect(lw_adapter_create(model, &adapter) == LW_OK, "an adapter");
    run(session, 0, N_TOKENS, N_TOKENS, plain);
    adapter_of_runs = adapter;
    run(session, 0, N_TOKENS, N_TOKENS, found);
    expect(memcmp(found, plain, sizeof plain) == 0, "an adapter of nothing changes nothing");
    adapt(adapter, LW_FFN_DOWN, 0, FFN, HIDDEN);
    adapt(adapter, LW_ATTN_Q, 1, HIDDEN, HEADS * DIM);
    adapt(adapter, LW_ATTN_OUTPUT, 3, HEADS * DIM, HIDDEN);
    adapt(adapter, LW_STATE_IN, 4, HIDDEN, 32);
    adapt(adapter, LW_STATE_VALUES, 4, HIDDEN, 128);
    run(session, 0, N_TOKENS, N_TOKENS, wanted);
    expect(memcmp(wanted, plain, sizeof plain) != 0, "one of some matrices changes logits");
    for (uint32_t chunk = 1; chunk < 9; chunk += 3) {
        run(session, 1, N_TOKENS, chunk, found);
        expect(memcmp(found, wanted, sizeof found) == 0, "and those are the same in any chunks");
    }
    adapter_of_runs = NULL;
    run(session, 0, N_TOKENS, 4, found);
    expect(memcmp(found, plain, sizeof plain) == 0, "without it they are what they were");
    lw_session_close(session);
    lw_adapter_close(adapter);
}

// A state of one session goes on in another, whose places also have room for guesses, with the same bits.
static void test_states_from_elsewhere(const lw_model* model) {
    float wanted[VOCAB], found[VOCAB];
    lw_session *here = open_session(model, N_STATES), *there = NULL;
    lw_session_config config = small_session(1, LW_F32);
    config.max_adapter_rank = 0, config.n_states = N_STATES, config.max_guesses = 3;
    expect(lw_session_open(model, &config, &there) == LW_OK, "a session with guesses");
    run(here, 2, N_TOKENS, N_TOKENS, wanted);
    run(here, 2, N_TOKENS - 1, 7, found);
    const size_t n = lw_session_state_bytes(here), n_block = lw_session_block_bytes(here);
    lw_kv_layout layout;
    expect(lw_model_kv_layout(model, LW_F32, 0, &layout) == LW_OK && layout.state_bytes == n, "the bytes of a state");
    expect(lw_session_state_bytes(there) == n, "are those without guesses");
    uint8_t *state = malloc(n + 1), *again = malloc(n), *block = malloc(n_block);
    if (state == NULL || again == NULL || block == NULL) exit(2);
    state[n] = 0x5A;
    expect(lw_session_read_state(here, 2, state) == LW_OK && state[n] == 0x5A, "as many bytes are read as are said");
    expect(lw_session_read_block(here, 2, block) == LW_OK, "and the block");
    for (uint32_t place = 0; place < N_STATES; place += 3) {
        expect(lw_session_write_state(there, place, state) == LW_OK, "a state is written");
        expect(lw_session_read_state(there, place, again) == LW_OK && memcmp(again, state, n) == 0, "and read again");
        expect(lw_session_write_block(there, 0, block) == LW_OK, "and the block");
        one_sequence s = {0};
        const uint32_t tables[N_STATES] = {0};
        set_batch(&s, 1, N_TOKENS - 1, 0);
        s.tokens[0] = (7 * (N_TOKENS - 1) + 3) % VOCAB;
        s.batch.table_rows = &place, s.batch.block_tables = tables;
        expect(lw_step(there, &s.batch, s.logits, &s.drawn) == LW_OK, "the token after it");
        expect(memcmp(s.logits, wanted, sizeof wanted) == 0, "a sequence goes on behind a state of elsewhere");
    }
    ARGUMENT(lw_session_read_state(NULL, 0, state), "must not be NULL");
    ARGUMENT(lw_session_read_state(here, 0, NULL), "must not be NULL");
    ARGUMENT(lw_session_read_state(here, N_STATES, state), "place is 5; accepted: less than 5");
    ARGUMENT(lw_session_write_state(NULL, 0, state), "must not be NULL");
    ARGUMENT(lw_session_write_state(here, 0, NULL), "must not be NULL");
    ARGUMENT(lw_session_write_state(here, UINT_MAX, state), "place is 4294967295");
    free(state), free(again), free(block);
    lw_session_close(here);
    lw_session_close(there);
}

// A step that fails as it runs loses the states of its sequences and no other's; its copies are made, in their order.
static void test_a_failed_step(const lw_model* model) {
    float wanted[VOCAB], found[VOCAB];
    lw_session *session = open_session(model, N_STATES), *fresh = open_session(model, N_STATES);
    run(fresh, 2, N_TOKENS, N_TOKENS, wanted);
    lw_model* bad = (lw_model*)model;
    run(session, 2, N_TOKENS - 1, 6, found);
    one_sequence s = {0};
    set_batch(&s, 4, 0, 4);
    const uint32_t place = 0, tables[] = {4}, copies[] = {2, 3, 3, 1};
    s.batch.table_rows = &place, s.batch.block_tables = tables;
    s.batch.n_state_copies = 2, s.batch.state_copies = copies;
    float* weight = &bad->layers[2].state_norm[0];
    const float kept = *weight;
    *weight = NAN;
    expect(lw_step(session, &s.batch, s.logits, &s.drawn) == LW_ERR_NONFINITE, "a step that fails as it runs");
    *weight = kept;
    const uint32_t places[] = {2, 1};
    for (int i = 0; i < 2; ++i) {  // the state itself, then the copy of its copy
        const uint32_t row = places[i];
        const uint32_t all[N_STATES] = {2, 2, 2, 2, 2};
        one_sequence last = {0};
        set_batch(&last, 1, N_TOKENS - 1, 0);
        last.tokens[0] = (7 * (N_TOKENS - 1) + 3) % VOCAB;
        last.batch.table_rows = &row, last.batch.block_tables = all;
        expect(lw_step(session, &last.batch, last.logits, &last.drawn) == LW_OK, "a step after one that failed");
        expect(memcmp(last.logits, wanted, sizeof wanted) == 0, "others' states are what they were");
    }
    run(session, 0, N_TOKENS, 5, found);
    expect(memcmp(found, wanted, sizeof found) == 0,
           "from its first token on a sequence whose state was lost has its bits");
    lw_session_close(session);
    lw_session_close(fresh);
}

// Numbers that are none in what states are made of are found, whichever part they come through.
static void test_numbers_that_are_none(lw_model* model) {
    float* const places[] = {&model->layers[0].state_conv[0],       &model->layers[2].state_conv[5],
                             &model->layers[2].state_rate[0],       &model->layers[3].state_decay_bias[1],
                             &model->layers[3].state_skip[0],       &model->layers[3].state_norm[0],
                             &model->layers[2].state_decay_bias[3], &model->layers[4].state_decay_bias[33],
                             &model->layers[4].state_rate[3],       &model->layers[4].state_conv[700]};
    for (size_t i = 0; i < sizeof places / sizeof *places; ++i) {
        lw_session* session = open_session(model, 1);
        one_sequence s = {0};
        set_batch(&s, 5, 0, 0);
        const float kept = *places[i];
        *places[i] = NAN;
        char what[40];
        snprintf(what, sizeof what, "place %zu is no number", i);
        expect(
            lw_step(session, &s.batch, s.logits, &s.drawn) == LW_ERR_NONFINITE || (s.drawn.status == LW_ERR_NONFINITE),
            what);
        *places[i] = kept;
        expect(lw_step(session, &s.batch, s.logits, &s.drawn) == LW_OK && s.drawn.status == LW_OK,
               "nothing of it stays in a place that begins anew");
        lw_session_close(session);
    }
}

int main(void) {
    alarm(300);  // what hangs fails
    test_configs();
    test_rates();
    lw_model* model = new_model();
    test_sessions(model);
    test_sizes();
    test_adapters(model);
    test_batches(model);
    test_places(model);
    test_adapted(model);
    test_states_from_elsewhere(model);
    has_head = true;
    lw_model* with_head = new_model();
    test_states_from_elsewhere(with_head);
    lw_model_close(with_head);
    has_head = false;
    test_a_failed_step(model);
    test_numbers_that_are_none(model);
    lw_model_close(model);
    return report();
}
