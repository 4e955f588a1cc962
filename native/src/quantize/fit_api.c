// lw_fit: the codes and the candidate with the smallest loss for each row.
#include <math.h>
#include <string.h>

#include "lanewise.h"
#include "quantize/fit.h"
#include "status.h"

enum { LANES = LW_FIT_LANES, TRIALS = LW_FIT_TRIALS };

static lw_status check(const lw_fit_job* job) {
    if (job == NULL) return lw_fail(LW_ERR_ARGUMENT, "lw_fit: job is NULL");
    if (job->columns == 0 || job->columns > LW_FIT_COLUMNS || job->group < 16 || job->columns % job->group)
        return lw_fail(LW_ERR_ARGUMENT, "lw_fit: %u columns in groups of %u, must be 1 to %d in groups of 16 or more",
                       job->columns, job->group, LW_FIT_COLUMNS);
    if (job->n_candidates == 0) return lw_fail(LW_ERR_ARGUMENT, "lw_fit: n_candidates is 0");
    switch (job->map) {
        case LW_FIT_UNIFORM:
            if (job->low >= job->high || (int64_t)job->high - job->low > 255)
                return lw_fail(LW_ERR_ARGUMENT, "lw_fit: levels %d to %d; 2 to 256 are accepted", job->low, job->high);
            return LW_OK;
        case LW_FIT_TABLE:
            if (job->n_levels < 2 || job->n_levels > LW_FIT_TABLE_LEVELS)
                return lw_fail(LW_ERR_ARGUMENT, "lw_fit: n_levels %u; 2 to %d are accepted", job->n_levels,
                               LW_FIT_TABLE_LEVELS);
            return LW_OK;
        case LW_FIT_TRELLIS:
            if (job->n_levels != LW_FIT_TABLE_LEVELS)
                return lw_fail(LW_ERR_ARGUMENT, "lw_fit: a trellis has %d levels, not %u", LW_FIT_TABLE_LEVELS,
                               job->n_levels);
            return LW_OK;
    }
    return lw_fail(LW_ERR_ARGUMENT, "lw_fit: map %d, must be 0 to 2", (int)job->map);
}

static lw_status check_arrays(const lw_fit_job* job, uint32_t begin, uint32_t end) {
    if (begin > end || end > job->rows)
        return lw_fail(LW_ERR_ARGUMENT, "lw_fit: rows %u to %u, must be within the %u rows of the job", begin, end,
                       job->rows);
    if (!job->targets || !job->weights || !job->scales || !job->codes || !job->values || !job->losses ||
        !job->choices || (job->map != LW_FIT_UNIFORM && (!job->levels || job->n_selectors == 0)))
        return lw_fail(LW_ERR_ARGUMENT, "lw_fit: an array is NULL");
    if (job->map == LW_FIT_UNIFORM) return LW_OK;
    for (uint32_t c = 0; job->selectors && c < job->n_candidates; ++c)
        for (uint32_t r = begin; r < end; ++r)
            if (job->selectors[(size_t)c * job->rows + r] >= job->n_selectors)
                return lw_fail(LW_ERR_ARGUMENT, "lw_fit: selector %u of row %u, must be below %u",
                               job->selectors[(size_t)c * job->rows + r], r, job->n_selectors);
    for (uint32_t r = begin; job->states && r < end; ++r)
        if (job->states[r] >= LW_FIT_STATES)
            return lw_fail(LW_ERR_ARGUMENT, "lw_fit: state %u of row %u, must be below %d", job->states[r], r,
                           LW_FIT_STATES);
    return LW_OK;
}

// The inputs of eight rows, which all candidates share, and the best results so far. Rows past the last one repeat it.
typedef struct lw_fit_rows {
    size_t row[LANES];
    lw_fit_lanes target[LW_FIT_COLUMNS];
    lw_fit_lanes value[LW_FIT_COLUMNS];
    lw_fit_lanes loss;
    uint32_t choice[LANES];
    lw_fit_masks code[LW_FIT_COLUMNS];
} lw_fit_rows;

// A column's rows lie next to each other, and the next column is often a multiple of 4 KiB away: each column is read
// once.
static void load_rows(const lw_fit_job* job, uint32_t row, uint32_t end, lw_fit_rows* rows) {
    for (uint32_t i = 0; i < LANES; ++i) rows->row[i] = row + i < end ? row + i : end - 1;
    for (uint32_t k = 0; k < job->columns; ++k)
        for (uint32_t i = 0; i < LANES; ++i) rows->target[k][i] = job->targets[k * (size_t)job->rows + rows->row[i]];
}

static void set_up(const lw_fit_job* job, uint32_t candidate, const lw_fit_rows* rows, lw_fit_trial* trial) {
    const uint32_t groups = job->columns / job->group;
    memcpy(trial->target, rows->target, job->columns * sizeof trial->target[0]);
    for (uint32_t g = 0; g < groups; ++g) {
        const size_t first = ((size_t)candidate * groups + g) * job->rows;
        for (uint32_t i = 0; i < LANES; ++i) {
            const float scale = job->scales[first + rows->row[i]];
            trial->scale[g][i] = scale;
            trial->inverse[g][i] = scale != 0.0f ? 1.0f / scale : 0.0f;
            trial->minimum[g][i] = job->minimums ? job->minimums[first + rows->row[i]] : 0.0f;
        }
    }
    for (uint32_t i = 0; i < LANES; ++i) {
        trial->selector[i] = job->selectors ? job->selectors[(size_t)candidate * job->rows + rows->row[i]] : 0;
        trial->state[i] = job->states ? job->states[rows->row[i]] : 0;
    }
    trial->loss = (lw_fit_lanes){0};
    trial->limit = candidate == 0 ? (lw_fit_lanes){0} + INFINITY : rows->loss;
}

// Keeps the trial's results for the rows in which it is better.
static void keep(const lw_fit_job* job, const lw_fit_trial* trial, uint32_t candidate, lw_fit_rows* rows) {
    const lw_fit_masks better = candidate == 0 ? (lw_fit_masks){0} - 1 : trial->loss < rows->loss;
    _Bool any = 0;
    for (int i = 0; i < LANES; ++i) {
        if (better[i]) rows->choice[i] = candidate;
        any |= better[i] != 0;
    }
    if (!any) return;
    rows->loss = LW_FIT_SELECT(better, trial->loss, rows->loss);
    for (uint32_t k = 0; k < job->columns; ++k) {
        rows->value[k] = LW_FIT_SELECT(better, trial->value[k], rows->value[k]);
        rows->code[k] = LW_FIT_SELECT(better, trial->code[k], rows->code[k]);
    }
}

static void store_rows(const lw_fit_job* job, const lw_fit_rows* rows, uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) {
        job->losses[rows->row[i]] = rows->loss[i];
        job->choices[rows->row[i]] = rows->choice[i];
    }
    for (uint32_t k = 0; k < job->columns; ++k)
        for (uint32_t i = 0; i < count; ++i) {
            job->codes[k * (size_t)job->rows + rows->row[i]] = (uint8_t)rows->code[k][i];
            job->values[k * (size_t)job->rows + rows->row[i]] = rows->value[k][i];
        }
}

lw_status lw_fit(const lw_fit_job* job, uint32_t begin, uint32_t end) {
    LW_RETURN_IF_FAILED(check(job));
    LW_RETURN_IF_FAILED(check_arrays(job, begin, end));
    lw_fit_trial trials[TRIALS] = {{.loss = {0}}};
    lw_fit_rows rows[TRIALS];
    for (uint32_t row = begin; row < end; row += TRIALS * LANES) {
        for (uint32_t t = 0; t < TRIALS; ++t) load_rows(job, row + t * LANES, end, &rows[t]);
        for (uint32_t candidate = 0; candidate < job->n_candidates; ++candidate) {
            for (uint32_t t = 0; t < TRIALS; ++t) set_up(job, candidate, &rows[t], &trials[t]);
            if (job->map == LW_FIT_UNIFORM) lw_fit_uniform(job, trials);
            if (job->map == LW_FIT_TABLE) lw_fit_table(job, trials);
            for (uint32_t t = 0; t < TRIALS; ++t) {
                if (job->map == LW_FIT_TRELLIS) lw_fit_trellis(job, &trials[t]);
                keep(job, &trials[t], candidate, &rows[t]);
            }
        }
        for (uint32_t t = 0; t < TRIALS; ++t) {
            const uint32_t first = row + t * LANES;
            if (first < end) store_rows(job, &rows[t], end - first < LANES ? end - first : LANES);
        }
    }
    return LW_OK;
}
