// Where a model keeps the tensors of its program.
#ifndef LW_PROGRAM_SLOTS_H
#define LW_PROGRAM_SLOTS_H

#include "model/model.h"

// Whether tensors of a role belong to layers; whether they belong to dense heads; whether a model may lack them.
bool lw_is_of_layers(lw_role role);
bool lw_is_of_dense(lw_role role);
bool lw_is_optional(lw_role role);
// Number of layers, or of dense heads, to which tensors of a role belong. 1 if they belong to the model itself.
uint32_t lw_role_layers(const lw_model* model, lw_role role);
lw_slot lw_model_slot(lw_model* model, lw_role role, uint32_t layer);

#endif
