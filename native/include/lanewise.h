// The C ABI of Lanewise: load a model, run forward steps over ragged batches, sample tokens.
//
// Ownership:  the caller that opens a handle closes it; every close function accepts NULL. Arrays are borrowed for the
//             call. Sessions are closed before their model.
// Threads:    a model is immutable once finished and may be shared. One thread at a time may use a session, except by
//             the functions that any thread may call.
// Errors:     lw_last_error() says why the calling thread's last failing call failed. A failing call writes nothing to
//             its outputs and leaves a handle as it was, unless the function says otherwise. These give a status, never
//             a crash: NULL where no comment allows it, values out of range, a handle that is not finished, a handle on
//             which a call has failed. The library cannot check pointers: one that is not NULL must point to an object
//             of its type, and an array must be as long as the count beside it says. When memory or threads are refused
//             the status is LW_ERR_MEMORY, and the same call may be made again.
//             The library never prints, aborts or exits (but see lw_guard_mapping).
// Numbers:    the logits of a token prefix are the same bits for every batch, chunking, thread count and
//             instruction set (native/CONTRACT.md).
#ifndef LANEWISE_H
#define LANEWISE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

// cdef-begin: cffi parses the files included from here to cdef-end as they stand; they have no preprocessor lines.
// clang-format off: each file needs the ones before it
#include "lanewise/types.h"
#include "lanewise/roles.h"
#include "lanewise/heads.h"
#include "lanewise/program.h"
#include "lanewise/model.h"
#include "lanewise/session.h"
#include "lanewise/encode.h"
#include "lanewise/see.h"
#include "lanewise/measurements.h"
#include "lanewise/host.h"
#include "lanewise/fit.h"
// clang-format on
// cdef-end

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

#ifdef __cplusplus
}
#endif

#endif
