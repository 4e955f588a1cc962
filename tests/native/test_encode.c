// Pooled models: one text, one answer. Models of pooled_models.h run over one set of texts at every level of this CPU, with
// 1 to 3 threads, alone and together. Prints "model hash" lines; then what lw_encode refuses. --isa=NAME: only that level;
// --quick: all together only; --part=K/N: every Nth model.
#include <math.h>

#include "hash_floats.h"
#include "model/model.h"
#include "numa.h"
#include "pooled_models.h"

enum { N_TEXTS = 7, TOKENS = 1600 };
static const uint32_t lengths[N_TEXTS] = {1, 33, 64, 1100, 5, 96, 70};

static lw_session* open(const lw_model* model, const variant* v, uint32_t threads) {
    return open_pooled(model, v, threads, TOKENS, N_TEXTS);
}

static uint32_t ids[TOKENS], types[TOKENS];

static void fill_text(uint32_t text, uint32_t at) {
    for (uint32_t i = 0; i < lengths[text]; ++i) {
        ids[at + i] = (text * 7 + i * i + 3) % VOCAB;
        types[at + i] = i > lengths[text] / 2;
    }
}

// Results of all texts, `together` at a time; returns how many floats.
static size_t encode(const lw_model* model, const variant* v, uint32_t threads, uint32_t together, float* out) {
    lw_session* session = open(model, v, threads);
    const uint32_t dims = lw_model_dims(model);
    size_t done = 0;
    for (uint32_t first = 0; first < N_TEXTS; first += together) {
        uint32_t start[N_TEXTS + 1] = {0}, n = 0;
        for (uint32_t t = first; t < N_TEXTS && t < first + together; ++t) {
            if (lengths[t] > 1024 && v->type == LW_Q8_0) continue;  // one float and one coded model will do
            fill_text(t, start[n]);
            start[n + 1] = start[n] + lengths[t];
            ++n;
        }
        if (n == 0) continue;
        const lw_texts texts = {n, start, ids, v->after ? types : NULL, v->pooling, v->pooling != LW_POOL_LAST, NULL};
        expect(lw_encode(session, &texts, out + done) == LW_OK, "lw_encode");
        done += (size_t)(v->pooling == LW_POOL_NONE ? start[n] : n) * dims;
    }
    lw_session_close(session);
    return done;
}

static void test_one_answer(const variant* v, const char* only, bool quick) {
    static const struct {
        uint32_t threads, together;
    } ways[] = {{2, N_TEXTS}, {1, 1}, {3, 2}};
    static float out[TOKENS * 192];
    uint64_t golden = 0;
    for (size_t l = 0; l < LW_LEVEL_COUNT; ++l) {
        const char* level = lw_level_names[l];
        if (lw_cpu_check(level) != LW_OK || (only != NULL && strcmp(level, only) != 0)) continue;
        lw_model* model = make_model(v, level);
        for (size_t w = 0; w < (quick ? 1 : sizeof ways / sizeof *ways); ++w) {
            const size_t n = encode(model, v, ways[w].threads, ways[w].together, out);
            const uint64_t hash = hash_floats(hash_of_nothing, out, n);
            if (golden == 0) golden = hash;
            char what[128];
            snprintf(what, sizeof what, "%s, %s: %u threads, %u together", v->name, level, ways[w].threads,
                     ways[w].together);
            expect(hash == golden, what);
        }
        lw_model_close(model);
    }
    printf("%s %016llx\n", v->name, (unsigned long long)golden);
}

// What no other text may change, and what a query must see: the last token of a text changes the first one's row.
static void test_both_ways(void) {
    const variant* v = &variants[2];
    lw_model* model = make_model(v, NULL);
    lw_session* session = open(model, v, 1);
    const uint32_t start[2] = {0, 64}, dims = lw_model_dims(model);
    static float before[64 * 96], after[64 * 96];
    fill_text(2, 0);
    const lw_texts texts = {1, start, ids, NULL, LW_POOL_NONE, 0, NULL};
    expect(dims == 96 && lw_encode(session, &texts, before) == LW_OK, "rows of a text");
    ids[63] = (ids[63] + 1) % VOCAB;
    expect(lw_encode(session, &texts, after) == LW_OK, "rows of another");
    expect(memcmp(before, after, dims * sizeof(float)) != 0, "the first row depends on the last token");
    lw_session_close(session);
    lw_model_close(model);
}

// Tokens that are not seen change no row but their own, and theirs depend on those that are.
static void test_seen(void) {
    const variant* v = &variants[2];
    lw_model* model = make_model(v, NULL);
    lw_session* session = open(model, v, 1);
    enum { N = 45, SEEN = 33, DIMS = 96 };
    const uint32_t start[2] = {0, N}, alone[2] = {0, SEEN}, seen[1] = {SEEN};
    static float whole[N * DIMS], rows[N * DIMS], others[N * DIMS];
    fill_text(2, 0);
    const lw_texts cut = {1, alone, ids, NULL, LW_POOL_NONE, 0, NULL};
    const lw_texts texts = {1, start, ids, NULL, LW_POOL_NONE, 0, seen};
    expect(lw_encode(session, &cut, whole) == LW_OK && lw_encode(session, &texts, rows) == LW_OK, "rows of a text");
    expect(memcmp(whole, rows, SEEN * DIMS * sizeof(float)) == 0, "what is seen has the rows that it has alone");
    ids[N - 2] = (ids[N - 2] + 1) % VOCAB;
    expect(lw_encode(session, &texts, others) == LW_OK, "rows of another");
    expect(memcmp(rows, others, (N - 2) * DIMS * sizeof(float)) == 0, "rows before a token that is not seen");
    expect(memcmp(rows + (N - 2) * DIMS, others + (N - 2) * DIMS, DIMS * sizeof(float)) != 0, "its own row");
    expect(memcmp(rows + (N - 1) * DIMS, others + (N - 1) * DIMS, DIMS * sizeof(float)) == 0, "the row behind it");
    ids[SEEN - 1] = (ids[SEEN - 1] + 1) % VOCAB;
    expect(lw_encode(session, &texts, rows) == LW_OK, "rows of a third");
    expect(memcmp(rows + (N - 1) * DIMS, others + (N - 1) * DIMS, DIMS * sizeof(float)) != 0, "the last row sees it");
    lw_session_close(session);
    lw_model_close(model);
}

static void test_refusals(void) {
    const variant* v = &variants[0];
    lw_model* model = make_model(v, NULL);
    lw_session* session = open(model, v, 1);
    uint32_t start[3] = {0, 4, 9};
    static float out[2 * 72];
    lw_kv_layout layout;
    fill_text(3, 0);
    memset(types, 0, sizeof types);
    const lw_texts good = {2, start, ids, types, LW_POOL_MEAN, 1, NULL};
    lw_texts bad;
#define SPOILT(change, says)                           \
    do {                                               \
        bad = good;                                    \
        change;                                        \
        ARGUMENT(lw_encode(session, &bad, out), says); \
        start[0] = 0, start[1] = 4, start[2] = 9;      \
        ids[8] = types[8] = 0;                         \
    } while (0)
    ARGUMENT(lw_encode(NULL, &good, out), "must not be NULL");
    ARGUMENT(lw_encode(session, NULL, out), "must not be NULL");
    ARGUMENT(lw_encode(session, &good, NULL), "must not be NULL");
    SPOILT(bad.start = NULL, "must not be NULL");
    SPOILT(bad.token_ids = NULL, "must not be NULL");
    const uint32_t none_seen[2] = {4, 0}, some[2] = {4, 3}, more[2] = {5, 5};
    SPOILT(bad.seen = none_seen, "text 1: 0 of 5 tokens are seen");
    SPOILT(bad.seen = some, "text 1: 3 of 5 tokens are seen");  // and pooled
    SPOILT((bad.seen = more, bad.pooling = LW_POOL_NONE), "text 0: 5 of 4 tokens are seen");
    SPOILT(bad.n_texts = 0, "0 texts, must be 1 to 7");
    SPOILT(bad.n_texts = 8, "8 texts, must be 1 to 7");
    SPOILT(bad.pooling = (lw_pooling)5, "pooling is 5");
    SPOILT(bad.normalize = 2, "normalize 2");
    SPOILT(start[0] = 1, "start[0] is 1");
    SPOILT(start[1] = 0, "text 0: it must have a token");
    SPOILT(start[1] = 9, "text 1: it must have a token");
    SPOILT(start[2] = 2, "text 1: it must have a token");
    SPOILT(start[2] = 4 + CONTEXT + 1, "text 1: 1101 tokens, must be at most 1100");
    SPOILT((start[1] = 800, start[2] = 1700), "1700 tokens, must be at most 1600");
    SPOILT(ids[8] = VOCAB, "text 1: token id 50, the vocabulary has 50");
    SPOILT(types[8] = 2, "text 1: token type 2, the model has 2");
#undef SPOILT
    expect(lw_encode(session, &good, out) == LW_OK, "the texts themselves are good");
    const lw_batch none = {0};
    ARGUMENT(lw_step(session, &none, out, NULL), "lw_encode runs it");
    ARGUMENT(lw_session_start(session, &none, out, NULL), "lw_encode runs it");
    ARGUMENT(lw_model_kv_layout(model, LW_F16, 0, &layout), "has no cache");
    lw_session* other = NULL;
    lw_session_config config = {.n_threads = 1, .max_batch_tokens = 32, .max_batch_logits = 1, .kv_type = LW_F32};
    config.max_adapter_rank = 4;
    ARGUMENT(lw_session_open(model, &config, &other), "max_adapter_rank 4 and groups_by_window 0, must be 0");
    config.max_adapter_rank = 0;
    config.groups_by_window = 1;
    ARGUMENT(lw_session_open(model, &config, &other), "groups_by_window 1");
    lw_session_close(session);
    lw_model_close(model);
    HARMLESS(lw_model_dims(NULL));
    expect(lw_model_dims(NULL) == 0, "no model has no results");
}

// Infinity before a head's tanh, which makes 1 of it.
static void test_not_finite(void) {
    const variant* v = &variants[3];
    large = 3e38f;
    lw_model* model = make_model(v, NULL);
    large = 1;
    lw_session* session = open(model, v, 1);
    const uint32_t start[2] = {0, 33};
    static float out[3];
    fill_text(1, 0);
    const lw_texts texts = {1, start, ids, NULL, v->pooling, 0, NULL};
    REFUSED(lw_encode(session, &texts, out), LW_ERR_NONFINITE, "NaN or infinity");
    lw_session_close(session);
    lw_model_close(model);
}

// Heads, and the tables that are looked up in, are among what is held.
static void test_describe(void) {
    lw_model_info info;
    lw_model* model = make_model(&variants[3], NULL);
    expect(lw_model_describe(model, &info) == LW_OK, "lw_model_describe");
    const uint64_t layers = 2 * (4 * 64 * 64 + 3 * 64 * 96), heads = 96 * 64 + 3 * 96;
    expect(info.matrix_weights == layers + heads && info.layer_weights == layers, "heads are counted");
    expect(info.packed_bytes >= sizeof(float) * (layers + heads + VOCAB * 64), "their bytes");
    lw_model_close(model);
    if (lw_numa_check((const uint32_t[]){0}, 1) == LW_OK) {
        copies = 2;
        model = make_model(&variants[3], NULL);
        copies = 1;
        const lw_model* copy = lw_model_replica(model, 1);
        const uint64_t once = info.packed_bytes + info.matrix_bytes;
        expect(lw_model_describe(model, &info) == LW_OK && info.packed_bytes == once, "a copy is counted");
        for (int i = 0; i < 2; ++i)
            expect(copy->dense[i].matrix.data != model->dense[i].matrix.data, "a copy has heads of its own");
        expect(copy->embedding.data == model->embedding.data, "and no table of tokens");
        lw_model_close(model);
    }
    model = make_model(&variants[0], NULL);
    expect(lw_model_describe(model, &info) == LW_OK, "lw_model_describe");
    expect(info.packed_bytes >= sizeof(float) * (info.held_weights + (VOCAB + CONTEXT + 2) * 72), "tables are counted");
    lw_model_close(model);
}

static void test_configs(void) {
    layered c;
    lw_model* model = NULL;
#define SPOILT(change, says)                                        \
    do {                                                            \
        set_config(&variants[0], &c);                               \
        change;                                                     \
        ARGUMENT(lw_model_create(&c.model, NULL, 1, &model), says); \
    } while (0)
    SPOILT(c.model.pooled = 2, "pooled is 2");
    SPOILT(c.model.pooled = 0, "n_token_types is 2, must be 0");
    SPOILT(c.model.norm = (lw_norm_kind)2, "norm is 2");
    SPOILT(c.model.norm = LW_NORM_RMS, "norm_bias is 1, must be 0");
    SPOILT(c.model.n_positions = 7, "n_positions is 7, must be 0 or context_length (1100)");
    SPOILT(c.model.n_dense = 9, "n_dense is 9, must be 0 to 8");
    SPOILT((c.model.n_dense = 1, c.model.dense = NULL), "dense must not be NULL");
    SPOILT(c.layers[1].attention.both_ways = 2, "layer 1: both_ways is 2");
    SPOILT(c.layers[1].attn_norm_replaces = 2, "attn_norm_replaces is 2");
    SPOILT(c.layers[1].ffn_norm_replaces = 3, "ffn_norm_replaces is 3");
    SPOILT(c.layers[1].result_norms = 2, "result_norms is 2");
    SPOILT(c.layers[1].result_norms = 1, "result_norms is 1, must be 0 with experts");
    SPOILT(c.layers[1].ffn.activation = LW_TANH, "layer 1 FFN: activation is 5");
    SPOILT(c.layers[1].ffn.activation = LW_CLAMPED, "layer 1 FFN: activation is 1, which needs a gate");
#undef SPOILT
    lw_dense_config odd = {.activation = LW_TANH};
    set_config(&variants[0], &c);
    c.model.n_dense = 1;
    c.model.dense = &odd;
    ARGUMENT(lw_model_create(&c.model, NULL, 1, &model), "dense head 0: outputs is 0");
    odd = (lw_dense_config){.outputs = 1, .activation = LW_CLAMPED};
    ARGUMENT(lw_model_create(&c.model, NULL, 1, &model), "dense head 0: activation needs a gate");
}

int main(int argc, char** argv) {
    const char* only = NULL;
    bool calls = false, quick = false;
    unsigned long part = 0, parts = 1;
    for (int i = 1; i < argc; ++i) {
        if (strncmp(argv[i], "--isa=", 6) == 0) only = argv[i] + 6;
        if (strncmp(argv[i], "--part=", 7) == 0) {
            char* rest;
            part = strtoul(argv[i] + 7, &rest, 10);
            parts = strtoul(rest + 1, NULL, 10);
        }
        quick |= strcmp(argv[i], "--quick") == 0;
        calls |= strcmp(argv[i], "--calls") == 0;
    }
    for (unsigned i = part; !calls && i < N_VARIANTS; i += parts) test_one_answer(&variants[i], only, quick);
    test_both_ways();
    test_seen();
    test_refusals();
    test_not_finite();
    test_describe();
    test_configs();
    if (calls) list_calls();
    return report();
}
