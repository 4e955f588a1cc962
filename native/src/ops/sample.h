// Drawing one token from one row of logits.
#ifndef LW_OPS_SAMPLE_H
#define LW_OPS_SAMPLE_H

#include "kernels/lane_ops.h"
#include "lanewise.h"

typedef struct lw_candidate {
    float logit;
    float weight;  // exp((logit - largest) / temperature)
    uint32_t id;
} lw_candidate;

typedef struct lw_sample_scratch {
    float* logits;             // [vocab_size]
    float* weights;            // [vocab_size]
    uint32_t* counts;          // [vocab_size], all zero between calls
    lw_candidate* candidates;  // [vocab_size]
} lw_sample_scratch;

size_t lw_sample_scratch_bytes(size_t vocab_size);
lw_sample_scratch lw_sample_scratch_at(void* memory, size_t vocab_size);

// `last` points to an output token that follows the draw's history, or is NULL.
lw_sampled lw_sample_row(const lw_lane_ops* ops, const float* logits, size_t vocab_size, const lw_draw* draw,
                         const uint32_t* last, lw_sample_scratch scratch);

#endif
