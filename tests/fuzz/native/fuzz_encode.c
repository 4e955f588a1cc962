// Texts through a pooled model, right and wrong ones: lengths, ids, types, pooling, how many share a step.
//
// What is right must give the bits that a text gives alone, at level scalar with one thread; what is wrong must be
// refused and write nothing.
#include "../../native/pooled_models.h"
#include "input.h"

enum { MAX_TOKENS = 24, MAX_TEXTS = 12, MAX_FLOATS = MAX_TOKENS * 192, LEVELS = 5, KV_TYPES = 5, MAX_STEPS = 3 };
static const char* const isas[LEVELS] = {"scalar", "avx2", "avx512vnni", "avx512vbmi", NULL};
static const lw_type kv_types[KV_TYPES] = {LW_F16, LW_F32, LW_I8, LW_I4, LW_I8_I4};
static lw_model* models[N_VARIANTS][LEVELS];
static lw_session* references[N_VARIANTS][KV_TYPES];

typedef struct texts_step {
    lw_texts texts;
    uint32_t start[MAX_TEXTS + 2], ids[MAX_TOKENS], types[MAX_TOKENS];
} texts_step;

typedef struct fuzzed {
    fuzz_input* in;
    uint32_t variant, kv, dims;
    uint32_t most_tokens, most_texts;
    lw_session* session;
} fuzzed;

// A model that stays, or NULL where this CPU has no such level.
static lw_model* model_of(uint32_t variant, uint32_t level) {
    lw_model** kept = &models[variant][level];
    if (*kept == NULL && (isas[level] == NULL || lw_cpu_check(isas[level]) == LW_OK))
        *kept = make_model(&variants[variant], isas[level]);
    return *kept;
}

static lw_session* open_one(const lw_model* model, lw_type kv, uint32_t threads, uint32_t tokens, uint32_t texts) {
    const variant held = {.kv = kv};
    return open_pooled(model, &held, threads, tokens, texts);
}

static lw_session* reference_of(uint32_t variant, uint32_t kv) {
    lw_session** kept = &references[variant][kv];
    if (*kept == NULL) *kept = open_one(model_of(variant, 0), kv_types[kv], 1, MAX_TOKENS, 1);
    return *kept;
}

// As many texts as fit; false if there is none.
static bool take_texts(fuzzed* f, texts_step* s) {
    const uint32_t wanted = 1 + take_below(f->in, f->most_texts);
    uint32_t n = 0;
    memset(s, 0, sizeof *s);
    for (; n < wanted; ++n) {
        const uint32_t length = 1 + take_below(f->in, take_flag(f->in) ? MAX_TOKENS : 9);
        if (s->start[n] + length > f->most_tokens) break;
        s->start[n + 1] = s->start[n] + length;
        const uint32_t first = take_byte(f->in), step = take_byte(f->in);
        for (uint32_t i = s->start[n]; i < s->start[n + 1]; ++i) {
            s->ids[i] = (first + i * step) % VOCAB;
            s->types[i] = variants[f->variant].after ? (i + step) % 2 : 0;
        }
    }
    s->texts = (lw_texts){.n_texts = n,
                          .start = s->start,
                          .token_ids = s->ids,
                          .token_types = take_flag(f->in) ? s->types : NULL,
                          .pooling = (lw_pooling)take_below(f->in, 5),
                          .normalize = take_flag(f->in)};
    return n > 0;
}

static void compare_alone(const fuzzed* f, const texts_step* s, uint32_t t, const float* out) {
    static float alone[MAX_FLOATS];
    const bool rows = s->texts.pooling == LW_POOL_NONE;
    const uint32_t first = s->start[t], start[2] = {0, s->start[t + 1] - first};
    lw_texts one = s->texts;
    one.n_texts = 1;
    one.start = start;
    one.token_ids += first;
    if (one.token_types != NULL) one.token_types += first;
    FUZZ_CHECK(lw_encode(reference_of(f->variant, f->kv), &one, alone) == LW_OK, "alone: %s", lw_last_error());
    const size_t n = (size_t)(rows ? start[1] : 1) * f->dims, at = (size_t)(rows ? first : t) * f->dims;
    FUZZ_CHECK(memcmp(alone, out + at, n * sizeof *out) == 0, "text %u of %u differs from it alone", t,
               s->texts.n_texts);
}

static void right_step(fuzzed* f) {
    static float out[MAX_FLOATS];
    texts_step s;
    if (!take_texts(f, &s)) return;
    FUZZ_CHECK(lw_encode(f->session, &s.texts, out) == LW_OK, "%s", lw_last_error());
    compare_alone(f, &s, take_below(f->in, s.texts.n_texts), out);
}

static const char* spoil_array(fuzzed* f, texts_step* s) {
    switch (take_below(f->in, 3)) {
        case 0:
            return s->texts.start = NULL, "start that is NULL";
        case 1:
            return s->texts.token_ids = NULL, "token_ids that are NULL";
        default:
            s->texts.token_types = s->types;
            s->types[take_below(f->in, s->start[s->texts.n_texts])] = 2 + take_word(f->in) % (UINT32_MAX - 2);
            return "token_types";
    }
}

// Puts one fault into texts.
static const char* spoil(fuzzed* f, texts_step* s) {
    const uint32_t n = s->texts.n_texts, text = take_below(f->in, n), tokens = s->start[n];
    switch (take_below(f->in, 10)) {
        case 0:
            return s->texts.n_texts = 0, "n_texts";
        case 1:
            return s->texts.n_texts = f->most_texts + 1 + take_word(f->in) % 1000, "n_texts past the session's";
        case 2:
            return s->start[0] = 1 + take_byte(f->in), "start that begins late";
        case 3:
            return s->start[text + 1] = s->start[text], "a text without tokens";
        case 4:
            return s->start[text + 1] = s->start[text] + CONTEXT + 1 + take_word(f->in) % (1u << 30), "a text too long";
        case 5:
            return s->start[n] = UINT32_MAX - take_byte(f->in), "start past all";
        case 6:
            return s->ids[take_below(f->in, tokens)] = VOCAB + take_word(f->in) % (UINT32_MAX - VOCAB), "token_ids";
        case 7:
            return s->texts.pooling = (lw_pooling)(5 + take_word(f->in) % 1000), "pooling";
        case 8:
            return s->texts.normalize = 2 + take_byte(f->in), "normalize";
        default:
            return spoil_array(f, s);
    }
}

static void wrong_step(fuzzed* f) {
    static uint8_t out[MAX_FLOATS * sizeof(float)];
    texts_step s;
    if (!take_texts(f, &s)) return;
    const char* fault = spoil(f, &s);
    memset(out, 0xA5, sizeof out);
    const lw_status status = lw_encode(f->session, &s.texts, (float*)(void*)out);
    FUZZ_CHECK(status == LW_ERR_ARGUMENT, "%s: status %d", fault, (int)status);
    for (size_t i = 0; i < sizeof out; ++i) FUZZ_CHECK(out[i] == 0xA5, "%s: something is written", fault);
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    fuzz_input in = {data, size};
    fuzzed f = {.in = &in, .variant = take_below(&in, N_VARIANTS), .kv = take_below(&in, KV_TYPES)};
    const lw_model* model = model_of(f.variant, take_below(&in, LEVELS));
    if (model == NULL) return 0;
    f.dims = lw_model_dims(model);
    f.most_tokens = 1 + take_below(&in, MAX_TOKENS);
    f.most_texts = 1 + take_below(&in, f.most_tokens < MAX_TEXTS ? f.most_tokens : MAX_TEXTS);
    f.session = open_one(model, kv_types[f.kv], 1 + take_below(&in, 3), f.most_tokens, f.most_texts);
    for (int n = 0; in.left > 0 && n < MAX_STEPS; ++n)
        if (take_below(&in, 3) > 0)
            right_step(&f);
        else
            wrong_step(&f);
    lw_session_close(f.session);
    FUZZ_CHECK(failed == 0, "%s", lw_last_error());
    return 0;
}
