// Forward steps over ragged batches, and the tokens drawn from them. Part of lanewise.h; include that file.

enum { LW_MAX_KV_GROUPS = 16 };

// Which layers share the blocks of a KV cache. A block holds the keys and values of LW_BLOCK_TOKENS tokens in the
// layers of one group. Any block may serve any group.
typedef struct lw_kv_layout {
    uint64_t block_bytes;
    uint64_t state_bytes;  // state of one sequence without guesses; 0 without states and prediction head
    uint64_t guess_bytes;  // more for each of max_guesses
    uint32_t n_groups;
    // The largest number of tokens that a token sees in the layers of a group, its own included; 0 = all.
    uint32_t windows[LW_MAX_KV_GROUPS];
} lw_kv_layout;

typedef struct lw_session_config {
    uint32_t n_threads;    // threads that compute, the calling one included; 1 to LW_MAX_THREADS
    uint32_t n_blocks;     // KV blocks of LW_BLOCK_TOKENS tokens, in the layers of one group (lw_kv_layout)
    uint32_t n_states;     // places for the states of sequences; 0 unless a layer has a state or there is a prediction
                           // head
    uint32_t max_guesses;  // rows of one sequence in one step that may be guesses (lw_batch); 0 unless n_states > 0
    uint32_t max_batch_tokens;  // maximum number of tokens in one step
    uint32_t max_batch_logits;  // maximum number of rows of logits in one step
    lw_type kv_type;            // LW_F16, LW_F32, LW_I8, LW_I4 or LW_I8_I4
    uint32_t max_adapter_rank;  // largest rank of an adapter in a batch, at most LW_MAX_ADAPTER_RANK; 0 = no adapters
    // 1: a slow reference to measure against. Quantized matrices multiply the activations themselves, not int8 codes of
    // them. Logits have the same bits as those of a model that holds the same weights in LW_F32. 0 = codes.
    uint32_t float_activations;
    uint32_t observe_inputs;    // 1: keep statistics of the inputs of matrices, for lw_session_inputs
    uint32_t groups_by_window;  // 1: layers with different windows use different blocks (lw_kv_layout); 0 = one group
    // CPU quota of the threads, in CPUs; 0 = all CPUs that they may run on. If there are more threads than CPUs, a
    // thread that waits for others in a step soon gives up its CPU.
    uint32_t n_cpus;
    const uint32_t* cpus;  // [n_threads] the CPU that each thread is pinned to, the calling thread during steps only;
                           // NULL = any
    // [n_threads] the copy of the weights that each thread reads: an index into lw_model_place's nodes; NULL = the first
    const uint32_t* replica_of_thread;
} lw_session_config;

// How the tokens of one sequence are drawn. Bias, penalties and mask apply first, then temperature, top-k, top-p and
// min-p in this order. Log-probabilities are those of the raw logits.
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
    // [n_top_logprobs] tokens that top_* tell of, in this order; NULL = the likeliest
    const uint32_t* top_ids;
} lw_sampling;

typedef struct lw_draw {  // one token to draw from one row of logits
    const lw_sampling* sampling;
    uint32_t position;  // index of the drawn token in its sequence, prompt included
    uint32_t n_prompt;  // history[0 .. n_prompt) is the prompt, the rest the output
    uint32_t n_history;
    // Used by penalties only. If the row's input token is LW_DRAWN_BEFORE, the token it stands for counts as one more.
    const uint32_t* history;
    int64_t forced_token;  // >= 0: return this token and its log-probability; below = draw
} lw_draw;

// What a batch runs.
typedef enum lw_runs {
    LW_RUN_MODEL = 0,
    // The prediction head alone (lw_layer_config.mtp). One that guesses blocks has 2 to `block` tokens of each sequence,
    // behind a context of at least one (lw_head_config). Of others each sequence has one token, a context of at least
    // one, and one row of logits, which predict the token after its own. h comes from the sequence's place for states, with
    // `accepted` guesses counted; the place does not change. Keys and values go to the cache, where a batch of the
    // model overwrites them.
    LW_RUN_HEAD = 1,
    // Like LW_RUN_HEAD, but h is the head's own result for the sequence's place in an earlier batch. Not for a head that
    // guesses blocks.
    LW_RUN_HEAD_AGAIN = 2
} lw_runs;

// One ragged batch. Sequence s owns tokens query_start[s] .. query_start[s+1]-1, which follow the context_lens[s]
// tokens already in its blocks; both together are at most 2^31. Row table_rows[s] of block_tables lists its blocks in
// order, for each group of layers. They must cover all its tokens. A block that no token of the batch sees in any layer
// of its group is neither read nor written: its entry may be any number. Sequences may read the same blocks. A block
// that a sequence writes must be its own, or what is read there is undefined. A block serves one group at a time.
//
// If layers have a state, sequence s has it in place number table_rows[s] (or s), which no other sequence of the batch
// may use. It must be the state after context_lens[s] tokens; the place's contents do not matter if that is 0.
// Afterwards it is the state after all of the sequence's tokens but its guesses, the last guesses[s] of them. Guesses
// only get logits, and the place remembers what they would do to the state. The next batch says with accepted[s] how
// many of the guesses, from the first on, were right. Its context_lens counts them, and they are applied to the state
// before its own tokens.
typedef struct lw_batch {
    uint32_t n_seqs;
    uint32_t n_logits;
    uint32_t block_table_stride;        // entries of each group in one row of block_tables
    const uint32_t* token_ids;          // [query_start[n_seqs]]; LW_DRAWN_BEFORE + i is the token of draw i of the step
                                        // before
    const uint32_t* query_start;        // [n_seqs + 1], ascending, first 0
    const uint32_t* context_lens;       // [n_seqs]
    const uint32_t* block_tables;       // [rows][n_groups][block_table_stride]
    const uint32_t* logit_rows;         // [n_logits] indices into token_ids, ascending, each once
    const lw_draw* draws;               // [n_logits] one for each row of logits; NULL = nothing is drawn
    const uint32_t* table_rows;         // [n_seqs] row of block_tables of each sequence; NULL = sequence s has row s
    const lw_adapter* const* adapters;  // [n_seqs] adapter of each sequence or NULL; NULL = no adapters
    uint32_t n_block_copies;
    const uint32_t* block_copies;  // [n_block_copies][2] KV blocks (from, to), copied in order before anything else
    uint32_t n_state_copies;
    const uint32_t* state_copies;  // [n_state_copies][2] places of states (from, to), copied likewise with their
                                   // guesses
    const uint32_t* guesses;       // [n_seqs] below the sequence's number of tokens, at most max_guesses; NULL = 0
    const uint32_t* accepted;      // [n_seqs] at most the guesses that the sequence's place remembers; NULL = 0
    lw_runs runs;
    // [query_start[n_seqs]] the row of hidden_size floats (lw_model_config.n_taps) that stands for the embedding of a
    // token, or NULL; NULL = no token has one. Its token id counts for per-layer values only. NULL where the
    // prediction head runs alone.
    const float* const* rows;
    // [LW_AXES][query_start[n_seqs]] positions of tokens for RoPE, at most 2^31; NULL = the token's index, on all axes
    const uint32_t* positions;
    // [query_start[n_seqs]] how many of its sequence's first tokens a token sees in layers with both_ways 2: 0 = those
    // up to itself; else more, all of them in the cache or the batch, and up to its window behind it. NULL = all 0.
    const uint32_t* sees;
    // 1: a step of the model stores 0 as keys and values of a head that guesses blocks, which saves their products. The
    // logits are the same; later guesses know nothing of these tokens.
    uint32_t skips_head;
} lw_batch;

typedef struct lw_sampled {
    // LW_ERR_NO_TOKEN: bias and mask allow no token. LW_ERR_NONFINITE: the logits, or values computed from them, hold
    // NaN or infinity. After an error every other field is 0, also the token that the next step reads by
    // LW_DRAWN_BEFORE.
    lw_status status;
    uint32_t token;
    uint32_t n_top;
    float logprob;  // natural logarithm; 0 when not asked for
    uint32_t top_ids[20];
    float top_logprobs[20];  // descending, unless the sampling has top_ids
} lw_sampled;

typedef struct lw_finished {  // when a started step ran, in nanoseconds of CLOCK_MONOTONIC; 0 and 0 = it did not run
    uint64_t begin_ns, end_ns;
} lw_finished;

typedef struct lw_counters {  // since the session was opened
    uint64_t steps;           // steps and tokens of the model; all other fields count batches of a prediction head, too
    uint64_t tokens;
    uint64_t gemv_calls;  // matrix products with one row
    uint64_t gemm_calls;  // matrix products with more rows
    uint64_t gemv_rows;
    uint64_t gemm_rows;
    double native_seconds;  // time in which steps ran
    double held_seconds;    // part of native_seconds in which only held draws were left to do
    // Experts chosen in a layer of a step, counted by the number of rows that chose them: 1, 2, up to 4, 8, 16, 32, 64,
    // more.
    uint64_t experts_by_rows[8];
    uint64_t expert_rows;  // sum of these numbers of rows
} lw_counters;

// The groups of a session with this groups_by_window. A window has one group, or several of one size. There is one
// group for all layers if there are no windows, only one, or too many.
lw_status lw_model_kv_layout(const lw_model* model, lw_type kv_type, uint32_t groups_by_window, lw_kv_layout* out);
lw_status lw_session_open(const lw_model* model, const lw_session_config* config, lw_session** out);
// Bytes of one block of the KV cache: keys and values of LW_BLOCK_TOKENS tokens for the layers of a group, in the
// session's kv_type, for each layer and head keys [head_dim][LW_BLOCK_TOKENS] and values [LW_BLOCK_TOKENS][value_dim].
// They are the same on every CPU. 0 for a pooled model.
size_t lw_session_block_bytes(const lw_session* session);
// Copies a block of the KV cache to `bytes`, or `bytes` to a block: lw_session_block_bytes of them. Any thread may call
// both, also during steps that do not write the block and, for lw_session_write_block, do not read it. What is written
// must come from lw_session_read_block of a session with the same model and kv_type: it is not checked.
// LW_ERR_ARGUMENT: there is no such block; nothing was copied.
lw_status lw_session_read_block(const lw_session* session, uint32_t block, void* bytes);
lw_status lw_session_write_block(lw_session* session, uint32_t block, const void* bytes);
// Bytes of the state of one sequence, without guesses (lw_kv_layout.state_bytes). They are the same on every CPU and for
// every max_guesses. 0 where nothing keeps a state.
size_t lw_session_state_bytes(const lw_session* session);
// Copies the state in a place to `bytes`, or `bytes` to a place: lw_session_state_bytes of them. Rules and errors are
// those of lw_session_read_block. Guesses are not copied: with the next tokens of what was written, `accepted` is 0.
lw_status lw_session_read_state(const lw_session* session, uint32_t place, void* bytes);
lw_status lw_session_write_state(lw_session* session, uint32_t place, const void* bytes);
// May be called at any time: held draws are not made, and started steps are not run unless they run already. The memory
// that they point to must stay valid until this call returns.
void lw_session_close(lw_session* session);
// Steps of at most max_rows tokens, whose sequences have at most max_context tokens before them all together, run on
// n_threads threads and let the others sleep. Threads come in groups of eight, so n_threads is rounded up. Other steps
// run on all threads. No bit depends on it. Not to be called while a step runs or has been started.
lw_status lw_session_limit_threads(lw_session* session, uint32_t n_threads, uint32_t max_rows, uint32_t max_context);

// Runs the model over the batch, appends its keys and values to the cache, writes logits [n_logits][vocab_size] and the
// tokens drawn from them [n_logits]. `drawn` may be NULL when the batch has no draws.
//
// A step fails in one of two ways. LW_ERR_ARGUMENT: an argument is refused before the step runs; nothing has been
// written and no block copied. Any other status (LW_ERR_NONFINITE): it failed while it ran. Then its copies have been
// made and must not be asked for again. Logits, drawn, the places of the batch's own tokens in the cache, and the
// states of its sequences are then undefined; all else is as it was. In both cases the same tokens may be run again in
// another batch; a sequence whose state is undefined runs again from its first token. A step after one that failed
// while it ran cannot name tokens that it should have drawn. A draw that fails (lw_sampled) fails no step.
lw_status lw_step(lw_session* session, const lw_batch* batch, float* logits, lw_sampled* drawn);
// Call before a step: once the step has its logits it waits until every hold has been released, and draws then. So the
// masks that its draws read may be written while it runs. A step that fails or draws nothing does not wait.
lw_status lw_session_hold_draws(lw_session* session);
// Releases one hold. Any thread may call it, before, during or after a step. LW_ERR_ARGUMENT when there is no hold.
lw_status lw_session_release_draws(lw_session* session);
// Counts up to the last step that has run. Any thread may call it.
lw_status lw_session_counters(lw_session* session, lw_counters* out);
// Starts a step like lw_step and returns. A thread of the session runs it once the steps started before have run. The
// batch, all it points to, logits and drawn must stay as they are until the step is finished. At most LW_STEPS_AHEAD
// steps may be unfinished. Each may refer to draws of the step before it (LW_DRAWN_BEFORE). Arguments are checked here:
// a step that is refused, also with LW_ERR_MEMORY, is not started and leaves the started ones as they are. When a step
// fails, steps started after it and before it was finished do nothing (LW_ERR_ARGUMENT). Until all are finished no
// other step may be run, and neither lw_session_profile nor lw_session_profile_rows be called.
lw_status lw_session_start(lw_session* session, const lw_batch* batch, float* logits, lw_sampled* drawn);
// Waits until the oldest started step has run, for at most `timeout_ns` (any number; 0: does not wait). *done says
// whether it has. LW_ERR_ARGUMENT when no step is started.
lw_status lw_session_await(lw_session* session, uint64_t timeout_ns, uint32_t* done);
// Waits for the oldest started step and takes it off the list. The status is that of lw_step; *out tells when the step
// ran, also if it failed: 0 and 0 if it did not run because one before it failed. LW_ERR_ARGUMENT when no step is
// started; *out is then not written.
lw_status lw_session_finish(lw_session* session, lw_finished* out);
