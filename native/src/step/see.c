// Rows of a picture by a tower. The work is divided into units of a stage and some patches. Stages are: the patches'
// first rows; for each layer the keys and values, then the rest; the heads. So keys and values of one layer of all
// patches are there before any of them is attended to. A unit is one parallel region, and what later units need lies in
// lw_seeing and the cache.
#include <math.h>
#include <string.h>

#include "kinds/attend.h"
#include "status.h"
#include "step/run.h"

static uint32_t last_stage(const lw_model_config* c) { return 2 * c->n_layers + 1; }

// The patch of the picture that is row `row`: blocks row by row, and so the patches of a block.
static const uint8_t* patch_at(const lw_worker* w, size_t row, size_t* at_y, size_t* at_x) {
    const lw_picture* picture = &w->s->seeing.picture;
    const size_t side = w->c->patches.side, merge = w->c->patches.merge;
    const size_t block = row / (merge * merge), within = row % (merge * merge), blocks = picture->width / side / merge;
    *at_y = block / blocks * merge + within / merge;
    *at_x = block % blocks * merge + within % merge;
    return picture->pixels + (*at_y * side * picture->width + *at_x * side) * 3;
}

static void read_patch(const lw_worker* w, const uint8_t* pixels, float* out) {
    const size_t side = w->c->patches.side, stride = 3 * (size_t)w->s->seeing.picture.width;
    const size_t inputs = lw_patch_inputs(w->c);
    for (size_t colour = 0; colour < 3; ++colour)
        for (size_t y = 0; y < side; ++y)
            for (size_t x = 0; x < side; ++x) *out++ = w->s->seeing.values[colour][pixels[y * stride + 3 * x + colour]];
    for (size_t i = 3 * side * side; i < inputs; ++i) *out++ = 0;
}

// A phase: the values of the patches, and their codes where the matrix reads codes.
static lw_activations read_patches(lw_worker* w) {
    const size_t inputs = lw_patch_inputs(w->c);
    const lw_activations out = lw_activations_in(w, inputs, &w->b->codes, w->b->gate);
    const bool quantized = lw_reads_codes(w, &w->model->patches);
    lw_taker items = lw_this_phase(w, w->rows);
    for (size_t row, y, x; lw_take_item(&items, &row);) {
        float* values = w->b->gate + row * inputs;
        read_patch(w, patch_at(w, w->b->position[row], &y, &x), values);
        if (w->model->patches_input_norm != NULL)
            lw_normalize_row(w, values, values, w->model->patches_input_norm, w->model->patches_input_norm_bias,
                             3 * (size_t)w->c->patches.side * w->c->patches.side);
        if (quantized) lw_quantize_segments(w, &out, row, 0, out.segments, values);
        lw_charge_row(w, LW_OP_EMBED, inputs, quantized ? inputs : 0);
    }
    lw_end_phase(w, LW_OP_EMBED);
    return out;
}

// The rows of a table of `side` rows on one axis that patch `i` of `n` lies between, and how near to the second.
static float between(size_t i, size_t n, size_t side, size_t* low, size_t* high) {
    const double at = n > 1 ? (double)(i * (side - 1)) / (double)(n - 1) : 0;
    *low = (size_t)at;
    *high = *low + 1 < side ? *low + 1 : *low;
    return (float)(at - (double)*low);
}

// The weight of row `at` of `side` rows on one axis for patch `i` of `n`, and of which rows there is any.
static float around(size_t at, size_t i, size_t n, size_t side) {
    const double step = (double)side / (double)n, reach = step > 1 ? step : 1;
    const double distance = fabs((double)at - (((double)i + 0.5) * step - 0.5)) / reach;
    return distance < 1 ? (float)(1 - distance) : 0;
}

static float all_around(size_t i, size_t n, size_t side) {
    float sum = 0;
    for (size_t at = 0; at < side; ++at) sum += around(at, i, n, side);
    return sum;
}

// Adds the resampled row of positions of the patch in row y and column x. `down` and `across` count patches.
static void add_resampled(const lw_worker* w, size_t y, size_t x, size_t down, size_t across, float* to) {
    const size_t hidden = w->c->hidden_size, side = (size_t)sqrt((double)w->c->n_positions);
    float *row = w->scratch, *sum = row + hidden;
    const float all = all_around(y, down, side) * all_around(x, across, side);
    memset(sum, 0, hidden * sizeof(float));
    for (size_t i = 0; i < side * side; ++i) {
        const float weight = around(i / side, y, down, side) * around(i % side, x, across, side) / all;
        if (weight == 0) continue;
        lw_unpack_row(&w->model->position_embedding, i, row);
        for (size_t k = 0; k < hidden; ++k) sum[k] = fmaf(weight, row[k], sum[k]);
    }
    lw_add_vector(to, sum, hidden);
}

// Adds the row of positions of the patch in row y and column x of the picture.
static void add_position(const lw_worker* w, size_t y, size_t x, float* to) {
    const lw_picture* picture = &w->s->seeing.picture;
    const size_t hidden = w->c->hidden_size, patch = w->c->patches.side, across = picture->width / patch;
    const lw_matrix* table = &w->model->position_embedding;
    float *row = w->scratch, *sum = row + hidden;
    if (w->c->patches.positions == LW_POSITIONS_SQUARE) {
        lw_unpack_row(table, y * across + x, row);
        lw_add_vector(to, row, hidden);
        return;
    }
    if (w->c->patches.positions == LW_POSITIONS_TABLES) {
        lw_unpack_row(table, x, row);
        lw_add_vector(to, row, hidden);
        lw_unpack_row(table, w->c->n_positions / 2 + y, row);
        lw_add_vector(to, row, hidden);
        return;
    }
    if (w->c->patches.positions == LW_POSITIONS_RESAMPLED) {
        add_resampled(w, y, x, picture->height / patch, across, to);
        return;
    }
    const size_t side = (size_t)sqrt((double)w->c->n_positions);
    size_t ys[2], xs[2];
    const float down = between(y, picture->height / patch, side, &ys[0], &ys[1]);
    const float right = between(x, across, side, &xs[0], &xs[1]);
    for (size_t i = 0; i < 4; ++i) {
        const float weight = (i / 2 ? down : 1 - down) * (i % 2 ? right : 1 - right);
        lw_unpack_row(table, ys[i / 2] * side + xs[i % 2], row);
        for (size_t k = 0; k < hidden; ++k) sum[k] = i == 0 ? weight * row[k] : fmaf(weight, row[k], sum[k]);
    }
    lw_add_vector(to, sum, hidden);
}

static void normalize_patch(const lw_worker* w, float* x) {
    lw_normalize_row(w, x, x, w->model->patches_norm, w->model->patches_norm_bias, w->c->hidden_size);
}

static void embed_patches(lw_worker* w) {
    const size_t hidden = w->c->hidden_size;
    const lw_activations patches = read_patches(w);
    const lw_product product = lw_product_at(w, &w->model->patches, w->b->x, false);
    lw_multiply(w, LW_OP_EMBED, &product, 1, &patches);
    lw_taker items = lw_this_phase(w, w->rows);
    for (size_t row, y, x; lw_take_item(&items, &row);) {
        float* to = w->b->x + row * hidden;
        lw_add_vector(to, w->model->patches_bias, hidden);
        patch_at(w, w->b->position[row], &y, &x);
        if (w->c->patches.norm_first) normalize_patch(w, to);
        if (w->c->n_positions > 0) add_position(w, y, x, to);
        if (w->c->patches.norm && !w->c->patches.norm_first) normalize_patch(w, to);
        lw_charge_row(w, LW_OP_EMBED, 2 * hidden, 0);
    }
    lw_end_phase(w, LW_OP_EMBED);
}

// A phase: RoPE angles of the patches, by row and column.
static void turn_patches(lw_worker* w) {
    lw_taker items = lw_this_phase(w, w->rows);
    for (size_t row, y, x; lw_take_item(&items, &row);) {
        patch_at(w, w->b->position[row], &y, &x);
        const uint32_t at[LW_AXES] = {(uint32_t)y, (uint32_t)x, 0};
        lw_fill_angles(w, row, at);
    }
    lw_end_phase(w, LW_OP_EMBED);
}

// One thread's part of a unit.
static void work(lw_worker* w) {
    const uint32_t stage = w->s->seeing.stage, index = stage > 0 ? (stage - 1) / 2 : 0;
    const lw_layer* layer = &w->model->layers[index];
    if (stage == 0) {
        embed_patches(w);
    } else if (stage == last_stage(w->c)) {
        lw_pool_texts(w);
    } else if (stage % 2 == 1) {
        if (w->c->n_ropes > 0) turn_patches(w);
        layer->config.clamps ? lw_multiply_clamped_inputs(w, layer) : lw_multiply_inputs(w, layer, index);
        lw_begin_attention(w, layer, index);
    } else {
        if (layer->config.clamps) {
            lw_run_clamped(w, layer, index);
        } else {
            lw_end_attention(w, layer, index);
            lw_run_parts(w, layer, index);
        }
        for (uint32_t tap = 0; tap < w->c->patches.n_taps; ++tap)
            if (w->c->patches.taps[tap] == index) lw_tap_rows(w, tap);
    }
}

// Queries of a patch in the layer of the stage.
static size_t q_size(const lw_session* s) {
    const uint32_t stage = s->seeing.stage, last = last_stage(&s->model->config);
    const uint32_t index = stage > 0 && stage < last ? (stage - 1) / 2 : 0;
    const lw_attention_config* c = &s->model->layers[index].config.attention;
    return (size_t)c->n_heads * c->head_dim;
}

static lw_status run_unit(lw_session* s) {
    lw_seeing* at = &s->seeing;
    const lw_model_config* c = &s->model->config;
    const uint32_t left = at->n_patches - at->first;
    const uint32_t n = left < s->config.max_batch_tokens ? left : s->config.max_batch_tokens, start[] = {0, n};
    const lw_batch batch = {.n_seqs = 1,
                            .n_logits = n,
                            .block_table_stride = s->config.n_blocks,
                            .query_start = start,
                            .context_lens = &at->first,
                            .block_tables = s->all_blocks};
    const lw_texts texts = {.n_texts = 1, .start = start, .pooling = LW_POOL_NONE, .seen = &at->n_patches};
    s->texts = &texts;
    s->b.x = at->x + at->first * (size_t)c->hidden_size;
    if (c->n_layers > 0) lw_attention_of(s)->q = at->q + at->first * q_size(s);
    float* rows = at->out + at->first / lw_block_patches(c) * (size_t)lw_model_dims(s->model);
    const lw_status status = lw_run_rows(s, &batch, rows, NULL, work);
    s->texts = NULL;
    at->first += n;
    if (at->first < at->n_patches) return status;
    at->first = 0;
    if (at->stage++ == last_stage(c)) at->n_patches = 0;
    return status;
}

static lw_status check_tower(const char* what, const lw_session* s, const void* one, const void* other) {
    if (s == NULL || one == NULL || other == NULL) return lw_fail(LW_ERR_ARGUMENT, "%s: no argument may be NULL", what);
    if (!lw_is_tower(&s->model->config))
        return lw_fail(LW_ERR_ARGUMENT, "%s: the session's model reads tokens, must be a tower", what);
    return LW_OK;
}

static lw_status check_picture(const lw_session* s, const lw_picture* picture) {
    const lw_model_config* c = &s->model->config;
    const uint32_t side = c->patches.side, block = side * c->patches.merge;
    const uint32_t held = s->config.n_blocks * (uint64_t)LW_BLOCK_TOKENS < c->context_length
                              ? s->config.n_blocks * LW_BLOCK_TOKENS
                              : c->context_length;
    const uint64_t n = (uint64_t)(picture->height / side) * (picture->width / side);
    if (picture->height < 1 || picture->width < 1 || picture->height % block != 0 || picture->width % block != 0 ||
        n > held)
        return lw_fail(LW_ERR_ARGUMENT, "picture: %u x %u pixels, must be multiples of %u, and at most %u patches",
                       picture->height, picture->width, block, held);
    const uint64_t longest = (picture->height > picture->width ? picture->height : picture->width) / side;
    if (c->patches.positions == LW_POSITIONS_TABLES && longest > c->n_positions / 2)
        return lw_fail(LW_ERR_ARGUMENT, "picture: %u x %u pixels, must have at most %u patches on a side",
                       picture->height, picture->width, c->n_positions / 2);
    const bool is_square = c->n_positions > 0 && c->patches.positions == LW_POSITIONS_SQUARE;
    if (is_square && (picture->height != picture->width || n != c->n_positions))
        return lw_fail(LW_ERR_ARGUMENT, "picture: %u x %u pixels, must be a square of %u patches", picture->height,
                       picture->width, c->n_positions);
    return LW_OK;
}

lw_status lw_see_begin(lw_session* session, const lw_picture* picture, float* rows) {
    LW_RETURN_IF_FAILED(check_tower("lw_see_begin", session, picture, rows));
    if (picture->pixels == NULL) return lw_fail(LW_ERR_ARGUMENT, "lw_see_begin: pixels must not be NULL");
    LW_RETURN_IF_FAILED(check_picture(session, picture));
    const lw_patches* c = &session->model->config.patches;
    lw_seeing* at = &session->seeing;
    for (int colour = 0; colour < 3; ++colour)
        for (int v = 0; v < 256; ++v)
            at->values[colour][v] = (float)((v / 255.0 - (double)c->mean[colour]) / (double)c->deviation[colour]);
    at->picture = *picture;
    at->out = rows;
    at->stage = at->first = 0;
    at->n_patches = picture->height / c->side * (picture->width / c->side);
    return LW_OK;
}

lw_status lw_see_advance(lw_session* session, uint64_t budget_ns, uint32_t* done) {
    LW_RETURN_IF_FAILED(check_tower("lw_see_advance", session, done, done));
    if (session->seeing.n_patches == 0) return lw_fail(LW_ERR_ARGUMENT, "lw_see_advance: no picture has been begun");
    const uint64_t start = lw_profile_now();
    lw_status status;
    do {
        status = run_unit(session);
    } while (status == LW_OK && session->seeing.n_patches > 0 && lw_profile_now() - start < budget_ns);
    lw_count_native(session, start);
    if (status != LW_OK) session->seeing.n_patches = 0;
    *done = status == LW_OK && session->seeing.n_patches == 0;
    return status;
}
