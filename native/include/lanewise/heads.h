// Prediction heads that others made for a model. Part of lanewise.h; include that file.

// n_taps is 0 in a head that the model brings along, and so is every other field.
//
// With `block` 0 (EAGLE-3): at token t its x is h, and attention reads (embedding_norm(embedding of t), hidden_norm(h)):
// Q, K and V have 2 * hidden_size inputs, and there is no LW_ATTN_NORM. h is LW_HEAD_FUSION (x at each tap of the token
// before t), or the head's own x at its end. The embedding is not scaled.
//
// With `block` B (DFlash): one or more layers (lw_layer_config.mtp 1, then 2), each with LW_ATTN_NORM, attention to keys
// of its own, perhaps with a window, and an FFN. A step of the model stores keys and values of each token in each of
// these layers; they are those of hidden_norm(LW_HEAD_FUSION (x at each tap of the token itself)). A batch of the head
// has up to B tokens of a sequence: the last known one, then tokens that stand for those to be guessed. Their x is the
// embedding, and the row of a token that stands for another makes logits of that one. What they store lies where the
// model's next step stores anew. With both_ways 2 they see one another as lw_batch.sees says. A sequence has no place.
enum { LW_HEAD_TAPS = 3, LW_MAX_HEAD_TAPS = 16, LW_MAX_HEAD_BLOCK = 64 };
typedef struct lw_head_config {
    uint32_t n_taps;                  // 0, or LW_HEAD_TAPS, or with a block 1 to LW_MAX_HEAD_TAPS
    uint32_t taps[LW_MAX_HEAD_TAPS];  // x in front of this layer of the model, 1 to the number of the model's layers
    uint32_t fusion_norm;             // 1: the taps together go through LW_HEAD_FUSION_NORM first; without a block
    uint32_t norm_adds;               // 1: x begins as hidden_norm(h); without a block
    uint32_t own_embedding;           // 1: embeddings are rows of LW_HEAD_EMBEDDING, not scaled
    // Rows of LW_HEAD_OUTPUT, which makes logits; 0 = the model's head makes them. With `chooses` row i is of the token
    // number i of LW_HEAD_TOKENS, and other tokens have the logit -1e30; else there is a row for each token.
    uint32_t outputs;
    uint32_t chooses;
    float norm_eps;         // epsilon of the head's norms
    uint32_t block;         // 0, or 2 to LW_MAX_HEAD_BLOCK
    float embedding_scale;  // of the model's embeddings, with a block; 0 = 1
} lw_head_config;
