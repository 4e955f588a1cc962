// The buffers of layers with experts in a session, and the routing of rows.
#ifndef LW_KINDS_ROUTE_H
#define LW_KINDS_ROUTE_H

#include <stdatomic.h>

#include "graph/worker.h"
#include "kinds/kind.h"

// The rows of a batch that one expert works on: first .. first + rows - 1 of the gathered rows. If there is a shared
// expert, it is the first group and works on all rows.
typedef struct lw_expert_group {
    uint32_t expert, first, rows;
    uint32_t place;  // the first row of its codes in lw_experts_own.in and activated
} lw_expert_group;

enum { LW_SHARED_EXPERT = 0x7FFFFFFF };

// `chosen` = rows * n_used. `gathered` = chosen and one more row for each group, because codes of rows lie in pairs.
typedef struct lw_experts_own {
    size_t n_experts, n_used, size, shared_size, latent;  // maximum over the layers
    bool float_inputs;                                    // some matrices of experts read floats
    uint32_t* tokens;                                     // [rows]
    float* scores;            // [rows][n_experts] the router's logits, then the scores made of them
    uint32_t* experts;        // [rows][n_used] chosen experts
    float* weights;           // [rows][n_used + 1] of the chosen experts, then of the shared expert
    uint32_t* slots;          // [rows][n_used] index among the gathered rows
    uint32_t* sources;        // [chosen] the row of the batch that each gathered row is
    float* row_weights;       // [chosen] the weight of each gathered row, of layers with weighs_inputs
    uint32_t* counts;         // [n_experts] used while groups are made
    lw_expert_group* groups;  // [most_groups]
    size_t n_groups;
    uint32_t n_places;       // rows of codes that the groups take
    atomic_uint* runs_done;  // [most_groups][most_runs] as run_panels_done (ffn.c)
    size_t most_runs;
    lw_codes in, activated;  // [gathered] inputs of gate and up, inputs of down
    float* in_values;        // [chosen][hidden_size], if matrices of experts read floats
    float* latents;          // [rows][latent_size] what experts with one read, later the sums of their results
    lw_codes latent_codes;   // [rows] of the same
    float *gate, *up;        // as in lw_buffers: group by group, then the shared expert
    float* out;              // [chosen + rows][hidden_size] results of down
    atomic_uint rows_routed;
} lw_experts_own;

static inline lw_experts_own* lw_experts_of(const lw_session* s) { return s->of_kind[LW_KIND_EXPERTS]; }

// Two phases: the router's logits, then the experts and weights of each row. The thread that routes the last row makes
// the groups (route.c).
void lw_route(lw_worker* w, const lw_layer* layer, const lw_activations* x);

// Number of values that a layer's experts but the shared one read, and of their results.
static inline uint32_t lw_routed_width(const lw_ffn_config* c, uint32_t hidden) {
    return c->latent_size > 0 ? c->latent_size : hidden;
}

// The FFN of a layer with experts (mixture.c).
void lw_run_experts(lw_worker* w, const lw_layer* layer, uint32_t index);

#endif
