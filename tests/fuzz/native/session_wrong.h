// Calls that are wrong: each fault must be refused.
#ifndef LW_FUZZ_SESSION_WRONG_H
#define LW_FUZZ_SESSION_WRONG_H

#include "session_steps.h"

// Something that a draw may not say.
static inline const char* spoil_draw(fuzz_input* in, one_step* s, uint32_t row) {
    const float nan = __builtin_nanf(""), inf = __builtin_inff();
    lw_draw* d = &s->draws[row];
    lw_sampling* p = &s->samplings[row];
    switch (take_below(in, 20)) {
        case 16:
            d->n_history = 1;
            d->n_prompt = 0;
            return d->history = NULL, "history that is NULL";
        case 17:
            p->n_bias = 1;
            return p->bias_ids = NULL, "bias_ids that are NULL";
        case 18:
            p->n_bias = 1;
            return p->bias_values = NULL, "bias_values that are NULL";
        case 19:
            p->n_bias = 1;
            return s->bias_values[row][0] = take_flag(in) ? nan : inf, "bias_values";
        case 0:
            return d->sampling = NULL, "sampling";
        case 1:
            return p->temperature = take_flag(in) ? nan : -1, "temperature";
        case 2:
            return p->temperature = inf, "temperature";
        case 3:
            return p->top_p = take_flag(in) ? nan : 0, "top_p";
        case 4:
            return p->top_p = 1.5f, "top_p";
        case 5:
            return p->min_p = take_flag(in) ? nan : 2, "min_p";
        case 6:
            return p->repetition_penalty = take_flag(in) ? nan : 0, "repetition_penalty";
        case 7:
            return p->repetition_penalty = inf, "repetition_penalty";
        case 8:
            return p->presence_penalty = inf, "presence_penalty";
        case 9:
            return p->frequency_penalty = nan, "frequency_penalty";
        case 10:
            return p->n_top_logprobs = LW_MAX_TOP_LOGPROBS + 1, "n_top_logprobs";
        case 11:
            return d->n_prompt = d->n_history + 1, "n_prompt";
        case 12:
            return d->forced_token = TINY_VOCAB, "forced_token";
        case 13:
            d->n_history = 1;
            d->n_prompt = 0;
            return s->history[row][0] = TINY_VOCAB, "history";
        case 14:
            p->n_bias = 2;
            return s->bias_ids[row][1] = UINT32_MAX, "bias_ids";
        default:
            return d->forced_token = INT64_MAX, "forced_token";
    }
}

static inline const char* spoil_rows(fuzz_input* in, one_step* s, const lw_session_config* c) {
    lw_batch* b = &s->batch;
    const uint32_t row = take_below(in, b->n_logits);
    switch (take_below(in, 4)) {
        case 0:
            return s->logit_rows[row] = UINT32_MAX, "logit_rows past the tokens";
        case 1:
            if (b->n_logits < 2) return NULL;
            return s->logit_rows[1] = s->logit_rows[0], "logit_rows that do not ascend";
        case 2:
            return b->n_logits = c->max_batch_logits + 1 + take_byte(in), "n_logits";
        default:
            return b->draws != NULL ? spoil_draw(in, s, row) : NULL;
    }
}

// An array that is not there.
static inline const char* spoil_array(fuzz_input* in, one_step* s) {
    lw_batch* b = &s->batch;
    switch (take_below(in, 6)) {
        case 0:
            return b->token_ids = NULL, "token_ids that are NULL";
        case 1:
            return b->query_start = NULL, "query_start that is NULL";
        case 2:
            return b->context_lens = NULL, "context_lens that are NULL";
        case 3:
            return b->block_tables = NULL, "block_tables that are NULL";
        case 4:
            return b->logit_rows = NULL, b->n_logits > 0 ? "logit_rows that are NULL" : NULL;
        default:
            b->n_block_copies = 1;
            return b->block_copies = NULL, "copies that are NULL";
    }
}

// Puts one fault into a step, which `s->fault` names; false if it has no place for that one.
static inline bool spoil(fuzz_input* in, one_step* s, const lw_session_config* c, uint32_t n_drawn) {
    lw_batch* b = &s->batch;
    const uint32_t row = take_below(in, b->n_seqs), tokens = s->query_start[b->n_seqs];
    s->fault = NULL;
    switch (take_below(in, 16)) {
        case 15:
            s->guesses[row] = c->max_guesses + 1 + take_byte(in), s->fault = "guesses";
            break;
        case 14:
            s->accepted[row] = c->max_guesses + 1 + take_byte(in), s->fault = "accepted";
            break;
        case 13:
            if (take_flag(in)) {
                b->runs = (lw_runs)((s->has_head ? LW_RUN_HEAD_AGAIN : LW_RUN_MODEL) + 1 + take_byte(in));
                s->fault = "runs";
                break;
            }
            s->state_copies[0] = s->has_states ? c->n_states + take_byte(in) : 0;
            s->state_copies[1] = 0;
            b->state_copies = s->state_copies;
            b->n_state_copies = 1;
            s->fault = "state_copies";
            break;
        case 12:
            s->fault = spoil_array(in, s);
            break;
        case 0:
            b->n_seqs = 0, s->fault = "n_seqs";
            break;
        case 1:
            s->query_start[0] = 1, s->fault = "query_start that begins late";
            break;
        case 2:
            s->query_start[row] = s->query_start[row + 1] + 1 + take_byte(in);
            s->fault = "query_start that descends";
            break;
        case 3:
            s->query_start[b->n_seqs] = UINT32_MAX, s->fault = "query_start past all";
            break;
        case 4:
            s->context_lens[row] = UINT32_MAX - take_byte(in), s->fault = "context_lens";
            break;
        case 5:
            s->token_ids[take_below(in, tokens)] = TINY_VOCAB + take_byte(in), s->fault = "token_ids";
            break;
        case 6:
            s->token_ids[take_below(in, tokens)] = LW_DRAWN_BEFORE + n_drawn, s->fault = "a draw";
            break;
        case 7:
            b->block_table_stride = 0;
            s->fault = "block_table_stride";
            break;
        case 8:
            if (s->query_start[row + 1] > s->query_start[row]) {
                const uint32_t last = s->context_lens[row] + s->query_start[row + 1] - s->query_start[row] - 1;
                const uint32_t group = s->table_rows[row] * s->n_groups + take_below(in, s->n_groups);
                s->tables[group * SEQUENCE_BLOCKS + last / LW_BLOCK_TOKENS] = c->n_blocks + take_byte(in);
                s->fault = "block_tables";
            }
            break;
        case 9:
            s->copies[0] = take_flag(in) ? c->n_blocks : 0;
            s->copies[1] = UINT32_MAX;
            b->block_copies = s->copies;
            b->n_block_copies = 1;
            s->fault = "copies";
            break;
        case 10: {  // of another model, or of a session that takes none
            const uint32_t other = take_below(in, TINY_VARIANTS);
            const bool is_foreign = tiny_model(other, 0) != NULL && c->max_adapter_rank == 0;
            if (is_foreign) {
                s->adapters[row] = tiny_adapters[other][0][0];
                b->adapters = s->adapters;
                s->fault = "adapters";
            }
            break;
        }
        default:
            if (b->n_logits > 0) s->fault = spoil_rows(in, s, c);
    }
    return s->fault != NULL;
}

// Calls whose arguments are missing.
static inline void wrong_calls(fuzz_input* in, lw_session* session) {
    lw_batch batch = {0};
    lw_counters counters;
    lw_finished finished;
    lw_profile_row rows[1];
    uint32_t n = 0;
    float logits[1];
    lw_status status = LW_OK;
    lw_adapter* adapter = NULL;
    lw_session* opened = NULL;
    const lw_session_config config = {0};
    lw_kv_layout layout;
    FUZZ_CHECK(lw_model_kv_layout(NULL, LW_F16, 0, &layout) == LW_ERR_ARGUMENT, "a layout of nothing");
    FUZZ_CHECK(lw_adapter_bytes(NULL) == 0, "bytes of nothing");
    switch (take_below(in, 20)) {
        case 14:
            status = lw_session_open(NULL, &config, &opened);
            break;
        case 15:
            status = lw_session_open(tiny_model(0, 0), NULL, &opened);
            break;
        case 16:
            status = lw_session_open(tiny_model(0, 0), &config, NULL);
            break;
        case 17:
            status = lw_session_open(tiny_model(0, 0), &config, &opened);
            break;
        case 18:
            status = lw_adapter_create(NULL, &adapter);
            break;
        case 19:
            status = lw_model_finish(tiny_model(0, 0));
            break;
        case 0:
            status = lw_step(NULL, &batch, logits, NULL);
            break;
        case 1:
            status = lw_step(session, NULL, logits, NULL);
            break;
        case 2:
            status = lw_session_start(NULL, &batch, logits, NULL);
            break;
        case 3:
            status = lw_session_start(session, NULL, logits, NULL);
            break;
        case 4:
            status = lw_session_await(NULL, 0, &n);
            break;
        case 5:
            status = lw_session_await(session, 0, NULL);
            break;
        case 6:
            status = lw_session_finish(NULL, &finished);
            break;
        case 7:
            status = lw_session_finish(session, NULL);
            break;
        case 8:
            status = lw_session_counters(session, NULL);
            break;
        case 9:
            status = lw_session_counters(NULL, &counters);
            break;
        case 10:
            status = lw_session_hold_draws(NULL);
            break;
        case 11:
            status = lw_session_release_draws(NULL);
            break;
        case 12:
            status = lw_session_profile(NULL, 1);
            break;
        default:
            status = lw_session_profile_rows(NULL, rows, 1, &n);
            break;
    }
    FUZZ_CHECK(status == LW_ERR_ARGUMENT, "a call without its arguments gives %d", (int)status);
}

#endif
