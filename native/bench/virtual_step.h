// A forward step with the library's phases, run by a virtual crew.
#ifndef BENCH_VIRTUAL_STEP_H
#define BENCH_VIRTUAL_STEP_H

#include <string.h>

#include "virtual_attention.h"

static double panel_work(const phase* p, size_t item) {
    const double weights = (double)LW_PANEL * (double)p->inputs;
    if (p->reads) return weights * p->bytes_per_weight;
    const size_t rows = lw_piece(p->cuts, p->rows, item % p->cuts.n).n + LW_DECODING_ROWS;
    return weights * (double)rows * p->times / p->m->gmac;
}

// Includes the activation of the panel's part of a segment. In the library, the thread that finishes the segment
// activates all of it.
static double gate_up_work(const phase* p, size_t item) {
    return panel_work(p, item) +
           (p->reads ? 0 : (double)lw_piece(p->cuts, p->rows, item % p->cuts.n).n * LW_PANEL / 2 / p->m->values);
}

static double row_work(const phase* p, size_t item) {
    (void)item;
    return p->of_row / p->m->values;
}

// Nanoseconds of the parts of a step, and the bytes of weights and cache that it reads.
typedef struct costs {
    double products, head, attention, rest, bytes;
} costs;

typedef struct step {
    crew c;
    const uniform_config* config;
    size_t rows;
    bool reads;  // one row: its products take as long as reading the weights
    double layer_weight;
    costs costs;
    double counted;  // the time up to which costs are known
} step;

// The time since the last call belongs to `*part`.
static void charge(step* s, double* part) {
    *part += s->c.at[0] - s->counted;
    s->counted = s->c.at[0];
}

// Q6_K is the head's; its products run at two thirds of the speed of 4 and 8 bits (bench-arm).
static const double head_weight = 210.0 / 256, head_times = 1.5;

static void products(step* s, size_t outputs, size_t inputs, bool head, bool gate_up) {
    const size_t rows = s->rows;
    const double bytes = head ? head_weight : s->layer_weight;
    charge(s, &s->costs.rest);
    const size_t panels = (outputs + LW_PANEL - 1) / LW_PANEL;
    phase p = {.by_share = true,
               .work = gate_up ? gate_up_work : panel_work,
               .reads = s->reads || rows == 1,
               .m = s->c.m,
               .c = s->config,
               .rows = rows,
               .inputs = inputs,
               .bytes_per_weight = bytes,
               .times = head ? head_times : 1};
    p.cuts = s->c.m->before ? (lw_cuts){1, rows} : lw_cut_rows(rows, panels, s->c.n);
    p.items = panels * p.cuts.n;
    const double read = (double)(panels * LW_PANEL * inputs) * bytes, begin = s->c.at[0];
    s->costs.bytes += read;
    run_phase(&s->c, &p);
    if (!p.reads) wait_for_memory(&s->c, begin, read);
    charge(s, head ? &s->costs.head : &s->costs.products);
}

static void rows_phase(step* s, double values) {
    const phase p = {
        .items = s->rows, .work = row_work, .m = s->c.m, .c = s->config, .rows = s->rows, .of_row = values};
    run_phase(&s->c, &p);
}

// Attention of a layer: the scores first, if the library computes it in stages.
static void attention_phases(step* s, const attention_shape* a) {
    charge(s, &s->costs.rest);
    const double begin = s->c.at[0];
    phase p = {.m = s->c.m, .c = s->config, .rows = s->rows, .attention = a};
    if (a->tiling->stages.n_pieces > 0) {
        p.items = a->tiling->stages.n_pieces * a->tiling->jobs;
        p.work = score_work;
        run_phase(&s->c, &p);
        p.by_number = true;
    }
    p.items = a->tiling->n * a->tiling->jobs * lw_parts_of(a->tiling);
    p.work = value_work;
    run_phase(&s->c, &p);
    const double bytes = cache_bytes(s->config, a);
    s->costs.bytes += bytes;
    wait_for_memory(&s->c, begin, bytes);
    charge(s, &s->costs.attention);
}

// With few rows every thread computes all norms itself, as in the library.
static void norm(step* s) {
    const double values = 2.0 * s->config->hidden_size;
    if (s->rows > LW_OWN_ROWS) {
        rows_phase(s, values);
        return;
    }
    for (unsigned t = 0; t < s->c.n; ++t) s->c.at[t] += (double)s->rows * values / s->c.m->values;
}

// Runs a step; returns its nanoseconds.
static double run_step(step* s, virtual_attention* attention, bool one_stream) {
    const uniform_config* c = s->config;
    const size_t q = (size_t)c->n_heads * c->head_dim, kv = (size_t)c->n_kv_heads * c->head_dim;
    rows_phase(s, c->hidden_size);
    for (uint32_t layer = 0; layer < c->n_layers; ++layer) {
        norm(s);
        products(s, q + 2 * kv, c->hidden_size, false, false);
        rows_phase(s, (double)(q + 2 * kv));
        attention_phases(s, shape_of_layer(attention, layer));
        if (layer + 1 == c->n_layers && s->rows > 1 && one_stream) {
            s->rows = 1;  // only the last row of a prompt is needed
            barrier(&s->c);
        }
        if (q / c->n_kv_heads % LW_SEGMENT != 0) rows_phase(s, (double)q);
        products(s, c->hidden_size, q, false, false);
        norm(s);
        products(s, 2 * (size_t)c->ffn_size, c->hidden_size, false, true);
        products(s, c->hidden_size, c->ffn_size, false, false);
    }
    norm(s);
    products(s, c->vocab_size, c->hidden_size, true, false);
    return s->c.at[0];
}

// On machines without interruptions.
static double simulate_alone(const machine* m, const workload* w, unsigned threads, costs* out) {
    static step s;
    const size_t rows = w->streams * w->rows;
    s = (step){.c = {.m = m, .n = threads},
               .config = &w->model->config,
               .rows = rows,
               .reads = rows == 1,
               .layer_weight = w->weight_bytes};
    virtual_attention attention;
    open_attention(&attention, w, threads);
    const double ns = run_step(&s, &attention, w->streams == 1);
    close_attention(&attention);
    if (out != NULL) *out = s.costs;
    return ns;
}

// Threads meet so often that every interruption of one holds all of them.
static double simulate(const machine* m, const workload* w, unsigned threads, costs* out) {
    double ns = simulate_alone(m, w, threads, out);
    if (m->serial > 0) ns = (1 - m->serial) * ns + m->serial * simulate_alone(m, w, 1, NULL);
    return ns * (1 + m->lost * threads);
}

#endif
