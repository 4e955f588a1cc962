// The C ABI of Lanewise: load a model, run forward steps over ragged batches, sample tokens.
//
// Ownership:  the caller that opens a handle closes it; every close accepts NULL. Arrays are borrowed for the call.
//             Sessions are closed before their model.
// Threads:    a model is immutable once finished and may be shared; a session belongs to one thread at a time,
//             but any may release its draws.
// Errors:     lw_last_error() says why a call failed (per calling thread). A failing call writes nothing to its outputs,
//             and a handle is as it was before, unless the function says otherwise. NULL where it is not said to mean
//             something, values out of range, handles that are not finished or of which a call has failed are a status,
//             never a crash; the exceptions are what no callee can see: a pointer that is not NULL must be to what its
//             type says, and as long as the counts beside it say. When memory or threads are refused the status is
//             LW_ERR_MEMORY, and the same call may be made again.
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
// clang-format off: each needs those before it
#include "lanewise/types.h"
#include "lanewise/program.h"
#include "lanewise/model.h"
#include "lanewise/session.h"
#include "lanewise/encode.h"
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
