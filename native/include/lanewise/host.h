// The CPU, the memory and the files of the process. Part of lanewise.h, which is what to include.

// Best level of this CPU, and the features found: levels, and with SVE the bits of a vector ("... i8mm sve vl256").
// Both static strings.
const char* lw_cpu_isa(void);
const char* lw_cpu_features(void);
// LW_OK when this CPU can run `isa` (a level name, NULL for the best one), LW_ERR_CPU or LW_ERR_ARGUMENT otherwise.
lw_status lw_cpu_check(const char* isa);

// LW_OK when memory can be placed on each of these nodes (numbers as in /sys/devices/system/node), LW_ERR_ARGUMENT when
// there is no such node or the process may not use it, LW_ERR_SYSTEM when the system forbids placing, as containers do.
lw_status lw_numa_check(const uint32_t* nodes, uint32_t n_nodes);

enum { LW_MAX_FETCH_AHEAD = 1 << 20 };
// Arm: lets kernels ask for weights so many bytes before their use, for the whole process, from the next step on; 0, as it
// is at first, leaves that to the hardware. No result depends on it. LW_ERR_ARGUMENT when it is more than
// LW_MAX_FETCH_AHEAD, or not 0 on x86.
lw_status lw_set_fetch_ahead(uint32_t n_bytes);

// A mapped file whose file shrinks, or whose disk fails, ends the process with SIGBUS when it is read. From now on, where
// that happens in the n_bytes at `begin`, one line that names `name` and says what to do is written to standard error
// first; the process still ends by the signal. Elsewhere SIGBUS does what it did before the first call, which installs a
// handler for good. LW_ERR_MEMORY when 1024 ranges are guarded.
lw_status lw_guard_mapping(const void* begin, uint64_t n_bytes, const char* name);
// Before the range at `begin` is unmapped. LW_ERR_ARGUMENT when none is guarded there.
lw_status lw_unguard_mapping(const void* begin);
