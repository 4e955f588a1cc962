// What layers of experts keep in a session, and how rows are routed.
#ifndef LW_KINDS_ROUTE_H
#define LW_KINDS_ROUTE_H

#include <stdatomic.h>

#include "graph/worker.h"
#include "kinds/kind.h"

// The rows of a batch that one expert has, which are rows first .. first + rows - 1 of the gathered ones; or all rows, for
// the shared expert, which is the first.
typedef struct lw_expert_group {
    uint32_t expert, first, rows;
    uint32_t place;  // of its codes in lw_experts_own, in rows
} lw_expert_group;

enum { LW_SHARED_EXPERT = 0x7FFFFFFF };

// `chosen` = rows * n_used, `gathered` = rows * n_used and one more for each expert, since rows lie in pairs.
typedef struct lw_experts_own {
    size_t n_experts, n_used, size, shared_size;  // of the widest layers
    bool float_inputs;                            // some matrices of experts read floats
    float* scores;            // [rows][n_experts] logits of the router, then what the choice goes by
    uint32_t* experts;        // [rows][n_used]
    float* weights;           // [rows][n_used + 1] the last that of the shared expert
    uint32_t* slots;          // [rows][n_used] which gathered row it is
    uint32_t* sources;        // [chosen] row of each gathered one
    uint32_t* counts;         // [n_experts] while groups are made
    lw_expert_group* groups;  // [most_groups]
    size_t n_groups;
    uint32_t n_places;       // of codes that they take
    atomic_uint* runs_done;  // [most_groups][most_runs] as run_panels_done
    size_t most_runs;
    lw_codes in, activated;  // [gathered]
    float* in_values;        // [chosen][hidden_size], where matrices of experts are float
    float *gate, *up;        // as those of lw_buffers: group by group, then the shared expert
    float* out;              // [chosen + rows][hidden_size]
    atomic_uint rows_routed;
} lw_experts_own;

static inline lw_experts_own* lw_experts_of(const lw_session* s) { return s->of_kind[LW_KIND_EXPERTS]; }

// Two phases: the router's logits, and for each row its experts and their weights; then the groups are made (route.c).
void lw_route(lw_worker* w, const lw_layer* layer, const lw_activations* x);

#endif
