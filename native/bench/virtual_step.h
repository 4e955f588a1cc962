// A forward step with the library's phases, run by a virtual crew.
#ifndef BENCH_VIRTUAL_STEP_H
#define BENCH_VIRTUAL_STEP_H

#include <string.h>

#include "kinds/attend.h"
#include "virtual_crew.h"

static double panel_work(const phase* p, size_t item) {
    const double weights = (double)LW_PANEL * (double)p->inputs;
    if (p->reads) return weights * p->bytes_per_weight;
    return weights * (double)(lw_piece(p->cuts, p->rows, item % p->cuts.n).n + LW_DECODING_ROWS) / p->m->gmac;
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

// Tokens of a tile. As in the library, late tiles go first.
static size_t tile_tokens(const uniform_config* c) {
    const lw_layer_config layer = uniform_layer(c);
    return lw_tile_tokens(&layer.attention, layer.attention.n_kv_heads);
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
    bool reads;  // few rows: weights come from memory
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

static void attention_phase(step* s, size_t context) {
    const size_t tokens = tile_tokens(s->config), tiles = (s->rows + tokens - 1) / tokens;
    const phase p = {.items = tiles * s->config->n_kv_heads,
                     .work = attention_work,
                     .m = s->c.m,
                     .c = s->config,
                     .rows = s->rows,
                     .context = context};
    run_phase(&s->c, &p);
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
        attention_phase(s, 0);
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

#endif
