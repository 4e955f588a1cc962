// Attention over the whole batch: jobs of one tile of queries and one KV head each.
#include "graph/worker.h"

// Charges one job: the keys and values it reads, queries and results, two products for each token seen.
static void charge_attention(lw_worker* w, const lw_attention_job* job) {
    if (w->profile == NULL) return;
    const uint64_t last = job->first_position + job->n_tokens, dims = job->kv.head_dim + job->kv.value_dim;
    uint64_t seen = 0, first = last;  // tokens seen by all queries; the first one that any of them sees
    for (uint64_t position = job->first_position; position < last; ++position) {
        const uint64_t n = job->window != 0 && position + 1 > job->window ? job->window : position + 1;
        seen += n;
        if (position + 1 - n < first) first = position + 1 - n;
    }
    const uint64_t cache_bytes = (last - first) * dims * (job->kv.is_f16 ? 2 : 4);
    const uint64_t row_bytes = 2 * job->n_tokens * job->group * job->kv.head_dim * sizeof(float);
    lw_profile_work(w->profile, LW_OP_ATTENTION, 0, cache_bytes + row_bytes, seen * job->group * dims);
}

static void quantize_result(lw_worker* w, const lw_activations* x, const lw_tile* tile, size_t first, size_t n) {
    for (size_t row = tile->first_row; row < tile->first_row + tile->n_tokens; ++row) {
        lw_quantize_segments(w, x, row, first, n, x->f32 + row * x->cols + first * LW_SEGMENT);
        lw_charge_row(w, LW_OP_ATTN_CODES, n * LW_SEGMENT, n * LW_SEGMENT);
    }
}

bool lw_attend(lw_worker* w, uint32_t index) {
    const lw_model_config* c = w->c;
    const size_t q_size = (size_t)c->n_heads * c->head_dim, group = c->n_heads / c->n_kv_heads;
    const size_t jobs = w->step->n_tiles * c->n_kv_heads, job_cols = group * c->head_dim;
    const lw_batch* batch = w->step->batch;
    // A job's results are whole segments, and all rows go on: whoever has computed them quantizes them.
    const bool with_codes = lw_is_quantized(w->model->layers[index].attn_output.matrix.type) &&
                            job_cols % LW_SEGMENT == 0 && index + 1 < c->n_layers;
    const lw_activations x = lw_activations_in(w, q_size, &w->b->codes, w->b->attn);
    size_t item, end;
    while (lw_work_take(lw_this_phase(w), jobs, 1, &item, &end)) {
        // Late tiles see the most keys: they go first, so that none is left over at the end.
        const lw_tile* tile = &w->b->tiles[w->step->n_tiles - 1 - item / c->n_kv_heads];
        const size_t head = item % c->n_kv_heads;
        const size_t offset = tile->first_row * q_size + head * job_cols;
        const lw_attention_job job = {
            .kv = lw_kv_layer(&w->s->kv, index),
            .blocks = batch->block_tables + (size_t)tile->sequence * batch->block_table_stride,
            .kv_head = head,
            .n_tokens = tile->n_tokens,
            .first_position = w->b->position[tile->first_row],
            .window = c->sliding_window,
            .group = group,
            .q = w->b->q + offset,
            .q_stride = q_size,
            .out = w->b->attn + offset,
            .out_stride = q_size,
            .scratch = w->scratch};
        w->ops->attention(&job);
        charge_attention(w, &job);
        if (with_codes) quantize_result(w, &x, tile, head * job_cols / LW_SEGMENT, job_cols / LW_SEGMENT);
    }
    lw_end_phase(w, LW_OP_ATTENTION);
    return with_codes;
}
