// What the numbers of a model config may be.
#ifndef LW_MODEL_CHECK_CONFIG_H
#define LW_MODEL_CHECK_CONFIG_H

#include "lanewise.h"

lw_status lw_check_config(const lw_model_config* c);

#endif
