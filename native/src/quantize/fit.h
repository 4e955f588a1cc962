// Chooses codes for columns of a matrix under given scales, with error feedback, for eight rows at a time.
#ifndef LW_QUANTIZE_FIT_H
#define LW_QUANTIZE_FIT_H

#include <stddef.h>
#include <stdint.h>

#include "lanewise.h"

enum {
    LW_FIT_LANES = 8,
    LW_FIT_TRIALS = 2,  // computed side by side, because within a trial each column waits for the one before
    LW_FIT_COLUMNS = 128,
    LW_FIT_STATES = 4,
    LW_FIT_TABLE_LEVELS = 16,
    LW_FIT_CHECK = 8,
    LW_FIT_BLOCK = 8
};

// One number for each of eight rows. GCC vectors: one or two registers on every CPU that we support.
typedef float lw_fit_lanes __attribute__((vector_size(4 * LW_FIT_LANES)));
typedef int32_t lw_fit_masks __attribute__((vector_size(4 * LW_FIT_LANES)));  // -1 where true, the result of
                                                                              // comparisons

#define LW_FIT_SELECT(mask, yes, no) \
    ((__typeof__(yes))(((mask) & (lw_fit_masks)(yes)) | (~(mask) & (lw_fit_masks)(no))))

// Eight rows of a job with one candidate.
typedef struct lw_fit_trial {
    lw_fit_lanes target[LW_FIT_COLUMNS];  // includes feedback of earlier columns
    lw_fit_lanes value[LW_FIT_COLUMNS];
    lw_fit_lanes residual[LW_FIT_BLOCK];  // residuals of the newest columns
    lw_fit_masks code[LW_FIT_COLUMNS];
    lw_fit_lanes loss;
    lw_fit_lanes limit;  // a trial in which every row is above this is given up with infinite loss
    lw_fit_lanes scale[LW_FIT_COLUMNS / 16];
    lw_fit_lanes inverse[LW_FIT_COLUMNS / 16];  // 1 / scale; 0 if scale is 0
    lw_fit_lanes minimum[LW_FIT_COLUMNS / 16];
    uint8_t selector[LW_FIT_LANES], state[LW_FIT_LANES];
} lw_fit_trial;

void lw_fit_uniform(const lw_fit_job* job, lw_fit_trial* trials);
void lw_fit_table(const lw_fit_job* job, lw_fit_trial* trials);
void lw_fit_trellis(const lw_fit_job* job, lw_fit_trial* trial);

// True if every row has lost already.
static inline _Bool lw_fit_is_lost(lw_fit_lanes loss, lw_fit_lanes limit) {
    const lw_fit_masks open = loss < limit;
    int32_t any = 0;
    for (int i = 0; i < LW_FIT_LANES; ++i) any |= open[i];
    return any == 0;
}

#endif
