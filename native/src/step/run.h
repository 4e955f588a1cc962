// One step of a session, and the phases that belong to no kind of layer.
#ifndef LW_STEP_RUN_H
#define LW_STEP_RUN_H

#include "graph/worker.h"

// Checks that the parameters of a batch's draws are in range (draw.c).
lw_status lw_check_draws(const lw_session* s, const lw_batch* batch);

// Checks a step's arguments. Tokens that are still to be drawn cannot be checked yet (check_step.c).
lw_status lw_check_step(const lw_session* s, const lw_batch* batch, const float* logits, const lw_sampled* drawn);
// Notes that a batch has begun: tokens of the next batch may refer to its draws.
void lw_note_begun(lw_session* s, const lw_batch* batch);
// Runs a checked step and counts it.
lw_status lw_run_batch(lw_session* s, const lw_batch* batch, float* logits, lw_sampled* drawn);

// Runs the forward step on checked arguments (forward.c).
lw_status lw_forward(lw_session* session, const lw_batch* batch, float* logits, lw_sampled* drawn);
// Runs `run` on all threads as a step over the rows of a batch, which may have no token ids.
lw_status lw_run_rows(lw_session* session, const lw_batch* batch, float* logits, lw_sampled* drawn,
                      void (*run)(lw_worker* w));
// Fills a row's RoPE angles for its position on each axis.
void lw_fill_angles(lw_worker* w, size_t row, const uint32_t at[LW_AXES]);
// Runs the parts of a layer after its mixers.
void lw_run_parts(lw_worker* w, const lw_layer* layer, uint32_t index);
// Adds the time since `start` to the session's counters, and publishes them.
void lw_count_native(lw_session* session, uint64_t start);

// All phases of a layer's mixers: x += mixers(norm(x)). If the norm replaces x, x = norm(x) comes first. Afterwards
// w->rows are the rows that are still needed (mixer.c).
void lw_mix(lw_worker* w, const lw_layer* layer, uint32_t index);
// Its first phase: multiplies norm(x) by the matrices of all mixers, behind the low-rank inputs of adapted ones.
void lw_multiply_inputs(lw_worker* w, const lw_layer* layer, uint32_t index);
// Runs the part of a pooled model after its layers, and writes the step's output (pool.c).
void lw_pool_texts(lw_worker* w);
// The layers of towers whose matrices clamp (clamped.c): the products before attention; attention and all after it.
void lw_multiply_clamped_inputs(lw_worker* w, const lw_layer* layer);
void lw_run_clamped(lw_worker* w, const lw_layer* layer, uint32_t index);
// The rows of a picture behind the layer of a tap, which go to their part of the step's output.
void lw_tap_rows(lw_worker* w, uint32_t tap);
// A phase: draws one token for each row of logits (draw.c).
void lw_draw_rows(lw_worker* w);

#endif
