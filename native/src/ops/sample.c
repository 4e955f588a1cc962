#include "ops/sample.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "memory.h"
#include "ops/math.h"

size_t lw_sample_scratch_bytes(size_t vocab_size) {
    return lw_round_up(vocab_size, 64) * (3 * sizeof(float) + sizeof(lw_candidate));
}

lw_sample_scratch lw_sample_scratch_at(void* memory, size_t vocab_size) {
    const size_t n = lw_round_up(vocab_size, 64);
    float* floats = memory;
    return (lw_sample_scratch){.counts = (uint32_t*)memory,  // counts come first: they must stay zero when the rest is
                                                             // reused
                               .logits = floats + n,
                               .weights = floats + 2 * n,
                               .candidates = (lw_candidate*)(floats + 3 * n)};
}

// Below this the draw is the largest logit to float precision, and 1 / temperature could overflow.
static const float smallest_temperature = 1e-5f;

// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011): 53 random bits as a number in [0,
// 1) that depends on key and counter alone.
static double uniform(uint64_t seed, uint32_t choice, uint32_t position) {
    uint32_t x[4] = {position, choice, 0, 0};
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; ++round) {
        const uint64_t a = (uint64_t)x[0] * 0xD2511F53, b = (uint64_t)x[2] * 0xCD9E8D57;
        const uint32_t next[4] = {(uint32_t)(b >> 32) ^ x[1] ^ k0, (uint32_t)b, (uint32_t)(a >> 32) ^ x[3] ^ k1,
                                  (uint32_t)a};
        memcpy(x, next, sizeof x);
        k0 += 0x9E3779B9;
        k1 += 0xBB67AE85;
    }
    return (double)(((uint64_t)x[0] << 32 | x[1]) >> 11) * 0x1p-53;
}

// Orders candidates: larger logit first, then smaller id. The order is total, so a sort has one result.
static int compare_candidates(const void* left, const void* right) {
    const lw_candidate *a = left, *b = right;
    if (a->logit != b->logit) return a->logit > b->logit ? -1 : 1;
    return a->id < b->id ? -1 : a->id > b->id;
}

static uint32_t first_equal(const float* x, size_t n, float value) {
    for (size_t i = 0; i < n; ++i)
        if (x[i] == value) return (uint32_t)i;
    return 0;
}

// Finds the largest few logits, larger ones first; returns how many there are.
static uint32_t find_largest(const float* logits, size_t n, uint32_t wanted, lw_candidate* top) {
    uint32_t held = 0;
    for (size_t i = 0; wanted > 0 && i < n; ++i) {
        if (held == wanted && !(logits[i] > top[held - 1].logit)) continue;
        uint32_t at = held < wanted ? held++ : held - 1;
        for (; at > 0 && logits[i] > top[at - 1].logit; --at) top[at] = top[at - 1];
        top[at] = (lw_candidate){.logit = logits[i], .id = (uint32_t)i};
    }
    return held;
}

// Log-probabilities of the raw logits, for the chosen token and the largest few or those that are asked for.
static void fill_logprobs(const lw_lane_ops* ops, const float* logits, size_t n, const lw_sampling* p,
                          lw_sampled* out) {
    const float largest = ops->max(logits, n);
    const double log_sum = lw_log((double)ops->sum_exp(logits, n, largest, 1.0f));
    lw_candidate top[LW_MAX_TOP_LOGPROBS + 1];
    uint32_t held = p->n_top_logprobs;
    if (p->top_ids == NULL)
        held = find_largest(logits, n, held < n ? held : (uint32_t)n, top);
    else
        for (uint32_t i = 0; i < held; ++i)
            top[i] = (lw_candidate){.logit = logits[p->top_ids[i]], .id = p->top_ids[i]};
    out->logprob = (float)((double)logits[out->token] - (double)largest - log_sum);
    out->n_top = held;
    for (uint32_t i = 0; i < held; ++i) {
        out->top_ids[i] = top[i].id;
        out->top_logprobs[i] = (float)((double)top[i].logit - (double)largest - log_sum);
    }
}

static bool has_penalties(const lw_sampling* p) {
    return p->repetition_penalty != 1.0f || p->presence_penalty != 0.0f || p->frequency_penalty != 0.0f;
}

static uint32_t seen_token(const lw_draw* d, const uint32_t* last, uint32_t i) {
    return i < d->n_history ? d->history[i] : *last;
}

static void penalize(float* logits, const lw_draw* d, const uint32_t* last, uint32_t* counts) {
    const lw_sampling* p = d->sampling;
    const uint32_t n = d->n_history + (last != NULL);
    for (uint32_t i = 0; i < n; ++i) {  // repetition: once for every token seen
        const uint32_t t = seen_token(d, last, i);
        if (counts[t]++ == 0)
            logits[t] = logits[t] > 0 ? logits[t] / p->repetition_penalty : logits[t] * p->repetition_penalty;
    }
    for (uint32_t i = 0; i < n; ++i) counts[seen_token(d, last, i)] = 0;
    for (uint32_t i = d->n_prompt; i < n; ++i) ++counts[seen_token(d, last, i)];
    for (uint32_t i = d->n_prompt; i < n; ++i) {
        const uint32_t t = seen_token(d, last, i);
        if (counts[t] == 0) continue;
        logits[t] = fmaf(-p->frequency_penalty, (float)counts[t], logits[t]) - p->presence_penalty;
        counts[t] = 0;
    }
}

static void apply_mask(float* logits, size_t n, const uint32_t* mask) {
    for (size_t i = 0; i < n; ++i)
        if (!(mask[i / 32] >> (i % 32) & 1)) logits[i] = -INFINITY;
}

// The logits to draw from: the raw logits, or a changed copy in scratch.
static const float* adjusted_logits(const float* logits, size_t n, const lw_draw* d, const uint32_t* last,
                                    lw_sample_scratch s) {
    const lw_sampling* p = d->sampling;
    if (p->n_bias == 0 && p->mask == NULL && !has_penalties(p)) return logits;
    memcpy(s.logits, logits, n * sizeof(float));
    for (uint32_t i = 0; i < p->n_bias; ++i) s.logits[p->bias_ids[i]] += p->bias_values[i];
    if (has_penalties(p)) penalize(s.logits, d, last, s.counts);
    if (p->mask != NULL) apply_mask(s.logits, n, p->mask);
    return s.logits;
}

// Draws from the whole vocabulary, in the order of ids.
static uint32_t draw_all(const float* weights, size_t n, double u) {
    double total = 0;
    for (size_t i = 0; i < n; ++i) total += (double)weights[i];
    double left = u * total;
    uint32_t last = 0;
    for (size_t i = 0; i < n; ++i) {
        if (weights[i] == 0) continue;
        last = (uint32_t)i;
        left -= (double)weights[i];
        if (left < 0) break;
    }
    return last;
}

static size_t collect(const float* logits, const float* weights, size_t n, float least, lw_candidate* out) {
    size_t held = 0;
    for (size_t i = 0; i < n; ++i)
        if (weights[i] >= least && weights[i] > 0) out[held++] = (lw_candidate){logits[i], weights[i], (uint32_t)i};
    qsort(out, held, sizeof *out, compare_candidates);
    return held;
}

// Length of the shortest head of the sorted candidates with at least `share` of `total`; held + 1 if even all have
// less.
static size_t nucleus(const lw_candidate* c, size_t held, double share, double total) {
    double sum = 0;
    for (size_t i = 0; i < held; ++i) {
        sum += (double)c[i].weight;
        if (sum >= share * total) return i + 1;
    }
    return held + 1;
}

static double sum_weights(const float* weights, size_t n) {
    double total = 0;
    for (size_t i = 0; i < n; ++i) total += (double)weights[i];
    return total;
}

// Sorts the candidates that survive top-k and then top-p, and returns their number.
static size_t survivors(const float* logits, const lw_sample_scratch* s, size_t n, const lw_sampling* p) {
    // A few tokens nearly always have most of the weight: only these are sorted, and all if these do not suffice.
    static const float shortlist = 1e-4f;
    lw_candidate* c = s->candidates;
    size_t held = collect(logits, s->weights, n, shortlist, c);
    if (p->top_k != 0) {
        if (held < p->top_k) held = collect(logits, s->weights, n, 0, c);
        if (held > p->top_k) held = p->top_k;
        double total = 0;
        for (size_t i = 0; i < held; ++i) total += (double)c[i].weight;
        const size_t kept = nucleus(c, held, (double)p->top_p, total);
        return kept < held ? kept : held;
    }
    const double total = sum_weights(s->weights, n);
    size_t kept = nucleus(c, held, (double)p->top_p, total);
    if (kept > held) {
        held = collect(logits, s->weights, n, 0, c);
        kept = nucleus(c, held, (double)p->top_p, total);
    }
    return kept < held ? kept : held;
}

static uint32_t draw_filtered(const float* logits, size_t n, const lw_sampling* p, const lw_sample_scratch* s,
                              double u) {
    const lw_candidate* c = s->candidates;
    size_t kept = survivors(logits, s, n, p);
    while (kept > 1 && c[kept - 1].weight < p->min_p) --kept;  // the largest weight is 1
    double total = 0;
    for (size_t i = 0; i < kept; ++i) total += (double)c[i].weight;
    double left = u * total;
    for (size_t i = 0; i < kept; ++i) {
        left -= (double)c[i].weight;
        if (left < 0) return c[i].id;
    }
    return c[kept - 1].id;
}

lw_sampled lw_sample_row(const lw_lane_ops* ops, const float* logits, size_t vocab_size, const lw_draw* draw,
                         const uint32_t* last, lw_sample_scratch scratch) {
    const lw_sampling* p = draw->sampling;
    lw_sampled out = {0};
    if (!ops->are_finite(logits, vocab_size)) return (lw_sampled){.status = LW_ERR_NONFINITE};
    if (draw->forced_token >= 0) {
        out.token = (uint32_t)draw->forced_token;
    } else {
        const float* adjusted = adjusted_logits(logits, vocab_size, draw, last, scratch);
        const float largest = ops->max(adjusted, vocab_size);
        if (largest == -INFINITY) return (lw_sampled){.status = LW_ERR_NO_TOKEN};
        if (!isfinite(largest)) return (lw_sampled){.status = LW_ERR_NONFINITE};
        if (p->temperature < smallest_temperature) {
            out.token = first_equal(adjusted, vocab_size, largest);
        } else {
            ops->exp(scratch.weights, adjusted, vocab_size, largest, 1.0f / p->temperature);
            const double u = uniform(p->seed, p->choice, draw->position);
            const bool filtered = p->top_k != 0 || p->top_p < 1.0f || p->min_p > 0.0f;
            out.token = filtered ? draw_filtered(adjusted, vocab_size, p, &scratch, u)
                                 : draw_all(scratch.weights, vocab_size, u);
        }
    }
    if (p->want_logprob) fill_logprobs(ops, logits, vocab_size, p, &out);
    return out;
}
