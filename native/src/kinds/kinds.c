#include "kinds/kinds.h"

const lw_kind* const lw_kinds[LW_N_KINDS] = {
    [LW_KIND_ATTENTION] = &lw_kind_attention, [LW_KIND_LATENT] = &lw_kind_latent, [LW_KIND_INDEX] = &lw_kind_index,
    [LW_KIND_STATE] = &lw_kind_state,         [LW_KIND_FFN] = &lw_kind_ffn,       [LW_KIND_NORMS] = &lw_kind_norms,
    [LW_KIND_EXPERTS] = &lw_kind_experts,     [LW_KIND_MTP] = &lw_kind_mtp,       [LW_KIND_STREAMS] = &lw_kind_streams,
    [LW_KIND_PER_LAYER] = &lw_kind_per_layer, [LW_KIND_SHARED] = &lw_kind_shared, [LW_KIND_HYPER] = &lw_kind_hyper,
};

size_t lw_kept_floats(const lw_model* model, uint32_t layer, uint32_t max_guesses) {
    size_t floats = 0;
    for (size_t i = 0; i < LW_N_KINDS; ++i)
        if (lw_kinds[i]->kept_floats != NULL && lw_has_kind(model, &model->layers[layer], i))
            floats += lw_kinds[i]->kept_floats(&model->config, &model->layers[layer].config, max_guesses);
    return floats;
}

size_t lw_floats_before_guesses(const lw_model* model, uint32_t layer) {
    const lw_layer* of = &model->layers[layer];
    for (size_t i = 0; i < LW_N_KINDS; ++i)
        if (lw_kinds[i]->before_guesses != NULL && lw_has_kind(model, of, i))
            return lw_kinds[i]->before_guesses(&model->config, &of->config);
    return lw_kept_floats(model, layer, 0);
}

uint64_t lw_state_place_bytes(const lw_model* model, uint32_t max_guesses) {
    uint64_t floats = 0;
    for (uint32_t i = 0; i < model->config.n_layers; ++i) floats += lw_kept_floats(model, i, max_guesses);
    return floats * sizeof(float);
}
