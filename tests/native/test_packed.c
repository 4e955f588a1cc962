// Packed panels: packing loses nothing in any layout, and packed tensors that are damaged are refused.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/unpack.h"
#include "model/coded.h"
#include "model/model.h"
#include "model/panels.h"
#include "uniform_model.h"

enum { COLS = 512, ROWS = 37, MAX_ROW = COLS * 4 };

static int failed, passed;

static void expect(bool ok, const char* what, const char* detail) {
    ++*(ok ? &passed : &failed);
    if (!ok) printf("%s: %s (last error: %s)\n", what, detail, lw_last_error());
}

static uint64_t mix(uint64_t x) {  // splitmix64
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

static void fill(uint8_t* data, size_t n, uint64_t seed) {
    for (size_t i = 0; i < n; ++i) data[i] = (uint8_t)mix(seed * 1000003 + i);
}

static const lw_type types[] = {LW_F32, LW_F16, LW_BF16, LW_Q4_0, LW_Q8_0, LW_Q6_K};

// One weight by the definition in unpack.h, as an integer code; float types give their bits.
static int64_t code_at(const lw_matrix* w, const uint8_t* panel, size_t output, size_t k) {
    lw_group group;
    if (w->type == LW_Q4_0) return lw_unpack_q4(w, panel, output, k / 32, &group), group.codes[k % 32];
    if (w->type == LW_Q8_0) return lw_unpack_q8(w, panel, output, k / 32, &group), group.codes[k % 32];
    if (w->type == LW_Q6_K) return lw_unpack_q6(w, panel, output, k / 16, &group), group.codes[k % 16];
    uint32_t bits = 0;
    const size_t bytes = w->type == LW_F32 ? 4 : 2;
    memcpy(&bits, panel + (k * LW_PANEL + output) * bytes, bytes);
    return bits;
}

static void test_every_layout_holds_the_same_rows(lw_type type) {
    static uint8_t source[LW_PANEL][MAX_ROW], back[LW_PANEL][MAX_ROW];
    const size_t row_bytes = lw_row_bytes(type, COLS);
    const uint8_t* rows[LW_PANEL];
    uint8_t* out[LW_PANEL];
    for (size_t i = 0; i < LW_PANEL; ++i) {
        fill(source[i], row_bytes, (uint64_t)type * 100 + i);
        rows[i] = source[i];
        out[i] = back[i];
    }
    const size_t bytes = lw_panel_bytes(type, COLS);
    uint8_t *panel = malloc(bytes), *first = malloc(bytes);
    if (panel == NULL || first == NULL) exit(2);
    const lw_matrix reference = lw_matrix_of(type, lw_level_layouts[0], LW_PANEL, COLS);
    lw_panel_pack(&reference, first, rows);
    for (int level = 0; level < LW_LEVEL_COUNT; ++level) {
        const lw_matrix w = lw_matrix_of(type, lw_level_layouts[level], LW_PANEL, COLS);
        memset(panel, 0xA5, bytes);
        memset(back, 0x5A, sizeof back);
        lw_panel_pack(&w, panel, rows);
        bool same = true;
        for (size_t i = 0; i < LW_PANEL; ++i)
            for (size_t k = 0; k < COLS; ++k) same &= code_at(&w, panel, i, k) == code_at(&reference, first, i, k);
        expect(same, lw_level_names[level], "a weight differs from scalar's layout");
        lw_panel_unpack(&w, panel, out);
        for (size_t i = 0; i < LW_PANEL; ++i) same &= memcmp(source[i], back[i], row_bytes) == 0;
        expect(same, lw_level_names[level], "unpacked rows differ from the source");
        const bool agree = lw_layouts_agree(type, w.layout, reference.layout);
        expect(agree == (memcmp(panel, first, bytes) == 0), lw_level_names[level], "lw_layouts_agree is wrong");
        char name[LW_LAYOUT_NAME_BYTES];
        lw_layout found;
        lw_layout_name(w.layout, name);
        expect(lw_layout_by_name(name, &found) && lw_layouts_agree(type, found, w.layout), name, "name not found");
    }
    free(panel);
    free(first);
}

static const lw_type coded_types[] = {
#define CODED(type, ...) type,
#include "kernels/formats.inc"
#undef CODED
};

// Open rows with any bits go into panels of every layout and come back, and mean the same weights there.
static void test_coded_rows(lw_type type, uint32_t cols) {
    lw_format f;
    lw_find_format(type, &f);
    const size_t open_bytes = lw_open_row_bytes(f, cols), bytes = lw_panel_bytes(type, cols);
    uint8_t *panel = malloc(bytes), *open = malloc(open_bytes), *back = malloc(open_bytes);
    float *weights = malloc(cols * sizeof(float)), *first = malloc(LW_PANEL * cols * sizeof(float));
    uint8_t* stored = malloc(lw_stored_row_of(f, cols).bytes);
    if (panel == NULL || open == NULL || back == NULL || weights == NULL || first == NULL || stored == NULL) exit(2);
    for (int level = 0; level < LW_LEVEL_COUNT; ++level) {
        lw_matrix w = lw_matrix_of(type, lw_level_layouts[level], LW_PANEL, cols);
        for (int i = 0; i < LW_TABLE_ENTRIES; ++i) w.table[i] = (int8_t)(8 * i - 60);
        memset(panel, 0, bytes);
        bool same = true;
        for (int pass = 0; pass < 2; ++pass)  // all outputs are put before one is taken
            for (size_t output = 0; output < LW_PANEL; ++output) {
                fill(open, open_bytes, (uint64_t)type * 100 + output);
                for (size_t i = 0; i < open_bytes; ++i)
                    open[i] &= i < cols ? (uint8_t)((1 << (f.low + f.high)) - 1) : 0xBB;  // 0xBB: no infinite half
                const lw_stored_row parts = lw_stored_row_of(f, cols);
                for (size_t i = parts.scales; f.scale == LW_SCALE_SIX && i < parts.selectors; ++i)
                    open[cols + i - parts.scales] &= 63;  // and the minimums
                if (pass == 0) {
                    lw_put_open_row(&w, f, panel, output, open);
                    continue;
                }
                memset(back, 0x5A, open_bytes);
                lw_take_open_row(&w, f, panel, output, back);
                same &= memcmp(open, back, open_bytes) == 0;
                if (type >= LW_CB2) {  // whose rows in files are stored rows
                    lw_store_open_row(f, cols, open, stored);
                    lw_open_row(type, f, cols, stored, back);
                    same &= memcmp(open, back, open_bytes) == 0;
                }
                lw_decode_output(&w, f, panel, output, weights);
                for (size_t k = 0; k < cols; ++k) {
                    const lw_coded_view view = lw_view_coded(f, &w, panel);
                    lw_group group;
                    lw_unpack_step(&view, output, k / lw_step_inputs(f), &group);
                    const float scaled = group.scale * (float)group.codes[k % lw_step_inputs(f)];
                    same &= weights[k] == scaled - lw_unpack_minimum(&view, output, k);
                    if (level == 0) first[output * cols + k] = weights[k];
                    same &= weights[k] == first[output * cols + k];
                }
            }
        expect(same, lw_level_names[level], lw_type_name(type));
    }
    free(panel);
    free(open);
    free(back);
    free(stored);
    free(weights);
    free(first);
}

// Memory is what one row waits for: a panel of these holds no bit that their blocks do not.
static void test_panels_take_no_more_than_files(void) {
    static const lw_type as_in_files[] = {LW_Q4_1, LW_Q5_0, LW_Q5_1, LW_Q2_K, LW_Q4_K, LW_Q5_K, LW_IQ4_NL, LW_MXFP4};
    for (size_t i = 0; i < sizeof as_in_files / sizeof *as_in_files; ++i)
        expect(lw_panel_bytes(as_in_files[i], 2048) == LW_PANEL * lw_row_bytes(as_in_files[i], 2048), "panel",
               lw_type_name(as_in_files[i]));
}

static lw_model* make_model(const char* isa, uint32_t threads) {
    const uniform_config config = {.n_layers = 1,
                                   .hidden_size = COLS,
                                   .ffn_size = ROWS,
                                   .n_heads = 2,
                                   .n_kv_heads = 1,
                                   .head_dim = 16,
                                   .vocab_size = ROWS,
                                   .context_length = 64,
                                   .tied_embeddings = 1,
                                   .rms_norm_eps = 1e-5f,
                                   .rope_theta = 10000};
    lw_model* model = NULL;
    if (uniform_create(&config, isa, threads, &model) != LW_OK) exit(2);
    return model;
}

// A tensor of ROWS rows, packed by a model; `data` of the result lies in aligned memory of the caller's.
static lw_packed_tensor pack_one(lw_type type, const char* isa, void** copy) {
    const uint64_t n_bytes = ROWS * lw_row_bytes(type, COLS);
    uint8_t* data = calloc(1, n_bytes);  // zeros are finite in every type
    if (data == NULL) exit(2);
    for (uint64_t i = 0; i < n_bytes; ++i)
        if (type == LW_F32 || type == LW_F16 || type == LW_BF16 ? i % 2 == 0 : i % 210 < 2) data[i] = (uint8_t)mix(i);
    lw_format f;
    const bool coded = lw_find_format(type, &f);
    const unsigned kept = coded && f.scale == LW_SCALE_E4M3 ? 0x3B : 0xBB;  // E4M3 has no sign
    for (uint64_t i = 0; coded && i < n_bytes; ++i) data[i] = (uint8_t)(mix(i) & kept);
    for (uint64_t row = 0; coded && f.super == LW_SUPER_ROW && row < ROWS; ++row)
        memset(data + row * (n_bytes / ROWS) + lw_stored_row_of(f, COLS).supers, 0, sizeof(float));
    lw_model* model = make_model(isa, 2);
    static const int8_t table[LW_TABLE_ENTRIES] = {-127, -90, -70, -50, -30, -15, -4,  3,
                                                   9,    14,  27,  46,  64,  88,  101, 127};
    const lw_tensor tensor = {data, n_bytes, type, ROWS, COLS, 0, table};
    lw_packed_tensor packed = {0};
    expect(lw_model_packed(model, LW_TOKEN_EMBEDDING, 0, &packed) == LW_ERR_ARGUMENT, "packed", "nothing is loaded");
    if (lw_model_load(model, LW_TOKEN_EMBEDDING, 0, &tensor, type) != LW_OK) exit(2);
    if (lw_model_packed(model, LW_TOKEN_EMBEDDING, 0, &packed) != LW_OK) exit(2);
    *copy = aligned_alloc(64, packed.n_bytes + 64);
    if (*copy == NULL) exit(2);
    memcpy(*copy, packed.data, packed.n_bytes);
    packed.data = *copy;
    lw_model_close(model);
    free(data);
    return packed;
}

static void test_load(lw_type type, const char* from, const char* to) {
    void *copy, *wanted;
    const lw_packed_tensor packed = pack_one(type, from, &copy), direct = pack_one(type, to, &wanted);
    lw_model* model = make_model(to, 3);
    for (int how = LW_LOAD_MAP; how <= LW_LOAD_COPY; ++how) {
        lw_packed_tensor found = {0};
        expect(lw_model_load_packed(model, &packed, 1, (lw_load)how) == LW_OK, to, "a packed tensor does not load");
        expect(lw_model_packed(model, LW_TOKEN_EMBEDDING, 0, &found) == LW_OK, to, "nothing was loaded");
        expect(found.checksum == direct.checksum && found.n_bytes == direct.n_bytes &&
                   memcmp(found.data, direct.data, found.n_bytes) == 0 &&
                   memcmp(found.table, direct.table, sizeof found.table) == 0,
               to, "packed bytes differ from those packed directly");
        const bool fits = lw_model_reads_layout(model, type, packed.layout);
        expect((found.data == packed.data) == (fits && how == LW_LOAD_MAP), to, "mapped where it must not, or not");
    }
    lw_model_close(model);
    free(copy);
    free(wanted);
}

// The rows of a tensor, whatever level it was packed for.
static void test_rows(lw_type type, const char* from, const char* to) {
    void *copy, *other;
    const lw_packed_tensor packed = pack_one(type, from, &copy), same = pack_one(type, to, &other);
    lw_format f;
    const uint64_t row_bytes = lw_find_format(type, &f) ? lw_stored_row_of(f, COLS).bytes : lw_row_bytes(type, COLS);
    uint8_t *rows = malloc(ROWS * row_bytes), *others = malloc(ROWS * row_bytes);
    if (rows == NULL || others == NULL) exit(2);
    expect(lw_packed_rows(&packed, rows, ROWS * row_bytes) == LW_OK, from, "no rows of a packed tensor");
    expect(lw_packed_rows(&same, others, ROWS * row_bytes) == LW_OK, to, "no rows of a packed tensor");
    expect(memcmp(rows, others, ROWS * row_bytes) == 0, to, "rows that depend on the level");
    lw_packed_tensor damaged = packed;
    damaged.checksum ^= 1;
    expect(lw_packed_rows(&damaged, rows, ROWS * row_bytes) == LW_ERR_FORMAT, from, "a wrong checksum passes");
    expect(lw_packed_rows(&packed, rows, ROWS * row_bytes - 1) == LW_ERR_ARGUMENT, from, "too little room passes");
    free(rows);
    free(others);
    free(copy);
    free(other);
}

static void refuse(lw_packed_tensor damaged, const char* says) {
    for (int how = LW_LOAD_MAP; how <= LW_LOAD_COPY; ++how) {
        lw_model* model = make_model("scalar", 2);
        const lw_status status = lw_model_load_packed(model, &damaged, 1, (lw_load)how);
        expect(status != LW_OK && strstr(lw_last_error(), says) != NULL, "a damaged tensor is not refused for", says);
        lw_model_close(model);
    }
}

static void test_damage(void) {
    void* copy;
    const lw_packed_tensor good = pack_one(LW_Q4_0, "scalar", &copy);
    lw_packed_tensor bad = good;
    bad.n_bytes -= 64;
    refuse(bad, "packed bytes for shape (37, 512)");
    bad = good;
    bad.rows = ROWS + 1;
    refuse(bad, "must be (37, 512)");
    bad = good;
    bad.type = LW_Q8_0;
    refuse(bad, "packed bytes for shape");
    bad.type = (lw_type)77;
    refuse(bad, "type 77");
    bad = good;
    memcpy(bad.layout, "c5", 3);
    refuse(bad, "layout 'c5'");
    memset(bad.layout, 'c', sizeof bad.layout);
    refuse(bad, "layout 'cccccccccccccccc'");
    bad = good;
    bad.checksum ^= 1;
    refuse(bad, "checksum");
    bad = good;
    bad.data = (const uint8_t*)good.data + 4;
    refuse(bad, "aligned to 64");
    bad.data = NULL;
    refuse(bad, "must not be NULL");
    bad = good;
    bad.role = LW_ROLE_COUNT;
    refuse(bad, "no tensor of role");
    bad = good;
    bad.name = "model.some.weight";
    for (uint64_t at = 0; at < good.n_bytes; at += 97) {  // every changed byte is noticed
        ((uint8_t*)copy)[at] ^= (uint8_t)(1 << at % 8);
        refuse(bad, "model.some.weight: checksum");
        ((uint8_t*)copy)[at] ^= (uint8_t)(1 << at % 8);
    }
    free(copy);
}

// A scale that is not finite, a row scale too long for exact products, a table that is missing or out of range.
static void test_bad_coded_tensors(void) {
    enum { N = COLS / 32 * 20 * ROWS };
    static uint8_t data[N];
    static const int8_t low[LW_TABLE_ENTRIES] = {-128};
    lw_model* model = make_model(NULL, 2);
    lw_tensor t = {data, ROWS * lw_row_bytes(LW_Q4_1, COLS), LW_Q4_1, ROWS, COLS, 0, NULL};
    expect(lw_model_load(model, LW_TOKEN_EMBEDDING, 0, &t, LW_Q4_1) == LW_OK, "coded", "zeros do not load");
    data[20 * (COLS / 32) * 3 + 3] = 0x7C;
    expect(lw_model_load(model, LW_TOKEN_EMBEDDING, 0, &t, LW_Q4_1) == LW_ERR_NONFINITE &&
               strstr(lw_last_error(), "row 3") != NULL,
           "coded", "an infinite minimum is not refused");
    memset(data, 0, sizeof data);
    t = (lw_tensor){data, ROWS * lw_row_bytes(LW_CB2, COLS), LW_CB2, ROWS, COLS, 0, NULL};
    expect(lw_model_load(model, LW_TOKEN_EMBEDDING, 0, &t, LW_CB2) == LW_ERR_ARGUMENT &&
               strstr(lw_last_error(), "cb2 needs a table") != NULL,
           "coded", "a missing table is not refused");
    t.table = low;
    expect(lw_model_load(model, LW_TOKEN_EMBEDDING, 0, &t, LW_CB2) == LW_ERR_FORMAT, "coded", "-128 is not refused");
    static const int8_t zeros[LW_TABLE_ENTRIES];
    t.table = zeros;
    expect(lw_model_load(model, LW_TOKEN_EMBEDDING, 0, &t, LW_CB2) == LW_OK, "coded", "cb2 does not load");
    data[t.n_bytes - 4] = 1;
    expect(lw_model_load(model, LW_TOKEN_EMBEDDING, 0, &t, LW_CB2) == LW_ERR_NONFINITE, "coded",
           "a row scale with too many bits is not refused");
    lw_model_close(model);
}

// On Arm, F16 whose values a bfloat16 holds becomes bfloat16, and no other: no value may change.
static void test_halves_as_bfloat(void) {
    enum { COUNT = ROWS * COLS };
    static uint16_t halves[COUNT];
    lw_tensor t = {halves, sizeof halves, LW_F16, ROWS, COLS, 0, NULL};
    for (size_t i = 0; i < COUNT; ++i) {
        const uint16_t bits = (uint16_t)mix(i) & 0xFBF8;  // eight significant bits; or a subnormal half
        halves[i] = (bits & 0x7C00) == 0 && i % 2 ? (uint16_t)((bits & 0x8000) | (bits & 0x3FF) >> 3) : bits;
    }
#if defined(__aarch64__)
    const lw_type held = LW_BF16;
#else
    const lw_type held = LW_F16;
#endif
    static const uint16_t odd[] = {0x3C04, 0x8203, 0x0101, 0xFC00};  // nine bits or more, and infinity
    for (size_t i = 0; i <= sizeof odd / sizeof *odd; ++i) {
        lw_model* model = make_model(NULL, 2);
        lw_packed_tensor packed = {0};
        const bool fits = i == sizeof odd / sizeof *odd;
        if (!fits) halves[COUNT - 1] = odd[i];
        const lw_status status = lw_model_load(model, LW_TOKEN_EMBEDDING, 0, &t, LW_F16);
        expect(status == (!fits && odd[i] == 0xFC00 ? LW_ERR_NONFINITE : LW_OK), "F16", "loads, or does not");
        expect(status != LW_OK || (lw_model_packed(model, LW_TOKEN_EMBEDDING, 0, &packed) == LW_OK &&
                                   packed.type == (fits ? held : LW_F16)),
               "F16", "held as the wrong type");
        expect((lw_model_load(model, LW_TOKEN_EMBEDDING, 0, &t, LW_BF16) == LW_OK) == fits, "BF16",
               "takes what it cannot hold, or does not take what it can");
        static uint16_t rows[COUNT];
        expect(status != LW_OK || lw_packed_rows(&packed, rows, sizeof rows) == LW_OK, "F16", "no rows");
        for (size_t k = 0; status == LW_OK && k < COUNT; ++k) {
            const float value = packed.type == LW_F16 ? lw_half_to_float(rows[k]) : lw_bfloat_to_float(rows[k]);
            expect(memcmp(&value, &(float){lw_half_to_float(halves[k])}, 4) == 0, "F16", "a value changed");
        }
        halves[COUNT - 1] = 0;
        lw_model_close(model);
    }
}

int main(void) {
    test_halves_as_bfloat();
    for (size_t i = 0; i < sizeof types / sizeof *types; ++i) {
        test_every_layout_holds_the_same_rows(types[i]);
        for (int from = 0; from < LW_LEVEL_COUNT; ++from)
            for (int to = 0; to < LW_LEVEL_COUNT; ++to)
                if (lw_cpu_levels() >> from & lw_cpu_levels() >> to & 1) {
                    test_load(types[i], lw_level_names[from], lw_level_names[to]);
                    test_rows(types[i], lw_level_names[from], lw_level_names[to]);
                }
    }
    for (size_t i = 0; i < sizeof coded_types / sizeof *coded_types; ++i) {
        const lw_type type = coded_types[i];
        test_coded_rows(type, COLS);
        if (lw_row_bytes(type, 288) != 0) test_coded_rows(type, 288);
        for (int from = 0; from < LW_LEVEL_COUNT; ++from)
            for (int to = 0; to < LW_LEVEL_COUNT; ++to)
                if (lw_cpu_levels() >> from & lw_cpu_levels() >> to & 1) {
                    test_load(type, lw_level_names[from], lw_level_names[to]);
                    test_rows(type, lw_level_names[from], lw_level_names[to]);
                }
    }
    test_panels_take_no_more_than_files();
    test_bad_coded_tensors();
    test_damage();
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
