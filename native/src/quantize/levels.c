// Takes the nearest code, column by column, and feeds each column's error back to the columns after it.
#include <math.h>

#include "quantize/fit.h"

enum { LANES = LW_FIT_LANES };
static const float round_magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, halves to even

// Feeds the residuals of the block of columns that ends before `end` back to the columns after it.
static void feed_back_block(const lw_fit_job* job, lw_fit_trial* trial, uint32_t end) {
    const float* rows = job->feedback + (size_t)(end - LW_FIT_BLOCK) * job->columns;
    for (uint32_t j = end; j < job->columns; ++j) {
        lw_fit_lanes target = trial->target[j];
        for (uint32_t i = 0; i < LW_FIT_BLOCK; ++i) target -= trial->residual[i] * rows[(size_t)i * job->columns + j];
        trial->target[j] = target;
    }
}

// Takes `value` for column k: adds to the loss and feeds the residual back. Later columns of the block are changed at
// once. Columns after the block are changed when it is full, so that they are loaded and stored once for eight columns.
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

// Every few columns: true if no row of any trial can win any more. Their losses are then infinite.
static inline _Bool give_up(lw_fit_trial* trials, uint32_t k) {
    if (k % LW_FIT_CHECK != LW_FIT_CHECK - 1) return 0;
    for (int t = 0; t < LW_FIT_TRIALS; ++t)
        if (!lw_fit_is_lost(trials[t].loss, trials[t].limit)) return 0;
    for (int t = 0; t < LW_FIT_TRIALS; ++t) trials[t].loss += INFINITY;
    return 1;
}

static inline void round_column(const lw_fit_job* job, lw_fit_trial* trial, uint32_t k) {
    const lw_fit_lanes low = (lw_fit_lanes){0} + (float)job->low, high = (lw_fit_lanes){0} + (float)job->high;
    const uint32_t g = k / job->group;
    lw_fit_lanes level = (trial->target[k] + trial->minimum[g]) * trial->inverse[g];
    level = LW_FIT_SELECT(level > low, level, low);
    level = LW_FIT_SELECT(level < high, level, high);
    level = (level + round_magic) - round_magic;
    trial->code[k] = __builtin_convertvector(level - low, lw_fit_masks);
    settle(job, trial, k, level * trial->scale[g] - trial->minimum[g]);
}

void lw_fit_uniform(const lw_fit_job* job, lw_fit_trial* trials) {
    for (uint32_t k = 0; k < job->columns; ++k) {
        for (int t = 0; t < LW_FIT_TRIALS; ++t) round_column(job, &trials[t], k);
        if (give_up(trials, k)) return;
    }
}

// The levels of a table for a group of columns.
typedef struct group_levels {
    lw_fit_lanes middle[LW_FIT_TABLE_LEVELS];  // between a level and the next
    lw_fit_masks first;                        // bits of the first level's value
    lw_fit_masks step[LW_FIT_TABLE_LEVELS];    // bits in which a level's value differs from the next level's
} group_levels;

static inline void set_levels(const lw_fit_job* job, const lw_fit_trial* trial, uint32_t g, uint32_t n,
                              group_levels* out) {
    lw_fit_lanes level[LW_FIT_TABLE_LEVELS] = {{0}};
    for (int i = 0; i < LANES; ++i)
        for (uint32_t c = 0; c < n; ++c) level[c][i] = job->levels[(size_t)trial->selector[i] * n + c];
    for (uint32_t c = 0; c + 1 < n; ++c) out->middle[c] = (level[c] + level[c + 1]) * 0.5f;
    for (uint32_t c = 0; c < n; ++c) level[c] = level[c] * trial->scale[g] - trial->minimum[g];
    for (uint32_t c = 0; c + 1 < n; ++c) out->step[c] = (lw_fit_masks)level[c] ^ (lw_fit_masks)level[c + 1];
    out->first = (lw_fit_masks)level[0];
}

// Levels ascend, so the index of the nearest level is the number of midpoints below the target. With a negative scale
// levels descend, and so do targets divided by it: the number is the same.
static inline void choose_column(const lw_fit_job* job, lw_fit_trial* trial, const group_levels* levels, uint32_t k,
                                 uint32_t n) {
    const uint32_t g = k / job->group;
    const lw_fit_lanes at = (trial->target[k] + trial->minimum[g]) * trial->inverse[g];
    lw_fit_masks value = levels->first, count = {0};
    for (uint32_t c = 0; c + 1 < n; ++c) {
        const lw_fit_masks above = at > levels->middle[c];
        value ^= above & levels->step[c];
        count -= above;
    }
    trial->code[k] = count;
    settle(job, trial, k, (lw_fit_lanes)value);
}

static inline __attribute__((always_inline)) void choose(const lw_fit_job* job, lw_fit_trial* trials, uint32_t n) {
    group_levels levels[LW_FIT_TRIALS];
    for (uint32_t first = 0; first < job->columns; first += job->group) {
        for (int t = 0; t < LW_FIT_TRIALS; ++t) set_levels(job, &trials[t], first / job->group, n, &levels[t]);
        for (uint32_t k = first; k < first + job->group; ++k) {
            for (int t = 0; t < LW_FIT_TRIALS; ++t) choose_column(job, &trials[t], &levels[t], k, n);
            if (give_up(trials, k)) return;
        }
    }
}

void lw_fit_table(const lw_fit_job* job, lw_fit_trial* trials) {
    switch (job->n_levels) {  // constants, so that the loops over levels are unrolled
        case 4:
            choose(job, trials, 4);
            return;
        case 8:
            choose(job, trials, 8);
            return;
        case 16:
            choose(job, trials, 16);
            return;
        default:
            choose(job, trials, job->n_levels);
            return;
    }
}
