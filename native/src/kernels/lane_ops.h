// Everything of the forward step that is not a matrix product, one table of functions per level.
//
// Each is written once, over 16 virtual lanes (lane_ops.inc, lanes.h), and compiled for each ISA: the order of every
// sum is fixed by the 16 lanes and not by the width of the vectors. Written for each ISA are only sums of integers, which
// have no order (code_dots.h), and for NEON what shares conversions between rows (float_dots.h).
#ifndef LW_KERNELS_LANE_OPS_H
#define LW_KERNELS_LANE_OPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/kernel.h"

enum { LW_LANES = 16, LW_MAX_HEAD_DIM = 512 };

// Where the keys and values of one KV head of one block lie: keys [head_dim][32 tokens], values [32 tokens][value_dim].
// LW_I8: keys [value_dim / 4][32 tokens][4], values [32 / 4 tokens][value_dim][4 tokens], then f32 scales of the keys [32]
// and of the values [32]. Latent: values are the first value_dim dimensions of the keys, and there are no others.
typedef struct lw_kv_view {
    const uint8_t* base;  // of the layer
    size_t block_bytes;   // from one block of the layer to the next
    size_t head_bytes;    // from one head of a block to the next
    size_t value_offset;  // from the keys of a head to its values
    size_t scale_offset;  // LW_I8: from the keys of a head to its scales
    size_t head_dim;
    size_t value_dim;  // head_dim rounded up to LW_LANES; the rest is zero, or in LW_I8 anything
    lw_type type;      // LW_F32, LW_F16 or LW_I8
    bool latent;       // not of LW_I8; value_dim is a multiple of LW_LANES then
} lw_kv_view;

// Values of a key, and of a head's result: those of latent rows.
static inline uint32_t lw_key_dim(const lw_attention_config* c) {
    return c->latent_rank > 0 ? c->latent_rank + c->rope_dim : c->head_dim;
}
static inline uint32_t lw_result_dim(const lw_attention_config* c) {
    return c->latent_rank > 0 ? c->latent_rank : c->head_dim;
}

// Codes of LW_I8 keys are stored plus this: VPDPBUSD multiplies unsigned by signed bytes, SDOT signed ones.
#if defined(__x86_64__)
enum { LW_KEY_BIAS = 128 };
#else
enum { LW_KEY_BIAS = 0 };
#endif

// The queries of one sequence that share one KV head.
typedef struct lw_attention_job {
    lw_kv_view kv;
    const uint32_t* blocks;  // block table of the sequence
    size_t kv_head;
    size_t n_tokens;  // query tokens, at positions first_position, first_position + 1, ...
    size_t first_position;
    size_t window;   // tokens each query sees, its own included; 0 = all
    size_t length;   // 0: queries see what is before them; else they see both ways, in a sequence of so many tokens
    size_t group;    // query heads per KV head
    const float* q;  // token t, head h of the group at q[t * q_stride + h * head_dim], already scaled
    size_t q_stride;
    float softcap;        // 0, or scores are as lw_lane_ops.softcap makes them before slopes change them
    const float* slopes;  // [group] what scores fall by for each token of distance; NULL = nothing; not of LW_I8
    const float* sinks;   // [group] one more score of each head, of no value; NULL = none
    float* out;           // the same for the result, latent: of value_dim values
    size_t out_stride;
    float* scratch;  // lw_attention_scratch_floats(...)
} lw_attention_job;

// A causal convolution over some channels of the rows of one sequence. Row r, channel c of x is at x[r * stride + c], of
// the result at out[r * out_stride + c], which may be x. The last `guesses` rows are in results only: the tail is what it
// would be without them, and behind it are their inputs, of which a later job can say that the first `accepted` counted.
typedef struct lw_convolve_job {
    size_t rows, channels, taps;
    const float* x;
    const float *before, *after;  // where not NULL, at the places of x, inputs and results are multiplied by them
    size_t stride;
    float* out;
    size_t out_stride;
    const float* weights;  // [channels][taps], the oldest row's first
    const float* bias;     // [channels] or NULL
    float* tail;           // [taps - 1 + guesses][tail_stride] the inputs before the first row, then of the last rows
    size_t tail_stride;
    bool fresh;  // what is in the tail does not matter: there is nothing before the first row
    size_t guesses;
    size_t accepted;      // inputs behind the tail that come before the first row; 0 where it is fresh
    float* accepted_out;  // their results, rows as those of out; NULL = not wanted
} lw_convolve_job;

enum {
    LW_RECUR_COLUMNS = 64,
    LW_MAX_TAPS = 8
};  // columns of a state that a job has at most: a tile of a first-level cache

// What a recurrence reads of a row; what belongs to row r is at r * its stride.
typedef struct lw_recur_rows {
    const float *k, *q;         // [key_dim]: LW_SSD: B and C
    const float* v;             // [columns]: LW_SSD: x
    const float *decay, *beta;  // one of each: what the state is multiplied by; beta of LW_GATED_DELTA, d of LW_SSD
} lw_recur_rows;

// A recurrence over the rows of one sequence, of some columns of one head's state, which the last `guesses` rows leave as
// it is: they are in results only.
typedef struct lw_recur_job {
    size_t rows;
    size_t key_dim, columns;  // multiples of 16
    float* state;             // [key_dim][columns]
    lw_recur_rows in;
    size_t stride;       // of k, q and v
    size_t head_stride;  // of decay and beta
    float skip;          // D of LW_SSD
    float* out;          // [columns]
    size_t out_stride;
    bool fresh;  // what is in the state does not matter: it is zero
    size_t guesses;
    float* scratch;  // [key_dim][columns], where there are guesses: the state behind them
    size_t accepted;
    lw_recur_rows accepted_in;  // rows before all others that have no results; q is not read
} lw_recur_job;

enum { LW_SPLIT_TOKENS = 1024 };  // attention restarts its online softmax at multiples of this; numeric contract

typedef struct lw_lane_ops {
    // out[i] = (x[i] / rms(x)) * weight[i]; n a multiple of nothing, sums over 16 lanes.
    void (*rmsnorm)(float* out, const float* x, const float* weight, size_t n, float eps);
    // out[i] = (x[i] - mean(x)) / sqrt(variance(x) + eps) * weight[i] (+ bias[i] unless NULL), sums likewise; out may be x.
    void (*layernorm)(float* out, const float* x, const float* weight, const float* bias, size_t n, float eps);
    // Segments first .. first + n - 1 of one row to int8, from their values: q, padded with zeros to whole segments,
    // scale, totals, sums unless NULL, and outliers of row `row` of x. Returns false when a value is not finite.
    // Of each group: an outlier is a value of more than eight times the magnitude of any other; it is taken out. `peak` is
    // the largest magnitude of the others, the scale peak / 127, a code x * (127 / peak) to nearest even; below 1e-30 all
    // are zero.
    bool (*quantize)(const lw_activations* x, size_t row, size_t first, size_t n, const float* values);
    // Adds to outputs [32 * panel, 32 * panel + 32) of a product what outliers contribute. `scratch` is a kernel's.
    void (*add_outliers)(const lw_matrix* w, const lw_activations* x, size_t panel, lw_output out, void* scratch);
    // gate[i] = gate[i] / (1 + exp(-gate[i])) * up[i]
    void (*silu_mul)(float* out, const float* gate, const float* up, size_t n);
    // out[i] = x[i] / (1 + exp(-gate[i])); out may be x.
    void (*sigmoid_mul)(float* out, const float* gate, const float* x, size_t n);
    // out[i] = kind(x[i]) (* up[i] unless NULL), of every kind but LW_CLAMPED and LW_XIELU; out may be x.
    void (*activate)(float* out, const float* x, const float* up, size_t n, lw_activation kind);
    // out[i] = g / (1 + exp(-alpha * g)) * (u + 1), g = gate[i] but at most `limit`, u = up[i] within +-limit
    void (*clamped_swiglu)(float* out, const float* gate, const float* up, size_t n, float limit, float alpha);
    // LW_XIELU likewise: g = x[i], p = max(0, g); fma(alpha * p, p, p / 2), plus, where g <= 0,
    // fma(exp(min(g, -1e-6)) - 1 - g, limit, g / 2).
    void (*xielu)(float* out, const float* x, const float* up, size_t n, float limit, float alpha);
    // x[i] = cap * tanh(x[i] / cap) = fma(2 * cap, 1 / (1 + exp(-x[i] * (2 / cap))), -cap); what is not finite becomes NaN.
    void (*softcap)(float* x, size_t n, float cap);
    // out[i] = fma(weight, x[i], out[i])
    void (*add_weighted)(float* out, const float* x, size_t n, float weight);
    // Half-split rotation of the first `rotated` dimensions of a head in place: cos, sin have rotated / 2 entries.
    void (*rope)(float* head, const float* cosine, const float* sine, size_t rotated);
    // LW_I8: writes one token's key and value of one head, head_dim floats each, to place `offset` of the block whose part
    // for that head is at `head`. Returns false when a value is not finite.
    bool (*store_kv)(const lw_kv_view* kv, uint8_t* head, size_t offset, const float* key, const float* value);
    void (*attention)(const lw_attention_job* job);
    // The same in parts that threads share: the state of one split of lw_attention_splits(...), then, from those of all
    // of them one after the other (which it overwrites), the result. Each state has
    // lw_attention_state_floats(lw_attention_rows(...), value_dim) floats, 64-byte aligned.
    void (*attention_split)(const lw_attention_job* job, size_t split, float* state);
    void (*attention_merge)(const lw_attention_job* job, float* states, size_t n_splits);
    // y[c] = bias[c] + sum over taps of weights[c][t] * x of row r - taps + 1 + t, in order, one fma each.
    void (*convolve)(const lw_convolve_job* job);
    // x[i] *= scale / sqrt(sum of squares + 1e-6), the sum over 16 lanes; n a multiple of 16.
    void (*make_unit)(float* x, size_t n, float scale);
    // The gated delta rule of a row, with g and b its decay and beta, each sum one fma for each i in order:
    //     kS = sum k[i] S[i], qS = sum q[i] S[i], qk = sum over 16 lanes of q[i] k[i], d = b * (v - g * kS)
    //     out = fma(qk, d, g * qS), S[i] = fma(k[i], d, g * S[i])
    void (*recur_delta)(const lw_recur_job* job);
    // Of Mamba 2, with g and d: S[i] = fma(k[i], d * v, g * S[i]), out = fma(skip, v, sum q[i] S[i]).
    void (*recur_ssd)(const lw_recur_job* job);
    bool (*are_finite)(const float* x, size_t n);
    // Largest of x[0..n), none of them NaN, and the sum of exp((x - largest) * scale), in 16 lanes.
    float (*max)(const float* x, size_t n);
    float (*sum_exp)(const float* x, size_t n, float largest, float scale);
    // out[i] = exp((x[i] - largest) * scale)
    void (*exp)(float* out, const float* x, size_t n, float largest, float scale);
} lw_lane_ops;

extern const lw_lane_ops* const lw_level_lane_ops[LW_LEVEL_COUNT];

static inline size_t lw_align_floats(size_t n) { return (n + LW_LANES - 1) / LW_LANES * LW_LANES; }

typedef struct lw_tokens {  // a range of tokens of a sequence, or of splits of it
    size_t first, end;
} lw_tokens;

// Where what a query at `position` sees begins and ends; `window` and `length` as in lw_attention_job.
static inline size_t lw_seen_first(size_t position, size_t window) {
    return window != 0 && position + 1 > window ? position + 1 - window : 0;
}

static inline size_t lw_seen_end(size_t position, size_t window, size_t length) {
    if (length == 0) return position + 1;
    return window != 0 && position + window < length ? position + window : length;
}

// What at least one of the queries of a job sees.
static inline lw_tokens lw_attention_tokens(size_t first_position, size_t n_tokens, size_t window, size_t length) {
    return (lw_tokens){lw_seen_first(first_position, window),
                       lw_seen_end(first_position + n_tokens - 1, window, length)};
}

// The splits that these tokens are in.
static inline lw_tokens lw_attention_splits(size_t first_position, size_t n_tokens, size_t window, size_t length) {
    const lw_tokens seen = lw_attention_tokens(first_position, n_tokens, window, length);
    return (lw_tokens){seen.first / LW_SPLIT_TOKENS, (seen.end + LW_SPLIT_TOKENS - 1) / LW_SPLIT_TOKENS};
}

// Query rows of a job, the last one repeated to whole blocks of rows on every level.
static inline size_t lw_attention_rows(size_t n_tokens, size_t group) { return (n_tokens * group + 7) / 8 * 8; }

// Floats of the softmax state of so many query rows: largest score, sums, values.
static inline size_t lw_attention_state_floats(size_t rows, size_t value_dim) {
    return lw_align_floats(rows) + rows * (LW_LANES + value_dim);
}

// Floats of scratch that attention needs for one job of at most `tokens` query tokens: queries, one block of keys and
// values in f32, two states. `dim`: head_dim rounded up to LW_LANES.
static inline size_t lw_attention_scratch_floats(size_t tokens, size_t group, size_t dim) {
    const size_t rows = lw_attention_rows(tokens, group);
    return rows * dim + 2 * dim * LW_BLOCK_TOKENS + 2 * lw_attention_state_floats(rows, dim);
}

#endif
