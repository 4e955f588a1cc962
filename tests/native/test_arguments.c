// Every function of the C ABI with NULL for each of its pointers, numbers out of range and handles that are not ready: a
// status and a message, nothing written to what the call was to fill. "--calls" lists the functions that were called so.
#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kv_cache.h"
#include "layer_arguments.h"
#include "small_model.h"

static void test_functions_of_no_handle(void) {
    const uint32_t nodes[] = {0, 4000000000u};
    uint32_t n = 77;
    lw_kernel_info kernel;
    lw_choice choice = {.symbol = "none", .rival = "none"};
    memset(choice.rival, 'x', sizeof choice.rival);
    expect(lw_abi_version() == LW_ABI_VERSION, "lw_abi_version");
    HARMLESS(lw_abi_version());
    HARMLESS(lw_cpu_isa());
    HARMLESS(lw_cpu_features());
    HARMLESS(lw_last_error());
    ARGUMENT(lw_cpu_check(""), "isa '' is unknown");
    expect(lw_cpu_check(NULL) == LW_OK, "lw_cpu_check(NULL) is the best level");
    ARGUMENT(lw_numa_check(NULL, 1), "numa: 1 nodes");
    ARGUMENT(lw_numa_check(nodes, 0), "numa: 0 nodes, must be 1 to");
    ARGUMENT(lw_numa_check(nodes, UINT_MAX), "must be 1 to");
    ARGUMENT(lw_numa_check(nodes + 1, 1), "nodes[0] is 4000000000");
    for (int type = -300; type < 300; ++type) HARMLESS(lw_row_bytes((lw_type)type, 256));
    n_calls -= 599;
    HARMLESS(lw_held_type((lw_type)-1));
    lw_tensor grid = {.data = nodes, .n_bytes = 7, .type = LW_IQ2_XS, .rows = 1, .cols = 256};
    float weight;
    ARGUMENT(lw_file_weights(NULL, &weight, 1), "must not be NULL");
    ARGUMENT(lw_file_weights(&grid, NULL, 1), "must not be NULL");
    expect(lw_file_weights(&grid, &weight, 1) == LW_ERR_FORMAT, "7 bytes of IQ2_XS");
    grid.type = LW_Q4_0;
    ARGUMENT(lw_file_weights(&grid, &weight, 1), "type q4_0, must be one that only files have");
    expect(lw_row_bytes(LW_F32, UINT_MAX) == 4ull * UINT_MAX, "bytes of a row do not wrap");
    expect(lw_row_bytes((lw_type)77, 256) == 0 && lw_row_bytes((lw_type)-1, 256) == 0, "a type that is none");
    ARGUMENT(lw_kernel_describe(0, NULL), "lw_kernel_describe: kernel 0");
    ARGUMENT(lw_kernel_describe(UINT_MAX, &(lw_kernel_info){.min_rows = 0}), "kernel 4294967295, there are");
    HARMLESS(lw_kernel_count());
    ARGUMENT(lw_kernel_in_use(NULL, LW_Q4_0, 1, NULL), "out must not be NULL");
    ARGUMENT(lw_kernel_in_use("z80", LW_Q4_0, 1, &kernel), "isa 'z80' is unknown");
    ARGUMENT(lw_kernel_in_use(NULL, LW_I8, 1, &kernel), "no kernel for 1 rows of type 24");
    ARGUMENT(lw_kernel_in_use(NULL, LW_Q4_0, 0, &kernel), "no kernel for 0 rows of type 2");
    ARGUMENT(lw_choices(NULL, NULL, 1, &n), "must not be NULL");
    ARGUMENT(lw_choices(NULL, &choice, 1, NULL), "must not be NULL");
    ARGUMENT(lw_choices("z80", &choice, 1, &n), "isa 'z80' is unknown");
    ARGUMENT(lw_tune(NULL, NULL, 1, &n), "must not be NULL");
    ARGUMENT(lw_tune("z80", &choice, 1, &n), "isa 'z80' is unknown");
    expect(n == 77, "a refused call writes no count");
    ARGUMENT(lw_choose(NULL, 1), "choices must not be NULL");
    ARGUMENT(lw_choose(&choice, 1), "does not end with a zero byte");
    choice.rival[0] = 0;
    ARGUMENT(lw_choose(&choice, 1), "'none' has no rival ''");
    ARGUMENT(lw_set_fetch_ahead(LW_MAX_FETCH_AHEAD + 1), "fetch_ahead 1048577: must be 0 to 1048576");
    expect(lw_set_fetch_ahead(0) == LW_OK, "weights that are left to the hardware");
#if defined(__x86_64__)
    ARGUMENT(lw_set_fetch_ahead(64), "fetch_ahead 64: must be 0 on x86");
#endif
    ARGUMENT(lw_measure_limits(1, NULL, NULL), "must be 1 to 1024");
    ARGUMENT(lw_measure_limits(0, NULL, &(lw_limits){0}), "0 threads, must be 1 to 1024");
    ARGUMENT(lw_measure_limits(1025, NULL, &(lw_limits){0}), "1025 threads");
    ARGUMENT(lw_measure_limits(1, "z80", &(lw_limits){0}), "isa 'z80' is unknown");
}

static void test_guards(void) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char* pages = mmap(NULL, 2048 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) exit(2);
    ARGUMENT(lw_guard_mapping(NULL, page, "a file"), "must not be NULL");
    ARGUMENT(lw_guard_mapping(pages, page, NULL), "must not be NULL");
    ARGUMENT(lw_guard_mapping(pages, 0, "a file"), "n_bytes");
    ARGUMENT(lw_guard_mapping(pages, UINT64_MAX, "a file"), "n_bytes");
    ARGUMENT(lw_unguard_mapping(NULL), "no guarded range begins there");
    ARGUMENT(lw_unguard_mapping(pages), "no guarded range begins there");
    static char name[4096];
    memset(name, 'n', sizeof name - 1);
    expect(lw_guard_mapping(pages, page, name) == LW_OK, "a range with a long name is guarded");
    ARGUMENT(lw_guard_mapping(pages, page, name), "guarded already");
    ARGUMENT(lw_unguard_mapping(pages + 1), "no guarded range begins there");
    int n = 1;
    while (n < 2048 && lw_guard_mapping(pages + n * page, page, name) == LW_OK) ++n;
    expect(n == 1024, "so many ranges are guarded");
    REFUSED(lw_guard_mapping(pages + 2000 * page, page, name), LW_ERR_MEMORY, "1024 ranges are guarded");
    while (n-- > 0) expect(lw_unguard_mapping(pages + n * page) == LW_OK, "a range is guarded no more");
    munmap(pages, 2048 * page);
}

static void test_config(size_t offset, uint32_t bad, const char* says) {
    uniform_config config = small_config();
    lw_model* model = untouched;
    memcpy((char*)&config + offset, &bad, sizeof bad);
    ARGUMENT(uniform_create(&config, NULL, 1, &model), says);
    expect(model == untouched, "a refused call writes no model");
}

static void test_configs(void) {
    uniform_config config = small_config();
    lw_model* model = untouched;
    ARGUMENT(lw_model_create(NULL, NULL, 1, &model), "must not be NULL");
    const lw_model_config none = {0};
    uint32_t n_tensors = 77;
    ARGUMENT(lw_program_check(NULL), "config must not be NULL");
    ARGUMENT(lw_program_check(&none), "n_layers is 0, must be 1 to 1000");
    ARGUMENT(lw_program_tensors(NULL, NULL, 0, &n_tensors), "config must not be NULL");
    ARGUMENT(lw_program_tensors(&none, NULL, 0, &n_tensors), "n_layers is 0, must be 1 to 1000");
    ARGUMENT(lw_program_tensors(&none, NULL, 0, NULL), "out and n must not be NULL");
    ARGUMENT(lw_program_tensors(&none, NULL, 1, &n_tensors), "out and n must not be NULL");
    expect(n_tensors == 77, "a refused call writes no count");
    ARGUMENT(uniform_create(&config, NULL, 1, NULL), "must not be NULL");
    ARGUMENT(uniform_create(&config, "z80", 1, &model), "isa 'z80' is unknown");
    ARGUMENT(uniform_create(&config, NULL, 0, &model), "0 threads");
    ARGUMENT(uniform_create(&config, NULL, UINT_MAX, &model), "must be 1 to 1024");
    expect(model == untouched, "a refused call writes no model");
#define FIELD(field, name)                                                             \
    do {                                                                               \
        test_config(offsetof(uniform_config, field), 0, name " is 0");                 \
        test_config(offsetof(uniform_config, field), UINT_MAX, name " is 4294967295"); \
    } while (0)
    FIELD(n_layers, "n_layers");
    FIELD(hidden_size, "hidden_size");
    FIELD(ffn_size, "FFN: size");
    test_config(offsetof(uniform_config, n_heads), 0, "none of 2 layers has attention");
    test_config(offsetof(uniform_config, n_heads), UINT_MAX, "n_heads is 4294967295");
    FIELD(n_kv_heads, "n_kv_heads");
    FIELD(head_dim, "head_dim");
    FIELD(vocab_size, "vocab_size");
    FIELD(context_length, "context_length");
#undef FIELD
    test_config(offsetof(uniform_config, head_dim), 31, "must be even");
    test_config(offsetof(uniform_config, rms_norm_eps), 0x7FC00000, "rms_norm_eps is nan");
    config.rope_theta = NAN;
    ARGUMENT(uniform_create(&config, NULL, 1, &model), "rope 0: theta is nan");
    config = small_config();
    float factors[DIM / 2] = {[0] = 1, [1] = 1e-30f};
    config.rope_factors = factors;
    ARGUMENT(uniform_create(&config, NULL, 1, &model), "rope 0: factors[1] is 1e-30");
    factors[1] = NAN;
    ARGUMENT(uniform_create(&config, NULL, 1, &model), "rope 0: factors[1] is nan");
}

static lw_model* new_model(void) {
    const uniform_config config = small_config();
    lw_model* model = NULL;
    if (uniform_create(&config, NULL, 2, &model) != LW_OK) exit(2);
    return model;
}

static void test_places(lw_model* model) {
    const uint32_t nodes[65] = {0};
    ARGUMENT(lw_model_place(NULL, LW_NUMA_OFF, NULL, 0), "must not be NULL");
    ARGUMENT(lw_model_place(model, LW_NUMA_INTERLEAVE, NULL, 1), "numa: 1 nodes");
    ARGUMENT(lw_model_place(model, (lw_numa)7, nodes, 1), "numa 7, must be 0 (off)");
    ARGUMENT(lw_model_place(model, LW_NUMA_REPLICATE, nodes, 65), "65 nodes, must be at most 64");
}

static void test_tensors(lw_model* model) {
    static float values[MAX_VALUES];
    const lw_tensor good = float_tensor(values, HEADS * DIM, HIDDEN, 1);
    lw_tensor t = good;
    ARGUMENT(lw_model_load(NULL, LW_ATTN_Q, 0, &t, LW_F32), "must not be NULL");
    ARGUMENT(lw_model_load(model, LW_ATTN_Q, 0, NULL, LW_F32), "must not be NULL");
    ARGUMENT(lw_model_load(model, (lw_role)-1, 0, &t, LW_F32), "no tensor of role -1");
    ARGUMENT(lw_model_load(model, LW_ROLE_COUNT, 0, &t, LW_F32), "no tensor of role 126");
    ARGUMENT(lw_model_load(model, LW_ATTN_Q, LAYERS, &t, LW_F32), "no tensor of role 4 in layer 2");
    ARGUMENT(lw_model_load(model, LW_OUTPUT, UINT_MAX, &t, LW_F32), "in layer 4294967295");
    ARGUMENT(lw_model_load(model, LW_ATTN_Q, 0, &t, (lw_type)12345), "cannot turn f32 into");
    t.data = NULL;
    ARGUMENT(lw_model_load(model, LW_ATTN_Q, 0, &t, LW_F32), "must not be NULL");
    t = good, t.rows = UINT_MAX;
    REFUSED(lw_model_load(model, LW_ATTN_Q, 0, &t, LW_F32), LW_ERR_FORMAT, "shape (4294967295, 64)");
    t = good, t.n_bytes = UINT64_MAX;
    REFUSED(lw_model_load(model, LW_ATTN_Q, 0, &t, LW_F32), LW_ERR_FORMAT, "18446744073709551615 bytes");
    t = good, t.type = (lw_type)-5;
    REFUSED(lw_model_load(model, LW_ATTN_Q, 0, &t, LW_F32), LW_ERR_FORMAT, "cannot be stored as");
    t = good, t.rope_heads = 1u << 31;
    REFUSED(lw_model_load(model, LW_ATTN_Q, 0, &t, LW_F32), LW_ERR_FORMAT, "2147483648 heads");
    t = float_tensor(values, 1, HEADS * DIM, 1), t.rope_heads = 1u << 31;
    REFUSED(lw_model_load(model, LW_ATTN_Q_BIAS, 0, &t, LW_F32), LW_ERR_FORMAT, "2147483648 heads");
    t = good, t.type = LW_CB4, t.n_bytes = t.rows * lw_row_bytes(LW_CB4, t.cols);
    ARGUMENT(lw_model_load(model, LW_ATTN_Q, 0, &t, LW_CB4), "needs a table");
    values[0] = NAN;
    t = float_tensor(values, HEADS * DIM, HIDDEN, 1);
    values[HIDDEN] = NAN;
    REFUSED(lw_model_load(model, LW_ATTN_Q, 0, &t, LW_F32), LW_ERR_NONFINITE, "row 1 holds NaN");
    REFUSED(lw_model_load(model, LW_ATTN_Q_NORM, 1, &(lw_tensor){.data = values, .type = LW_F32}, LW_F32),
            LW_ERR_FORMAT, "shape (0, 0)");
}

static void test_packed_tensors(lw_model* model) {
    static _Alignas(64) float values[MAX_VALUES];
    lw_packed_tensor packed = {.role = LW_ATTN_Q, .data = values, .n_bytes = 1, .rows = HEADS * DIM, .cols = HIDDEN};
    lw_packed_tensor found = {.n_bytes = 77};
    ARGUMENT(lw_model_load_packed(NULL, &packed, 1, LW_LOAD_MAP), "must not be NULL");
    ARGUMENT(lw_model_load_packed(model, NULL, 1, LW_LOAD_MAP), "must not be NULL");
    ARGUMENT(lw_model_load_packed(model, &packed, 1, (lw_load)9), "no way of loading has the number 9");
    REFUSED(lw_model_load_packed(model, &packed, 1, LW_LOAD_MAP), LW_ERR_FORMAT, "layout ''");
    packed.role = LW_ROLE_COUNT;
    ARGUMENT(lw_model_load_packed(model, &packed, 1, LW_LOAD_MAP), "no tensor of role 126");
    packed.role = LW_ATTN_Q, packed.type = LW_CB4;
    memset(packed.table, 0x80, sizeof packed.table);
    strcpy(packed.layout, "c4b");
    packed.n_bytes = UINT64_MAX;
    REFUSED(lw_model_load_packed(model, &packed, 1, LW_LOAD_MAP), LW_ERR_FORMAT, "packed bytes for shape");
    REFUSED(lw_packed_rows(&packed, values, 1), LW_ERR_FORMAT, "packed bytes for shape");
    memset(packed.table, 0, sizeof packed.table);
    packed.n_bytes = 0, packed.type = LW_F32, packed.rows = 0;
    ARGUMENT(lw_packed_rows(&packed, values, 1), "room for 1 bytes of rows, must be 0");
    ARGUMENT(lw_packed_rows(NULL, values, 1), "must not be NULL");
    ARGUMENT(lw_packed_rows(&packed, NULL, 1), "must not be NULL");
    packed.data = NULL;
    ARGUMENT(lw_packed_rows(&packed, values, 1), "must not be NULL");
    ARGUMENT(lw_model_packed(NULL, LW_ATTN_Q, 0, &found), "must not be NULL");
    ARGUMENT(lw_model_packed(model, LW_ATTN_Q, 0, NULL), "must not be NULL");
    ARGUMENT(lw_model_packed(model, LW_ATTN_Q, 0, &found), "not loaded");
    ARGUMENT(lw_model_packed(model, (lw_role)-7, 0, &found), "no tensor of role -7");
    ARGUMENT(lw_model_packed(model, LW_ATTN_INPUT_ORDER, UINT_MAX, &found), "in layer 4294967295");
    expect(found.n_bytes == 77, "a refused call writes no tensor");
    HARMLESS(lw_model_reads_layout(NULL, LW_Q4_0, "c4b"));
    expect(lw_model_reads_layout(model, LW_Q4_0, NULL) == 0, "no layout is read");
    expect(lw_model_reads_layout(model, (lw_type)-1, "c4b") <= 1, "a type that is none");
}

// A model to which tensors are still to be loaded is good for nothing else.
static void test_unfinished(lw_model* model) {
    const lw_session_config config = small_session(1, LW_F32);
    const uint32_t nodes[65] = {0};
    lw_session* session = untouched;
    lw_adapter* adapter = untouched;
    lw_model_info info = {.numerics = 77};
    ARGUMENT(lw_session_open(model, &config, &session), "not finished");
    ARGUMENT(lw_adapter_create(model, &adapter), "not finished");
    expect(session == untouched && adapter == untouched, "a refused call writes no handle");
    ARGUMENT(lw_model_describe(NULL, &info), "must not be NULL");
    ARGUMENT(lw_model_describe(model, NULL), "must not be NULL");
    expect(info.numerics == 77, "a refused call describes nothing");
    ARGUMENT(lw_model_finish(NULL), "must not be NULL");
    REFUSED(lw_model_finish(model), LW_ERR_FORMAT, "missing");
    expect(load_all(model) == LW_OK, "the tensors are loaded after all that");
    ARGUMENT(lw_model_place(model, LW_NUMA_INTERLEAVE, nodes, 1), "must not be loaded");
    expect(lw_model_finish(model) == LW_OK, "and the model is finished");
    ARGUMENT(lw_model_finish(model), "finished already");
    ARGUMENT(load_all(model), "finished already");
    ARGUMENT(lw_model_load_packed(model, &(lw_packed_tensor){.role = LW_ATTN_Q}, 1, LW_LOAD_MAP), "finished already");
    expect(lw_model_load_packed(model, NULL, 0, LW_LOAD_COPY) == LW_OK, "no tensors are no error");
    HARMLESS(lw_model_close(NULL));
}

static void test_adapters(const lw_model* model) {
    static float a_values[4 * HIDDEN], b_values[HEADS * DIM * 4];
    const lw_tensor good_a = float_tensor(a_values, 4, HIDDEN, 1), good_b = float_tensor(b_values, HEADS * DIM, 4, 2);
    lw_tensor a = good_a, b = good_b;
    lw_adapter* adapter = NULL;
    ARGUMENT(lw_adapter_create(NULL, &adapter), "must not be NULL");
    ARGUMENT(lw_adapter_create(model, NULL), "must not be NULL");
    if (lw_adapter_create(model, &adapter) != LW_OK) exit(2);
    ARGUMENT(lw_adapter_load(NULL, LW_ATTN_Q, 0, &a, &b, 1), "must not be NULL");
    ARGUMENT(lw_adapter_load(adapter, LW_ATTN_Q, 0, NULL, &b, 1), "must not be NULL");
    ARGUMENT(lw_adapter_load(adapter, LW_ATTN_Q, 0, &a, NULL, 1), "must not be NULL");
    a.data = NULL;
    ARGUMENT(lw_adapter_load(adapter, LW_ATTN_Q, 0, &a, &b, 1), "must not be NULL");
    a = good_a, b.data = NULL;
    ARGUMENT(lw_adapter_load(adapter, LW_ATTN_Q, 0, &a, &b, 1), "must not be NULL");
    b = good_b;
    ARGUMENT(lw_adapter_load(adapter, LW_OUTPUT, 0, &a, &b, 1), "no matrix of role 1");
    ARGUMENT(lw_adapter_load(adapter, (lw_role)-1, 0, &a, &b, 1), "no matrix of role -1");
    ARGUMENT(lw_adapter_load(adapter, LW_ATTN_Q, LAYERS, &a, &b, 1), "in layer 2");
    REFUSED(lw_adapter_load(adapter, LW_ATTN_Q, 0, &a, &b, NAN), LW_ERR_FORMAT, "scale nan");
    a.rows = UINT_MAX;
    REFUSED(lw_adapter_load(adapter, LW_ATTN_Q, 0, &a, &b, 1), LW_ERR_FORMAT, "rank 4294967295");
    a = good_a, a.type = LW_Q4_0;
    REFUSED(lw_adapter_load(adapter, LW_ATTN_Q, 0, &a, &b, 1), LW_ERR_FORMAT, "must be f32, f16 or bf16");
    a = good_a, b.n_bytes = 1;
    REFUSED(lw_adapter_load(adapter, LW_ATTN_Q, 0, &a, &b, 1), LW_ERR_FORMAT, "B: 1 bytes");
    expect(lw_adapter_bytes(NULL) == 0 && lw_adapter_bytes(adapter) == 0, "nothing is adapted yet");
    HARMLESS(lw_adapter_bytes(NULL));
    expect(lw_adapter_load(adapter, LW_ATTN_Q, 0, &good_a, &good_b, 1) == LW_OK, "what failed may be loaded again");
    REFUSED(lw_adapter_load(adapter, LW_ATTN_Q, 0, &good_a, &good_b, 1), LW_ERR_FORMAT, "adapted already");
    lw_adapter_close(adapter);
    HARMLESS(lw_adapter_close(NULL));
}

static void test_fits(void) {
    static float numbers[48 * 48];
    static uint8_t codes[48];
    static uint32_t choices[1];
    const lw_fit_job good = {.map = LW_FIT_UNIFORM,
                             .rows = 1,
                             .columns = 48,
                             .group = 16,
                             .n_candidates = 1,
                             .low = -8,
                             .high = 7,
                             .n_levels = 16,
                             .n_selectors = 1,
                             .levels = numbers,
                             .targets = numbers,
                             .weights = numbers,
                             .feedback = numbers,
                             .scales = numbers,
                             .codes = codes,
                             .values = numbers,
                             .losses = numbers,
                             .choices = choices};
    lw_fit_job job = good;
    ARGUMENT(lw_fit(NULL, 0, 1), "job is NULL");
    ARGUMENT(lw_fit(&job, 1, 0), "rows 1 to 0, must be within the 1 rows");
    ARGUMENT(lw_fit(&job, 0, 2), "rows 0 to 2, must be within the 1 rows");
    job.low = INT_MIN, job.high = INT_MAX;
    ARGUMENT(lw_fit(&job, 0, 1), "levels -2147483648 to 2147483647");
    job = good, job.columns = 129;
    ARGUMENT(lw_fit(&job, 0, 1), "129 columns");
    job = good, job.group = 0;
    ARGUMENT(lw_fit(&job, 0, 1), "groups of 0");
    job = good, job.n_candidates = 0;
    ARGUMENT(lw_fit(&job, 0, 1), "n_candidates is 0");
    job = good, job.map = (lw_fit_map)5;
    ARGUMENT(lw_fit(&job, 0, 1), "map 5");
    const size_t arrays[] = {offsetof(lw_fit_job, targets), offsetof(lw_fit_job, weights), offsetof(lw_fit_job, scales),
                             offsetof(lw_fit_job, codes),   offsetof(lw_fit_job, values),  offsetof(lw_fit_job, losses),
                             offsetof(lw_fit_job, choices), offsetof(lw_fit_job, levels)};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; ++i) {
        job = good, job.map = LW_FIT_TABLE;
        memset((char*)&job + arrays[i], 0, sizeof(void*));
        ARGUMENT(lw_fit(&job, 0, 1), "an array is NULL");
    }
    static float odd[17 * 17];  // no multiple of the columns that errors are fed back for at a time
    job = good, job.columns = job.group = 17, job.feedback = odd;
    expect(lw_fit(&job, 0, 1) == LW_OK, "groups may have any size from 16");
}

static void test_cache_layout(const lw_model* model) {
    lw_kv_layout layout;
    ARGUMENT(lw_model_kv_layout(NULL, LW_F16, 0, &layout), "must not be NULL");
    ARGUMENT(lw_model_kv_layout(model, LW_F16, 0, NULL), "must not be NULL");
    ARGUMENT(lw_model_kv_layout(model, LW_Q4_0, 0, &layout), "kv_type must be");
    ARGUMENT(lw_model_kv_layout(model, (lw_type)-1, 0, &layout), "kv_type must be");
    ARGUMENT(lw_model_kv_layout(model, LW_F16, 2, &layout), "groups_by_window 0 or 1");
    expect(lw_model_kv_layout(model, LW_F16, 1, &layout) == LW_OK && layout.n_groups == 1, "one window, one group");
    const lw_attention_config huge = {.n_kv_heads = 1024, .head_dim = 256};
    lw_kv_cache cache;
    lw_kv_describe(&huge, LW_F32, 4228890877u, &cache);  // 2^64 bytes and a little in 65 layers
    expect(!lw_kv_open(&cache, 65), "a cache of more bytes than there are numbers for is refused");
}

// Eleven of Gemma 4's layers, and one that reads the keys and values of another: five see a window, one sees all and has
// half as many bytes.
static void test_cache_of_other_heads(void) {
    lw_layer_config layers[13];
    const uniform_config alike = small_config();
    const lw_rope rope = uniform_rope(&alike);
    lw_model_config config = uniform_model(&alike, &rope, layers);
    config.n_layers = 13;
    for (uint32_t i = 0; i < 13; ++i) {
        const bool global = i % 6 == 5;
        layers[i] = uniform_layer(&alike);
        layers[i].attention.n_heads = 8;
        layers[i].attention.n_kv_heads = global ? 2 : 8;
        layers[i].attention.head_dim = global ? 64 : 32;
        layers[i].attention.window = global ? 0 : 512;
    }
    layers[12].attention.shares_kv = 1;
    layers[12].attention.kv_layer = 10;
    lw_model* model = NULL;
    expect(lw_model_create(&config, NULL, 1, &model) == LW_OK, "layers of two kinds of heads");
    const uint64_t largest = 2 * 8 * 32 * LW_BLOCK_TOKENS * 2;  // f16
    lw_kv_layout layout;
    expect(lw_model_kv_layout(model, LW_F16, 0, &layout) == LW_OK && layout.n_groups == 1 &&
               layout.block_bytes == 11 * largest,
           "ten large layers and two that share a slot");
    expect(lw_model_kv_layout(model, LW_F16, 1, &layout) == LW_OK && layout.n_groups == 6 &&
               layout.block_bytes == 2 * largest && layout.windows[0] == 512 && layout.windows[5] == 0,
           "five groups of two large layers, and one of two in one slot");
    lw_model_close(model);
}

int main(int argc, char** argv) {
    alarm(300);  // what hangs fails
    test_functions_of_no_handle();
    test_guards();
    test_configs();
    test_layers();
    test_latent_layers();
    test_cache_of_other_heads();
    test_fits();
    lw_model* model = new_model();
    test_places(model);
    test_tensors(model);
    test_packed_tensors(model);
    test_unfinished(model);
    test_adapters(model);
    test_cache_layout(model);
    lw_model_close(model);
    if (argc > 1 && strcmp(argv[1], "--calls") == 0) list_calls();
    return report();
}
