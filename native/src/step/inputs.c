// lw_session_inputs: what a session with observe_inputs has seen of the inputs of matrices, by name.
#include <stdio.h>

#include "graph/observe.h"
#include "status.h"
#include "step/ahead.h"

static void add_stats(lw_input_stats* sum, const lw_input_stats* cell) {
    sum->values += cell->values;
    sum->total += cell->total;
    sum->groups += cell->groups;
    sum->outlier_groups += cell->outlier_groups;
    if (cell->largest <= sum->largest) return;
    sum->largest = cell->largest;
    sum->largest_input = cell->largest_input;
}

lw_status lw_session_inputs(const lw_session* session, lw_input_stats* out, uint32_t capacity, uint32_t* n) {
    if (session == NULL || n == NULL || (out == NULL && capacity > 0))
        return lw_fail(LW_ERR_ARGUMENT, "lw_session_inputs: session, out and n must not be NULL");
    if (lw_steps_are_ahead(session))
        return lw_fail(LW_ERR_ARGUMENT, "lw_session_inputs: a step that was started is not finished");
    *n = session->observed != NULL ? (uint32_t)lw_observed_cells(session) : 0;
    for (uint32_t i = 0; i < *n && i < capacity; ++i) {
        const lw_operation operation = lw_observed_operation(session, i);
        out[i] = (lw_input_stats){.layer = operation == LW_OP_HEAD ? 0 : i / LW_OBSERVED_IN_LAYER};
        snprintf(out[i].operation, sizeof out[i].operation, "%s", lw_operation_names[operation]);
        for (unsigned thread = 0; thread < session->config.n_threads; ++thread)
            add_stats(&out[i], &session->observed[thread * (size_t)*n + i]);
    }
    return LW_OK;
}
