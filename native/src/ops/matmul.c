#include "ops/matmul.h"

enum { PIECES_PER_THREAD = 12 };  // small enough to even out, large enough for sequential reads

void lw_matmul(lw_work* work, const lw_product* products, size_t n, const lw_activations* x, unsigned threads,
               void* scratch) {
    size_t total = 0;
    for (size_t i = 0; i < n; ++i) total += products[i].weights->panels;
    const size_t piece = total / (threads * PIECES_PER_THREAD);
    size_t begin, end;
    while (lw_work_take(work, total, piece > 0 ? piece : 1, &begin, &end)) {
        size_t product = 0, first = 0;
        for (size_t panel = begin; panel < end; ++panel) {
            while (panel - first >= products[product].weights->panels) first += products[product++].weights->panels;
            const lw_product* p = &products[product];
            p->kernel->run(p->weights, x, panel - first, p->out, scratch);
        }
    }
}
