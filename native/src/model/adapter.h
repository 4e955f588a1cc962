// Low-rank additions to a model's matrices (LoRA): each adapted matrix has A (rank, inputs), B (outputs, rank) and a
// scale.
#ifndef LW_MODEL_ADAPTER_H
#define LW_MODEL_ADAPTER_H

#include "model/model.h"

// The matrices of a layer that can be adapted; matrices with the same inputs are neighbours.
typedef enum lw_adapted {
    LW_ADAPTED_Q,  // the first ones read the norm before attention or a state
    LW_ADAPTED_K,
    LW_ADAPTED_V,
    LW_ADAPTED_ATTN_GATE,
    LW_ADAPTED_STATE_IN,
    LW_ADAPTED_STATE_KEYS,
    LW_ADAPTED_STATE_VALUES,
    LW_ADAPTED_STATE_GATE,
    LW_ADAPTED_STATE_DECAY,
    LW_ADAPTED_STATE_BETA,
    LW_ADAPTED_ATTN_OUTPUT,
    LW_ADAPTED_STATE_OUT,
    LW_ADAPTED_GATE,
    LW_ADAPTED_UP,
    LW_ADAPTED_DOWN,
    LW_ADAPTED_COUNT
} lw_adapted;

enum { LW_ADAPTED_TOGETHER = LW_ADAPTED_STATE_BETA + 1 };  // maximum number of matrices with the same inputs

typedef struct lw_low_rank {
    lw_matrix a, b;  // 0 rows: the matrix is not adapted
    float scale;
} lw_low_rank;

struct lw_adapter {
    const lw_model* model;  // compared with a batch's model; only lw_adapter_load reads it
    lw_arena arena;
    lw_pool* pool;  // one thread: the calling one
    lw_type type;   // type of all A and B, set by the first ones loaded
    uint32_t rank;  // largest rank of a matrix
    uint64_t bytes;
    lw_low_rank (*layers)[LW_ADAPTED_COUNT];
};

#endif
