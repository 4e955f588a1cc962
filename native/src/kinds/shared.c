// Attention to shared rows: one row of a token is the key and the value of all heads. A query sees the rows of its
// window, and entries made of several tokens each (entries.c). All that it sees is listed first, and attended to as a
// text of just these rows: so no bit depends on how a prompt is cut.
#include <math.h>
#include <string.h>

#include "graph/observe.h"
#include "kinds/entries.h"
#include "kinds/stacked.h"
#include "kinds/tiles.h"
#include "kv_cache.h"

static lw_status check_compress(const lw_place* at, const lw_attention_config* c) {
    LW_RETURN_IF_FAILED(lw_check_range(at, "compress", c->compress, 0, 4096));
    LW_RETURN_IF_FAILED(lw_check_range(at, "overlap", c->overlap, 0, c->compress > 0));
    LW_RETURN_IF_FAILED(lw_check_range(at, "index_topk", c->index_topk, 0, c->compress > 0 ? 1 << 20 : 0));
    const bool chooses = c->index_topk > 0;
    LW_RETURN_IF_FAILED(lw_check_range(at, "index_heads", c->index_heads, chooses, chooses ? 256 : 0));
    LW_RETURN_IF_FAILED(
        lw_check_range(at, "index_dim", c->index_dim, chooses ? c->rope_dim : 0, chooses ? LW_MAX_HEAD_DIM : 0));
    if (c->compress == 0 || LW_BLOCK_TOKENS % c->compress == 0 || c->compress % LW_BLOCK_TOKENS == 0) return LW_OK;
    return lw_fail(LW_ERR_ARGUMENT, "model config: %scompress is %u, must divide %d or be a multiple of it", at->text,
                   c->compress, LW_BLOCK_TOKENS);
}

static lw_status check_shared(const lw_model_config* model, uint32_t layer) {
    const lw_attention_config* c = &model->layers[layer].attention;
    const lw_place at = lw_place_of_layer(layer, "");
    const bool may = !model->pooled && !model->norm_bias && model->norm == LW_NORM_RMS && !model->layers[layer].mtp;
    LW_RETURN_IF_FAILED(lw_check_range(&at, "shared_rows", c->shared_rows, 0, c->n_heads > 0 && may));
    if (!c->shared_rows) {
        LW_RETURN_IF_FAILED(lw_check_range(&at, "output_groups", c->output_groups, 0, 0));
        LW_RETURN_IF_FAILED(lw_check_range(&at, "output_rank", c->output_rank, 0, 0));
        LW_RETURN_IF_FAILED(lw_check_range(&at, "compress", c->compress, 0, 0));
        return lw_check_range(&at, "overlap", c->overlap, 0, 0);
    }
    LW_RETURN_IF_FAILED(lw_check_range(&at, "latent_rank", c->latent_rank, 0, 0));
    LW_RETURN_IF_FAILED(lw_check_range(&at, "value_dim", c->value_dim, 0, 0));
    LW_RETURN_IF_FAILED(lw_check_number(&at, "latent_eps", (double)c->latent_eps, 0, 0));
    LW_RETURN_IF_FAILED(lw_check_range(&at, "n_kv_heads", c->n_kv_heads, 1, 1));
    LW_RETURN_IF_FAILED(lw_check_multiple(&at, "head_dim", c->head_dim, LW_LANES));
    LW_RETURN_IF_FAILED(lw_check_range(&at, "query_rank", c->query_rank, 1, 1 << 16));
    LW_RETURN_IF_FAILED(lw_check_range(&at, "rope_dim", c->rope_dim, 2, c->head_dim));
    LW_RETURN_IF_FAILED(lw_check_range(&at, "output_groups", c->output_groups, 1, c->n_heads));
    LW_RETURN_IF_FAILED(lw_check_range(&at, "output_rank", c->output_rank, LW_PANEL, 1 << 16));
    LW_RETURN_IF_FAILED(lw_check_multiple(&at, "output_rank", c->output_rank, LW_PANEL));
    if (c->n_heads % c->output_groups != 0)
        return lw_fail(LW_ERR_ARGUMENT, "model config: %soutput_groups is %u, must divide n_heads (%u)", at.text,
                       c->output_groups, c->n_heads);
    if (c->qkv_bias || c->output_bias || c->qk_norm != LW_QK_NORM_NONE || c->output_gate || c->inner_norm || c->alibi ||
        c->distances || c->disentangled || c->values_are_keys || c->value_norm || c->value_scale != 0 ||
        c->qkv_clip != 0 || c->shares_kv || c->both_ways || c->chunk || c->score_softcap != 0 || c->position_beta != 0)
        return lw_fail(LW_ERR_ARGUMENT,
                       "model config: %sshared_rows is 1, with which biases, qk_norm, output_gate, inner_norm, alibi,"
                       " distances, values_are_keys, value_norm, value_scale, qkv_clip, shares_kv, both_ways, chunk,"
                       " score_softcap and position_beta must be 0",
                       at.text);
    if (c->rope == LW_NO_ROPE || model->ropes[c->rope].rotated != c->rope_dim)
        return lw_fail(LW_ERR_ARGUMENT, "model config: %srope_dim is %u, which its rope must turn all of", at.text,
                       c->rope_dim);
    return check_compress(&at, c);
}

static lw_tensor_spec shared_tensor(const lw_model_config* model, const lw_layer_config* l, lw_role role) {
    const lw_attention_config* c = &l->attention;
    const uint32_t hidden = model->hidden_size, times = 1 + c->overlap;
    const uint32_t values = times * c->head_dim, index = times * c->index_dim;
    const bool here = c->shared_rows, entries = here && c->compress > 0, indexed = entries && c->index_heads > 0;
    const uint32_t groups = here ? c->output_groups : 1;
    switch (role) {
        case LW_COMPRESS_ROWS:
            return LW_MATRIX(compress_rows, "rows of entries", values, hidden, entries);
        case LW_COMPRESS_GATE:
            return LW_MATRIX(compress_gate, "gate of entries", values, hidden, entries);
        case LW_COMPRESS_POSITIONS:
            return LW_VECTOR(compress_positions, "positions of entries", c->compress * values, entries);
        case LW_COMPRESS_NORM:
            return LW_VECTOR(compress_norm, "norm of entries", c->head_dim, entries);
        case LW_INDEX_ROWS:
            return LW_MATRIX(index_rows, "rows of index entries", index, hidden, indexed);
        case LW_INDEX_GATE:
            return LW_MATRIX(index_gate, "gate of index entries", index, hidden, indexed);
        case LW_INDEX_POSITIONS:
            return LW_VECTOR(index_positions, "positions of index entries", c->compress * index, indexed);
        case LW_INDEX_NORM:
            return LW_VECTOR(index_norm, "norm of index entries", c->index_dim, indexed);
        case LW_ATTN_GROUPS:
            return LW_MATRIX(attn_groups, "attention groups", c->output_groups * c->output_rank,
                             c->n_heads * c->head_dim / groups, here);
        default:
            return (lw_tensor_spec){0};
    }
}

static bool has_shared(const lw_model_config* model, const lw_layer_config* layer) {
    (void)model;
    return layer->attention.shared_rows;
}

// Most heads of one job: it lists what they see anew.
enum { JOB_HEADS = LW_ATTENTION_ROWS };

// Jobs of a row, equal parts of its heads: more of them where threads would be idle.
static size_t jobs_of(const lw_attention_config* c, size_t rows, size_t threads) {
    size_t jobs = (c->n_heads + JOB_HEADS - 1) / JOB_HEADS;
    if (rows * jobs < threads) jobs = (threads + rows - 1) / rows;
    if (jobs >= c->n_heads) return c->n_heads;
    while (c->n_heads % jobs != 0) ++jobs;
    return jobs;
}

static void widen_shared(lw_session* s, const lw_layer* layer, uint32_t index) {
    (void)index;
    const lw_attention_config* c = &layer->config.attention;
    lw_shared_own* own = lw_shared_of(s);
    lw_widen(&own->query_rank, c->query_rank);
    lw_widen(&own->groups_width, (size_t)c->output_groups * c->output_rank);
    lw_widen(&own->group_inputs, (size_t)c->n_heads * c->head_dim / c->output_groups);
    lw_widen(&own->group_parts, c->output_groups);
    lw_widen(&own->beside_width, lw_beside_dim(c));
    lw_widen(&own->values_width, layer->compress_rows.rows);
    lw_widen(&own->index_width, layer->index_rows.rows);
    lw_widen(&own->index_heads, c->index_heads);
    lw_widen(&own->index_queries_width, (size_t)c->index_heads * c->index_dim);
    lw_widen(&s->widths.input, c->query_rank);
    lw_widen(&s->widths.input, (size_t)c->output_groups * c->output_rank);
    const size_t heads = c->n_heads < JOB_HEADS ? c->n_heads : JOB_HEADS;
    lw_widen(&s->widths.scratch, lw_attention_scratch_floats(1, heads, c->head_dim) * sizeof(float));
    lw_widen_entries(s, c);
}

static void take_shared(lw_session* s, lw_parts* parts) {
    lw_shared_own* own = lw_shared_of(s);
    const size_t rows = s->config.max_batch_tokens, row = rows * sizeof(float);
    own->query = lw_take(parts, row * own->query_rank);
    own->values = lw_take(parts, row * own->values_width);
    own->gates = lw_take(parts, row * own->values_width);
    own->index_values = lw_take(parts, row * own->index_width);
    own->index_gates = lw_take(parts, row * own->index_width);
    own->beside = lw_take(parts, row * own->beside_width);
    own->index_queries = lw_take(parts, row * own->index_queries_width);
    own->index_weights = lw_take(parts, row * own->index_heads);
    own->groups = lw_take(parts, row * own->groups_width);
    const size_t of_parts = own->group_parts * lw_round_up(rows, 2);  // codes of rows may lie in pairs
    own->codes = lw_take_codes(parts, s->model, of_parts, lw_round_up(own->group_inputs, LW_SEGMENT));
    lw_take_entries(s, parts);
}

static size_t shared_inputs(const lw_worker* w, const lw_layer* layer, lw_mixer_input* found) {
    const lw_shared_own* own = lw_shared_of(w->s);
    size_t n = 0;
    found[n++] = (lw_mixer_input){&layer->latent_query, own->query, LW_ADAPTED_COUNT, 0};
    if (layer->compress_rows.rows > 0) {
        found[n++] = (lw_mixer_input){&layer->compress_rows, own->values, LW_ADAPTED_COUNT, 0};
        found[n++] = (lw_mixer_input){&layer->compress_gate, own->gates, LW_ADAPTED_COUNT, 0};
    }
    if (layer->index_rows.rows > 0) {
        found[n++] = (lw_mixer_input){&layer->index_rows, own->index_values, LW_ADAPTED_COUNT, 0};
        found[n++] = (lw_mixer_input){&layer->index_gate, own->index_gates, LW_ADAPTED_COUNT, 0};
        found[n++] = (lw_mixer_input){&layer->index_weights, own->index_weights, LW_ADAPTED_COUNT, 0};
    }
    return n;
}

// Turns the last rope_dim values of each of some heads by a row's angles.
static void turn_heads(const lw_worker* w, const lw_attention_config* c, size_t row, float* heads, size_t n, size_t dim,
                       float sign) {
    const size_t half = c->rope_dim / 2;
    const float *cosine = w->b->cosine[c->rope] + row * half, *sine = w->b->sine[c->rope] + row * half;
    for (size_t i = 0; i < n; ++i) lw_turn_pairs(heads + (i + 1) * dim - c->rope_dim, cosine, sine, half, sign);
}

// The norm of what queries and the index's queries read, and their products.
static void make_queries(lw_worker* w, const lw_layer* layer) {
    const size_t rank = layer->config.attention.query_rank;
    const lw_shared_own* own = lw_shared_of(w->s);
    const lw_activations x = lw_activations_in(w, rank, &w->b->codes, own->query);
    const bool indexed = layer->index_query.rows > 0;
    const lw_matrix* const readers[] = {&layer->q, &layer->index_query};
    const bool quantized = lw_any_reads_codes(w, readers, 1 + indexed);
    lw_taker items = lw_this_phase(w, w->rows);
    for (size_t row; lw_take_item(&items, &row);) {
        float* values = own->query + row * rank;
        w->ops->rmsnorm(values, values, layer->latent_query_norm, rank, w->c->rms_norm_eps);
        if (quantized) lw_quantize_segments(w, &x, row, 0, x.segments, values);
        lw_charge_row(w, LW_OP_ROTATE, 2 * rank, quantized ? rank : 0);
    }
    lw_end_phase(w, LW_OP_ROTATE);
    lw_product products[2] = {lw_product_at(w, &layer->q, lw_attention_of(w->s)->q, false)};
    if (indexed) products[1] = lw_product_at(w, &layer->index_query, own->index_queries, false);
    lw_multiply(w, LW_OP_QKV, products, 1 + indexed, &x);
}

// Norms and angles of a row's queries and of the row that is stored, and what is stored beside it.
static void make_row(lw_worker* w, const lw_layer* layer, size_t row) {
    const lw_attention_config* c = &layer->config.attention;
    const lw_shared_own* own = lw_shared_of(w->s);
    const size_t dim = c->head_dim, n = c->n_heads * dim, values = layer->compress_rows.rows,
                 index = layer->index_rows.rows;
    const float eps = w->c->rms_norm_eps, scale = lw_score_scale(c);
    float *q = lw_attention_of(w->s)->q + row * n, *k = lw_attention_of(w->s)->k + row * dim;
    for (size_t i = 0; i < n; i += dim) w->ops->rmsnorm(q + i, q + i, w->model->ones, dim, eps);
    turn_heads(w, c, row, q, c->n_heads, dim, 1);
    for (size_t i = 0; i < n; ++i) q[i] *= scale;
    w->ops->rmsnorm(k, k, layer->k_norm, dim, eps);
    turn_heads(w, c, row, k, 1, dim, 1);
    float* beside = own->beside + row * lw_beside_dim(c);
    memcpy(beside, own->values + row * values, values * sizeof *beside);
    memcpy(beside + values, own->gates + row * values, values * sizeof *beside);
    memcpy(beside + 2 * values, own->index_values + row * index, index * sizeof *beside);
    memcpy(beside + 2 * values + index, own->index_gates + row * index, index * sizeof *beside);
    if (index > 0) {
        float* weights = own->index_weights + row * c->index_heads;
        turn_heads(w, c, row, own->index_queries + row * c->index_heads * c->index_dim, c->index_heads, c->index_dim,
                   1);
        for (size_t i = 0; i < c->index_heads; ++i) weights[i] *= 1.0f / sqrtf((float)(c->index_heads * c->index_dim));
    }
    lw_charge_row(w, LW_OP_ROTATE, 2 * (n + dim + 2 * values + 2 * index), 0);
}

// Writes rows row .. end - 1 to the cache, all rows of a block in one write.
static void store_rows(lw_worker* w, const lw_attention_config* c, uint32_t index, size_t row, size_t end) {
    const lw_batch* batch = w->step->batch;
    const lw_kv_place place = w->s->places[index];
    for (size_t n; row < end; row += n) {
        const uint32_t sequence = w->b->sequence[row], position = w->b->position[row];
        const size_t last = batch->query_start[sequence + 1], offset = position % LW_BLOCK_TOKENS;
        n = (last < end ? last : end) - row;
        if (n > LW_BLOCK_TOKENS - offset) n = LW_BLOCK_TOKENS - offset;
        const uint32_t block = lw_block_table(w->s, batch, sequence, place.group)[position / LW_BLOCK_TOKENS];
        const lw_kv_rows rows = {n, lw_attention_of(w->s)->k + row * c->head_dim, NULL,
                                 lw_shared_of(w->s)->beside + row * lw_beside_dim(c)};
        lw_kv_write(&w->s->kv_of[index], w->ops, place.slot, block, (uint32_t)offset, rows);
    }
}

static void make_rows(lw_worker* w, const lw_layer* layer, uint32_t index) {
    enum { TOGETHER = 16 };  // tokens in a cache line of keys
    const size_t share = w->rows / (w->s->threads * 4), together = share < 1 ? 1 : share < TOGETHER ? share : TOGETHER;
    lw_taker items = lw_this_phase(w, (w->rows + together - 1) / together);
    for (size_t item; lw_take_item(&items, &item);) {
        const size_t first = item * together, end = first + together < w->rows ? first + together : w->rows;
        for (size_t row = first; row < end; ++row) make_row(w, layer, row);
        store_rows(w, &layer->config.attention, index, first, end);
    }
    lw_end_phase(w, LW_OP_ROTATE);
}

// Attention of `heads` heads of a row to what it sees.
static void attend_row(lw_worker* w, const lw_layer* layer, uint32_t index, size_t row, size_t first, size_t heads) {
    const lw_attention_config* c = &layer->config.attention;
    const lw_shared_own* own = lw_shared_of(w->s);
    const size_t dim = c->head_dim, at = row * c->n_heads * dim + first * dim;
    const lw_type type = w->s->kv.type;
    const size_t block_bytes = dim * LW_BLOCK_TOKENS * lw_kv_element(type);
    const size_t n = lw_list_seen(w, layer, index, row);
    float* out = lw_attention_of(w->s)->attn + at;
    const lw_attention_job job = {
        .kv = {.base = lw_listed_of(w),
               .block_bytes = block_bytes,
               .head_bytes = block_bytes,
               .head_dim = dim,
               .result_dim = dim,
               .key_dim = dim,
               .value_dim = dim,
               .type = type,
               .latent = true},
        .blocks = own->blocks,
        .n_tokens = 1,
        .first_position = n - 1,
        .group = heads,
        .q = lw_attention_of(w->s)->q + at,
        .q_stride = heads * dim,
        .sinks = layer->sinks != NULL ? layer->sinks + first : NULL,
        .out = out,
        .out_stride = heads * dim,
        .scratch = w->scratch,
    };
    w->ops->attention(&job);
    turn_heads(w, c, row, out, heads, dim, -1);
    lw_profile_work(w->profile, LW_OP_ATTENTION, 0, n * dim * lw_kv_element(type), n * heads * 2 * dim);
}

static void attend(lw_worker* w, const lw_layer* layer, uint32_t index) {
    const lw_attention_config* c = &layer->config.attention;
    const size_t jobs = jobs_of(c, w->rows, w->s->threads), heads = c->n_heads / jobs;
    lw_taker items = lw_this_phase(w, w->rows * jobs);
    for (size_t item; lw_take_item(&items, &item);)
        attend_row(w, layer, index, item / jobs, item % jobs * heads, heads);
    lw_end_phase(w, LW_OP_ATTENTION);
}

static void mix_shared(lw_worker* w, const lw_layer* layer, uint32_t index) {
    make_queries(w, layer);
    make_rows(w, layer, index);
    if (layer->config.attention.compress > 0) lw_make_entries(w, layer, index);
    if (layer->config.attention.index_topk > 0) lw_choose_entries(w, layer, index);
    attend(w, layer, index);
}

static void add_shared(lw_worker* w, const lw_layer* layer, uint32_t index) {
    const lw_attention_config* c = &layer->config.attention;
    const lw_shared_own* own = lw_shared_of(w->s);
    const size_t inputs = layer->attn_groups.cols, all = layer->attn_output.cols, hidden = w->c->hidden_size;
    const lw_stacked groups = {.matrices = &layer->attn_groups,
                               .codes = &own->codes,
                               .inputs = inputs,
                               .outputs = c->output_rank,
                               .from = lw_attention_of(w->s)->attn,
                               .from_stride = c->output_groups * inputs,
                               .from_step = inputs,
                               .to = own->groups,
                               .to_stride = all,
                               .to_step = c->output_rank};
    lw_taker items = lw_this_phase(w, w->rows);
    for (size_t row; lw_take_item(&items, &row);) {
        lw_quantize_stacked(w, &groups, row, 0, c->output_groups);
        // Of streams that are mixed only the result is needed.
        if (w->c->hyper_streams > 0) memset(w->b->x + row * hidden, 0, hidden * sizeof(float));
        lw_charge_row(w, LW_OP_ATTN_CODES, c->output_groups * inputs, c->output_groups * inputs);
    }
    lw_end_phase(w, LW_OP_ATTN_CODES);
    lw_multiply_stacked(w, LW_OP_ATTN_OUTPUT, &groups);
    const lw_activations values = lw_activations_in(w, all, &w->b->codes, own->groups);
    if (lw_reads_codes(w, &layer->attn_output)) {
        lw_taker rows = lw_this_phase(w, w->rows);
        for (size_t row; lw_take_item(&rows, &row);) {
            lw_quantize_segments(w, &values, row, 0, values.segments, own->groups + row * all);
            lw_charge_row(w, LW_OP_ATTN_CODES, all, all);
        }
        lw_end_phase(w, LW_OP_ATTN_CODES);
    }
    lw_observe(w, LW_OP_ATTN_OUTPUT, index, lw_inputs_of(&values));
    lw_add_product(w, LW_OP_ATTN_OUTPUT, &layer->attn_output, NULL, &values, LW_ADAPTED_COUNT);
}

const lw_kind lw_kind_shared = {.check = check_shared,
                                .tensor = shared_tensor,
                                .has = has_shared,
                                .own_bytes = sizeof(lw_shared_own),
                                .widen = widen_shared,
                                .take = take_shared,
                                .inputs = shared_inputs,
                                .mix = mix_shared,
                                .add = add_shared};
