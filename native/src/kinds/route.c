// Routers (lw_router_kind). A row's choice depends on its logits alone.
#include "kinds/route.h"

#include <math.h>
#include <string.h>

#include "ops/math.h"

// Returns the index of the largest key, the lowest index on a tie, and sets the key to -INFINITY. Experts that may not
// be chosen have the key -INFINITY.
static uint32_t take_largest(float* keys, uint32_t n) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; ++i)
        if (keys[i] > keys[best]) best = i;
    keys[best] = -INFINITY;
    return best;
}

static float two_best(const float* keys, uint32_t n) {
    float first = -INFINITY, second = -INFINITY;
    for (uint32_t i = 0; i < n; ++i) {
        if (keys[i] > first) {
            second = first;
            first = keys[i];
        } else if (keys[i] > second) {
            second = keys[i];
        }
    }
    return n > 1 ? first + second : first;
}

// Keeps the keys of the groups_used best groups; all other keys become -INFINITY. `groups` has room for n_groups
// floats.
static void keep_groups(const lw_worker* w, const lw_ffn_config* c, float* keys, float* groups) {
    const uint32_t size = c->n_experts / c->n_groups;
    uint8_t kept[4096] = {0};  // the most experts that a config may have
    for (uint32_t g = 0; g < c->n_groups; ++g)
        groups[g] = c->groups_by_best ? w->ops->max(keys + g * size, size) : two_best(keys + g * size, size);
    for (uint32_t i = 0; i < c->groups_used; ++i) kept[take_largest(groups, c->n_groups)] = 1;
    for (uint32_t g = 0; g < c->n_groups; ++g)
        for (uint32_t i = 0; !kept[g] && i < size; ++i) keys[g * size + i] = -INFINITY;
}

static void softmax(const lw_worker* w, float* x, size_t n) {
    const float largest = w->ops->max(x, n), sum = w->ops->sum_exp(x, n, largest, 1);
    w->ops->exp(x, x, n, largest, 1);
    for (size_t i = 0; i < n; ++i) x[i] /= sum;
}

static void sigmoid(const lw_worker* w, float* x, size_t n) {
    w->ops->exp(x, x, n, 0, -1);
    for (size_t i = 0; i < n; ++i) x[i] = 1 / (1 + x[i]);
}

static void root_of_softplus(float* x, size_t n) {
    for (size_t i = 0; i < n; ++i) x[i] = (float)sqrt(lw_softplus((double)x[i]));
}

static void scale_weights(const lw_ffn_config* c, float* weights) {
    float sum = 0;
    for (uint32_t i = 0; i < c->n_used; ++i) sum += weights[i];
    sum += c->divisor_extra;
    if (sum < c->divisor_least) sum = c->divisor_least;
    for (uint32_t i = 0; i < c->n_used; ++i) {
        if (c->renormalize) weights[i] /= sum;
        weights[i] *= c->scale;
    }
}

// Chooses the experts and weights of a row by its logits, which are overwritten.
static void choose(lw_worker* w, const lw_layer* layer, uint32_t token, float* logits, uint32_t* experts,
                   float* weights) {
    const lw_ffn_config* c = &layer->config.ffn;
    const size_t n = c->n_experts;
    float* keys = w->scratch;
    lw_add_vector(logits, layer->router_bias, n);
    if (!w->ops->are_finite(logits, n)) {
        atomic_store(&w->step->non_finite, true);
        memset(logits, 0, n * sizeof *logits);
    }
    if (c->router == LW_ROUTER_SOFTMAX) softmax(w, logits, n);
    if (c->router == LW_ROUTER_SIGMOID) sigmoid(w, logits, n);
    if (c->router == LW_ROUTER_SQRT_SOFTPLUS) root_of_softplus(logits, n);
    const float* row = c->looks_up ? layer->router_table + (size_t)token * c->n_used : NULL;
    memcpy(keys, logits, n * sizeof *keys);
    lw_add_vector(keys, layer->choice_bias, n);
    if (c->groups_used < c->n_groups) keep_groups(w, c, keys, keys + n);
    for (uint32_t i = 0; i < c->n_used; ++i) {
        experts[i] = row != NULL ? (uint32_t)row[i] : take_largest(keys, c->n_experts);
        weights[i] = logits[experts[i]];
    }
    if (c->router == LW_ROUTER_TOP_SOFTMAX) softmax(w, weights, c->n_used);
    scale_weights(c, weights);
    for (uint32_t i = 0; layer->router_scales != NULL && i < c->n_used; ++i)
        weights[i] *= layer->router_scales[experts[i]];
}

static void add_group(const lw_worker* w, uint32_t expert, uint32_t first, uint32_t rows) {
    lw_experts_own* e = lw_experts_of(w->s);
    e->groups[e->n_groups++] = (lw_expert_group){expert, first, rows, e->n_places};
    if (expert != LW_SHARED_EXPERT)
        e->n_places += (uint32_t)lw_round_up(rows, lw_level_layouts[w->model->level].row_block);
}

static void count_group(lw_counters* counters, uint32_t rows) {
    enum { KINDS = sizeof counters->experts_by_rows / sizeof *counters->experts_by_rows };
    size_t kind = 0;
    while (kind + 1 < KINDS && rows > UINT32_C(1) << kind) ++kind;
    ++counters->experts_by_rows[kind];
    counters->expert_rows += rows;
}

// Sorts the rows by expert. The thread that routes the last row calls it.
static void make_groups(lw_worker* w, const lw_layer* layer) {
    lw_experts_own* e = lw_experts_of(w->s);
    const lw_ffn_config* c = &layer->config.ffn;
    const size_t chosen = w->rows * c->n_used;
    uint32_t* counts = e->counts;
    memset(counts, 0, c->n_experts * sizeof *counts);
    for (size_t i = 0; i < chosen; ++i) ++counts[e->experts[i]];
    e->n_groups = e->n_places = 0;
    if (c->shared_size > 0) add_group(w, LW_SHARED_EXPERT, (uint32_t)chosen, (uint32_t)w->rows);
    uint32_t first = 0;
    for (uint32_t expert = 0; expert < c->n_experts; ++expert) {
        const uint32_t rows = counts[expert];
        if (rows > 0) {
            add_group(w, expert, first, rows);
            count_group(&w->s->counters, rows);
        }
        counts[expert] = first;  // where the expert's next row goes
        first += rows;
    }
    for (size_t i = 0; i < chosen; ++i) {
        e->slots[i] = counts[e->experts[i]]++;
        e->sources[e->slots[i]] = (uint32_t)(i / c->n_used);
        if (!c->weighs_inputs) continue;
        float* weight = &e->weights[i / c->n_used * (c->n_used + 1) + i % c->n_used];
        e->row_weights[e->slots[i]] = *weight;
        *weight = 1;  // of the result
    }
}

// The weight of the shared expert: the sigmoid of a dot product, which is one chain of fma.
static float shared_weight(const lw_worker* w, const lw_layer* layer, const float* x) {
    if (layer->shared_router == NULL) return 1;
    float sum = 0;
    for (size_t i = 0; i < w->c->hidden_size; ++i) sum = fmaf(layer->shared_router[i], x[i], sum);
    sigmoid(w, &sum, 1);
    return sum;
}

void lw_route(lw_worker* w, const lw_layer* layer, const lw_activations* x) {
    lw_experts_own* e = lw_experts_of(w->s);
    const lw_ffn_config* c = &layer->config.ffn;
    const lw_product router = lw_product_at(w, &layer->router, e->scores, false);
    lw_multiply(w, LW_OP_ROUTE, &router, 1, x);
    lw_taker items = lw_this_phase(w, w->rows);
    for (size_t row; lw_take_item(&items, &row);) {
        float* weights = e->weights + row * (c->n_used + 1);
        choose(w, layer, e->tokens[row], e->scores + row * c->n_experts, e->experts + row * c->n_used, weights);
        weights[c->n_used] = shared_weight(w, layer, x->f32 + row * x->f32_stride);
        // Of streams that are mixed only the experts' result is needed.
        const size_t hidden = w->c->hidden_size;
        if (w->c->hyper_streams > 0) memset(w->b->x + row * hidden, 0, hidden * sizeof(float));
        lw_charge_row(w, LW_OP_ROUTE, 2 * c->n_experts, 0);
        if (atomic_fetch_add_explicit(&e->rows_routed, 1, memory_order_acq_rel) + 1 < w->rows) continue;
        atomic_store_explicit(&e->rows_routed, 0, memory_order_relaxed);  // for the next layer, which starts after a
                                                                          // barrier
        make_groups(w, layer);
    }
    lw_end_phase(w, LW_OP_ROUTE);
}
