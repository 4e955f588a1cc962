// Weights: loading, packing, describing them; adapters of theirs. Part of lanewise.h, which is what to include.

typedef struct lw_tensor {
    const void* data;  // row-major rows in the storage type's own layout (GGUF blocks, little endian)
    uint64_t n_bytes;  // must equal rows * bytes per row
    lw_type type;
    uint32_t rows;        // outputs
    uint32_t cols;        // inputs
    uint32_t rope_heads;  // > 0: rows of each of this many heads are in interleaved RoPE order (GGUF "llama" Q, K
                          // and their biases as cols) and are put into half-split order while packing
    const int8_t* table;  // [16] of LW_CB2 to LW_CB4, LW_T2, LW_GRID3 and LW_GRID4, from -127 to 127; else NULL
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

// `isa` names a level, or NULL for the best one. `n_threads` threads pack the weights.
lw_status lw_model_create(const lw_model_config* config, const char* isa, uint32_t n_threads, lw_model** out);
// Before the first tensor is loaded: where weights will lie, and KV caches of sessions. Weights used where they are
// (LW_LOAD_MAP) stay there. With LW_NUMA_REPLICATE lw_model_finish makes a copy of all matrices that a step reads whole for
// each of the nodes, at most 64, but the first. Errors are those of lw_numa_check.
lw_status lw_model_place(lw_model* model, lw_numa numa, const uint32_t* nodes, uint32_t n_nodes);
// Packs one tensor; `target` is the type to hold it in: its own (lw_held_type), LW_Q4_0 or LW_Q8_0 for a float source,
// LW_Q4_0 for LW_Q8_0. A tensor that is loaded again takes the place of the first.
lw_status lw_model_load(lw_model* model, lw_role role, uint32_t layer, const lw_tensor* tensor, lw_type target);
// Takes packed tensors and checks their checksums. Those in a layout that this level does not read are repacked into
// memory of the model's own, whatever `how` says. When one is refused, those before it are loaded.
lw_status lw_model_load_packed(lw_model* model, const lw_packed_tensor* tensors, uint32_t n_tensors, lw_load how);
// The packed form of one loaded tensor; its data belongs to the model. LW_ERR_ARGUMENT when it is not loaded.
lw_status lw_model_packed(const lw_model* model, lw_role role, uint32_t layer, lw_packed_tensor* out);
// The rows of a packed matrix, whatever level it is packed for, after a check of its checksum: in the storage type's own
// bytes if it is a float type, LW_Q4_0, LW_Q8_0 or LW_Q6_K, of all others as stored rows (quantizer/FORMAT.md, "Coded
// types"). `n_bytes` must be what type, rows and cols give. After an error other than LW_ERR_ARGUMENT, what `rows` holds
// is undefined.
lw_status lw_packed_rows(const lw_packed_tensor* tensor, void* rows, uint64_t n_bytes);
// The weights [rows][cols] of rows of a type that only files have (lw_held_type), in the order they are stored in. `n` must
// be rows * cols.
lw_status lw_file_weights(const lw_tensor* tensor, float* weights, uint64_t n);
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
// Makes the product with one matrix, of LW_ATTN_Q, K, V, GATE, OUTPUT, LW_STATE_IN, GATE, DECAY, BETA, OUT, LW_FFN_GATE, UP
// or DOWN, but Q of latent attention, W x + B (scale * (A x)): A has shape (rank, inputs), B (outputs, rank), both of one
// type, F32, F16 or BF16, in which they are held. Each matrix once, and while the model is open.
lw_status lw_adapter_load(lw_adapter* adapter, lw_role role, uint32_t layer, const lw_tensor* a, const lw_tensor* b,
                          float scale);
// Bytes of weights that it holds; 0 for NULL.
uint64_t lw_adapter_bytes(const lw_adapter* adapter);
void lw_adapter_close(lw_adapter* adapter);
