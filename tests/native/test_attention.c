// Attention of every level against its definition, written here token by token and bit for bit.
//
// Shapes are drawn at random: contexts across several splits of 1024 tokens, windows, groups of query heads, head
// sizes that are no multiple of a vector, every type of cache, latent rows, also of chosen tokens, scattered blocks, unwritten
// tokens that hold NaN. Each job
// is done whole, in splits, the last one first, and in two stages, in which some heads and dimensions are a job.
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/half.h"
#include "kernels/lane_ops.h"
#include "kv_cache.h"

enum { MAX_BLOCKS = 128, MAX_ROWS = 80, HEADS = 3, MAX_DIM = 640, MAX_REACH = 150 };
enum { NEAR = 180, SMALL_DIM = 80 };  // contexts and heads of disentangled attention

static uint64_t state = 1;

static uint64_t draw(uint64_t below) {  // splitmix64
    uint64_t x = state += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return (x ^ x >> 31) % below;
}

static float uniform(void) { return (float)draw(1 << 24) * 0x1p-23f - 1.0f; }

typedef struct sample {
    lw_attention_job job;
    size_t context, kv_heads, n_chosen;
    uint8_t* cache;
    float *q, *out;
    uint32_t blocks[MAX_BLOCKS], chosen[MAX_BLOCKS * LW_BLOCK_TOKENS];
    bool falls, changes;  // scores with the distance, by it
    float slopes[9];
    float distances[9 * (2 * MAX_REACH + 1)];
} sample;

static float query_slope, *query_changes;  // of the query that is being defined
static size_t query_place, query_head;
static float position_keys[9 * SMALL_DIM * (2 * (NEAR + 31) + 1)], position_queries[sizeof position_keys / 4];

// Values of a result.
static size_t result_dim(const sample* s) { return s->job.kv.result_dim; }

static void* allocate(size_t bytes) {
    void* p = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (p == NULL) exit(2);
    return memset(p, 0xFF, bytes);  // NaN in f16 and f32
}

static void put(const sample* s, size_t index, uint8_t* base, float value) {
    if (s->job.kv.type == LW_F16)
        ((uint16_t*)base)[index] = lw_float_to_half(value);
    else
        ((float*)base)[index] = value;
}

static float get(const sample* s, size_t index, const uint8_t* base) {
    return s->job.kv.type == LW_F16 ? lw_half_to_float(((const uint16_t*)base)[index]) : ((const float*)base)[index];
}

static uint8_t* head_at(const sample* s, size_t block) {
    return s->cache + s->blocks[block] * s->job.kv.block_bytes + s->job.kv_head * s->job.kv.head_bytes;
}

// Where the n-th token that a query may see lies.
static size_t place_of(const sample* s, size_t n) { return s->job.chosen != NULL ? s->chosen[n] : n; }

// Codes with `peak` for the largest magnitude; returns their scale.
static float code(int32_t* codes, const float* x, size_t n, float peak) {
    float largest = 0;
    for (size_t i = 0; i < n; ++i) largest = fabsf(x[i]) > largest ? fabsf(x[i]) : largest;
    for (size_t i = 0; i < n; ++i) {
        float value = largest < 1e-30f ? 0.0f : x[i] * (peak / largest);
        value = value < -peak ? -peak : value > peak ? peak : value;
        codes[i] = (int32_t)nearbyintf(value);
    }
    return largest < 1e-30f ? 0.0f : largest / peak;
}

#include "attention_packing.h"

static void put_token(const sample* s, size_t t, const float* key, const float* value) {
    const lw_kv_view* kv = &s->job.kv;
    uint8_t* head = head_at(s, t / LW_BLOCK_TOKENS);
    const size_t offset = t % LW_BLOCK_TOKENS;
    int32_t codes[MAX_DIM];
    if (!lw_kv_codes(kv->type)) {
        for (size_t d = 0; d < kv->head_dim; ++d) put(s, d * LW_BLOCK_TOKENS + offset, head, key[d]);
        for (size_t d = 0; d < kv->result_dim && !kv->latent; ++d)
            put(s, offset * kv->value_dim + d, head + kv->value_offset, value[d]);
        return;
    }
    if (kv->latent) {
        put_latent(kv, head, offset, key);
        return;
    }
    const bool packed_key = kv->type == LW_I4, packed_value = kv->type != LW_I8;
    float scale = packed_key ? pack(codes, key, kv->head_dim) : code(codes, key, kv->head_dim, 127);
    memcpy(head + kv->scale_offset + 4 * offset, &scale, 4);
    for (size_t d = 0; d < kv->key_dim; ++d)
        if (packed_key)
            put_half(packed_key_at(head, offset, d), d / 4 % 2, past(d, kv->head_dim, codes, scale));
        else
            put_byte(head, offset, d, d < kv->head_dim ? codes[d] : 0);
    scale = packed_value ? pack(codes, value, kv->result_dim) : code(codes, value, kv->result_dim, 127);
    memcpy(head + kv->scale_offset + 4 * (LW_BLOCK_TOKENS + offset), &scale, 4);
    for (size_t d = 0; d < lw_value_pairs(kv->value_dim) * 32 && packed_value; ++d) {
        const int32_t one = d < kv->value_dim ? past(d, kv->result_dim, codes, scale) : 0;
        put_half(packed_value_at(kv, head + kv->value_offset, offset, d), d / 16 % 2, one);
    }
    for (size_t d = 0; d < kv->value_dim && !packed_value; ++d)
        head[kv->value_offset + (offset / 4 * kv->value_dim + d) * 4 + offset % 4] =
            (uint8_t)(d < kv->result_dim ? codes[d] : 0);
}

static sample make(void) {
    static const uint32_t dims[] = {8, 18, 64, 64, 80, 128, 512};
    sample s = {.kv_heads = 1 + draw(HEADS)};
    lw_kv_view* kv = &s.job.kv;
    static const lw_type types[] = {LW_F16, LW_F16, LW_F32, LW_I8, LW_I8, LW_I4, LW_I8_I4};
    lw_attention_config config = {.n_kv_heads = (uint32_t)s.kv_heads, .head_dim = dims[draw(7)]};
    if (draw(2)) config.value_dim = 1 + (uint32_t)draw(config.head_dim);
    lw_type type = types[draw(7)];
    if (type != LW_I8_I4 && draw(3) == 0) {
        static const uint32_t ranks[] = {32, 96, 512}, turned[] = {6, 16, 64};
        config = (lw_attention_config){
            .n_kv_heads = 1, .head_dim = 96, .latent_rank = ranks[draw(3)], .rope_dim = turned[draw(3)]};
        s.kv_heads = 1;
    }
    lw_kv_cache cache;
    lw_kv_describe(&config, type, MAX_BLOCKS, &cache);
    *kv = lw_kv_slot(&cache, 0);
    s.job.group = 1 + draw(9);
    s.job.n_tokens = draw(3) == 0 ? 1 : 1 + draw(MAX_ROWS / s.job.group);
    s.context = s.job.n_tokens + draw(draw(2) ? 100 : MAX_BLOCKS * LW_BLOCK_TOKENS - MAX_ROWS);
    s.job.first_position = s.context - s.job.n_tokens;
    for (size_t t = 0; kv->latent && s.job.n_tokens == 1 && t < s.context; ++t)
        if (draw(3) == 0) s.chosen[s.n_chosen++] = (uint32_t)t;
    if (s.n_chosen > 0) s.job.first_position = s.n_chosen - 1;
    s.job.window = draw(3) == 0 ? 1 + draw(s.context + 10) : 0;
    if (s.n_chosen == 0 && draw(2)) {  // both ways
        s.job.length = s.context;
        s.job.first_position = draw(s.context - s.job.n_tokens + 1);
    }
    s.falls = !lw_kv_codes(kv->type) && draw(3) == 0;
    s.changes = !lw_kv_codes(kv->type) && draw(3) == 0;
    s.job.reach = 1 + draw(MAX_REACH);
    for (size_t i = 0; i < 9 * (2 * MAX_REACH + 1); ++i) s.distances[i] = 4 * uniform();
    for (size_t i = 0; i < 9; ++i) s.slopes[i] = 1.0f / (float)(2 << i);
    if (!lw_kv_codes(kv->type) && !kv->latent && s.context <= NEAR && kv->head_dim <= SMALL_DIM && draw(2)) {
        s.changes = false;
        s.job.reach = s.context + 30;  // a key that stands at the end of the context's last block has a column
        s.job.position_keys = position_keys;
        s.job.position_queries = position_queries;
        for (size_t i = 0; i < sizeof position_keys / 4; ++i) {
            position_keys[i] = uniform();
            position_queries[i] = uniform();
        }
    }
    s.job.softcap = draw(3) == 0 ? 0.5f + (float)draw(8) : 0;
    s.job.kv_head = draw(s.kv_heads);
    s.job.brief = kv->type == LW_I8 && !kv->latent && draw(2);
    s.cache = allocate(MAX_BLOCKS * kv->block_bytes);
    kv->base = s.cache;
    for (uint32_t i = 0; i < MAX_BLOCKS; ++i) s.blocks[i] = i * 37 % MAX_BLOCKS;
    const float scale = draw(2) ? 1.0f : 30.0f;  // flat and peaked softmax
    for (size_t t = 0; t < s.context; ++t) {
        float key[MAX_DIM], value[MAX_DIM];
        const float size = draw(50) == 0 ? 0.0f : draw(20) == 0 ? 100.0f : 1.0f;  // zeros and outliers
        for (size_t d = 0; d < kv->head_dim; ++d) {
            key[d] = uniform();
            value[d] = size * uniform();
        }
        put_token(&s, t, key, value);
    }
    s.job.q_stride = s.job.group * kv->head_dim + draw(20);
    s.job.out_stride = s.job.group * result_dim(&s) + draw(20);
    s.q = allocate(s.job.n_tokens * s.job.q_stride * sizeof(float));
    s.out = allocate(s.job.n_tokens * s.job.out_stride * sizeof(float));
    for (size_t i = 0; i < s.job.n_tokens * s.job.q_stride; ++i) s.q[i] = scale * uniform();
    s.job.q = s.q;
    s.job.out = s.out;
    return s;
}

static void release(sample* s) {
    free(s->cache);
    free(s->q);
    free(s->out);
}

static float exp_of(float x) {  // the contract's exponential, which has tests of its own through every softmax
    float in[LW_LANES] = {x}, out[LW_LANES];
    lw_level_lane_ops[LW_LEVEL_SCALAR]->exp(out, in, LW_LANES, 0.0f, 1.0f);
    return out[0];
}

typedef struct softmax {
    float largest, sums[LW_LANES], values[MAX_DIM];
} softmax;

static float score_of(const sample* s, const float* q, const uint8_t* head, size_t offset) {
    const lw_kv_view* kv = &s->job.kv;
    float score = 0;
    if (!lw_kv_codes(kv->type)) {
        for (size_t d = 0; d < kv->head_dim; ++d) score = fmaf(q[d], get(s, d * LW_BLOCK_TOKENS + offset, head), score);
        return score;
    }
    if (kv->latent) return latent_score(kv, q, head, offset);
    int32_t codes[MAX_DIM], sum = 0;
    const float scale = query_codes(codes, q, kv->head_dim, kv->type == LW_I4, s->job.brief ? 63 : 16256);
    for (size_t d = 0; d < kv->head_dim; ++d) sum += codes[d] * key_code(kv, head, offset, d);
    return (float)sum * (scale_at(kv, head, offset) * scale);
}

// Tokens by which the softmax advances.
enum { MAX_UNIT = 128 };
static size_t unit_of(const sample* s) { return s->job.brief ? MAX_UNIT : LW_BLOCK_TOKENS; }

// Adds the values of tokens first .. end-1 of the unit that begins at `base`, all of which are seen.
static void add_values(const sample* s, softmax* p, const float* probability, size_t base, size_t first, size_t end,
                       float shrink) {
    const lw_kv_view* kv = &s->job.kv;
    const uint8_t* values[MAX_UNIT];  // of the block of each token
    size_t offset[MAX_UNIT];          // in the block
    float weights[MAX_UNIT] = {0};
    int32_t codes[MAX_UNIT];
    for (size_t t = first; t < end; ++t) {
        values[t] = head_at(s, place_of(s, base + t) / LW_BLOCK_TOKENS) + kv->value_offset;
        offset[t] = place_of(s, base + t) % LW_BLOCK_TOKENS;
    }
    for (size_t d = 0; d < result_dim(s) && !lw_kv_codes(kv->type); ++d) {
        p->values[d] *= shrink;
        for (size_t t = first; t < end; ++t) {
            const float value = kv->latent ? get(s, d * LW_BLOCK_TOKENS + offset[t], values[t] - kv->value_offset)
                                           : get(s, offset[t] * kv->value_dim + d, values[t]);
            p->values[d] = fmaf(probability[t], value, p->values[d]);
        }
    }
    if (!lw_kv_codes(kv->type)) return;
    for (size_t t = first; t < end; ++t)
        weights[t] = probability[t] * scale_at(kv, values[t] - kv->value_offset, LW_BLOCK_TOKENS + offset[t]);
    const float scale = code(codes, weights, unit_of(s), s->job.brief ? 127 : 16256);
    for (size_t d = 0; d < result_dim(s); ++d) {
        int32_t sum = 0;
        for (size_t t = first; t < end; ++t) sum += codes[t] * value_code(kv, values[t], offset[t], d);
        p->values[d] = fmaf((float)sum, scale, p->values[d] * shrink);
    }
}

static float capped(float score, float cap) {
    return fmaf(score, 0, fmaf(1 / (1 + exp_of(0 - score * (2 / cap))), 2 * cap, -cap));
}

static float change_at(const sample* s, ptrdiff_t distance) {
    const ptrdiff_t reach = (ptrdiff_t)s->job.reach;
    return query_changes[reach + (distance < -reach ? -reach : distance > reach ? reach : distance)];
}

// A score of disentangled attention.
static float with_positions(const sample* s, const float* q, size_t token, float score) {
    const size_t dim = s->job.kv.head_dim, width = 2 * s->job.reach + 1;
    const size_t at = query_head * dim * width + s->job.reach + token - query_place;
    float of_query = 0, of_key = 0;
    for (size_t d = 0; d < dim; ++d) {
        const float key = get(s, d * LW_BLOCK_TOKENS + token % LW_BLOCK_TOKENS, head_at(s, token / LW_BLOCK_TOKENS));
        of_query = fmaf(q[d], s->job.position_keys[at + d * width], of_query);
        of_key = fmaf(key, s->job.position_queries[at + d * width], of_key);
    }
    return score + of_query + of_key;
}

// Tokens first .. end-1 of one unit, all of which the query sees.
static void step_unit(const sample* s, softmax* p, const float* q, size_t first, size_t end) {
    const size_t unit = unit_of(s), base = first / unit * unit;
    float probability[MAX_UNIT] = {0}, largest = p->largest;
    for (size_t t = first - base; t < end - base; ++t) {
        const size_t place = place_of(s, base + t);
        probability[t] = score_of(s, q, head_at(s, place / LW_BLOCK_TOKENS), place % LW_BLOCK_TOKENS);
        if (s->job.softcap > 0) probability[t] = capped(probability[t], s->job.softcap);
        const ptrdiff_t distance = (ptrdiff_t)(base + t) - (ptrdiff_t)query_place;
        if (s->falls) probability[t] = fmaf(-query_slope, fabsf((float)distance), probability[t]);
        if (s->changes) probability[t] += change_at(s, distance);
        if (s->job.position_keys != NULL) probability[t] = with_positions(s, q, base + t, probability[t]);
        if (probability[t] > largest) largest = probability[t];
    }
    const float shrink = p->largest == largest ? 1.0f : exp_of(p->largest - largest);
    for (size_t t = 0; t < unit; ++t)
        probability[t] = t < first - base || t >= end - base ? 0.0f : exp_of(probability[t] - largest);
    for (size_t i = 0; i < LW_LANES; ++i) {
        p->sums[i] *= shrink;
        for (size_t t = i; t < unit; t += LW_LANES) p->sums[i] += probability[t];
    }
    add_values(s, p, probability, base, first - base, end - base, shrink);
    p->largest = largest;
}

static void merge(softmax* total, const softmax* split, size_t dims) {
    if (total->largest == -INFINITY) {
        *total = *split;
        return;
    }
    const float largest = total->largest > split->largest ? total->largest : split->largest;
    const float a = exp_of(total->largest - largest), b = exp_of(split->largest - largest);
    for (size_t i = 0; i < LW_LANES; ++i) total->sums[i] = fmaf(split->sums[i], b, total->sums[i] * a);
    for (size_t d = 0; d < dims; ++d) total->values[d] = fmaf(split->values[d], b, total->values[d] * a);
    total->largest = largest;
}

// One query row: blocks in order, afresh in every split, splits merged in order.
static void define_row(const sample* s, size_t token, size_t head, float* out) {
    const float* q = s->q + token * s->job.q_stride + head * s->job.kv.head_dim;
    const size_t place = s->job.first_position + token, window = s->job.window, length = s->job.length;
    size_t first = window != 0 && place + 1 > window ? place + 1 - window : 0, end = place + 1;
    if (length != 0) end = window != 0 && place + window < length ? place + window : length;
    query_slope = s->slopes[head];
    query_changes = (float*)s->distances + head * (2 * s->job.reach + 1);
    query_place = place;
    query_head = head;
    softmax total = {.largest = -INFINITY};
    while (first < end) {
        const size_t split_end = (first / LW_SPLIT_TOKENS + 1) * LW_SPLIT_TOKENS;
        softmax split = {.largest = -INFINITY};
        while (first < end && first < split_end) {
            const size_t unit_end = (first / unit_of(s) + 1) * unit_of(s);
            step_unit(s, &split, q, first, unit_end < end ? unit_end : end);
            first = unit_end;
        }
        merge(&total, &split, result_dim(s));
    }
    for (int width = LW_LANES / 2; width > 0; width /= 2)
        for (int i = 0; i < width; ++i) total.sums[i] += total.sums[i + width];
    const float scale = 1.0f / total.sums[0];
    for (size_t d = 0; d < result_dim(s); ++d) out[d] = total.values[d] * scale;
}

// Number of rows whose bits differ.
static size_t compare(const sample* s, const char* level) {
    size_t failed = 0;
    for (size_t t = 0; t < s->job.n_tokens; ++t)
        for (size_t h = 0; h < s->job.group; ++h) {
            float expected[MAX_DIM];
            define_row(s, t, h, expected);
            const float* got = s->out + t * s->job.out_stride + h * result_dim(s);
            if (memcmp(expected, got, result_dim(s) * sizeof(float)) == 0) continue;
            if (failed++ == 0)
                printf(
                    "%s: cache type %d%s, context %zu, %zu tokens, group %zu, head_dim %zu, window %zu, length %zu: "
                    "token %zu, head %zu differs\n",
                    level, (int)s->job.kv.type, s->job.brief ? ", brief" : "", s->context, s->job.n_tokens,
                    s->job.group, s->job.kv.head_dim, s->job.window, s->job.length, t, h);
        }
    return failed;
}

static void attend_in_splits(const sample* s, const lw_lane_ops* ops) {
    const lw_tokens splits = lw_attention_splits(s->job.first_position, s->job.n_tokens, s->job.window, s->job.length);
    const size_t rows = lw_attention_rows(s->job.n_tokens, s->job.group);
    const size_t floats = lw_attention_state_floats(rows, s->job.kv.value_dim), n = splits.end - splits.first;
    float* states = allocate(n * floats * sizeof(float));
    for (size_t i = n; i-- > 0;) ops->attention_split(&s->job, splits.first + i, states + i * floats);
    ops->attention_merge(&s->job, states, n);
    free(states);
}

// One job of the second stage: some heads and some dimensions, whole or in splits.
static void attend_part(const sample* s, const lw_lane_ops* ops, size_t head, size_t heads, lw_tokens dims) {
    sample part = *s;
    lw_attention_job* job = &part.job;
    job->q = NULL;
    job->group = heads;
    job->slopes = job->distances = job->position_keys = NULL;  // the scores have them
    job->scores += head * job->score_span;
    job->out += head * result_dim(s);
    job->dims = dims;
    if (draw(2))
        ops->attention(job);
    else
        attend_in_splits(&part, ops);
}

static void attend_in_stages(sample* s, const lw_lane_ops* ops) {
    lw_attention_job* job = &s->job;
    const lw_tokens seen = lw_attention_tokens(job->first_position, job->n_tokens, job->window, job->length);
    job->first_score = seen.first / LW_BLOCK_TOKENS * LW_BLOCK_TOKENS;
    job->score_span = (seen.end - job->first_score + LW_BLOCK_TOKENS - 1) / LW_BLOCK_TOKENS * LW_BLOCK_TOKENS;
    job->score_stride = job->group * job->score_span + draw(20);
    job->scores = allocate(job->n_tokens * job->score_stride * sizeof(float));
    job->stage = LW_ATTEND_SCORES;
    for (size_t first = job->first_score, end; first < seen.end; first = end) {
        end = first + (1 + draw(30)) * LW_BLOCK_TOKENS;
        ops->attention_scores(job, (lw_tokens){first, end < seen.end ? end : seen.end});
    }
    job->stage = LW_ATTEND_VALUES;
    for (size_t head = 0, heads; head < job->group; head += heads) {
        heads = 1 + draw(job->group - head);
        for (size_t d = 0, n; d < job->kv.value_dim; d += n) {
            n = (1 + draw(4)) * LW_LANES;
            attend_part(s, ops, head, heads, (lw_tokens){d, d + n < job->kv.value_dim ? d + n : job->kv.value_dim});
        }
    }
    free(job->scores);
    job->stage = LW_ATTEND_WHOLE;
}

#include "attention_storing.h"

int main(int argc, char** argv) {
    const unsigned long samples = argc > 1 ? strtoul(argv[1], NULL, 10) : 40;
    const uint64_t saved = lw_fp_enter();
    size_t failed = 0, passed = 0;
    for (unsigned long i = 0; i < samples; ++i) {
        sample s = make();
        s.job.blocks = s.blocks;
        s.job.chosen = s.n_chosen > 0 ? s.chosen : NULL;
        s.job.slopes = s.falls ? s.slopes : NULL;
        s.job.distances = s.changes ? s.distances : NULL;
        s.job.scratch = allocate(sizeof(float) * lw_attention_scratch_floats(s.job.n_tokens, s.job.group,
                                                                             lw_align_floats(s.job.kv.head_dim)));
        for (int level = 0; level < LW_LEVEL_COUNT; ++level) {
            if (!(lw_cpu_levels() >> level & 1)) continue;
            ++*(writes_alike(&s, lw_level_lane_ops[level]) ? &passed : &failed);
            if (lw_kv_codes(s.job.kv.type)) ++*(stores_alike(&s, lw_level_lane_ops[level]) ? &passed : &failed);
            for (int way = 0; way < (s.job.kv.latent ? 2 : 3); ++way) {
                memset(s.out, 0xFF, s.job.n_tokens * s.job.out_stride * sizeof(float));
                if (way == 0)
                    lw_level_lane_ops[level]->attention(&s.job);
                else if (way == 1)
                    attend_in_splits(&s, lw_level_lane_ops[level]);
                else
                    attend_in_stages(&s, lw_level_lane_ops[level]);
                const size_t wrong = compare(&s, lw_level_names[level]);
                *(wrong > 0 ? &failed : &passed) += 1;
            }
        }
        free(s.job.scratch);
        release(&s);
    }
    lw_fp_restore(saved);
    printf("%zu passed, %zu failed\n", passed, failed);
    return failed != 0;
}
