// Threads stay on the CPUs they are given and the caller gets its own mask back; each reads its own copy of the weights;
// nodes that do not exist are refused.
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "graph/session.h"
#include "numa.h"
#include "uniform_model.h"

enum { THREADS = 4, RUNS = 3, HIDDEN = 64, VOCAB = 500, TOKENS = 12 };

static int failed, passed;

static void expect(_Bool ok, const char* what) {
    ++*(ok ? &passed : &failed);
    if (!ok) printf("%s (last error: %s)\n", what, lw_last_error());
}

static _Bool same_mask(const lw_cpu_mask* a, const lw_cpu_mask* b) { return memcmp(a, b, sizeof *a) == 0; }

static void note_affinity(void* context, unsigned thread) {
    lw_cpu_mask* masks = context;
    lw_get_affinity(&masks[thread]);
}

static void test_pool(const lw_cpu_mask* mine, const uint32_t* cpus) {
    lw_cpu_mask masks[THREADS], after;
    lw_pool* pool = lw_pool_open(THREADS, cpus);
    for (int run = 0; run < RUNS; ++run) {
        lw_pool_run(pool, note_affinity, masks);
        for (unsigned thread = 0; thread < THREADS; ++thread) {
            const lw_cpu_mask wanted = cpus != NULL ? lw_mask_of(cpus[thread]) : *mine;
            expect(same_mask(&masks[thread], &wanted), "a thread is not where it was told to be");
        }
        lw_get_affinity(&after);
        expect(same_mask(&after, mine), "the caller stays pinned after a run");
    }
    lw_pool_close(pool);
}

static void must(lw_status status) {
    if (status == LW_OK) return;
    printf("status %d: %s\n", (int)status, lw_last_error());
    exit(2);
}

static void load(lw_model* model, lw_role role, uint32_t rows, uint32_t cols) {
    float* data = malloc(sizeof(float) * rows * cols);
    if (data == NULL) exit(2);
    uint32_t x = (uint32_t)role * 977;
    for (size_t i = 0; i < (size_t)rows * cols; ++i) {
        x = x * 1664525 + 1013904223;
        data[i] = rows == 1 ? 1.0f : (float)(int32_t)x * 0x1p-32f;
    }
    const lw_tensor tensor = {data, sizeof(float) * rows * cols, LW_F32, rows, cols, 0, NULL};
    must(lw_model_load(model, role, 0, &tensor, LW_F32));
    free(data);
}

static lw_model* open_model(lw_numa numa, uint32_t n_nodes, bool tied) {
    const uniform_config config = {.n_layers = 1,
                                   .hidden_size = HIDDEN,
                                   .ffn_size = HIDDEN,
                                   .n_heads = 1,
                                   .n_kv_heads = 1,
                                   .head_dim = HIDDEN,
                                   .vocab_size = VOCAB,
                                   .context_length = 100,
                                   .tied_embeddings = tied,
                                   .rms_norm_eps = 1e-5f,
                                   .rope_theta = 1e4};
    static const uint32_t nodes[] = {0, 0, 0};
    static const lw_role vectors[] = {LW_OUTPUT_NORM, LW_ATTN_NORM, LW_FFN_NORM};
    static const lw_role matrices[] = {LW_ATTN_Q,   LW_ATTN_K, LW_ATTN_V,  LW_ATTN_OUTPUT,
                                       LW_FFN_GATE, LW_FFN_UP, LW_FFN_DOWN};
    lw_model* model;
    must(uniform_create(&config, NULL, 2, &model));
    must(lw_model_place(model, numa, nodes, n_nodes));
    load(model, LW_TOKEN_EMBEDDING, VOCAB, HIDDEN);
    if (!tied) load(model, LW_OUTPUT, VOCAB, HIDDEN);
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; ++i) load(model, vectors[i], 1, HIDDEN);
    for (size_t i = 0; i < sizeof matrices / sizeof *matrices; ++i) load(model, matrices[i], HIDDEN, HIDDEN);
    must(lw_model_finish(model));
    return model;
}

// Logits of a prompt on THREADS threads, out[TOKENS][VOCAB].
static void run(const lw_model* model, const uint32_t* cpus, const uint32_t* copies, float* out) {
    const lw_session_config config = {.n_threads = THREADS,
                                      .n_blocks = 1,
                                      .max_batch_tokens = TOKENS,
                                      .max_batch_logits = TOKENS,
                                      .kv_type = LW_F16,
                                      .cpus = cpus,
                                      .replica_of_thread = copies};
    uint32_t ids[TOKENS];
    for (uint32_t i = 0; i < TOKENS; ++i) ids[i] = (i * 37 + 5) % VOCAB;
    const uint32_t start[] = {0, TOKENS}, zero = 0;
    const lw_batch batch = {.n_seqs = 1,
                            .n_logits = TOKENS,
                            .block_table_stride = 1,
                            .token_ids = ids,
                            .query_start = start,
                            .context_lens = &zero,
                            .block_tables = &zero,
                            .logit_rows = (const uint32_t[]){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}};
    lw_session* session;
    must(lw_session_open(model, &config, &session));
    must(lw_step(session, &batch, out, NULL));
    lw_session_close(session);
}

// Every matrix of a copy becomes zeros, which no thread can read unseen.
static void wipe(const lw_model* copy) {
    const lw_layer* l = &copy->layers[0];
    const lw_matrix* all[] = {&l->q, &l->k, &l->v, &l->attn_output, &l->gate, &l->up, &l->down, lw_model_head(copy)};
    for (size_t i = 0; i < sizeof all / sizeof *all; ++i)
        memset((uint8_t*)all[i]->data, 0, all[i]->panels * all[i]->panel_bytes);
}

static void test_placed_models(const uint32_t* cpus, bool tied) {
    static float plain[TOKENS * VOCAB], out[TOKENS * VOCAB];
    static const uint32_t second[THREADS] = {1, 1, 1, 1}, third[THREADS] = {2, 2, 2, 2}, mixed[THREADS] = {0, 1, 2, 1};
    lw_model* off = open_model(LW_NUMA_OFF, 0, tied);
    run(off, NULL, NULL, plain);
    lw_model_info one, three;
    must(lw_model_describe(off, &one));
    lw_model_close(off);

    lw_model* interleaved = open_model(LW_NUMA_INTERLEAVE, 3, tied);
    run(interleaved, cpus, NULL, out);
    expect(memcmp(plain, out, sizeof out) == 0, "interleaved weights change logits");
    lw_model_close(interleaved);

    lw_model* copied = open_model(LW_NUMA_REPLICATE, 3, tied);
    must(lw_model_describe(copied, &three));
    expect(three.packed_bytes == one.packed_bytes + 2 * one.matrix_bytes, "copies are not counted");
    run(copied, cpus, mixed, out);
    expect(memcmp(plain, out, sizeof out) == 0, "copies of weights change logits");
    wipe(&copied->replicas[1]);
    run(copied, cpus, third, out);
    bool zero = true;
    for (size_t i = 0; i < TOKENS * VOCAB; ++i) zero &= out[i] == 0;
    expect(zero, "a thread does not read the copy that it was told to");
    wipe(copied);
    run(copied, cpus, second, out);
    // A tied embedding is read from the copy as well, an untied one from the first, which is not wiped.
    expect(memcmp(plain, out, sizeof out) == 0, "a thread reads another copy than it was told to");

    const lw_session_config beyond = {.n_threads = 1,
                                      .n_blocks = 1,
                                      .max_batch_tokens = 1,
                                      .max_batch_logits = 1,
                                      .kv_type = LW_F16,
                                      .replica_of_thread = (const uint32_t[]){3}};
    lw_session* session;
    expect(lw_session_open(copied, &beyond, &session) == LW_ERR_ARGUMENT &&
               strstr(lw_last_error(), "replica_of_thread[0] is 3, the model has 3") != NULL,
           "a copy that does not exist is not refused by name");
    const uint32_t node = 0;
    expect(lw_model_place(copied, LW_NUMA_INTERLEAVE, &node, 1) == LW_ERR_ARGUMENT, "a loaded model is placed");
    lw_model_close(copied);
}

int main(void) {
    lw_cpu_mask mine;
    if (!lw_get_affinity(&mine)) return 2;
    uint32_t cpus[THREADS], found = 0;  // of the CPUs allowed, the last ones: threads begin on others
    for (uint32_t cpu = LW_MAX_CPUS; cpu-- > 0;)
        if (lw_cpu_in_mask(&mine, cpu) && found < THREADS) cpus[found++] = cpu;
    for (uint32_t i = found; i < THREADS; ++i) cpus[i] = cpus[i % found];
    test_pool(&mine, cpus);
    test_pool(&mine, NULL);

    expect(lw_check_cpus("session", cpus, THREADS) == LW_OK, "allowed CPUs are refused");
    const uint32_t absent[] = {cpus[0], LW_MAX_CPUS - 1}, beyond[] = {UINT32_MAX};
    expect(lw_check_cpus("session", absent, 2) == LW_ERR_ARGUMENT && strstr(lw_last_error(), "cpus[1] is 8191") != NULL,
           "a CPU that does not exist is not refused by name");
    expect(lw_check_cpus("session", beyond, 1) == LW_ERR_ARGUMENT, "a CPU beyond all masks is not refused");
    if (found > 1) {
        const lw_cpu_mask one = lw_mask_of(cpus[0]);
        lw_set_affinity(&one);
        expect(lw_check_cpus("session", &cpus[1], 1) == LW_ERR_ARGUMENT, "a CPU outside the mask is not refused");
        lw_set_affinity(&mine);
    }

    if (lw_numa_check((const uint32_t[]){0}, 1) == LW_OK) {
        test_placed_models(cpus, true);
        test_placed_models(cpus, false);
    }

    const uint32_t node = 0, missing[] = {0, 1000}, too_large = LW_MAX_NODES;
    const lw_status placed = lw_numa_check(&node, 1);
    expect(placed == LW_OK || placed == LW_ERR_SYSTEM, "node 0 is refused");
    if (placed == LW_OK)
        expect(lw_numa_check(missing, 2) == LW_ERR_ARGUMENT && strstr(lw_last_error(), "nodes[1] is 1000") != NULL,
               "a node that does not exist is not refused by name");
    expect(lw_numa_check(&too_large, 1) == LW_ERR_ARGUMENT, "a node beyond all masks is not refused");
    expect(lw_numa_check(NULL, 1) == LW_ERR_ARGUMENT && lw_numa_check(&node, 0) == LW_ERR_ARGUMENT, "no nodes");

    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
