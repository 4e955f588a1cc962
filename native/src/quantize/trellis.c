// Viterbi over the four states of the bit-shift trellis: the value of code c after code p is table[c << 2 | p].
//
// Each state keeps the best path that ends in it, and the targets as changed by that path's errors (per-survivor
// processing). So what is minimized is the loss with feedback.
#include <math.h>
#include <string.h>

#include "quantize/fit.h"

enum { LANES = LW_FIT_LANES, STATES = LW_FIT_STATES };

typedef struct survivors {
    lw_fit_lanes target[LW_FIT_COLUMNS][STATES];
    lw_fit_lanes residual[STATES];              // residuals of the newest column
    lw_fit_masks from[LW_FIT_COLUMNS][STATES];  // previous state
    lw_fit_lanes loss[STATES];
} survivors;

// Scales the table entries of each row.
static void scale_table(const lw_fit_job* job, const lw_fit_trial* trial, uint32_t g, lw_fit_lanes* value) {
    for (int i = 0; i < LANES; ++i) {
        const float* levels = job->levels + (size_t)trial->selector[i] * LW_FIT_TABLE_LEVELS;
        for (int e = 0; e < LW_FIT_TABLE_LEVELS; ++e) value[e][i] = levels[e];
    }
    for (int e = 0; e < LW_FIT_TABLE_LEVELS; ++e) value[e] *= trial->scale[g];
}

// Finds the best path into state c at column k; its loss goes to `loss`.
static inline void extend(survivors* s, uint32_t k, int c, const lw_fit_lanes* value, float weight,
                          lw_fit_lanes* loss) {
    lw_fit_lanes residual = s->target[k][0] - value[c << 2];
    lw_fit_lanes least = s->loss[0] + weight * (residual * residual);
    lw_fit_masks from = {0};
    for (int p = 1; p < STATES; ++p) {
        const lw_fit_lanes rest = s->target[k][p] - value[c << 2 | p];
        const lw_fit_lanes sum = s->loss[p] + weight * (rest * rest);
        const lw_fit_masks better = sum < least;
        least = LW_FIT_SELECT(better, sum, least);
        residual = LW_FIT_SELECT(better, rest, residual);
        from = LW_FIT_SELECT(better, (lw_fit_masks){0} + p, from);
    }
    s->residual[c] = residual;
    s->from[k][c] = from;
    *loss = least;
}

// Gives each state the targets of the path that it continues, minus the feedback of the path's newest residual.
static inline void inherit(survivors* s, uint32_t k, uint32_t columns, const float* feedback) {
    lw_fit_masks odd[STATES], upper[STATES];
    for (int c = 0; c < STATES; ++c) {
        odd[c] = (s->from[k][c] & 1) != 0;
        upper[c] = (s->from[k][c] & 2) != 0;
    }
    for (uint32_t j = k + 1; j < columns; ++j) {
        const lw_fit_lanes t0 = s->target[j][0], t1 = s->target[j][1], t2 = s->target[j][2], t3 = s->target[j][3];
        for (int c = 0; c < STATES; ++c) {
            const lw_fit_lanes low = LW_FIT_SELECT(odd[c], t1, t0), high = LW_FIT_SELECT(odd[c], t3, t2);
            s->target[j][c] = LW_FIT_SELECT(upper[c], high, low) - s->residual[c] * feedback[j];
        }
    }
}

static inline _Bool are_lost(const survivors* s, lw_fit_lanes limit) {
    lw_fit_lanes least = s->loss[0];
    for (int c = 1; c < STATES; ++c) least = LW_FIT_SELECT(s->loss[c] < least, s->loss[c], least);
    return lw_fit_is_lost(least, limit);
}

static void trace_back(const survivors* s, const lw_fit_job* job, lw_fit_trial* trial) {
    for (int i = 0; i < LANES; ++i) {
        int state = 0;
        for (int c = 1; c < STATES; ++c)
            if (s->loss[c][i] < s->loss[state][i]) state = c;
        trial->loss[i] = s->loss[state][i];
        const float* levels = job->levels + (size_t)trial->selector[i] * LW_FIT_TABLE_LEVELS;
        for (uint32_t k = job->columns; k-- > 0;) {
            const int before = s->from[k][state][i];
            trial->code[k][i] = state;
            trial->value[k][i] = levels[state << 2 | before] * trial->scale[k / job->group][i];
            state = before;
        }
    }
}

void lw_fit_trellis(const lw_fit_job* job, lw_fit_trial* trial) {
    survivors s;
    lw_fit_lanes value[LW_FIT_TABLE_LEVELS], loss[STATES];
    for (int c = 0; c < STATES; ++c) {
        for (int i = 0; i < LANES; ++i) s.loss[c][i] = trial->state[i] == c ? 0.0f : INFINITY;
        for (uint32_t k = 0; k < job->columns; ++k) s.target[k][c] = trial->target[k];
    }
    for (uint32_t k = 0; k < job->columns; ++k) {
        if (k % job->group == 0) scale_table(job, trial, k / job->group, value);
        for (int c = 0; c < STATES; ++c) extend(&s, k, c, value, job->weights[k], &loss[c]);
        memcpy(s.loss, loss, sizeof loss);
        if (k % LW_FIT_CHECK == LW_FIT_CHECK - 1 && are_lost(&s, trial->limit)) {
            trial->loss += INFINITY;
            return;
        }
        if (job->feedback != NULL) inherit(&s, k, job->columns, job->feedback + (size_t)k * job->columns);
    }
    trace_back(&s, job, trial);
}
