// Run whole texts through a pooled model: embeddings, and scores of pairs. Part of lanewise.h; include that file.

// Text t is tokens start[t] .. start[t + 1] - 1. It has 1 to context_length tokens.
typedef struct lw_texts {
    uint32_t n_texts;             // 1 to the session's max_batch_logits
    const uint32_t* start;        // [n_texts + 1], first 0; the last is at most max_batch_tokens
    const uint32_t* token_ids;    // [start[n_texts]]
    const uint32_t* token_types;  // the same shape, each below the model's n_token_types; NULL = all 0
    lw_pooling pooling;
    uint32_t normalize;  // 1: each result is divided by its Euclidean length, or by 1e-12 if the length is below that
    // [n_texts] how many of a text's first tokens are attended to, at least 1; NULL = all. Fewer than all are accepted
    // only if all attention is both ways, pooling is LW_POOL_NONE, and each token's window holds one of these tokens.
    const uint32_t* seen;
} lw_texts;

// Number of floats in a result: outputs of the model's last dense head, or hidden_size without dense heads. 0 unless
// the model is pooled.
uint32_t lw_model_dims(const lw_model* model);
// Runs a pooled model over texts and writes the results: a row of lw_model_dims floats for each text or, with
// LW_POOL_NONE, for each token. The result of a text has the same bits whatever other texts are in the call.
//
// A session of a pooled model has no KV cache, only blocks for the keys and values (in kv_type) of the layer that is
// being run. Its n_blocks is not read; groups_by_window and max_adapter_rank must be 0. lw_step and lw_session_start
// refuse such a session; lw_encode refuses every other. LW_ERR_ARGUMENT: nothing has been written. LW_ERR_NONFINITE:
// NaN or infinity in activations or results; the contents of *out are undefined.
lw_status lw_encode(lw_session* session, const lw_texts* texts, float* out);
