// Speed of decode at a long context, without a prefill. The model has a given shape and random weights, its cache is
// filled with random codes, and there is one sequence. Prints milliseconds per step and tokens per second for every
// type of cache.
//
// Usage: bench_decode SHAPE [CONTEXT [THREADS [STEPS]]], where SHAPE is llama-1b, llama-8b or qwen3-0.6b.
// Weights are Q4_0, embedding and head Q6_K, as in the files people use.
#include <stdio.h>
#include <stdlib.h>

#include "fill_cache.h"
#include "profile.h"
#include "random_model.h"

static const struct cache_type {
    const char* name;
    lw_type type;
} caches[] = {{"f16", LW_F16}, {"int8", LW_I8}, {"k8v4", LW_I8_I4}, {"q4", LW_I4}};

static double now(void) { return 1e-9 * (double)lw_profile_now(); }

static double median(double* x, uint32_t n) {
    for (uint32_t i = 1; i < n; ++i)
        for (uint32_t j = i; j > 0 && x[j] < x[j - 1]; --j) {
            const double t = x[j];
            x[j] = x[j - 1];
            x[j - 1] = t;
        }
    return x[n / 2];
}

int main(int argc, char** argv) {
    const bench_shape* s = argc > 1 ? bench_find_shape(argv[1]) : NULL;
    if (s == NULL) {
        fprintf(stderr, "usage: bench_decode llama-1b|llama-8b|qwen3-0.6b [CONTEXT [THREADS [STEPS]]]\n");
        return 2;
    }
    const uint32_t context = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 8192;
    const uint32_t threads = argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : 1;
    const uint32_t steps = argc > 4 ? (uint32_t)strtoul(argv[4], NULL, 10) : 16;
    lw_model* model = bench_open_model(&s->config, threads);
    const uint32_t blocks = context / LW_BLOCK_TOKENS + 1;
    enum { TYPES = sizeof caches / sizeof *caches };
    lw_session* sessions[TYPES];
    uint32_t* table = malloc(blocks * sizeof *table);
    float* logits = malloc(s->config.vocab_size * sizeof *logits);
    double* seconds = malloc(TYPES * steps * sizeof *seconds);
    if (table == NULL || logits == NULL || seconds == NULL) exit(2);
    for (uint32_t i = 0; i < blocks; ++i) table[i] = i;
    for (int k = 0; k < TYPES; ++k) {
        const lw_session_config config = {.n_threads = threads,
                                          .n_blocks = blocks,
                                          .max_batch_tokens = 1,
                                          .max_batch_logits = 1,
                                          .kv_type = caches[k].type};
        bench_check(lw_session_open(model, &config, &sessions[k]));
        fill_cache(&sessions[k]->kv);
    }
    for (uint32_t step = 0; step < steps; ++step)  // the types take turns: other work on the machine slows all of them
                                                   // alike
        for (int k = 0; k < TYPES; ++k) {
            const uint32_t token = 1 + step, start[] = {0, 1}, row = 0;
            const lw_batch batch = {.n_seqs = 1,
                                    .n_logits = 1,
                                    .block_table_stride = blocks,
                                    .token_ids = &token,
                                    .query_start = start,
                                    .context_lens = &context,
                                    .block_tables = table,
                                    .logit_rows = &row,
                                    .runs = LW_RUN_MODEL};
            const double begin = now();
            bench_check(lw_step(sessions[k], &batch, logits, NULL));
            seconds[(uint32_t)k * steps + step] = now() - begin;
        }
    double first = 0;
    for (int k = 0; k < TYPES; ++k) {
        const double typical = median(seconds + (uint32_t)k * steps, steps);
        first = k == 0 ? typical : first;
        printf("%s, context %u, %u threads, cache %-4s  %8.2f ms  %7.2f tokens/s  %.2f x\n", s->name, context, threads,
               caches[k].name, 1e3 * typical, 1 / typical, first / typical);
        lw_session_close(sessions[k]);
    }
    lw_model_close(model);
    free(table);
    free(logits);
    free(seconds);
    return 0;
}
