// A prediction head, as a step runs it (mtp.c); one with taps has more of its own (taps.h).
#ifndef LW_KINDS_MTP_H
#define LW_KINDS_MTP_H

#include "graph/worker.h"

// Used when the head runs alone. lw_enter_head makes x from the head's inputs. lw_leave_head keeps the head's output
// for its next run.
void lw_enter_head(lw_worker* w);
void lw_leave_head(lw_worker* w);
// Call after the layers of a step. Keeps the hidden rows after the output norm, and sets w->rows to the rows that get
// logits.
void lw_keep_hidden(lw_worker* w);
// Call after the logits. Stores the head's keys and values of all tokens, and keeps the rows from which the next step
// starts.
void lw_feed_head(lw_worker* w);

#endif
