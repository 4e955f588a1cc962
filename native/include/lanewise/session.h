// Forward steps over ragged batches, and the tokens drawn from them. Part of lanewise.h, which is what to include.

enum { LW_MAX_KV_GROUPS = 16 };

// Which layers share the blocks of a KV cache. A block holds the keys and values of LW_BLOCK_TOKENS tokens in the layers of
// one group, any block those of any group.
typedef struct lw_kv_layout {
    uint64_t block_bytes;
    uint64_t state_bytes;  // of one sequence without guesses; 0 without states and prediction head
    uint64_t guess_bytes;  // more for each of max_guesses
    uint32_t n_groups;
    // Tokens that each sees at most in the layers of a group, its own included; 0 = all.
    uint32_t windows[LW_MAX_KV_GROUPS];
} lw_kv_layout;

typedef struct lw_session_config {
    uint32_t n_threads;  // threads that compute, the calling one included; 1 to 256
    uint32_t n_blocks;   // KV blocks of LW_BLOCK_TOKENS tokens, in the layers of one group (lw_kv_layout)
    uint32_t n_states;   // places for the states of sequences; 0 unless layers have one, or there is a prediction head
    uint32_t max_guesses;  // rows of one sequence in one step that may be guesses (lw_batch); 0 unless n_states > 0
    uint32_t max_batch_tokens;  // most tokens in one step
    uint32_t max_batch_logits;  // most rows of logits in one step
    lw_type kv_type;            // LW_F16, LW_F32 or LW_I8
    uint32_t max_adapter_rank;  // of adapters in its batches, at most LW_MAX_ADAPTER_RANK; 0 = it takes none
    // 1: a reference to measure against, slow. Quantized matrices multiply activations as they are, not int8 codes of
    // them: logits are those of a model whose matrices are LW_F32 with the same weights, to the bit. 0 = codes.
    uint32_t float_activations;
    uint32_t observe_inputs;    // 1: keep statistics of the inputs of matrices, for lw_session_inputs
    uint32_t groups_by_window;  // 1: layers of different windows have blocks of their own (lw_kv_layout); 0 = one group
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
    // Used by penalties only. If the row's input token is LW_DRAWN_BEFORE, the token it stands for counts as one more.
    const uint32_t* history;
    int64_t forced_token;  // >= 0: return this token and its log-probability; below = draw
} lw_draw;

// What a batch runs.
typedef enum lw_runs {
    LW_RUN_MODEL = 0,
    // The prediction head alone, which the model must have (lw_layer_config.mtp): one token of each sequence, behind a
    // context of at least one, and a row of logits of each. They are of the token after it. Its h is that of the
    // sequence's place, with `accepted` guesses counted; places stay as they are. Keys and values go to the cache, where
    // a batch of the model writes its own over them.
    LW_RUN_HEAD = 1,
    // Likewise, h being what the head itself made of the sequence's place in a batch before.
    LW_RUN_HEAD_AGAIN = 2
} lw_runs;

// One ragged batch: sequence s owns tokens query_start[s] .. query_start[s+1]-1, which follow the context_lens[s]
// tokens already in its blocks; both together are at most 2^31. Its blocks, in order, are row table_rows[s] of
// block_tables, for each group of layers; they must cover all its tokens. Blocks that none of the batch's tokens see in any
// layer of their group are neither read nor written: their entries may be any number. Sequences may read the same blocks,
// but one that writes to a block has it for itself, or what is read there is undefined; a block serves one group at a time.
//
// Where layers have a state, that of sequence s is in place number table_rows[s] (or s), which no other sequence of the
// batch has. It must be that after context_lens[s] tokens; what a place holds does not matter where that is 0. Afterwards
// it is that after all of the sequence's tokens but its guesses, the last guesses[s] of them: those are in its logits only,
// and the place remembers what they would do to the state. The next batch says with accepted[s] how many of the guesses,
// from the first on, were right: its context_lens counts them, and the state is brought up to them before its own tokens.
typedef struct lw_batch {
    uint32_t n_seqs;
    uint32_t n_logits;
    uint32_t block_table_stride;   // entries that each group has in one row of block_tables
    const uint32_t* token_ids;     // [query_start[n_seqs]]; LW_DRAWN_BEFORE + i is what draw i of the step before gave
    const uint32_t* query_start;   // [n_seqs + 1], ascending, first 0
    const uint32_t* context_lens;  // [n_seqs]
    const uint32_t* block_tables;  // [rows][n_groups][block_table_stride]
    const uint32_t* logit_rows;    // [n_logits] indices into token_ids, ascending, each once
    const lw_draw* draws;          // [n_logits] one for each row of logits; NULL = nothing is drawn
    const uint32_t* table_rows;    // [n_seqs] below the rows of block_tables; NULL = sequence s has row s
    const lw_adapter* const* adapters;  // [n_seqs] that of each sequence or NULL; NULL = none has one
    uint32_t n_copies;
    const uint32_t* copies;  // [n_copies][2] KV blocks (from, to) that are copied before all else, in this order
    uint32_t n_state_copies;
    const uint32_t* state_copies;  // [n_state_copies][2] likewise of places of states, guesses and all
    const uint32_t* guesses;       // [n_seqs] below the sequence's tokens, at most max_guesses; NULL = 0
    const uint32_t* accepted;      // [n_seqs] at most the guesses that its place remembers; NULL = 0
    lw_runs runs;
} lw_batch;

typedef struct lw_sampled {
    // LW_ERR_NO_TOKEN: bias and mask allow no token. LW_ERR_NONFINITE: the logits, or what became of them, hold NaN or
    // infinity. Then all else is 0, also the token that the next step finds in its place.
    lw_status status;
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
    uint64_t steps;           // of the model, and their tokens; all else counts batches of a prediction head, too
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

// Groups of a session with this groups_by_window: one for each window, or several of one size; one for all layers where
// there are no windows, one alone, or too many.
lw_status lw_model_kv_layout(const lw_model* model, lw_type kv_type, uint32_t groups_by_window, lw_kv_layout* out);
lw_status lw_session_open(const lw_model* model, const lw_session_config* config, lw_session** out);
// At any time: draws that are held are not made, steps that were started are not run unless they run already. What those
// point to must stay until it returns.
void lw_session_close(lw_session* session);

// Runs the model over the batch, appends its keys and values to the cache, writes logits [n_logits][vocab_size] and what
// was drawn from them [n_logits]; `drawn` may be NULL when the batch has no draws.
//
// A step fails in one of two ways. LW_ERR_ARGUMENT: an argument is refused before it runs, nothing has been written and no
// block copied. Any other status (LW_ERR_NONFINITE): it failed as it ran. Then all its copies have been made, and must not
// be asked for again; logits and drawn, in the cache the places of the batch's own tokens, and the states of its sequences
// hold anything. In both cases every other place is as it was, and the same tokens may be run again in another batch, those
// of a sequence whose state is lost from its first one. A step after one that
// failed as it ran cannot name tokens that it should have drawn. A draw that fails (lw_sampled) fails no step.
lw_status lw_step(lw_session* session, const lw_batch* batch, float* logits, lw_sampled* drawn);
// Before a step: once it has its logits it waits until every hold has been released, and draws then. So the masks that its
// draws read may be written while it runs. A step that fails or draws nothing does not wait.
lw_status lw_session_hold_draws(lw_session* session);
// Takes back one hold, before, during or after a step and by any thread. LW_ERR_ARGUMENT when there is none.
lw_status lw_session_release_draws(lw_session* session);
// As they were after the last step that was run; by any thread.
lw_status lw_session_counters(lw_session* session, lw_counters* out);
// Starts a step like lw_step and returns; a thread of the session runs it when those started before have been run. What
// the batch points to, logits and drawn must stay as they are until it is finished. At most LW_STEPS_AHEAD steps
// may be unfinished. Each may refer to draws of the step before it (LW_DRAWN_BEFORE). Arguments are checked here: a step
// that is refused is not started and leaves the started ones as they are; so does LW_ERR_MEMORY. When a step fails, those
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
