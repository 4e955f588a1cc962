// A small model of five layers: four with a state, one of each kind, two with attention.
#ifndef STATE_MODEL_H
#define STATE_MODEL_H

#include <math.h>

#include "model/model.h"
#include "program/slots.h"
#include "small_model.h"

enum { N_LAYERS = 5 };

typedef struct mixed {
    lw_rope rope;
    lw_layer_config layers[N_LAYERS + 1];
    lw_model_config model;
} mixed;

static mixed good;
static bool has_head;  // one more layer, which is a prediction head

// A short convolution, attention, a delta rule alone, a state space beside attention with an FFN of squares, and a delta
// rule of channels.
static inline void set_good(void) {
    const uniform_config alike = small_config();
    good.rope = uniform_rope(&alike);
    for (int i = 0; i < N_LAYERS; ++i) {
        good.layers[i] = uniform_layer(&alike);
        if (i != 1 && i != 3) good.layers[i].attention = (lw_attention_config){0};
    }
    good.layers[0].state = (lw_state_config){.kind = LW_SHORT_CONV, .taps = 3};
    good.layers[1].attention.output_gate = 1;
    good.layers[2].state = (lw_state_config){.kind = LW_GATED_DELTA,
                                             .taps = 4,
                                             .n_heads = 4,
                                             .value_dim = 32,
                                             .n_key_heads = 2,
                                             .key_dim = 16,
                                             .norm_eps = 1e-6f};
    good.layers[2].ffn = (lw_ffn_config){.kind = LW_FFN_NONE};
    good.layers[3].state = good.layers[2].state;
    good.layers[3].state.kind = LW_SSD;
    good.layers[3].state.norm_size = 64;
    good.layers[3].ffn = (lw_ffn_config){.kind = LW_FFN_PLAIN, .size = FFN, .activation = LW_RELU_SQUARED};
    good.layers[4].state = good.layers[2].state;
    good.layers[4].state.kind = LW_CHANNEL_DELTA;
    good.layers[4].state.decay_rank = 24;
    good.layers[4].state.gate_rank = 40;
    good.model = uniform_model(&alike, &good.rope, good.layers);
    good.layers[N_LAYERS] = uniform_layer(&alike);
    good.layers[N_LAYERS].mtp = 1;
    good.model.n_layers = N_LAYERS + has_head;
}

// With `rate` for that of the second head of layer 2, unless it is NULL.
static inline lw_model* load_model_with(const float* rate) {
    static float values[4096 * 8];
    lw_model* model = NULL;
    set_good();
    if (lw_model_create(&good.model, NULL, 2, &model) != LW_OK) exit(2);
    for (int role = 0; role < LW_ROLE_COUNT; ++role)
        for (uint32_t layer = 0; layer < lw_role_layers(model, (lw_role)role); ++layer) {
            const lw_slot slot = lw_model_slot(model, (lw_role)role, layer);
            if (!slot.wanted || strstr(slot.name, "order of") != NULL) continue;
            const lw_tensor tensor = float_tensor(values, slot.rows, slot.cols, 100 * (uint32_t)role + layer);
            for (uint32_t i = 0; role == LW_STATE_RATE && i < slot.cols; ++i) values[i] = -fabsf(values[i]);
            if (role == LW_STATE_RATE && layer == 2 && rate != NULL) values[1] = *rate;
            const lw_status status = lw_model_load(model, (lw_role)role, layer, &tensor, LW_F32);
            expect(status == LW_OK, slot.name);
        }
    return model;
}

static inline lw_model* new_model(void) {
    lw_model* model = load_model_with(NULL);
    expect(lw_model_finish(model) == LW_OK, "the model is finished");
    return model;
}

#endif
