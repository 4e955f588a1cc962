// Gate and up projections, activation and quantization in one phase.
//
// Work goes out panel by panel in the order of the segments of the result: the panels of gate of a run of segments, then
// those of up; where rows are cut, all of them for one piece of the rows and then for the next. Whoever finishes the last
// panel of a run's piece activates and quantizes it while it is in a cache. Rows of one segment lie together, so a panel's
// results fall on consecutive lines.
#include "graph/worker.h"

enum {
    SEGMENT_PANELS = LW_SEGMENT / LW_PANEL,
    // Weights are prefetched in the order of one matrix, so each change to the other costs a wait for memory: where
    // weights are what steps wait for, runs are long. (Zen 5, 1B, one row: runs of 1 segment 32 GB/s.)
    FEW_ROWS = 8,
    LONG_RUN = 8,
};

typedef struct gate_up {
    lw_worker* w;
    lw_product gate, up;
    lw_activations in, out;
    size_t panels;  // of one of the two matrices
    lw_cuts cuts;
    size_t run;      // segments
    bool quantized;  // else the result stays [rows][ffn_size] floats
} gate_up;

// Panels of run `run` of one of the two matrices.
static size_t panels_of(const gate_up* g, size_t run) {
    const size_t all = g->run * SEGMENT_PANELS, left = g->panels - run * all;
    return left < all ? left : all;
}

// Where row `row` of a segment is in gate or up.
static float* segment_row(const gate_up* g, float* buffer, size_t segment, size_t row) {
    if (g->quantized) return buffer + (segment * g->w->rows + row) * LW_SEGMENT;
    return buffer + row * g->w->c->ffn_size + segment * LW_SEGMENT;
}

static void multiply_panel(const gate_up* g, size_t run, lw_rows rows, size_t place) {
    const size_t n = panels_of(g, run), panel = run * g->run * SEGMENT_PANELS + place % n,
                 segment = panel / SEGMENT_PANELS;
    const lw_product* p = place < n ? &g->gate : &g->up;
    lw_output out = p->out;
    if (g->quantized)  // kernels add panel * 32 to the row's address
        out = (lw_output){segment_row(g, out.data, segment, 0) - segment * LW_SEGMENT, LW_SEGMENT, false};
    lw_product_panel(p, &g->in, rows, panel, out, g->w->scratch);
    const lw_matmul_worker self = {g->w->scratch, g->w->profile, LW_OP_GATE_UP};
    lw_matmul_charge(&self, p, &g->in, rows, panel);
}

static void activate_segment(gate_up* g, size_t segment, lw_rows rows) {
    lw_worker* w = g->w;
    const size_t left = w->c->ffn_size - segment * LW_SEGMENT, n = left < LW_SEGMENT ? left : LW_SEGMENT;
    for (size_t row = rows.first; row < rows.first + rows.n; ++row) {
        float* gate = segment_row(g, w->b->gate, segment, row);
        w->ops->silu_mul(gate, gate, segment_row(g, w->b->up, segment, row), n);
        if (g->quantized) lw_quantize_segments(w, &g->out, row, segment, 1, gate);
    }
    lw_charge_row(w, LW_OP_ACTIVATE, 3 * n * rows.n, g->quantized ? n * rows.n : 0);
}

static void activate_run(gate_up* g, size_t run, lw_rows rows) {
    const size_t first = run * g->run;
    for (size_t segment = first; segment < first + g->run && segment * SEGMENT_PANELS < g->panels; ++segment)
        activate_segment(g, segment, rows);
}

// Up to `most` panels of one run and one piece of its rows, from item `item` on; returns how many.
static size_t take_of_piece(gate_up* g, size_t item, size_t most) {
    lw_worker* w = g->w;
    const size_t of_run = 2 * g->run * SEGMENT_PANELS * g->cuts.n, run = item / of_run, all = 2 * panels_of(g, run);
    const size_t piece = item % of_run / all, first = item % of_run % all, n = all - first < most ? all - first : most;
    const lw_rows rows = lw_piece(g->cuts, w->rows, piece);
    for (size_t place = first; place < first + n; ++place) multiply_panel(g, run, rows, place);
    atomic_uint* done = &w->s->run_panels_done[run * LW_MAX_CUTS + piece];
    if (atomic_fetch_add_explicit(done, (unsigned)n, memory_order_acq_rel) + n == all) {
        atomic_store_explicit(done, 0, memory_order_relaxed);  // for the next layer, a barrier away
        activate_run(g, run, rows);
    }
    return n;
}

static void take_panels(gate_up* g) {
    size_t begin, end;
    lw_taker items = lw_this_phase(g->w, 2 * g->panels * g->cuts.n);
    while (lw_take_share(&items, &begin, &end))
        while (begin < end) begin += take_of_piece(g, begin, end - begin);
}

lw_activations lw_gate_up(lw_worker* w, const lw_layer* layer, const lw_activations* x) {
    const size_t n = w->c->ffn_size;
    gate_up g = {.w = w,
                 .gate = lw_adapted_product_at(w, &layer->gate, w->b->gate, false, LW_ADAPTED_GATE),
                 .up = lw_adapted_product_at(w, &layer->up, w->b->up, false, LW_ADAPTED_UP),
                 .in = *x,
                 .out = lw_activations_in(w, n, &w->b->ffn_codes, w->b->gate),
                 .panels = layer->gate.panels,
                 .cuts = lw_cut_rows(w->rows, 2 * layer->gate.panels, w->s->config.n_threads),
                 .run = w->rows <= FEW_ROWS ? LONG_RUN : 1,
                 .quantized = lw_reads_codes(w, &layer->down)};
    take_panels(&g);
    lw_count_products(w, 2, x->rows);
    lw_end_phase(w, LW_OP_GATE_UP);
    return g.out;
}
