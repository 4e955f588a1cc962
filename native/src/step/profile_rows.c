// lw_session_profile*: what the profile of a session says, by name.
#include <stdio.h>

#include "graph/session.h"
#include "status.h"
#include "step/ahead.h"

const char* const lw_operation_names[LW_OPERATION_COUNT] = {
    [LW_OP_EMBED] = "embed",
    [LW_OP_ATTN_NORM] = "attn_norm",
    [LW_OP_QKV] = "qkv",
    [LW_OP_ROTATE] = "rotate",
    [LW_OP_ATTENTION] = "attention",
    [LW_OP_ATTN_CODES] = "attn_codes",
    [LW_OP_ATTN_OUTPUT] = "attn_output",
    [LW_OP_FFN_NORM] = "ffn_norm",
    [LW_OP_ROUTE] = "route",
    [LW_OP_GATE_UP] = "gate_up",
    [LW_OP_ACTIVATE] = "activate",
    [LW_OP_DOWN] = "down",
    [LW_OP_COMBINE] = "combine",
    [LW_OP_OUTPUT_NORM] = "output_norm",
    [LW_OP_HEAD] = "head",
    [LW_OP_SAMPLE] = "sample",
    [LW_OP_CONVOLVE] = "convolve",
    [LW_OP_RECUR] = "recur",
};

lw_status lw_session_profile(lw_session* session, uint32_t on) {
    if (session == NULL) return lw_fail(LW_ERR_ARGUMENT, "lw_session_profile: session must not be NULL");
    if (lw_steps_are_ahead(session))
        return lw_fail(LW_ERR_ARGUMENT, "lw_session_profile: a step that was started is not finished");
    lw_profile* profile = NULL;
    if (on) {
        profile = lw_profile_open(session->config.n_threads, lw_n_kernels);
        if (profile == NULL) return lw_fail(LW_ERR_MEMORY, "no memory for a profile");
    }
    lw_profile_close(session->profile);
    session->profile = profile;
    return LW_OK;
}

lw_status lw_session_profile_rows(const lw_session* session, lw_profile_row* out, uint32_t capacity, uint32_t* n_rows) {
    if (session == NULL || n_rows == NULL || (out == NULL && capacity > 0))
        return lw_fail(LW_ERR_ARGUMENT, "lw_session_profile_rows: session, out and n_rows must not be NULL");
    if (lw_steps_are_ahead(session))
        return lw_fail(LW_ERR_ARGUMENT, "lw_session_profile_rows: a step that was started is not finished");
    *n_rows = 0;
    if (session->profile == NULL) return LW_OK;
    for (int operation = 0; operation < LW_OPERATION_COUNT; ++operation) {
        // Waiting is not one kernel's: the first row of the operation shows it.
        uint64_t wait_ns = lw_profile_total(session->profile, (lw_operation)operation, 0).wait_ns;
        for (size_t column = 0; column <= lw_n_kernels; ++column) {
            const lw_profile_cell cell = lw_profile_total(session->profile, (lw_operation)operation, column);
            if (cell.work_ns == 0) continue;
            if (*n_rows < capacity) {
                lw_profile_row* row = &out[*n_rows];
                *row = (lw_profile_row){.work_seconds = 1e-9 * (double)cell.work_ns,
                                        .wait_seconds = 1e-9 * (double)wait_ns,
                                        .bytes = cell.bytes,
                                        .macs = cell.macs};
                snprintf(row->operation, sizeof row->operation, "%s", lw_operation_names[operation]);
                if (column > 0) snprintf(row->kernel, sizeof row->kernel, "%s", lw_kernels[column - 1].symbol);
            }
            wait_ns = 0;
            ++*n_rows;
        }
    }
    return LW_OK;
}
