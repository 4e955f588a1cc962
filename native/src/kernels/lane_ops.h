// Every operation of the forward step that is not a matrix product: one table of functions per level.
//
// Each is written once, over 16 virtual lanes (lane_ops.inc, lanes.h), and compiled for each ISA. So the order of every
// sum is fixed by the 16 lanes and not by the width of the vectors. Written for each ISA are only integer sums, which
// are exact in any order (code_dots.h), and for NEON loops that share conversions between rows (float_dots.h).
#ifndef LW_KERNELS_LANE_OPS_H
#define LW_KERNELS_LANE_OPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/kernel.h"

enum { LW_LANES = 16, LW_MAX_HEAD_DIM = 512, LW_MAX_LATENT_RANK = 1024 };

// The keys and values of one KV head in one block of the cache: keys [head_dim][32 tokens], values [32
// tokens][value_dim]. LW_I8: keys [key_dim / 4][32 tokens][4], values [32 / 4 tokens][value_dim][4 tokens], then f32
// scales of the keys [32] and of the values [32]. LW_I4 packs both to halves of bytes, LW_I8_I4 the values
// (attention_packed.inc): keys [key_dim / 8][32 tokens][4], values [32 / 4 tokens][lw_value_pairs][16][4]. Latent: the values are the keys' first value_dim dimensions and are
// not stored again; the codes of the dimensions behind them have 8 bits and scales of their own, which come before
// those of the first ones (attention_latent.inc).
typedef struct lw_kv_view {
    const uint8_t* base;  // start of the layer's cache
    size_t block_bytes;   // from one block of the layer to the next
    size_t head_bytes;    // from one head of a block to the next
    size_t value_offset;  // from the keys of a head to its values
    size_t scale_offset;  // codes: from the keys of a head to its scales
    size_t head_dim;
    size_t result_dim;          // values of a value, at most head_dim
    size_t key_dim, value_dim;  // both rounded up to LW_LANES; the padding is zero, undefined with codes
    // Index keys [index_dim][32 tokens] of a block lie at index_offset: where values would in latent attention, else behind
    // all heads. Beside codes they are LW_F16.
    size_t index_dim, index_offset;  // 0 = none
    lw_type type;                    // LW_F32, LW_F16, LW_I8, LW_I4 or LW_I8_I4
    bool latent;                     // latent attention; value_dim is a multiple of 32
} lw_kv_view;

// Number of values of a key, and of a head's result before LW_LATENT_VALUES.
static inline uint32_t lw_key_dim(const lw_attention_config* c) {
    return c->latent_rank > 0 ? c->latent_rank + c->rope_dim : c->head_dim;
}
static inline uint32_t lw_result_dim(const lw_attention_config* c) {
    return c->latent_rank > 0 ? c->latent_rank : c->value_dim > 0 ? c->value_dim : c->head_dim;
}

// Whether a cache of this type has codes and scales; whether its keys and its values are packed to four bits.
static inline bool lw_kv_codes(lw_type type) { return type == LW_I8 || type == LW_I4 || type == LW_I8_I4; }
static inline bool lw_kv_packs_keys(lw_type type) { return type == LW_I4; }
static inline bool lw_kv_packs_values(lw_type type) { return type == LW_I4 || type == LW_I8_I4; }

// Whether values lie turned in the cache (lw_lane_ops.turn), so that results have to be turned back.
static inline bool lw_kv_turns_values(lw_type type, bool latent) {
    return lw_kv_packs_values(type) || (latent && lw_kv_codes(type));
}

// Packed values of four tokens are so many times 16 dimensions in the low halves of bytes and the next 16 in the high
// ones.
static inline size_t lw_value_pairs(size_t value_dim) { return (value_dim + 2 * LW_LANES - 1) / (2 * LW_LANES); }

// Codes of latent rows: from a block's head to the codes of the dimensions behind the values.
static inline size_t lw_latent_rest(const lw_kv_view* kv) {
    return LW_BLOCK_TOKENS * (lw_kv_packs_keys(kv->type) ? kv->value_dim / 2 : kv->value_dim);
}

// Length of the runs in which a head of n values is turned (lw_lane_ops.turn): the largest power of two that divides n.
static inline size_t lw_turn_size(size_t n) { return n & -n; }

// Added to the stored codes of LW_I8 keys: VPDPBUSD multiplies unsigned by signed bytes, SDOT signed bytes.
#if defined(__x86_64__)
enum { LW_KEY_BIAS = 128 };
#else
enum { LW_KEY_BIAS = 0 };
#endif

typedef struct lw_tokens {  // a range of tokens of a sequence, of splits, or of dimensions
    size_t first, end;
} lw_tokens;

// Attention of few jobs on many threads goes in two stages: first the scores of all tokens, then what follows from
// them. Both stages have more and smaller jobs than the whole, and no bit changes.
typedef enum lw_attention_stage { LW_ATTEND_WHOLE, LW_ATTEND_SCORES, LW_ATTEND_VALUES } lw_attention_stage;

// The queries of one sequence that share one KV head.
typedef struct lw_attention_job {
    lw_kv_view kv;
    const uint32_t* blocks;  // block table of the sequence
    size_t kv_head;
    size_t n_tokens;  // query tokens, at positions first_position, first_position + 1, ...
    size_t first_position;
    size_t window;   // tokens each query sees, its own included; 0 = all
    size_t length;   // 0: causal; else the length of the sequence, and queries see both ways
    bool brief;      // LW_I8: as in attention_brief.inc
    size_t group;    // query heads per KV head
    const float* q;  // token t, head h of the group at q[t * q_stride + h * head_dim], already scaled
    size_t q_stride;
    float softcap;           // 0 = off; else scores go through lw_lane_ops.softcap before slopes are subtracted
    const float* slopes;     // [group] ALiBi: scores fall by this for each token of distance; NULL = none; never with
                             // codes
    const float* distances;  // [group][2 * reach + 1] what scores change by, by the key's position minus the query's,
                             // limited to -reach .. reach; NULL = nothing; never with codes
    size_t reach;
    // [group][head_dim][2 * reach + 1] what a query and a key are multiplied by, too; NULL = nothing; never with codes
    const float *position_keys, *position_queries;
    const float* sinks;  // [group] one more score of each head, whose value is 0; NULL = none
    float* out;          // results in the order of q, result_dim values per head
    size_t out_stride;
    float* scratch;  // lw_attention_scratch_floats(...)
    // Only of latent attention, for one query token: [first_position + 1] the tokens that it sees, ascending. It attends
    // to a text of just these. NULL = it sees the tokens as they lie in the cache.
    const uint32_t* chosen;
    lw_attention_stage stage;
    // The rest is not read if the stage is LW_ATTEND_WHOLE. The score of query token t, head h and token n of the
    // sequence is at scores[t * score_stride + h * score_span + n - first_score]; first_score is the start of a block.
    float* scores;
    size_t score_stride, score_span, first_score;
    lw_tokens dims;  // LW_ATTEND_VALUES: the dimensions that are computed, multiples of LW_LANES or the last ones
} lw_attention_job;

// Index scores of one query and a range of tokens, which begins where a block does.
typedef struct lw_index_job {
    lw_kv_view kv;
    const uint32_t* blocks;  // block table of the sequence
    lw_tokens tokens;
    size_t heads;
    const float* q;        // [heads][index_dim]
    const float* weights;  // [heads]; not read by index_largest
    float* scores;         // [tokens, in whole blocks] of tokens.first and those after it
    size_t together;       // of index_largest: tokens of one score, a multiple of 32 that divides tokens.first
    size_t stride;         // of index_largest: the scores of head h begin at scores[h * stride]
    float* scratch;        // lw_index_scratch_floats(...)
} lw_index_job;

// A causal convolution over some channels of the rows of one sequence. Channel c of row r is at x[r * stride + c], its
// result at out[r * out_stride + c]; out may be x. The last `guesses` rows only get results: the tail is left as if
// they were not there, and their inputs are kept behind it. A later job can say that the first `accepted` of them
// count.
typedef struct lw_convolve_job {
    size_t rows, channels, taps;
    const float* x;
    const float *before, *after;  // at the places of x: factors of the inputs and of the results; NULL = 1
    size_t stride;
    float* out;
    size_t out_stride;
    const float* weights;  // [channels][taps], oldest row first
    const float* bias;     // [channels] or NULL
    float* tail;           // [taps - 1 + guesses][tail_stride] in: inputs before the first row; out: the last rows'
                           // inputs
    size_t tail_stride;
    bool fresh;  // the sequence starts here: the tail's contents are ignored
    size_t guesses;
    size_t accepted;      // inputs behind the tail that precede the first row; 0 if fresh
    float* accepted_out;  // results of the accepted rows, laid out like out; NULL = not wanted
} lw_convolve_job;

enum {
    LW_RECUR_COLUMNS = 64,  // maximum number of columns of a state in one job: a tile that fits the first-level cache
    LW_MAX_TAPS = 8
};

// What a recurrence reads for a row; the values of row r are at r * the stride.
typedef struct lw_recur_rows {
    const float *k, *q;  // [key_dim]: LW_SSD: B and C
    const float* v;      // [columns]: LW_SSD: x
    // The factor of the state, one number or, of LW_CHANNEL_DELTA, [key_dim]; one number: beta, or d of LW_SSD.
    const float *decay, *beta;
} lw_recur_rows;

// A recurrence over the rows of one sequence, for some columns of one head's state. The last `guesses` rows only get
// results and leave the state as it is.
typedef struct lw_recur_job {
    size_t rows;
    size_t key_dim, columns;  // multiples of 16
    float* state;             // [key_dim][columns]
    lw_recur_rows in;
    size_t stride;  // stride of k, q and v
    size_t decay_stride, beta_stride;
    float skip;  // D of LW_SSD
    float* out;  // [columns]
    size_t out_stride;
    bool fresh;  // the sequence starts here: the state's contents are ignored, it is zero
    size_t guesses;
    float* scratch;  // [key_dim][columns], if there are guesses: the state after them
    size_t accepted;
    lw_recur_rows accepted_in;  // the accepted rows, which come first and have no results; q is not read
} lw_recur_job;

enum { LW_SPLIT_TOKENS = 1024 };  // attention restarts its softmax at multiples of this; numeric contract

typedef struct lw_lane_ops {
    // out[i] = (x[i] / rms(x)) * weight[i]; any n, sums over 16 lanes.
    void (*rmsnorm)(float* out, const float* x, const float* weight, size_t n, float eps);
    // out[i] = (x[i] - mean(x)) / sqrt(variance(x) + eps) * weight[i] (+ bias[i] unless NULL), sums over 16 lanes; out
    // may be x.
    void (*layernorm)(float* out, const float* x, const float* weight, const float* bias, size_t n, float eps);
    // Quantizes segments first .. first + n - 1 of row `row` of x from their values. Writes q (padded with zeros to
    // whole segments), scale, totals, sums unless NULL, and outliers. Returns false when a value is not finite. In each
    // group, a value of more than eight times the magnitude of any other is an outlier and is taken out. `peak` is the
    // largest magnitude of the rest; the scale is peak / 127; a code is x * (127 / peak) rounded to nearest even. If
    // peak is below 1e-30 all codes are zero. With an x->peak, this is the peak of every group, and there are no outliers.
    bool (*quantize)(const lw_activations* x, size_t row, size_t first, size_t n, const float* values);
    // Adds the products of outliers to outputs [32 * panel, 32 * panel + 32). `scratch` is a kernel's.
    void (*add_outliers)(const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out, void* scratch);
    // gate[i] = gate[i] / (1 + exp(-gate[i])) * up[i]
    void (*silu_mul)(float* out, const float* gate, const float* up, size_t n);
    // out[i] = x[i] / (1 + exp(-gate[i])); out may be x.
    void (*sigmoid_mul)(float* out, const float* gate, const float* x, size_t n);
    // out[i] = kind(x[i]) (* up[i] unless NULL), for every kind but LW_CLAMPED and LW_XIELU; out may be x.
    void (*activate)(float* out, const float* x, const float* up, size_t n, lw_activation kind);
    // out[i] = g / (1 + exp(-alpha * g)) * (u + 1), g = gate[i] but at most `limit`, u = up[i] within +-limit
    void (*clamped_swiglu)(float* out, const float* gate, const float* up, size_t n, float limit, float alpha);
    // LW_XIELU likewise: g = x[i], p = max(0, g); fma(alpha * p, p, p / 2), plus, where g <= 0,
    // fma(exp(min(g, -1e-6)) - 1 - g, limit, g / 2).
    void (*xielu)(float* out, const float* x, const float* up, size_t n, float limit, float alpha);
    // x[i] = cap * tanh(x[i] / cap) = fma(2 * cap, 1 / (1 + exp(-x[i] * (2 / cap))), -cap); NaN and infinity become
    // NaN.
    void (*softcap)(float* x, size_t n, float cap);
    // out[i] = x[i], but at least `least` and at most `most`; NaN stays NaN, -0 becomes 0. out may be x.
    void (*clamp)(float* out, const float* x, size_t n, float least, float most);
    // out[i] = fma(weight, x[i], out[i])
    void (*add_weighted)(float* out, const float* x, size_t n, float weight);
    // Half-split rotation of the first `rotated` dimensions of a head in place: cos, sin have rotated / 2 entries.
    void (*rope)(float* head, const float* cosine, const float* sine, size_t rotated);
    // x, n values of one head, becomes its Walsh-Hadamard transform in runs of lw_turn_size(n), times `factor`.
    void (*turn)(float* x, size_t n, float factor);
    // Codes: writes one token's key and value of one head, head_dim floats each, to place `offset` of the block; `head`
    // is the head's part of the block. Of a latent row, `value` is not read. Returns false when a value, or a turned one
    // where those are coded, is not finite.
    bool (*store_kv)(const lw_kv_view* kv, uint8_t* head, size_t offset, const float* key, const float* value);
    void (*attention)(const lw_attention_job* job);
    // The same in parts that threads share. attention_split computes the state of one split of
    // lw_attention_splits(...). attention_merge makes the result from the states of all splits, in order, and
    // overwrites the states. Each state has lw_attention_state_floats(lw_attention_rows(...), value_dim) floats,
    // 64-byte aligned.
    void (*attention_split)(const lw_attention_job* job, size_t split, float* state);
    void (*attention_merge)(const lw_attention_job* job, float* states, size_t n_splits);
    // LW_ATTEND_SCORES: writes the scores of a range of tokens, which begins where a block does. Not for latent
    // attention. Once a job's tokens all have scores, the functions above take LW_ATTEND_VALUES: q is not read, and any
    // of the group's heads may be a job of their own.
    void (*attention_scores)(const lw_attention_job* job, lw_tokens tokens);
    // score = sum over the heads, one fma(weight, max(0, q . k), score) each, in order, from 0. q . k is one chain of
    // fma over the dimensions; NaN counts as 0.
    void (*index_scores)(const lw_index_job* job);
    // Of each head and each `together` tokens, the largest q . k, one chain of fma as above; NaN if one of them is not
    // finite.
    void (*index_largest)(const lw_index_job* job);
    // y[c] = bias[c] + sum over taps t of weights[c][t] * x of row r - taps + 1 + t, in order, one fma each.
    void (*convolve)(const lw_convolve_job* job);
    // x[i] *= scale / sqrt(sum of squares + 1e-6), the sum over 16 lanes; n a multiple of 16.
    void (*make_unit)(float* x, size_t n, float scale);
    // The gated delta rule of a row, with g and b its decay and beta, each sum one fma for each i in order:
    //     kS = sum k[i] S[i], qS = sum q[i] S[i], qk = sum over 16 lanes of q[i] k[i], d = b * (v - g * kS)
    //     out = fma(qk, d, g * qS), S[i] = fma(k[i], d, g * S[i])
    void (*recur_delta)(const lw_recur_job* job);
    // The same with g a decay for each i: kS = sum (k[i] * g[i]) S[i], qS likewise, d = b * (v - kS),
    //     out = fma(qk, d, qS), S[i] = fma(k[i], d, g[i] * S[i])
    void (*recur_channels)(const lw_recur_job* job);
    // LW_CHANNEL_DELTA's decays, with a = x[i] + bias[i]: out[i] = exp(rate * softplus(a)), or with another floor than 0
    // exp(floor / (1 + exp(rate * a))); n a multiple of 16, out may be x. Returns false when an a is not finite.
    bool (*decays)(float* out, const float* x, const float* bias, size_t n, float rate, float floor);
    // Mamba 2, with g the decay and d the beta of a row: S[i] = fma(k[i], d * v, g * S[i]), out = fma(skip, v, sum q[i]
    // S[i]).
    void (*recur_ssd)(const lw_recur_job* job);
    bool (*are_finite)(const float* x, size_t n);
    // The largest of x[0..n), none of which is NaN, and the sum of exp((x - largest) * scale) over 16 lanes.
    float (*max)(const float* x, size_t n);
    float (*sum_exp)(const float* x, size_t n, float largest, float scale);
    // out[i] = exp((x[i] - largest) * scale)
    void (*exp)(float* out, const float* x, size_t n, float largest, float scale);
} lw_lane_ops;

extern const lw_lane_ops* const lw_level_lane_ops[LW_LEVEL_COUNT];

static inline size_t lw_align_floats(size_t n) { return (n + LW_LANES - 1) / LW_LANES * LW_LANES; }

// First token that a query at `position` sees, and the end; `window` and `length` as in lw_attention_job.
static inline size_t lw_seen_first(size_t position, size_t window) {
    return window != 0 && position + 1 > window ? position + 1 - window : 0;
}

static inline size_t lw_seen_end(size_t position, size_t window, size_t length) {
    if (length == 0) return position + 1;
    return window != 0 && position + window < length ? position + window : length;
}

// Range of the tokens that at least one query of a job sees.
static inline lw_tokens lw_attention_tokens(size_t first_position, size_t n_tokens, size_t window, size_t length) {
    return (lw_tokens){lw_seen_first(first_position, window),
                       lw_seen_end(first_position + n_tokens - 1, window, length)};
}

// Range of the splits that hold these tokens.
static inline lw_tokens lw_attention_splits(size_t first_position, size_t n_tokens, size_t window, size_t length) {
    const lw_tokens seen = lw_attention_tokens(first_position, n_tokens, window, length);
    return (lw_tokens){seen.first / LW_SPLIT_TOKENS, (seen.end + LW_SPLIT_TOKENS - 1) / LW_SPLIT_TOKENS};
}

// Query rows of a job, rounded up so that every level has whole blocks of rows; the last row is repeated.
static inline size_t lw_attention_rows(size_t n_tokens, size_t group) { return (n_tokens * group + 7) / 8 * 8; }

// Floats of the softmax state of `rows` query rows: largest score, sums, values.
static inline size_t lw_attention_state_floats(size_t rows, size_t value_dim) {
    return lw_align_floats(rows) + rows * (LW_LANES + value_dim);
}

// Floats of scratch that index_scores and index_largest need.
static inline size_t lw_index_scratch_floats(size_t heads, size_t dim) { return (heads + 7) / 8 * 8 * dim; }

// Floats of scratch that attention needs for one job of at most `tokens` query tokens: queries, one block of keys and
// values in f32, two states. `dim`: head_dim rounded up to LW_LANES.
static inline size_t lw_attention_scratch_floats(size_t tokens, size_t group, size_t dim) {
    const size_t rows = lw_attention_rows(tokens, group);
    return rows * dim + 2 * dim * LW_BLOCK_TOKENS + 2 * lw_attention_state_floats(rows, dim);
}

#endif
