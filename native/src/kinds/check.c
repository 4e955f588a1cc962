#include "kinds/check.h"

#include <stdio.h>

lw_place lw_place_of_layer(uint32_t layer, const char* part) {
    lw_place at;
    snprintf(at.text, sizeof at.text, "layer %u%s: ", layer, part);
    return at;
}

lw_status lw_check_range(const lw_place* at, const char* field, uint64_t value, uint64_t least, uint64_t most) {
    if (value >= least && value <= most) return LW_OK;
    if (least == most)
        return lw_fail(LW_ERR_ARGUMENT, "model config: %s%s is %llu, must be %llu", at->text, field,
                       (unsigned long long)value, (unsigned long long)least);
    return lw_fail(LW_ERR_ARGUMENT, "model config: %s%s is %llu, must be %llu to %llu", at->text, field,
                   (unsigned long long)value, (unsigned long long)least, (unsigned long long)most);
}

lw_status lw_check_flag(const lw_place* at, const char* field, uint32_t value) {
    return lw_check_range(at, field, value, 0, 1);
}

lw_status lw_check_number(const lw_place* at, const char* field, double value, double least, double most) {
    if (value >= least && value <= most) return LW_OK;
    return lw_fail(LW_ERR_ARGUMENT, "model config: %s%s is %g, must be %g to %g", at->text, field, value, least, most);
}

lw_status lw_check_multiple(const lw_place* at, const char* field, uint32_t value, uint32_t of) {
    if (value % of == 0) return LW_OK;
    return lw_fail(LW_ERR_ARGUMENT, "model config: %s%s is %u, must be a multiple of %u", at->text, field, value, of);
}

lw_status lw_check_absent(const lw_place* at, const char* what, const void* config, size_t bytes) {
    const unsigned char* byte = config;
    size_t i = 0;
    while (i < bytes && byte[i] == 0) ++i;
    if (i == bytes) return LW_OK;
    return lw_fail(LW_ERR_ARGUMENT, "model config: %sthere is no %s, all of its config must be 0", at->text, what);
}
