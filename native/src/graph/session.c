// Parts of a session's memory.
#include "graph/session.h"

void* lw_take(lw_parts* parts, size_t bytes) {
    void* part = parts->base != NULL ? parts->base + parts->used : NULL;
    parts->used = lw_round_up(parts->used + bytes, 64);
    return part;
}

lw_codes lw_take_codes(lw_parts* parts, const lw_model* model, size_t rows, size_t widest) {
    const size_t segments = widest / LW_SEGMENT, groups = segments * LW_SEGMENT_GROUPS;
    lw_activations x = {.rows = rows, .cols = widest};
    lw_lay_out_activations(&x, lw_level_layouts[model->level]);
    return (lw_codes){.q = lw_take(parts, (rows + 1) * lw_activation_stride(widest)),
                      .scales = lw_take(parts, lw_scale_floats(&x) * sizeof(float)),
                      .totals = lw_take(parts, (rows + 1) * (lw_activation_stride(widest) / 16) * sizeof(int32_t)),
                      .sums = model->has_minimums ? lw_take(parts, rows * segments * LW_SUMS * sizeof(float)) : NULL,
                      .outlying = lw_take(parts, rows * segments),
                      .outliers = lw_take(parts, rows * groups * sizeof(lw_outlier))};
}
