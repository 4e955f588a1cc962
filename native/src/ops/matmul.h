// Matrix products of one phase: several matrices over the same activations, their panels shared out among the threads.
#ifndef LW_OPS_MATMUL_H
#define LW_OPS_MATMUL_H

#include "kernels/kernel.h"
#include "profile.h"
#include "thread_pool.h"

typedef struct lw_product {
    const lw_matrix* weights;
    const lw_kernel* kernel;
    lw_output out;
} lw_product;

// True when the type reads int8 activations, false for float ones.
static inline bool lw_is_quantized(lw_type type) { return type != LW_F32 && type != LW_F16 && type != LW_BF16; }

static inline lw_product lw_product_of(const lw_matrix* w, lw_level level, size_t rows, float* out, bool add) {
    return (lw_product){w, lw_kernel_find(w->type, level, rows), {out, w->rows, add}};
}

// What one thread of the pool brings along.
typedef struct lw_matmul_worker {
    void* scratch;
    lw_profile_thread* profile;  // or NULL
    lw_operation operation;      // what to charge
} lw_matmul_worker;

// Charges panels begin .. end-1 of one product to the thread's profile, if it has one.
void lw_matmul_charge(const lw_matmul_worker* self, const lw_product* p, const lw_activations* x, size_t begin,
                      size_t end);

// Every thread of the pool calls this with the same arguments but `self`.
void lw_matmul(lw_work* work, const lw_product* products, size_t n, const lw_activations* x, unsigned threads,
               const lw_matmul_worker* self);

#endif
