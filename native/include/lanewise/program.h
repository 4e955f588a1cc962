// What a model computes: its layers one by one, and the tensors they need. Part of lanewise.h; include that file.

// RoPE of the queries and keys of some layers: dimensions i and i + rotated / 2 of a head are rotated by the angle
// position * theta^(-2 i / rotated) / factors[i], or position * frequencies[i].
typedef struct lw_rope {
    double theta;
    uint32_t rotated;          // dimensions of a head that are rotated, the first ones; even
    float scale;               // factor of sines and cosines; 1 unless a kind of RoPE scaling has another
    const float* factors;      // [rotated / 2], 1e-6 or more, infinity = no rotation; NULL = all 1
    const float* frequencies;  // [rotated / 2], at most 1; NULL = as theta and factors say
    // [rotated / 2] which position of the token turns the pair: one of lw_batch.positions, below LW_AXES; of a tower's
    // patch 0 = its row in the picture, 1 = its column. NULL = all 0.
    const uint32_t* axes;
} lw_rope;

enum { LW_AXES = 3 };

enum { LW_NO_ROPE = -1 };

typedef enum lw_qk_norm {
    LW_QK_NORM_NONE = 0,
    LW_QK_NORM_HEAD = 1,    // RMSNorm over each head of Q and K, before RoPE
    LW_QK_NORM_WHOLE = 2,   // RMSNorm over all heads together, before RoPE
    LW_QK_NORM_TURNED = 3,  // RMSNorm over each head, after RoPE
    // LayerNorm over each head, before RoPE: a weight for each dimension of each head, no biases
    LW_QK_NORM_LAYER = 4
} lw_qk_norm;

typedef struct lw_attention_config {
    uint32_t n_heads;  // 0: the layer has no attention, and every other field is 0
    uint32_t n_kv_heads;
    uint32_t head_dim;  // even, at most 512
    uint32_t window;    // tokens each query sees, its own included; 0 = all
    uint32_t chunk;     // a text is cut into chunks of so many tokens, and a query sees those of its own; a multiple of
                        // 32, 0 = off. Only without window, both_ways and latent_rank
    // 1: a query also sees later tokens, as many as `window` lets it see before it; only in pooled models. 2: it sees
    // those that lw_batch.sees says; not in pooled models and not in latent attention
    uint32_t both_ways;
    int32_t rope;          // index into the model's ropes, or LW_NO_ROPE
    uint32_t qkv_bias;     // 1: Q, K and V have biases
    uint32_t output_bias;  // 1: LW_ATTN_OUTPUT has a bias
    lw_qk_norm qk_norm;
    uint32_t sinks;              // 1: the softmax of each head has one more term, exp(sink), whose value row is 0
    uint32_t alibi;              // ALiBi; 0 = none. 1: for each token of distance the scores of head i fall by a slope,
                                 // 2^(-8 (i + 1) / n_heads). If n_heads is no power of two, the p first heads (p: the
                                 // power of two below) have the slopes of p heads, and the rest have every second slope
                                 // of 2 p heads. 2: slopes are multiplied by score_scale
    uint32_t distances;          // 0 = off; else to scores of head h is added number h * (2 * distances + 1) +
                                 // distances + d of LW_ATTN_DISTANCES, d: the key's position minus the query's, at
                                 // least -distances and at most distances; at most 65536
    uint32_t disentangled;       // 1: in the place of a number, two products are added to a score (DeBERTa): the scaled
                                 // query times the distance's column of LW_ATTN_POSITION_KEYS, and the key times that
                                 // of LW_ATTN_POSITION_QUERIES. distances must be context_length + 30 or more
    float score_scale;           // factor of Q K; 0 = 1 / sqrt(head_dim)
    float position_beta;         // 0 = off; else Q at position p is multiplied by
    uint32_t position_original;  // 1 + position_beta * ln(1 + floor((p + position_offset) / position_original))
    uint32_t position_offset;    // 0 or 1
    uint32_t output_gate;        // 1: results are multiplied by sigmoid(LW_ATTN_GATE x); 2: all results of a head by
                                 // one such number
    uint32_t gate_softplus;      // 1: by softplus, ln(1 + exp(LW_ATTN_GATE x)); only with an output_gate
    uint32_t inner_norm;         // 1: the results of all heads together go through LW_ATTN_INNER_NORM, by the model's
                                 // kind of norm without a bias, before LW_ATTN_OUTPUT; not in latent attention
    float score_softcap;         // 0 = off; else scores become cap * tanh(score / cap), before other terms are added
    uint32_t values_are_keys;    // 1: there is no LW_ATTN_V; V is K before K's norm and RoPE
    uint32_t value_norm;         // 1: RMSNorm over each head of V, without weights
    float value_scale;           // factor of V, with its bias; 0 = 1
    float qkv_clip;              // 0 = off; else Q and K are clamped to -clip .. clip before RoPE, V before its norm
    uint32_t shares_kv;          // 1: the layer has no K and V and reads those of layer kv_layer
    uint32_t kv_layer;  // an earlier layer with its own K and V, and the same KV heads, sizes of heads and window
    // Latent attention (MLA), if latent_rank is above 0. (c, r) is the product of LW_LATENT_DOWN. The cache has one row
    // per token for all heads: norm(c), then r rotated. (n, t) is the Q of a head, t its last rope_dim values, rotated.
    // K and V are the head's parts of LW_LATENT_KEYS and LW_LATENT_VALUES. Then the head's scores are (K n, t) . row,
    // and its result is V times the weighted sum of the rows' first latent_rank values. n_kv_heads is 1. With LW_NO_ROPE
    // nothing is rotated. Refused with it: biases of Q, K and V, norms of heads, ALiBi, shares_kv.
    uint32_t latent_rank;  // a multiple of 32, at most 1024
    uint32_t rope_dim;     // dimensions that `rope` rotates; below head_dim
    // Values of a head's result: here a multiple of 32, at most 1024. Without latent_rank those of a head of V, at most
    // head_dim; 0 = head_dim.
    uint32_t value_dim;
    uint32_t query_rank;  // 0, or Q reads norm(LW_LATENT_QUERY x), which has query_rank values
    float latent_eps;     // epsilon of the norms of c, of LW_LATENT_QUERY x and of LW_INDEX_KEY x
    // Sparse attention (DeepSeek V3.2), if index_topk is above 0: of the tokens up to itself a query sees the index_topk
    // ones of the largest index scores, of equal ones the first. Needs query_rank and no window. k is LayerNorm(
    // LW_INDEX_KEY x), q a head's part of LW_INDEX_QUERY norm(LW_LATENT_QUERY x); `rope` rotates the first rope_dim
    // values of both. The score of a query and a token is the sum over the heads of w * max(0, q . k), with w the head's
    // value of LW_INDEX_WEIGHTS x of the query. The cache keeps k of each token beside its latent row.
    uint32_t index_topk;   // at most 2^20; 0 = a query sees all tokens, and the layer has no index
    uint32_t index_heads;  // at most 256; 0: the tokens are those that the last layer before with index_heads chose
    uint32_t index_dim;    // even, rope_dim to 512; 0 without index_heads
    // Of plain heads (MiniMax M3), if index_block is above 0: index_topk tokens are whole blocks of as many, and each index
    // head chooses for n_kv_heads / index_heads KV heads. Always seen are the query's own block, up to the query, and
    // index_local - 1 before it; of the blocks before these, those of the largest scores. k is RMSNorm(LW_INDEX_KEY x), q
    // the RMSNorm of a head's part of LW_INDEX_QUERY x, with rms_norm_eps; `rope` rotates both as heads. The score of a
    // query and a block is the largest q . k of its tokens. There is no LW_INDEX_WEIGHTS and no LW_INDEX_KEY_NORM_BIAS.
    // Not with latent_rank, window, chunk, both_ways, shares_kv, alibi or distances.
    uint32_t index_block;  // a multiple of 32, at most 4096, that divides index_topk; 0 = tokens are chosen
    uint32_t index_local;  // 1 to index_topk / index_block; 0 without index_block
    // Attention to shared rows (DeepSeek V4), if shared_rows is 1: one row of a token, norm(LW_ATTN_K x), is the key and
    // the value of all heads. Q is of LW_LATENT_QUERY, as of latent attention, and each head of it goes through RMSNorm
    // without weights. `rope` turns the last rope_dim values of rows and of heads of Q, dimensions 2i and 2i + 1 by
    // angle i, and those of a head's result by the query's angles backwards. Of each of output_groups equal parts of the
    // results LW_ATTN_GROUPS makes output_rank values, all of which LW_ATTN_OUTPUT reads. n_kv_heads is 1, head_dim a
    // multiple of 16. Refused with it: latent_rank and what is refused with that, score_softcap and position_beta.
    uint32_t shared_rows;
    uint32_t output_groups;  // a divisor of n_heads
    uint32_t output_rank;    // a multiple of 32
    // M, 0 = none: each M tokens of a text make an entry besides, which queries of its last token and of later ones see
    // as a further row, whatever the window is. Dimension by dimension an entry is the mean of the tokens' values,
    // LW_COMPRESS_ROWS x, weighted by the softmax of LW_COMPRESS_GATE x + LW_COMPRESS_POSITIONS; then come
    // LW_COMPRESS_NORM and `rope`, at the place of its first token. M divides 32, or is a multiple of it. With
    // index_topk a query sees as many entries at most, those of the largest index scores, as above. Their k is an entry
    // of LW_INDEX_ROWS, LW_INDEX_GATE, LW_INDEX_POSITIONS and LW_INDEX_NORM; w is divided by sqrt(index_heads * index_dim).
    uint32_t compress;
    uint32_t overlap;  // 1: an entry is also made of the M tokens before, by the first halves of values and gates
} lw_attention_config;

// Layers that keep a state of each sequence instead of its keys and values. All are recurrences over the tokens in
// order. x is the row after the layer's norm, conv a causal convolution of each channel over `taps` tokens.
typedef enum lw_state_kind {
    LW_NO_STATE = 0,
    // LFM2: out (c * conv(b * x)).
    LW_SHORT_CONV = 1,
    // Gated delta rule (Qwen3-Next). q, k, v = silu(conv(in x)); q and k are divided by their length, q also by
    // sqrt(key_dim). For each head, with g = exp(A * softplus(a + bias)) and beta = sigmoid of LW_STATE_BETA's product:
    //     S *= g; S += k (beta * (v - S^T k))^T; o = S^T q
    // Result: out (rmsnorm(o) * silu(z)), norms over value_dim.
    LW_GATED_DELTA = 2,
    // State space duality (Mamba 2). x, B, C = silu(conv(in x) + bias). For each head, with d = softplus(dt + bias):
    //     S = exp(d * A) * S + B (d * x)^T; y = S^T C + D * x
    // Result: out (rmsnorm(y * silu(z))), norms over norm_size values.
    LW_SSD = 3,
    // Gated delta rule with a decay for each channel of a key (Kimi Linear). As LW_GATED_DELTA, but g and a are vectors
    // of key_dim, S *= g multiplies row i by g[i], and q, k and v have a matrix each. With a decay_floor f other than 0
    // g = exp(-f * sigmoid(-A * (a + bias))). Result: out (rmsnorm(o) * sigmoid(z)), norms over value_dim.
    LW_CHANNEL_DELTA = 4
} lw_state_kind;

typedef struct lw_state_config {
    lw_state_kind kind;  // LW_NO_STATE: every other field is 0
    uint32_t taps;       // tokens that the convolution sees, its own included; 2 to 8
    // Kinds with heads only, all but LW_SHORT_CONV, else 0. The channels are q, k, v or x, B, C: n_heads * value_dim + 2 *
    // n_key_heads * key_dim.
    uint32_t n_heads;
    uint32_t value_dim;     // columns of a head's state; a multiple of 16, at most 256
    uint32_t n_key_heads;   // heads of q and k, groups of B and C; a divisor of n_heads
    uint32_t key_dim;       // rows of a head's state; a multiple of 16, at most 256
    uint32_t keys_in_turn;  // 1: head h has key head h % n_key_heads, 0: h / (n_heads / n_key_heads)
    uint32_t conv_bias;     // LW_SSD only, 1: the convolution has biases
    uint32_t norm_size;     // LW_SSD only: number of values in each norm of results, a divisor of inner; 0 = no norm
    float norm_eps;         // epsilon of the norms of results
    // LW_CHANNEL_DELTA only, else 0.
    uint32_t decay_rank;  // 0, or a is LW_STATE_DECAY (LW_STATE_DECAY_DOWN x), with so many values between
    uint32_t gate_rank;   // 0, or z is LW_STATE_GATE (LW_STATE_GATE_DOWN x)
    float decay_floor;    // 0, or no decay is below exp(-decay_floor); at most 80
} lw_state_config;

typedef enum lw_ffn_kind {
    LW_FFN_GATED = 0,    // down (activation(gate x) * up x)
    LW_FFN_EXPERTS = 1,  // a weighted sum of the results of some experts, which a router chooses for each token
    LW_FFN_PLAIN = 2,    // down (activation(up x))
    LW_FFN_NONE = 3      // the layer has no FFN, and every other field is 0
} lw_ffn_kind;

typedef enum lw_activation {
    LW_SILU = 0,       // g * sigmoid(g); gated kinds multiply by u, here and below
    LW_CLAMPED = 1,    // g at most limit, u in -limit .. limit: g * sigmoid(alpha * g) * (u + 1); gated kinds only
    LW_GELU = 2,       // g * Phi(g), Phi the distribution function of the normal distribution
    LW_GELU_TANH = 3,  // g * sigmoid(2 * sqrt(2 / pi) * (g + 0.044715 * g^3))
    LW_RELU = 4,
    LW_TANH = 5,          // dense heads only
    LW_IDENTITY = 6,      // dense heads only
    LW_RELU_SQUARED = 7,  // max(g, 0)^2
    // alpha * g^2 + g / 2 if g is above 0, else limit * (exp(min(g, -1e-6)) - 1 - g) + g / 2; not of experts. xIELU
    // (Apertus): alpha is its positive parameter, limit its negative one.
    LW_XIELU = 8,
    LW_CAPPED = 9,   // silu(g), at most limit, times u in -limit .. limit; limit 0 = none; gated kinds only
    LW_LIMITED = 10  // silu(g), g at most limit, times u in -limit .. limit; gated kinds only
} lw_activation;

// How a router turns its logits, one for each expert, into a choice and weights.
typedef enum lw_router_kind {
    LW_ROUTER_SOFTMAX = 0,       // weights: softmax over all; chosen: the largest weights
    LW_ROUTER_TOP_SOFTMAX = 1,   // chosen: the largest logits; weights: softmax over the chosen ones
    LW_ROUTER_SIGMOID = 2,       // weights: sigmoid of each; chosen: the largest weights
    LW_ROUTER_SQRT_SOFTPLUS = 3  // weights: sqrt(ln(1 + exp)) of each; chosen: the largest weights
} lw_router_kind;

// Experts are chosen in descending order; on a tie the lower number comes first. In order of choice the weighted
// results of a row's experts are added up, then comes the shared expert, then down_bias, then one addition to the
// residual stream.
typedef struct lw_ffn_config {
    lw_ffn_kind kind;
    uint32_t size;       // outputs of gate and of up; with experts those of one expert, a multiple of 32
    uint32_t bias;       // 1: gate, up and down have biases, also in experts
    uint32_t down_bias;  // 1: down has a bias, whatever `bias` says; experts without biases add it to their sum
    lw_activation activation;
    float limit, alpha;   // LW_CLAMPED, both above 0, and LW_XIELU only; LW_CAPPED has a limit
    uint32_t inner_norm;  // 1: what down reads goes through LW_FFN_INNER_NORM first; LW_FFN_GATED only
    // LW_FFN_GATED only. Other than 0: gate x becomes max(0, gate x - (mean + cutoff * deviation)), of all its values,
    // before the activation.
    float cutoff;
    // LW_FFN_EXPERTS only, else 0:
    uint32_t n_experts;  // at most 4096
    uint32_t n_used;     // experts chosen for each token, at most 64
    lw_router_kind router;
    uint32_t router_bias;            // 1: LW_ROUTER_BIAS is added to the logits
    uint32_t choice_bias;            // 1: LW_ROUTER_CHOICE_BIAS is added to the weights, for the choice only
    uint32_t n_groups, groups_used;  // experts are chosen from the groups whose two best weights have the largest sums;
                                     // 1 and 1 = all
    uint32_t groups_by_best;         // 1: from the groups whose best weight is largest
    uint32_t renormalize;  // 1: weights are divided by the larger of their sum + divisor_extra and divisor_least
    float divisor_extra, divisor_least;
    float scale;           // factor of the weights, applied last
    uint32_t shared_size;  // of the shared expert, which every token uses; a multiple of 32; 0 = none
    float shared_limit;    // limit of the shared expert; LW_CAPPED only
    uint32_t shared_gate;  // 1: the shared result is multiplied by sigmoid(LW_SHARED_ROUTER x)
    uint32_t ungated;      // 1: experts, the shared one too, are down (activation(up x))
    // 1: an expert's gate x and up x are multiplied by its weight, and its result is not. Refused with `bias`
    // and own_norms.
    uint32_t weighs_inputs;
    // 1: the router reads ROUTER_NORM(x), experts EXPERTS_NORM(x), the shared expert FFN_NORM(x). The weight of an
    // expert is multiplied by its LW_ROUTER_SCALES, last. Added to x is FFN_RESULT_NORM(SHARED_RESULT_NORM(shared) +
    // EXPERTS_RESULT_NORM(sum of the others)). Needs result_norms, LW_IN_TURN and a shared expert without a gate;
    // biases are refused.
    uint32_t own_norms;
    // 0, or the experts but the shared one work in a space of this size: they read LW_EXPERTS_IN x, their weighted sum
    // goes through LW_EXPERTS_OUT, and that is added to x after the shared expert's result. A multiple of 32, at most
    // hidden_size. Biases and own_norms are refused.
    uint32_t latent_size;
    // 1: a token's experts are those of its row of LW_ROUTER_TABLE, whatever their weights are. choice_bias is 0, and
    // n_groups 1.
    uint32_t looks_up;
} lw_ffn_config;

typedef enum lw_norm_kind {
    LW_NORM_RMS = 0,   // x / rms(x) * weight
    LW_NORM_LAYER = 1  // (x - mean) / sqrt(variance) * weight, plus a bias where norm_bias is 1
} lw_norm_kind;

// How the parts of a layer add to x. Attention and a state read the same norm.
typedef enum lw_wiring {
    LW_IN_TURN = 0,           // x += attention(attn_norm(x)), then x += ffn(ffn_norm(x))
    LW_PARALLEL = 1,          // x += attention(attn_norm(x)) + ffn(ffn_norm(x)), of the same x, in this order
    LW_PARALLEL_ONE_NORM = 2  // as LW_PARALLEL, but both of attn_norm(x): there is no LW_FFN_NORM
} lw_wiring;

// Parts add to x as `wiring` says. A state stands in the place of attention, or beside it: then both read the same
// norm(x), and attention's result is added first. A norm that replaces x does x = norm(x) before the addition. So in a
// model that normalizes after each addition (BERT) all norms replace x: the first layer's first norm is the one after
// the embedding, and each later norm, the output norm included, is the one after the addition before it.
typedef struct lw_layer_config {
    lw_attention_config attention;
    lw_state_config state;
    lw_ffn_config ffn;                               // a layer has at least one of FFN, attention and state
    uint32_t attn_norm_replaces, ffn_norm_replaces;  // 0 or 1; 0 if no part follows the norm
    // 1: the results of attention and FFN go through a norm each before they are added. Refused with biases of
    // attention's output, of down or of norms, with experts without own_norms, and with attention beside a state.
    uint32_t result_norms;
    // 1: there is neither LW_ATTN_NORM nor LW_FFN_NORM, parts read x itself. Only with result_norms.
    uint32_t no_input_norms;
    lw_wiring wiring;    // other than LW_IN_TURN only with attention and an FFN, if no norm replaces x
    float output_scale;  // x is multiplied by it at the layer's end; 0 = 1
    // 1: not a layer of the model, but a head that predicts the token after next (multi-token prediction). Its x at
    // token t is projection (embedding_norm(embedding of t), hidden_norm(h)). h is the row of the token before t,
    // behind the output norm, or behind LW_MTP_NORM if the head itself made it. The head attends to its own rows from
    // the second token on, and the model's head makes logits of LW_MTP_NORM's result. Only the last of several layers
    // may be one, with attention to all tokens and an FFN, LW_IN_TURN, without a state. The place for a sequence's
    // states then keeps the last h, even if no layer has a state.
    // 2: a further layer of the same head, of one that reads the model's keys (reader_layers) or guesses blocks.
    uint32_t mtp;
    lw_head_config head;  // of a head's first layer; else every field is 0
    // 1: each matrix clamps what it reads and what it makes. LW_CLAMPS has the least and the most input, and the least
    // and the most output, of Q, K, V, attention's output, gate, up and down in turn. Only in towers with result_norms,
    // a gated FFN and no biases.
    uint32_t clamps;
    // 1: what the layer's matrices read is rounded to codes of eight bits with one scale for the row (BitNet), whatever
    // their types are. Only with attention that is not latent and an FFN without experts, of generative models.
    uint32_t row_codes;
} lw_layer_config;

enum { LW_CLAMPED_MATRICES = 7 };

typedef enum lw_input_norm {
    LW_INPUT_NONE = 0,
    LW_INPUT_RMS = 1,
    LW_INPUT_LAYER = 2  // with a bias
} lw_input_norm;

// A dense head, which rows go through after pooling: y = activation(dense y + bias), then a norm if `norm` is 1.
typedef struct lw_dense_config {
    uint32_t outputs;
    uint32_t bias;  // 0 or 1
    lw_activation activation;
    uint32_t norm;             // 0 or 1
    lw_input_norm input_norm;  // of what the head reads
    float input_eps;           // its epsilon
} lw_dense_config;

enum { LW_MAX_DENSE = 8, LW_PICTURE_TAPS = 4 };

// Which row of LW_POSITION_EMBEDDING is added to a patch.
typedef enum lw_patch_positions {
    LW_POSITIONS_SQUARE = 0,  // pictures are squares of n_positions patches; one row for each patch, row by row
    // Rows are those of a square, which is stretched over the picture: corner to corner, linear between the four
    // nearest.
    LW_POSITIONS_STRETCHED = 1,
    // The square is resampled to the picture: each position is the mean of the rows around its middle, weighted by a
    // triangle that reaches to the next position, and to the next row at least.
    LW_POSITIONS_RESAMPLED = 2,
    // Two tables of n_positions / 2 rows: the row of the patch's column in the first, of its row in the second.
    LW_POSITIONS_TABLES = 3
} lw_patch_positions;

// What a tower reads: a picture cut into patches, which are its tokens (lw_see_begin). Blocks of merge x merge patches
// come row by row, and so do the patches of a block. Behind the output norm the rows of a block are joined, which is
// the input of the first dense head.
typedef struct lw_patches {
    uint32_t side;   // of a patch in pixels, at most 64; 0: the model reads tokens, and every other field is 0
    uint32_t merge;  // side of a block in patches, at most 8
    uint32_t bias;   // 1: LW_PATCHES has a bias
    float mean[3], deviation[3];  // of R, G, B: a value v becomes (v / 255 - mean) / deviation
    lw_patch_positions positions;
    uint32_t input_norm;      // 1: the values of a patch go through LW_PATCHES_INPUT_NORM first; of LayerNorms only
    uint32_t norm;            // 1: patches go through LW_PATCHES_NORM, behind their positions
    uint32_t norm_first;      // 1: they do so before positions are added
    uint32_t no_output_norm;  // 1: there is no output norm
    float output_eps;         // epsilon of the output norm; 0 = rms_norm_eps
    uint32_t mean_of_block;   // 1: rows of a block are joined to their mean, else to one row after the other
    float mean_factor;        // of the mean; 0 = 1
    uint32_t shifts_mean;     // 1: then LW_MEAN_SHIFT is subtracted, and the result multiplied by LW_MEAN_SCALE
    // Layers, ascending, behind which joined rows go through dense heads, too, without the output norm. The dense heads
    // are as many for the picture itself as for each of the taps, and in this order. A row of the picture is followed
    // by the taps' rows, all as long.
    uint32_t n_taps;
    uint32_t taps[LW_PICTURE_TAPS];
} lw_patches;

// How the rows of a text, behind the output norm, become results.
typedef enum lw_pooling {
    LW_POOL_NONE = 0,   // each row is a result
    LW_POOL_MEAN = 1,   // rows added up in order, times 1 / n
    LW_POOL_FIRST = 2,  // the first row (CLS)
    LW_POOL_LAST = 3,
    LW_POOL_LATE = 4  // the mean as above, but of what the dense heads make of each row
} lw_pooling;

typedef struct lw_model_config {
    uint32_t n_layers;  // at least 1, of a tower 0
    uint32_t hidden_size;
    uint32_t vocab_size;
    uint32_t context_length;   // positions the model was made for
    uint32_t tied_embeddings;  // 1: the head is the token embedding
    float rms_norm_eps;        // epsilon of norms of both kinds
    float result_eps;          // epsilon of the norms of results; 0 = rms_norm_eps
    uint32_t embedding_norm;   // 1: rows of the embedding go through RMSNorm without weights; LW_NORM_RMS only
    float embedding_scale;     // rows of the embedding are multiplied by it, after that norm
    float logit_scale;         // logits are multiplied by it; 1, like embedding_scale, in most models
    float logit_softcap;       // 0 = off; else logits become cap * tanh(logit / cap), after their bias and scale
    uint32_t output_bias;      // 1: LW_OUTPUT_BIAS is added to logits
    // P, 0 = none: each layer has P values for a token, e = (norm(p / sqrt(hidden_size)) + t * sqrt(P)) / sqrt(2). p is
    // the layer's part of LW_PER_LAYER_PROJECTION's product with the first layer's x, t its part of the token's row of
    // LW_PER_LAYER_EMBEDDING. After the FFN comes x += norm(out(activation(gate x) * e)), with the FFN's activation.
    uint32_t per_layer_size;
    uint32_t per_layer_rows;       // rows of LW_PER_LAYER_EMBEDDING, 0 = vocab_size; tokens behind them have row 0
    uint32_t per_layer_projected;  // 1: there is no LW_PER_LAYER_EMBEDDING, and e = norm(p / sqrt(hidden_size))
    // N, 0 = x alone: a token has N residual streams (AltUp with LAuReL, Gemma 3n), 2 to 8, of which x is the first. The
    // others begin as their parts of LW_STREAMS_IN x, as large as x. r(x) = tanh(LW_STREAM_ROUTER norm(x) /
    // hidden_size). Before a layer every stream s[i] += sum over k of p[i][k] s[k], p = LW_STREAM_PREDICTION r(x); y is
    // x then. Behind attention x = (x + z + norm(LW_LAUREL_UP LW_LAUREL_DOWN z)) / sqrt(2), z = ATTN_NORM(y). Behind the
    // FFN, with d = x - y and c = LW_STREAM_CORRECTION r(x): s[i] += (c[i] + 1) d, x = y + (c[0] + 1) d. The per-layer
    // gate reads x times LW_STREAM_SCALE, and its result is added to the streams but x. Behind the last layer x is the
    // mean of x and the others' parts of LW_STREAMS_OUT s, as large as x. All layers have result_norms, attention and a
    // gated FFN, LW_IN_TURN, and a per_layer_size.
    uint32_t n_streams;
    uint32_t laurel_rank;  // with n_streams
    // N, 0 = none: a token has N residual streams s that are mixed (manifold-constrained hyper-connections, DeepSeek V4),
    // 1 to 8; all begin as its embedding. With r = (LW_HYPER_ATTN s) / rms(s), s all streams one after the other, (a, b,
    // c) = r * scale + LW_HYPER_ATTN_BASE, whose parts have N, N and N * N values and a number of LW_HYPER_ATTN_SCALE
    // each. Attention reads x = sum over i of (sigmoid(a[i]) + e) s[i], e = hyper_eps, and from its result y comes s[i] =
    // 2 sigmoid(b[i]) y + sum over j of m[j][i] s[j]. m begins as softmax(c[j]) + e, by rows; then columns are divided by
    // their sums + e, and hyper_iterations - 1 times rows, then columns. The FFN likewise, with LW_HYPER_FFN. Behind the
    // last layer x is a sum as before attention, with LW_HYPER_HEAD. All layers have attention to shared rows and
    // experts, LW_IN_TURN. Not beside n_streams.
    uint32_t hyper_streams;
    uint32_t hyper_iterations;  // 1 to 1000 with hyper_streams
    float hyper_eps;
    uint32_t n_ropes;  // at most 8
    const lw_rope* ropes;
    const lw_layer_config* layers;  // [n_layers]; at least one has attention
    lw_norm_kind norm;              // kind of all norms but those of Q and K
    uint32_t norm_bias;             // 1: norms have biases; LW_NORM_LAYER only
    uint32_t pooled;                // 1: the model makes no logits; it runs whole texts by lw_encode, nothing else
    uint32_t n_positions;           // rows of LW_POSITION_EMBEDDING, added by position to the embedding; 0 = none, else
                                    // context_length (of a tower: see lw_patch_positions)
    // Pooled models only, else 0:
    uint32_t n_token_types;        // rows of LW_TOKEN_TYPE_EMBEDDING, added by token type; 0 = none
    uint32_t n_dense;              // at most LW_MAX_DENSE
    const lw_dense_config* dense;  // [n_dense]
    // Of a tower: vocab_size and n_token_types are 0, context_length is the most patches of a picture, n_positions 0, a
    // square, or of two tables. All layers have attention to all patches, both ways, and an FFN without experts,
    // LW_IN_TURN.
    lw_patches patches;
    // Of a model that reads the rows of a tower with taps: lw_batch.rows have 1 + n_taps parts of hidden_size. Part 1 +
    // i is added to the token's x behind layer i. Below n_layers, the last of which has attention then.
    uint32_t n_taps;
    // R, 0 = none: the last R layers are a prediction head that reads the model's keys and values (Gemma 4's assistant).
    // Its rows have reader_size values, at most hidden_size. At token t its x is LW_MTP_PROJECTION (embedding of t, h),
    // h as of other heads but LW_HEAD_RETURN LW_MTP_NORM(x) where the head made it; LW_HEAD_OUTPUT makes logits. All its
    // layers share keys and values with layers of the model, with windows one token shorter: a batch of the head is one
    // token behind the text, and sees what the model has stored. None of them has per-layer inputs.
    uint32_t reader_layers, reader_size;
    float reader_eps;  // epsilon of its norms
} lw_model_config;

// One tensor of a program.
typedef struct lw_program_tensor {
    lw_role role;
    uint32_t of_layer;  // 1: each layer may have a tensor of this role
    uint32_t layer;     // the layer's number; for a tensor of a dense head the head's number; else 0
    uint32_t rows;      // outputs; 1 for a vector
    uint32_t cols;      // inputs
    uint32_t is_vector;
    uint32_t optional;  // 1: a model may lack it (LW_ATTN_INPUT_ORDER and its like)
} lw_program_tensor;

// Checks that the numbers of a program fit together. With LW_ERR_ARGUMENT the message names the layer, the field, its
// value and what would be accepted, after "model config: ".
lw_status lw_program_check(const lw_model_config* config);
// Lists the tensors of a program in the order in which a step reads them: writes the first `capacity` of them to `out`
// and the number of all to `n`. Errors are those of lw_program_check.
lw_status lw_program_tensors(const lw_model_config* config, lw_program_tensor* out, uint32_t capacity, uint32_t* n);
