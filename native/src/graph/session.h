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

typedef struct lw_codes {  // quantized activations, see lw_activations
    int8_t* q;             // [rows + 1][widest input, in whole segments]
    float* scales;         // [lw_scale_floats]
    int32_t* totals;       // [rows + 1][stride / 16]
    float* sums;           // [rows][segments][LW_SUMS], NULL unless the model has minimums
    uint8_t* outlying;     // [rows][segments]
    lw_outlier* outliers;  // [rows][groups, in whole segments]
} lw_codes;

enum { LW_OWN_ROWS = 4 };  // for up to this many rows, every thread computes the norms of all rows itself

typedef struct lw_own {  // buffers of one thread
    lw_codes codes;
    float* norm;  // [LW_OWN_ROWS][hidden_size]
} lw_own;

// Consecutive rows of a batch with the same adapter, at most LW_SPAN_ROWS of them.
typedef struct lw_span {
    const lw_adapter* adapter;
    const lw_kernel* kernel;  // for products with the adapter's matrices
    uint32_t first, rows;
} lw_span;

enum { LW_SPAN_ROWS = 32 };

typedef struct lw_spans {
    const lw_span* at;
    size_t n;
    size_t panels;  // of the largest A
} lw_spans;

// All layers share the same buffers, which fit the widest layer. Each kind of part widens them (kinds/kind.h).
typedef struct lw_widths {
    size_t hidden;
    size_t input;    // inputs of a product whose codes are in lw_buffers.codes
    size_t inner;    // values in lw_buffers.gate, up and ffn_codes
    size_t adapted;  // inputs of an adapted matrix that is alone in its phase
    size_t angles;   // half of a head's dimensions
    size_t dense;    // outputs of a dense head, or hidden_size if that is more; 0 unless the model is pooled
    size_t scratch;  // bytes of each thread's scratch
} lw_widths;

// Buffers that all kinds of parts share. Rows are the tokens of the batch. Each kind has further buffers of its own.
typedef struct lw_buffers {
    float* x;          // [rows][hidden_size] residual stream
    float* norm;       // [rows][hidden_size] normalized, the input of float matrices
    float* before;     // [rows][hidden_size] x before attention; NULL unless something reads it
    float *gate, *up;  // [segments of the FFN][rows][LW_SEGMENT], or [rows][size of the FFN] if down is float
    float *cosine[LW_MAX_ROPES], *sine[LW_MAX_ROPES];  // [rows][rotated / 2]
    uint32_t* token;                                   // [rows] token of each row
    uint32_t* sequence;                                // [rows] sequence of each row
    uint32_t* position;                                // [rows]
    uint32_t* token_type;                              // [rows], only of pooled models
    float* pooled[2];                                  // [rows][widths.dense], only of pooled models: source and
                                                       // destination of dense heads in turn
    lw_codes codes;                                    // of normalized rows and of mixers' results
    lw_codes ffn_codes;                                // of the FFN's activated rows
    // Only if the session takes adapters (low_rank.c). A span uses the part of its rows.
    lw_span* spans[2];                        // [rows] spans of all rows; spans of the rows that get logits
    lw_addend* addends[LW_ADAPTED_TOGETHER];  // [rows]
    float* partial;                           // [rows][partial_floats]
    float* low;                               // [rows][LW_ADAPTED_TOGETHER * max_adapter_rank]
    atomic_uint* parts_done;                  // [rows * LW_ADAPTED_TOGETHER] splits done; all 0 between phases
} lw_buffers;

// Hands out parts of one block of memory; with base NULL it only adds up their sizes.
typedef struct lw_parts {
    uint8_t* base;
    size_t used;
} lw_parts;

// Which steps run on fewer threads (lw_session_limit_threads).
typedef struct lw_step_limit {
    unsigned threads;
    uint32_t max_rows, max_context;
} lw_step_limit;

// The picture that a tower's session works on (step/see.c).
typedef struct lw_seeing {
    lw_picture picture;
    float* out;
    uint32_t n_patches;     // 0: no picture is begun
    uint32_t stage, first;  // of the next unit of work: the stage, and the first patch
    float *x, *q;           // [patches] residual stream and queries of the whole picture
    float* clamped;         // [max_batch_tokens][widest input of a layer's matrix] what a matrix that clamps reads
    float values[3][256];   // of R, G and B
} lw_seeing;

struct lw_session {
    const lw_model* model;
    lw_session_config config;
    lw_pool* pool;
    unsigned threads;  // of the step that runs
    lw_step_limit limit;
    lw_kv_cache kv;
    lw_states states;
    lw_block memory;  // holds the buffers
    lw_buffers b;
    lw_widths widths;
    lw_kv_groups groups;
    lw_kv_place* places;  // [2 * n_layers] where each layer's keys and values are in the cache, then its entries
    lw_kv_cache* kv_of;   // [n_layers] the cache as each layer sees it
    void** of_kind;       // [LW_N_KINDS] buffers of each kind (kinds/kind.h); NULL if no layer has the kind
    uint8_t* scratch;     // [threads][scratch_bytes]
    size_t scratch_bytes;
    uint8_t* draw_scratch;  // [threads][draw_scratch_bytes]
    size_t draw_scratch_bytes;
    lw_own* own;                         // [threads]
    const lw_model** replica_of_thread;  // [threads] the copy of the weights that each thread reads
    lw_work* phases;                     // one counter per phase of a step
    size_t n_phases;
    size_t partial_floats;                 // of b.partial, for each row
    _Alignas(64) atomic_size_t projected;  // low-rank inputs of this step that have been computed
    lw_signal draw_gate;                   // the draws of every step pass it
    atomic_bool closing;                   // no step may begin and no token may be drawn any more
    uint32_t* drawn_tokens;                // [max_batch_logits] drawn by the last step that has run
    uint32_t n_drawn;                      // draws of the last step that has run or has been started
    lw_counters counters;                  // written by the thread that runs a step
    lw_counters published;                 // copy of `counters` made after the last step, under `lock`
    pthread_mutex_t lock;
    lw_ahead* ahead;                                  // NULL until a step is started ahead
    void (*announce)(lw_ahead*);                      // NULL until a step is started ahead; called when all threads
                                                      // work on a step
    lw_profile* profile;                              // NULL unless asked for
    lw_input_stats* observed;                         // [threads][lw_observed_cells], NULL unless asked for
    const lw_texts* texts;                            // texts that a pooled model is encoding
    uint32_t *first_blocks, *no_context, *kept_rows;  // [max_batch_logits] for the texts being encoded (encode.c)
    uint32_t* all_blocks;                             // [n_blocks] the numbers of all blocks
    lw_seeing seeing;                                 // only of towers
};

// Takes `bytes` bytes, 64-byte aligned. Returns NULL while sizes are added up.
void* lw_take(lw_parts* parts, size_t bytes);
// Takes room for the codes of `rows` rows of up to `widest` inputs, a multiple of LW_SEGMENT.
lw_codes lw_take_codes(lw_parts* parts, const lw_model* model, size_t rows, size_t widest);

extern const char* const lw_operation_names[LW_OPERATION_COUNT];

// NULL unless the session is profiled.
static inline lw_profile_thread* lw_session_profile_thread(const lw_session* s, unsigned thread) {
    return s->profile != NULL ? &s->profile->threads[thread] : NULL;
}

// The block numbers of a sequence in one group of layers.
static inline const uint32_t* lw_block_table(const lw_session* s, const lw_batch* batch, uint32_t sequence,
                                             uint32_t group) {
    const size_t row = lw_table_row(batch, sequence);
    return batch->block_tables + (row * s->groups.n_groups + group) * batch->block_table_stride;
}

// Checks that the adapters of a batch belong to the session's model and fit its buffers (low_rank.c).
lw_status lw_check_adapters(const lw_session* s, const lw_batch* batch);
// Lists the spans of a batch: of all its rows, or of the rows that get logits.
lw_spans lw_make_spans(lw_session* s, const lw_batch* batch, bool of_logits);
// Number of floats of b.partial for each row.
size_t lw_partial_floats(const lw_session* s);

#endif
