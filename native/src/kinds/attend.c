// Attention over the whole batch. A job is one tile of queries and one KV head. In latent attention a job is one tile
// and some of the heads, which all share the latent rows.
//
// A context that would keep one thread busy after the others have finished is split. The cuts are where the online
// softmax restarts anyway. Each split is a job of its own. The thread that finishes the last split of a tile merges all
// of them. The order of merging is the order in which one thread would have worked, so splitting changes no bit.
#include "kinds/attend.h"

#include "kinds/index.h"
#include "kinds/stages.h"
#include "ops/math.h"

static size_t least(size_t a, size_t b) { return a < b ? a : b; }

// The largest number of splits over which the tokens seen by one tile can spread.
static size_t most_splits(const lw_session* s, const lw_tiling* tiling) {
    const size_t context = s->model->config.context_length, window = tiling->window;
    const size_t cached = (size_t)s->config.n_blocks * LW_BLOCK_TOKENS;
    const size_t ahead = tiling->both_ways && window > 0 ? window - 1 : 0;
    const size_t jobs = lw_tile_jobs(tiling->heads, tiling->heads->n_heads);
    const size_t seen = window + ahead + lw_tile_tokens(tiling->heads, jobs) - 1;
    if (window == 0 || context <= seen) {
        const size_t topk = tiling->heads->index_topk,
                     longest = least(least(cached, context), topk > 0 ? topk : context);
        return (longest + LW_SPLIT_TOKENS - 1) / LW_SPLIT_TOKENS;
    }
    // The first token seen may be the last token of a split.
    return ((cached < seen ? cached : seen) + 2 * LW_SPLIT_TOKENS - 2) / LW_SPLIT_TOKENS;
}

void lw_widen_splits(lw_session* s, const lw_tiling* tiling) {
    const uint32_t threads = s->config.n_threads;
    const lw_attention_config* c = tiling->heads;
    const size_t splits = most_splits(s, tiling);
    const size_t jobs = lw_tile_jobs(c, 1), most_jobs = lw_tile_jobs(c, c->n_heads);
    if (threads == 1 || threads * LW_JOBS_PER_THREAD <= jobs || splits < 2) return;
    // Room for one tile of the longest context, or for several tiles with fewer rows.
    const size_t widest = lw_state_floats(c, c->n_heads / jobs, lw_tile_tokens(c, jobs));
    lw_attention_own* own = lw_attention_of(s);
    lw_widen(&own->split_floats, splits * jobs * widest);
    lw_widen(&own->split_floats, splits * most_jobs * lw_state_floats(c, c->n_heads / most_jobs, 1));
    lw_widen(&own->split_tiles, splits * (widest / lw_state_floats(c, c->n_heads / jobs, 1)));
}

// Pairs of a query and a key. This is an estimate: each query is charged all keys that its tile sees.
static size_t cost_of(const lw_tile* tile, size_t window) {
    const lw_tokens seen = lw_attention_tokens(tile->position, tile->n_tokens, window, tile->length);
    return tile->n_tokens * (seen.end - seen.first);
}

// Room for splits that no tile has taken yet.
typedef struct split_room {
    float* states;
    atomic_uint* done;
    size_t floats, tiles;
} split_room;

// Cuts tile `index` into splits if there is room.
static void split_tile(lw_tiling* tiling, size_t index, split_room* room) {
    const size_t jobs = tiling->jobs;
    lw_tile* tile = &tiling->tiles[index];
    const lw_tokens splits = lw_splits_of(tile, tiling->window);
    const size_t count = splits.end - splits.first,
                 floats = count * jobs * lw_state_floats(tiling->heads, tiling->heads->n_heads / jobs, tile->n_tokens);
    if (count < 2 || count > room->tiles || floats > room->floats) return;
    tile->done = room->done;
    lw_list_splits(tiling, index, count, room->states);
    *room = (split_room){room->states + floats, room->done + jobs, room->floats - floats, room->tiles - count};
}

// Number of tokens of the sequence that a query may see if attention is bidirectional; 0 if it is causal.
static uint32_t length_of(const lw_session* s, const lw_batch* batch, const lw_tiling* tiling, uint32_t sequence) {
    if (tiling->both_ways != 1) return 0;
    if (s->texts != NULL && s->texts->seen != NULL) return s->texts->seen[sequence];
    return batch->query_start[sequence + 1] - batch->query_start[sequence];
}

// Lets a tile end before the first token that sees other tokens than its first one does.
static void cut_tile(lw_tile* tile, const uint32_t* sees) {
    uint32_t alike = 1;
    while (alike < tile->n_tokens && sees[alike] == sees[0]) ++alike;
    tile->n_tokens = alike;
    tile->length = sees[0];
}

// A query that sees more than index_topk tokens has a tile of its own.
static void choose_tile(lw_tile* tile, const lw_attention_config* c) {
    const uint32_t topk = c->index_topk, block = c->index_block;
    const uint32_t alike = tile->position < topk ? topk - tile->position : 1;
    if (tile->n_tokens > alike) tile->n_tokens = alike;
    if (tile->position < topk) return;
    tile->position = block > 0 ? topk - block + tile->position % block : topk - 1;
}

// Jobs of the batch if each tile is cut into `jobs` jobs.
static size_t all_jobs(const lw_batch* batch, const lw_attention_config* c, size_t jobs) {
    const size_t most = lw_tile_tokens(c, jobs);
    size_t tiles = 0;
    for (uint32_t i = 0; i < batch->n_seqs; ++i)
        tiles += (batch->query_start[i + 1] - batch->query_start[i] + most - 1) / most;
    return tiles * jobs;
}

// Each job of latent attention transposes the latent rows again, so tiles are cut further only if threads would be
// idle.
static size_t choose_jobs(const lw_session* s, const lw_batch* batch, const lw_attention_config* c) {
    size_t jobs = lw_tile_jobs(c, 1);
    while (c->latent_rank > 0 && jobs < c->n_heads && all_jobs(batch, c, jobs) < s->threads)
        jobs = lw_tile_jobs(c, jobs + 1);
    return jobs;
}

// A chunk is a text of its own: a tile ends where its chunk ends, and its position is that in the chunk.
static void place_in_chunk(lw_tile* tile, uint32_t chunk) {
    const uint32_t position = tile->position % chunk;
    tile->chunk_start = tile->position - position;
    tile->position = position;
    if (tile->n_tokens > chunk - position) tile->n_tokens = chunk - position;
}

static void make_tiling(lw_session* s, const lw_batch* batch, lw_tiling* tiling) {
    const lw_attention_config* c = tiling->heads;
    tiling->jobs = choose_jobs(s, batch, c);
    const uint32_t most = (uint32_t)lw_tile_tokens(c, tiling->jobs);
    size_t cost = 0;
    tiling->n = 0;
    for (uint32_t sequence = 0; sequence < batch->n_seqs; ++sequence) {
        const uint32_t begin = batch->query_start[sequence], end = batch->query_start[sequence + 1];
        const uint32_t length = length_of(s, batch, tiling, sequence);
        for (uint32_t row = begin; row < end; row += tiling->tiles[tiling->n - 1].n_tokens) {
            lw_tile* tile = &tiling->tiles[tiling->n++];
            *tile = (lw_tile){.sequence = sequence, .first_row = row, .length = length};
            tile->position = s->b.position[row];
            tile->n_tokens = end - row < most ? end - row : most;
            if (c->chunk > 0) place_in_chunk(tile, c->chunk);
            if (c->index_topk > 0) choose_tile(tile, c);
            if (tiling->both_ways == 2 && batch->sees != NULL) cut_tile(tile, batch->sees + row);
            cost += cost_of(tile, tiling->window);
        }
    }
    if (lw_make_stages(s, tiling)) return;
    // A job is too long if it is more than this part of the phase's work.
    const size_t too_long = cost * tiling->jobs / ((size_t)s->threads * LW_JOBS_PER_THREAD);
    const lw_attention_own* own = lw_attention_of(s);
    split_room room = {own->split_states, own->splits_done, own->split_floats, own->split_tiles};
    for (size_t i = 0, whole = tiling->n; i < whole; ++i)
        if (cost_of(&tiling->tiles[i], tiling->window) > too_long) split_tile(tiling, i, &room);
}

void lw_make_tiles(lw_session* s, const lw_batch* batch) {
    lw_attention_own* own = lw_attention_of(s);
    for (size_t i = 0; i < own->n_tilings; ++i) make_tiling(s, batch, &own->layers[i].tiling);
}

// Charges one job: the keys and values it reads, its queries and results, and its products with each token seen.
// `tokens` bounds the tokens that it handles.
static void charge_attention(lw_worker* w, const lw_attention_job* job, lw_tokens tokens, bool with_rows) {
    if (w->profile == NULL) return;
    const size_t all = job->kv.head_dim + job->kv.value_dim;
    const size_t dims = job->stage == LW_ATTEND_WHOLE    ? all
                        : job->stage == LW_ATTEND_SCORES ? job->kv.head_dim
                                                         : job->dims.end - job->dims.first;
    lw_tokens read = lw_attention_tokens(job->first_position, job->n_tokens, job->window, job->length);
    if (read.first < tokens.first) read.first = tokens.first;
    if (read.end > tokens.end) read.end = tokens.end;
    size_t seen = 0;  // tokens seen, summed over all queries
    for (size_t i = 0; i < job->n_tokens; ++i) {
        const lw_tokens one = lw_attention_tokens(job->first_position + i, 1, job->window, job->length);
        const size_t first = one.first > read.first ? one.first : read.first;
        const size_t end = one.end < read.end ? one.end : read.end;
        seen += end > first ? end - first : 0;
    }
    const size_t cache_bytes = (read.end - read.first) * (job->kv.head_bytes / LW_BLOCK_TOKENS) * dims / all;
    const size_t row_bytes = with_rows ? job->n_tokens * job->group * dims * sizeof(float) : 0;
    lw_profile_work(w->profile, LW_OP_ATTENTION, 0, cache_bytes + row_bytes, seen * job->group * dims);
}

// The tokens that one entry of the list of tiles handles.
static lw_tokens tokens_of(const lw_tile* tile, size_t window) {
    if (tile->n_splits == 0) return (lw_tokens){0, SIZE_MAX};
    const size_t begin = (lw_splits_of(tile, window).first + tile->split) * LW_SPLIT_TOKENS;
    return (lw_tokens){begin, begin + LW_SPLIT_TOKENS};
}

static bool is_last(atomic_uint* done, size_t all) {
    if (atomic_fetch_add_explicit(done, 1, memory_order_acq_rel) + 1 < all) return false;
    atomic_store_explicit(done, 0, memory_order_relaxed);  // for the next layer, which starts after a barrier
    return true;
}

// Runs job `number` of a tile, whose states have room for `heads` heads. Returns false while other splits of the job
// are unfinished.
static bool attend_job(lw_worker* w, const lw_attention_config* c, const lw_attention_job* job, const lw_tile* tile,
                       size_t number, size_t heads) {
    if (tile->n_splits == 0) {
        w->ops->attention(job);
        return true;
    }
    const size_t floats = lw_state_floats(c, heads, tile->n_tokens);
    float* states = tile->states + number * tile->n_splits * floats;
    w->ops->attention_split(job, lw_splits_of(tile, job->window).first + tile->split, states + tile->split * floats);
    if (!is_last(&tile->done[number], tile->n_splits)) return false;
    w->ops->attention_merge(job, states, tile->n_splits);
    return true;
}

static void quantize_result(lw_worker* w, const lw_activations* x, const lw_tile* tile, size_t first, size_t n) {
    for (size_t row = tile->first_row; row < tile->first_row + tile->n_tokens; ++row) {
        lw_quantize_segments(w, x, row, first, n, x->f32 + row * x->cols + first * LW_SEGMENT);
        lw_charge_row(w, LW_OP_ATTN_CODES, n * LW_SEGMENT, n * LW_SEGMENT);
    }
}

// Multiplies n values by the softplus of n numbers, or all by that of one number.
static void pass_softplus(float* values, const float* gate, size_t n, bool one) {
    float factor = one ? (float)lw_softplus((double)*gate) : 0;
    for (size_t i = 0; i < n; ++i) {
        if (!one) factor = (float)lw_softplus((double)gate[i]);
        values[i] *= factor;
    }
}

void lw_pass_gate(lw_worker* w, const lw_layer* layer, size_t row, size_t first, size_t n) {
    const lw_attention_config* c = &layer->config.attention;
    const lw_attention_own* own = lw_attention_of(w->s);
    const size_t head = lw_output_dim(c), outputs = layer->attn_output.cols;
    float* values = own->attn + row * outputs + first;
    const float* gate = own->gate + row * layer->attn_gate.rows;
    if (c->output_gate == 1 && c->gate_softplus)
        pass_softplus(values, gate + first, n, false);
    else if (c->output_gate == 1)
        w->ops->sigmoid_mul(values, gate + first, values, n);
    float* same = w->scratch;  // the head's gate value, repeated
    for (size_t i = 0; c->output_gate == 2 && i < n; i += head) {
        if (c->gate_softplus) {
            pass_softplus(values + i, gate + (first + i) / head, head, true);
            continue;
        }
        for (size_t k = 0; k < head; ++k) same[k] = gate[(first + i) / head];
        w->ops->sigmoid_mul(values + i, same, values + i, head);
    }
}

// Columns first .. first + n - 1 of all rows of a tile.
static void pass_gates(lw_worker* w, const lw_layer* layer, const lw_tile* tile, size_t first, size_t n) {
    for (size_t row = tile->first_row; row < tile->first_row + tile->n_tokens; ++row)
        lw_pass_gate(w, layer, row, first, n);
}

// A prediction head with keys of its own, but for one that guesses blocks, has none at position 0, and each of its tiles
// has one query. A window of `position` tokens lets this query see every token but the first.
static size_t window_of(const lw_worker* w, const lw_layer* layer, const lw_tile* tile) {
    const bool has_own = layer->config.mtp && !layer->config.attention.shares_kv && !lw_guesses_blocks(w->model);
    return has_own ? w->b->position[tile->first_row] : layer->config.attention.window;
}

static const lw_tiling* tiling_of(const lw_session* s, uint32_t index) {
    const lw_attention_own* own = lw_attention_of(s);
    return &own->layers[own->layers[index].tiling_of].tiling;
}

// If each job's results are whole segments, need nothing of other jobs, and no rows are dropped after this layer, the
// thread that computed the results also quantizes them.
bool lw_attend_makes_codes(const lw_worker* w, uint32_t index) {
    const lw_layer* layer = &w->model->layers[index];
    const lw_attention_config* c = &layer->config.attention;
    const size_t job_cols = c->n_heads / tiling_of(w->s, index)->jobs * lw_result_dim(c);
    return c->latent_rank == 0 && lw_reads_codes(w, &layer->attn_output) && layer->attn_output_order == NULL &&
           !c->inner_norm && !layer->config.row_codes && job_cols % LW_SEGMENT == 0 && index != w->model->last_mixer;
}

// Columns of one job's queries and results.
typedef struct job_columns {
    size_t group, q, out;
} job_columns;

static job_columns columns_of(const lw_attention_config* c, const lw_tiling* tiling) {
    const size_t group = c->n_heads / tiling->jobs;
    return (job_columns){group, group * lw_key_dim(c), group * lw_result_dim(c)};
}

// The table of the blocks that a job sees.
static const uint32_t* blocks_of(const lw_worker* w, const lw_attention_config* c, uint32_t group, const lw_tile* tile,
                                 size_t number) {
    const uint32_t* chosen = lw_chosen_blocks(w, c, tile->first_row, number);
    if (chosen != NULL) return chosen;
    return lw_block_table(w->s, w->step->batch, tile->sequence, group) + tile->chunk_start / LW_BLOCK_TOKENS;
}

// Job `number` of a tile.
static lw_attention_job job_of(const lw_worker* w, uint32_t index, lw_attended of, const lw_tile* tile, size_t number) {
    const lw_layer* layer = &w->model->layers[index];
    const lw_attention_config* c = &layer->config.attention;
    const lw_kv_place place = w->s->places[index];
    const size_t tile_jobs = tiling_of(w->s, index)->jobs;
    const job_columns cols = columns_of(c, tiling_of(w->s, index));
    const size_t first = number * cols.group * (2 * (size_t)c->distances + 1);
    return (lw_attention_job){
        .kv = lw_kv_slot(&w->s->kv_of[index], place.slot),
        .blocks = blocks_of(w, c, place.group, tile, number),
        .kv_head = c->latent_rank > 0 ? 0 : number,
        .n_tokens = tile->n_tokens,
        .first_position = tile->position,
        .window = window_of(w, layer, tile),
        .length = tile->length,
        .brief = lw_is_tower(w->c),
        .group = cols.group,
        .q = of.q + (tile->first_row * tile_jobs + number) * cols.q,
        .q_stride = tile_jobs * cols.q,
        .softcap = c->score_softcap,
        .slopes = c->alibi ? w->model->slopes + number * cols.group : NULL,
        .distances = layer->distances != NULL ? layer->distances + first : NULL,
        .reach = c->distances,
        .position_keys = layer->position_keys != NULL ? layer->position_keys + first * c->head_dim : NULL,
        .position_queries = layer->position_queries != NULL ? layer->position_queries + first * c->head_dim : NULL,
        .sinks = layer->sinks != NULL ? layer->sinks + number * cols.group : NULL,
        .out = of.out + (tile->first_row * tile_jobs + number) * cols.out,
        .out_stride = tile_jobs * cols.out,
        .scratch = w->scratch,
        .chosen = lw_chosen_tokens(w, c, tile->first_row)};
}

// A phase: the scores of attention in stages.
static void make_scores(lw_worker* w, uint32_t index, lw_attended of) {
    const lw_tiling* tiling = tiling_of(w->s, index);
    const size_t n_heads = w->model->layers[index].config.attention.n_heads;
    lw_taker items = lw_this_phase(w, tiling->stages.n_pieces * tiling->jobs);
    for (size_t item; lw_take_item(&items, &item);) {
        const lw_score_piece* piece = &tiling->stages.pieces[item / tiling->jobs];
        const lw_tile* tile = &tiling->tiles[piece->tile];
        const size_t number = item % tiling->jobs;
        lw_attention_job job = job_of(w, index, of, tile, number);
        lw_score_job(&job, tile, n_heads, number * job.group);
        w->ops->attention_scores(&job, piece->tokens);
        charge_attention(w, &job, piece->tokens, true);
    }
    lw_end_phase(w, LW_OP_ATTENTION);
}

// Runs part `part` of job `number` of a tile. Returns true for the thread that completes the job's results.
static bool attend_part(lw_worker* w, uint32_t index, lw_attended of, const lw_tile* tile, size_t number, size_t part) {
    const lw_tiling* tiling = tiling_of(w->s, index);
    const lw_stages* stages = &tiling->stages;
    const size_t parts = lw_parts_of(tiling);
    const lw_attention_config* c = &w->model->layers[index].config.attention;
    lw_attention_job job = job_of(w, index, of, tile, number);
    size_t heads = job.group;
    if (stages->n_pieces > 0) {
        lw_score_job(&job, tile, c->n_heads, number * job.group);
        lw_value_job(&job, stages, part);
        heads = stages->heads;
    }
    bool complete = attend_job(w, c, &job, tile, number * parts + part, heads);
    if (complete && stages->n_pieces > 0) complete = is_last(&tile->jobs_done[number], parts);
    // After the work: a charge takes the time since the last charge.
    charge_attention(w, &job, tokens_of(tile, job.window), tile->split == 0);
    return complete;
}

// Values that lie turned in the cache make turned results: turns columns first .. first + n - 1 of a tile's results
// back.
static void turn_back(lw_worker* w, const lw_attention_config* c, const lw_activations* x, const lw_tile* tile,
                      size_t first, size_t n) {
    const size_t dim = lw_result_dim(c);
    for (size_t row = tile->first_row; row < tile->first_row + tile->n_tokens; ++row)
        for (size_t i = 0; i < n; i += dim)
            w->ops->turn((float*)x->f32 + row * x->cols + first + i, dim, 1.0f / (float)lw_turn_size(dim));
    lw_charge_row(w, LW_OP_ATTENTION, 2 * tile->n_tokens * n, 0);
}

void lw_attend(lw_worker* w, uint32_t index, lw_attended of) {
    const lw_layer* layer = &w->model->layers[index];
    const lw_attention_config* c = &layer->config.attention;
    const lw_tiling* tiling = tiling_of(w->s, index);
    const job_columns cols = columns_of(c, tiling);
    const size_t of_tile = tiling->jobs * lw_parts_of(tiling);
    const bool with_codes = lw_attend_makes_codes(w, index);
    const lw_activations x = lw_activations_in(w, tiling->jobs * cols.out, &w->b->codes, of.out);
    const bool staged = tiling->stages.n_pieces > 0;
    if (staged) make_scores(w, index, of);
    lw_taker items = lw_this_phase(w, tiling->n * of_tile);
    for (size_t item = 0; staged ? lw_take_by_number(&items, &item) : lw_take_item(&items, &item);) {
        // Late tiles see the most keys. They go first, so that no long job is left over at the end of the phase.
        const lw_tile* tile = &tiling->tiles[tiling->n - 1 - item / of_tile];
        const size_t head = item % of_tile / lw_parts_of(tiling), part = item % lw_parts_of(tiling);
        if (!attend_part(w, index, of, tile, head, part)) continue;
        if (lw_kv_turns_values(w->s->kv_of[index].type, w->s->kv_of[index].latent))
            turn_back(w, c, &x, tile, head * cols.out, cols.out);
        if (c->output_gate && c->latent_rank == 0) pass_gates(w, layer, tile, head * cols.out, cols.out);
        if (of.finish != NULL)
            of.finish(w, layer, (lw_rows){tile->first_row, tile->n_tokens}, head * cols.group, cols.group);
        if (with_codes) quantize_result(w, &x, tile, head * cols.out / LW_SEGMENT, cols.out / LW_SEGMENT);
    }
    lw_end_phase(w, LW_OP_ATTENTION);
}
