// Attention in two stages, for threads that would have no job.
//
// One sequence has as many jobs as KV heads and splits of its context: few on many cores. The online softmax of a split
// depends on its order, but no score depends on another one, and no dimension of a value on another. So the first stage
// computes all scores, cut by tokens. In the second, each job has some heads and some dimensions; it goes through the
// scores in the order of the whole, so no bit changes. The price is a barrier, room for the scores, and exponentials
// that each part of the dimensions computes again.
#include "kinds/stages.h"

enum {
    WORTH = 1 << 17,        // multiplications of the longest job from which on the barrier pays: about ten microseconds
    EXPONENTIAL_DIMS = 16,  // exponentials take as long as so many dimensions
    LEAST_DIMS = 32,        // of a part: a cache line of f16
    ROWS = 8,               // query rows of a KV head for which there is always room
};

static bool may_have_stages(const lw_session* s, const lw_attention_config* c) {
    return c->latent_rank == 0 && c->n_kv_heads < s->config.n_threads;
}

void lw_widen_stages(lw_session* s, const lw_tiling* tiling) {
    const lw_attention_config* c = tiling->heads;
    if (!may_have_stages(s, c)) return;
    lw_attention_own* own = lw_attention_of(s);
    lw_stage_room* room = &own->stage_room;
    const size_t threads = s->config.n_threads, group = c->n_heads / c->n_kv_heads;
    const size_t rows = group < ROWS ? ROWS : group;
    // Fewer jobs than threads: each has a split at most.
    const size_t cached = (size_t)s->config.n_blocks * LW_BLOCK_TOKENS * c->n_kv_heads;
    const size_t seen = threads * LW_SPLIT_TOKENS < cached ? threads * LW_SPLIT_TOKENS : cached;
    lw_widen(&room->n_scores, seen * rows);
    lw_widen(&room->n_states, LW_JOBS_PER_THREAD * threads * lw_state_floats(c, rows, 1));
    lw_widen(&room->n_counters, (LW_JOBS_PER_THREAD + 1) * threads);
    lw_widen(&own->split_tiles, threads);
}

void lw_take_stages(lw_session* s, lw_parts* parts) {
    lw_attention_own* own = lw_attention_of(s);
    lw_stage_room* room = &own->stage_room;
    room->scores = lw_take(parts, room->n_scores * sizeof *room->scores);
    room->states = lw_take(parts, room->n_states * sizeof *room->states);
    room->counters = lw_take(parts, room->n_counters * sizeof *room->counters);
    for (size_t i = 0; i < own->n_tilings; ++i) {
        lw_tiling* tiling = &own->layers[i].tiling;
        const size_t n = may_have_stages(s, tiling->heads) ? s->config.n_threads : 0;
        tiling->stages.pieces = lw_take(parts, n * sizeof *tiling->stages.pieces);
    }
}

// The tokens that a tile sees, in whole blocks.
static lw_tokens seen_by(const lw_tile* tile, size_t window) {
    const lw_tokens seen = lw_attention_tokens(tile->position, tile->n_tokens, window, tile->length);
    return (lw_tokens){seen.first / LW_BLOCK_TOKENS * LW_BLOCK_TOKENS,
                       (seen.end + LW_BLOCK_TOKENS - 1) / LW_BLOCK_TOKENS * LW_BLOCK_TOKENS};
}

static size_t splits_of(const lw_tile* tile, size_t window) {
    const lw_tokens splits = lw_splits_of(tile, window);
    return splits.end - splits.first;
}

// All tiles of a batch together.
typedef struct demand {
    size_t splits, blocks, scores;
    size_t most_tokens;  // of a tile
    size_t longest;      // pairs of a query token and a token of one split
} demand;

static demand demand_of(const lw_tiling* tiling) {
    demand all = {0};
    for (size_t i = 0; i < tiling->n; ++i) {
        const lw_tile* tile = &tiling->tiles[i];
        const lw_tokens seen = seen_by(tile, tiling->window);
        const size_t n = seen.end - seen.first, pairs = tile->n_tokens * (n < LW_SPLIT_TOKENS ? n : LW_SPLIT_TOKENS);
        all.splits += splits_of(tile, tiling->window);
        all.blocks += n / LW_BLOCK_TOKENS;
        all.scores += tile->n_tokens * tiling->heads->n_heads * n;
        lw_widen(&all.most_tokens, tile->n_tokens);
        lw_widen(&all.longest, pairs);
    }
    return all;
}

static size_t rounded_up(size_t n, size_t by) { return (n + by - 1) / by; }

// Chooses the parts of the second stage, of `jobs` jobs before: those with which the threads end first. A single row
// takes as long as two, because keys and values are converted for it alone.
static void choose_parts(lw_stages* out, const lw_attention_config* c, size_t jobs, size_t tokens, size_t threads) {
    const size_t group = c->n_heads / c->n_kv_heads, all = lw_align_floats(lw_result_dim(c));
    size_t least = SIZE_MAX;
    for (size_t cut = 1; cut <= group; ++cut) {
        const size_t heads = rounded_up(group, cut), rows = heads * tokens > 1 ? heads * tokens : 2;
        for (size_t n = 1; n == 1 || all / n >= LEAST_DIMS; n *= 2) {
            const size_t dims = lw_align_floats(rounded_up(all, n));
            const lw_stages found = {.heads = heads,
                                     .dims = dims,
                                     .head_parts = rounded_up(group, heads),
                                     .dim_parts = rounded_up(all, dims)};
            const size_t items = jobs * found.head_parts * found.dim_parts;
            const size_t cost = rounded_up(items, threads) * rows * (dims + EXPONENTIAL_DIMS);
            if (cost >= least || (items > jobs && items > threads * LW_JOBS_PER_THREAD)) continue;
            least = cost;
            *out = found;
        }
    }
}

// Cuts what the first `n` tiles see into pieces of at most `blocks` blocks. Returns their number.
static size_t cut_pieces(const lw_tiling* tiling, size_t n, size_t blocks, lw_score_piece* out) {
    size_t pieces = 0;
    for (size_t i = 0; i < n; ++i) {
        const lw_tokens seen = seen_by(&tiling->tiles[i], tiling->window);
        for (size_t first = seen.first, end; first < seen.end; first = end, ++pieces) {
            end = first + blocks * LW_BLOCK_TOKENS < seen.end ? first + blocks * LW_BLOCK_TOKENS : seen.end;
            if (out != NULL) out[pieces] = (lw_score_piece){(uint32_t)i, {first, end}};
        }
    }
    return pieces;
}

// Gives a tile its room for scores, states and counters, and lists its further splits.
static void place_tile(lw_tiling* tiling, size_t index, const lw_stages* stages, lw_stage_room* room) {
    lw_tile* tile = &tiling->tiles[index];
    const lw_attention_config* c = tiling->heads;
    const lw_tokens seen = seen_by(tile, tiling->window);
    const size_t splits = splits_of(tile, tiling->window),
                 parts = tiling->jobs * stages->head_parts * stages->dim_parts;
    tile->first_score = seen.first;
    tile->score_span = seen.end - seen.first;
    tile->scores = room->scores;
    tile->jobs_done = room->counters;
    tile->done = room->counters + tiling->jobs;
    room->scores += tile->n_tokens * c->n_heads * tile->score_span;
    room->counters += tiling->jobs + parts;
    if (splits < 2) return;
    lw_list_splits(tiling, index, splits, room->states);
    room->states += splits * parts * lw_state_floats(c, stages->heads, tile->n_tokens);
}

bool lw_make_stages(lw_session* s, lw_tiling* tiling) {
    const lw_attention_config* c = tiling->heads;
    const size_t threads = s->threads, jobs = tiling->jobs, n = tiling->n;
    lw_stages* stages = &tiling->stages;
    stages->n_pieces = 0;
    if (!may_have_stages(s, c) || n * jobs >= threads) return false;
    lw_stage_room room = lw_attention_of(s)->stage_room;
    const demand all = demand_of(tiling);
    const size_t products = all.longest * (c->n_heads / c->n_kv_heads) * (c->head_dim + lw_result_dim(c));
    if (all.splits * jobs >= threads || all.scores > room.n_scores || products < WORTH) return false;
    lw_stages found = {0};  // of the candidates the first is taken always
    choose_parts(&found, c, all.splits * jobs, all.most_tokens, threads);
    const size_t parts = jobs * found.head_parts * found.dim_parts;
    if (all.splits * parts * lw_state_floats(c, found.heads, all.most_tokens) > room.n_states ||
        n * (jobs + parts) > room.n_counters)
        return false;
    found.pieces = stages->pieces;
    size_t blocks = rounded_up(all.blocks * jobs, threads);
    while (cut_pieces(tiling, n, blocks, NULL) * jobs > threads) ++blocks;
    found.n_pieces = cut_pieces(tiling, n, blocks, found.pieces);
    *stages = found;
    for (size_t i = 0; i < n; ++i) place_tile(tiling, i, stages, &room);
    return true;
}

void lw_score_job(lw_attention_job* job, const lw_tile* tile, size_t n_heads, size_t first) {
    job->stage = LW_ATTEND_SCORES;
    job->scores = tile->scores + first * tile->score_span;
    job->score_stride = n_heads * tile->score_span;
    job->score_span = tile->score_span;
    job->first_score = tile->first_score;
}

void lw_value_job(lw_attention_job* job, const lw_stages* stages, size_t part) {
    const size_t head = part / stages->dim_parts * stages->heads, dim = part % stages->dim_parts * stages->dims;
    const size_t dims = job->kv.value_dim, result = job->kv.result_dim, group = job->group;
    job->stage = LW_ATTEND_VALUES;
    job->group = head + stages->heads < group ? stages->heads : group - head;
    job->scores += head * job->score_span;
    job->out += head * result;
    if (job->sinks != NULL) job->sinks += head;
    job->dims = (lw_tokens){dim, dim + stages->dims < dims ? dim + stages->dims : dims};
}
