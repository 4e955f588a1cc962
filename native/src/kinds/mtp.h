// A model's prediction head, as a step runs it (mtp.c).
#ifndef LW_KINDS_MTP_H
#define LW_KINDS_MTP_H

#include "graph/worker.h"

// Where the head runs alone: x becomes what the head reads. Behind it: what it made is kept for its next run.
void lw_enter_head(lw_worker* w);
void lw_leave_head(lw_worker* w);
// Behind the layers of a step: rows behind the output norm are kept, and w->rows are the rows that get logits.
void lw_keep_hidden(lw_worker* w);
// Behind the logits: the head's keys and values of all tokens, and what the next step begins with.
void lw_feed_head(lw_worker* w);

#endif
