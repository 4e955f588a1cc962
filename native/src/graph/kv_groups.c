#include "graph/kv_groups.h"

#include "kv_cache.h"

enum { MAX_KINDS = 17 * LW_MAX_KV_GROUPS };

// Layers with the same window, and with keys and values of the same size. What is stored of a layer's tokens is said of
// "stores" here: store i are keys and values of layer i, store n_layers + i its entries, of which all are seen.
typedef struct kind {
    uint32_t window;
    size_t bytes;              // of a layer in one block
    uint32_t layers, in_slot;  // number of layers; layers in one slot
    uint32_t window_at;        // index of the window in kinds.windows
    uint32_t first_slot;       // among the slots of its window
} kind;

typedef struct kinds {
    uint32_t n, n_windows;
    kind of[MAX_KINDS];  // in the order of their first layers
    uint32_t windows[LW_MAX_KV_GROUPS], slots[LW_MAX_KV_GROUPS];
} kinds;

static const lw_attention_config* config_of(const lw_model* model, uint32_t store) {
    return &model->layers[store % model->config.n_layers].config.attention;
}

static bool is_of_entries(const lw_model* model, uint32_t store) { return store >= model->config.n_layers; }

static bool is_stored(const lw_model* model, uint32_t store) {
    const lw_attention_config* c = config_of(model, store);
    return is_of_entries(model, store) ? c->compress > 0 : c->n_heads > 0 && !c->shares_kv;
}

static size_t bytes_of(const lw_model* model, lw_type kv_type, uint32_t store) {
    const lw_attention_config* c = config_of(model, store);
    return is_of_entries(model, store) ? lw_entry_bytes(c, kv_type) : lw_kv_bytes(c, kv_type);
}

size_t lw_kv_bytes(const lw_attention_config* c, lw_type kv_type) {
    lw_kv_cache cache;
    lw_kv_describe(c, kv_type, 1, &cache);
    return cache.block_bytes;
}

const lw_attention_config* lw_largest_kv(const lw_model* model, lw_type kv_type) {
    const lw_attention_config* largest = lw_model_heads(model);
    for (uint32_t i = 0; i < model->config.n_layers; ++i) {
        const lw_attention_config* c = &model->layers[i].config.attention;
        if (is_stored(model, i) && lw_kv_bytes(c, kv_type) > lw_kv_bytes(largest, kv_type)) largest = c;
    }
    return largest;
}

static uint32_t parts_of(uint32_t n, uint32_t size) { return (n + size - 1) / size; }

// Index of the kind with this window and size; k->n if there is none.
static uint32_t find_kind(const kinds* k, uint32_t window, size_t bytes) {
    uint32_t at = 0;
    while (at < k->n && (k->of[at].window != window || k->of[at].bytes != bytes)) ++at;
    return at;
}

static uint32_t find_window(const kinds* k, uint32_t window) {
    uint32_t at = 0;
    while (at < k->n_windows && k->windows[at] != window) ++at;
    return at;
}

// The window of what is stored, or 0 if all windows count as one.
static uint32_t window_of(const lw_model* model, uint32_t store, bool by_window) {
    return by_window && !is_of_entries(model, store) ? lw_stored_window(config_of(model, store)) : 0;
}

// Returns false if there are more windows than groups.
static bool count_kinds(const lw_model* model, lw_type kv_type, bool by_window, kinds* out) {
    const size_t slot_bytes = lw_kv_bytes(lw_largest_kv(model, kv_type), kv_type);
    *out = (kinds){0};
    for (uint32_t i = 0; i < 2 * model->config.n_layers; ++i) {
        if (!is_stored(model, i)) continue;
        const uint32_t window = window_of(model, i, by_window), window_at = find_window(out, window);
        const size_t bytes = bytes_of(model, kv_type, i);
        const uint32_t at = find_kind(out, window, bytes);
        if (window_at == LW_MAX_KV_GROUPS) return false;
        if (window_at == out->n_windows) out->windows[out->n_windows++] = window;
        const size_t in_slot = slot_bytes / bytes;
        // There is room: the check of programs bounds the number of sizes.
        if (at == out->n)
            out->of[out->n++] = (kind){.window = window,
                                       .bytes = bytes,
                                       .in_slot = in_slot > 1 ? (uint32_t)in_slot : 1,
                                       .window_at = window_at};
        ++out->of[at].layers;
    }
    for (uint32_t i = 0; i < out->n; ++i) {
        kind* one = &out->of[i];
        one->first_slot = out->slots[one->window_at];
        out->slots[one->window_at] += parts_of(one->layers, one->in_slot);
    }
    return true;
}

static uint32_t all_slots(const kinds* k) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < k->n_windows; ++i) n += k->slots[i];
    return n;
}

// The largest number of slots per group that leaves at most one slot in nine empty. 0 if it needs too many groups.
static uint32_t choose_slots(const kinds* k) {
    const uint32_t wanted = all_slots(k);
    for (uint32_t slots = wanted; slots > 0; --slots) {
        uint64_t groups = 0;
        for (uint32_t i = 0; i < k->n_windows; ++i) groups += parts_of(k->slots[i], slots);
        if (groups * slots - wanted > wanted / 8) continue;
        return groups <= LW_MAX_KV_GROUPS ? slots : 0;
    }
    return 0;
}

// Gives each layer its place. The layers of one kind fill their slots one after the other.
static void place_layers(const lw_model* model, lw_type kv_type, bool by_window, const kinds* k,
                         const uint32_t* first_groups, uint32_t slots, lw_kv_place* places) {
    uint32_t next[MAX_KINDS] = {0};
    for (uint32_t i = 0; i < 2 * model->config.n_layers; ++i) {
        const lw_attention_config* c = config_of(model, i);
        if (c->shares_kv && !is_of_entries(model, i)) places[i] = places[c->kv_layer];
        if (!is_stored(model, i)) continue;
        const uint32_t at = find_kind(k, window_of(model, i, by_window), bytes_of(model, kv_type, i));
        if (at == k->n || slots == 0 || k->of[at].in_slot == 0) continue;  // never: count_kinds has seen every store
        const kind* one = &k->of[at];
        const uint32_t number = next[at]++, slot = one->first_slot + number / one->in_slot;
        places[i] = (lw_kv_place){(uint16_t)(first_groups[one->window_at] + slot / slots), slot % slots,
                                  number % one->in_slot * one->bytes};
    }
}

static lw_kv_groups one_group(const lw_model* model, lw_type kv_type, lw_kv_place* places) {
    // A pooled model keeps no keys and values between layers, so all layers use the same slot.
    if (model->config.pooled) {
        for (uint32_t i = 0; places != NULL && i < model->config.n_layers; ++i) places[i] = (lw_kv_place){0, 0, 0};
        return (lw_kv_groups){1, 1, {lw_model_window(model)}};
    }
    kinds k;
    count_kinds(model, kv_type, false, &k);
    const uint32_t first = 0, slots = all_slots(&k);
    if (places != NULL) place_layers(model, kv_type, false, &k, &first, slots, places);
    return (lw_kv_groups){1, slots, {lw_model_window(model)}};
}

lw_kv_groups lw_group_layers(const lw_model* model, lw_type kv_type, bool by_window, lw_kv_place* places) {
    kinds k;
    const bool apart = by_window && count_kinds(model, kv_type, true, &k) && k.n_windows > 1;
    const uint32_t slots = apart ? choose_slots(&k) : 0;
    if (slots == 0) return one_group(model, kv_type, places);
    lw_kv_groups out = {.n_slots = slots};
    uint32_t first_groups[LW_MAX_KV_GROUPS];
    for (uint32_t i = 0; i < k.n_windows; ++i) {
        first_groups[i] = out.n_groups;
        for (uint32_t g = parts_of(k.slots[i], slots); g > 0; --g) out.windows[out.n_groups++] = k.windows[i];
    }
    if (places != NULL) place_layers(model, kv_type, true, &k, first_groups, slots, places);
    return out;
}
