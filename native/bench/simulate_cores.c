// Estimates how a step scales to more cores than the machine has. The library's own sharing code (lw_taker,
// lw_cut_rows, groups of a barrier) runs for T virtual threads, each with a clock of its own.
//
// Usage: simulate_cores [--gmac N] [--gemv N] [--attention N] [--values N] [--bandwidth N] [--core N] [--line NS]
//                       [--lost N] [--serial N] [--rows N] [--before 1] [--threads N] [--check LAYERS]
//                       [--streams N] [--context N] [--weight N] [--value N]
//     --gmac       int8 multiplications of a core, 10^9 a second (bench_kernels: gmac_s at 64 to 512 rows); default 100
//     --gemv       the same with one row; default 47: 24.2 a cycle of a Neoverse V2 at 2.8 GHz, of which 0.7 are reached
//     --attention  float multiplications of a core in attention, 10^9 a second (bench_attention); default 12
//     --values     values that a core normalizes and quantizes, rotates or activates, 10^9 a second; default 2. The
//                  rows of rmsnorm and quantize in bench-arm give this together, on a Neoverse V2 at 2.8 GHz.
//     --bandwidth, --core  GB/s that all cores together read, and that one core reads; default 430 and 30
//     --line       nanoseconds until a core can write a cache line that another core has written. The next core waits
//                  as long again; a core that only reads the line needs a quarter of the time. Default 50; between two
//                  sockets 100 to 150.
//     --lost       part of its time for which a core is interrupted; default 0. 0.0005 are 250 ticks of 2 us a second.
//     --serial     part of a step that one thread does alone; default 0. The library has none; others do.
//     --before 1   simulates older code of the library: whole panels, and one line for all threads at each barrier and
//                  at each first share
//     --threads N  prints this number of threads only
//     --check N    measures a model of N layers of the 1B shape on this machine at 1 and 2 threads. Then simulates it
//                  with the speeds of its parts, taken from its profile at 1 thread.
//     --streams N  prints instead what a decode step of N sequences takes, part by part, each behind --context tokens
//                  (default 1024)
//     --weight, --value  bytes of a weight of a layer and of a value in the cache; default 0.5625 (Q4_0) and 2
// For prompts of --rows tokens, prints the efficiency: the time of one core divided by T times the time of T cores. For
// decode of one sequence, behind 0, 1,024 and 8,192 tokens, prints the share of the time beyond reading weights and
// cache at full bandwidth. The head is Q6_K. Memory is equally far from every core, clocks
// do not fall, and rows that other cores wrote are free.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fill_cache.h"
#include "random_model.h"
#include "virtual_step.h"

static const unsigned thread_counts[] = {1, 2, 4, 8, 16, 64, 96, 128, 192, 384};
static const size_t contexts[] = {0, 1024, 8192};

// Besides those of random_model.h: few KV heads, and windows.
static const virtual_model virtual_models[] = {
    {"qwen2.5-1.5b",
     {.n_layers = 28,
      .hidden_size = 1536,
      .ffn_size = 8960,
      .n_heads = 12,
      .n_kv_heads = 2,
      .head_dim = 128,
      .vocab_size = 151936},
     0},
    {"gemma3-1b",
     {.n_layers = 26,
      .hidden_size = 1152,
      .ffn_size = 6912,
      .n_heads = 4,
      .n_kv_heads = 1,
      .head_dim = 256,
      .vocab_size = 262144,
      .sliding_window = 512},
     6},
};

static void print_decode(const machine* m, workload w, unsigned threads) {
    w.rows = 1;
    for (size_t i = 0; i < sizeof contexts / sizeof *contexts; ++i) {
        costs parts;
        w.context = contexts[i];
        const double ns = simulate(m, &w, threads, &parts);
        const double reading = parts.bytes / reading_speed(m, m->core, threads);
        printf("   decode at %zu %7.3f ms, beyond reading %4.1f %%", contexts[i], 1e-6 * ns, 100 * (ns - reading) / ns);
    }
    printf("\n");
}

static void print_scaling(const machine* m, const workload* w, unsigned only) {
    const double alone = simulate(m, w, 1, NULL);
    for (size_t i = 0; i < sizeof thread_counts / sizeof *thread_counts; ++i) {
        const unsigned n = thread_counts[i];
        if (only != 0 && n != only) continue;
        const double prompt = simulate(m, w, n, NULL);
        printf("%-12s %3u threads  prompt of %zu %9.2f ms, efficiency %5.1f %%", w->model->name, n, w->rows,
               1e-6 * prompt, 100 * alone / (prompt * n));
        print_decode(m, *w, n);
    }
}

// A decode step of several sequences, and what of it is reading, computing, or neither.
static void print_streams(const machine* m, const workload* w, unsigned only) {
    const uniform_config* c = &w->model->config;
    const double heads = (double)c->n_heads * c->head_dim;
    const double layer = c->hidden_size * (2 * heads + 2.0 * c->n_kv_heads * c->head_dim + 3.0 * c->ffn_size);
    const double macs = (double)w->streams * c->n_layers * layer;
    const double head_macs = (double)w->streams * c->vocab_size * c->hidden_size;
    for (size_t i = 0; i < sizeof thread_counts / sizeof *thread_counts; ++i) {
        const unsigned n = thread_counts[i];
        if (only != 0 && n != only) continue;
        costs parts;
        machine near = *m;
        const double ns = simulate(m, w, n, &parts);
        near.line = 0;
        const double without = simulate(&near, w, n, NULL);
        printf("%-12s %3u threads, %zu streams behind %zu tokens: %.2f ms, %.0f tokens/s\n", w->model->name, n,
               w->streams, w->context, 1e-6 * ns, 1e9 * (double)w->streams / ns);
        printf(
            "    layers' products %.2f ms (computing alone %.2f), head %.2f (%.2f), attention %.2f, the rest %.2f; of "
            "all this %.2f are lines between cores\n",
            1e-6 * parts.products, 1e-6 * macs / (m->gmac * n), 1e-6 * parts.head,
            1e-6 * head_macs * head_times / (m->gmac * n), 1e-6 * parts.attention, 1e-6 * parts.rest,
            1e-6 * (ns - without));
        printf("    weights and cache %.2f GB: reading them alone %.2f ms\n", 1e-9 * parts.bytes,
               1e-6 * parts.bytes / reading_speed(m, m->core, n));
    }
}

// ---- Comparison with this machine

static double now_ns(void) { return (double)lw_profile_now(); }

static lw_session* open_session(const lw_model* model, uint32_t threads, uint32_t rows) {
    const lw_session_config config = {.n_threads = threads,
                                      .n_blocks = rows / LW_BLOCK_TOKENS + 1,
                                      .max_batch_tokens = rows,
                                      .max_batch_logits = 1,
                                      .kv_type = LW_F16};
    lw_session* session;
    bench_check(lw_session_open(model, &config, &session));
    fill_cache(&session->kv);
    return session;
}

// Runs one prompt; returns its nanoseconds.
static double measure_step(lw_session* session, uint32_t rows) {
    const uint32_t blocks = rows / LW_BLOCK_TOKENS + 1, start[] = {0, rows}, context = 0, row = rows - 1;
    uint32_t *table = calloc(blocks, sizeof *table), *tokens = calloc(rows, sizeof *tokens);
    float* logits = malloc(session->model->config.vocab_size * sizeof *logits);
    if (table == NULL || tokens == NULL || logits == NULL) exit(2);
    for (uint32_t i = 0; i < blocks; ++i) table[i] = i;
    for (uint32_t i = 0; i < rows; ++i) tokens[i] = 1 + i;
    const lw_batch batch = {.n_seqs = 1,
                            .n_logits = 1,
                            .block_table_stride = blocks,
                            .token_ids = tokens,
                            .query_start = start,
                            .context_lens = &context,
                            .block_tables = table,
                            .logit_rows = &row,
                            .runs = LW_RUN_MODEL};
    const double begin = now_ns();
    bench_check(lw_step(session, &batch, logits, NULL));
    const double took = now_ns() - begin;
    free(table);
    free(tokens);
    free(logits);
    return took;
}

static double larger(double a, double b) { return a > b ? a : b; }

// Raises the speeds of `m` to those of one prompt on one thread, where these are higher.
static void calibrate(machine* m, const lw_model* model, uint32_t rows) {
    lw_session* session = open_session(model, 1, rows);
    lw_profile_row profile[64];
    uint32_t n;
    double products = 0, macs = 0, attention_s = 0, attention_macs = 0, other = 0, bytes = 0;
    measure_step(session, rows);
    bench_check(lw_session_profile(session, 1));
    measure_step(session, rows);
    bench_check(lw_session_profile_rows(session, profile, 64, &n));
    for (uint32_t i = 0; i < n && i < 64; ++i) {
        const lw_profile_row* r = &profile[i];
        if (strcmp(r->operation, "head") == 0) continue;
        if (r->kernel[0] != 0) {
            products += r->work_seconds;
            macs += (double)r->macs;
        } else if (strcmp(r->operation, "attention") == 0) {
            attention_s += r->work_seconds;
            attention_macs += (double)r->macs;
        } else {
            other += r->work_seconds;
            bytes += (double)r->bytes;
        }
    }
    m->gmac = larger(m->gmac, 1e-9 * macs / products);
    m->attention = larger(m->attention, 1e-9 * attention_macs / attention_s);
    m->values = larger(m->values, 1e-9 * bytes / 4 / other);  // approximate: codes count as floats
    lw_session_close(session);
}

// Compares the fastest of some prompts with the simulation: other work on the machine only slows prompts down.
static void check_against_reality(machine m, uint32_t layers, uint32_t rows) {
    enum { TIMES = 7 };
    bench_shape shape = *bench_find_shape("llama-1b");
    shape.config.n_layers = layers;
    shape.config.vocab_size = 8192;
    lw_model* model = bench_open_model(&shape.config, 2);
    m.gmac = m.attention = m.values = 0;
    for (int i = 0; i < TIMES; ++i) calibrate(&m, model, rows);
    m.bandwidth = 2 * m.core;
    printf("%.0f GMAC/s in products, %.1f in attention, %.2f values/ns\n", m.gmac, m.attention, m.values);
    lw_session* sessions[] = {open_session(model, 1, rows), open_session(model, 2, rows)};
    double best[2] = {1e300, 1e300};
    for (int i = 0; i < TIMES; ++i)
        for (int k = 0; k < 2; ++k) {
            const double took = measure_step(sessions[k], rows);
            if (took < best[k]) best[k] = took;
        }
    for (unsigned k = 0; k < 2; ++k) {
        const virtual_model model_of_shape = {"", shape.config, 0};
        const workload w = {&model_of_shape, 1, rows, 0, 18.0 / 32, 2};
        const double simulated = simulate(&m, &w, k + 1, NULL);
        printf(
            "%u layers, %u threads, prompt of %u: measured %.2f ms, simulated "
            "%.2f ms (%.2f)\n",
            layers, k + 1, rows, 1e-6 * best[k], 1e-6 * simulated, simulated / best[k]);
        lw_session_close(sessions[k]);
    }
    lw_model_close(model);
}

// ---- Command line

static void usage(void) {
    fprintf(stderr,
            "usage: simulate_cores [--gmac N] [--gemv N] [--attention N] [--values N] [--bandwidth N] [--core N]\n"
            "                      [--line NS] [--lost N] [--serial N] [--rows N] [--before 1] [--threads N]\n"
            "                      [--check LAYERS] [--streams N] [--context N] [--weight N] [--value N]\n"
            "What each says and what is printed stands at the head of native/bench/simulate_cores.c.\n");
    exit(2);
}

int main(int argc, char** argv) {
    machine m = {.gmac = 100, .gemv = 47, .attention = 12, .values = 2, .bandwidth = 430, .core = 30, .line = 50};
    double rows = 512, before = 0, layers = 0, threads = 0, streams = 0, context = 1024, weight = 18.0 / 32, value = 2;
    const struct {
        const char* name;
        double* value;
    } options[] = {{"--gmac", &m.gmac},     {"--gemv", &m.gemv},     {"--attention", &m.attention},
                   {"--values", &m.values}, {"--core", &m.core},     {"--bandwidth", &m.bandwidth},
                   {"--line", &m.line},     {"--lost", &m.lost},     {"--serial", &m.serial},
                   {"--rows", &rows},       {"--before", &before},   {"--threads", &threads},
                   {"--check", &layers},    {"--streams", &streams}, {"--context", &context},
                   {"--weight", &weight},   {"--value", &value}};
    for (int i = 1; i < argc; i += 2) {
        double* to = NULL;
        for (size_t k = 0; k < sizeof options / sizeof *options; ++k)
            if (strcmp(argv[i], options[k].name) == 0) to = options[k].value;
        if (to == NULL || i + 1 == argc || !((*to = strtod(argv[i + 1], NULL)) >= 0)) usage();
    }
    if (!(m.gmac > 0 && m.gemv > 0 && m.attention > 0 && m.values > 0 && m.core > 0 && m.bandwidth > 0 && rows >= 2 &&
          rows <= 65536 && m.serial <= 1 && streams <= 4096 && context <= 1048576 && weight > 0 && value > 0))
        usage();
    m.before = before != 0;
    if (layers > 0) {
        check_against_reality(m, (uint32_t)layers, (uint32_t)rows);
        return 0;
    }
    virtual_model models[2 + sizeof virtual_models / sizeof *virtual_models];
    const char* const shapes[] = {"llama-1b", "llama-8b"};
    for (size_t i = 0; i < 2; ++i) models[i] = (virtual_model){shapes[i], bench_find_shape(shapes[i])->config, 0};
    memcpy(models + 2, virtual_models, sizeof virtual_models);
    for (size_t i = 0; i < sizeof models / sizeof *models; ++i) {
        workload w = {&models[i], 1, (size_t)rows, 0, weight, value};
        if (streams >= 1) {
            w.streams = (size_t)streams;
            w.rows = 1;
            w.context = (size_t)context;
            print_streams(&m, &w, (unsigned)threads);
        } else {
            print_scaling(&m, &w, (unsigned)threads);
        }
    }
    return 0;
}
