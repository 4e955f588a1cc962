// Where a session's time goes, statistics of its inputs, the kernels and which of them are faster here. Part of
// lanewise.h; include that file.

// The operations of a step, in the order they run.
typedef enum lw_operation {
    LW_OP_EMBED = 0,       // embedding rows, RoPE angles
    LW_OP_ATTN_NORM = 1,   // RMSNorm and quantization before attention
    LW_OP_QKV = 2,         // matrix products
    LW_OP_ROTATE = 3,      // biases, QK norm, RoPE; keys and values to the cache
    LW_OP_ATTENTION = 4,   // attention itself
    LW_OP_ATTN_CODES = 5,  // quantization of attention's result
    LW_OP_ATTN_OUTPUT = 6,
    LW_OP_FFN_NORM = 7,
    LW_OP_ROUTE = 8,  // choice of experts, and quantization of their input rows
    LW_OP_GATE_UP = 9,
    LW_OP_ACTIVATE = 10,  // SiLU and quantization
    LW_OP_DOWN = 11,
    LW_OP_COMBINE = 12,  // sums over experts; biases of down projections
    LW_OP_OUTPUT_NORM = 13,
    LW_OP_HEAD = 14,
    LW_OP_SAMPLE = 15,    // draws of tokens
    LW_OP_CONVOLVE = 16,  // of layers with a state, after LW_OP_QKV: convolutions
    LW_OP_RECUR = 17,     // of layers with a state, before LW_OP_ATTN_CODES: recurrences
    LW_OPERATION_COUNT = 18
} lw_operation;

typedef struct lw_profile_row {
    char operation[16];
    char kernel[64];      // symbol of the kernel; empty unless the operation is a matrix product
    double work_seconds;  // sum over all threads
    double wait_seconds;  // sum over all threads, at the barrier after the operation
    uint64_t bytes;       // operands and results, each counted once per step whichever cache holds it
    uint64_t macs;
} lw_profile_row;

// Statistics of the inputs of one product's matrices, over all rows since the session was opened. An input's size is
// |value|.
typedef struct lw_input_stats {
    char operation[16];  // qkv, attn_output, gate_up, down or head
    uint32_t layer;      // 0 for the head
    uint32_t largest_input;
    uint64_t values;
    double total;             // sum of the sizes
    uint64_t groups;          // number of groups; a group is up to 32 inputs of one row from a multiple of 32 on
    uint64_t outlier_groups;  // number of groups in which one size is more than 8 times every other
    float largest;            // largest size, which input number largest_input had
} lw_input_stats;

typedef struct lw_kernel_info {
    char symbol[64];
    char isa[16];
    char weights[16];
    uint32_t min_rows;   // smallest number of rows that the kernel is used for
    uint32_t available;  // 1 when this CPU can run it
} lw_kernel_info;

// A kernel with a rival: another kernel of the level that reads the same layout and takes the same numbers of rows.
// Which is faster depends on the core; both give the same bits.
typedef struct lw_choice {
    char symbol[64];
    char rival[64];
    uint32_t least_rows;  // smallest number of rows that `symbol` may be used for
    uint32_t min_rows;    // smallest number of rows for which `symbol` is used instead of `rival`; UINT32_MAX = none
} lw_choice;

typedef struct lw_limits {
    double read_gb_s;    // sequential reads of memory far larger than the caches, 1e9 bytes per second
    double int8_gmac_s;  // int8 multiply-accumulates with the fastest instruction of the level, 1e9 per second
} lw_limits;

// Starts (on = 1) to measure the time of steps and draws, from zero, or stops (on = 0) and discards the measurements.
// Off in a new session. Measuring reads the clock twice per thread and operation.
lw_status lw_session_profile(lw_session* session, uint32_t on);
// Writes the first `capacity` rows; *n_rows is how many there are, 0 when nothing is measured.
lw_status lw_session_profile_rows(const lw_session* session, lw_profile_row* out, uint32_t capacity, uint32_t* n_rows);

// Writes the first `capacity` rows of the statistics of a session with observe_inputs: four for each layer and one for
// the head. *n is the number of rows, 0 when the session does not observe.
lw_status lw_session_inputs(const lw_session* session, lw_input_stats* out, uint32_t capacity, uint32_t* n);

uint32_t lw_kernel_count(void);
lw_status lw_kernel_describe(uint32_t index, lw_kernel_info* out);
// The kernel that multiplies a matrix of `type` with `rows` rows of activations under the current choices (lw_choose).
// `isa` names a level, or NULL for the best one. LW_ERR_ARGUMENT when models hold no matrix in `type`, or rows is 0.
lw_status lw_kernel_in_use(const char* isa, lw_type type, uint32_t rows, lw_kernel_info* out);

// Writes the first `capacity` choices that a level has, with their current values. *n is the number of choices, often
// 0. `isa` names a level, or NULL for the best one.
lw_status lw_choices(const char* isa, lw_choice* out, uint32_t capacity, uint32_t* n);
// Like lw_choices, but with the values that a measurement on this core finds. Takes about a tenth of a second if the
// level has choices. Changes nothing.
lw_status lw_tune(const char* isa, lw_choice* out, uint32_t capacity, uint32_t* n);
// Sets choices for the whole process, from the next step on. No result depends on them. LW_ERR_ARGUMENT when a kernel
// has no such rival or min_rows is below least_rows; then no choice is set.
lw_status lw_choose(const lw_choice* choices, uint32_t n);

// Measures this machine with n_threads threads (1 to LW_MAX_THREADS) pinned to the allowed cores; takes a few seconds and 1 GiB.
lw_status lw_measure_limits(uint32_t n_threads, const char* isa, lw_limits* out);
