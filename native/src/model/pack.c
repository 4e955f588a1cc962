// From file rows to packed panels (quantizer/FORMAT.md, "Packed layouts").
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/unpack.h"
#include "model/model.h"
#include "model/quantize.h"
#include "status.h"

static const char* type_name(lw_type type) {
    switch (type) {
        case LW_F32:
            return "F32";
        case LW_F16:
            return "F16";
        case LW_BF16:
            return "BF16";
        case LW_Q4_0:
            return "Q4_0";
        case LW_Q8_0:
            return "Q8_0";
        case LW_Q6_K:
            return "Q6_K";
    }
    return "unknown";
}

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
    }
    return 0;
}

static void put_q4(const lw_matrix* w, uint8_t* panel, size_t output, const uint8_t* row) {
    const size_t chunk = w->layout.chunk;
    const uint8_t toggle = w->layout.q4_toggled ? 0x88 : 0;
    for (size_t g = 0; g < w->groups; ++g, row += LW_Q4_BLOCK_BYTES) {
        uint8_t* base = panel + g * LW_Q4_GROUP_BYTES;
        // A file byte holds inputs k and k + 16, and so does a packed byte: the chunks of either half lie together.
        for (size_t k = 0; k < LW_GROUP / 2; ++k)
            // NOLINTNEXTLINE(clang-analyzer-core.*): it cannot see that w->groups is cols / LW_GROUP
            base[(k / chunk * LW_PANEL + output) * chunk + k % chunk] = row[2 + k] ^ toggle;
        memcpy(base + LW_PANEL * LW_GROUP / 2 + 2 * output, row, 2);
    }
}

static void put_q8(const lw_matrix* w, uint8_t* panel, size_t output, const uint8_t* row) {
    const size_t chunk = w->layout.chunk;
    const uint8_t bias = w->layout.q8_biased ? 0x80 : 0;
    for (size_t g = 0; g < w->groups; ++g, row += LW_Q8_BLOCK_BYTES) {
        uint8_t* base = panel + g * LW_Q8_GROUP_BYTES;
        for (size_t k = 0; k < LW_GROUP; ++k)
            // NOLINTNEXTLINE(clang-analyzer-core.*): it cannot see that w->groups is cols / LW_GROUP
            base[(k / chunk * LW_PANEL + output) * chunk + k % chunk] = row[2 + k] ^ bias;
        memcpy(base + LW_PANEL * LW_GROUP + 2 * output, row, 2);
    }
}

// A file block is 128 low bytes, 64 bytes of upper bit pairs, 16 int8 scales, f16 scale. In each half of 128 inputs,
// byte l of the low part holds inputs l and l + 64, and byte l % 32 of the upper part inputs l % 32 + {0, 32, 64, 96}.
static void read_q6_codes(const uint8_t* block, uint8_t* codes) {
    for (size_t k = 0; k < LW_Q6_BLOCK; ++k) {
        const size_t half = k / 128, i = k % 128;
        const int low = block[half * 64 + i % 64] >> (i / 64 * 4) & 15;
        const int high = block[128 + half * 32 + i % 32] >> (i / 32 * 2) & 3;
        codes[k] = (uint8_t)(low | high << 4);
    }
}

// The two segments of a file block each get its f16 scale.
static void put_q6(const lw_matrix* w, uint8_t* panel, size_t output, const uint8_t* row) {
    for (size_t b = 0; b < w->cols / LW_Q6_BLOCK; ++b, row += LW_Q6_BLOCK_BYTES) {
        uint8_t codes[LW_Q6_BLOCK];
        read_q6_codes(row, codes);
        for (size_t g = 0; g < LW_Q6_BLOCK / LW_GROUP; ++g) {
            const size_t segment = (b * LW_Q6_BLOCK + g * LW_GROUP) / LW_SEGMENT;
            uint8_t* super = panel + segment * LW_Q6_SUPER_BYTES;
            uint8_t* low = super + g % LW_SEGMENT_GROUPS * LW_Q6_GROUP_BYTES;
            uint8_t* high = low + LW_Q6_LOW_BYTES;
            for (size_t k = 0; k < LW_GROUP; ++k) {
                const uint8_t code = codes[g * LW_GROUP + k];
                low[lw_packed_byte(w->layout, output, k, 2)] |=
                    (uint8_t)((code & 15) << (4 * lw_packed_part(w->layout, k, 2)));
                high[lw_packed_byte(w->layout, output, k, 4)] |=
                    (uint8_t)(code >> 4 << (2 * lw_packed_part(w->layout, k, 4)));
            }
            high[LW_Q6_HIGH_BYTES + output] = row[192 + 2 * g];
            high[LW_Q6_HIGH_BYTES + LW_PANEL + output] = row[193 + 2 * g];
            memcpy(super + LW_SEGMENT_GROUPS * LW_Q6_GROUP_BYTES + 2 * output, row + 208, 2);
        }
    }
}

static void put_float(const lw_matrix* w, uint8_t* panel, size_t output, const uint8_t* row) {
    const size_t bytes = w->type == LW_F32 ? 4 : 2;
    for (size_t k = 0; k < w->cols; ++k) memcpy(panel + (k * LW_PANEL + output) * bytes, row + k * bytes, bytes);
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

typedef struct pack_job {
    const lw_tensor* tensor;
    lw_matrix* out;
    uint8_t* data;
    lw_work panels;
    atomic_uint bad_row;  // 1 + a row with a value that cannot be held, 0 = none
} pack_job;

// A float row as blocks of the target type; false when a block cannot hold its values.
static bool quantize_row(const lw_tensor* t, lw_type target, const uint8_t* row, uint8_t* blocks) {
    for (size_t first = 0; first < t->cols; first += LW_GROUP) {
        float x[LW_GROUP];
        for (size_t i = 0; i < LW_GROUP; ++i) x[i] = load_float(t->type, row, first + i);
        const bool ok = target == LW_Q4_0 ? lw_quantize_q4_block(x, blocks) : lw_quantize_q8_block(x, blocks);
        if (!ok) return false;
        blocks += target == LW_Q4_0 ? LW_Q4_BLOCK_BYTES : LW_Q8_BLOCK_BYTES;
    }
    return true;
}

static bool row_is_finite(const lw_tensor* t, const uint8_t* row) {
    const size_t step = t->type == LW_Q4_0   ? LW_Q4_BLOCK_BYTES
                        : t->type == LW_Q8_0 ? LW_Q8_BLOCK_BYTES
                        : t->type == LW_Q6_K ? LW_Q6_BLOCK_BYTES
                                             : 0;
    if (step == 0) {
        bool finite = true;
        for (size_t i = 0; i < t->cols; ++i) finite &= (bool)isfinite(load_float(t->type, row, i));
        return finite;
    }
    const uint64_t bytes = lw_row_bytes(t->type, t->cols);
    for (size_t at = t->type == LW_Q6_K ? 208 : 0; at < bytes; at += step) {
        uint16_t bits;
        memcpy(&bits, row + at, 2);
        if ((bits & 0x7C00) == 0x7C00) return false;
    }
    return true;
}

static void put_row(pack_job* job, uint8_t* panel, size_t output, uint32_t index, uint8_t* blocks) {
    const lw_tensor* t = job->tensor;
    const lw_matrix* w = job->out;
    const uint32_t source = lw_rope_source_row(index, t->rows, t->rope_heads);
    const uint8_t* row = (const uint8_t*)t->data + source * lw_row_bytes(t->type, t->cols);
    bool ok = row_is_finite(t, row);
    if (ok && w->type != t->type) {
        ok = quantize_row(t, w->type, row, blocks);
        row = blocks;
    }
    if (!ok) {
        atomic_store(&job->bad_row, source + 1);
        return;
    }
    switch (w->type) {
        case LW_Q4_0:
            put_q4(w, panel, output, row);
            break;
        case LW_Q8_0:
            put_q8(w, panel, output, row);
            break;
        case LW_Q6_K:
            put_q6(w, panel, output, row);
            break;
        default:
            put_float(w, panel, output, row);
            break;
    }
}

// Outputs past the last row: Q4_0 codes of zero weight are 8, the rest is zero bytes.
static void put_padding(const lw_matrix* w, uint8_t* panel, size_t output, uint8_t* blocks) {
    memset(blocks, w->type == LW_Q4_0 ? 0x88 : 0, lw_row_bytes(w->type, w->cols));
    if (w->type == LW_Q4_0)
        for (size_t g = 0; g < w->groups; ++g) memset(blocks + g * LW_Q4_BLOCK_BYTES, 0, 2);
    if (w->type == LW_Q4_0) put_q4(w, panel, output, blocks);
    if (w->type == LW_Q8_0) put_q8(w, panel, output, blocks);
}

static void pack_worker(void* context, unsigned thread) {
    (void)thread;
    pack_job* job = context;
    const lw_matrix* w = job->out;
    uint8_t* blocks = malloc(lw_row_bytes(w->type, w->cols) + 1);
    size_t begin, end;
    while (lw_work_take(&job->panels, w->panels, 1, &begin, &end)) {
        uint8_t* panel = job->data + begin * w->panel_bytes;
        for (size_t i = 0; i < LW_PANEL; ++i) {
            const size_t row = begin * LW_PANEL + i;
            if (blocks == NULL)
                atomic_store(&job->bad_row, UINT32_MAX);
            else if (row < w->rows)
                put_row(job, panel, i, (uint32_t)row, blocks);
            else
                put_padding(w, panel, i, blocks);
        }
    }
    free(blocks);
}

static lw_status check_tensor(const char* name, const lw_tensor* t, lw_type target) {
    const uint64_t row_bytes = lw_row_bytes(t->type, t->cols);
    if (row_bytes == 0)
        return lw_fail(LW_ERR_FORMAT, "%s: rows of %u weights cannot be stored as %s", name, t->cols,
                       type_name(t->type));
    if (t->n_bytes != row_bytes * t->rows)
        return lw_fail(LW_ERR_FORMAT, "%s: %llu bytes for shape (%u, %u) of %s, must be %llu", name,
                       (unsigned long long)t->n_bytes, t->rows, t->cols, type_name(t->type),
                       (unsigned long long)(row_bytes * t->rows));
    if (target != t->type && !(is_float(t->type) && (target == LW_Q4_0 || target == LW_Q8_0)))
        return lw_fail(LW_ERR_ARGUMENT, "%s: cannot turn %s into %s; only F32, F16 and BF16 become Q4_0 or Q8_0", name,
                       type_name(t->type), type_name(target));
    if (lw_row_bytes(target, t->cols) == 0)
        return lw_fail(LW_ERR_FORMAT, "%s: rows of %u weights cannot be stored as %s, which needs a multiple of %d",
                       name, t->cols, type_name(target), LW_GROUP);
    return LW_OK;
}

lw_status lw_pack_matrix(lw_model* model, const char* name, const lw_tensor* tensor, lw_type target, lw_packed* out) {
    LW_RETURN_IF_FAILED(check_tensor(name, tensor, target));
    if (tensor->rope_heads != 0 && tensor->rows % (2 * tensor->rope_heads) != 0)
        return lw_fail(LW_ERR_FORMAT, "%s: %u rows do not make %u heads of even size", name, tensor->rows,
                       tensor->rope_heads);
    lw_packed packed = {.matrix = {.type = target,
                                   .layout = lw_level_layouts[model->level],
                                   .rows = tensor->rows,
                                   .cols = tensor->cols,
                                   .panels = (tensor->rows + LW_PANEL - 1) / LW_PANEL,
                                   .groups = (tensor->cols + LW_GROUP - 1) / LW_GROUP,
                                   .panel_bytes = lw_panel_bytes(target, tensor->cols)}};
    const size_t bytes = packed.matrix.panels * packed.matrix.panel_bytes;
    if (!lw_block_map(bytes, &packed.block))
        return lw_fail(LW_ERR_MEMORY, "%s: no memory for %zu bytes of packed weights", name, bytes);
    packed.matrix.data = packed.block.data;
    pack_job job = {.tensor = tensor, .out = &packed.matrix, .data = packed.block.data};
    lw_pool_run(model->pool, pack_worker, &job);
    const unsigned bad = atomic_load(&job.bad_row);
    if (bad != 0) {
        lw_packed_free(&packed);
        if (bad == UINT32_MAX) return lw_fail(LW_ERR_MEMORY, "%s: no memory to pack a row", name);
        return lw_fail(LW_ERR_NONFINITE, "%s: row %u holds NaN, infinity or values too large for %s", name, bad - 1,
                       type_name(target));
    }
    lw_packed_free(out);
    *out = packed;
    return LW_OK;
}

lw_status lw_copy_vector(const char* name, const lw_tensor* tensor, float** out) {
    if (!is_float(tensor->type))
        return lw_fail(LW_ERR_FORMAT, "%s: type %s, a vector must be F32, F16 or BF16", name, type_name(tensor->type));
    LW_RETURN_IF_FAILED(check_tensor(name, tensor, tensor->type));
    if (tensor->rope_heads != 0 && tensor->cols % (2 * tensor->rope_heads) != 0)
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

void lw_packed_free(lw_packed* packed) {
    lw_block_unmap(&packed->block);
    *packed = (lw_packed){0};
}

void lw_unpack_row(const lw_matrix* w, size_t row, float* out) {
    const uint8_t* panel = w->data + row / LW_PANEL * w->panel_bytes;
    const size_t output = row % LW_PANEL;
    if (is_float(w->type)) {
        for (size_t k = 0; k < w->cols; ++k) out[k] = load_float(w->type, panel, k * LW_PANEL + output);
        return;
    }
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
