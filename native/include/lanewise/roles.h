// The tensors of a model by name: what each is, and its shape. Part of lanewise.h; include that file.

// The role of a tensor in the model. Matrices have shape (outputs, inputs), vectors (1, size).
typedef enum lw_role {
    LW_TOKEN_EMBEDDING = 0,  // (vocab_size, hidden_size); also the head when tied
    LW_OUTPUT = 1,           // (vocab_size, hidden_size), absent when tied
    LW_OUTPUT_NORM = 2,      // (1, hidden_size)
    LW_ATTN_NORM = 3,        // (1, hidden_size); from here on once per layer
    LW_ATTN_Q = 4,           // (n_heads * head_dim, query_rank if above 0, else hidden_size)
    LW_ATTN_K = 5,           // (n_kv_heads * head_dim, hidden_size)
    LW_ATTN_V = 6,           // (n_kv_heads * value_dim, hidden_size)
    LW_ATTN_Q_BIAS = 7,
    LW_ATTN_K_BIAS = 8,
    LW_ATTN_V_BIAS = 9,
    LW_ATTN_Q_NORM = 10,  // (1, head_dim), or all heads' dimensions (lw_qk_norm)
    LW_ATTN_K_NORM = 11,
    LW_ATTN_OUTPUT = 12,  // (hidden_size, n_heads * value_dim), and so below where value_dim is 0: of head_dim
    LW_FFN_NORM = 13,
    LW_FFN_GATE = 14,  // (ffn_size, hidden_size)
    LW_FFN_UP = 15,
    LW_FFN_DOWN = 16,  // (hidden_size, ffn_size)
    // Optional vectors, each a permutation of 0 .. size-1. Input j of the matrices after it is value number order[j].
    // So inputs that share a scale lie together (GPTQ's act-order).
    LW_ATTN_INPUT_ORDER = 17,   // (1, hidden_size), for Q, K, V and the gate; not in a layer with a state
    LW_ATTN_OUTPUT_ORDER = 18,  // (1, n_heads * head_dim)
    LW_FFN_INPUT_ORDER = 19,    // (1, hidden_size), for gate and up
    LW_ATTN_OUTPUT_BIAS = 20,   // (1, hidden_size)
    LW_ATTN_SINKS = 21,         // (1, n_heads)
    LW_FFN_GATE_BIAS = 22,      // (1, ffn.size)
    LW_FFN_UP_BIAS = 23,
    LW_FFN_DOWN_BIAS = 24,  // (1, hidden_size)
    // Layers with experts. The matrices of all experts are stacked: the rows of expert 0, of expert 1, and so on.
    LW_ROUTER = 25,              // (n_experts, hidden_size), F32, F16 or BF16
    LW_ROUTER_BIAS = 26,         // (1, n_experts)
    LW_ROUTER_CHOICE_BIAS = 27,  // (1, n_experts)
    LW_EXPERTS_GATE = 28,        // (n_experts * size, latent_size if above 0, else hidden_size)
    LW_EXPERTS_UP = 29,
    LW_EXPERTS_DOWN = 30,       // (n_experts * (latent_size if above 0, else hidden_size), size)
    LW_EXPERTS_GATE_BIAS = 31,  // (1, n_experts * size)
    LW_EXPERTS_UP_BIAS = 32,
    LW_EXPERTS_DOWN_BIAS = 33,  // (1, n_experts * hidden_size)
    LW_SHARED_GATE = 34,        // (shared_size, hidden_size): the shared expert, which every token uses
    LW_SHARED_UP = 35,
    LW_SHARED_DOWN = 36,    // (hidden_size, shared_size)
    LW_SHARED_ROUTER = 37,  // (1, hidden_size)
    // Models whose norms have biases, each (1, hidden_size).
    LW_ATTN_NORM_BIAS = 38,
    LW_FFN_NORM_BIAS = 39,
    // Once per model, but LW_DENSE* once for each dense head: `layer` is the head's number.
    LW_OUTPUT_NORM_BIAS = 40,
    LW_POSITION_EMBEDDING = 41,    // (n_positions, hidden_size), F32, F16 or BF16
    LW_TOKEN_TYPE_EMBEDDING = 42,  // (n_token_types, hidden_size), F32, F16 or BF16
    LW_DENSE = 43,                 // (outputs, inputs); inputs: the outputs of the dense head before, or hidden_size
    LW_DENSE_BIAS = 44,            // (1, outputs)
    LW_DENSE_NORM = 45,            // (1, outputs)
    LW_DENSE_NORM_BIAS = 46,
    // Once per layer again, each (1, hidden_size): layers with result_norms.
    LW_ATTN_RESULT_NORM = 47,
    LW_FFN_RESULT_NORM = 48,
    // Attention with output_gate 1: (n_heads * head_dim, hidden_size); with 2: (n_heads, hidden_size).
    LW_ATTN_GATE = 49,
    // Layers with a state (lw_state_config), which have LW_ATTN_NORM too. channels: the convolution's; inner: n_heads *
    // value_dim, or hidden_size for LW_SHORT_CONV.
    LW_STATE_IN = 50,    // (channels, hidden_size); of LW_SHORT_CONV (3 * channels, hidden_size): b, c, x
    LW_STATE_GATE = 51,  // (inner, gate_rank if above 0, else hidden_size), z
    // (n_heads, hidden_size): a of LW_GATED_DELTA, dt of LW_SSD. Of LW_CHANNEL_DELTA (n_heads * key_dim, decay_rank if
    // above 0, else hidden_size)
    LW_STATE_DECAY = 52,
    LW_STATE_BETA = 53,       // (n_heads, hidden_size), of both delta rules
    LW_STATE_CONV = 54,       // (1, channels * taps): the taps of channel 0, oldest token first, then of channel 1, ...
    LW_STATE_CONV_BIAS = 55,  // (1, channels)
    LW_STATE_DECAY_BIAS = 56,  // (1, n_heads), of LW_CHANNEL_DELTA (1, n_heads * key_dim)
    LW_STATE_RATE = 57,        // (1, n_heads), A: 0 or less
    LW_STATE_SKIP = 58,        // (1, n_heads), D of LW_SSD
    LW_STATE_NORM = 59,        // (1, value_dim) of both delta rules, (1, inner) of LW_SSD
    LW_STATE_OUT = 60,         // (hidden_size, inner)
    LW_OUTPUT_BIAS = 61,       // (1, vocab_size), once per model
    // Models with a per_layer_size, P. Once per model:
    LW_PER_LAYER_EMBEDDING = 62,   // (vocab_size, n_layers * P)
    LW_PER_LAYER_PROJECTION = 63,  // (n_layers * P, hidden_size)
    LW_PER_LAYER_NORM = 64,        // (1, P)
    // Once per layer:
    LW_PER_LAYER_GATE = 65,         // (P, hidden_size)
    LW_PER_LAYER_OUT = 66,          // (hidden_size, P)
    LW_PER_LAYER_RESULT_NORM = 67,  // (1, hidden_size)
    // Latent attention, once per layer. The matrices of all heads are stacked.
    LW_LATENT_QUERY = 68,       // (query_rank, hidden_size)
    LW_LATENT_QUERY_NORM = 69,  // (1, query_rank)
    LW_LATENT_DOWN = 70,        // (latent_rank + rope_dim, hidden_size)
    LW_LATENT_NORM = 71,        // (1, latent_rank)
    LW_LATENT_KEYS = 72,        // (n_heads * latent_rank, head_dim - rope_dim)
    LW_LATENT_VALUES = 73,      // (n_heads * value_dim, latent_rank)
    // Experts with own_norms; each (1, hidden_size) except LW_ROUTER_SCALES.
    LW_ROUTER_NORM = 74,
    LW_EXPERTS_NORM = 75,
    LW_SHARED_RESULT_NORM = 76,
    LW_EXPERTS_RESULT_NORM = 77,
    LW_ROUTER_SCALES = 78,  // (1, n_experts)
    // A layer that is a prediction head (lw_layer_config.mtp):
    LW_MTP_EMBEDDING_NORM = 79,  // (1, hidden_size), but of a head that guesses blocks
    LW_MTP_HIDDEN_NORM = 80,     // (1, hidden_size)
    LW_MTP_PROJECTION = 81,      // (hidden_size, 2 * hidden_size): the inputs for the embedding first
    LW_MTP_NORM = 82,            // (1, hidden_size), used instead of the output norm
    // Of a tower (lw_patches), once per model:
    // (hidden_size, 3 * side * side, rounded up to a multiple of 32: further inputs are 0). Inputs are the patch's rows
    // of R, its rows of G, its rows of B.
    LW_PATCHES = 83,
    LW_PATCHES_BIAS = 84,  // (1, hidden_size)
    LW_PATCHES_NORM = 85,  // (1, hidden_size)
    // Once for each dense head, as LW_DENSE:
    LW_DENSE_INPUT_NORM = 86,       // (1, inputs)
    LW_DENSE_INPUT_NORM_BIAS = 87,  // the same, of a LayerNorm
    LW_MEAN_SHIFT = 88,             // (1, hidden_size), of a tower, once per model
    LW_MEAN_SCALE = 89,             // (1, hidden_size), the same
    LW_CLAMPS = 90,                 // (1, 4 * LW_CLAMPED_MATRICES), once per layer (lw_layer_config.clamps)
    // Of a tower, once per model:
    LW_PATCHES_INPUT_NORM = 91,  // (1, 3 * side * side), and the bias
    LW_PATCHES_INPUT_NORM_BIAS = 92,
    LW_PATCHES_NORM_BIAS = 93,  // (1, hidden_size), where norms have biases
    // Experts with a latent_size, L, once per layer:
    LW_EXPERTS_IN = 94,   // (L, hidden_size)
    LW_EXPERTS_OUT = 95,  // (hidden_size, L)
    // (index_heads * index_dim, query_rank; hidden_size with an index_block), of layers with index_heads, and all below
    LW_INDEX_QUERY = 96,
    LW_INDEX_KEY = 97,       // (index_dim, hidden_size)
    LW_INDEX_KEY_NORM = 98,  // (1, index_dim)
    LW_INDEX_KEY_NORM_BIAS = 99,
    LW_INDEX_WEIGHTS = 100,   // (index_heads, hidden_size)
    LW_ATTN_DISTANCES = 101,  // (1, n_heads * (2 * distances + 1)), once per layer (lw_attention_config.distances)
    // Once per layer: (1, n_heads * head_dim * (2 * distances + 1)), [head][dimension][distance]
    // (lw_attention_config.disentangled).
    LW_ATTN_POSITION_KEYS = 102,
    LW_ATTN_POSITION_QUERIES = 103,
    // Models with n_streams, N. Once per layer:
    LW_STREAM_NORM = 104,        // (1, hidden_size)
    LW_STREAM_ROUTER = 105,      // (1, N * hidden_size): a row for each stream
    LW_STREAM_PREDICTION = 106,  // (1, N * N * N): a row of N for each [i][k]
    LW_STREAM_CORRECTION = 107,  // (1, N * N)
    LW_STREAM_SCALE = 108,       // (1, hidden_size)
    LW_LAUREL_DOWN = 109,        // (laurel_rank, hidden_size)
    LW_LAUREL_UP = 110,          // (hidden_size, laurel_rank)
    LW_LAUREL_NORM = 111,        // (1, hidden_size)
    LW_STREAMS_IN = 112,         // ((N - 1) * hidden_size, hidden_size), once per model
    LW_STREAMS_OUT = 113,        // the same
    // A prediction head with taps (lw_head_config), once per layer.
    LW_HEAD_FUSION = 114,       // (hidden_size, n_taps * hidden_size)
    LW_HEAD_FUSION_NORM = 115,  // (1, n_taps * hidden_size)
    LW_HEAD_OUTPUT = 116,       // (outputs, hidden_size)
    LW_HEAD_TOKENS = 117,       // (1, outputs)
    LW_HEAD_EMBEDDING = 118,    // (vocab_size, hidden_size)
    LW_HEAD_RETURN = 119,       // (hidden_size, reader_size), of a head that reads the model's keys
    // Once per layer with an inner_norm.
    LW_ATTN_INNER_NORM = 120,   // (1, n_heads * head_dim)
    LW_FFN_INNER_NORM = 121,    // (1, size)
    LW_INDEX_QUERY_NORM = 122,  // (1, index_dim), of layers with an index_block
    // Layers with LW_CHANNEL_DELTA, once per layer; their LW_STATE_IN is that of q: (n_key_heads * key_dim, hidden_size).
    LW_STATE_DECAY_DOWN = 123,  // (decay_rank, hidden_size)
    LW_STATE_GATE_DOWN = 124,   // (gate_rank, hidden_size)
    LW_STATE_KEYS = 125,        // (n_key_heads * key_dim, hidden_size), k
    LW_STATE_VALUES = 126,      // (inner, hidden_size), v
    // Attention to shared rows, once per layer; D: head_dim, I: index_dim, twice as many with `overlap`.
    LW_COMPRESS_ROWS = 127,       // (D, hidden_size), of layers with `compress`, M, and the next three
    LW_COMPRESS_GATE = 128,       // (D, hidden_size)
    LW_COMPRESS_POSITIONS = 129,  // (1, M * D): D values for each token of an entry
    LW_COMPRESS_NORM = 130,       // (1, head_dim)
    LW_INDEX_ROWS = 131,          // (I, hidden_size), of layers with index_heads, and the next three
    LW_INDEX_GATE = 132,          // (I, hidden_size)
    LW_INDEX_POSITIONS = 133,     // (1, M * I)
    LW_INDEX_NORM = 134,          // (1, index_dim)
    LW_ATTN_GROUPS = 135,         // (output_groups * output_rank, n_heads * head_dim / output_groups)
    // Models with hyper_streams, N, once per layer. Matrices are F32, F16 or BF16.
    LW_HYPER_ATTN = 136,        // (N * (N + 2), N * hidden_size)
    LW_HYPER_ATTN_BASE = 137,   // (1, N * (N + 2))
    LW_HYPER_ATTN_SCALE = 138,  // (1, 3)
    LW_HYPER_FFN = 139,         // the same
    LW_HYPER_FFN_BASE = 140,
    LW_HYPER_FFN_SCALE = 141,
    LW_ROUTER_TABLE = 142,  // (1, vocab_size * n_used), of layers whose router looks tokens up: numbers of experts
    // Once per model:
    LW_HYPER_HEAD = 143,        // (N, N * hidden_size), F32, F16 or BF16
    LW_HYPER_HEAD_BASE = 144,   // (1, N)
    LW_HYPER_HEAD_SCALE = 145,  // (1, 1)
    LW_ROLE_COUNT = 146
} lw_role;
