// Weights: loading, packing, describing them; low-rank adapters. Part of lanewise.h; include that file.

typedef struct lw_tensor {
    const void* data;  // row-major rows in the storage type's own layout (GGUF blocks, little endian)
    uint64_t n_bytes;  // must equal rows * bytes per row
    lw_type type;
    uint32_t rows;        // outputs
    uint32_t cols;        // inputs
    uint32_t rope_heads;  // > 0: the rows of each of this many heads are in interleaved RoPE order (GGUF "llama" Q and
                          // K; their biases: the cols). Packing puts them into half-split order.
    const int8_t* table;  // [16] levels, -127 to 127, of LW_CB2 to LW_CB4, LW_T2, LW_GRID3 and LW_GRID4; else NULL
} lw_tensor;

// A tensor of a packed file (quantizer/FORMAT.md, "Packed files"): a matrix as panels, a vector as F32.
typedef struct lw_packed_tensor {
    lw_role role;
    uint32_t layer;
    const char* name;   // for messages; NULL = the name of the role
    const void* data;   // 64-byte aligned for matrices
    uint64_t n_bytes;   // must be the number that type, rows and cols give
    uint64_t checksum;  // sum over the 64-bit words w[i] of w[i] * (2 i + 1), modulo 2^64
    lw_type type;
    uint32_t rows;     // outputs
    uint32_t cols;     // inputs
    char layout[16];   // panel layout of a matrix, such as "c4b"
    int8_t table[16];  // levels of table and trellis types, else zero
} lw_packed_tensor;

typedef enum lw_load {
    LW_LOAD_MAP = 0,  // use the bytes where they are: they must stay there until lw_model_close
    LW_LOAD_COPY = 1  // copy them to memory of the model's own, on huge pages where the system grants them
} lw_load;

// Where memory is placed on a host with several NUMA nodes.
typedef enum lw_numa {
    LW_NUMA_OFF = 0,         // wherever the system places it
    LW_NUMA_INTERLEAVE = 1,  // pages of weights and KV caches go to the nodes in turn
    LW_NUMA_REPLICATE = 2    // a copy of the weights on each node; pages of KV caches go to the nodes in turn
} lw_numa;

typedef struct lw_model_info {
    char isa[16];             // level in use: scalar, avx2, avx512vnni, avx512vbmi, amx, neon, dotprod, i8mm, sve
    uint64_t packed_bytes;    // weights as held in memory, the copies of all nodes counted
    uint64_t matrix_bytes;    // bytes of weights read by one decode step (the embedding counted once, as the head)
    uint64_t matrix_weights;  // weights multiplied by one token with logits
    uint64_t layer_weights;   // weights multiplied by one token without logits
    uint64_t held_weights;    // all weights, experts that a token does not use included
    uint64_t expert_bytes;    // part of matrix_bytes: the experts that a router chooses for one token
    uint32_t numerics;
} lw_model_info;

// `isa` names a level, or NULL for the best one. `n_threads` threads pack the weights.
lw_status lw_model_create(const lw_model_config* config, const char* isa, uint32_t n_threads, lw_model** out);
// Call before the first tensor is loaded. Sets where weights and the KV caches of sessions are placed. Weights used
// where they are (LW_LOAD_MAP) stay there. With LW_NUMA_REPLICATE lw_model_finish copies all matrices that a step reads
// whole to each node but the first; at most 64 nodes. Errors are those of lw_numa_check.
lw_status lw_model_place(lw_model* model, lw_numa numa, const uint32_t* nodes, uint32_t n_nodes);
// Packs one tensor. The model holds it in type `target`: its own type (lw_held_type), LW_Q4_0 or LW_Q8_0 for a float
// source, LW_Q4_0 for LW_Q8_0. Loading a tensor again replaces it.
lw_status lw_model_load(lw_model* model, lw_role role, uint32_t layer, const lw_tensor* tensor, lw_type target);
// Takes packed tensors and checks their checksums. A tensor in a layout that this level does not read is repacked into
// memory of the model's own, whatever `how` says. When a tensor is refused, the ones before it stay loaded.
lw_status lw_model_load_packed(lw_model* model, const lw_packed_tensor* tensors, uint32_t n_tensors, lw_load how);
// Describes the packed form of a loaded tensor; its data belongs to the model. LW_ERR_ARGUMENT when it is not loaded.
lw_status lw_model_packed(const lw_model* model, lw_role role, uint32_t layer, lw_packed_tensor* out);
// Checks the checksum of a matrix packed for any level and writes its rows. Rows of float types, LW_Q4_0, LW_Q8_0 and
// LW_Q6_K have the storage type's own bytes, all others are stored rows (quantizer/FORMAT.md, "Coded types"). `n_bytes`
// must be the number that type, rows and cols give. After an error other than LW_ERR_ARGUMENT the contents of `rows`
// are undefined.
lw_status lw_packed_rows(const lw_packed_tensor* tensor, void* rows, uint64_t n_bytes);
// Decodes rows of a type that only files have (lw_held_type) to weights [rows][cols], in the order of the file. `n`
// must be rows * cols.
lw_status lw_file_weights(const lw_tensor* tensor, float* weights, uint64_t n);
// 1 if `model` reads matrices of `type` in `layout` without repacking them, else 0.
uint32_t lw_model_reads_layout(const lw_model* model, lw_type type, const char* layout);
// Checks that no tensor is missing and that every kernel in use agrees with the scalar one. LW_ERR_ARGUMENT when the
// model is finished already. After a failure tensors may still be loaded, and this may be called again.
lw_status lw_model_finish(lw_model* model);
lw_status lw_model_describe(const lw_model* model, lw_model_info* out);
void lw_model_close(lw_model* model);

// Creates an adapter of a finished model that changes nothing yet. It may be closed before or after the model, but not
// while a batch that names it is run or started. LW_ERR_ARGUMENT when the model has input orders (LW_ATTN_INPUT_ORDER
// and its like).
lw_status lw_adapter_create(const lw_model* model, lw_adapter** out);
// Makes the product with one matrix W x + B (scale * (A x)). A has shape (rank, inputs), B (outputs, rank); both have
// the same type, F32, F16 or BF16, and are held in it. `role` is LW_ATTN_Q (not of latent attention), K, V, GATE,
// OUTPUT, LW_STATE_IN, GATE, DECAY, BETA, OUT, LW_FFN_GATE, UP or DOWN. A matrix can be loaded once, while the model is
// open.
lw_status lw_adapter_load(lw_adapter* adapter, lw_role role, uint32_t layer, const lw_tensor* a, const lw_tensor* b,
                          float scale);
// Bytes of weights that the adapter holds; 0 for NULL.
uint64_t lw_adapter_bytes(const lw_adapter* adapter);
void lw_adapter_close(lw_adapter* adapter);
