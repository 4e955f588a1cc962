// Rows of files to packed panels (quantizer/FORMAT.md, "Packed layouts").
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/unpack.h"
#include "model/coded.h"
#include "model/gguf_grids.h"
#include "model/model.h"
#include "model/panels.h"
#include "model/quantize.h"
#include "status.h"

static bool is_float(lw_type type) { return type == LW_F32 || type == LW_F16 || type == LW_BF16; }

uint64_t lw_row_bytes(lw_type type, uint32_t cols) {
    switch (type) {
        case LW_F32:
            return (uint64_t)cols * 4;
        case LW_F16:
        case LW_BF16:
            return (uint64_t)cols * 2;
        case LW_Q4_0:
            return cols % LW_GROUP ? 0 : (uint64_t)cols / LW_GROUP * LW_Q4_BLOCK_BYTES;
        case LW_Q8_0:
            return cols % LW_GROUP ? 0 : (uint64_t)cols / LW_GROUP * LW_Q8_BLOCK_BYTES;
        case LW_Q6_K:
            return cols % LW_Q6_BLOCK ? 0 : (uint64_t)cols / LW_Q6_BLOCK * LW_Q6_BLOCK_BYTES;
        default: {
            lw_format f;
            if (lw_is_of_files(type)) return lw_grid_row_bytes(type, cols);
            return lw_find_format(type, &f) ? lw_coded_row_bytes(type, f, cols) : 0;
        }
    }
}

static float load_float(lw_type type, const uint8_t* row, size_t i) {
    if (type == LW_F32) {
        float value;
        memcpy(&value, row + 4 * i, 4);
        return value;
    }
    uint16_t bits;
    memcpy(&bits, row + 2 * i, 2);
    return type == LW_F16 ? lw_half_to_float(bits) : lw_bfloat_to_float(bits);
}

// Value i of a row of floats or of Q8_0.
static float load_value(lw_type type, const uint8_t* row, size_t i) {
    if (type != LW_Q8_0) return load_float(type, row, i);
    const uint8_t* block = row + i / LW_GROUP * LW_Q8_BLOCK_BYTES;
    uint16_t scale;
    memcpy(&scale, block, 2);
    return lw_half_to_float(scale) * (float)(int8_t)block[2 + i % LW_GROUP];
}

// What F16 becomes only if no value changes (lw_fits_bfloat).
static bool is_narrowed(lw_type from, lw_type to) { return from == LW_F16 && to == LW_BF16; }

static bool can_become(lw_type from, lw_type to) {
    if (is_narrowed(from, to)) return true;
    if (lw_is_of_files(from)) return to == lw_held_type(from);
    return (is_float(from) && (to == LW_Q4_0 || to == LW_Q8_0)) || (from == LW_Q8_0 && to == LW_Q4_0);
}

typedef struct pack_job {
    const lw_tensor* tensor;
    lw_matrix* out;
    uint8_t* data;
    const lw_pool* pool;
    lw_panel_work work;
    atomic_uint bad_row;  // 1 + index of a row with a value that the type cannot hold, 0 = none
} pack_job;

// Quantizes a row of floats or of Q8_0 to blocks of the target type; false when a block cannot hold its values.
static bool quantize_row(const lw_tensor* t, lw_type target, const uint8_t* row, uint8_t* blocks) {
    for (size_t first = 0; first < t->cols; first += LW_GROUP) {
        float x[LW_GROUP];
        for (size_t i = 0; i < LW_GROUP; ++i) x[i] = load_value(t->type, row, first + i);
        const bool ok = target == LW_Q4_0 ? lw_quantize_q4_block(x, blocks) : lw_quantize_q8_block(x, blocks);
        if (!ok) return false;
        blocks += target == LW_Q4_0 ? LW_Q4_BLOCK_BYTES : LW_Q8_BLOCK_BYTES;
    }
    return true;
}

static uint32_t bits_of_half(const uint8_t* row, size_t i) {
    const float value = load_float(LW_F16, row, i);
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}

// True if a bfloat16 holds each value of a row of F16.
static bool row_fits_bfloat(const uint8_t* row, uint32_t cols) {
    uint32_t bits = 0;
    for (size_t i = 0; i < cols; ++i) bits |= bits_of_half(row, i);
    return (bits & 0xFFFF) == 0;
}

// Returns false if a value changes.
static bool narrow_row(const lw_tensor* t, const uint8_t* row, uint8_t* out) {
    uint32_t all = 0;
    for (size_t i = 0; i < t->cols; ++i) {
        const uint32_t bits = bits_of_half(row, i);
        const uint16_t upper = (uint16_t)(bits >> 16);
        memcpy(out + 2 * i, &upper, 2);
        all |= bits;
    }
    return (all & 0xFFFF) == 0;
}

static bool row_is_finite(const lw_tensor* t, const uint8_t* row) {
    const uint64_t bytes = lw_row_bytes(t->type, t->cols);
    switch (t->type) {
        case LW_F32:
            return lw_halves_are_finite(row + 2, bytes - 2, 4, LW_BFLOAT_EXPONENT);
        case LW_BF16:
            return lw_halves_are_finite(row, bytes, 2, LW_BFLOAT_EXPONENT);
        case LW_F16:
            return lw_halves_are_finite(row, bytes, 2, LW_HALF_EXPONENT);
        case LW_Q4_0:
            return lw_halves_are_finite(row, bytes, LW_Q4_BLOCK_BYTES, LW_HALF_EXPONENT);
        case LW_Q8_0:
            return lw_halves_are_finite(row, bytes, LW_Q8_BLOCK_BYTES, LW_HALF_EXPONENT);
        case LW_Q6_K:
            return lw_halves_are_finite(row + 208, bytes - 208, LW_Q6_BLOCK_BYTES, LW_HALF_EXPONENT);
        default:
            return false;
    }
}

// The source row for output `index`, in the target's type: the source's own bytes, or `blocks`.
static const uint8_t* prepare_row(pack_job* job, uint32_t index, uint8_t* blocks) {
    const lw_tensor* t = job->tensor;
    const uint32_t source = lw_rope_source_row(index, t->rows, t->rope_heads);
    const uint8_t* row = (const uint8_t*)t->data + source * lw_row_bytes(t->type, t->cols);
    bool ok = row_is_finite(t, row);
    if (ok && job->out->type != t->type) {
        ok = is_narrowed(t->type, job->out->type) ? narrow_row(t, row, blocks)
                                                  : quantize_row(t, job->out->type, row, blocks);
        row = blocks;
    }
    if (!ok) atomic_store(&job->bad_row, source + 1);
    return ok ? row : NULL;
}

// Fills the row of an output past the last row with zeros, which in Q4_0 are code 8 with scale 0.
static void fill_zero_row(const lw_matrix* w, uint8_t* blocks) {
    memset(blocks, w->type == LW_Q4_0 ? 0x88 : 0, lw_row_bytes(w->type, w->cols));
    for (size_t g = 0; w->type == LW_Q4_0 && g < w->groups; ++g) memset(blocks + g * LW_Q4_BLOCK_BYTES, 0, 2);
}

static bool pack_panel(pack_job* job, size_t panel, uint8_t* blocks) {
    const lw_matrix* w = job->out;
    const uint64_t row_bytes = lw_row_bytes(w->type, w->cols);
    const uint8_t* rows[LW_PANEL];
    for (size_t i = 0; i < LW_PANEL; ++i, blocks += row_bytes) {
        const size_t row = panel * LW_PANEL + i;
        rows[i] = blocks;
        if (row >= w->rows)
            fill_zero_row(w, blocks);
        else if ((rows[i] = prepare_row(job, (uint32_t)row, blocks)) == NULL)
            return false;
    }
    lw_panel_pack(w, job->data + panel * w->panel_bytes, rows);
    return true;
}

// The same for coded types; `open` has room for an open row.
static bool pack_coded_panel(pack_job* job, lw_format f, size_t index, uint8_t* open) {
    const lw_matrix* w = job->out;
    const lw_tensor* t = job->tensor;
    uint8_t* panel = job->data + index * w->panel_bytes;
    memset(panel, 0, w->panel_bytes);
    for (size_t output = 0; output < LW_PANEL; ++output) {
        const size_t row = index * LW_PANEL + output;
        if (row >= w->rows) {
            lw_open_zero_row(f, w->cols, open);
        } else {
            const uint32_t source = lw_rope_source_row((uint32_t)row, t->rows, t->rope_heads);
            lw_open_row(t->type, f, t->cols, (const uint8_t*)t->data + source * lw_row_bytes(t->type, t->cols), open);
            if (!lw_open_row_is_valid(f, t->cols, open)) {
                atomic_store(&job->bad_row, source + 1);
                return false;
            }
        }
        lw_put_open_row(w, f, panel, output, open);
    }
    return true;
}

static void pack_worker(void* context, unsigned thread) {
    pack_job* job = context;
    lw_format f;
    const bool coded = lw_find_format(job->out->type, &f);
    const uint64_t row_bytes = lw_row_bytes(job->out->type, job->out->cols);  // not 0, as check_tensor has checked
    const size_t room = coded ? lw_open_row_bytes(f, job->out->cols) : LW_PANEL * row_bytes;
    uint8_t* rows = row_bytes > 0 ? malloc(room) : NULL;
    if (rows == NULL) {
        atomic_store(&job->bad_row, UINT32_MAX);
        return;
    }
    size_t panel;
    while (lw_panel_take(&job->work, job->pool, thread, job->out->panels, &panel))
        if (!(coded ? pack_coded_panel(job, f, panel, rows) : pack_panel(job, panel, rows))) break;
    free(rows);
}

typedef struct fit_job {
    const lw_tensor* tensor;
    lw_work rows;
    atomic_bool unfit;
} fit_job;

static void fit_worker(void* context, unsigned thread) {
    (void)thread;
    fit_job* job = context;
    const lw_tensor* t = job->tensor;
    size_t row, end;
    while (!atomic_load(&job->unfit) && lw_work_take(&job->rows, t->rows, 1, &row, &end)) {
        const uint8_t* values = (const uint8_t*)t->data + row * lw_row_bytes(LW_F16, t->cols);
        if (!row_fits_bfloat(values, t->cols)) atomic_store(&job->unfit, true);
    }
}

bool lw_fits_bfloat(lw_pool* pool, const lw_tensor* tensor) {
    if (tensor->type != LW_F16 || tensor->n_bytes != tensor->rows * lw_row_bytes(LW_F16, tensor->cols)) return false;
    fit_job job = {.tensor = tensor};
    lw_pool_run(pool, fit_worker, &job);
    return !atomic_load(&job.unfit);
}

// Finds the 16 table entries of a type with its own or a fixed table.
static lw_status find_table(const char* name, const lw_tensor* t, lw_type target, int8_t table[LW_TABLE_ENTRIES]) {
    lw_format f;
    memset(table, 0, LW_TABLE_ENTRIES);
    if (!lw_find_format(target, &f) || (f.map != LW_MAP_TABLE && f.map != LW_MAP_TRELLIS)) return LW_OK;
    const int8_t* found = lw_fixed_table(t->type) != NULL ? lw_fixed_table(t->type) : t->table;
    if (found == NULL) return lw_fail(LW_ERR_ARGUMENT, "%s: type %s needs a table", name, lw_type_name(t->type));
    for (size_t i = 0; i < LW_TABLE_ENTRIES; ++i)
        if (found[i] == -128)
            return lw_fail(LW_ERR_FORMAT, "%s: entry %zu of the table is -128, must be -127 to 127", name, i);
    memcpy(table, found, LW_TABLE_ENTRIES);
    return LW_OK;
}

static lw_status check_tensor(const char* name, const lw_tensor* t, lw_type target) {
    const uint64_t row_bytes = lw_row_bytes(t->type, t->cols);
    if (row_bytes == 0)
        return lw_fail(LW_ERR_FORMAT, "%s: rows of %u weights cannot be stored as %s", name, t->cols,
                       lw_type_name(t->type));
    if (t->n_bytes != row_bytes * t->rows)
        return lw_fail(LW_ERR_FORMAT, "%s: %llu bytes for shape (%u, %u) of %s, must be %llu", name,
                       (unsigned long long)t->n_bytes, t->rows, t->cols, lw_type_name(t->type),
                       (unsigned long long)(row_bytes * t->rows));
    if (lw_is_of_files(t->type) && target != lw_held_type(t->type))
        return lw_fail(LW_ERR_ARGUMENT, "%s: %s is held as %s, not as %s", name, lw_type_name(t->type),
                       lw_type_name(lw_held_type(t->type)), lw_type_name(target));
    if (target != t->type && !can_become(t->type, target))
        return lw_fail(LW_ERR_ARGUMENT,
                       "%s: cannot turn %s into %s; only F32, F16 and BF16 become Q4_0 or Q8_0, and Q8_0 becomes Q4_0",
                       name, lw_type_name(t->type), lw_type_name(target));
    if (lw_row_bytes(target, t->cols) == 0)
        return lw_fail(LW_ERR_FORMAT, "%s: rows of %u weights cannot be stored as %s, which needs a multiple of %d",
                       name, t->cols, lw_type_name(target), LW_GROUP);
    return LW_OK;
}

lw_matrix lw_matrix_of(lw_type type, lw_layout layout, uint32_t rows, uint32_t cols) {
    return (lw_matrix){.type = type,
                       .layout = layout,
                       .rows = rows,
                       .cols = cols,
                       .panels = (rows + LW_PANEL - 1) / LW_PANEL,
                       .groups = (cols + LW_GROUP - 1) / LW_GROUP,
                       .panel_bytes = lw_panel_bytes(type, cols)};
}

lw_status lw_pack_matrix(lw_level level, lw_pool* pool, lw_arena* arena, const char* name, const lw_tensor* tensor,
                         lw_type target, lw_matrix* out) {
    LW_RETURN_IF_FAILED(check_tensor(name, tensor, target));
    if (tensor->rope_heads != 0 && tensor->rows % (2 * (uint64_t)tensor->rope_heads) != 0)
        return lw_fail(LW_ERR_FORMAT, "%s: %u rows do not make %u heads of even size", name, tensor->rows,
                       tensor->rope_heads);
    lw_matrix packed = lw_matrix_of(target, lw_level_layouts[level], tensor->rows, tensor->cols);
    const size_t bytes = packed.panels * packed.panel_bytes;
    uint8_t* data = lw_arena_take(arena, bytes);
    if (data == NULL) return lw_fail(LW_ERR_MEMORY, "%s: no memory for %zu bytes of packed weights", name, bytes);
    packed.data = data;
    LW_RETURN_IF_FAILED(find_table(name, tensor, target, packed.table));
    pack_job job = {.tensor = tensor, .out = &packed, .data = data, .pool = pool};
    lw_pool_run(pool, pack_worker, &job);
    const unsigned bad = atomic_load(&job.bad_row);
    if (bad != 0) {
        if (bad == UINT32_MAX) return lw_fail(LW_ERR_MEMORY, "%s: no memory to pack a row", name);
        return lw_fail(LW_ERR_NONFINITE, "%s: row %u holds NaN, infinity or values that %s cannot hold", name, bad - 1,
                       lw_type_name(target));
    }
    *out = packed;
    return LW_OK;
}

lw_status lw_copy_vector(const char* name, const lw_tensor* tensor, float** out) {
    if (!is_float(tensor->type))
        return lw_fail(LW_ERR_FORMAT, "%s: type %s, a vector must be F32, F16 or BF16", name,
                       lw_type_name(tensor->type));
    LW_RETURN_IF_FAILED(check_tensor(name, tensor, tensor->type));
    if (tensor->rope_heads != 0 && tensor->cols % (2 * (uint64_t)tensor->rope_heads) != 0)
        return lw_fail(LW_ERR_FORMAT, "%s: %u values do not make %u heads of even size", name, tensor->cols,
                       tensor->rope_heads);
    float* values = malloc(tensor->cols * sizeof(float));
    if (values == NULL) return lw_fail(LW_ERR_MEMORY, "%s: no memory for %u values", name, tensor->cols);
    for (uint32_t i = 0; i < tensor->cols; ++i) {
        const uint32_t source = lw_rope_source_row(i, tensor->cols, tensor->rope_heads);
        values[i] = load_float(tensor->type, tensor->data, source);
        if (!isfinite(values[i])) {
            free(values);
            return lw_fail(LW_ERR_NONFINITE, "%s: value %u is NaN or infinite", name, source);
        }
    }
    free(*out);
    *out = values;
    return LW_OK;
}

// `chunk` is the layout's chunk as a constant, so that divisions by it become shifts.
static inline __attribute__((always_inline)) void unpack_quantized(const lw_matrix* matrix, uint8_t chunk,
                                                                   const uint8_t* panel, size_t output, float* out) {
    lw_matrix known = *matrix;
    known.layout.chunk = chunk;
    const lw_matrix* w = &known;
    const size_t size = w->type == LW_Q6_K ? 16 : LW_GROUP;
    for (size_t g = 0; g < w->cols / size; ++g) {
        lw_group group;
        if (w->type == LW_Q4_0)
            lw_unpack_q4(w, panel, output, g, &group);
        else if (w->type == LW_Q8_0)
            lw_unpack_q8(w, panel, output, g, &group);
        else
            lw_unpack_q6(w, panel, output, g, &group);
        for (size_t i = 0; i < size; ++i) out[g * size + i] = group.scale * (float)group.codes[i];
    }
}

void lw_unpack_row(const lw_matrix* w, size_t row, float* out) {
    const uint8_t* panel = w->data + row / LW_PANEL * w->panel_bytes;
    const size_t output = row % LW_PANEL;
    if (is_float(w->type)) {
        for (size_t k = 0; k < w->cols; ++k) out[k] = load_float(w->type, panel, k * LW_PANEL + output);
        return;
    }
    lw_format f;
    if (lw_find_format(w->type, &f)) {
        lw_decode_output(w, f, panel, output, out);
        return;
    }
    switch (w->layout.chunk) {
        case 2:
            unpack_quantized(w, 2, panel, output, out);
            break;
        case 4:
            unpack_quantized(w, 4, panel, output, out);
            break;
        default:
            unpack_quantized(w, 8, panel, output, out);
            break;
    }
}

void lw_decode_panel(const lw_matrix* w, size_t panel, float* out, float* row) {
    for (size_t output = 0; output < LW_PANEL; ++output) {  // outputs past the matrix's last row exist and are zero
        lw_unpack_row(w, panel * LW_PANEL + output, row);
        for (size_t k = 0; k < w->cols; ++k) out[k * LW_PANEL + output] = row[k];
    }
}
