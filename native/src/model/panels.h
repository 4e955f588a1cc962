// File rows to packed panels and back (quantizer/FORMAT.md, "Packed layouts"). Packing loses nothing, so a panel of one
// level's layout can be converted to another level's.
#ifndef LW_MODEL_PANELS_H
#define LW_MODEL_PANELS_H

#include "kernels/kernel.h"
#include "thread_pool.h"

// The panels of one matrix, shared among threads. Zero-initialize it. Each thread takes panels of its own part first,
// then of others' parts. Neighbouring panels share huge pages, and two threads that touch a new page at the same time
// both zero it.
typedef struct lw_panel_work {
    lw_work parts[256];
} lw_panel_work;

static inline bool lw_panel_take(lw_panel_work* work, const lw_pool* pool, unsigned thread, size_t panels,
                                 size_t* out) {
    const unsigned threads = lw_pool_threads(pool);
    for (unsigned i = 0; i < threads; ++i) {
        const size_t part = (thread + i) % threads, first = panels * part / threads;
        size_t begin, end;
        if (!lw_work_take(&work->parts[part], panels * (part + 1) / threads - first, 1, &begin, &end)) continue;
        *out = first + begin;
        return true;
    }
    return false;
}

enum { LW_LAYOUT_NAME_BYTES = 16 };

// Writes one panel of `w` from LW_PANEL rows in the storage type's own bytes, lw_row_bytes(w->type, w->cols) each.
void lw_panel_pack(const lw_matrix* w, uint8_t* panel, const uint8_t* const rows[LW_PANEL]);
// The inverse of lw_panel_pack, bit for bit.
void lw_panel_unpack(const lw_matrix* w, const uint8_t* panel, uint8_t* const rows[LW_PANEL]);

// The name of a layout in packed files, such as "c4" or "c8t".
void lw_layout_name(lw_layout layout, char name[LW_LAYOUT_NAME_BYTES]);
// False when no level has a layout of that name.
bool lw_layout_by_name(const char* name, lw_layout* out);
// True if weights of `type` have the same bytes in both layouts.
bool lw_layouts_agree(lw_type type, lw_layout a, lw_layout b);

#endif
