// Checks of a step's arguments. All checks come before anything is run or written.
#include <string.h>

#include "kinds/entries.h"
#include "kinds/index.h"
#include "status.h"
#include "step/run.h"

static const uint64_t most_tokens = UINT64_C(1) << 31;  // in a sequence: positions stay far below 2^32

static lw_status check_arrays(const lw_batch* b) {
    const struct {
        const char* name;
        const void* array;
        bool needed;
    } arrays[] = {{"token_ids", b->token_ids, true},
                  {"query_start", b->query_start, true},
                  {"context_lens", b->context_lens, true},
                  {"block_tables", b->block_tables, true},
                  {"logit_rows", b->logit_rows, b->n_logits > 0},
                  {"block_copies", b->block_copies, b->n_block_copies > 0},
                  {"state_copies", b->state_copies, b->n_state_copies > 0}};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; ++i)
        if (arrays[i].needed && arrays[i].array == NULL)
            return lw_fail(LW_ERR_ARGUMENT, "batch: %s must not be NULL", arrays[i].name);
    return LW_OK;
}

static lw_status check_sequence(const lw_session* s, const lw_batch* b, uint32_t sequence) {
    const uint64_t begin = b->query_start[sequence], end = b->query_start[sequence + 1];
    if (end < begin) return lw_fail(LW_ERR_ARGUMENT, "batch: query_start[%u] descends", sequence + 1);
    const uint64_t tokens = b->context_lens[sequence] + (end - begin);
    const uint64_t blocks = (tokens + LW_BLOCK_TOKENS - 1) / LW_BLOCK_TOKENS;
    if (tokens > most_tokens)
        return lw_fail(LW_ERR_ARGUMENT, "batch: sequence %u has %llu tokens, must be at most %llu", sequence,
                       (unsigned long long)tokens, (unsigned long long)most_tokens);
    if (s->model->config.n_positions > 0 && tokens > s->model->config.n_positions)
        return lw_fail(LW_ERR_ARGUMENT, "batch: sequence %u has %llu tokens, the model has positions for %u", sequence,
                       (unsigned long long)tokens, s->model->config.n_positions);
    if (tokens > lw_index_room(s))
        return lw_fail(LW_ERR_ARGUMENT, "batch: sequence %u has %llu tokens, the index of attention has room for %llu",
                       sequence, (unsigned long long)tokens, (unsigned long long)lw_index_room(s));
    if (tokens > lw_shared_room(s))
        return lw_fail(LW_ERR_ARGUMENT, "batch: sequence %u has %llu tokens, what queries see has room for %llu",
                       sequence, (unsigned long long)tokens, (unsigned long long)lw_shared_room(s));
    if (blocks > b->block_table_stride)
        return lw_fail(LW_ERR_ARGUMENT, "batch: sequence %u has %llu tokens, its table of %u blocks holds fewer",
                       sequence, (unsigned long long)tokens, b->block_table_stride);
    // A head that reads the model's keys is one token behind, with windows one token shorter.
    const bool is_behind = b->runs != LW_RUN_MODEL && s->model->config.reader_layers > 0;
    for (uint32_t group = 0; group < s->groups.n_groups; ++group) {
        const uint32_t* table = lw_block_table(s, b, sequence, group);
        const uint32_t all = s->groups.windows[group], window = is_behind && all > 1 ? all - 1 : all;
        const lw_tokens seen = lw_attention_tokens(b->context_lens[sequence], (size_t)(end - begin), window, 0);
        for (uint64_t i = seen.first / LW_BLOCK_TOKENS; i < blocks; ++i)
            if (table[i] >= s->config.n_blocks)
                return lw_fail(LW_ERR_ARGUMENT, "batch: sequence %u, block %u, the cache has %u", sequence, table[i],
                               s->config.n_blocks);
    }
    return LW_OK;
}

static lw_status check_token(const lw_session* s, uint32_t id) {
    if ((id & LW_DRAWN_BEFORE) != 0 && (id & ~(uint32_t)LW_DRAWN_BEFORE) >= s->n_drawn)
        return lw_fail(LW_ERR_ARGUMENT, "batch: draw %u of the step before is asked for, which has %u",
                       id & ~(uint32_t)LW_DRAWN_BEFORE, s->n_drawn);
    if ((id & LW_DRAWN_BEFORE) == 0 && id >= s->model->config.vocab_size)
        return lw_fail(LW_ERR_ARGUMENT, "batch: token id %u, the vocabulary has %u", id, s->model->config.vocab_size);
    return LW_OK;
}

static lw_status check_logit_rows(const lw_session* s, const lw_batch* b, uint32_t tokens) {
    if (b->n_logits > s->config.max_batch_logits)
        return lw_fail(LW_ERR_ARGUMENT, "batch: %u rows of logits, must be at most %u", b->n_logits,
                       s->config.max_batch_logits);
    for (uint32_t i = 0; i < b->n_logits; ++i)
        if (b->logit_rows[i] >= tokens || (i > 0 && b->logit_rows[i] <= b->logit_rows[i - 1]))
            return lw_fail(LW_ERR_ARGUMENT, "batch: logit_rows[%u] is %u, must ascend and be below %u", i,
                           b->logit_rows[i], tokens);
    return LW_OK;
}

static lw_status check_copies(const lw_session* s, const lw_batch* b) {
    for (size_t i = 0; i < 2 * (size_t)b->n_block_copies; ++i)
        if (b->block_copies[i] >= s->config.n_blocks)
            return lw_fail(LW_ERR_ARGUMENT, "batch: block_copies[%zu] has block %u, the cache has %u", i / 2,
                           b->block_copies[i], s->config.n_blocks);
    return LW_OK;
}

static lw_status check_guesses(const lw_states* states, const lw_batch* b, uint32_t sequence) {
    const uint32_t guesses = b->guesses != NULL ? b->guesses[sequence] : 0;
    const uint32_t accepted = b->accepted != NULL ? b->accepted[sequence] : 0;
    const uint32_t tokens = b->query_start[sequence + 1] - b->query_start[sequence];
    if (guesses > states->max_guesses || (guesses > 0 && guesses >= tokens))
        return lw_fail(LW_ERR_ARGUMENT, "batch: sequence %u has %u guesses, must be below its %u tokens, at most %u",
                       sequence, guesses, tokens, states->max_guesses);
    if (accepted == 0) return LW_OK;
    const uint32_t known = states->max_guesses > 0 ? states->n_copied[lw_table_row(b, sequence)] : 0;
    if (accepted > known)
        return lw_fail(LW_ERR_ARGUMENT, "batch: %u guesses of sequence %u are accepted, its place remembers %u",
                       accepted, sequence, known);
    if (accepted >= b->context_lens[sequence])
        return lw_fail(LW_ERR_ARGUMENT, "batch: %u guesses of sequence %u are accepted, it has a context of %u",
                       accepted, sequence, b->context_lens[sequence]);
    return LW_OK;
}

static lw_status check_states(const lw_session* s, const lw_batch* b) {
    const lw_states* states = &s->states;
    for (size_t i = 0; i < 2 * (size_t)b->n_state_copies; ++i)
        if (b->state_copies[i] >= states->n_places)
            return lw_fail(LW_ERR_ARGUMENT, "batch: state_copies[%zu] has place %u, the session has %u", i / 2,
                           b->state_copies[i], states->n_places);
    if (states->n_places == 0) {
        for (uint32_t i = 0; i < b->n_seqs; ++i) LW_RETURN_IF_FAILED(check_guesses(states, b, i));
        return LW_OK;
    }
    lw_count_copied_guesses(states, b);
    memset(states->is_used, 0, states->n_places);
    for (uint32_t i = 0; i < b->n_seqs; ++i) {
        const uint32_t place = lw_table_row(b, i);
        if (place >= states->n_places)
            return lw_fail(LW_ERR_ARGUMENT, "batch: sequence %u has its state in place %u, the session has %u", i,
                           place, states->n_places);
        if (states->is_used[place])
            return lw_fail(LW_ERR_ARGUMENT, "batch: sequence %u has its state in place %u, as one before it", i, place);
        states->is_used[place] = 1;
        LW_RETURN_IF_FAILED(check_guesses(states, b, i));
    }
    return LW_OK;
}

// Of a prediction head that guesses blocks.
static lw_status check_blocks(const lw_session* s, const lw_batch* b) {
    const uint32_t most = lw_model_mtp(s->model)->config.head.block;
    if (b->runs == LW_RUN_HEAD_AGAIN)
        return lw_fail(LW_ERR_ARGUMENT, "batch: runs is %d, must be 0 or %d of a head that guesses blocks",
                       (int)b->runs, LW_RUN_HEAD);
    if (b->n_logits == 0 || b->n_state_copies > 0)
        return lw_fail(LW_ERR_ARGUMENT,
                       "batch: %u rows of logits and %u copies of states, of a head that guesses blocks must be 1 or"
                       " more, and 0",
                       b->n_logits, b->n_state_copies);
    for (uint32_t i = 0; i < b->n_seqs; ++i) {
        const uint32_t n = b->query_start[i + 1] - b->query_start[i];
        if (n < 2 || n > most || b->context_lens[i] == 0)
            return lw_fail(LW_ERR_ARGUMENT,
                           "batch: sequence %u has %u tokens behind %u, for a head that guesses blocks must be 2 to %u"
                           " behind some",
                           i, n, b->context_lens[i], most);
    }
    return LW_OK;
}

// Checks what a batch for the prediction head must be.
static lw_status check_head(const lw_session* s, const lw_batch* b) {
    if ((unsigned)b->runs > LW_RUN_HEAD_AGAIN)
        return lw_fail(LW_ERR_ARGUMENT, "batch: runs is %d, must be 0 to %d", (int)b->runs, LW_RUN_HEAD_AGAIN);
    const uint32_t skips = b->runs == LW_RUN_MODEL && lw_guesses_blocks(s->model);
    if (b->skips_head > skips)
        return lw_fail(LW_ERR_ARGUMENT, "batch: skips_head is %u, must be 0%s", b->skips_head,
                       skips ? " or 1" : " but in a step of a model with a head that guesses blocks");
    if (b->runs == LW_RUN_MODEL) return LW_OK;
    if (lw_model_mtp(s->model) == NULL)
        return lw_fail(LW_ERR_ARGUMENT, "batch: runs is %d, must be 0: the model has no prediction head", (int)b->runs);
    if (b->rows != NULL)
        return lw_fail(LW_ERR_ARGUMENT, "batch: rows must be NULL for a prediction head, which reads tokens");
    if (lw_guesses_blocks(s->model)) return check_blocks(s, b);
    if (b->n_logits != b->n_seqs || b->n_state_copies > 0)
        return lw_fail(LW_ERR_ARGUMENT,
                       "batch: %u rows of logits and %u copies of states, of a prediction head must be %u and 0",
                       b->n_logits, b->n_state_copies, b->n_seqs);
    for (uint32_t i = 0; i < b->n_seqs; ++i)
        if (b->query_start[i + 1] - b->query_start[i] != 1 || b->context_lens[i] == 0)
            return lw_fail(LW_ERR_ARGUMENT,
                           "batch: sequence %u has %u tokens behind %u, for a prediction head must be 1 behind some", i,
                           b->query_start[i + 1] - b->query_start[i], b->context_lens[i]);
    return LW_OK;
}

// The least window of layers that see what lw_batch.sees says; 0 = all see everything.
static uint32_t least_window(const lw_model* model) {
    uint32_t least = 0;
    for (uint32_t i = 0; i < model->config.n_layers; ++i) {
        const lw_attention_config* c = &model->layers[i].config.attention;
        if (c->both_ways == 2 && c->window > 0 && (least == 0 || c->window < least)) least = c->window;
    }
    return least;
}

static lw_status check_sees(const lw_session* s, const lw_batch* b) {
    if (b->sees == NULL) return LW_OK;
    const uint32_t window = least_window(s->model);
    for (uint32_t i = 0; i < b->n_seqs; ++i) {
        const uint64_t begin = b->query_start[i], end = b->query_start[i + 1], all = b->context_lens[i] + (end - begin);
        for (uint64_t row = begin; row < end; ++row) {
            const uint64_t own = b->context_lens[i] + (row - begin), sees = b->sees[row];
            if (sees != 0 && (sees <= own || sees > all || (window > 0 && sees > own + window)))
                return lw_fail(LW_ERR_ARGUMENT,
                               "batch: sees[%llu] is %llu, must be 0 or above the token's index %llu, at most the"
                               " sequence's %llu tokens and within a window of %u (0 = any)",
                               (unsigned long long)row, (unsigned long long)sees, (unsigned long long)own,
                               (unsigned long long)all, window);
        }
    }
    return LW_OK;
}

static lw_status check_positions(const lw_batch* b, uint32_t tokens) {
    for (size_t i = 0; b->positions != NULL && i < (size_t)LW_AXES * tokens; ++i)
        if (b->positions[i] > most_tokens)
            return lw_fail(LW_ERR_ARGUMENT, "batch: positions[%zu] is %u, must be at most %llu", i, b->positions[i],
                           (unsigned long long)most_tokens);
    return LW_OK;
}

static lw_status check_batch(const lw_session* s, const lw_batch* b) {
    LW_RETURN_IF_FAILED(check_arrays(b));
    if (b->n_seqs == 0 || b->query_start[0] != 0)
        return lw_fail(LW_ERR_ARGUMENT, "batch: it must have a sequence, and query_start[0] must be 0");
    for (uint32_t i = 0; i < b->n_seqs; ++i) LW_RETURN_IF_FAILED(check_sequence(s, b, i));
    const uint32_t tokens = b->query_start[b->n_seqs];
    if (tokens < 1 || tokens > s->config.max_batch_tokens)
        return lw_fail(LW_ERR_ARGUMENT, "batch: %u tokens, must be 1 to %u", tokens, s->config.max_batch_tokens);
    for (uint32_t i = 0; i < tokens; ++i) LW_RETURN_IF_FAILED(check_token(s, b->token_ids[i]));
    LW_RETURN_IF_FAILED(check_logit_rows(s, b, tokens));
    LW_RETURN_IF_FAILED(check_copies(s, b));
    LW_RETURN_IF_FAILED(check_head(s, b));
    LW_RETURN_IF_FAILED(check_states(s, b));
    LW_RETURN_IF_FAILED(check_sees(s, b));
    LW_RETURN_IF_FAILED(check_positions(b, tokens));
    return lw_check_adapters(s, b);
}

lw_status lw_check_step(const lw_session* s, const lw_batch* batch, const float* logits, const lw_sampled* drawn) {
    if (s == NULL || batch == NULL || (logits == NULL && batch->n_logits > 0))
        return lw_fail(LW_ERR_ARGUMENT, "a step's session, batch and logits must not be NULL");
    if (s->model->config.pooled)
        return lw_fail(LW_ERR_ARGUMENT, "a step makes logits, and the session's model is pooled: lw_encode runs it");
    if (batch->draws != NULL && batch->n_logits > 0 && drawn == NULL)
        return lw_fail(LW_ERR_ARGUMENT, "a step's drawn must not be NULL when its batch has draws");
    LW_RETURN_IF_FAILED(check_batch(s, batch));
    return lw_check_draws(s, batch);
}
