// Steps that a thread of the session runs one after the other (lw_session_start).
#ifndef LW_STEP_AHEAD_H
#define LW_STEP_AHEAD_H

#include <stdbool.h>

#include "lanewise.h"

typedef struct lw_ahead lw_ahead;

// Whether a started step has not been finished yet (lw_session_finish).
bool lw_steps_are_ahead(const lw_session* session);
// Waits for the running step, drops the steps queued behind it and ends the thread. Accepts NULL.
void lw_ahead_close(lw_ahead* ahead);

#endif
