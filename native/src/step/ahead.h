// Steps that a thread of the session runs one after the other (lw_session_start).
#ifndef LW_STEP_AHEAD_H
#define LW_STEP_AHEAD_H

#include <stdbool.h>

#include "lanewise.h"

typedef struct lw_ahead lw_ahead;

// Whether steps were started that are not finished yet.
bool lw_steps_are_ahead(const lw_session* session);
// Waits for the step that runs, drops those behind it and ends the thread; accepts NULL.
void lw_ahead_close(lw_ahead* ahead);

#endif
