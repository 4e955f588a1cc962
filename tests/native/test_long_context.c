// Long contexts, which threads split among themselves: the logits of every step are those of one thread, to the bit.
//
// Tiny models, with and without a sliding window. Each session is fed the same steps: a prompt over several splits of
// 1024 tokens in chunks, short ones beside it, single tokens, and a few tokens at once. One thread never splits, more than
// one must, and many compute some steps in stages. Blocks that slid out of a window are destroyed between steps, and no table knows them any more, except in
// the first run, which the others are compared with. Argument: tokens of the long prompt.
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kinds/attend.h"
#include "uniform_model.h"

enum { SEQS = 3, CHUNK = 250, VOCAB = 50, HIDDEN = 48, MAX_STEPS = 64 };

typedef struct variant {
    const char* name;
    uint32_t heads, kv_heads, head_dim, window;
    lw_type kv;
} variant;

static const variant variants[] = {
    {"one KV head", 4, 1, 16, 0, LW_F16},
    {"one KV head, group of 8", 8, 1, 80, 0, LW_F16},
    {"as many KV heads", 3, 3, 64, 0, LW_I8},
    {"two KV heads, f32", 4, 2, 64, 0, LW_F32},
    {"two KV heads, int8", 4, 2, 64, 0, LW_I8},
    {"three heads, window", 3, 3, 64, 1500, LW_F16},
    {"two KV heads, f32, window", 4, 2, 64, 1100, LW_F32},
    {"two KV heads, int8, window", 4, 2, 48, 1500, LW_I8},
    {"two KV heads, 4 bits", 4, 2, 48, 0, LW_I4},
    {"as many KV heads, 8 and 4 bits, window", 3, 3, 64, 1500, LW_I8_I4},
};

typedef struct step {
    uint32_t tokens[SEQS];  // of each sequence; one without tokens is left out
} step;

static uint32_t n_steps, blocks_per_seq;
static step steps[MAX_STEPS];

static void check(lw_status status) {
    if (status == LW_OK) return;
    printf("status %d: %s\n", (int)status, lw_last_error());
    exit(2);
}

static void plan(uint32_t prompt) {
    for (uint32_t done = 0; done < prompt; done += CHUNK)
        steps[n_steps++] = (step){{prompt - done < CHUNK ? prompt - done : CHUNK, done == 0 ? 40 : 1, done > 500}};
    for (uint32_t i = 0; i < 3; ++i) steps[n_steps++] = (step){{1, 0, 0}};
    for (uint32_t i = 0; i < 3; ++i) steps[n_steps++] = (step){{1, 1, 1}};
    steps[n_steps++] = (step){{7, 0, 1}};
    steps[n_steps++] = (step){{37, 2, 0}};
    blocks_per_seq = (prompt + 100) / LW_BLOCK_TOKENS + 1;
}

static void load(lw_model* model, lw_role role, uint32_t layer, uint32_t rows, uint32_t cols) {
    float* data = malloc(sizeof(float) * rows * cols);
    if (data == NULL) exit(2);
    uint32_t x = (uint32_t)role * 977 + layer;
    for (size_t i = 0; i < (size_t)rows * cols; ++i) {
        x = x * 1664525 + 1013904223;
        data[i] = rows == 1 ? 1.0f : (float)(int32_t)x * 0x1p-32f;
    }
    const lw_tensor tensor = {data, sizeof(float) * rows * cols, LW_F32, rows, cols, 0, NULL};
    check(lw_model_load(model, role, layer, &tensor, LW_F32));
    free(data);
}

static lw_model* open_model(const variant* v, const char* isa) {
    const uniform_config config = {.n_layers = 2,
                                   .hidden_size = HIDDEN,
                                   .ffn_size = HIDDEN,
                                   .n_heads = v->heads,
                                   .n_kv_heads = v->kv_heads,
                                   .head_dim = v->head_dim,
                                   .vocab_size = VOCAB,
                                   .context_length = 8192,
                                   .sliding_window = v->window,
                                   .tied_embeddings = 1,
                                   .rms_norm_eps = 1e-5f,
                                   .rope_theta = 10000};
    lw_model* model;
    check(uniform_create(&config, isa, 1, &model));
    load(model, LW_TOKEN_EMBEDDING, 0, VOCAB, HIDDEN);
    load(model, LW_OUTPUT_NORM, 0, 1, HIDDEN);
    for (uint32_t l = 0; l < 2; ++l) {
        load(model, LW_ATTN_NORM, l, 1, HIDDEN);
        load(model, LW_ATTN_Q, l, v->heads * v->head_dim, HIDDEN);
        load(model, LW_ATTN_K, l, v->kv_heads * v->head_dim, HIDDEN);
        load(model, LW_ATTN_V, l, v->kv_heads * v->head_dim, HIDDEN);
        load(model, LW_ATTN_OUTPUT, l, HIDDEN, v->heads * v->head_dim);
        load(model, LW_FFN_NORM, l, 1, HIDDEN);
        load(model, LW_FFN_GATE, l, HIDDEN, HIDDEN);
        load(model, LW_FFN_UP, l, HIDDEN, HIDDEN);
        load(model, LW_FFN_DOWN, l, HIDDEN, HIDDEN);
    }
    check(lw_model_finish(model));
    return model;
}

// Blocks of a sequence that no token after the first `done` sees.
static uint32_t unseen(const lw_session* session, uint32_t done) {
    const uint32_t window = session->groups.windows[0];
    return window != 0 && done + 1 > window ? (done + 1 - window) / LW_BLOCK_TOKENS : 0;
}

// Puts NaN into everything that no step to come may read; returns how many blocks that are.
static uint32_t destroy_unseen(lw_session* session, const uint32_t* done) {
    const lw_kv_cache* kv = &session->kv;
    uint32_t n = 0;
    for (uint32_t s = 0; s < SEQS; ++s)
        for (uint32_t b = 0; b < unseen(session, done[s]); ++b, ++n)
            for (uint32_t l = 0; l < session->model->config.n_layers; ++l)
                memset((uint8_t*)kv->block.data + l * kv->slot_bytes + (b * SEQS + s) * kv->block_bytes, 0xFF,
                       kv->block_bytes);
    return n;
}

// Runs one step after `done` tokens of each sequence; the logits of each sequence's last token go to `out`.
static void run_step(lw_session* session, const step* now, uint32_t* done, bool forget, float* out) {
    uint32_t ids[SEQS * CHUNK], start[SEQS + 1] = {0}, lens[SEQS], rows[SEQS], n = 0, total = 0;
    uint32_t* tables = malloc(sizeof(uint32_t) * SEQS * blocks_per_seq);
    if (tables == NULL) exit(2);
    for (uint32_t s = 0; s < SEQS; ++s) {
        if (now->tokens[s] == 0) continue;
        lens[n] = done[s];
        const uint32_t first = forget ? unseen(session, done[s]) : 0;
        for (uint32_t b = 0; b < blocks_per_seq; ++b)
            tables[n * blocks_per_seq + b] = b < first ? UINT32_MAX : b * SEQS + s;
        for (uint32_t t = 0; t < now->tokens[s]; ++t) ids[total++] = ((done[s] + t) * 7 + s) % VOCAB;
        done[s] += now->tokens[s];
        rows[n++] = total - 1;
        start[n] = total;
    }
    const lw_batch batch = {.n_seqs = n,
                            .n_logits = n,
                            .block_table_stride = blocks_per_seq,
                            .token_ids = ids,
                            .query_start = start,
                            .context_lens = lens,
                            .block_tables = tables,
                            .logit_rows = rows,
                            .runs = LW_RUN_MODEL};
    check(lw_step(session, &batch, out, NULL));
    free(tables);
}

// Steps of a session whose attention was split; in stages.
typedef struct ways {
    uint32_t split, staged;
} ways;

// All logits of all steps, and how they were computed. With `forget`, what slides out of the
// window is destroyed, and there must be some of it. A session has room for the splits that a window can touch, no more.
static void run(const variant* v, const lw_model* model, uint32_t threads, bool forget, float* out, ways* ways) {
    const lw_session_config config = {.n_threads = threads,
                                      .n_blocks = SEQS * blocks_per_seq,
                                      .max_batch_tokens = SEQS * CHUNK,
                                      .max_batch_logits = SEQS,
                                      .kv_type = v->kv};
    lw_session* session;
    check(lw_session_open(model, &config, &session));
    uint32_t done[SEQS] = {0}, destroyed = 0;
    ways->split = ways->staged = 0;
    for (uint32_t i = 0; i < n_steps; ++i) {
        run_step(session, &steps[i], done, forget, out + (size_t)i * SEQS * VOCAB);
        const lw_tiling* tiling = &lw_attention_of(session)->layers[0].tiling;
        ways->split += tiling->tiles[0].n_splits > 1;
        ways->staged += tiling->stages.n_pieces > 0;
        if (forget) destroyed = destroy_unseen(session, done);
    }
    if (forget && (destroyed > 0) != (v->window != 0)) {
        printf("%s: %u blocks slid out of the window\n", v->name, destroyed);
        exit(1);
    }
    const size_t rows = lw_attention_rows(lw_tile_tokens(lw_model_heads(model), v->kv_heads), v->heads / v->kv_heads);
    const size_t room =
        lw_attention_of(session)->split_floats / v->kv_heads / lw_attention_state_floats(rows, session->kv.value_dim);
    if (v->window != 0 && room != (threads > 1 ? 3 : 0)) {
        printf("%s: room for %zu splits\n", v->name, room);
        exit(1);
    }
    lw_session_close(session);
}

int main(int argc, char** argv) {
    static const uint32_t threads[] = {1, 2, 3, 5, 8, 21};
    static const char* const levels[] = {"scalar", "avx2",    "avx512vnni", "avx512vbmi", "amx",
                                         "neon",   "dotprod", "i8mm",       "sve"};
    plan(argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 3300);
    const size_t size = (size_t)n_steps * SEQS * VOCAB;
    float *expected = calloc(size, sizeof(float)), *got = calloc(size, sizeof(float));
    if (expected == NULL || got == NULL) return 2;
    int failed = 0, passed = 0;
    for (size_t i = 0; i < sizeof variants / sizeof *variants; ++i) {
        bool first = true;
        for (size_t l = 1; l < sizeof levels / sizeof *levels; ++l) {  // scalar takes long
            if (lw_cpu_check(levels[l]) != LW_OK) continue;
            lw_model* model = open_model(&variants[i], levels[l]);
            for (size_t t = 0; t < sizeof threads / sizeof *threads; ++t) {
                ways ways;
                float* out = first ? expected : got;
                memset(out, 0, size * sizeof(float));  // a step leaves the rows of missing sequences
                run(&variants[i], model, threads[t], !first, out, &ways);
                const bool same = first || memcmp(got, expected, size * sizeof(float)) == 0;
                const bool as_meant = (ways.split > 0) == (threads[t] > 1) && (threads[t] > 1 || ways.staged == 0) &&
                                      (threads[t] < 20 || ways.staged > 3);
                first = false;
                ++*(same && as_meant ? &passed : &failed);
                if (!same || !as_meant)
                    printf("%s: %s, %u threads: %s logits, %u of %u steps split, %u in stages\n", variants[i].name,
                           levels[l], threads[t], same ? "the same" : "other", ways.split, n_steps, ways.staged);
            }
            lw_model_close(model);
        }
    }
    free(expected);
    free(got);
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
