// Where a model keeps the tensors of its program.
#ifndef LW_PROGRAM_SLOTS_H
#define LW_PROGRAM_SLOTS_H

#include "model/model.h"

// Whether each layer, or each dense head, may have a tensor of a role; whether a model may be without it.
bool lw_is_of_layers(lw_role role);
bool lw_is_of_dense(lw_role role);
bool lw_is_optional(lw_role role);
// Of how many layers, or dense heads, tensors of a role are; 1 for those of the model.
uint32_t lw_role_layers(const lw_model* model, lw_role role);
lw_slot lw_model_slot(lw_model* model, lw_role role, uint32_t layer);

#endif
