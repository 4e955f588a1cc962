// Status codes with a message per thread.
#ifndef LW_STATUS_H
#define LW_STATUS_H

#include "lanewise.h"

// Records the message of lw_last_error() for this thread and returns `status`.
lw_status lw_fail(lw_status status, const char* format, ...) __attribute__((format(printf, 2, 3), cold));

#define LW_RETURN_IF_FAILED(call)             \
    do {                                      \
        const lw_status status_ = (call);     \
        if (status_ != LW_OK) return status_; \
    } while (0)

#endif
