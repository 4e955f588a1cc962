// One session: the cache, the threads and the buffers of the forward step.
#ifndef LW_GRAPH_SESSION_H
#define LW_GRAPH_SESSION_H

#include <pthread.h>
#include <stdatomic.h>

#include "graph/kv_groups.h"
#include "graph/states.h"
#include "kv_cache.h"
#include "model/adapter.h"
#include "model/model.h"
#include "ops/matmul.h"
#include "profile.h"
#include "thread_pool.h"

typedef struct lw_ahead lw_ahead;  // graph/ahead.h

typedef struct lw_tile {  // query tokens of one sequence that attention handles together
    uint32_t sequence;
    uint32_t first_row;  // row of the batch
    uint32_t n_tokens;
    uint32_t length;  // of its sequence where queries see both ways, else 0
    // A tile with a long context is there once for each split of its context; they meet in `states`.
    uint32_t n_splits, split;  // of how many, which one; 0 of 0: a whole context
    float* states;             // [jobs of a tile][n_splits][floats of a state]
    atomic_uint* done;         // [jobs of a tile] splits computed, between phases all 0
} lw_tile;

// The tiles of a batch in layers that see alike and have as many heads of one size.
typedef struct lw_tiling {
    uint32_t window, both_ways;
    const lw_attention_config* heads;  // of the first such layer
    size_t n;                          // of the batch
    size_t jobs;                       // of each tile of the batch, lw_tile_jobs
    lw_tile* tiles;                    // [rows + split_tiles]
} lw_tiling;

typedef struct lw_codes {  // quantized activations, see lw_activations
    int8_t* q;             // [rows + 1][widest input, in whole segments]
    float* scales;         // [lw_scale_floats]
    int32_t* totals;       // [rows + 1][stride / 16]
    float* sums;           // [rows][segments][LW_SUMS], NULL unless the model has minimums
    uint8_t* outlying;     // [rows][segments]
    lw_outlier* outliers;  // [rows][groups, in whole segments]
} lw_codes;

enum { LW_OWN_ROWS = 4 };  // up to this many rows are normalized by every thread for itself

typedef struct lw_own {  // one thread's
    lw_codes codes;
    float* norm;  // [LW_OWN_ROWS][hidden_size]
} lw_own;

// Rows of a batch that one adapter changes; a longer run of rows is several.
typedef struct lw_span {
    const lw_adapter* adapter;
    const lw_kernel* kernel;  // for products with its matrices
    uint32_t first, rows;
} lw_span;

enum { LW_SPAN_ROWS = 32 };

typedef struct lw_spans {
    const lw_span* at;
    size_t n;
    size_t panels;  // of the largest adapter's A
} lw_spans;

// The rows of a batch that one expert has, which are rows first .. first + rows - 1 of the gathered ones; or all rows, for
// the shared expert, which is the first.
typedef struct lw_expert_group {
    uint32_t expert, first, rows;
    uint32_t place;  // of its codes in lw_expert_buffers, in rows
} lw_expert_group;

enum { LW_SHARED_EXPERT = 0x7FFFFFFF };

// `chosen` = rows * n_used, `gathered` = those and one more for each expert, since pairs of rows lie together.
typedef struct lw_expert_buffers {
    float* scores;            // [rows][n_experts] logits of the router, then what the choice goes by
    uint32_t* experts;        // [rows][n_used]
    float* weights;           // [rows][n_used + 1] the last that of the shared expert
    uint32_t* slots;          // [rows][n_used] which gathered row it is
    uint32_t* sources;        // [chosen] row of each gathered one
    uint32_t* counts;         // [n_experts] while groups are made
    lw_expert_group* groups;  // [most_groups]
    size_t n_groups;
    uint32_t n_places;       // of codes that they take
    atomic_uint* runs_done;  // [most_groups][most_runs] as run_panels_done
    size_t most_runs;
    lw_codes in, activated;  // [gathered]
    float* in_values;        // [chosen][hidden_size], where matrices of experts are float
    float *gate, *up;        // as those of lw_buffers: group by group, then the shared expert
    float* out;              // [chosen + rows][hidden_size]
    atomic_uint rows_routed;
} lw_expert_buffers;

// Numbers of the widest layers.
typedef struct lw_widths {
    size_t hidden, q, kv, half;                          // floats; half of the dimensions of a head
    size_t query_rank, absorbed, latents, latent_heads;  // of latent attention: see lw_buffers
    size_t head_part;                                    // most inputs that a head's part of its matrices has
    size_t tile_jobs;                                    // of attention
    size_t gated;           // outputs of gate in layers without experts, and of shared experts
    size_t shared, expert;  // of shared experts, of one of the others; 0 without
    size_t n_experts, n_used;
    bool float_experts;                // some of their matrices read floats
    size_t dense;                      // outputs of dense heads, hidden_size among them; 0 unless the model is pooled
    size_t attn_gate;                  // floats of gates of attention
    size_t mtp;                        // inputs of the projection of a prediction head; 0 without
    size_t mixed_in, mixed;            // of layers with a state: outputs of the first product, results
    size_t state_gate, n_state_heads;  // of layers whose state has heads
} lw_widths;

typedef struct lw_buffers {  // rows = tokens of the batch
    float* x;                // [rows][hidden_size] residual stream
    float* norm;             // [rows][hidden_size] normalized, the input of float matrices
    float* before;           // [rows][hidden_size] x before attention; NULL unless an FFN beside it reads that
    float *q, *k, *v;        // [rows][heads * head_dim]; of latent attention k is what rows of the cache are made of
    float* latent_query;     // [rows][query_rank]
    float* absorbed;         // [rows][n_heads * lw_key_dim] queries of rows of the cache
    float* latents;          // [rows][n_heads * latent_rank] their results
    float *hidden, *mtp_inputs;  // [rows][hidden_size] and [rows][2 * hidden_size], of a prediction head
    float* predicted;            // [n_states][hidden_size] what it made last for the sequence of each place
    float* layer_inputs;         // [rows][n_layers * per_layer_size]
    float* attn;                 // [rows][n_heads * head_dim]
    float* attn_gate;            // [rows][lw_widths.attn_gate]
    float* mixed_in;             // [rows][outputs of a layer's LW_STATE_IN]
    float *mixed, *state_gate;   // [rows][its inner]
    float *decay, *beta;         // [rows][n_heads] of a layer with a state
    // [places][max_guesses] rows of those three, of guesses of the step before that came true
    float *accepted_in, *accepted_decay, *accepted_beta;
    float *gate, *up;  // [segments of the FFN][rows][LW_SEGMENT], or [rows][its size] if down is float
    float *cosine[LW_MAX_ROPES], *sine[LW_MAX_ROPES];  // [rows][rotated / 2]
    uint32_t* token;                                   // [rows] token of each row
    uint32_t* sequence;                                // [rows] sequence of each row
    uint32_t* position;                                // [rows]
    uint32_t* token_type;                              // [rows], of pooled models
    float* pooled[2];                                  // [rows][widths.dense], of pooled models, in turns
    float* split_states;                               // see split_floats
    atomic_uint* splits_done;
    lw_codes codes;       // of normalized rows and of attention
    lw_codes head_codes;  // of each head's part of latent attention: rows of head 0, of head 1, ...
    lw_codes ffn_codes;   // of activated rows
    lw_expert_buffers experts;
    // Where there may be adapters (low_rank.c); a span has its rows' part of each.
    lw_span* spans[2];                        // [rows] all rows, and those that get logits
    lw_addend* addends[LW_ADAPTED_TOGETHER];  // [rows]
    float* partial;                           // [rows][partial_floats]
    float* low;                               // [rows][LW_ADAPTED_TOGETHER * max_adapter_rank]
    atomic_uint* parts_done;                  // [rows * LW_ADAPTED_TOGETHER], between phases all 0
} lw_buffers;

struct lw_session {
    const lw_model* model;
    lw_session_config config;
    lw_pool* pool;
    lw_kv_cache kv;
    lw_states states;
    lw_block memory;  // of the buffers
    lw_buffers b;
    lw_widths widths;
    lw_kv_groups groups;
    lw_kv_place* places;  // [n_layers] of their keys and values in the cache
    lw_kv_cache* kv_of;   // [n_layers] what each sees of it
    lw_tiling* tilings;   // [n_tilings] one for each window and kind of heads
    uint16_t* tiling_of;  // [n_layers] which of them
    size_t n_tilings;
    // Room for contexts that are split among threads (attend.c): states in b.split_states, tiles of a tiling
    // beyond one for each row, and b.splits_done[split_tiles][tile_jobs].
    size_t split_floats, split_tiles;
    uint8_t* scratch;  // [threads][scratch_bytes]
    size_t scratch_bytes;
    uint8_t* draw_scratch;  // [threads][draw_scratch_bytes]
    size_t draw_scratch_bytes;
    lw_own* own;              // [threads]
    const lw_model** copies;  // [threads] the copy of the model that each reads
    atomic_uint*
        run_panels_done;  // [segments of widths.gated][LW_MAX_CUTS] panels done of each run, between phases all 0 (ffn.c)
    lw_work* phases;      // one counter per phase of a step
    size_t n_phases;
    size_t partial_floats;                 // see b.partial
    _Alignas(64) atomic_size_t projected;  // low-rank inputs of this step that are there
    lw_signal draws;                       // a gate that every step's draws pass
    atomic_bool closing;                   // nothing is drawn any more, and no step begun
    uint32_t* drawn_tokens;                // [max_batch_logits] by the last step that was run
    uint32_t n_drawn;                      // by the last step that was run or started
    lw_counters counters;                  // written by the thread that runs a step
    lw_counters published;                 // as they were after the last step, under `lock`
    pthread_mutex_t lock;
    lw_ahead* ahead;                                  // NULL until a step is started ahead
    void (*announce)(lw_ahead*);                      // NULL until then: called when all threads work on a step
    lw_profile* profile;                              // NULL unless asked for
    lw_input_stats* observed;                         // [threads][lw_observed_cells], NULL unless asked for
    const lw_texts* texts;                            // of a pooled model, while they are run
    uint32_t *first_blocks, *no_context, *kept_rows;  // [max_batch_logits]: of the texts that are run (encode.c)
    uint32_t* all_blocks;                             // [n_blocks] their numbers
};

extern const char* const lw_operation_names[LW_OPERATION_COUNT];

// NULL unless the session is profiled.
static inline lw_profile_thread* lw_session_profile_thread(const lw_session* s, unsigned thread) {
    return s->profile != NULL ? &s->profile->threads[thread] : NULL;
}

// The blocks of a sequence in one group of layers.
static inline const uint32_t* lw_block_table(const lw_session* s, const lw_batch* batch, uint32_t sequence,
                                             uint32_t group) {
    const size_t row = lw_table_row(batch, sequence);
    return batch->block_tables + (row * s->groups.n_groups + group) * batch->block_table_stride;
}

// The adapters of a batch belong to the session's model and fit its buffers (low_rank.c).
lw_status lw_check_adapters(const lw_session* s, const lw_batch* batch);
// Fills a list of spans for a batch: for all its rows, or for those that get logits.
lw_spans lw_make_spans(lw_session* s, const lw_batch* batch, bool of_logits);
// Floats of b.partial for each row.
size_t lw_partial_floats(const lw_session* s);

// What the draws of a batch ask for is in range (draw.c).
lw_status lw_check_draws(const lw_session* s, const lw_batch* batch);

// A step's arguments, as far as they do not depend on tokens that are still to be drawn (check_step.c).
lw_status lw_check_step(const lw_session* s, const lw_batch* batch, const float* logits, const lw_sampled* drawn);
// From now on tokens may refer to the draws of this batch.
void lw_note_begun(lw_session* s, const lw_batch* batch);
// Runs a checked step and counts it.
lw_status lw_run_batch(lw_session* s, const lw_batch* batch, float* logits, lw_sampled* drawn);

// The step itself, on checked arguments (forward.c).
lw_status lw_forward(lw_session* session, const lw_batch* batch, float* logits, lw_sampled* drawn);

enum { LW_ATTENTION_ROWS = 64 };  // query rows (tokens x heads of a group) that share one pass over the keys

enum { LW_LATENT_HEADS = 16 };  // most heads of a job that share latent rows

// Jobs that a tile is: its KV heads. Heads that share latent rows are parts of equal size, `least` or more of them as far as
// there are heads.
static inline size_t lw_tile_jobs(const lw_attention_config* c, size_t least) {
    if (c->latent_rank == 0) return c->n_kv_heads;
    size_t parts = 1 + (c->n_heads - 1) / LW_LATENT_HEADS;
    if (parts < least) parts = least;
    if (parts >= c->n_heads) return c->n_heads;
    while (c->n_heads % parts != 0) ++parts;
    return parts;
}

static inline size_t lw_tile_tokens(const lw_attention_config* c, size_t jobs) {
    const size_t group = c->n_heads / jobs;
    return group >= LW_ATTENTION_ROWS ? 1 : LW_ATTENTION_ROWS / group;
}

// Sets split_floats and split_tiles.
void lw_size_splits(lw_session* s);
// Fills all tilings for a batch.
void lw_make_tiles(lw_session* s, const lw_batch* batch);

#endif
