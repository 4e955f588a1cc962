#include "graph/kv_groups.h"

#include "graph/states.h"
#include "kv_cache.h"
#include "status.h"

typedef struct windows {
    uint32_t n;
    uint32_t size[LW_MAX_KV_GROUPS],
        layers[LW_MAX_KV_GROUPS];  // of each, in the order of the first layers that have it
} windows;

static uint32_t n_attentions(const lw_model* model) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < model->config.n_layers; ++i) n += lw_has_attention(&model->layers[i]);
    return n;
}

static uint32_t window_of(const lw_model* model, uint32_t layer) {
    return model->layers[layer].config.attention.window;
}

// Its place among the windows, or n.
static uint32_t find_window(const windows* w, uint32_t size) {
    uint32_t at = 0;
    while (at < w->n && w->size[at] != size) ++at;
    return at;
}

// Returns false when there are more than groups.
static bool count_windows(const lw_model* model, windows* out) {
    *out = (windows){0};
    for (uint32_t i = 0; i < model->config.n_layers; ++i) {
        if (!lw_has_attention(&model->layers[i])) continue;
        const uint32_t at = find_window(out, window_of(model, i));
        if (at == LW_MAX_KV_GROUPS) return false;
        if (at == out->n) out->size[out->n++] = window_of(model, i);
        ++out->layers[at];
    }
    return true;
}

static uint32_t groups_of(uint32_t layers, uint32_t slots) { return (layers + slots - 1) / slots; }

// The most slots of which at most one in nine stays empty; 0 when that takes too many groups.
static uint32_t choose_slots(const windows* w, uint32_t n_layers) {
    for (uint32_t slots = n_layers; slots > 0; --slots) {
        uint64_t groups = 0;
        for (uint32_t i = 0; i < w->n; ++i) groups += groups_of(w->layers[i], slots);
        if (groups * slots - n_layers > n_layers / 8) continue;
        return groups <= LW_MAX_KV_GROUPS ? slots : 0;
    }
    return 0;
}

static lw_kv_groups one_group(const lw_model* model, lw_kv_place* places) {
    // A pooled model keeps nothing: its layers have one slot in turns.
    const bool pooled = model->config.pooled != 0;
    uint32_t n = 0;
    for (uint32_t i = 0; i < model->config.n_layers; ++i) {
        if (places != NULL) places[i] = (lw_kv_place){0, pooled ? 0 : n};
        n += lw_has_attention(&model->layers[i]);
    }
    return (lw_kv_groups){1, pooled ? 1 : n, {lw_model_window(model)}};
}

lw_kv_groups lw_group_layers(const lw_model* model, bool by_window, lw_kv_place* places) {
    windows w;
    const uint32_t slots = by_window && count_windows(model, &w) && w.n > 1 ? choose_slots(&w, n_attentions(model)) : 0;
    if (slots == 0) return one_group(model, places);
    lw_kv_groups out = {.n_slots = slots};
    uint32_t next[LW_MAX_KV_GROUPS];  // place of each window's next layer, in slots
    for (uint32_t i = 0; i < w.n; ++i) {
        next[i] = out.n_groups * slots;
        for (uint32_t g = groups_of(w.layers[i], slots); g > 0; --g) out.windows[out.n_groups++] = w.size[i];
    }
    for (uint32_t i = 0; places != NULL && i < model->config.n_layers; ++i) {
        if (!lw_has_attention(&model->layers[i])) continue;
        const uint32_t at = next[find_window(&w, window_of(model, i))]++;
        places[i] = (lw_kv_place){(uint16_t)(at / slots), at % slots};
    }
    return out;
}

lw_status lw_model_kv_layout(const lw_model* model, lw_type kv_type, uint32_t groups_by_window, lw_kv_layout* out) {
    if (model == NULL || out == NULL || !lw_is_kv_type(kv_type) || groups_by_window > 1)
        return lw_fail(
            LW_ERR_ARGUMENT,
            "lw_model_kv_layout: model and out must not be NULL, kv_type must be F16 (1), F32 (0) or I8 (24), "
            "groups_by_window 0 or 1");
    if (model->config.pooled)
        return lw_fail(LW_ERR_ARGUMENT, "lw_model_kv_layout: the model is pooled: it has no cache");
    const lw_kv_groups groups = lw_group_layers(model, groups_by_window != 0, NULL);
    lw_kv_cache cache;
    lw_kv_describe(lw_model_heads(model), kv_type, 1, &cache);
    *out = (lw_kv_layout){.block_bytes = (uint64_t)cache.block_bytes * groups.n_slots,
                          .state_bytes = lw_state_place_bytes(model, 0),
                          .guess_bytes = lw_state_place_bytes(model, 1) - lw_state_place_bytes(model, 0),
                          .n_groups = groups.n_groups};
    for (uint32_t i = 0; i < groups.n_groups; ++i) out->windows[i] = groups.windows[i];
    return LW_OK;
}
