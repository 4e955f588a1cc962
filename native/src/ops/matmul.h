// The matrix products of one phase: several matrices times the same activations. Threads share out their panels.
#ifndef LW_OPS_MATMUL_H
#define LW_OPS_MATMUL_H

#include "kernels/lane_ops.h"
#include "profile.h"
#include "thread_pool.h"

// Another product with the same number of outputs, which is added to some rows of a first product.
typedef struct lw_addend {
    const lw_matrix* weights;
    const lw_kernel* kernel;
    const float* x;      // [rows][weights->cols]
    size_t first, rows;  // range of rows of the first product
} lw_addend;

// Decodes panel `panel` to floats, in the layout of an F32 matrix's panel: out[cols][LW_PANEL]. `row` has room for cols
// floats.
typedef void (*lw_decode_panel_fn)(const lw_matrix* w, size_t panel, float* out, float* row);

typedef struct lw_product {
    const lw_matrix* weights;
    const lw_kernel* kernel;
    const lw_lane_ops* ops;
    lw_decode_panel_fn decode;  // NULL, or the function that decodes panels to F32 for an F32 kernel
    lw_output out;
    const lw_addend* addends;
    size_t n_addends;
    const atomic_size_t* computed;  // addends may be read once *computed has reached `wanted`
    size_t wanted;
} lw_product;

// True if the type multiplies int8 activations, false if float activations.
static inline bool lw_is_quantized(lw_type type) { return type != LW_F32 && type != LW_F16 && type != LW_BF16; }

static inline lw_product lw_product_of(const lw_matrix* w, lw_level level, size_t rows, float* out, bool add) {
    return (lw_product){.weights = w,
                        .kernel = lw_kernel_find(w->type, level, rows),
                        .ops = lw_level_lane_ops[level],
                        .out = {out, w->rows, add}};
}

// What one thread of the pool needs for products.
typedef struct lw_matmul_worker {
    void* scratch;
    lw_profile_thread* profile;  // may be NULL
    lw_operation operation;      // operation that time is charged to
} lw_matmul_worker;

// Bytes of scratch for products of `rows` rows and at most `cols` inputs whose panels are decoded.
static inline size_t lw_decoded_scratch_bytes(size_t rows, size_t cols) {
    return lw_matmul_scratch_bytes(rows) + cols * (LW_PANEL + 1) * sizeof(float);
}

// Computes a panel of a product that decodes its weights (matmul.c).
void lw_product_decoded(const lw_product* p, const lw_activations* x, size_t panel, lw_output out, void* scratch);

// How the rows of a phase are cut into pieces. An item is one panel for one piece. The cuts change no result.
typedef struct lw_cuts {
    size_t n, rows;  // number of pieces, and rows of each; the last piece may have fewer
} lw_cuts;

enum {
    LW_MAX_CUTS = 16,
    LW_DECODING_ROWS = 4,  // decoding the weights takes as long as so many rows, and each piece decodes them anew
};

// Cuts rows into pieces if threads would otherwise wait for each other; each piece decodes the weights anew.
lw_cuts lw_cut_rows(size_t rows, size_t panels, unsigned threads);

typedef struct lw_rows {
    size_t first, n;
} lw_rows;

static inline lw_rows lw_piece(lw_cuts cuts, size_t rows, size_t i) {
    const size_t first = i * cuts.rows;
    return (lw_rows){first, rows - first < cuts.rows ? rows - first : cuts.rows};
}

// The part of `rows` to which the addend is added.
static inline lw_rows lw_common_rows(const lw_addend* a, lw_rows rows) {
    const size_t last = a->first + a->rows, end = rows.first + rows.n, common = last < end ? last : end;
    const size_t first = a->first > rows.first ? a->first : rows.first;
    return (lw_rows){first, first < common ? common - first : 0};
}

// Computes some rows of one panel of a product and its addends: outputs are added to while they are in a cache.
static inline void lw_product_panel(const lw_product* p, const lw_activations* all, lw_rows rows, size_t panel,
                                    lw_output to, void* scratch) {
    const lw_activations part = lw_rows_of(all, rows.first, rows.n), *x = &part;
    const lw_output out = {to.data + rows.first * to.stride, to.stride, to.add};
    if (p->decode != NULL) {
        lw_product_decoded(p, x, panel, out, scratch);
    } else {
        p->kernel->run(p->weights, x, panel, out, scratch);
        if (lw_is_quantized(p->weights->type)) p->ops->add_outliers(p->weights, x, panel, out, scratch);
    }
    if (p->n_addends == 0) return;
    lw_wait_for(p->computed, p->wanted);
    for (const lw_addend* a = p->addends; a < p->addends + p->n_addends; ++a) {
        const lw_rows both = lw_common_rows(a, rows);
        if (both.n == 0) continue;
        const size_t cols = a->weights->cols;
        const float* from = a->x + (both.first - a->first) * cols;
        const lw_activations low = {.rows = both.n, .cols = cols, .f32 = from, .f32_stride = cols};
        a->kernel->run(a->weights, &low, panel, (lw_output){to.data + both.first * to.stride, to.stride, true},
                       scratch);
    }
}

// Charges some rows of one panel of a product to the thread's profile, if it has one.
void lw_matmul_charge(const lw_matmul_worker* self, const lw_product* p, const lw_activations* x, lw_rows rows,
                      size_t panel);

// Number of panels of n products together. The items of their phase are each product's pieces, panel after panel.
size_t lw_count_panels(const lw_product* products, size_t n);
// Every thread of the pool calls this with the same products and its own `items`.
void lw_matmul(lw_taker items, lw_cuts cuts, const lw_product* products, const lw_activations* x,
               const lw_matmul_worker* self);

#endif
