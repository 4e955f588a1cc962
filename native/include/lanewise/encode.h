// Whole texts through a pooled model: embeddings, scores of pairs. Part of lanewise.h, which is what to include.

// Text t is tokens start[t] .. start[t + 1] - 1, at least one and at most the model's context_length.
typedef struct lw_texts {
    uint32_t n_texts;             // 1 to the session's max_batch_logits
    const uint32_t* start;        // [n_texts + 1], first 0; the last is at most max_batch_tokens
    const uint32_t* token_ids;    // [start[n_texts]]
    const uint32_t* token_types;  // likewise, below the model's n_token_types; NULL = all 0
    lw_pooling pooling;
    uint32_t normalize;  // 1: each result is divided by its Euclidean length, or by 1e-12 if that is more
    // [n_texts] how many of a text's first tokens are seen, 1 to all of them; NULL = all. Fewer only where all attention is
    // both ways and pooling is LW_POOL_NONE, and where each token's window has one that is seen.
    const uint32_t* seen;
} lw_texts;

// Floats of a result: outputs of the model's last dense head, or hidden_size where it has none; 0 unless it is pooled.
uint32_t lw_model_dims(const lw_model* model);
// Runs a pooled model over texts and writes the results: a row of lw_model_dims floats for each text or, with
// LW_POOL_NONE, for each token. What is written is the same bits whatever other texts there are.
//
// Sessions of pooled models have no cache, only blocks that keys and values of the layer being run are in: their n_blocks
// is not read; groups_by_window and max_adapter_rank must be 0. kv_type is what those keys and values are held in. Steps
// are refused by them, as this is by others. LW_ERR_ARGUMENT: nothing has been written. LW_ERR_NONFINITE: NaN or infinity
// in activations or results, and *out holds anything.
lw_status lw_encode(lw_session* session, const lw_texts* texts, float* out);
