// The nearest code, column by column, each column's error fed back to those after it.
#include <math.h>

#include "quantize/fit.h"

enum { LANES = LW_FIT_LANES };
static const float round_magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, halves to even

// What the block of columns that ends before `end` does to the columns after it.
static void feed_back_block(const lw_fit_job* job, lw_fit_trial* trial, uint32_t end) {
    const float* rows = job->feedback + (size_t)(end - LW_FIT_BLOCK) * job->columns;
    for (uint32_t j = end; j < job->columns; ++j) {
        lw_fit_lanes target = trial->target[j];
        for (uint32_t i = 0; i < LW_FIT_BLOCK; ++i) target -= trial->residual[i] * rows[(size_t)i * job->columns + j];
        trial->target[j] = target;
    }
}

// Takes the values chosen for column k: the loss, and what they do to the columns after it. Those of its block feel it
// at once, the others when the block is full: they are then loaded and stored once for eight columns.
static inline void settle(const lw_fit_job* job, lw_fit_trial* trial, uint32_t k, lw_fit_lanes value) {
    const lw_fit_lanes residual = trial->target[k] - value;
    trial->value[k] = value;
    trial->residual[k % LW_FIT_BLOCK] = residual;
    trial->loss += job->weights[k] * (residual * residual);
    if (job->feedback == NULL) return;
    const uint32_t block = (k / LW_FIT_BLOCK + 1) * LW_FIT_BLOCK, end = block < job->columns ? block : job->columns;
    const float* row = job->feedback + (size_t)k * job->columns;
    for (uint32_t j = k + 1; j < end; ++j) trial->target[j] -= residual * row[j];
    if (k + 1 == block) feed_back_block(job, trial, end);
}

static inline _Bool give_up(lw_fit_trial* trial, uint32_t k) {
    if (k % LW_FIT_CHECK != LW_FIT_CHECK - 1 || !lw_fit_is_lost(trial->loss, trial->limit)) return 0;
    trial->loss += INFINITY;
    return 1;
}

void lw_fit_uniform(const lw_fit_job* job, lw_fit_trial* trial) {
    const lw_fit_lanes low = (lw_fit_lanes){0} + (float)job->low, high = (lw_fit_lanes){0} + (float)job->high;
    for (uint32_t k = 0; k < job->columns; ++k) {
        const uint32_t g = k / job->group;
        lw_fit_lanes level = (trial->target[k] + trial->minimum[g]) * trial->inverse[g];
        level = LW_FIT_SELECT(level > low, level, low);
        level = LW_FIT_SELECT(level < high, level, high);
        level = (level + round_magic) - round_magic;
        trial->code[k] = __builtin_convertvector(level - low, lw_fit_masks);
        settle(job, trial, k, level * trial->scale[g] - trial->minimum[g]);
        if (give_up(trial, k)) return;
    }
}

// Levels ascend, so a level's number is how many midpoints lie below the target. Scaled by a negative number they
// descend, and so do the targets divided by it: the count is the same.
void lw_fit_table(const lw_fit_job* job, lw_fit_trial* trial) {
    lw_fit_lanes middle[LW_FIT_TABLE_LEVELS], step[LW_FIT_TABLE_LEVELS], first;
    const uint32_t n = job->n_levels;
    for (int i = 0; i < LANES; ++i) {
        const float* levels = job->levels + (size_t)trial->selector[i] * n;
        first[i] = levels[0];
        for (uint32_t c = 0; c + 1 < n; ++c) {
            middle[c][i] = (levels[c] + levels[c + 1]) * 0.5f;
            step[c][i] = levels[c + 1] - levels[c];
        }
    }
    for (uint32_t k = 0; k < job->columns; ++k) {
        const uint32_t g = k / job->group;
        const lw_fit_lanes at = (trial->target[k] + trial->minimum[g]) * trial->inverse[g];
        lw_fit_lanes level = first;
        lw_fit_masks count = {0};
        for (uint32_t c = 0; c + 1 < n; ++c) {
            const lw_fit_masks above = at > middle[c];
            level += (lw_fit_lanes)(above & (lw_fit_masks)step[c]);
            count -= above;
        }
        trial->code[k] = count;
        settle(job, trial, k, level * trial->scale[g] - trial->minimum[g]);
        if (give_up(trial, k)) return;
    }
}
