// Speed of every row of the kernel table on one thread, over layer shapes of real models, as JSON.
//
// Usage: bench_kernels [--isa NAME] [--kernel TEXT] [--rows 1,8,64] [--shapes 2048x2048,8192x2048] [--seconds S]
// A shape is outputs x inputs. Weights cycle through more memory than the last-level cache holds, as in a model.
// The fastest of many passes counts, also for the machine's limits: other work on a shared machine only slows passes
// down.
// share_of_bandwidth and share_of_int8_peak are shares of the measured limits. The larger share shows which limit
// binds.
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../tests/native/kernel_data.h"
#include "memory.h"
#include "profile.h"

enum { MAX_LIST = 32, MAX_RESULTS = 8192 };

static const size_t COLD_BYTES = (size_t)192 << 20;

typedef struct options {
    lw_level level;
    const char* kernel;
    size_t rows[MAX_LIST], n_rows;
    size_t outputs[MAX_LIST], inputs[MAX_LIST], n_shapes;
    double seconds;
} options;

static double now(void) { return 1e-9 * (double)lw_profile_now(); }

// Fewest seconds of one product of `outputs` outputs. Each product uses the next part of `w`.
static double measure(const lw_kernel* kernel, const lw_matrix* w, size_t panels, const lw_activations* x,
                      double seconds) {
    const size_t outputs = panels * LW_PANEL;
    lw_block out, scratch;
    if (!lw_block_map(x->rows * outputs * sizeof(float), &out) ||
        !lw_block_map(lw_matmul_scratch_bytes(x->rows), &scratch))
        exit(2);
    size_t first = 0;
    const double begin = now();
    double best = 1e30, last = begin;
    for (int pass = 0; pass < 5 || last - begin < seconds; ++pass) {
        const double start = now();
        for (size_t panel = 0; panel < panels; ++panel) {
            const lw_output to = {.data = (float*)out.data - first * LW_PANEL, .stride = outputs};
            kernel->run(w, x, first + panel, to, scratch.data);
        }
        last = now();
        if (last - start < best) best = last - start;
        first = first + 2 * panels > w->panels ? 0 : first + panels;
    }
    lw_block_unmap(&out);
    lw_block_unmap(&scratch);
    return best;
}

// One panel of random weights, repeated until the caches cannot hold it.
static lw_matrix make_weights(lw_type type, lw_layout layout, size_t outputs, size_t inputs, lw_block* memory) {
    uint64_t rng = 1;
    plain_matrix plain = plain_matrix_make(type, LW_PANEL, (uint32_t)inputs, ORDINARY, &rng);
    const lw_matrix one = pack_matrix(&plain, layout);
    lw_matrix w = one;
    const size_t panels = outputs / LW_PANEL;
    const size_t copies = COLD_BYTES / (panels * one.panel_bytes) + 1;
    w.panels = (uint32_t)(panels * copies);
    w.rows = w.panels * LW_PANEL;
    if (!lw_block_map(w.panels * w.panel_bytes, memory)) exit(2);
    for (size_t p = 0; p < w.panels; ++p) memcpy((uint8_t*)memory->data + p * w.panel_bytes, one.data, w.panel_bytes);
    w.data = memory->data;
    packed_free(&one);
    plain_matrix_free(&plain);
    return w;
}

typedef struct result {
    const char* symbol;
    size_t outputs, inputs, rows;
    double gb_s, gmac_s;
} result;

static result results[MAX_RESULTS];
static size_t n_results;

static bool is_wanted(const options* o, const lw_kernel* k, lw_type type, size_t rows) {
    if (k->weights != type || k->run == NULL || !(k->levels >> o->level & 1) || rows < k->min_rows) return false;
    if (rows > 1 && strncmp(k->symbol, "gemv", 4) == 0) return false;
    return o->kernel ? strstr(k->symbol, o->kernel) != NULL : k == lw_kernel_find(type, o->level, rows);
}

static bool is_any_wanted(const options* o, lw_type type) {
    for (size_t r = 0; r < o->n_rows; ++r)
        for (uint32_t i = 0; i < lw_n_kernels; ++i)
            if (is_wanted(o, &lw_kernels[i], type, o->rows[r])) return true;
    return false;
}

static void bench_shape(const options* o, size_t shape, lw_type type) {
    const size_t outputs = o->outputs[shape], inputs = o->inputs[shape];
    if (!holds_rows_of(type, (uint32_t)inputs)) return;
    lw_block memory;
    const lw_layout layout = lw_level_layouts[o->level];
    const lw_matrix w = make_weights(type, layout, outputs, inputs, &memory);
    for (size_t r = 0; r < o->n_rows; ++r) {
        uint64_t rng = 2;
        plain_activations plain = plain_activations_make(o->rows[r], inputs, ORDINARY, &rng);
        const lw_activations x = pack_activations(&plain, o->rows[r], layout);
        for (uint32_t i = 0; i < lw_n_kernels; ++i) {
            const lw_kernel* k = &lw_kernels[i];
            if (n_results == MAX_RESULTS || !is_wanted(o, k, type, o->rows[r])) continue;
            const double s = measure(k, &w, outputs / LW_PANEL, &x, o->seconds);
            results[n_results++] = (result){.symbol = k->symbol,
                                            .outputs = outputs,
                                            .inputs = inputs,
                                            .rows = o->rows[r],
                                            .gb_s = (double)(outputs / LW_PANEL * w.panel_bytes) / s * 1e-9,
                                            .gmac_s = (double)(outputs * inputs * o->rows[r]) / s * 1e-9};
        }
        activations_free(&x);
        plain_activations_free(&plain);
    }
    lw_block_unmap(&memory);
}

static void usage(const char* why) {
    fprintf(stderr,
            "%s\nusage: bench_kernels [--isa NAME] [--kernel TEXT] [--rows N,...] [--shapes OUTxIN,...] "
            "[--seconds S]\n",
            why);
    exit(2);
}

static size_t parse_rows(char* text, size_t* rows) {
    size_t n = 0;
    for (char* item = strtok(text, ","); item != NULL; item = strtok(NULL, ","))
        if (n == MAX_LIST || sscanf(item, "%zu", &rows[n]) != 1 || rows[n++] == 0)
            usage("--rows: positive numbers, at most 32");
    return n;
}

static size_t parse_shapes(char* text, size_t* outputs, size_t* inputs) {
    size_t n = 0;
    for (char* item = strtok(text, ","); item != NULL; item = strtok(NULL, ","), ++n)
        if (n == MAX_LIST || sscanf(item, "%zux%zu", &outputs[n], &inputs[n]) != 2 || outputs[n] % LW_PANEL ||
            outputs[n] == 0 || inputs[n] % LW_GROUP || inputs[n] == 0)
            usage("--shapes: outputs x inputs, both multiples of 32, at most 32 shapes");
    return n;
}

static options parse(int argc, char** argv) {
    // Layers of 1B and 8B Llama shapes, and batches of decode, batched decode and prefill.
    char rows[256] = "1,2,4,8,16,32,64,512", shapes[256] = "2048x2048,8192x2048,2048x8192,4096x14336";
    options o = {.level = lw_cpu_best_level(), .seconds = 0.3};
    for (int i = 1; i < argc; i += 2) {
        if (i + 1 == argc) usage("every option takes a value");
        const char *name = argv[i], *value = argv[i + 1];
        if (strcmp(name, "--isa") == 0) {
            if (lw_level_by_name(value, &o.level) != LW_OK) usage(lw_last_error());
        } else if (strcmp(name, "--kernel") == 0)
            o.kernel = value;
        else if (strcmp(name, "--rows") == 0)
            snprintf(rows, sizeof rows, "%s", value);
        else if (strcmp(name, "--shapes") == 0)
            snprintf(shapes, sizeof shapes, "%s", value);
        else if (strcmp(name, "--seconds") == 0)
            o.seconds = atof(value);
        else
            usage("unknown option");
    }
    o.n_rows = parse_rows(rows, o.rows);
    o.n_shapes = parse_shapes(shapes, o.outputs, o.inputs);
    return o;
}

// The machine's limits change with other work on it. They are measured between the kernels, and the best values count.
static void measure_limits(lw_level level, lw_limits* best) {
    lw_limits now_is;
    if (lw_measure_limits(1, lw_level_names[level], &now_is) != LW_OK) {
        fprintf(stderr, "bench_kernels: %s\n", lw_last_error());
        exit(1);
    }
    if (now_is.read_gb_s > best->read_gb_s) best->read_gb_s = now_is.read_gb_s;
    if (now_is.int8_gmac_s > best->int8_gmac_s) best->int8_gmac_s = now_is.int8_gmac_s;
}

static void print_results(lw_level level, const lw_limits* limits) {
    printf("{\"isa\": \"%s\", \"limits\": {\"read_gb_s\": %.2f, \"int8_gmac_s\": %.1f}, \"results\": [",
           lw_level_names[level], limits->read_gb_s, limits->int8_gmac_s);
    for (const result* r = results; r < results + n_results; ++r)
        printf(
            "%s\n  {\"symbol\": \"%s\", \"outputs\": %zu, \"inputs\": %zu, \"rows\": %zu, \"gb_s\": %.2f, "
            "\"gmac_s\": %.2f, \"share_of_bandwidth\": %.3f, \"share_of_int8_peak\": %.3f}",
            r == results ? "" : ",", r->symbol, r->outputs, r->inputs, r->rows, r->gb_s, r->gmac_s,
            r->gb_s / limits->read_gb_s, r->gmac_s / limits->int8_gmac_s);
    printf("\n]}\n");
}

int main(int argc, char** argv) {
    const options o = parse(argc, argv);
    lw_limits limits = {0};
    const uint64_t saved = lw_fp_enter();
    measure_limits(o.level, &limits);
    for (size_t t = 0; t < sizeof all_types / sizeof *all_types; ++t) {
        if (!is_any_wanted(&o, all_types[t])) continue;
        for (size_t shape = 0; shape < o.n_shapes; ++shape) bench_shape(&o, shape, all_types[t]);
        measure_limits(o.level, &limits);
    }
    print_results(o.level, &limits);
    lw_fp_restore(saved);
    return 0;
}
