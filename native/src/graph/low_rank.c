// Adapters: for rows that have one, a product W x becomes W x + B (scale * (A x)).
//
// Before the product the threads compute scale * (A x) between them, and each panel of B is added right after that panel
// of the product, by the same thread. A has few outputs, so threads share its inputs too, in splits that are the same
// for any number of threads; the thread that finishes the last one adds them up.
// For each row and output of A, all in f32:
//     for each split of 512 inputs: for each segment of 128 of it: one chain of fmaf from 0, then added to the split's sum
//     scale * (sum of the splits, ascending)
#include "graph/worker.h"
#include "status.h"

enum { SPLIT_SEGMENTS = 4 };

static size_t splits_of(size_t cols) {
    return (cols + SPLIT_SEGMENTS * LW_SEGMENT - 1) / (SPLIT_SEGMENTS * LW_SEGMENT);
}

size_t lw_partial_floats(const lw_session* s) {
    const size_t together = LW_ADAPTED_TOGETHER * splits_of(s->widths.hidden), alone = splits_of(s->widths.adapted);
    return (together > alone ? together : alone) * s->config.max_adapter_rank;
}

lw_status lw_check_adapters(const lw_session* s, const lw_batch* batch) {
    for (uint32_t i = 0; batch->adapters != NULL && i < batch->n_seqs; ++i) {
        const lw_adapter* adapter = batch->adapters[i];
        if (adapter == NULL) continue;
        if (adapter->model != s->model)
            return lw_fail(LW_ERR_ARGUMENT, "batch: the adapter of sequence %u belongs to another model", i);
        if (adapter->rank > s->config.max_adapter_rank)
            return lw_fail(LW_ERR_ARGUMENT, "batch: the adapter of sequence %u has rank %u, the session takes %u", i,
                           adapter->rank, s->config.max_adapter_rank);
    }
    return LW_OK;
}

static uint32_t row_of(const lw_batch* batch, bool of_logits, uint32_t i) {
    return of_logits ? batch->logit_rows[i] : i;
}

lw_spans lw_make_spans(lw_session* s, const lw_batch* batch, bool of_logits) {
    if (batch->adapters == NULL || s->config.max_adapter_rank == 0) return (lw_spans){0};
    lw_span* spans = s->b.spans[of_logits];
    const uint32_t rows = of_logits ? batch->n_logits : batch->query_start[batch->n_seqs];
    size_t n = 0;
    for (uint32_t i = 0; i < rows; ++i) {
        const lw_adapter* adapter = batch->adapters[s->b.sequence[row_of(batch, of_logits, i)]];
        if (adapter == NULL || adapter->rank == 0) continue;
        lw_span* last = n > 0 ? &spans[n - 1] : NULL;
        if (last != NULL && last->adapter == adapter && last->first + last->rows == i && last->rows < LW_SPAN_ROWS)
            ++last->rows;
        else
            spans[n++] = (lw_span){.adapter = adapter, .first = i, .rows = 1};
    }
    lw_spans made = {spans, n, 0};
    for (size_t i = 0; i < n; ++i) {
        const size_t panels = (spans[i].adapter->rank + LW_PANEL - 1) / LW_PANEL;
        if (panels > made.panels) made.panels = panels;
        spans[i].kernel = lw_kernel_find(spans[i].adapter->type, s->model->level, spans[i].rows);
    }
    return made;
}

// One of the matrices of a phase in one of its spans.
typedef struct projection {
    const lw_span* span;
    const lw_low_rank* weights;
    size_t rank, splits;
    float *partial, *low;  // [rows][splits][rank], [rows][rank]
    atomic_uint* done;
} projection;

static projection projection_at(const lw_worker* w, uint32_t layer, lw_adapted first, size_t place, size_t span,
                                size_t cols) {
    const lw_span* at = &w->adapted.at[span];
    const lw_low_rank* weights = &at->adapter->layers[layer][first + place];
    const size_t rank = weights->a.rows, splits = splits_of(cols), most = w->s->config.max_adapter_rank;
    return (projection){.span = at,
                        .weights = weights,
                        .rank = rank,
                        .splits = splits,
                        .partial = w->b->partial + at->first * w->s->partial_floats + place * at->rows * splits * most,
                        .low = w->b->low + (at->first * LW_ADAPTED_TOGETHER + place * at->rows) * most,
                        .done = &w->b->parts_done[span * LW_ADAPTED_TOGETHER + place]};
}

// What the products of these matrices will add. One thread does it, and counts as one more low-rank input.
static void list_addends(const lw_worker* w, uint32_t layer, lw_adapted first, size_t n, size_t cols) {
    for (size_t place = 0; place < n; ++place) {
        const size_t slot = (first + place) % LW_ADAPTED_TOGETHER;
        size_t count = 0;
        for (size_t span = 0; span < w->adapted.n; ++span) {
            const projection p = projection_at(w, layer, first, place, span, cols);
            if (p.rank == 0) continue;
            w->b->addends[slot][count++] =
                (lw_addend){&p.weights->b, p.span->kernel, p.low, p.span->first, p.span->rows};
        }
    }
    atomic_fetch_add_explicit(&w->s->projected, 1, memory_order_release);
}

// One panel of A over one split of the inputs.
static void multiply_split(lw_worker* w, lw_operation operation, const projection* p, lw_inputs x, size_t panel,
                           size_t split) {
    const lw_matrix* a = &p->weights->a;
    const size_t input_bytes = a->panel_bytes / a->cols, rows = p->span->rows;
    const size_t end =
        (split + 1) * SPLIT_SEGMENTS * LW_SEGMENT < x.cols ? (split + 1) * SPLIT_SEGMENTS * LW_SEGMENT : x.cols;
    lw_output out = {p->partial + split * p->rank, p->splits * p->rank, false};
    for (size_t k = split * SPLIT_SEGMENTS * LW_SEGMENT; k < end; k += LW_SEGMENT, out.add = true) {
        lw_matrix part = *a;
        part.cols = (uint32_t)(end - k < LW_SEGMENT ? end - k : LW_SEGMENT);
        part.data += k * input_bytes;
        const lw_activations of = {.rows = rows,
                                   .cols = part.cols,
                                   .f32 = x.values + p->span->first * x.row_stride + k / LW_SEGMENT * x.segment_stride,
                                   .f32_stride = x.row_stride};
        p->span->kernel->run(&part, &of, panel, out, w->scratch);
    }
    const size_t inputs = end - split * SPLIT_SEGMENTS * LW_SEGMENT;
    lw_profile_work(w->profile, operation, 1 + (size_t)(p->span->kernel - lw_kernels), inputs * input_bytes,
                    rows * inputs * LW_PANEL);
}

static void add_splits(const projection* p) {
    for (size_t row = 0; row < p->span->rows; ++row) {
        float* sum = p->partial + row * p->splits * p->rank;
        for (size_t split = 1; split < p->splits; ++split)
            for (size_t i = 0; i < p->rank; ++i) sum[i] += sum[split * p->rank + i];
        for (size_t i = 0; i < p->rank; ++i) p->low[row * p->rank + i] = p->weights->scale * sum[i];
    }
}

static void project_item(lw_worker* w, lw_operation operation, const projection* p, lw_inputs x, size_t part) {
    const size_t panels = p->weights->a.panels;
    if (part >= panels * p->splits) return;
    multiply_split(w, operation, p, x, part / p->splits, part % p->splits);
    if (atomic_fetch_add_explicit(p->done, 1, memory_order_acq_rel) + 1 < panels * p->splits) return;
    atomic_store_explicit(p->done, 0, memory_order_relaxed);  // for the next phase, a barrier away
    add_splits(p);
    atomic_fetch_add_explicit(&w->s->projected, 1, memory_order_release);
}

// Sets how many addends each of the matrices gets; returns their number.
static size_t count_addends(lw_worker* w, uint32_t layer, lw_adapted first, size_t n) {
    size_t all = 0;
    for (size_t place = 0; place < n; ++place) {
        size_t count = 0;
        for (size_t span = 0; span < w->adapted.n; ++span)
            count += w->adapted.at[span].adapter->layers[layer][first + place].a.rows != 0;
        w->n_addends[(first + place) % LW_ADAPTED_TOGETHER] = count;
        all += count;
    }
    return all;
}

void lw_project(lw_worker* w, lw_operation operation, uint32_t layer, lw_adapted first, size_t n, lw_inputs x) {
    const size_t count = count_addends(w, layer, first, n);
    if (count == 0) return;
    w->projected += count + 1;
    if (w->thread == 0) list_addends(w, layer, first, n, x.cols);
    const size_t parts = w->adapted.panels * splits_of(x.cols);  // of the largest adapter; others have fewer
    lw_taker items = lw_this_phase(w, w->adapted.n * n * parts);
    for (size_t item; lw_take_item(&items, &item);) {
        const projection p = projection_at(w, layer, first, item / parts % n, item / parts / n, x.cols);
        project_item(w, operation, &p, x, item % parts);
    }
    ++w->phase;
}
