// The CPU, the memory and the files of the process. Part of lanewise.h; include that file.

// The best level of this CPU, and the features found: levels and, with SVE, the bits of a vector ("... i8mm sve
// vl256"). Both strings are static.
const char* lw_cpu_isa(void);
const char* lw_cpu_features(void);
// LW_OK when this CPU can run `isa` (a level name, NULL for the best one), LW_ERR_CPU or LW_ERR_ARGUMENT otherwise.
lw_status lw_cpu_check(const char* isa);

// LW_OK when memory can be placed on each of these nodes (numbers as in /sys/devices/system/node). LW_ERR_ARGUMENT when
// a node does not exist or the process may not use it. LW_ERR_SYSTEM when the system forbids placing memory, as
// containers do.
lw_status lw_numa_check(const uint32_t* nodes, uint32_t n_nodes);

enum { LW_MAX_FETCH_AHEAD = 1 << 20 };
// Arm only: kernels prefetch weights n_bytes before their use. This holds for the whole process, from the next step on.
// 0, the initial value, leaves prefetching to the hardware. No result depends on it. LW_ERR_ARGUMENT when n_bytes is
// above LW_MAX_FETCH_AHEAD, or not 0 on x86.
lw_status lw_set_fetch_ahead(uint32_t n_bytes);

// A read of a mapped file ends the process with SIGBUS when the file has shrunk or its disk fails. After this call, a
// SIGBUS in the n_bytes at `begin` first writes a line to standard error that names `name` and says what to do; the
// signal still ends the process. A SIGBUS elsewhere does what it did before the first call. The first call installs a
// handler for good. LW_ERR_MEMORY when 1024 ranges are guarded already.
lw_status lw_guard_mapping(const void* begin, uint64_t n_bytes, const char* name);
// Call before the range at `begin` is unmapped. LW_ERR_ARGUMENT when no guarded range begins there.
lw_status lw_unguard_mapping(const void* begin);
