// The C ABI of Lanewise: load a model, run forward steps over ragged batches, sample tokens.
//
// Ownership:  whoever opens a handle closes it; every close accepts NULL. Arrays are borrowed for the call. Sessions are
//             closed before their model.
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
//             instruction set (native/DECISIONS.md, "The numeric contract").
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

// cdef-begin: the text up to cdef-end is parsed by cffi as it stands; keep it free of preprocessor lines.

enum { LW_ABI_VERSION = 12 };   // raised by every incompatible change to this file
enum { LW_NUMERICS = 3 };       // version of the numeric contract; in packed files and fingerprints
enum { LW_BLOCK_TOKENS = 32 };  // tokens in one KV block; part of the numeric contract
enum { LW_MAX_TOP_LOGPROBS = 20 };
enum { LW_STEPS_AHEAD = 2 };         // most steps started and not finished
enum { LW_DRAWN_BEFORE = 1 << 30 };  // in a token id: it stands for one that the step before drew
enum { LW_MAX_ADAPTER_RANK = 512 };

typedef enum lw_status {
    LW_OK = 0,
    LW_ERR_ARGUMENT = 1,  // a value outside its documented range
    LW_ERR_MEMORY = 2,
    LW_ERR_FORMAT = 3,     // a tensor's type, shape or bytes are not what they must be
    LW_ERR_CPU = 4,        // this CPU lacks the instruction set asked for
    LW_ERR_SELFTEST = 5,   // a kernel disagrees with scalar on this CPU
    LW_ERR_NONFINITE = 6,  // NaN or infinity in weights or activations
    LW_ERR_SYSTEM = 7,     // the system refuses a call
    LW_ERR_NO_TOKEN = 8    // what a draw forbids leaves no token
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
    LW_IQ4_NL = 20,
    LW_IQ4_XS = 23,
    LW_I8 = 24,  // KV caches only: codes with a scale for each token and KV head
    LW_BF16 = 30,
    LW_MXFP4 = 39,
    LW_CB2 = 258,  // shared codebooks: 2, 3 and 4 bits
    LW_CB3 = 259,
    LW_CB4 = 260,
    LW_T2 = 262,      // 2-bit trellis
    LW_Q4_G64 = 264,  // symmetric, groups of 64 and 128 inputs
    LW_Q4_G128 = 265,
    LW_A4_G32 = 272,  // with zero points, 4 and 8 bits
    LW_A4_G64 = 273,
    LW_A4_G128 = 274,
    LW_A8_G32 = 276,
    LW_A8_G128 = 278,
    LW_FP6 = 280,  // one scale for a row: E3M2 floats, 8-bit integers
    LW_W8A8 = 284
} lw_type;

// What a tensor is in the model. Matrices have shape (outputs, inputs), vectors (1, size).
typedef enum lw_role {
    LW_TOKEN_EMBEDDING = 0,  // (vocab_size, hidden_size); also the head when tied
    LW_OUTPUT = 1,           // (vocab_size, hidden_size), absent when tied
    LW_OUTPUT_NORM = 2,      // (1, hidden_size)
    LW_ATTN_NORM = 3,        // the rest once per layer; (1, hidden_size)
    LW_ATTN_Q = 4,           // (n_heads * head_dim, hidden_size)
    LW_ATTN_K = 5,           // (n_kv_heads * head_dim, hidden_size)
    LW_ATTN_V = 6,
    LW_ATTN_Q_BIAS = 7,
    LW_ATTN_K_BIAS = 8,
    LW_ATTN_V_BIAS = 9,
    LW_ATTN_Q_NORM = 10,  // (1, head_dim)
    LW_ATTN_K_NORM = 11,
    LW_ATTN_OUTPUT = 12,  // (hidden_size, n_heads * head_dim)
    LW_FFN_NORM = 13,
    LW_FFN_GATE = 14,  // (ffn_size, hidden_size)
    LW_FFN_UP = 15,
    LW_FFN_DOWN = 16,  // (hidden_size, ffn_size)
    // Optional vectors: input j of the matrices after it is value number order[j], so that inputs which share a scale
    // lie together (GPTQ's act-order). A permutation of 0 .. size-1.
    LW_ATTN_INPUT_ORDER = 17,   // (1, hidden_size), for Q, K and V
    LW_ATTN_OUTPUT_ORDER = 18,  // (1, n_heads * head_dim)
    LW_FFN_INPUT_ORDER = 19,    // (1, hidden_size), for gate and up
    LW_ATTN_OUTPUT_BIAS = 20,   // (1, hidden_size)
    LW_ATTN_SINKS = 21,         // (1, n_heads)
    LW_FFN_GATE_BIAS = 22,      // (1, ffn.size)
    LW_FFN_UP_BIAS = 23,
    LW_FFN_DOWN_BIAS = 24,  // (1, hidden_size)
    // Of layers with experts. Matrices of all experts are stacked: the rows of expert 0, of expert 1, and so on.
    LW_ROUTER = 25,              // (n_experts, hidden_size), F32, F16 or BF16
    LW_ROUTER_BIAS = 26,         // (1, n_experts)
    LW_ROUTER_CHOICE_BIAS = 27,  // (1, n_experts)
    LW_EXPERTS_GATE = 28,        // (n_experts * size, hidden_size)
    LW_EXPERTS_UP = 29,
    LW_EXPERTS_DOWN = 30,       // (n_experts * hidden_size, size)
    LW_EXPERTS_GATE_BIAS = 31,  // (1, n_experts * size)
    LW_EXPERTS_UP_BIAS = 32,
    LW_EXPERTS_DOWN_BIAS = 33,  // (1, n_experts * hidden_size)
    LW_SHARED_GATE = 34,        // (shared_size, hidden_size): of the expert that all rows have
    LW_SHARED_UP = 35,
    LW_SHARED_DOWN = 36,    // (hidden_size, shared_size)
    LW_SHARED_ROUTER = 37,  // (1, hidden_size)
    LW_ROLE_COUNT = 38
} lw_role;

// Angles by which the queries and keys of some layers turn: dimension i and i + rotated / 2 of a head by
// position * theta^(-2 i / rotated) / factors[i].
typedef struct lw_rope {
    double theta;
    uint32_t rotated;      // dimensions of a head that turn, its first ones; even
    float scale;           // of sines and cosines; 1 unless a kind of scaling has one
    const float* factors;  // [rotated / 2], 1e-6 or more, infinite where nothing turns; NULL = all 1
} lw_rope;

enum { LW_NO_ROPE = -1 };

typedef enum lw_qk_norm {
    LW_QK_NORM_NONE = 0,
    LW_QK_NORM_HEAD = 1,  // RMSNorm over each head of Q and K before they turn
    LW_QK_NORM_WHOLE = 2  // over all heads together
} lw_qk_norm;

typedef struct lw_attention_config {
    uint32_t n_heads;
    uint32_t n_kv_heads;
    uint32_t head_dim;     // even, at most 256
    uint32_t window;       // tokens each query sees, its own included; 0 = all
    int32_t rope;          // which of the model's, or LW_NO_ROPE
    uint32_t qkv_bias;     // 1: Q, K and V have biases
    uint32_t output_bias;  // 1: so has the output
    lw_qk_norm qk_norm;
    uint32_t sinks;              // 1: the softmax of each head has one more term, exp(sink), of no value
    float score_scale;           // of Q K; 0 = 1 / sqrt(head_dim)
    float position_beta;         // 0, or Q at position p is multiplied by
    uint32_t position_original;  // 1 + position_beta * ln(1 + floor(p / position_original))
} lw_attention_config;

typedef enum lw_ffn_kind {
    LW_FFN_GATED = 0,   // down (activation(gate x) * up x)
    LW_FFN_EXPERTS = 1  // a sum over some of many such, which a router chooses and weighs for each token
} lw_ffn_kind;

typedef enum lw_activation {
    LW_SILU = 0,           // g * sigmoid(g) * u
    LW_CLAMPED_SWIGLU = 1  // g at most limit, u within +-limit: g * sigmoid(alpha * g) * (u + 1)
} lw_activation;

// What a router makes of its logits, one for each expert.
typedef enum lw_router_kind {
    LW_ROUTER_SOFTMAX = 0,      // weights: softmax over all; chosen: the largest of them
    LW_ROUTER_TOP_SOFTMAX = 1,  // chosen: the largest logits; weights: softmax over those
    LW_ROUTER_SIGMOID = 2       // weights: sigmoid of each; chosen: the largest
} lw_router_kind;

// Chosen in descending order, the lower number first on a tie. In order of choice the weighted results of a row's experts
// are added up, then comes the shared one, then one addition to the residual stream.
typedef struct lw_ffn_config {
    lw_ffn_kind kind;
    uint32_t size;  // outputs of gate and up, of each expert; a multiple of 32 for experts
    uint32_t bias;  // 1: gate, up and down have biases, those of experts too
    lw_activation activation;
    float limit, alpha;  // of LW_CLAMPED_SWIGLU, both above 0
    // Of LW_FFN_EXPERTS, else 0:
    uint32_t n_experts;  // at most 4096
    uint32_t n_used;     // for each token, at most 64
    lw_router_kind router;
    uint32_t router_bias;            // 1: added to the logits
    uint32_t choice_bias;            // 1: added to the weights for the choice only
    uint32_t n_groups, groups_used;  // experts are chosen from the groups whose two best add up to most; 1 and 1 = all
    uint32_t renormalize;  // 1: weights are divided by the larger of their sum + divisor_extra and divisor_least
    float divisor_extra, divisor_least;
    float scale;           // of the weights, last
    uint32_t shared_size;  // of an expert that all tokens have besides; 0 = none; else a multiple of 32
    uint32_t shared_gate;  // 1: times sigmoid of the shared router's product, else 1
} lw_ffn_config;

typedef struct lw_layer_config {  // x += attention(rmsnorm(x)), then x += ffn(rmsnorm(x))
    lw_attention_config attention;
    lw_ffn_config ffn;
} lw_layer_config;

typedef struct lw_model_config {
    uint32_t n_layers;
    uint32_t hidden_size;
    uint32_t vocab_size;
    uint32_t context_length;   // positions the model was made for
    uint32_t tied_embeddings;  // 1: the head is the token embedding
    float rms_norm_eps;
    float embedding_scale;  // rows of the embedding are multiplied by it
    float logit_scale;      // and logits by this; 1 and 1 for most
    uint32_t n_ropes;       // at most 8
    const lw_rope* ropes;
    const lw_layer_config* layers;  // [n_layers]; heads, KV heads and head_dim are the same in all
} lw_model_config;

typedef struct lw_tensor {
    const void* data;  // row-major rows in the storage type's own layout (GGUF blocks, little endian)
    uint64_t n_bytes;  // must equal rows * bytes per row
    lw_type type;
    uint32_t rows;        // outputs
    uint32_t cols;        // inputs
    uint32_t rope_heads;  // > 0: rows of each of this many heads are in interleaved RoPE order (GGUF "llama" Q, K
                          // and their biases as cols) and are put into half-split order while packing
    const int8_t* table;  // [16] of LW_CB2, LW_CB3, LW_CB4 and LW_T2, from -127 to 127; else NULL
} lw_tensor;

// A tensor of a packed file (quantizer/FORMAT.md, "Packed files"): a matrix as panels, a vector as F32.
typedef struct lw_packed_tensor {
    lw_role role;
    uint32_t layer;
    const char* name;   // for messages; NULL = what the role is called
    const void* data;   // 64-byte aligned for matrices
    uint64_t n_bytes;   // must be what type, rows and cols give
    uint64_t checksum;  // sum over the 64-bit words w[i] of w[i] * (2 i + 1), modulo 2^64
    lw_type type;
    uint32_t rows;     // outputs
    uint32_t cols;     // inputs
    char layout[16];   // of a matrix, such as "c4b"
    int8_t table[16];  // of table and trellis types, else zero
} lw_packed_tensor;

typedef enum lw_load {
    LW_LOAD_MAP = 0,  // use the bytes where they are: they must stay there until lw_model_close
    LW_LOAD_COPY = 1  // copy them to memory of the model's own, on huge pages where the system grants them
} lw_load;

// Where memory lies on a host with several memory nodes.
typedef enum lw_numa {
    LW_NUMA_OFF = 0,         // wherever the system puts it
    LW_NUMA_INTERLEAVE = 1,  // pages of weights and KV caches go to the nodes in turn
    LW_NUMA_REPLICATE = 2    // a copy of the weights on each node; pages of KV caches go to the nodes in turn
} lw_numa;

typedef struct lw_model lw_model;      // packed weights; immutable after lw_model_finish
typedef struct lw_adapter lw_adapter;  // low-rank additions to a model's matrices (LoRA); immutable once in a batch
typedef struct lw_session lw_session;  // KV cache, workspace, worker threads

typedef struct lw_model_info {
    char isa[16];             // level in use: scalar, avx2, avx512vnni, avx512vbmi, amx, neon, dotprod, i8mm, sve
    uint64_t packed_bytes;    // weights as held in memory, all copies
    uint64_t matrix_bytes;    // bytes of weights read by one decode step (the embedding counted once, as the head)
    uint64_t matrix_weights;  // weights multiplied by one token with logits
    uint64_t layer_weights;   // weights multiplied by one token without logits
    uint64_t held_weights;    // all there are, those of experts that a token does not have among them
    uint64_t expert_bytes;    // of matrix_bytes: the experts that one token has, of those that it chooses from
    uint32_t numerics;
} lw_model_info;

typedef struct lw_session_config {
    uint32_t n_threads;         // threads that compute, the calling one included; 1 to 256
    uint32_t n_blocks;          // KV blocks of LW_BLOCK_TOKENS tokens, all layers
    uint32_t max_batch_tokens;  // most tokens in one step
    uint32_t max_batch_logits;  // most rows of logits in one step
    lw_type kv_type;            // LW_F16, LW_F32 or LW_I8
    uint32_t max_adapter_rank;  // of adapters in its batches, at most LW_MAX_ADAPTER_RANK; 0 = it takes none
    // 1: a reference to measure against, slow. Quantized matrices multiply activations as they are, not int8 codes of
    // them: logits are those of a model whose matrices are LW_F32 with the same weights, to the bit. 0 = codes.
    uint32_t float_activations;
    uint32_t observe_inputs;  // 1: keep statistics of the inputs of matrices, for lw_session_inputs
    // CPUs' worth of time that the threads get (a quota); 0 = all that they may run on. Of more threads than CPUs, those that
    // wait for others in a step soon leave them theirs.
    uint32_t n_cpus;
    const uint32_t* cpus;  // [n_threads] the CPU that each thread stays on, the calling one during steps; NULL = any
    const uint32_t*
        copies;  // [n_threads] which copy of the weights each thread reads, an index of lw_model_place's nodes;
                 // NULL = the first
} lw_session_config;

// How the tokens of one sequence are drawn. Order: bias, penalties, mask; log-probabilities are those of the raw logits;
// then temperature, top-k, top-p, min-p on what is left.
typedef struct lw_sampling {
    float temperature;         // 0 (or below 1e-5) = the largest logit, the smallest id on a tie
    float top_p;               // (0, 1]; 1 = off
    float min_p;               // [0, 1]; 0 = off
    uint32_t top_k;            // 0 = off
    float repetition_penalty;  // > 0; 1 = off; applies to prompt and output tokens
    float presence_penalty;    // 0 = off; output tokens only
    float frequency_penalty;   // 0 = off; output tokens only
    uint32_t n_bias;
    const uint32_t* bias_ids;
    const float* bias_values;  // added to the logits; -INFINITY forbids a token, NaN and INFINITY are errors
    const uint32_t* mask;      // bit t of word t / 32 set: token t is allowed; NULL = all
    uint64_t seed;             // the draw is a function of (seed, choice, position) alone
    uint32_t choice;
    uint32_t n_top_logprobs;  // 0 to LW_MAX_TOP_LOGPROBS
    uint32_t want_logprob;    // 1: fill logprob (and top_*) of lw_sampled
} lw_sampling;

typedef struct lw_draw {  // one token to draw from one row of logits
    const lw_sampling* sampling;
    uint32_t position;  // index of the token drawn, the prompt counted
    uint32_t n_prompt;  // history[0 .. n_prompt) is the prompt, the rest the output
    uint32_t n_history;
    const uint32_t* history;  // read by penalties only; a token of the row itself that is LW_DRAWN_BEFORE follows it
    int64_t forced_token;     // >= 0: return this token and its log-probability; below = draw
} lw_draw;

// One ragged batch: sequence s owns tokens query_start[s] .. query_start[s+1]-1, which follow the context_lens[s]
// tokens already in its blocks; both together are at most 2^31. Its blocks, in order, are row table_rows[s] of
// block_tables; they must cover all its tokens. Where all layers have windows, blocks that none of the batch's tokens see
// in any of them are neither read nor written: their entries may be any number. Sequences may read the same blocks, but
// one that writes to a block has it for itself, or what is read there is undefined.
typedef struct lw_batch {
    uint32_t n_seqs;
    uint32_t n_logits;
    uint32_t block_table_stride;   // entries in one row of block_tables
    const uint32_t* token_ids;     // [query_start[n_seqs]]; LW_DRAWN_BEFORE + i is what draw i of the step before gave
    const uint32_t* query_start;   // [n_seqs + 1], ascending, first 0
    const uint32_t* context_lens;  // [n_seqs]
    const uint32_t* block_tables;  // [rows][block_table_stride]
    const uint32_t* logit_rows;    // [n_logits] indices into token_ids, ascending, each once
    const lw_draw* draws;          // [n_logits] one for each row of logits; NULL = nothing is drawn
    const uint32_t* table_rows;    // [n_seqs] below the rows of block_tables; NULL = sequence s has row s
    const lw_adapter* const* adapters;  // [n_seqs] that of each sequence or NULL; NULL = nobody has one
    uint32_t n_copies;
    const uint32_t* copies;  // [n_copies][2] KV blocks (from, to) that are copied before all else, in this order
} lw_batch;

typedef struct lw_sampled {
    uint32_t token;
    uint32_t n_top;
    float logprob;  // natural logarithm; 0 when not asked for
    uint32_t top_ids[20];
    float top_logprobs[20];  // descending
} lw_sampled;

typedef struct lw_finished {  // when a started step was run: nanoseconds of CLOCK_MONOTONIC; 0 and 0 = it was not
    uint64_t begin_ns, end_ns;
} lw_finished;

typedef struct lw_counters {  // since the session was opened
    uint64_t steps;
    uint64_t tokens;
    uint64_t gemv_calls;  // matrix products with one row
    uint64_t gemm_calls;  // with more
    uint64_t gemv_rows;
    uint64_t gemm_rows;
    double native_seconds;  // running steps
    double held_seconds;    // of those, in which all but held draws was done
    // Experts that a layer's rows have chosen in a step, by how many rows each had: 1, 2, up to 4, 8, 16, 32, 64, more.
    uint64_t experts_by_rows[8];
    uint64_t expert_rows;  // of all of them
} lw_counters;

// The operations of a step, in the order they run.
typedef enum lw_operation {
    LW_OP_EMBED = 0,       // embedding rows, RoPE angles
    LW_OP_ATTN_NORM = 1,   // RMSNorm and quantization before attention
    LW_OP_QKV = 2,         // matrix products
    LW_OP_ROTATE = 3,      // biases, QK norm, RoPE; keys and values to the cache
    LW_OP_ATTENTION = 4,   // attention itself
    LW_OP_ATTN_CODES = 5,  // quantization of its result
    LW_OP_ATTN_OUTPUT = 6,
    LW_OP_FFN_NORM = 7,
    LW_OP_ROUTE = 8,  // choice of experts, and their rows' codes
    LW_OP_GATE_UP = 9,
    LW_OP_ACTIVATE = 10,  // SiLU and quantization
    LW_OP_DOWN = 11,
    LW_OP_COMBINE = 12,  // sums over experts; biases of down projections
    LW_OP_OUTPUT_NORM = 13,
    LW_OP_HEAD = 14,
    LW_OP_SAMPLE = 15,  // draws
    LW_OPERATION_COUNT = 16
} lw_operation;

typedef struct lw_profile_row {
    char operation[16];
    char kernel[64];      // symbol of the kernel table's row; empty for all but matrix products
    double work_seconds;  // of all threads together
    double wait_seconds;  // of all threads together, at the barrier after the operation
    uint64_t bytes;       // operands and results, each counted once per step whichever cache holds it
    uint64_t macs;
} lw_profile_row;

// The inputs of the matrices of one product, over all rows since the session was opened. Their sizes are |value|.
typedef struct lw_input_stats {
    char operation[16];  // qkv, attn_output, gate_up, down; head
    uint32_t layer;      // 0 for the head
    uint32_t largest_input;
    uint64_t values;
    double total;             // of the sizes
    uint64_t groups;          // up to 32 inputs of one row, from a multiple of 32 on
    uint64_t outlier_groups;  // in which one size is more than 8 times every other
    float largest;            // size, that of largest_input
} lw_input_stats;

typedef struct lw_kernel_info {
    char symbol[64];
    char isa[16];
    char weights[16];
    uint32_t min_rows;   // smallest batch the kernel is used for
    uint32_t available;  // 1 when this CPU can run it
} lw_kernel_info;

// A kernel with a rival: another one of the level that reads the same layout and takes the same batches. Which is faster
// depends on the core; both give the same bits.
typedef struct lw_choice {
    char symbol[64];
    char rival[64];
    uint32_t least_rows;  // smallest batch that `symbol` may be used for
    uint32_t min_rows;    // smallest batch that `symbol` is used for instead of `rival`; UINT32_MAX = none
} lw_choice;

typedef struct lw_limits {
    double read_gb_s;    // sequential reads of memory far larger than the caches, 1e9 bytes per second
    double int8_gmac_s;  // int8 multiply-accumulates with the fastest instruction of the level, 1e9 per second
} lw_limits;

uint32_t lw_abi_version(void);
const char* lw_last_error(void);  // never NULL; valid until this thread's next failing call

// Best level of this CPU, and the features found: levels, and with SVE the bits of a vector ("... i8mm sve vl256").
// Both static strings.
const char* lw_cpu_isa(void);
const char* lw_cpu_features(void);
// LW_OK when this CPU can run `isa` (a level name, NULL for the best one), LW_ERR_CPU or LW_ERR_ARGUMENT otherwise.
lw_status lw_cpu_check(const char* isa);

// LW_OK when memory can be placed on each of these nodes (numbers as in /sys/devices/system/node), LW_ERR_ARGUMENT when
// there is no such node or the process may not use it, LW_ERR_SYSTEM when the system forbids placing, as containers do.
lw_status lw_numa_check(const uint32_t* nodes, uint32_t n_nodes);

// Bytes of one row of `cols` weights in storage type `type`; 0 if the type cannot hold such a row.
uint64_t lw_row_bytes(lw_type type, uint32_t cols);

// `isa` names a level, or NULL for the best one. `n_threads` threads pack the weights.
lw_status lw_model_create(const lw_model_config* config, const char* isa, uint32_t n_threads, lw_model** out);
// Before the first tensor is loaded: where weights will lie, and KV caches of sessions. Weights used where they are
// (LW_LOAD_MAP) stay there. With LW_NUMA_REPLICATE lw_model_finish makes a copy of all matrices that a step reads whole for
// each of the nodes, at most 64, but the first. Errors are those of lw_numa_check.
lw_status lw_model_place(lw_model* model, lw_numa numa, const uint32_t* nodes, uint32_t n_nodes);
// Packs one tensor; `target` is the type to hold it in: its own, LW_Q4_0 or LW_Q8_0 for a float source, LW_Q4_0 for
// LW_Q8_0. A tensor that is loaded again takes the place of the first.
lw_status lw_model_load(lw_model* model, lw_role role, uint32_t layer, const lw_tensor* tensor, lw_type target);
// Takes packed tensors and checks their checksums. Those in a layout that this level does not read are repacked into
// memory of the model's own, whatever `how` says. When one is refused, those before it are loaded.
lw_status lw_model_load_packed(lw_model* model, const lw_packed_tensor* tensors, uint32_t n_tensors, lw_load how);
// The packed form of one loaded tensor; its data belongs to the model. LW_ERR_ARGUMENT when it is not loaded.
lw_status lw_model_packed(const lw_model* model, lw_role role, uint32_t layer, lw_packed_tensor* out);
// Whether matrices of `type` in `layout` are what `model` reads, without being repacked: 1 or 0.
uint32_t lw_model_reads_layout(const lw_model* model, lw_type type, const char* layout);
// Checks that nothing is missing and that every kernel in use agrees with scalar. Once: LW_ERR_ARGUMENT when the model is
// finished already. One that fails leaves a model to which tensors may be loaded still.
lw_status lw_model_finish(lw_model* model);
lw_status lw_model_describe(const lw_model* model, lw_model_info* out);
void lw_model_close(lw_model* model);

// An adapter of `model`, which must be finished, that changes nothing yet. It may be closed before or after the model, but
// not while a batch that names it is run or started. LW_ERR_ARGUMENT when inputs of the model's matrices are in an order
// of their own.
lw_status lw_adapter_create(const lw_model* model, lw_adapter** out);
// Makes the product with one matrix, of LW_ATTN_Q, K, V, OUTPUT, LW_FFN_GATE, UP or DOWN, W x + B (scale * (A x)):
// A has shape (rank, inputs), B (outputs, rank), both of one type, F32, F16 or BF16, in which they are held. Each matrix
// once, and while the model is open.
lw_status lw_adapter_load(lw_adapter* adapter, lw_role role, uint32_t layer, const lw_tensor* a, const lw_tensor* b,
                          float scale);
// Bytes of weights that it holds; 0 for NULL.
uint64_t lw_adapter_bytes(const lw_adapter* adapter);
void lw_adapter_close(lw_adapter* adapter);

// Bytes of KV cache that one block takes over all layers; 0 for NULL, or a type that no cache has.
uint64_t lw_kv_block_bytes(const lw_model* model, lw_type kv_type);
lw_status lw_session_open(const lw_model* model, const lw_session_config* config, lw_session** out);
// At any time: draws that are held are not made, steps that were started are not run unless they run already. What those
// point to must stay until it returns.
void lw_session_close(lw_session* session);

// Runs the model over the batch, appends its keys and values to the cache, writes logits [n_logits][vocab_size] and what
// was drawn from them [n_logits]; `drawn` may be NULL when the batch has no draws.
//
// A step fails in one of two ways. LW_ERR_ARGUMENT: an argument is refused before it runs, nothing has been written and no
// block copied. Any other status (LW_ERR_NONFINITE, LW_ERR_NO_TOKEN): it failed as it ran. Then all its copies have been
// made, and must not be asked for again; logits and drawn, and in the cache the places of the batch's own tokens, hold
// anything. In both cases every other place of the cache is as it was, and the same tokens may be run again in another
// batch. A step after one that failed as it ran cannot name tokens that it should have drawn.
lw_status lw_step(lw_session* session, const lw_batch* batch, float* logits, lw_sampled* drawn);
// Before a step: once it has its logits it waits until every hold has been released, and draws then. So the masks that its
// draws read may be written while it runs. A step that fails or draws nothing does not wait.
lw_status lw_session_hold_draws(lw_session* session);
// Takes back one hold, before, during or after a step and by any thread. LW_ERR_ARGUMENT when there is none.
lw_status lw_session_release_draws(lw_session* session);
// As they were after the last step that was run; by any thread.
lw_status lw_session_counters(lw_session* session, lw_counters* out);
// Starts a step like lw_step and returns; a thread of the session runs it when those started before have been run. What
// the batch points to, logits and drawn must stay as they are until it is finished. Of LW_STEPS_AHEAD at most that are not
// finished each may name tokens that the one before is still to draw (LW_DRAWN_BEFORE). Arguments are checked here: one
// that is refused is not started, and leaves those that were as they are; so does LW_ERR_MEMORY. When a step fails, those
// started behind it before it was finished do nothing (LW_ERR_ARGUMENT). Until all are finished nothing else may be run,
// or profiled.
lw_status lw_session_start(lw_session* session, const lw_batch* batch, float* logits, lw_sampled* drawn);
// Waits until the oldest step started has been run, but not longer than `timeout_ns` (0: not at all; any number is good);
// *done says whether it has. LW_ERR_ARGUMENT when none was started.
lw_status lw_session_await(lw_session* session, uint64_t timeout_ns, uint32_t* done);
// Waits for the oldest step started and takes it off the list; the status is that of lw_step, *out tells when it ran, also
// when it failed: 0 and 0 if it was not run because one before it had failed. LW_ERR_ARGUMENT when none was started, and
// *out is then not written.
lw_status lw_session_finish(lw_session* session, lw_finished* out);
// Starts (on = 1) to measure where the time of steps and draws goes, from zero, or stops (on = 0) and forgets it.
// Off in a new session. Measuring costs two readings of the clock per thread and operation.
lw_status lw_session_profile(lw_session* session, uint32_t on);
// Writes the first `capacity` rows; *n_rows is how many there are, 0 when nothing is measured.
lw_status lw_session_profile_rows(const lw_session* session, lw_profile_row* out, uint32_t capacity, uint32_t* n_rows);

// Writes the first `capacity` rows of what a session with observe_inputs has seen: four for each layer and one for the
// head. *n is how many there are, 0 when nothing is observed.
lw_status lw_session_inputs(const lw_session* session, lw_input_stats* out, uint32_t capacity, uint32_t* n);

uint32_t lw_kernel_count(void);
lw_status lw_kernel_describe(uint32_t index, lw_kernel_info* out);

// Writes the first `capacity` choices that a level leaves open, as they stand; *n is how many there are, often 0. `isa`
// names a level, or NULL for the best one.
lw_status lw_choices(const char* isa, lw_choice* out, uint32_t capacity, uint32_t* n);
// The same as a measurement on this core would have them; takes about a tenth of a second if there are any. Changes
// nothing.
lw_status lw_tune(const char* isa, lw_choice* out, uint32_t capacity, uint32_t* n);
// Makes choices hold for the whole process, from the next step on. No result depends on them. LW_ERR_ARGUMENT, and then
// none holds, when a kernel has no such rival or min_rows is below its least.
lw_status lw_choose(const lw_choice* choices, uint32_t n);

enum { LW_MAX_FETCH_AHEAD = 1 << 20 };
// Arm: lets kernels ask for weights so many bytes before their use, for the whole process, from the next step on; 0, as it
// is at first, leaves that to the hardware. No result depends on it. LW_ERR_ARGUMENT when it is more than
// LW_MAX_FETCH_AHEAD, or not 0 on x86.
lw_status lw_set_fetch_ahead(uint32_t n_bytes);

// Measures this machine with n_threads threads (1 to 256) pinned to the allowed cores; takes a few seconds and 1 GiB.
lw_status lw_measure_limits(uint32_t n_threads, const char* isa, lw_limits* out);

// A mapped file whose file shrinks, or whose disk fails, ends the process with SIGBUS when it is read. From now on, where
// that happens in the n_bytes at `begin`, one line that names `name` and says what to do is written to standard error
// first; the process still ends by the signal. Elsewhere SIGBUS does what it did before the first call, which installs a
// handler for good. LW_ERR_MEMORY when 1024 ranges are guarded.
lw_status lw_guard_mapping(const void* begin, uint64_t n_bytes, const char* name);
// Before the range at `begin` is unmapped. LW_ERR_ARGUMENT when none is guarded there.
lw_status lw_unguard_mapping(const void* begin);

// Quantizing: how a code becomes the number that is multiplied by the scale.
typedef enum lw_fit_map {
    LW_FIT_UNIFORM = 0,  // low + code
    LW_FIT_TABLE = 1,    // levels[selector][code], ascending
    LW_FIT_TRELLIS = 2   // levels[selector][code << 2 | previous code]; minimums are ignored
} lw_fit_map;

// Columns of a matrix to quantize, row by row: for each row the candidate (scales, minimums, selector) and the codes
// of least sum over columns k of weights[k] * residual[k]^2, where residual = target - (scale * level - minimum) and
// each residual changes the targets after it: target[j] -= residual[k] * feedback[k][j]. Uniform and table codes are
// the nearest, column by column; trellis codes the best of one path per state.
typedef struct lw_fit_job {
    lw_fit_map map;
    uint32_t rows;
    uint32_t columns;  // at most 128, a multiple of group
    uint32_t group;    // columns that share a scale, 16 or more
    uint32_t n_candidates;
    int32_t low, high;  // UNIFORM: first and last level
    uint32_t n_levels;  // TABLE: 2 to 16; TRELLIS: 16
    uint32_t n_selectors;
    const float* levels;       // [n_selectors][n_levels]; whole numbers
    const float* targets;      // [columns][rows]
    const float* weights;      // [columns]
    const float* feedback;     // [columns][columns], read above its diagonal, or NULL
    const float* scales;       // [n_candidates][columns / group][rows]
    const float* minimums;     // likewise, or NULL
    const uint8_t* selectors;  // [n_candidates][rows], or NULL (all 0)
    const uint8_t* states;     // [rows] code before the first column, or NULL (all 0)
    uint8_t* codes;            // out, [columns][rows]
    float* values;             // out, [columns][rows]: scale * level - minimum
    float* losses;             // out, [rows]
    uint32_t* choices;         // out, [rows]: the first candidate of least loss
} lw_fit_job;

// The job's rows begin .. end-1, by the calling thread alone: callers share the rows among threads of theirs.
lw_status lw_fit(const lw_fit_job* job, uint32_t begin, uint32_t end);

// cdef-end

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

#ifdef __cplusplus
}
#endif

#endif
