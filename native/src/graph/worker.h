// One thread's view of a forward step, and the functions that all parts of a step use.
#ifndef LW_GRAPH_WORKER_H
#define LW_GRAPH_WORKER_H

#include <stdatomic.h>

#include "graph/session.h"
#include "model/adapter.h"
#include "ops/matmul.h"

typedef struct lw_worker lw_worker;

typedef struct lw_step_state {
    lw_session* session;
    const lw_batch* batch;
    float* logits;
    lw_sampled* drawn;
    void (*run)(lw_worker* w);         // what each thread does
    size_t n_rows;                     // tokens of the batch
    lw_spans adapted, adapted_logits;  // spans of all rows; spans of the rows that get logits
    atomic_bool non_finite;
} lw_step_state;

struct lw_worker {
    lw_step_state* step;
    lw_session* s;
    const lw_model* model;
    const lw_model_config* c;
    const lw_lane_ops* ops;
    lw_buffers* b;
    unsigned thread;
    size_t phase;
    // Rows being worked on: all tokens at first. After the last mixer: the rows that get logits. After the pooling of a
    // pooled model: its results.
    size_t rows;
    bool feeds_head;                        // NaN and infinity do not fail the step: only guesses depend on them
    lw_spans adapted;                       // of these rows
    size_t n_addends[LW_ADAPTED_TOGETHER];  // of each matrix of the last lw_project
    size_t projected;                       // value of s->projected when the low-rank inputs of the last lw_project are
                                            // complete
    void* scratch;
    lw_profile_thread* profile;  // NULL unless profiled
};

static inline void lw_note_non_finite(const lw_worker* w) {
    if (!w->feeds_head) atomic_store(&w->step->non_finite, true);
}

// Hands out this thread's items of the current phase.
static inline lw_taker lw_this_phase(const lw_worker* w, size_t items) {
    return (lw_taker){&w->s->phases[w->phase], items, w->s->threads, w->thread, false};
}

static inline void lw_end_phase(lw_worker* w, lw_operation operation) {
    ++w->phase;
    lw_pool_barrier(w->s->pool, w->thread);
    lw_profile_wait(w->profile, operation);
}

// Charges work on one row: the number of floats and of codes (1 byte each) read or written.
static inline void lw_charge_row(lw_worker* w, lw_operation operation, size_t floats, size_t codes) {
    lw_profile_work(w->profile, operation, 0, floats * sizeof(float) + codes, 0);
}

// The activations of one product: `cols` inputs, whose codes are in `codes`. For float matrices their values are in
// f32.
lw_activations lw_activations_in(const lw_worker* w, size_t cols, const lw_codes* codes, const float* values);
// The same for `rows` rows whose codes begin at row `place` of `codes`.
lw_activations lw_activations_at(const lw_worker* w, size_t rows, size_t cols, const lw_codes* codes, size_t place,
                                 const float* values);
// Quantizes segments first .. first + n - 1 of one row.
void lw_quantize_segments(lw_worker* w, const lw_activations* x, size_t row, size_t first, size_t n,
                          const float* values);
// How a layer's matrices read a row: by codes with one scale for the row, and some of them by floats, rounded alike.
typedef struct lw_row_codes {
    bool whole, floats;
} lw_row_codes;

// The same for a whole row, as its readers want it; rounds `values` if some of them are to be read.
void lw_quantize_row(lw_worker* w, const lw_activations* x, size_t row, float* values, lw_row_codes as, bool quantized);
// Copies the codes of row `row` of x to row `at` of `out`. Both have the same number of inputs, but may differ in
// layout.
void lw_copy_codes(const lw_activations* out, size_t at, const lw_activations* x, size_t row);

// A norm before some matrices: weight (NULL: no norm), bias or NULL, the order of the matrices' inputs or NULL, and the
// factor of the result. If `replaces` is true, the norm's result replaces the residual stream.
typedef struct lw_norm {
    const float *weight, *bias, *order;
    float scale;
    bool replaces;
    const float* of;  // rows to normalize; NULL: the residual stream
    float eps;        // 0: the model's
    lw_row_codes codes;
} lw_norm;

// The norm before a layer's mixers, with the order of their inputs. The norm before the layer's FFN.
lw_norm lw_norm_before_mixer(const lw_layer* layer, const float* order);
lw_norm lw_norm_before_ffn(const lw_worker* w, const lw_layer* layer, const float* order);

// The row that is given in the place of a token's embedding, or the embedding, scaled.
void lw_embed_row(const lw_worker* w, size_t row, float* x);
// Normalizes one row by the model's kind of norm; out may be x.
void lw_normalize_row(const lw_worker* w, float* out, const float* x, const float* weight, const float* bias, size_t n);
// Normalizes what is added to the residual stream, with the epsilon of results.
void lw_normalize_result(const lw_worker* w, float* result, const float* weight);
// The norm of the residual stream as floats and, if `quantized`, its codes.
lw_activations lw_normalize(lw_worker* w, lw_operation operation, lw_norm by, bool quantized);
// A phase: `n` products that read the same activations.
void lw_multiply(lw_worker* w, lw_operation operation, const lw_product* products, size_t n, const lw_activations* x);
// x += matrix * values, or x += norm(matrix * values) if `norm` is not NULL. lw_project has been called for adapted
// matrix `which`; LW_ADAPTED_COUNT: the matrix cannot be adapted.
void lw_add_product(lw_worker* w, lw_operation operation, const lw_matrix* matrix, const float* norm,
                    const lw_activations* values, lw_adapted which);
void lw_put_in_order(float* out, const float* values, const float* order, size_t n);
// out += bias, unless bias is NULL.
void lw_add_vector(float* out, const float* bias, size_t n);

// Whether products with this matrix read the activations' codes instead of their floats.
static inline bool lw_reads_codes(const lw_worker* w, const lw_matrix* matrix) {
    return lw_is_quantized(matrix->type) && !w->s->config.float_activations;
}

static inline bool lw_any_reads_codes(const lw_worker* w, const lw_matrix* const* matrices, size_t n) {
    for (size_t i = 0; i < n; ++i)
        if (lw_reads_codes(w, matrices[i])) return true;
    return false;
}

// How these matrices of a layer read rows.
static inline lw_row_codes lw_codes_for(const lw_worker* w, const lw_layer* layer, const lw_matrix* const* matrices,
                                        size_t n) {
    lw_row_codes as = {.whole = layer->config.row_codes};
    for (size_t i = 0; as.whole && i < n; ++i) as.floats |= matrices[i]->rows > 0 && !lw_reads_codes(w, matrices[i]);
    return as;
}

static inline lw_product lw_product_of_rows(const lw_worker* w, const lw_matrix* matrix, size_t rows, float* out,
                                            bool add) {
    lw_product product = lw_product_of(matrix, w->model->level, rows, out, add);
    if (lw_is_quantized(matrix->type) && !lw_reads_codes(w, matrix)) {
        product.kernel = lw_kernel_find(LW_F32, w->model->level, rows);
        product.decode = lw_decode_panel;
    }
    return product;
}

static inline lw_product lw_product_at(const lw_worker* w, const lw_matrix* matrix, float* out, bool add) {
    return lw_product_of_rows(w, matrix, w->rows, out, add);
}

// The same for a matrix that adapters may change. lw_project computes its low-rank inputs.
static inline lw_product lw_adapted_product_at(const lw_worker* w, const lw_matrix* matrix, float* out, bool add,
                                               lw_adapted which) {
    lw_product product = lw_product_at(w, matrix, out, add);
    product.addends = w->b->addends[which % LW_ADAPTED_TOGETHER];
    product.n_addends = w->n_addends[which % LW_ADAPTED_TOGETHER];
    product.computed = &w->s->projected;
    product.wanted = w->projected;
    return product;
}

// Values that matrices read: segment s of row r is at values + r * row_stride + s * segment_stride.
typedef struct lw_inputs {
    const float* values;
    size_t cols, row_stride, segment_stride;
} lw_inputs;

static inline lw_inputs lw_inputs_of(const lw_activations* x) {
    return (lw_inputs){x->f32, x->cols, x->cols, LW_SEGMENT};
}

// A phase without a barrier: computes the low-rank inputs of matrices first .. first + n - 1, for rows with adapters of
// them. On return, inputs that other threads compute may be missing; products wait for them (low_rank.c).
void lw_project(lw_worker* w, lw_operation operation, uint32_t layer, lw_adapted first, size_t n, lw_inputs x);

// Moves the rows of a buffer that get logits to its beginning.
void lw_keep_rows(float* buffer, size_t cols, const lw_batch* batch);
// Counts products for lw_session_counters.
void lw_count_products(lw_worker* w, size_t n, size_t rows);

#endif
