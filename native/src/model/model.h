// A model: its configuration and its weights, packed for one instruction-set level.
#ifndef LW_MODEL_MODEL_H
#define LW_MODEL_MODEL_H

#include <math.h>
#include <stddef.h>

#include "kernels/kernel.h"
#include "kernels/lane_ops.h"
#include "memory.h"
#include "thread_pool.h"

enum { LW_LAYER_MATRICES = 46 };

// A matrix with 0 rows was not loaded. Its bytes lie in the model's arena, or in a file that the caller keeps mapped.
typedef struct lw_layer {
    lw_layer_config config;
    union {
        struct {  // in the order in which a step reads them
            lw_matrix hyper_attn;
            lw_matrix latent_query, latent_down, index_key, index_weights;
            lw_matrix compress_rows, compress_gate, index_rows, index_gate, index_query;
            lw_matrix q, k, v, attn_gate;
            lw_matrix latent_keys, latent_values;  // of all heads, stacked
            lw_matrix attn_groups, attn_output;
            lw_matrix laurel_down, laurel_up;
            lw_matrix state_in, state_keys, state_values, state_gate_down, state_decay_down, state_gate, state_decay,
                state_beta, state_out;
            lw_matrix gate, up, down;  // of the FFN; with experts, of the shared expert
            lw_matrix per_layer_gate, per_layer_out;
            lw_matrix mtp_projection, head_fusion, head_embedding, head_output, head_return;
            lw_matrix hyper_ffn, router;
            lw_matrix experts_in, experts_out;
            lw_matrix experts_gate, experts_up, experts_down;  // all experts, stacked
        };
        lw_matrix matrices[LW_LAYER_MATRICES];
    };
    float *attn_norm, *ffn_norm;                                   // [hidden_size]; NULL if nothing follows the norm
    float *attn_result_norm, *ffn_result_norm;                     // [hidden_size], or NULL
    float* per_layer_result_norm;                                  // [hidden_size], or NULL
    float *stream_norm, *stream_scale, *laurel_norm;               // [hidden_size], or NULL
    float *stream_router, *stream_prediction, *stream_correction;  // see roles.h
    float *mtp_embedding_norm, *mtp_hidden_norm, *mtp_norm;        // [hidden_size], or NULL
    float *head_fusion_norm, *head_tokens;                         // [n_taps * hidden_size], [outputs], or NULL
    // NULL if the layer does not have the tensor:
    float *attn_norm_bias, *ffn_norm_bias;               // [hidden_size]
    float *q_bias, *k_bias, *v_bias, *attn_output_bias;  // [outputs]
    float *gate_bias, *up_bias, *down_bias;              // [outputs]; with experts [n_experts][outputs]
    float *router_bias, *choice_bias;                    // [n_experts]
    float* shared_router;                                // [hidden_size]
    // Experts with own_norms: [hidden_size] each, but router_scales [n_experts].
    float *router_norm, *experts_norm, *shared_result_norm, *experts_result_norm, *router_scales;
    float *q_norm, *k_norm;                       // [head_dim], or [heads][head_dim]
    float *attn_inner_norm, *ffn_inner_norm;      // [outputs of all heads], [size]
    float* sinks;                                 // [n_heads]
    float* distances;                             // [n_heads][2 * distances + 1]
    float *position_keys, *position_queries;      // [n_heads][head_dim][2 * distances + 1]
    float *latent_query_norm, *latent_norm;       // [query_rank], [latent_rank]
    float *index_key_norm, *index_key_norm_bias;  // [index_dim]
    float *compress_positions, *compress_norm;    // see roles.h
    float *index_positions, *index_norm;          // the same
    float* index_query_norm;                      // [index_dim]
    float *hyper_attn_base, *hyper_attn_scale, *hyper_ffn_base, *hyper_ffn_scale;
    float* router_table;                                // [vocab_size][n_used]
    float* state_conv;                                  // [channels][taps]
    float *state_conv_bias, *state_norm;                // [channels]; see LW_STATE_NORM
    float *state_decay_bias, *state_rate, *state_skip;  // [decays of a row], [n_heads], [n_heads]
    // [inputs] input j of the matrices after it is value order[j]; NULL = in order
    float *attn_input_order, *attn_output_order, *ffn_input_order;
    float* clamps;  // [LW_CLAMPED_MATRICES][4], or NULL
} lw_layer;
_Static_assert(offsetof(lw_layer, experts_down) == offsetof(lw_layer, matrices[LW_LAYER_MATRICES - 1]),
               "LW_LAYER_MATRICES counts the matrices");

// A dense head of a pooled model.
typedef struct lw_dense {
    lw_dense_config config;
    lw_matrix matrix;
    float *bias, *norm, *norm_bias;       // [outputs], or NULL
    float *input_norm, *input_norm_bias;  // [inputs], or NULL
} lw_dense;

enum { LW_MAX_ROPES = 8 };

typedef struct lw_angles {  // one lw_rope of the model
    uint32_t rotated;
    float scale;
    float* frequencies;                 // [rotated / 2], radians per position
    uint8_t axes[LW_MAX_HEAD_DIM / 2];  // [rotated / 2]
} lw_angles;

enum { LW_TYPE_LIMIT = 296 };  // all type numbers are below this

struct lw_model {
    lw_model_config config;       // without its arrays: see ropes, and each layer's config
    lw_model_config head_config;  // the same as a prediction head's functions see it
    lw_level level;
    const lw_lane_ops* ops;
    lw_arena arena;  // memory of packed weights
    lw_pool* pool;   // packs the weights; closed by lw_model_finish
    lw_layer* layers;
    uint32_t first_attention;  // index of the first layer with attention
    // Index of the last layer with attention or a state: after it only rows with logits are computed. UINT32_MAX where
    // a prediction head reads all rows behind it.
    uint32_t last_mixer;
    lw_matrix embedding, output;
    lw_matrix position_embedding, token_type_embedding;   // 0 rows: the model has none
    lw_matrix per_layer_embedding, per_layer_projection;  // 0 rows: the model has none
    lw_matrix streams_in, streams_out;                    // 0 rows: the model has none
    lw_matrix hyper_head;                                 // 0 rows: the model has none
    float *hyper_head_base, *hyper_head_scale;
    lw_matrix patches;  // 0 rows: the model is no tower
    float *patches_bias, *patches_norm, *patches_norm_bias, *mean_shift, *mean_scale;
    float *patches_input_norm, *patches_input_norm_bias;
    float *output_norm, *output_norm_bias, *output_bias;
    float* per_layer_norm;  // [per_layer_size]
    lw_dense dense[LW_MAX_DENSE];
    lw_angles ropes[LW_MAX_ROPES];
    float* slopes;              // [n_heads] of lw_attention_config.alibi
    float* ones;                // [largest head_dim, or hidden_size] weights for norms without weights
    bool holds[LW_TYPE_LIMIT];  // types of the model's matrices
    bool has_minimums;          // a type subtracts minimums, so activations need their sums
    bool finished;
    lw_nodes nodes;         // nodes that KV caches are placed on
    uint32_t* other_nodes;  // [n_replicas] node of each replica
    lw_model* replicas;     // [n_replicas] this model with its own matrices; a copy of the embedding only if it is the
                            // head
    uint32_t n_replicas;    // besides the model itself
};

static inline bool lw_has_attention(const lw_layer* layer) { return layer->config.attention.n_heads > 0; }
static inline bool lw_has_state(const lw_layer* layer) { return layer->config.state.kind != LW_NO_STATE; }

// Number of values of a head that the output projection reads.
static inline uint32_t lw_output_dim(const lw_attention_config* c) {
    return c->value_dim > 0 ? c->value_dim : c->head_dim;
}

// Number of layers without those of a prediction head.
static inline uint32_t lw_own_layers(const lw_model* model) {
    uint32_t n = model->config.n_layers;
    while (n > 0 && model->layers[n - 1].config.mtp) --n;
    return n;
}

// The first layer of the prediction head; NULL if there is none.
static inline const lw_layer* lw_model_mtp(const lw_model* model) {
    const uint32_t own = lw_own_layers(model);
    return own < model->config.n_layers ? &model->layers[own] : NULL;
}

// Whether the head guesses blocks. Whether attention of a layer reads pairs of an embedding and a hidden row.
static inline bool lw_guesses_blocks(const lw_model* model) {
    const lw_layer* head = lw_model_mtp(model);
    return head != NULL && head->config.head.block > 0;
}
static inline bool lw_reads_pairs(const lw_layer_config* l) { return l->head.n_taps > 0 && l->head.block == 0; }

// The attention of the first layer that has attention; of a model without layers it has no heads.
static inline const lw_attention_config* lw_model_heads(const lw_model* model) {
    return &model->layers[model->first_attention].config.attention;
}

// The factor of products of queries and keys.
static inline float lw_score_scale(const lw_attention_config* c) {
    return c->score_scale != 0 ? c->score_scale : 1.0f / sqrtf((float)c->head_dim);
}

// Number of channels that a layer with a state convolves, and of values that its output projection reads.
static inline uint32_t lw_state_channels(const lw_state_config* c, uint32_t hidden) {
    return c->kind == LW_SHORT_CONV ? hidden : c->n_heads * c->value_dim + 2 * c->n_key_heads * c->key_dim;
}
// Values of a row that a layer with a state convolves, and those that multiply them before or after.
static inline uint32_t lw_state_width(const lw_state_config* c, uint32_t hidden) {
    return c->kind == LW_SHORT_CONV ? 3 * hidden : lw_state_channels(c, hidden);
}
static inline uint32_t lw_state_inner(const lw_state_config* c, uint32_t hidden) {
    return c->kind == LW_SHORT_CONV ? hidden : c->n_heads * c->value_dim;
}

// Tokens of a text that a layer reads what it has stored of, the last ones; 0 = all. Entries are made of tokens that a
// query may see no longer.
static inline uint32_t lw_stored_window(const lw_attention_config* c) {
    const uint32_t entry = c->compress * (1 + c->overlap);
    return c->window == 0 || c->window > entry ? c->window : entry;
}

// Whether a layer's state follows a delta rule, and the number of its decays for each row.
static inline bool lw_is_delta(const lw_state_config* c) {
    return c->kind == LW_GATED_DELTA || c->kind == LW_CHANNEL_DELTA;
}
static inline uint32_t lw_state_decays(const lw_state_config* c) {
    return c->kind == LW_CHANNEL_DELTA ? c->n_heads * c->key_dim : c->n_heads;
}

// The largest number of tokens that a query sees in a layer; 0 = all.
static inline uint32_t lw_model_window(const lw_model* model) {
    uint32_t widest = 0;
    for (uint32_t i = 0; i < model->config.n_layers; ++i) {
        if (!lw_has_attention(&model->layers[i])) continue;
        const uint32_t window = lw_stored_window(&model->layers[i].config.attention);
        // Entries are seen whatever the window is.
        if (window == 0 || model->layers[i].config.attention.compress > 0) return 0;
        if (window > widest) widest = window;
    }
    return widest;
}

// The matrix that makes logits: the output, or the embedding when tied.
static inline const lw_matrix* lw_model_head(const lw_model* model) {
    return model->config.tied_embeddings ? &model->embedding : &model->output;
}

// The replica that threads on node number `i` read; `i` is an index into lw_model_place's nodes.
static inline const lw_model* lw_model_replica(const lw_model* model, uint32_t i) {
    return i == 0 ? model : &model->replicas[i - 1];
}
// Makes the replicas (replicate.c).
lw_status lw_replicate(lw_model* model);
void lw_free_replicas(lw_model* model);

static inline bool lw_is_tower(const lw_model_config* c) { return c->patches.side > 0; }
// Patches whose rows are read as one.
static inline uint32_t lw_block_patches(const lw_model_config* c) { return c->patches.merge * c->patches.merge; }
// Number of inputs of LW_PATCHES.
static inline uint32_t lw_patch_inputs(const lw_model_config* c) {
    return (3 * c->patches.side * c->patches.side + 31) / 32 * 32;
}
// Number of values of a pooled row.
static inline uint32_t lw_pooled_size(const lw_model_config* c) {
    return c->hidden_size * (lw_is_tower(c) && !c->patches.mean_of_block ? lw_block_patches(c) : 1);
}

// Number of dense heads that follow one another. All heads are those of pooled rows, and as many for each tap.
static inline uint32_t lw_dense_group(const lw_model_config* c) { return c->n_dense / (1 + c->patches.n_taps); }
static inline bool lw_dense_begins(const lw_model_config* c, uint32_t index) {
    return index == 0 || (index < c->n_dense && index % lw_dense_group(c) == 0);
}
// Number of inputs of dense head `index`. For the number of heads: the size of a result.
static inline uint32_t lw_dense_inputs(const lw_model* model, uint32_t index) {
    return lw_dense_begins(&model->config, index) ? lw_pooled_size(&model->config)
                                                  : model->dense[index - 1].config.outputs;
}

// The slot of a tensor: its destination and the shape that the tensor must have.
typedef struct lw_slot {
    const char* name;
    lw_matrix* matrix;  // NULL if the tensor is a vector
    float** vector;
    uint32_t rows, cols;  // vectors have one row
    bool wanted;          // this model has such a tensor
} lw_slot;

// Packs `tensor` into `out` as `target` for `level`, with the threads of `pool` and memory from `arena`. Errors name
// `name`.
lw_status lw_pack_matrix(lw_level level, lw_pool* pool, lw_arena* arena, const char* name, const lw_tensor* tensor,
                         lw_type target, lw_matrix* out);
// True if `tensor` is F16 and a bfloat16 holds each of its values, as of files that were made from bfloat16.
bool lw_fits_bfloat(lw_pool* pool, const lw_tensor* tensor);
// Copies a float vector as f32; rows of RoPE heads are put in half-split order.
lw_status lw_copy_vector(const char* name, const lw_tensor* tensor, float** out);

// A matrix without data, with panels in `layout`.
lw_matrix lw_matrix_of(lw_type type, lw_layout layout, uint32_t rows, uint32_t cols);

// Take tensors of packed files (packed.c) whose shape is the slot's.
lw_status lw_take_packed_matrix(lw_model* model, const char* name, const lw_packed_tensor* tensor, lw_load how,
                                lw_matrix* out);
lw_status lw_take_packed_vector(const char* name, const lw_packed_tensor* tensor, float** out);
void lw_describe_packed(const lw_slot* slot, lw_packed_tensor* out);

// One row of the embedding as floats, out[cols].
void lw_unpack_row(const lw_matrix* w, size_t row, float* out);
// A panel as floats (see lw_decode_panel_fn).
void lw_decode_panel(const lw_matrix* w, size_t panel, float* out, float* row);

// The source row that becomes row `row` when interleaved RoPE heads are put into half-split order.
static inline uint32_t lw_rope_source_row(uint32_t row, uint32_t rows, uint32_t heads) {
    if (heads == 0) return row;
    const uint32_t dim = rows / heads, half = dim / 2, i = row % dim;
    return row - i + (i < half ? 2 * i : 2 * (i - half) + 1);
}

// Compares every kernel of the model's level for the types in `holds` with the scalar kernel, on random data.
lw_status lw_selftest(const lw_model* model, lw_pool* pool, const bool holds[LW_TYPE_LIMIT]);

#endif
