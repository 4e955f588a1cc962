// Rows of a picture by a tower (lw_patches): what a language model reads in the place of tokens' embeddings. Part of
// lanewise.h; include that file.
//
// A session of a tower has max_batch_tokens patches in a unit of work, a multiple of a block's patches, and n_blocks of
// LW_BLOCK_TOKENS patches for the keys and values (in kv_type) of one layer of one picture. groups_by_window and
// max_adapter_rank must be 0. lw_step, lw_session_start and lw_encode refuse such a session.

typedef struct lw_picture {
    const uint8_t* pixels;   // [height][width][3]: R, G, B
    uint32_t height, width;  // multiples of a block's side, with at most context_length patches and n_blocks of them
} lw_picture;

// Begins a picture. `rows` has room for a row of lw_model_dims floats for each block of the picture, in raster order.
// Pixels and rows must stay valid until the picture is done, another one is begun or the session is closed. A picture
// that was begun before and is not done is dropped.
lw_status lw_see_begin(lw_session* session, const lw_picture* picture, float* rows);
// Works on the picture until `budget_ns` have passed, one unit of work at least, and sets *done to 1 when all rows are
// there. No bit of a row depends on how the work is divided. LW_ERR_ARGUMENT: no picture is begun. LW_ERR_NONFINITE:
// NaN or infinity in activations or rows; the picture is dropped.
lw_status lw_see_advance(lw_session* session, uint64_t budget_ns, uint32_t* done);
