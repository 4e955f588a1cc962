// What the numbers of a model config may be.
#ifndef LW_PROGRAM_CHECK_H
#define LW_PROGRAM_CHECK_H

#include "lanewise.h"

lw_status lw_check_config(const lw_model_config* c);

#endif
