// Pooled models: a text's answer is the same bits alone and among 512 others, while a model that writes text runs in the
// same process, at every level of this CPU. Prints "model hash" lines. --isa=NAME: only that level.
#include <pthread.h>
#include <stdatomic.h>

#include "hash_floats.h"
#include "model/model.h"
#include "pooled_models.h"

enum { N_TEXTS = 512, LONGEST = 40, TOKENS = 4096, MAX_DIMS = 64, PROMPT = 8, STEPS = 3, MAX_ROUNDS = 1000 };

static const variant crowded[] = {
    {"f32, 512 texts", LW_F32, true, LW_F32, LW_POOL_MEAN, 48, 4, 80, 0},
    {"q8_0, 512 texts", LW_Q8_0, false, LW_F16, LW_POOL_LAST, 64, 2, 96, 0},
};

static uint32_t start[N_TEXTS + 1], ids[TOKENS], types[TOKENS];

// Texts of 1 to LONGEST tokens, short ones most of all.
static void fill_texts(void) {
    for (uint32_t t = 0; t < N_TEXTS; ++t) {
        const uint32_t n = t % 16 == 7 ? LONGEST - t % 3 : 1 + t * t % 7;
        start[t + 1] = start[t] + n;
        for (uint32_t i = 0; i < n; ++i) {
            ids[start[t] + i] = (t * 11 + i * i + 3) % VOCAB;
            types[start[t] + i] = i > n / 2;
        }
    }
}

static lw_status encode(lw_session* session, const variant* v, uint32_t first, uint32_t n, float* out) {
    uint32_t starts[N_TEXTS + 1];
    for (uint32_t t = 0; t <= n; ++t) starts[t] = start[first + t] - start[first];
    const lw_texts texts = {n, starts, ids + start[first], v->after ? types + start[first] : NULL, v->pooling, 1, NULL};
    return lw_encode(session, &texts, out);
}

// A chat: one prompt after the other, whose logits must be the first one's.
typedef struct chat {
    const lw_model* model;
    pthread_t thread;
    atomic_uint steps;
    atomic_bool over;
    bool wrong;
} chat;

static void* talk(void* argument) {
    chat* c = argument;
    const lw_session_config config = small_session(1, LW_F16);
    lw_session* session = NULL;
    c->wrong = lw_session_open(c->model, &config, &session) != LW_OK;
    float expected[VOCAB];
    while (!c->wrong && !atomic_load(&c->over)) {
        one_sequence s = {0};
        set_batch(&s, PROMPT, 0, 0);
        c->wrong = lw_step(session, &s.batch, s.logits, &s.drawn) != LW_OK;
        if (atomic_load(&c->steps) == 0) memcpy(expected, s.logits, sizeof expected);
        c->wrong |= memcmp(expected, s.logits, sizeof expected) != 0;
        atomic_fetch_add(&c->steps, 1);
    }
    lw_session_close(session);
    return NULL;
}

static lw_model* open_writer(const char* level) {
    const uniform_config config = small_config();
    lw_model* model = NULL;
    if (uniform_create(&config, level, 1, &model) != LW_OK || load_all(model) != LW_OK ||
        lw_model_finish(model) != LW_OK)
        exit(1);
    return model;
}

// All texts together, again and again until the chat has come some steps further.
static uint64_t together_beside_a_chat(lw_session* session, const variant* v, size_t floats, float* out,
                                       const char* level) {
    lw_model* writer = open_writer(level);
    chat c = {.model = writer};
    if (pthread_create(&c.thread, NULL, talk, &c) != 0) exit(1);
    uint64_t hash = 0;
    unsigned rounds = 0;
    for (unsigned begun = 0; rounds < MAX_ROUNDS && (rounds == 0 || atomic_load(&c.steps) < begun + STEPS); ++rounds) {
        if (rounds == 0) begun = atomic_load(&c.steps);
        memset(out, 0, floats * sizeof(float));
        expect(encode(session, v, 0, N_TEXTS, out) == LW_OK, "512 texts beside a chat");
        const uint64_t found = hash_floats(hash_of_nothing, out, floats);
        if (rounds > 0) expect(found == hash, "the same texts once more");
        hash = found;
    }
    atomic_store(&c.over, true);
    pthread_join(c.thread, NULL);
    expect(rounds < MAX_ROUNDS && !c.wrong, "the chat goes on, with the same logits");
    lw_model_close(writer);
    return hash;
}

static void test_one_answer(const variant* v, const char* only) {
    static float out[N_TEXTS * MAX_DIMS];
    const size_t floats = N_TEXTS * v->hidden;
    uint64_t golden = 0;
    for (size_t l = 0; l < LW_LEVEL_COUNT; ++l) {
        const char* level = lw_level_names[l];
        if (lw_cpu_check(level) != LW_OK || (only != NULL && strcmp(level, only) != 0)) continue;
        lw_model* model = make_model(v, level);
        lw_session* session = open_pooled(model, v, 2, TOKENS, N_TEXTS);
        for (uint32_t t = 0; t < N_TEXTS; ++t)
            if (encode(session, v, t, 1, out + t * v->hidden) != LW_OK) expect(false, "a text alone");
        const uint64_t alone = hash_floats(hash_of_nothing, out, floats);
        if (golden == 0) golden = alone;
        expect(alone == golden, level);
        expect(together_beside_a_chat(session, v, floats, out, level) == golden, level);
        lw_session_close(session);
        lw_model_close(model);
    }
    printf("%s %016llx\n", v->name, (unsigned long long)golden);
}

int main(int argc, char** argv) {
    const char* only = argc > 1 && strncmp(argv[1], "--isa=", 6) == 0 ? argv[1] + 6 : NULL;
    fill_texts();
    for (size_t i = 0; i < sizeof crowded / sizeof *crowded; ++i) test_one_answer(&crowded[i], only);
    return report();
}
