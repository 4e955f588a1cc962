#include "kinds/kind.h"

const lw_kind* const lw_kinds[LW_N_KINDS] = {&lw_kind_attention, &lw_kind_latent,  &lw_kind_state, &lw_kind_ffn,
                                             &lw_kind_norms,     &lw_kind_experts, &lw_kind_mtp,   &lw_kind_per_layer};
