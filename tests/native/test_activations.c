// Quantization of activations and what outliers add, at every level, against their definition written here value by value.
#include <math.h>

#include "kernel_data.h"
#include "kernels/lane_ops.h"
#include "kernels/unpack.h"
#include "ops/math.h"

enum { MAX_ROWS = 5, MAX_COLS = 700 };

static int passed, failed;

static void report(bool ok, const char* level, const char* what) {
    printf("%s %s: %s\n", ok ? "ok  " : "FAIL", level, what);
    ++*(ok ? &passed : &failed);
}

// Values of very different sizes, some alone in their 32, some exactly eight times the next, some all zero.
static void make_values(float* x, size_t n, uint64_t* rng) {
    for (size_t first = 0; first < n; first += LW_GROUP) {
        const size_t end = first + LW_GROUP < n ? first + LW_GROUP : n;
        const int kind = random_between(rng, 0, 7);
        for (size_t k = first; k < end; ++k)
            x[k] = kind == 0 ? 0.0f : (float)random_between(rng, -1000, 1000) * (kind == 1 ? 1e-36f : 1e-3f);
        float* one = &x[first + next_random(rng) % (end - first)];
        if (kind == 2) *one = 8000.0f;
        if (kind == 3) *one = -1e-31f;
        if (kind >= 4) {
            x[first] = 1.0f;
            *one = kind == 4 ? 8.0f : kind == 5 ? -8.0f : kind == 6 ? 8.000001f : 1e-25f;
        }
    }
}

typedef struct expected {
    int8_t q[LW_GROUP];
    float scale;
    int outlier;  // of the 32, or -1
} expected;

static expected quantize_group(const float* x, size_t n) {
    expected e = {.outlier = -1};
    if (n == 0) return e;
    size_t at = 0;
    for (size_t k = 0; k < n; ++k)
        if (fabsf(x[k]) > fabsf(x[at])) at = k;
    float peak = fabsf(x[at]), second = 0;
    for (size_t k = 0; k < n; ++k)
        if (k != at && fabsf(x[k]) > second) second = fabsf(x[k]);
    if (peak > 8 * second && peak >= 1e-30f) {
        e.outlier = (int)at;
        peak = second;
    }
    if (peak < 1e-30f) return e;
    e.scale = peak / 127;
    for (size_t k = 0; k < n; ++k)
        if ((int)k != e.outlier) e.q[k] = (int8_t)((x[k] * (127 / peak) + LW_MAGIC) - LW_MAGIC);  // to nearest even
    return e;
}

static bool group_is_right(const lw_activations* a, size_t row, size_t g, const float* x) {
    const size_t n = a->cols > g * LW_GROUP ? a->cols - g * LW_GROUP : 0;
    const expected e = quantize_group(x + g * LW_GROUP, n < LW_GROUP ? n : LW_GROUP);
    const float* scale = a->scale + lw_scale_offset(a, row, g);
    bool ok = scale[0] == e.scale && scale[a->row_block - 1] == e.scale;
    int32_t sum = 0, half = 0;
    for (size_t i = 0; i < LW_GROUP; ++i) {
        const size_t k = g * LW_GROUP + i;
        ok = ok && a->q[lw_q_offset(a, row, k)] == e.q[i];
        sum += e.q[i];
        if (i == 15) half = sum;
        if (i % 16 == 15) ok = ok && a->totals[lw_totals_offset(a, row, k)] == sum;
    }
    const float* sums = a->sums + (row * a->segments + g / LW_SEGMENT_GROUPS) * LW_SUMS;
    const size_t in_segment = g % LW_SEGMENT_GROUPS;
    ok = ok && sums[in_segment] == e.scale * (float)sum;
    ok = ok && sums[LW_SUMS_16 + 2 * in_segment] == e.scale * (float)half;
    ok = ok && sums[LW_SUMS_16 + 2 * in_segment + 1] == e.scale * (float)(sum - half);
    const size_t groups = a->segments * LW_SEGMENT_GROUPS;
    const bool taken = a->outlying[row * a->segments + g / LW_SEGMENT_GROUPS] >> in_segment & 1;
    if (taken != (e.outlier >= 0)) return false;
    const lw_outlier* out = &a->outliers[row * groups + g];
    return ok && (!taken || (out->input == g * LW_GROUP + (size_t)e.outlier && out->value == x[out->input]));
}

static void test_quantize(lw_level level) {
    const lw_lane_ops* ops = lw_level_lane_ops[level];
    uint64_t rng = 7;
    bool right = true;
    for (int turn = 0; turn < 200; ++turn) {
        const size_t cols = (size_t)random_between(&rng, 1, MAX_COLS), rows = (size_t)random_between(&rng, 1, MAX_ROWS);
        plain_activations plain = plain_activations_make(rows, cols, EDGE_CASES, &rng);
        const lw_activations a = pack_activations(&plain, rows, lw_level_layouts[level]);
        for (size_t row = 0; row < rows; ++row) {
            float* x = plain.f32 + row * cols;
            make_values(x, cols, &rng);
            right = ops->quantize(&a, row, 0, a.segments, x) && right;
        }
        for (size_t row = 0; row < rows; ++row)
            for (size_t g = 0; g < a.segments * LW_SEGMENT_GROUPS; ++g)
                right = group_is_right(&a, row, g, plain.f32 + row * cols) && right;
        activations_free(&a);
        plain_activations_free(&plain);
    }
    report(right, lw_level_names[level], "codes, scales, totals, sums and outliers of 200 batches");
}

// With a peak, all groups have its scale, and there are no outliers.
static void test_peak(lw_level level) {
    const lw_lane_ops* ops = lw_level_lane_ops[level];
    uint64_t rng = 11;
    bool right = true;
    for (int turn = 0; turn < 50; ++turn) {
        const size_t cols = (size_t)random_between(&rng, 1, MAX_COLS), rows = (size_t)random_between(&rng, 1, MAX_ROWS);
        plain_activations plain = plain_activations_make(rows, cols, EDGE_CASES, &rng);
        lw_activations a = pack_activations(&plain, rows, lw_level_layouts[level]);
        for (size_t row = 0; row < rows; ++row) {
            float* x = plain.f32 + row * cols;
            for (size_t i = 0; i < cols; ++i) x[i] = (float)random_between(&rng, 0, 2000) / 1000.0f - 1.0f;
            x[(size_t)random_between(&rng, 0, cols - 1)] = a.peak = 40.0f + (float)row;
            right = ops->quantize(&a, row, 0, a.segments, x) && right;
            for (size_t k = 0; k < cols; ++k) {
                const float code = rintf(x[k] * (127.0f / a.peak));
                right = right && a.q[lw_q_offset(&a, row, k)] == (int8_t)code;
                right = right && a.scale[lw_scale_offset(&a, row, k / LW_GROUP)] == a.peak / 127.0f;
            }
            for (size_t s = 0; s < a.segments; ++s) right = right && a.outlying[row * a.segments + s] == 0;
        }
        activations_free(&a);
        plain_activations_free(&plain);
    }
    report(right, lw_level_names[level], "codes of rows with one scale");
}

// One weight in f32, read from a panel.
static float weight_at(const lw_matrix* w, size_t output, size_t k) {
    const uint8_t* panel = w->data + output / LW_PANEL * w->panel_bytes;
    lw_format f;
    lw_group group;
    if (lw_find_format(w->type, &f)) {
        const lw_coded_view v = lw_view_coded(f, w, panel);
        return fmaf((float)lw_unpack_code(&v, output % LW_PANEL, k), lw_unpack_scale(&v, output % LW_PANEL, k),
                    -lw_unpack_minimum(&v, output % LW_PANEL, k));
    }
    const size_t size = w->type == LW_Q6_K ? 16 : LW_GROUP;
    (w->type == LW_Q4_0   ? lw_unpack_q4
     : w->type == LW_Q8_0 ? lw_unpack_q8
                          : lw_unpack_q6)(w, panel, output % LW_PANEL, k / size, &group);
    return (float)group.codes[k % size] * group.scale;
}

static bool sums_are_right(lw_level level, lw_type type, uint64_t* rng) {
    enum { COLS = 768, OUTPUTS = 45, ROWS = 7 };
    plain_matrix plain = plain_matrix_make(type, OUTPUTS, COLS, EDGE_CASES, rng);
    const lw_matrix w = pack_matrix(&plain, lw_level_layouts[level]);
    plain_activations values = plain_activations_make(ROWS, COLS, EDGE_CASES, rng);
    const lw_activations a = pack_activations(&values, ROWS, lw_level_layouts[level]);
    float got[ROWS][OUTPUTS + 3], want[ROWS][OUTPUTS + 3];
    for (size_t row = 0; row < ROWS; ++row)
        for (size_t n = 0; n < OUTPUTS + 3; ++n) got[row][n] = want[row][n] = (float)random_between(rng, -9, 9);
    for (size_t row = 0; row < ROWS; ++row) {
        const size_t first = row * (COLS / LW_GROUP);
        for (size_t g = 0; g < COLS / LW_GROUP; ++g) {
            if (row == 3 || random_between(rng, 0, 3) != 0) continue;  // one row without
            ((uint8_t*)a.outlying)[row * a.segments + g / 4] |= (uint8_t)(1 << g % 4);
            const uint32_t k = (uint32_t)(g * LW_GROUP + (size_t)random_between(rng, 0, 31));
            ((lw_outlier*)a.outliers)[first + g] = (lw_outlier){(float)random_between(rng, -99, 99) * 0.37f, k};
        }
        for (size_t n = 0; n < OUTPUTS; ++n) {
            float h = 0;
            for (size_t g = 0; g < COLS / LW_GROUP; ++g)
                if (a.outlying[row * a.segments + g / 4] >> g % 4 & 1)
                    h = fmaf(a.outliers[first + g].value, weight_at(&w, n, a.outliers[first + g].input), h);
            want[row][n] += h;
        }
    }
    void* scratch = aligned_alloc(64, (lw_matmul_scratch_bytes(ROWS) + 63) / 64 * 64);
    for (size_t panel = 0; panel < w.panels; ++panel)
        lw_level_lane_ops[level]->add_outliers(&w, &a, panel, (lw_output){&got[0][0], OUTPUTS + 3, true}, scratch);
    free(scratch);
    const bool right = memcmp(got, want, sizeof got) == 0;
    activations_free(&a);
    plain_activations_free(&values);
    packed_free(&w);
    plain_matrix_free(&plain);
    return right;
}

static void test_outliers(lw_level level) {
    uint64_t rng = 11;
    for (size_t t = 0; t < sizeof all_types / sizeof *all_types; ++t) {
        if (is_float_type(all_types[t])) continue;
        char what[64];
        snprintf(what, sizeof what, "products of outliers with %s", lw_type_name(all_types[t]));
        report(sums_are_right(level, all_types[t], &rng), lw_level_names[level], what);
    }
}

// What curves make of values that are far out or none, wherever they are in a vector.
static void test_curves(lw_level level) {
    enum { N = 70 };
    float x[N], y[N];
    bool kept = true, zero = true, flat = true;
    for (size_t at = 0; at < N; ++at) {
        for (size_t i = 0; i < N; ++i) x[i] = i % 2 ? -0.0f : -3.0f;
        x[at] = NAN;
        lw_level_lane_ops[level]->activate(y, x, NULL, N, LW_RELU);
        for (size_t i = 0; i < N; ++i) {
            kept = kept && (i != at || isnan(y[i]));
            zero = zero && (i == at || (y[i] == 0 && !signbit(y[i])));
        }
        for (size_t i = 0; i < N; ++i) x[i] = -6.0f - 1e4f * (float)(i == at);
        lw_level_lane_ops[level]->activate(y, x, NULL, N, LW_GELU);
        for (size_t i = 0; i < N; ++i) flat = flat && fabsf(y[i]) < 1e-6f;
    }
    report(kept, lw_level_names[level], "RELU of NaN is NaN");
    report(zero, lw_level_names[level], "RELU of negative numbers and of -0 is 0");
    report(flat, lw_level_names[level], "GELU far below 0 is 0");
}

// xIELU and softcap against their definitions in double; what is not finite must not become a number.
static void test_scalings(lw_level level) {
    enum { N = 70 };
    const lw_lane_ops* ops = lw_level_lane_ops[level];
    uint64_t rng = 13;
    bool near = true, capped = true, alone = true;
    for (int turn = 0; turn < 100; ++turn) {
        const size_t n = (size_t)random_between(&rng, 1, N);
        float x[N], up[N], y[N], z[N];
        for (size_t i = 0; i < N; ++i) {
            x[i] = y[i] = z[i] = (float)random_between(&rng, -1000, 1000) * (turn % 2 ? 0.1f : 1e-3f);
            up[i] = (float)random_between(&rng, -9, 9);
        }
        ops->xielu(y, y, turn % 3 == 0 ? up : NULL, n, 1.25f, 0.75f);
        ops->softcap(z, n, 30);
        for (size_t i = 0; i < N; ++i) {
            const double g = (double)x[i], by = turn % 3 == 0 ? (double)up[i] : 1;
            const double f = g > 0 ? 0.75 * g * g + g / 2 : 1.25 * (lw_exp(g < -1e-6 ? g : -1e-6) - 1 - g) + g / 2;
            const double cap = 30 - 60 / (1 + lw_exp(g / 15));
            near = near && (i < n ? fabs((double)y[i] - f * by) <= 2e-6 * (1 + fabs(f * by)) : y[i] == x[i]);
            capped = capped && (i < n ? fabs((double)z[i] - cap) <= 1e-5 : z[i] == x[i]);
        }
        const size_t at = (size_t)random_between(&rng, 0, (int)n - 1);
        x[at] = turn % 2 ? NAN : turn % 4 ? INFINITY : -INFINITY;
        memcpy(z, x, sizeof x);
        ops->xielu(x, x, NULL, n, 1.25f, 0.75f);
        ops->softcap(z, n, 30);
        alone = alone && !isfinite(x[at]) && isnan(z[at]);
    }
    report(near, lw_level_names[level], "xIELU is what its definition says");
    report(capped, lw_level_names[level], "softcap is what its definition says");
    report(alone, lw_level_names[level], "xIELU and softcap of what is not finite are not finite");
}

// Values between limits, NaN, and -0, which levels would keep or not.
static void test_clamp(lw_level level) {
    enum { N = 70 };
    float x[N], y[N];
    bool right = true;
    for (size_t n = 1; n <= N; ++n) {
        for (size_t i = 0; i < N; ++i) x[i] = y[i] = i % 7 == 3 ? -0.0f : i % 11 == 5 ? NAN : 0.5f * (float)i - 12;
        lw_level_lane_ops[level]->clamp(y, y, n, -3.5f, 2.25f);
        for (size_t i = 0; i < N; ++i) {
            const float want = i >= n || isnan(x[i]) ? x[i] : x[i] < -3.5f ? -3.5f : x[i] > 2.25f ? 2.25f : x[i] + 0.0f;
            right = right && (isnan(want) ? isnan(y[i]) : memcmp(&y[i], &want, sizeof want) == 0);
        }
    }
    report(right, lw_level_names[level], "clamp keeps values between its limits, and NaN");
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
        test_quantize((lw_level)level);
        test_peak((lw_level)level);
        test_outliers((lw_level)level);
        test_curves((lw_level)level);
        test_scalings((lw_level)level);
        test_clamp((lw_level)level);
    }
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
