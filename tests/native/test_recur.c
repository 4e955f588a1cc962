// Convolutions, recurrences and gates of layers with a state, at every level, against their definition written here number
// by number: the same bits.
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cpu.h"
#include "kernels/lane_ops.h"
#include "ops/math.h"

enum { MAX_ROWS = 9, MAX_GUESSES = 5 };

typedef enum rule { DELTA, CHANNELS, SSD, RULES } rule;

static int passed, failed;
static uint64_t state = 88172645463325252u;

static void report(bool ok, const char* level, const char* what) {
    printf("%s %s: %s\n", ok ? "ok  " : "FAIL", level, what);
    ++*(ok ? &passed : &failed);
}

static uint64_t next(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static size_t between(size_t least, size_t most) { return least + next() % (most - least + 1); }

static float* values(size_t n, float size) {
    float* x = malloc(n * sizeof *x);
    if (x == NULL) exit(2);
    for (size_t i = 0; i < n; ++i) x[i] = size * ((float)(next() >> 40) * 0x1p-23f - 1);
    return x;
}

static float* copy_of(const float* x, size_t n) {
    float* copy = malloc(n * sizeof *copy);
    if (copy == NULL) exit(2);
    return memcpy(copy, x, n * sizeof *copy);
}

// Sixteen sums, then halves onto each other.
static float dot(const float* a, const float* b, size_t n) {
    float lanes[16] = {0};
    for (size_t i = 0; i < n; ++i) lanes[i % 16] = fmaf(a[i], b[i], lanes[i % 16]);
    for (int width = 8; width > 0; width /= 2)
        for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
    return lanes[0];
}

// Inputs of all rows are put together here: those of the tail, of guesses that were accepted, and the others.
static bool convolves(const lw_lane_ops* ops) {
    const size_t rows = between(0, MAX_ROWS), channels = between(1, 70), taps = between(2, LW_MAX_TAPS);
    const bool gated = next() % 2, biased = next() % 2, fresh = next() % 3 == 0;
    const size_t accepted = fresh ? 0 : between(0, MAX_GUESSES), guesses = rows > 1 ? between(0, rows - 1) : 0;
    const size_t stride = channels + between(0, 5), n = rows * stride, tail = (taps + MAX_ROWS) * stride;
    const size_t before_rows = taps - 1 + accepted, all = before_rows + rows;
    float *x = values(n, 1), *before = values(n, 1), *after = values(n, 1), *out = values(n, 1);
    float *weights = values(channels * taps, 1), *bias = values(channels, 1), *seen = values(tail, 1);
    float *early = values(MAX_GUESSES * stride, 1), *inputs = values(all * stride, 1);
    float *want = copy_of(out, n), *want_seen = copy_of(seen, tail), *want_early = copy_of(early, MAX_GUESSES * stride);
    for (size_t i = 0; i < all; ++i)
        for (size_t c = 0; c < channels; ++c) {
            const size_t at = i * stride + c, own = at - before_rows * stride;
            inputs[at] = i >= before_rows ? (gated ? x[own] * before[own] : x[own]) : fresh ? 0 : seen[at];
        }
    for (size_t i = 0; i + taps <= all; ++i)
        for (size_t c = 0; c < channels; ++c) {
            float y = biased ? bias[c] : 0;
            for (size_t t = 0; t < taps; ++t) y = fmaf(weights[c * taps + t], inputs[(i + t) * stride + c], y);
            const size_t own = (i - accepted) * stride + c;
            if (i < accepted) want_early[i * stride + c] = y;
            if (i >= accepted) want[own] = gated ? y * after[own] : y;
        }
    for (size_t i = 0; i < taps - 1 + guesses; ++i)
        for (size_t c = 0; c < channels; ++c)
            want_seen[i * stride + c] = inputs[(all - guesses - (taps - 1) + i) * stride + c];
    const bool is_read = next() % 2;
    if (!is_read) memcpy(want_early, early, MAX_GUESSES * stride * sizeof *early);
    const lw_convolve_job job = {.rows = rows,
                                 .channels = channels,
                                 .taps = taps,
                                 .x = x,
                                 .before = gated ? before : NULL,
                                 .after = gated ? after : NULL,
                                 .stride = stride,
                                 .out = out,
                                 .out_stride = stride,
                                 .weights = weights,
                                 .bias = biased ? bias : NULL,
                                 .tail = seen,
                                 .tail_stride = stride,
                                 .fresh = fresh,
                                 .guesses = guesses,
                                 .accepted = accepted,
                                 .accepted_out = is_read ? early : NULL};
    ops->convolve(&job);
    const bool same = memcmp(out, want, n * sizeof *out) == 0 && memcmp(seen, want_seen, tail * sizeof *seen) == 0 &&
                      memcmp(early, want_early, MAX_GUESSES * stride * sizeof *early) == 0;
    float* const blocks[] = {x, before, after, out, weights, bias, seen, early, inputs, want, want_seen, want_early};
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; ++i) free(blocks[i]);
    return same;
}

// One column of one row, which is behind the pointers of `in`; what it makes of `cells`, [key_dim][columns].
static float define_delta(const lw_recur_job* j, lw_recur_rows in, float* cells, size_t column) {
    const float g = *in.decay;
    float ks = 0, qs = 0;
    for (size_t i = 0; i < j->key_dim; ++i) {
        ks = fmaf(in.k[i], cells[i * j->columns + column], ks);
        qs = fmaf(in.q[i], cells[i * j->columns + column], qs);
    }
    const float d = *in.beta * fmaf(-g, ks, in.v[column]);
    for (size_t i = 0; i < j->key_dim; ++i) {
        float* s = &cells[i * j->columns + column];
        *s = fmaf(in.k[i], d, g * *s);
    }
    return fmaf(dot(in.q, in.k, j->key_dim), d, g * qs);
}

// The same where each channel of a key has a decay.
static float define_channels(const lw_recur_job* j, lw_recur_rows in, float* cells, size_t column) {
    float ks = 0, qs = 0;
    for (size_t i = 0; i < j->key_dim; ++i) {
        const float s = cells[i * j->columns + column];
        ks = fmaf(in.k[i] * in.decay[i], s, ks);
        qs = fmaf(in.q[i] * in.decay[i], s, qs);
    }
    const float d = *in.beta * (in.v[column] - ks);
    for (size_t i = 0; i < j->key_dim; ++i) {
        float* s = &cells[i * j->columns + column];
        *s = fmaf(in.k[i], d, in.decay[i] * *s);
    }
    return fmaf(dot(in.q, in.k, j->key_dim), d, qs);
}

static float define_ssd(const lw_recur_job* j, lw_recur_rows in, float* cells, size_t column) {
    const float g = *in.decay, v = in.v[column], x = *in.beta * v;
    float sum = 0;
    for (size_t i = 0; i < j->key_dim; ++i) {
        float* s = &cells[i * j->columns + column];
        *s = fmaf(in.k[i], x, g * *s);
        sum = fmaf(in.q[i], *s, sum);
    }
    return fmaf(j->skip, v, sum);
}

// Rows first .. end - 1 of some, by their definition; `out` may be NULL.
static void define(const lw_recur_job* j, lw_recur_rows in, size_t first, size_t end, float* cells, float* out,
                   rule by) {
    for (size_t row = first; row < end; ++row)
        for (size_t c = 0; c < j->columns; ++c) {
            const size_t at = row * j->stride;
            const lw_recur_rows own = {in.k + at, in.q + at, in.v + at, in.decay + row * j->decay_stride,
                                       in.beta + row * j->beta_stride};
            const float y = by == SSD        ? define_ssd(j, own, cells, c)
                            : by == CHANNELS ? define_channels(j, own, cells, c)
                                             : define_delta(j, own, cells, c);
            if (out != NULL) out[row * j->out_stride + c] = y;
        }
}

static void run(const lw_lane_ops* ops, rule by, const lw_recur_job* job) {
    (by == SSD ? ops->recur_ssd : by == CHANNELS ? ops->recur_channels : ops->recur_delta)(job);
}

static bool recurs(const lw_lane_ops* ops, rule by) {
    const size_t rows = between(0, MAX_ROWS), key_dim = 16 * between(1, 8), columns = 16 * between(1, 4);
    const bool fresh = next() % 3 == 0;
    const size_t accepted = fresh ? 0 : between(0, MAX_GUESSES), guesses = rows > 1 ? between(0, rows - 1) : 0;
    const size_t stride = 2 * key_dim + columns, heads = between(1, 3), n = key_dim * columns;
    const size_t decays = by == CHANNELS ? heads * key_dim : heads;
    float *cells = values(n, 1), *in = values((rows + accepted) * stride, 0.3f), *out = values(rows * stride, 1);
    float *decay = values((rows + accepted) * decays, 0.5f), *beta = values((rows + accepted) * heads, 1);
    float *scratch = values(n, 1), *want_cells = copy_of(cells, n), *want = copy_of(out, rows * stride);
    const float* own = in + accepted * stride;
    lw_recur_job job = {
        .rows = rows,
        .key_dim = key_dim,
        .columns = columns,
        .state = cells,
        .in = {own, own + key_dim, own + 2 * key_dim, decay + accepted * decays, beta + accepted * heads},
        .stride = stride,
        .decay_stride = decays,
        .beta_stride = heads,
        .skip = 0.7f,
        .out = out,
        .out_stride = stride,
        .fresh = fresh,
        .guesses = guesses,
        .scratch = scratch,
        .accepted = accepted,
        .accepted_in = {in, in + key_dim, in + 2 * key_dim, decay, beta}};
    for (size_t i = 0; fresh && i < n; ++i) want_cells[i] = 0;
    define(&job, job.accepted_in, 0, accepted, want_cells, NULL, by);
    define(&job, job.in, 0, rows - guesses, want_cells, want, by);
    float* behind = copy_of(want_cells, n);
    define(&job, job.in, rows - guesses, rows, behind, want, by);
    job.accepted_in.q = NULL;
    run(ops, by, &job);
    const bool same =
        memcmp(out, want, rows * stride * sizeof *out) == 0 && memcmp(cells, want_cells, n * sizeof *cells) == 0;
    float* const all[] = {cells, in, out, decay, beta, scratch, want_cells, want, behind};
    for (size_t i = 0; i < sizeof all / sizeof *all; ++i) free(all[i]);
    return same;
}

// A sequence without rows: its state is kept, or zero if it begins, and nothing else is read.
static bool keeps_states(const lw_lane_ops* ops, rule by) {
    float cells[16 * 32], kept[16 * 32];
    bool same = true;
    for (int fresh = 0; fresh < 2; ++fresh) {
        for (int i = 0; i < 16 * 32; ++i) cells[i] = kept[i] = (float)i;
        if (fresh) memset(kept, 0, sizeof kept);
        const lw_recur_job job = {.key_dim = 16, .columns = 32, .state = cells, .fresh = fresh != 0};
        run(ops, by, &job);
        same = same && memcmp(cells, kept, sizeof kept) == 0;
    }
    return same;
}

static bool makes_unit(const lw_lane_ops* ops) {
    const size_t n = 16 * between(1, 16);
    float *x = values(n, 3), *want = copy_of(x, n);
    const float by = 0.25f / sqrtf(dot(x, x, n) + 1e-6f);
    for (size_t i = 0; i < n; ++i) want[i] = x[i] * by;
    ops->make_unit(x, n, 0.25f);
    const bool same = memcmp(x, want, n * sizeof *x) == 0;
    free(x);
    free(want);
    return same;
}

// Against the scalar level, whose exponential is its own; and near enough to what it is.
static bool gates(const lw_lane_ops* ops) {
    const size_t n = between(1, 70);
    float *x = values(n, 3), *gate = values(n, 20), *out = values(n, 1), *want = values(n, 1);
    ops->sigmoid_mul(out, gate, x, n);
    lw_level_lane_ops[LW_LEVEL_SCALAR]->sigmoid_mul(want, gate, x, n);
    bool same = memcmp(out, want, n * sizeof *out) == 0;
    for (size_t i = 0; i < n; ++i)
        same = same && fabs((double)out[i] - (double)x[i] / (1 + lw_exp(-(double)gate[i]))) < 1e-5;
    free(x);
    free(gate);
    free(out);
    free(want);
    return same;
}

// The same of decays, for values of both signs and any size; a number that is none is found wherever it comes from.
static bool decays(const lw_lane_ops* ops) {
    const size_t n = 16 * between(1, 8), at = between(0, n - 1);
    const float rate = -(float)between(1, 64) / 8, floor = next() % 2 ? -(float)between(1, 20) / 2 : 0;
    float *x = values(n, next() % 4 ? 8 : 200), *bias = values(n, 2), *out = values(n, 1), *want = values(n, 1);
    bool same = ops->decays(out, x, bias, n, rate, floor);
    same = lw_level_lane_ops[LW_LEVEL_SCALAR]->decays(want, x, bias, n, rate, floor) && same;
    same = same && memcmp(out, want, n * sizeof *out) == 0;
    for (size_t i = 0; i < n; ++i) {
        const double a = (double)(x[i] + bias[i]), power = (double)rate * a;
        const double weight = floor != 0 ? (double)floor / (1 + lw_exp(power < -700  ? -700
                                                                       : power < 700 ? power
                                                                                     : 700))
                                         : (double)rate * lw_softplus(a);
        const double right = weight < -87 ? 0 : lw_exp(weight);
        same = same && fabs((double)out[i] - right) < 1e-6 + 4e-7 * fabs(weight) * right;
    }
    (next() % 2 ? x : bias)[at] = next() % 2 ? INFINITY : NAN;
    same = same && !ops->decays(out, x, bias, n, rate, floor);
    free(x);
    free(bias);
    free(out);
    free(want);
    return same;
}

static void test_level(const lw_lane_ops* ops, const char* name) {
    static const char* const names[RULES] = {"gated delta rules", "delta rules with a decay for each channel",
                                             "state space recurrences"};
    bool convolved = true, recurred[RULES] = {true, true, true}, unit = true, gated = true, decayed = true;
    for (int turn = 0; turn < 300; ++turn) {
        convolved = convolves(ops) && convolved;
        for (int by = 0; by < RULES; ++by) recurred[by] = recurs(ops, (rule)by) && recurred[by];
        unit = makes_unit(ops) && unit;
        gated = gates(ops) && gated;
        decayed = decays(ops) && decayed;
    }
    report(convolved, name, "300 convolutions and their tails, with and without guesses");
    bool keep = true;
    for (int by = 0; by < RULES; ++by) {
        char what[96];
        snprintf(what, sizeof what, "300 %s and their states, with and without guesses", names[by]);
        report(recurred[by], name, what);
        keep = keeps_states(ops, (rule)by) && keep;
    }
    report(keep, name, "states of sequences without rows");
    report(unit, name, "300 vectors made units");
    report(gated, name, "300 rows behind gates");
    report(decayed, name, "300 rows of decays, and what is no number among them");
}

int main(int argc, char** argv) {
    const bool no_skips = argc > 1 && strcmp(argv[1], "--no-skips") == 0;
    for (int level = 0; level < LW_LEVEL_COUNT; ++level) {
        if (lw_level_lane_ops[level] == NULL) continue;  // of another CPU family
        if (!(lw_cpu_levels() >> level & 1)) {
            printf("%s %s: this CPU cannot run it\n", no_skips ? "FAIL" : "skip", lw_level_names[level]);
            failed += no_skips;
            continue;
        }
        test_level(lw_level_lane_ops[level], lw_level_names[level]);
    }
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
