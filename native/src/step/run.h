// One step of a session and its phases that belong to no kind of layer.
#ifndef LW_STEP_RUN_H
#define LW_STEP_RUN_H

#include "graph/worker.h"

// What the draws of a batch ask for is in range (draw.c).
lw_status lw_check_draws(const lw_session* s, const lw_batch* batch);

// A step's arguments, as far as they do not depend on tokens that are still to be drawn (check_step.c).
lw_status lw_check_step(const lw_session* s, const lw_batch* batch, const float* logits, const lw_sampled* drawn);
// From now on tokens may refer to the draws of this batch.
void lw_note_begun(lw_session* s, const lw_batch* batch);
// Runs a checked step and counts it.
lw_status lw_run_batch(lw_session* s, const lw_batch* batch, float* logits, lw_sampled* drawn);

// The step itself, on checked arguments (forward.c).
lw_status lw_forward(lw_session* session, const lw_batch* batch, float* logits, lw_sampled* drawn);

// Attention and states of a layer: x += what they make of norm(x), or x = norm(x) first where the norm replaces x. All phases
// of it; afterwards w->rows are the rows that go on (mixer.c).
void lw_mix(lw_worker* w, const lw_layer* layer, uint32_t index);
// What a pooled model does behind its layers, into the step's output (pool.c).
void lw_pool_texts(lw_worker* w);
// A phase of draws, one for each row of logits (draw.c).
void lw_draw_rows(lw_worker* w);

#endif
