// Every row of the kernel table against the definition of the product, bit for bit.
//
// Usage: test_kernels [--quick] [--no-skips]
// --quick takes few shapes (for emulators); --no-skips fails when a kernel of this CPU family cannot run here.
// Each kernel runs with the layout of each level that uses it; scalar kernels run with every layout. Results of a row
// must not depend on the rows beside it, so one set of expected results serves every batch size.
#include <math.h>
#include <stdbool.h>

#include "kernel_data.h"

enum { MAX_ROWS = 100, MAX_KERNELS = 512 };

typedef struct tally {
    uint32_t cases, failures, levels;
} tally;

typedef struct problem {
    plain_matrix weights;
    plain_activations x;
    float* expected;  // [MAX_ROWS][weights.rows]
} problem;

static int passed, failed;

static void report(bool ok, const char* format, const char* name, const char* detail) {
    printf("%s ", ok ? "ok  " : "FAIL");
    printf(format, name, detail);
    printf("\n");
    ok ? ++passed : ++failed;
}

// The definition once more, from plain values.
static float quantized_product(const plain_matrix* m, const plain_activations* x, size_t output, size_t row) {
    const size_t size = m->type == LW_Q6_K ? 16 : LW_GROUP;
    const size_t width = (size_t)m->groups * LW_GROUP, steps = width / size;
    const int8_t *codes = m->codes + output * width, *q = x->q + row * x->stride;
    float acc = 0;
    for (size_t step = 0; step < steps; ++step) {
        const float scale = m->type == LW_Q6_K ? lw_half_to_float(m->scales[output * (m->cols / 256) + step / 16]) *
                                                     (float)m->sub_scales[output * steps + step]
                                               : lw_half_to_float(m->scales[output * steps + step]);
        int32_t sum = 0;
        for (size_t k = step * size; k < (step + 1) * size; ++k) sum += codes[k] * q[k];
        acc = fmaf((float)sum * scale + 0.0f, x->scale[row * x->groups + step * size / LW_GROUP], acc);
    }
    return acc;
}

// One coded output by its description: what each code means, its scale and its minimum.
typedef struct coded_row {
    lw_format f;
    const plain_matrix* m;
    const uint8_t *codes, *parts;  // parts of a stored row at their offsets
    lw_stored_row at;
    int pass;  // of types that go over a segment twice
} coded_row;

static float half_at(const uint8_t* p) {
    uint16_t bits;
    memcpy(&bits, p, 2);
    return lw_half_to_float(bits);
}

// Four times what the first pass multiplies, or what is left for the second, of sixteen times a float.
static int float_part(int bits, int pass) {
    const int sign = bits & 8 ? -1 : 1, exponent = bits & 7;
    const float mantissa = (float)(bits >> 4) / 4;
    const float value = exponent == 0 ? ldexpf(mantissa, -2) : ldexpf(1 + mantissa, exponent - 3);
    const float low = exponent < 3 ? ldexpf(mantissa, exponent == 2 ? 3 : 2) : 0;
    return sign * (int)(pass == 0 ? (16 * value - low) / 4 : low);
}

static int coded_weight(const coded_row* r, size_t k) {
    const int bits = r->codes[k];
    if (r->f.map == LW_MAP_FLOAT) return float_part(bits, r->pass);
    if (r->f.map == LW_MAP_TRELLIS) {  // in each 16 inputs the chain goes through every fourth of them
        const size_t before = k % 16 > 3 ? k - 4 : k % 16 > 0 ? k + 11 : k - 1;
        return r->m->table[4 * bits + (k % LW_SEGMENT ? r->codes[before] : 0)];
    }
    if (r->f.map == LW_MAP_OFFSET) return bits - r->f.offset;
    int selector = 0;
    if (r->f.selector) selector = r->parts[r->at.selectors + k / 128] >> (k % 128 / 32 * 2);
    const int entries = 1 << (r->f.low + r->f.high);
    return r->m->table[(selector * entries + bits) % 16];
}

static float coded_scale(const coded_row* r, size_t k) {
    const uint8_t* scales = r->parts + r->at.scales;
    const size_t g = k / r->f.group;
    if (r->f.scale == LW_SCALE_F16) return half_at(scales + 2 * g);
    if (r->f.scale == LW_SCALE_E8M0) return ldexpf(1.0f, scales[g] - 128);
    float super;
    if (lw_has_block_supers(r->f))
        super = half_at(r->parts + r->at.supers + k / 256 * 2) / (r->f.super == LW_SUPER_EIGHTH ? 8 : 1);
    else
        memcpy(&super, r->parts + r->at.supers, sizeof super);
    if (r->f.scale == LW_SCALE_E4M3) {
        const int exponent = scales[g] >> 3, mantissa = scales[g] & 7;
        return super * (exponent == 0 ? ldexpf((float)mantissa, -9) : ldexpf((float)(8 + mantissa), exponent - 10));
    }
    if (r->f.scale == LW_SCALE_ONE) return r->f.map == LW_MAP_FLOAT && r->pass == 0 ? super * 4 : super;
    return super * (float)(r->f.scale == LW_SCALE_NIBBLES ? scales[g] % 16 : (int8_t)scales[g]);
}

static float coded_minimum(const coded_row* r, size_t k) {
    const uint8_t* minimums = r->parts + r->at.minimums;
    if (r->f.minimum == LW_MINIMUM_F16) return half_at(minimums + k / 32 * 2);
    if (r->f.minimum == LW_MINIMUM_ZERO) return coded_scale(r, k) * (float)(minimums[k / r->f.group] - r->f.offset);
    const float super = half_at(r->parts + r->at.super_minimums + k / 256 * 2);
    return super * (float)(r->f.minimum == LW_MINIMUM_SIX ? minimums[k / 32] : r->parts[r->at.scales + k / 16] / 16);
}

static float coded_product(const plain_matrix* m, lw_format f, const plain_activations* x, size_t output, size_t row) {
    coded_row r = {.f = f, .m = m, .codes = m->open + output * lw_open_row_bytes(f, m->cols)};
    r.at = lw_stored_row_of(f, m->cols);
    r.parts = r.codes + m->cols - r.at.scales;
    const size_t step = f.group == 16 ? 16 : 32;
    const int8_t* q = x->q + row * x->stride;
    float acc = 0;
    for (size_t first = 0; first < m->cols; first += LW_SEGMENT) {
        const size_t end = first + LW_SEGMENT < m->cols ? first + LW_SEGMENT : m->cols;
        for (r.pass = 0; r.pass < (f.map == LW_MAP_FLOAT ? 2 : 1); ++r.pass) {
            for (size_t k = first; k < end; k += step) {
                int32_t sum = 0;
                for (size_t i = k; i < k + step; ++i) sum += coded_weight(&r, i) * q[i];
                acc = fmaf((float)sum * coded_scale(&r, k) + 0.0f, x->scale[row * x->groups + k / LW_GROUP], acc);
            }
        }
    }
    float taken = 0;
    for (size_t k = 0; f.minimum != LW_MINIMUM_NONE && k < m->cols; k += step) {
        int32_t sum = 0;
        for (size_t i = k; i < k + step; ++i) sum += q[i];
        const float scaled = x->scale[row * x->groups + k / LW_GROUP] * (float)sum;
        taken = fmaf(scaled, -coded_minimum(&r, k), taken);
    }
    return f.minimum == LW_MINIMUM_NONE ? acc : acc + taken;
}

static float float_product(const plain_matrix* m, const plain_activations* x, size_t output, size_t row) {
    float acc = 0;
    for (size_t k = 0; k < m->cols; ++k) {
        const uint32_t bits = m->values[output * m->cols + k];
        float weight;
        memcpy(&weight, &bits, 4);
        if (m->type == LW_F16) weight = lw_half_to_float((uint16_t)bits);
        if (m->type == LW_BF16) weight = lw_bfloat_to_float((uint16_t)bits);
        acc = fmaf(weight, x->f32[row * x->cols + k], acc);
    }
    return acc;
}

// Never -0.
static float product(const plain_matrix* m, const plain_activations* x, size_t output, size_t row) {
    lw_format f;
    if (is_float_type(m->type)) return float_product(m, x, output, row) + 0.0f;
    if (lw_find_format(m->type, &f)) return coded_product(m, f, x, output, row) + 0.0f;
    return quantized_product(m, x, output, row) + 0.0f;
}

static void expect(problem* p, size_t max_rows) {
    for (size_t row = 0; row < max_rows; ++row)
        for (size_t output = 0; output < p->weights.rows; ++output)
            p->expected[row * p->weights.rows + output] = product(&p->weights, &p->x, output, row);
}

static problem problem_make(lw_type type, uint32_t outputs, uint32_t cols, size_t max_rows, data_kind kind) {
    uint64_t rng = (uint64_t)type << 40 | (uint64_t)outputs << 20 | cols;
    problem p = {.weights = plain_matrix_make(type, outputs, cols, kind, &rng),
                 .x = plain_activations_make(max_rows, cols, kind, &rng)};
    p.expected = malloc(max_rows * outputs * sizeof *p.expected);
    expect(&p, max_rows);
    return p;
}

// Row scales as large as they may be, and group scales of 0 and 1.
static void use_large_row_scales(problem* p, lw_format f, size_t max_rows) {
    const lw_stored_row at = lw_stored_row_of(f, p->weights.cols);
    for (size_t row = 0; row < p->weights.rows; ++row) {
        uint8_t* parts = p->weights.open + row * lw_open_row_bytes(f, p->weights.cols) + p->weights.cols - at.scales;
        for (size_t i = at.scales; i < at.minimums; ++i) parts[i] &= 1;
        float super;
        memcpy(&super, parts + at.supers, sizeof super);
        super = ldexpf(super, 114);  // 4095 * 2^84
        memcpy(parts + at.supers, &super, sizeof super);
    }
    expect(p, max_rows);
}

static void problem_free(problem* p) {
    plain_matrix_free(&p->weights);
    plain_activations_free(&p->x);
    free(p->expected);
}

// Runs every panel and compares the whole output buffer, gaps between rows included. Prints the first difference.
static bool run_case(const lw_kernel* kernel, lw_level level, const problem* p, const lw_matrix* w, size_t rows,
                     bool add, bool quiet) {
    const lw_activations x = pack_activations(&p->x, rows, lw_level_layouts[level]);
    const size_t stride = w->rows + 5, n = (rows - 1) * stride + w->rows;
    float *got = guarded_alloc(n * sizeof *got), *want = malloc(n * sizeof *want);
    for (size_t i = 0; i < n; ++i) {
        const uint32_t garbage = 0x7FC0DEAD;  // NaN: a kernel that reads what it should overwrite is caught
        if (add)
            got[i] = (float)((int)(i % 251) - 125) * 0.37f;
        else
            memcpy(got + i, &garbage, sizeof garbage);
    }
    memcpy(want, got, n * sizeof *want);
    for (size_t row = 0; row < rows; ++row)
        for (size_t i = 0; i < w->rows; ++i) {
            float* to = want + row * stride + i;
            const float result = p->expected[row * w->rows + i];
            *to = add ? *to + result : result;
        }
    const size_t scratch_bytes = lw_matmul_scratch_bytes(rows);
    uint8_t* scratch = guarded_alloc(scratch_bytes);
    for (size_t panel = 0; panel < w->panels; ++panel) {
        // Every other panel in two pieces of the rows, as threads may share it out, none of them too small for the kernel.
        const size_t least = (kernel->min_rows + 3) / 4 * 4;
        const size_t first = panel % 2 == 1 && rows > 8 && rows >= 2 * least ? least : rows;
        for (size_t row = 0, piece_rows = first; row < rows; row += piece_rows, piece_rows = rows - first) {
            const lw_activations part = lw_rows_of(&x, row, piece_rows);
            memset(scratch, 0xFF, scratch_bytes);
            kernel->run(w, &part, panel, (lw_output){.data = got + row * stride, .stride = stride, .add = add},
                        scratch);
        }
    }
    const bool ok = memcmp(got, want, n * sizeof *got) == 0;
    for (size_t i = 0; !ok && !quiet && i < n; ++i) {
        if (memcmp(got + i, want + i, sizeof *got) == 0) continue;
        uint32_t bits[2];
        memcpy(bits, got + i, 4);
        memcpy(bits + 1, want + i, 4);
        printf(
            "     %s, layout %s, %zu rows, %u inputs, add %d: row %zu output %zu%s is %08x (%g), expected "
            "%08x (%g)\n",
            kernel->symbol, lw_level_names[level], rows, w->cols, add, i / stride, i % stride,
            i % stride >= w->rows ? " (past the row)" : "", bits[0], got[i], bits[1], want[i]);
        break;
    }
    guarded_free(scratch, scratch_bytes);
    guarded_free(got, n * sizeof *got);
    free(want);
    activations_free(&x);
    return ok;
}

// Of the sizes above nine, those that coded types take: tiles of every number of rows follow one another.
static bool few_sizes(size_t rows) { return rows == 11 || rows == 13 || rows == 17 || rows == 33 || rows == 100; }

static void test_problem(const problem* p, size_t max_rows, bool quick, tally* tallies) {
    lw_format f;
    const bool coded = lw_find_format(p->weights.type, &f);
    static const size_t sizes[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 24, 33, 64, 100};
    for (int level = 0; level < LW_LEVEL_COUNT; ++level) {
        const lw_matrix w = pack_matrix(&p->weights, lw_level_layouts[level]);
        for (uint32_t i = 0; i < lw_n_kernels; ++i) {
            const lw_kernel* kernel = &lw_kernels[i];
            if (kernel->weights != p->weights.type || !(levels_to_test(kernel) >> level & 1)) continue;
            tallies[i].levels |= 1u << level;
            for (size_t s = 0; s < sizeof sizes / sizeof *sizes; ++s) {
                const size_t rows = sizes[s];
                if (rows > max_rows || !takes_rows(kernel, rows)) continue;
                if (quick && rows > 3 && rows != 5 && rows != 8 && rows < max_rows) continue;
                if (is_scalar(kernel) && rows > 3 && rows != 8 && rows != 17) continue;
                if (coded && (is_scalar(kernel) ? rows != 1 && rows != 8 : rows > 9 && !few_sizes(rows))) continue;
                const bool add = (s + p->weights.cols / 8) % 2;
                for (int pass = 0; pass < (rows <= 8 && !coded ? 2 : 1); ++pass) {
#if defined(__x86_64__)
                    lw_cpu_fetch_order = (lw_fetch_order)(tallies[i].cases % 4);  // every order of asking for weights
#elif defined(__aarch64__)
                    lw_cpu_fetch_ahead = tallies[i].cases % 2 ? 4096 : 0;  // so that for one row or two both are tried
#endif
                    ++tallies[i].cases;
                    tallies[i].failures +=
                        !run_case(kernel, (lw_level)level, p, &w, rows, add ^ pass, tallies[i].failures);
                }
            }
        }
        packed_free(&w);
    }
}

typedef struct shapes {
    size_t n;
    uint32_t cols[12];
} shapes;

// Coded types are many and made from one description: they take fewer shapes, among them a short last segment and two
// blocks of 256 inputs.
static const shapes all_cols = {12, {8, 32, 64, 72, 172, 192, 200, 256, 288, 512, 896, 2048}},
                    quick_cols = {5, {32, 72, 256, 288, 512}}, coded_cols = {3, {64, 288, 512}},
                    quick_coded_cols = {2, {288, 512}}, block_cols = {2, {256, 512}}, quick_block_cols = {1, {512}};

static const shapes* shapes_of(lw_type type, bool quick) {
    lw_format f;
    if (!lw_find_format(type, &f)) return quick ? &quick_cols : &all_cols;
    if (f.super == LW_SUPER_BLOCK) return quick ? &quick_block_cols : &block_cols;
    return quick ? &quick_coded_cols : &coded_cols;
}

static void test_products(bool quick, tally* tallies) {
    for (size_t t = 0; t < sizeof all_types / sizeof *all_types; ++t) {
        const shapes* shapes = shapes_of(all_types[t], quick);
        lw_format f;
        const bool coded = lw_find_format(all_types[t], &f);
        for (size_t c = 0; c < shapes->n; ++c) {
            const uint32_t cols = shapes->cols[c];
            if (all_types[t] == LW_Q6_K && cols % 256 != 0) continue;
            const size_t max_rows = quick ? 13 : cols > 300 ? 33 : MAX_ROWS;
            const uint32_t outputs = quick || coded ? 37 : c % 2 ? 71 : 64;
            for (data_kind kind = EDGE_CASES; kind <= (is_float_type(all_types[t]) ? EDGE_CASES : LARGEST_SUMS);
                 ++kind) {
                problem p = problem_make(all_types[t], outputs, cols, max_rows, kind);
                test_problem(&p, max_rows, quick, tallies);
                problem_free(&p);
            }
        }
        if (coded && f.minimum != LW_MINIMUM_NONE) {  // more segments than minimums are decoded for at a time
            problem p = problem_make(all_types[t], 37, 2304, 10, EDGE_CASES);
            test_problem(&p, 10, quick, tallies);
            problem_free(&p);
        }
        if (coded && f.super == LW_SUPER_ROW) {
            problem p = problem_make(all_types[t], 37, 64, 2, EDGE_CASES);
            use_large_row_scales(&p, f, 2);
            test_problem(&p, 2, quick, tallies);
            problem_free(&p);
        }
    }
}

// What must be chosen, said differently from lw_kernel_find: a level's own kernel with the largest threshold reached.
static bool selection_is_right(lw_type type, lw_level level, size_t rows) {
    const lw_kernel* found = lw_kernel_find(type, level, rows);
    if (found == NULL || found->weights != type || !takes_rows(found, rows) || !(found->levels >> level & 1))
        return false;
    for (uint32_t i = 0; i < lw_n_kernels; ++i) {
        const lw_kernel* other = &lw_kernels[i];
        // Not its own min_rows: on some CPUs a kernel gains nothing.
        const bool is_for_rows = lw_kernel_min_rows(other) <= rows;
        if (other->weights != type || !(other->levels >> level & 1) || !is_for_rows || is_scalar(other)) continue;
        if (is_scalar(found) || found->min_rows < other->min_rows) return false;
    }
    return !(lw_cpu_levels() >> level & 1) || found->run != NULL;
}

static void test_selection(void) {
    for (int level = 0; level < LW_LEVEL_COUNT; ++level) {
        bool ok = true;
        for (size_t t = 0; t < sizeof all_types / sizeof *all_types; ++t)
            for (size_t rows = 1; rows <= 600; ++rows) ok &= selection_is_right(all_types[t], (lw_level)level, rows);
        report(ok, "selection: %s uses the kernels the table gives it%s", lw_level_names[level], "");
    }
}

static void flip_one_bit(const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out, void* scratch) {
    lw_kernel_find(w->type, LW_LEVEL_SCALAR, x->rows)->run(w, x, panel, out, scratch);
    uint32_t bits;
    memcpy(&bits, out.data + panel * LW_PANEL, 4);
    bits ^= 1;
    memcpy(out.data + panel * LW_PANEL, &bits, 4);
}

static void write_past_the_row(const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out,
                               void* scratch) {
    lw_kernel_find(w->type, LW_LEVEL_SCALAR, x->rows)->run(w, x, panel, out, scratch);
    if (x->rows > 1) out.data[w->rows] = 0;
}

// A test that cannot fail is none: kernels with one fault must be found out.
static void test_the_test(void) {
    problem p = problem_make(LW_Q4_0, 40, 64, 2, EDGE_CASES);
    const lw_matrix w = pack_matrix(&p.weights, lw_level_layouts[LW_LEVEL_SCALAR]);
    const lw_kernel right = *lw_kernel_find(LW_Q4_0, LW_LEVEL_SCALAR, 2);
    lw_kernel flipped = right, outside = right;
    flipped.run = flip_one_bit;
    outside.run = write_past_the_row;
    report(run_case(&right, LW_LEVEL_SCALAR, &p, &w, 2, false, true), "self-check: %s%s", "scalar passes", "");
    report(!run_case(&flipped, LW_LEVEL_SCALAR, &p, &w, 2, false, true), "self-check: %s%s", "one flipped bit is found",
           "");
    report(!run_case(&outside, LW_LEVEL_SCALAR, &p, &w, 2, false, true), "self-check: %s%s", "a stray write is found",
           "");
    packed_free(&w);
    problem_free(&p);
}

static void report_kernels(const tally* tallies, bool no_skips) {
    for (uint32_t i = 0; i < lw_n_kernels; ++i) {
        const lw_kernel* kernel = &lw_kernels[i];
        if (kernel->run == NULL) continue;
        char detail[256] = "";
        size_t at = (size_t)snprintf(detail, sizeof detail, "%u of %u cases wrong, layouts", tallies[i].failures,
                                     tallies[i].cases);
        for (int level = 0; level < LW_LEVEL_COUNT; ++level)
            if (tallies[i].levels >> level & 1)
                at += (size_t)snprintf(detail + at, sizeof detail - at, " %s", lw_level_names[level]);
        if (levels_to_test(kernel) == 0) {
            if (no_skips)
                report(false, "%-40s %s", kernel->symbol, "this CPU cannot run it");
            else
                printf("skip %-40s this CPU cannot run it\n", kernel->symbol);
            continue;
        }
        report(tallies[i].cases > 0 && tallies[i].failures == 0, "%-40s %s", kernel->symbol, detail);
    }
}

int main(int argc, char** argv) {
    bool quick = false, no_skips = false;
    for (int i = 1; i < argc; ++i) {
        if (strcmp(argv[i], "--quick") == 0)
            quick = true;
        else if (strcmp(argv[i], "--no-skips") == 0)
            no_skips = true;
        else {
            fprintf(stderr, "usage: test_kernels [--quick] [--no-skips]\n");
            return 2;
        }
    }
    static tally tallies[MAX_KERNELS];
    if (lw_n_kernels > MAX_KERNELS) {
        fprintf(stderr, "test_kernels: %u kernels, MAX_KERNELS is %d\n", lw_n_kernels, MAX_KERNELS);
        return 2;
    }
    const uint64_t saved = lw_fp_enter();
    test_products(quick, tallies);
    report_kernels(tallies, no_skips);
    test_selection();
    test_the_test();
    lw_fp_restore(saved);
    printf("%d passed, %d failed\n", passed, failed);
    return failed ? 1 : 0;
}
