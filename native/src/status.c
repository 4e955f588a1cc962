#include "status.h"

#include <stdarg.h>
#include <stdio.h>

static _Thread_local char last_error[512];

lw_status lw_fail(lw_status status, const char* format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(last_error, sizeof last_error, format, args);
    va_end(args);
    return status;
}

const char* lw_last_error(void) { return last_error; }

uint32_t lw_abi_version(void) { return LW_ABI_VERSION; }
