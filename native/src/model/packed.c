// Tensors of packed files: used in place, copied, or repacked for another layout (quantizer/FORMAT.md §4).
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/layout.h"
#include "model/coded.h"
#include "model/model.h"
#include "model/panels.h"
#include "status.h"

// Sum over the words of a tensor of word * (2 * index + 1), the last word padded with zeros.
static uint64_t sum_words(const uint8_t* data, uint64_t n_bytes, uint64_t first_word) {
    uint64_t sum = 0, index = first_word, at = 0;
    for (; at + 8 <= n_bytes; at += 8, ++index) {
        uint64_t word;
        memcpy(&word, data + at, 8);
        sum += word * (2 * index + 1);
    }
    if (at < n_bytes) {
        uint64_t word = 0;
        memcpy(&word, data + at, n_bytes - at);
        sum += word * (2 * index + 1);
    }
    return sum;
}

typedef struct packed_job {
    const lw_matrix* from;  // the matrix in the file
    lw_matrix* to;
    uint8_t* data;  // data of `to`; NULL when the file's bytes are used in place
    const lw_pool* pool;
    lw_panel_work work;
    bool repack;
    atomic_ullong sum;
    atomic_bool no_memory;
} packed_job;

static void take_panel(packed_job* job, size_t panel, uint8_t* const rows[LW_PANEL]) {
    const size_t bytes = job->from->panel_bytes;
    const uint8_t* from = job->from->data + panel * bytes;
    lw_format f;
    if (job->repack && lw_find_format(job->to->type, &f)) {
        uint8_t* to = job->data + panel * bytes;
        memset(to, 0, bytes);
        for (size_t output = 0; output < LW_PANEL; ++output) {
            lw_take_open_row(job->from, f, from, output, rows[0]);
            lw_put_open_row(job->to, f, to, output, rows[0]);
        }
    } else if (job->repack) {
        lw_panel_unpack(job->from, from, rows);
        lw_panel_pack(job->to, job->data + panel * bytes, (const uint8_t* const*)rows);
    } else if (job->data != NULL) {
        memcpy(job->data + panel * bytes, from, bytes);
    }
}

static void take_worker(void* context, unsigned thread) {
    packed_job* job = context;
    lw_format f;
    const bool coded = lw_find_format(job->from->type, &f);
    const size_t row_bytes =
        coded ? lw_open_row_bytes(f, job->from->cols) : lw_row_bytes(job->from->type, job->from->cols);
    const size_t bytes = job->from->panel_bytes;
    uint8_t* rows[LW_PANEL] = {malloc(job->repack ? LW_PANEL * row_bytes : 1)};
    if (rows[0] == NULL) {
        atomic_store(&job->no_memory, true);
        return;
    }
    for (size_t i = 1; job->repack && i < LW_PANEL; ++i) rows[i] = rows[0] + i * row_bytes;
    uint64_t sum = 0;
    size_t panel;
    while (lw_panel_take(&job->work, job->pool, thread, job->from->panels, &panel)) {
        sum += sum_words(job->from->data + panel * bytes, bytes, panel * bytes / 8);
        take_panel(job, panel, rows);
    }
    atomic_fetch_add(&job->sum, sum);
    free(rows[0]);
}

static lw_status check_sum(const char* name, uint64_t found, uint64_t wanted) {
    if (found == wanted) return LW_OK;
    return lw_fail(LW_ERR_FORMAT, "%s: checksum %016llx, must be %016llx: the file is damaged", name,
                   (unsigned long long)found, (unsigned long long)wanted);
}

static lw_status check_packed(const char* name, const lw_packed_tensor* t, lw_layout* layout, lw_matrix* out) {
    if (lw_row_bytes(t->type, t->cols) == 0)
        return lw_fail(LW_ERR_FORMAT, "%s: rows of %u weights cannot be stored as type %d", name, t->cols,
                       (int)t->type);
    if (memchr(t->layout, 0, sizeof t->layout) == NULL || !lw_layout_by_name(t->layout, layout))
        return lw_fail(LW_ERR_FORMAT, "%s: this version does not know layout '%.*s'; pack the model again", name,
                       (int)sizeof t->layout, t->layout);
    *out = lw_matrix_of(t->type, *layout, t->rows, t->cols);
    const uint64_t bytes = out->panels * (uint64_t)out->panel_bytes;
    if (t->n_bytes != bytes)
        return lw_fail(LW_ERR_FORMAT, "%s: %llu packed bytes for shape (%u, %u), must be %llu", name,
                       (unsigned long long)t->n_bytes, t->rows, t->cols, (unsigned long long)bytes);
    if ((uintptr_t)t->data % 64 != 0)
        return lw_fail(LW_ERR_ARGUMENT, "%s: packed data must be aligned to 64 bytes", name);
    out->data = t->data;
    const int8_t* fixed = lw_fixed_table(t->type);
    if (fixed == NULL && memchr(t->table, 0x80, sizeof t->table) != NULL)
        return lw_fail(LW_ERR_FORMAT, "%s: its table holds -128, must be -127 to 127", name);
    memcpy(out->table, fixed != NULL ? fixed : t->table, sizeof out->table);
    return LW_OK;
}

lw_status lw_take_packed_matrix(lw_model* model, const char* name, const lw_packed_tensor* tensor, lw_load how,
                                lw_matrix* out) {
    lw_layout layout = {0};
    lw_matrix from = {0};
    LW_RETURN_IF_FAILED(check_packed(name, tensor, &layout, &from));
    lw_matrix packed = lw_matrix_of(tensor->type, lw_level_layouts[model->level], tensor->rows, tensor->cols);
    memcpy(packed.table, from.table, sizeof packed.table);
    packed_job job = {.from = &from, .to = &packed, .pool = model->pool};
    job.repack = !lw_layouts_agree(tensor->type, layout, packed.layout);
    packed.data = tensor->data;
    if (job.repack || how == LW_LOAD_COPY) {
        job.data = lw_arena_take(&model->arena, tensor->n_bytes);
        if (job.data == NULL)
            return lw_fail(LW_ERR_MEMORY, "%s: no memory for %llu bytes of packed weights", name,
                           (unsigned long long)tensor->n_bytes);
        packed.data = job.data;
    }
    lw_pool_run(model->pool, take_worker, &job);
    lw_status status = check_sum(name, atomic_load(&job.sum), tensor->checksum);
    if (atomic_load(&job.no_memory)) status = lw_fail(LW_ERR_MEMORY, "%s: no memory to repack a panel", name);
    if (status == LW_OK) *out = packed;
    return status;
}

// Unpacks the rows of one panel; `room` holds an open row, or the rows past the last one.
static void unpack_panel(const lw_matrix* w, size_t panel, uint8_t* out, size_t row_bytes, uint8_t* room) {
    const uint8_t* from = w->data + panel * w->panel_bytes;
    const size_t first = panel * LW_PANEL, left = w->rows - first, n = left < LW_PANEL ? left : LW_PANEL;
    lw_format f;
    if (lw_find_format(w->type, &f)) {
        for (size_t i = 0; i < n; ++i) {
            lw_take_open_row(w, f, from, i, room);
            lw_store_open_row(f, w->cols, room, out + (first + i) * row_bytes);
        }
        return;
    }
    uint8_t* rows[LW_PANEL];
    for (size_t i = 0; i < LW_PANEL; ++i) rows[i] = i < n ? out + (first + i) * row_bytes : room + i * row_bytes;
    lw_panel_unpack(w, from, rows);
}

lw_status lw_packed_rows(const lw_packed_tensor* tensor, void* rows, uint64_t n_bytes) {
    if (tensor == NULL || rows == NULL || tensor->data == NULL)
        return lw_fail(LW_ERR_ARGUMENT, "lw_packed_rows: tensor, its data and rows must not be NULL");
    const char* name = tensor->name != NULL ? tensor->name : "packed matrix";
    lw_layout layout = {0};
    lw_matrix w = {0};
    LW_RETURN_IF_FAILED(check_packed(name, tensor, &layout, &w));
    lw_format f;
    const bool coded = lw_find_format(w.type, &f);
    const size_t row_bytes = coded ? lw_stored_row_of(f, w.cols).bytes : lw_row_bytes(w.type, w.cols);
    if (n_bytes != w.rows * (uint64_t)row_bytes)
        return lw_fail(LW_ERR_ARGUMENT, "%s: room for %llu bytes of rows, must be %llu", name,
                       (unsigned long long)n_bytes, (unsigned long long)(w.rows * (uint64_t)row_bytes));
    LW_RETURN_IF_FAILED(check_sum(name, sum_words(tensor->data, tensor->n_bytes, 0), tensor->checksum));
    uint8_t* room = malloc(coded ? lw_open_row_bytes(f, w.cols) : LW_PANEL * row_bytes);
    if (room == NULL) return lw_fail(LW_ERR_MEMORY, "%s: no memory to unpack a panel", name);
    for (size_t panel = 0; panel < w.panels; ++panel) unpack_panel(&w, panel, rows, row_bytes, room);
    free(room);
    return LW_OK;
}

lw_status lw_take_packed_vector(const char* name, const lw_packed_tensor* tensor, float** out) {
    if (tensor->type != LW_F32)
        return lw_fail(LW_ERR_FORMAT, "%s: type %d, a packed vector must be F32", name, (int)tensor->type);
    const lw_tensor plain = {
        .data = tensor->data, .n_bytes = tensor->n_bytes, .type = LW_F32, .rows = tensor->rows, .cols = tensor->cols};
    float* values = NULL;
    LW_RETURN_IF_FAILED(lw_copy_vector(name, &plain, &values));
    const lw_status status = check_sum(name, sum_words(tensor->data, tensor->n_bytes, 0), tensor->checksum);
    if (status != LW_OK) {
        free(values);
        return status;
    }
    free(*out);
    *out = values;
    return LW_OK;
}

void lw_describe_packed(const lw_slot* slot, lw_packed_tensor* out) {
    *out = (lw_packed_tensor){.type = LW_F32, .rows = slot->rows, .cols = slot->cols};
    if (slot->vector != NULL) {
        out->data = *slot->vector;
        out->n_bytes = slot->cols * sizeof(float);
    } else {
        const lw_matrix* w = slot->matrix;
        out->type = w->type;
        out->data = w->data;
        out->n_bytes = w->panels * (uint64_t)w->panel_bytes;
        lw_layout_name(w->layout, out->layout);
        memcpy(out->table, w->table, sizeof out->table);
    }
    out->checksum = sum_words(out->data, out->n_bytes, 0);
}
