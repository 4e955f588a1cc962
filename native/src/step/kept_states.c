// States of sequences, copied out of a session and into it, without what their places hold for guesses.
#include <string.h>

#include "graph/session.h"
#include "kinds/kinds.h"
#include "status.h"

size_t lw_session_state_bytes(const lw_session* session) {
    return session == NULL ? 0 : (size_t)lw_state_place_bytes(session->model, 0);
}

static lw_status check_place(const lw_session* session, uint32_t place, const void* bytes, const char* function) {
    if (session == NULL || bytes == NULL)
        return lw_fail(LW_ERR_ARGUMENT, "%s: session and bytes must not be NULL", function);
    if (place >= session->states.n_places)
        return lw_fail(LW_ERR_ARGUMENT, "%s: place is %u; accepted: less than %u", function, place,
                       session->states.n_places);
    return LW_OK;
}

// A layer's floats are those before the guesses, those of guesses, and those behind.
typedef struct parts {
    size_t before, guesses, behind;
} parts;

static parts parts_of(const lw_session* session, uint32_t layer) {
    const lw_model* model = session->model;
    const size_t all = lw_kept_floats(model, layer, session->config.max_guesses);
    const size_t own = lw_kept_floats(model, layer, 0), before = lw_floats_before_guesses(model, layer);
    return (parts){before, all - own, own - before};
}

lw_status lw_session_read_state(const lw_session* session, uint32_t place, void* bytes) {
    LW_RETURN_IF_FAILED(check_place(session, place, bytes, "lw_session_read_state"));
    uint8_t* to = bytes;
    for (uint32_t i = 0; i < session->model->config.n_layers; ++i) {
        const parts p = parts_of(session, i);
        const float* from = lw_state_at(&session->states, place, i);
        memcpy(to, from, p.before * sizeof(float));
        to += p.before * sizeof(float);
        memcpy(to, from + p.before + p.guesses, p.behind * sizeof(float));
        to += p.behind * sizeof(float);
    }
    return LW_OK;
}

lw_status lw_session_write_state(lw_session* session, uint32_t place, const void* bytes) {
    LW_RETURN_IF_FAILED(check_place(session, place, bytes, "lw_session_write_state"));
    const uint8_t* from = bytes;
    for (uint32_t i = 0; i < session->model->config.n_layers; ++i) {
        const parts p = parts_of(session, i);
        float* to = lw_state_at(&session->states, place, i);
        memcpy(to, from, p.before * sizeof(float));
        from += p.before * sizeof(float);
        memcpy(to + p.before + p.guesses, from, p.behind * sizeof(float));
        from += p.behind * sizeof(float);
    }
    return LW_OK;
}
