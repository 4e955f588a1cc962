// Tensors of any type and any bytes: every level takes or refuses them alike, holds the same weights, gives them to every
// other level without a change, and takes packed tensors that are damaged without harm.
#include <math.h>

#include "../../native/kernel_data.h"
#include "input.h"
#include "model/coded.h"
#include "model/model.h"
#include "model/panels.h"
#include "uniform_model.h"

enum { MAX_ROWS = 70, MAX_COLS = 640 };

typedef struct shape {
    uint32_t rows, cols;
} shape;

static lw_model* make_model(shape s, int level) {
    const uniform_config config = {.n_layers = 1,
                                   .hidden_size = s.cols,
                                   .ffn_size = 1,
                                   .n_heads = 1,
                                   .n_kv_heads = 1,
                                   .head_dim = 2,
                                   .vocab_size = s.rows,
                                   .context_length = 1,
                                   .tied_embeddings = 1,
                                   .rms_norm_eps = 1e-5f,
                                   .rope_theta = 10000};
    lw_model* model = NULL;
    FUZZ_CHECK(uniform_create(&config, lw_level_names[level], 1, &model) == LW_OK, "no model: %s", lw_last_error());
    return model;
}

// The rows begin with the input's bytes, again and again. Tame: nothing in them is infinite.
static uint8_t* make_rows(fuzz_input* in, lw_type type, shape s, uint64_t n_bytes, bool tame) {
    uint8_t* rows = malloc(n_bytes > 0 ? n_bytes : 1);
    if (rows == NULL) exit(2);
    uint64_t seed = in->left;
    for (uint64_t i = 0; i < n_bytes; ++i)
        rows[i] = in->left > 0 ? in->data[i % in->left] : (uint8_t)next_random(&seed);
    for (uint64_t i = 0; tame && i < n_bytes; ++i) rows[i] &= 0xBB;
    lw_format f;
    if (!tame || n_bytes == 0 || !lw_find_format(type, &f) || f.super != LW_SUPER_ROW) return rows;
    for (uint32_t row = 0; row < s.rows; ++row) {  // a row scale has few bits
        uint8_t* super = rows + (row + 1) * (n_bytes / s.rows) - sizeof(float);
        super[0] = 0;
        super[1] &= 0xF0;
    }
    return rows;
}

static void compare_weights(const lw_model* model, const lw_model* scalar, shape s, const char* level) {
    float *got = malloc(s.cols * sizeof *got), *want = malloc(s.cols * sizeof *want);
    for (uint32_t row = 0; row < s.rows; ++row) {
        lw_unpack_row(&model->embedding, row, got);
        lw_unpack_row(&scalar->embedding, row, want);
        FUZZ_CHECK(memcmp(got, want, s.cols * sizeof *got) == 0, "%s: row %u at level %s differs from scalar's",
                   lw_type_name(model->embedding.type), row, level);
    }
    free(got);
    free(want);
}

static lw_packed_tensor packed_of(const lw_model* model) {
    lw_packed_tensor t = {0};
    FUZZ_CHECK(lw_model_packed(model, LW_TOKEN_EMBEDDING, 0, &t) == LW_OK, "not packed: %s", lw_last_error());
    return t;
}

// What one level packed, taken by another, is what that packs.
static void compare_repacked(lw_model* const models[], shape s, int from, int to) {
    const lw_packed_tensor packed = packed_of(models[from]), direct = packed_of(models[to]);
    lw_model* model = make_model(s, to);
    FUZZ_CHECK(lw_model_load_packed(model, &packed, 1, LW_LOAD_COPY) == LW_OK, "refused: %s", lw_last_error());
    const lw_packed_tensor found = packed_of(model);
    FUZZ_CHECK(found.n_bytes == direct.n_bytes && memcmp(found.data, direct.data, found.n_bytes) == 0,
               "%s packed at %s and repacked at %s", lw_type_name(packed.type), lw_level_names[from],
               lw_level_names[to]);
    lw_model_close(model);
}

// One field is changed: whatever is said then, and whatever is taken, is read without harm.
static void take_damaged(fuzz_input* in, const lw_model* from, shape s, int to) {
    lw_packed_tensor t = packed_of(from);
    uint8_t* copy = aligned_alloc(64, (t.n_bytes + 127) / 64 * 64);
    if (copy == NULL) exit(2);
    memcpy(copy, t.data, t.n_bytes);
    t.data = copy;
    switch (take_below(in, 8)) {
        case 0:
            t.rows = take_word(in);
            break;
        case 1:
            t.cols = take_word(in);
            break;
        case 2:
            t.type = (lw_type)take_below(in, 300);
            break;
        case 3:
            take_bytes(in, t.layout, sizeof t.layout);
            break;
        case 4:
            t.n_bytes = take_word(in) % (t.n_bytes + 1);
            break;
        case 5:
            take_bytes(in, t.table, sizeof t.table);
            break;
        case 6:
            t.checksum ^= take_word(in);
            break;
        default: {
            const uint64_t at = take_word(in) % t.n_bytes;
            const uint8_t change = take_byte(in);
            copy[at] ^= change;  // and a checksum that says so
            t.checksum += ((uint64_t)copy[at] << at % 8 * 8) * (2 * (at / 8) + 1);
            t.checksum -= ((uint64_t)(copy[at] ^ change) << at % 8 * 8) * (2 * (at / 8) + 1);
        }
    }
    lw_model* model = make_model(s, to);
    if (lw_model_load_packed(model, &t, 1, take_flag(in) ? LW_LOAD_MAP : LW_LOAD_COPY) == LW_OK) {
        float* row = malloc(s.cols * sizeof *row);
        for (uint32_t i = 0; i < s.rows; ++i) lw_unpack_row(&model->embedding, i, row);
        free(row);
    } else {
        FUZZ_CHECK(model->embedding.rows == 0, "a tensor that was refused is there");
    }
    lw_model_close(model);
    free(copy);
}

static void check_tensor(fuzz_input* in, const lw_tensor* t, lw_type target, shape s, int from, int to) {
    lw_model* models[LW_LEVEL_COUNT] = {NULL};
    lw_status first = LW_OK;
    for (int level = 0; level < LW_LEVEL_COUNT; ++level) {
        if (!(lw_cpu_levels() >> level & 1)) continue;
        models[level] = make_model(s, level);
        const lw_status status = lw_model_load(models[level], LW_TOKEN_EMBEDDING, 0, t, target);
        if (level == LW_LEVEL_SCALAR) first = status;
        FUZZ_CHECK(status == first, "level %s says %d, scalar %d", lw_level_names[level], (int)status, (int)first);
        if (status == LW_OK) compare_weights(models[level], models[LW_LEVEL_SCALAR], s, lw_level_names[level]);
    }
    if (first == LW_OK && models[from] != NULL && models[to] != NULL) {
        compare_repacked(models, s, from, to);
        take_damaged(in, models[from], s, to);
    }
    for (int level = 0; level < LW_LEVEL_COUNT; ++level) lw_model_close(models[level]);
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    fuzz_input in = {data, size};
    const uint8_t kind = take_byte(&in);
    const lw_type type =
        kind < 250 ? all_types[kind % (sizeof all_types / sizeof *all_types)] : (lw_type)take_word(&in);
    const lw_type target = take_byte(&in) < 200 ? type : all_types[take_below(&in, 2)];  // Q4_0 or Q8_0
    const uint32_t unit = take_flag(&in) ? 256 : take_flag(&in) ? 32 : 1;
    const uint32_t cols = (1 + take_below(&in, MAX_COLS)) / unit * unit;
    const shape s = {1 + take_below(&in, MAX_ROWS), cols > 0 ? cols : unit};
    const int from = (int)take_below(&in, LW_LEVEL_COUNT), to = (int)take_below(&in, LW_LEVEL_COUNT);
    const bool tame = take_flag(&in);
    int8_t table[LW_TABLE_ENTRIES];
    take_bytes(&in, table, sizeof table);
    const uint64_t n_bytes = lw_row_bytes(type, s.cols) * s.rows;
    lw_tensor t = {.n_bytes = n_bytes, .type = type, .rows = s.rows, .cols = s.cols, .table = table};
    const uint8_t odd = take_byte(&in);
    if (odd < 8) t.rope_heads = 1u << odd;
    if (odd == 8) t.table = NULL;
    if (odd == 9) t.n_bytes = take_word(&in);
    uint8_t* rows = make_rows(&in, type, s, n_bytes, tame);
    t.data = rows;
    check_tensor(&in, &t, target, s, from, to);
    free(rows);
    return 0;
}
