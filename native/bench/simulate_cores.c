// How a step scales to cores that are not at hand: the library's own sharing code (lw_taker, lw_cut_rows, groups of a
// barrier), run for T virtual threads, each with a clock of its own.
//
// Usage: simulate_cores [--gmac N] [--attention N] [--values N] [--bandwidth N] [--core N] [--line NS] [--rows N]
//                       [--before 1] [--check LAYERS]
//   --gmac       int8 multiplications of a core, 10^9 a second (bench_kernels: gmac_s at 64 to 512 rows); 100
//   --attention  float multiplications of a core in attention, 10^9 a second (bench_attention); 12
//   --values     values that a core normalizes and quantizes, rotates or activates, 10^9 a second; 2, what bench-arm's rows
//                of rmsnorm and quantize come to together on V2 at 2.8 GHz
//   --bandwidth, --core  GB/s that all cores together and one alone read; 430 and 30
//   --line       nanoseconds until a line that another core has written can be written, and then for the next core to have
//                its turn; readers of one line have theirs in a quarter of it; 50
//   --before 1   as it was before lines were spread: whole panels, one line for all at a barrier and at every first share
//   --check N    measures a model of N layers of the 1B shape here, at 1 and 2 threads, and simulates it with the speeds of
//                its parts as its profile at 1 thread has them
// Prints, for prompts of --rows tokens, the share of T cores' time that would do with one core; for decode of one
// sequence, the share of the time beyond reading the weights at full bandwidth, its context still empty: attention is work
// and no fixed cost. Weights are Q4_0, the head Q6_K. Nobody is interrupted, and memory is as far from every core.
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fill_cache.h"
#include "random_model.h"

enum { MOST_THREADS = 256 };

static const unsigned thread_counts[] = {1, 2, 16, 64, 96, 128, 192};

typedef struct machine {
    double gmac, attention, values;  // per nanosecond of one core
    double bandwidth, core;          // bytes per nanosecond
    double line;                     // nanoseconds
    bool before;
} machine;

typedef struct crew {
    const machine* m;
    unsigned n;
    double at[MOST_THREADS];  // clock of each
} crew;

// A cache line that goes from core to core: when the next one can have it.
typedef struct line {
    double free;
} line;

static double touch(line* l, double now, double cost) {
    l->free = (l->free > now ? l->free : now) + cost;
    return l->free;
}

// ---- Barriers
// -------------------------------------------------------------------------------------------------------

static const crew* sorted_crew;
static int compare_clocks(const void* a, const void* b) {
    const double x = sorted_crew->at[*(const unsigned*)a], y = sorted_crew->at[*(const unsigned*)b];
    return x < y ? -1 : x > y;
}

// Clocks of those that meet on one line become what they are when they see that
// the last has come; returns when it came.
static double arrive(crew* c, const unsigned* who, unsigned n, double at[]) {
    line come = {0};
    for (unsigned i = 0; i < n; ++i) at[who[i]] = touch(&come, c->at[who[i]], c->n > 1 ? c->m->line : 0);
    return come.free;
}

static void release(const crew* c, const unsigned* who, unsigned n, double from, double at[]) {
    line left = {c->n > 1 ? from + c->m->line : from};
    for (unsigned i = 0; i < n; ++i) at[who[i]] = touch(&left, 0, n > 1 ? c->m->line / 4 : 0);
}

static void barrier(crew* c) {
    unsigned order[MOST_THREADS], last[MOST_THREADS], n_groups = 0;
    const unsigned group = c->m->before ? c->n : LW_POOL_GROUP;
    double came[MOST_THREADS], told[MOST_THREADS];
    for (unsigned first = 0; first < c->n; first += group) {
        const unsigned n = c->n - first < group ? c->n - first : group;
        for (unsigned i = 0; i < n; ++i) order[first + i] = first + i;
        sorted_crew = c;
        qsort(order + first, n, sizeof *order, compare_clocks);
        arrive(c, order + first, n, came);
        last[n_groups++] = order[first + n - 1];
    }
    if (n_groups > 1) {
        for (unsigned i = 0; i < n_groups; ++i) c->at[last[i]] = came[last[i]];
        qsort(last, n_groups, sizeof *last, compare_clocks);
        const double all = arrive(c, last, n_groups, told);
        release(c, last, n_groups, all, told);
    } else {
        told[last[0]] = came[last[0]];
    }
    for (unsigned i = 0; i < n_groups; ++i) {
        const unsigned first = last[i] / group * group, n = c->n - first < group ? c->n - first : group;
        release(c, order + first, n, told[last[i]], c->at);
    }
}

// ---- Phases
// ---------------------------------------------------------------------------------------------------------

typedef struct phase {
    size_t items;
    bool by_share;  // else one by one
    double (*work)(const struct phase* p,
                   size_t item);  // nanoseconds, or bytes if it reads
    bool reads;
    const machine* m;
    const uniform_config* c;
    lw_cuts cuts;
    size_t rows, inputs, context;
    double bytes_per_weight, of_row;
} phase;

typedef struct thread_state {
    lw_taker taker;
    bool done;
    double left;  // of what it has taken
} thread_state;

// As the library had it: every first share from the counter too.
static bool take_before(lw_taker* t, bool by_share, size_t* begin, size_t* end) {
    return by_share ? lw_work_take_share(t->work, t->total, t->threads, begin, end)
                    : lw_work_take(t->work, t->total, 1, begin, end);
}

static void take(crew* c, const phase* p, unsigned thread, thread_state* s, line* counter) {
    size_t begin = 0, end = 0;
    lw_taker* t = &s->taker;
    const bool by_number = !c->m->before && !t->begun;
    bool got;
    if (c->m->before)
        got = take_before(t, p->by_share, &begin, &end);
    else if (p->by_share)
        got = lw_take_share(t, &begin, &end);
    else if ((got = lw_take_item(t, &begin)))
        end = begin + 1;
    // Whether the counter was needed at all shows in whether anybody has ever
    // moved it.
    const bool counted = !by_number && atomic_load(&t->work->next) > 0 && c->n > 1;
    if (counted) c->at[thread] = touch(counter, c->at[thread], got ? c->m->line : c->m->line / 4);
    s->done = !got;
    s->left = 0;
    for (size_t item = begin; got && item < end; ++item) s->left += p->work(p, item);
}

// Units of work per nanosecond when so many threads are at it.
static double speed(const phase* p, unsigned busy) {
    if (!p->reads) return 1;
    const double share = p->m->bandwidth / (busy > 0 ? busy : 1);
    return share < p->m->core ? share : p->m->core;
}

// Readers share the bandwidth, so what they have left is worked off from one
// event to the next.
static void run_phase(crew* c, const phase* p) {
    static thread_state states[MOST_THREADS];
    lw_work work = {0};
    line counter = {0};
    double now = 0;
    for (unsigned t = 0; t < c->n; ++t) states[t] = (thread_state){.taker = {&work, p->items, c->n, t, false}};
    for (;;) {
        unsigned busy = 0, next = MOST_THREADS;
        double when = 1e300;
        for (unsigned t = 0; t < c->n; ++t) busy += !states[t].done && states[t].left > 0 && c->at[t] <= now;
        const double rate = speed(p, busy);
        for (unsigned t = 0; t < c->n; ++t) {
            if (states[t].done) continue;
            const bool works = states[t].left > 0 && c->at[t] <= now;
            const double at = works ? now + states[t].left / rate : c->at[t] > now ? c->at[t] : now;
            if (at < when) {
                when = at;
                next = t;
            }
        }
        if (next == MOST_THREADS) break;
        for (unsigned t = 0; t < c->n; ++t)
            if (!states[t].done && states[t].left > 0 && c->at[t] <= now && t != next)
                states[t].left -= (when - now) * rate;
        const bool worked = states[next].left > 0 && c->at[next] <= now;
        now = when;
        c->at[next] = now;
        if (worked || states[next].left <= 0) take(c, p, next, &states[next], &counter);
        if (states[next].done) continue;
    }
    barrier(c);
}

// ---- A step
// ---------------------------------------------------------------------------------------------------------

static double panel_work(const phase* p, size_t item) {
    const double weights = (double)LW_PANEL * (double)p->inputs;
    if (p->reads) return weights * p->bytes_per_weight;
    return weights * (double)(lw_piece(p->cuts, p->rows, item % p->cuts.n).n + LW_DECODING_ROWS) / p->m->gmac;
}

// With the activation of its part of a segment, which is not always whoever
// comes last's.
static double gate_up_work(const phase* p, size_t item) {
    return panel_work(p, item) +
           (p->reads ? 0 : (double)lw_piece(p->cuts, p->rows, item % p->cuts.n).n * LW_PANEL / 2 / p->m->values);
}

static double row_work(const phase* p, size_t item) {
    (void)item;
    return p->of_row / p->m->values;
}

// Late tiles first.
static size_t tile_tokens(const uniform_config* c) {
    const lw_layer_config layer = uniform_layer(c);
    return lw_tile_tokens(&layer.attention);
}

static double attention_work(const phase* p, size_t item) {
    const size_t group = p->c->n_heads / p->c->n_kv_heads, tokens = tile_tokens(p->c);
    const size_t tiles = (p->rows + tokens - 1) / tokens, first = (tiles - 1 - item / p->c->n_kv_heads) * tokens;
    const size_t n = p->rows - first < tokens ? p->rows - first : tokens;
    const double seen = (double)(p->context + first) + (double)(n + 1) / 2;
    return seen * (double)(n * group * 2 * p->c->head_dim) / p->m->attention;
}

typedef struct step {
    crew c;
    const uniform_config* config;
    size_t rows;
    bool reads;  // weights from memory: few rows
    double bytes;
} step;

static void products(step* s, size_t outputs, size_t inputs, size_t rows, double bytes, bool gate_up) {
    const size_t panels = (outputs + LW_PANEL - 1) / LW_PANEL;
    phase p = {.by_share = true,
               .work = gate_up ? gate_up_work : panel_work,
               .reads = s->reads || rows == 1,
               .m = s->c.m,
               .c = s->config,
               .rows = rows,
               .inputs = inputs,
               .bytes_per_weight = bytes};
    p.cuts = s->c.m->before ? (lw_cuts){1, rows} : lw_cut_rows(rows, panels, s->c.n);
    p.items = panels * p.cuts.n;
    s->bytes += p.reads ? (double)(panels * LW_PANEL * inputs) * bytes : 0;
    run_phase(&s->c, &p);
}

static void rows_phase(step* s, double values) {
    const phase p = {
        .items = s->rows, .work = row_work, .m = s->c.m, .c = s->config, .rows = s->rows, .of_row = values};
    run_phase(&s->c, &p);
}

static void attention(step* s, size_t context) {
    const size_t tokens = tile_tokens(s->config), tiles = (s->rows + tokens - 1) / tokens;
    const phase p = {.items = tiles * s->config->n_kv_heads,
                     .work = attention_work,
                     .m = s->c.m,
                     .c = s->config,
                     .rows = s->rows,
                     .context = context};
    run_phase(&s->c, &p);
}

// Every thread for itself where there are few rows, as in the library.
static void norm(step* s) {
    const double values = 2.0 * s->config->hidden_size;
    if (s->rows > LW_OWN_ROWS) {
        rows_phase(s, values);
        return;
    }
    for (unsigned t = 0; t < s->c.n; ++t) s->c.at[t] += (double)s->rows * values / s->c.m->values;
}

// Nanoseconds.
static double run_step(step* s) {
    const uniform_config* c = s->config;
    const double q4 = 18.0 / 32, q6 = 210.0 / 256;
    const size_t q = (size_t)c->n_heads * c->head_dim, kv = (size_t)c->n_kv_heads * c->head_dim;
    memset(s->c.at, 0, sizeof s->c.at);
    s->bytes = 0;
    rows_phase(s, c->hidden_size);
    for (uint32_t layer = 0; layer < c->n_layers; ++layer) {
        norm(s);
        products(s, q + 2 * kv, c->hidden_size, s->rows, q4, false);
        rows_phase(s, (double)(q + 2 * kv));
        attention(s, 0);
        if (layer + 1 == c->n_layers && s->rows > 1) {
            s->rows = 1;
            barrier(&s->c);
        }
        if (q / c->n_kv_heads % LW_SEGMENT != 0) rows_phase(s, (double)q);
        products(s, c->hidden_size, q, s->rows, q4, false);
        norm(s);
        products(s, 2 * (size_t)c->ffn_size, c->hidden_size, s->rows, q4, true);
        products(s, c->hidden_size, c->ffn_size, s->rows, q4, false);
    }
    norm(s);
    products(s, c->vocab_size, c->hidden_size, s->rows, q6, false);
    return s->c.at[0];
}

static double simulate(const machine* m, const uniform_config* c, size_t rows, unsigned threads, double* bytes) {
    static step s;
    s = (step){.c = {.m = m, .n = threads}, .config = c, .rows = rows, .reads = rows == 1};
    const double ns = run_step(&s);
    if (bytes != NULL) *bytes = s.bytes;
    return ns;
}

static void print_scaling(const machine* m, const bench_shape* shape, size_t rows) {
    const double alone = simulate(m, &shape->config, rows, 1, NULL);
    for (size_t i = 0; i < sizeof thread_counts / sizeof *thread_counts; ++i) {
        const unsigned n = thread_counts[i];
        double bytes;
        const double prompt = simulate(m, &shape->config, rows, n, NULL),
                     decode = simulate(m, &shape->config, 1, n, &bytes);
        const double reading = bytes / (n * m->core < m->bandwidth ? n * m->core : m->bandwidth);
        printf(
            "%-10s %3u threads  prompt of %zu %9.2f ms, efficiency %5.1f %%   "
            "decode %7.3f ms, beyond reading %4.1f "
            "%%\n",
            shape->name, n, rows, 1e-6 * prompt, 100 * alone / (prompt * n), 1e-6 * decode,
            100 * (decode - reading) / decode);
    }
}

// ---- Against reality
// ------------------------------------------------------------------------------------------------

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

// One prompt, in nanoseconds.
static double measure_step(lw_session* session, uint32_t rows) {
    const uint32_t blocks = rows / LW_BLOCK_TOKENS + 1, start[] = {0, rows}, context = 0, row = rows - 1;
    uint32_t *table = calloc(blocks, sizeof *table), *tokens = calloc(rows, sizeof *tokens);
    float* logits = malloc(session->model->config.vocab_size * sizeof *logits);
    if (table == NULL || tokens == NULL || logits == NULL) exit(2);
    for (uint32_t i = 0; i < blocks; ++i) table[i] = i;
    for (uint32_t i = 0; i < rows; ++i) tokens[i] = 1 + i;
    const lw_batch batch = {1, 1, blocks, tokens, start, &context, table, &row, NULL, NULL, NULL, 0, NULL};
    const double begin = now_ns();
    bench_check(lw_step(session, &batch, logits, NULL));
    const double took = now_ns() - begin;
    free(table);
    free(tokens);
    free(logits);
    return took;
}

static double larger(double a, double b) { return a > b ? a : b; }

// Speeds of the parts of one prompt, as one thread has them, where they exceed those of `m`.
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
    m->values = larger(m->values, 1e-9 * bytes / 4 / other);  // about: codes are bytes
    lw_session_close(session);
}

// The fastest of some prompts: others on the machine only slow them down.
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
        const double simulated = simulate(&m, &shape.config, rows, k + 1, NULL);
        printf(
            "%u layers, %u threads, prompt of %u: measured %.2f ms, simulated "
            "%.2f ms (%.2f)\n",
            layers, k + 1, rows, 1e-6 * best[k], 1e-6 * simulated, simulated / best[k]);
        lw_session_close(sessions[k]);
    }
    lw_model_close(model);
}

// ---- Command line
// ---------------------------------------------------------------------------------------------------

static void usage(void) {
    fprintf(stderr,
            "usage: simulate_cores [--gmac N] [--attention N] [--values N] "
            "[--bandwidth N] [--core N] [--line NS]\n"
            "                      [--rows N] [--before 1] [--check LAYERS]\n"
            "What each says and what is printed stands at the head of "
            "native/bench/simulate_cores.c.\n");
    exit(2);
}

int main(int argc, char** argv) {
    machine m = {.gmac = 100, .attention = 12, .values = 2, .bandwidth = 430, .core = 30, .line = 50};
    double rows = 512, before = 0, layers = 0;
    const struct {
        const char* name;
        double* value;
    } options[] = {{"--gmac", &m.gmac}, {"--attention", &m.attention}, {"--values", &m.values},
                   {"--core", &m.core}, {"--bandwidth", &m.bandwidth}, {"--line", &m.line},
                   {"--rows", &rows},   {"--before", &before},         {"--check", &layers}};
    for (int i = 1; i < argc; i += 2) {
        double* to = NULL;
        for (size_t k = 0; k < sizeof options / sizeof *options; ++k)
            if (strcmp(argv[i], options[k].name) == 0) to = options[k].value;
        if (to == NULL || i + 1 == argc || !((*to = strtod(argv[i + 1], NULL)) >= 0)) usage();
    }
    if (!(m.gmac > 0 && m.attention > 0 && m.values > 0 && m.core > 0 && m.bandwidth > 0 && rows >= 2 && rows <= 65536))
        usage();
    m.before = before != 0;
    if (layers > 0) {
        check_against_reality(m, (uint32_t)layers, (uint32_t)rows);
        return 0;
    }
    print_scaling(&m, bench_find_shape("llama-1b"), (size_t)rows);
    print_scaling(&m, bench_find_shape("llama-8b"), (size_t)rows);
    return 0;
}
