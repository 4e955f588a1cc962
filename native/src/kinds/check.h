// Checks of the numbers in a program. Each message names the place, the field, its value and what would be accepted.
#ifndef LW_KINDS_CHECK_H
#define LW_KINDS_CHECK_H

#include "lanewise.h"
#include "status.h"

// A place of the config, for messages: "layer 3 attention: ".
typedef struct lw_place {
    char text[40];
} lw_place;

lw_place lw_place_of_layer(uint32_t layer, const char* part);
lw_status lw_check_range(const lw_place* at, const char* field, uint64_t value, uint64_t least, uint64_t most);
lw_status lw_check_flag(const lw_place* at, const char* field, uint32_t value);
lw_status lw_check_number(const lw_place* at, const char* field, double value, double least, double most);
lw_status lw_check_multiple(const lw_place* at, const char* field, uint32_t value, uint32_t of);
// Checks the config of a part that a layer does not have: all of its `bytes` bytes must be 0.
lw_status lw_check_absent(const lw_place* at, const char* what, const void* config, size_t bytes);

#endif
