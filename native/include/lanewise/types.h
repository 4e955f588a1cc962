// Versions, statuses, storage types, handles. Part of lanewise.h; include that file.

enum { LW_ABI_VERSION = 28 };   // raised by every incompatible change to lanewise.h
enum { LW_NUMERICS = 3 };       // version of the numeric contract; stored in packed files and fingerprints
enum { LW_BLOCK_TOKENS = 32 };  // tokens in one KV block; part of the numeric contract
enum { LW_MAX_THREADS = 1024 };
enum { LW_MAX_TOP_LOGPROBS = 20 };
enum { LW_STEPS_AHEAD = 2 };         // maximum number of steps that are started and not finished
enum { LW_DRAWN_BEFORE = 1 << 30 };  // token id LW_DRAWN_BEFORE + i stands for the token of draw i of the step before
enum { LW_MAX_ADAPTER_RANK = 512 };

typedef enum lw_status {
    LW_OK = 0,
    LW_ERR_ARGUMENT = 1,  // a value outside its documented range
    LW_ERR_MEMORY = 2,
    LW_ERR_FORMAT = 3,     // a tensor's type, shape or contents are wrong
    LW_ERR_CPU = 4,        // this CPU lacks the instruction set asked for
    LW_ERR_SELFTEST = 5,   // a kernel disagrees with scalar on this CPU
    LW_ERR_NONFINITE = 6,  // NaN or infinity in weights or activations
    LW_ERR_SYSTEM = 7,     // the system refuses a call
    LW_ERR_NO_TOKEN = 8    // bias and mask of a draw allow no token
} lw_status;               // values are never reused

// Storage types (quantizer/FORMAT.md): below 256 the numbers are GGUF's tensor type ids.
typedef enum lw_type {
    LW_F32 = 0,
    LW_F16 = 1,
    LW_Q4_0 = 2,
    LW_Q4_1 = 3,
    LW_Q5_0 = 6,
    LW_Q5_1 = 7,
    LW_Q8_0 = 8,
    LW_Q2_K = 10,
    LW_Q3_K = 11,
    LW_Q4_K = 12,
    LW_Q5_K = 13,
    LW_Q6_K = 14,
    // Only files have IQ1 to IQ3, whose codes are grid points of eight or four weights, TQ, ternary weights, and Q1_0
    // and Q2_0, codes of one and two bits (lw_held_type).
    LW_IQ2_XXS = 16,
    LW_IQ2_XS = 17,
    LW_IQ3_XXS = 18,
    LW_IQ1_S = 19,
    LW_IQ4_NL = 20,
    LW_IQ3_S = 21,
    LW_IQ2_S = 22,
    LW_IQ4_XS = 23,
    LW_I8 = 24,  // KV caches only: codes with a scale for each token and KV head
    LW_IQ1_M = 29,
    LW_BF16 = 30,
    LW_TQ1_0 = 34,
    LW_TQ2_0 = 35,
    LW_MXFP4 = 39,
    LW_Q1_0 = 41,
    LW_Q2_0 = 42,
    LW_CB2 = 258,  // shared codebooks: 2, 3 and 4 bits per weight
    LW_CB3 = 259,
    LW_CB4 = 260,
    LW_T2 = 262,      // 2-bit trellis
    LW_Q4_G64 = 264,  // symmetric, groups of 64 and 128 inputs
    LW_Q4_G128 = 265,
    LW_Q2_G64 = 266,  // -1, 0, 1 and 2, groups of 64 and 128 inputs
    LW_Q2_G128 = 267,
    LW_A4_G32 = 272,  // with zero points, 4 and 8 bits
    LW_A4_G64 = 273,
    LW_A4_G128 = 274,
    LW_A8_G32 = 276,
    LW_A8_G128 = 278,
    LW_FP6 = 280,  // one scale per row: E3M2 floats (FP6), 8-bit integers (W8A8)
    LW_W8A8 = 284,
    LW_FP4 = 286,    // E2M1 with E4M3 scales for 16 inputs and a scale for each row: NVFP4
    LW_GRID3 = 288,  // one grid value per weight, codes of 3 and 4 bits
    LW_GRID4 = 292,
    // KV caches only: codes of 4 bits for keys and values, or of 8 for keys and 4 for values, as LW_I8 scaled
    LW_I4 = 300,
    LW_I8_I4 = 301
} lw_type;

typedef struct lw_model lw_model;      // packed weights; immutable after lw_model_finish
typedef struct lw_adapter lw_adapter;  // low-rank additions to a model's matrices (LoRA); immutable once a batch has
                                       // used it
typedef struct lw_session lw_session;  // KV cache, workspace, worker threads

uint32_t lw_abi_version(void);
const char* lw_last_error(void);  // never NULL; valid until this thread's next failing call

// Bytes of one row of `cols` weights in storage type `type`; 0 if the type cannot hold such a row.
uint64_t lw_row_bytes(lw_type type, uint32_t cols);
// The type in which a model holds a matrix of `type`, with the same weights. It differs from `type` only if `type` is
// one that only files have.
lw_type lw_held_type(lw_type type);
