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

enum { MOST_ROWS = 9 };

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

static bool convolves(const lw_lane_ops* ops) {
    const size_t rows = between(1, MOST_ROWS), channels = between(1, 70), taps = between(2, LW_MAX_TAPS);
    const size_t stride = channels + between(0, 5), n = rows * stride, tail = (taps - 1) * stride;
    const bool gated = next() % 2, biased = next() % 2, fresh = next() % 3 == 0;
    float *x = values(n, 1), *before = values(n, 1), *after = values(n, 1), *out = values(n, 1);
    float *weights = values(channels * taps, 1), *bias = values(channels, 1), *seen = values(tail, 1);
    float *want = copy_of(out, n), *want_seen = copy_of(seen, tail);
    for (size_t c = 0; c < channels; ++c)
        for (size_t row = 0; row < rows; ++row) {
            float y = biased ? bias[c] : 0;
            for (size_t t = 0; t < taps; ++t) {
                const size_t from = row + t;  // taps - 1 rows before the first one come first
                const size_t at = (from + 1 - taps) * stride + c;
                float input = fresh ? 0 : seen[from * stride * (from + 1 < taps) + c * (from + 1 < taps)];
                if (from + 1 >= taps) input = gated ? x[at] * before[at] : x[at];
                y = fmaf(weights[c * taps + t], input, y);
            }
            want[row * stride + c] = gated ? y * after[row * stride + c] : y;
        }
    for (size_t t = 0; t + 1 < taps; ++t)
        for (size_t c = 0; c < channels; ++c) {
            const size_t from = rows + t, at = (from + 1 - taps) * stride + c;
            float last = from + 1 < taps && !fresh ? seen[from * stride + c] : 0;
            if (from + 1 >= taps) last = gated ? x[at] * before[at] : x[at];
            want_seen[t * stride + c] = last;
        }
    const lw_convolve_job job = {rows,   channels, taps,   x,       gated ? before : NULL, gated ? after : NULL,
                                 stride, out,      stride, weights, biased ? bias : NULL,  seen,
                                 stride, fresh};
    ops->convolve(&job);
    const bool same = memcmp(out, want, n * sizeof *out) == 0 && memcmp(seen, want_seen, tail * sizeof *seen) == 0;
    float* const all[] = {x, before, after, out, weights, bias, seen, want, want_seen};
    for (size_t i = 0; i < sizeof all / sizeof *all; ++i) free(all[i]);
    return same;
}

// One column of one row.
static float define_delta(const lw_recur_job* j, size_t row, size_t column) {
    const float *k = j->k + row * j->key_stride, *q = j->q + row * j->key_stride;
    const float g = j->decay[row * j->head_stride], b = j->beta[row * j->head_stride];
    float ks = 0, qs = 0;
    for (size_t i = 0; i < j->key_dim; ++i) {
        ks = fmaf(k[i], j->state[i * j->columns + column], ks);
        qs = fmaf(q[i], j->state[i * j->columns + column], qs);
    }
    const float d = b * fmaf(-g, ks, j->v[row * j->value_stride + column]);
    for (size_t i = 0; i < j->key_dim; ++i) {
        float* s = &j->state[i * j->columns + column];
        *s = fmaf(k[i], d, g * *s);
    }
    return fmaf(dot(q, k, j->key_dim), d, g * qs);
}

static float define_ssd(const lw_recur_job* j, size_t row, size_t column) {
    const float *k = j->k + row * j->key_stride, *q = j->q + row * j->key_stride;
    const float g = j->decay[row * j->head_stride], v = j->v[row * j->value_stride + column];
    const float x = j->beta[row * j->head_stride] * v;
    float sum = 0;
    for (size_t i = 0; i < j->key_dim; ++i) {
        float* s = &j->state[i * j->columns + column];
        *s = fmaf(k[i], x, g * *s);
        sum = fmaf(q[i], *s, sum);
    }
    return fmaf(j->skip, v, sum);
}

static bool recurs(const lw_lane_ops* ops, bool ssd) {
    const size_t rows = between(1, MOST_ROWS), key_dim = 16 * between(1, 8), columns = 16 * between(1, 4);
    const size_t stride = 2 * key_dim + columns, heads = between(1, 3);
    float *cells = values(key_dim * columns, 1), *in = values(rows * stride, 0.3f), *out = values(rows * stride, 1);
    float *decay = values(rows * heads, 0.5f), *beta = values(rows * heads, 1);
    float *want_cells = copy_of(cells, key_dim * columns), *want = copy_of(out, rows * stride);
    lw_recur_job job = {rows,   key_dim, columns, cells, in,   in + key_dim, stride, in + 2 * key_dim,
                        stride, decay,   beta,    heads, 0.7f, out,          stride, next() % 3 == 0};
    lw_recur_job definition = job;
    definition.state = want_cells;
    for (size_t i = 0; job.fresh && i < key_dim; ++i) memset(want_cells + i * columns, 0, columns * sizeof(float));
    for (size_t row = 0; row < rows; ++row)
        for (size_t c = 0; c < columns; ++c)
            want[row * stride + c] = ssd ? define_ssd(&definition, row, c) : define_delta(&definition, row, c);
    (ssd ? ops->recur_ssd : ops->recur_delta)(&job);
    const bool same = memcmp(out, want, rows * stride * sizeof *out) == 0 &&
                      memcmp(cells, want_cells, key_dim * columns * sizeof *cells) == 0;
    float* const all[] = {cells, in, out, decay, beta, want_cells, want};
    for (size_t i = 0; i < sizeof all / sizeof *all; ++i) free(all[i]);
    return same;
}

// A sequence without rows: its state is kept, or zero if it begins, and nothing else is read.
static bool keeps_states(const lw_lane_ops* ops, bool ssd) {
    float cells[16 * 32], kept[16 * 32];
    bool same = true;
    for (int fresh = 0; fresh < 2; ++fresh) {
        for (int i = 0; i < 16 * 32; ++i) cells[i] = kept[i] = (float)i;
        if (fresh) memset(kept, 0, sizeof kept);
        const lw_recur_job job = {.key_dim = 16, .columns = 32, .state = cells, .fresh = fresh != 0};
        (ssd ? ops->recur_ssd : ops->recur_delta)(&job);
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

static void test_level(const lw_lane_ops* ops, const char* name) {
    bool convolved = true, delta = true, ssd = true, unit = true, gated = true;
    for (int turn = 0; turn < 300; ++turn) {
        convolved = convolves(ops) && convolved;
        delta = recurs(ops, false) && delta;
        ssd = recurs(ops, true) && ssd;
        unit = makes_unit(ops) && unit;
        gated = gates(ops) && gated;
    }
    report(convolved, name, "300 convolutions and their tails");
    report(delta, name, "300 gated delta rules and their states");
    report(ssd, name, "300 state space recurrences and their states");
    report(keeps_states(ops, false) && keeps_states(ops, true), name, "states of sequences without rows");
    report(unit, name, "300 vectors made units");
    report(gated, name, "300 rows behind gates");
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
