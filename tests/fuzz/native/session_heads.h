// Steps of a prediction head, and what they must give.
#ifndef LW_FUZZ_SESSION_HEADS_H
#define LW_FUZZ_SESSION_HEADS_H

#include "session_steps.h"

enum { MAX_HEAD_STEPS = 3 };

// The head runs on some sequences, then on what it made of them itself: one token of each in a step.
typedef struct heads {
    uint32_t n_rows, n_steps, n_groups;
    uint32_t n_known;  // tokens of each row that steps so far have had, that of the next step included
    uint32_t sequence[SEQUENCES], context[SEQUENCES], accepted[SEQUENCES];
    uint32_t tokens[SEQUENCES][MAX_HEAD_STEPS];
    sequence sequences[SEQUENCES];
    const lw_adapter* adapters[SEQUENCES];
    bool has_adapters;
} heads;

// Guesses that were not accepted are given up: the head writes over their keys and values.
static inline void take_heads(fuzz_input* in, heads* h, const lw_session_config* c, sequence* sequences,
                              uint32_t n_groups, const lw_adapter* const* adapters) {
    *h = (heads){.n_steps = 1 + take_below(in, MAX_HEAD_STEPS), .n_groups = n_groups, .has_adapters = adapters != NULL};
    const uint32_t turn = take_below(in, SEQUENCES), given = take_byte(in) | 1;
    for (uint32_t i = 0; i < SEQUENCES; ++i) {
        const uint32_t index = (i + turn) % SEQUENCES;
        sequence* q = &sequences[index];
        if (!(given >> i & 1) || q->n == 0 || q->n + q->guesses + h->n_steps > MAX_TOKENS) continue;
        if (h->n_rows == c->max_batch_tokens || h->n_rows == c->max_batch_logits) continue;
        const uint32_t row = h->n_rows++;
        q->guesses = h->accepted[row] = q->guesses > 0 ? take_below(in, q->guesses + 1) : 0;
        h->sequence[row] = index;
        h->context[row] = q->n + q->guesses;
        h->adapters[row] = q->adapter > 0 && adapters != NULL ? adapters[q->adapter - 1] : NULL;
        h->sequences[row] = *q;
    }
}

static inline void take_head_step(fuzz_input* in, heads* h, one_step* s, uint32_t n_drawn, const uint32_t* drawn) {
    const uint32_t now = h->n_known - 1;
    s->n_groups = h->n_groups;
    s->batch = batch_of(s, h->has_adapters);
    s->batch.n_seqs = s->batch.n_logits = h->n_rows;
    s->batch.runs = now == 0 ? LW_RUN_HEAD : LW_RUN_HEAD_AGAIN;
    for (uint32_t row = 0; row < h->n_rows; ++row) {
        const uint32_t index = h->sequence[row], token = take_token(in, n_drawn);
        s->sequence[row] = s->table_rows[row] = index;
        s->token_ids[row] = token;
        h->tokens[row][now] = token & LW_DRAWN_BEFORE ? drawn[token - LW_DRAWN_BEFORE] : token;
        s->query_start[row + 1] = row + 1;
        s->logit_rows[row] = row;
        s->context_lens[row] = h->context[row] + now;
        s->accepted[row] = h->accepted[row];
        s->adapters[row] = h->adapters[row];
        for (uint32_t group = 0; group < s->n_groups; ++group)
            for (uint32_t i = 0; i < SEQUENCE_BLOCKS; ++i)
                s->tables[(index * s->n_groups + group) * SEQUENCE_BLOCKS + i] =
                    h->sequences[row].table[i] + group * BLOCKS;
    }
    if (!take_flag(in)) return;
    s->batch.draws = s->draws;
    for (uint32_t row = 0; row < h->n_rows; ++row) take_draw(in, s, row);
}

// Puts one fault into a step of the head.
static inline void spoil_head(fuzz_input* in, one_step* s) {
    lw_batch* b = &s->batch;
    const uint32_t row = take_below(in, b->n_seqs);
    switch (take_below(in, 4)) {
        case 0:
            s->context_lens[row] = 0, s->fault = "no context";
            break;
        case 1:
            --b->n_logits, s->fault = "a row without logits";
            break;
        case 2:
            s->state_copies[0] = s->state_copies[1] = 0;
            b->state_copies = s->state_copies;
            b->n_state_copies = 1;
            s->fault = "copies of states";
            break;
        default:
            s->guesses[row] = 1;
            b->guesses = s->guesses;
            s->fault = "a guess";
    }
}

// One sequence alone, at level scalar: the model on all its tokens, then the head on each of its own.
static inline void compare_head(const heads* h, one_step* s, uint32_t row, uint32_t variant, lw_type kv_type) {
    static const uint32_t table[SEQUENCE_BLOCKS] = {2, 0, 1}, first_row[1] = {0};
    const uint32_t context = h->context[row], no_context[1] = {0}, all[2] = {0, context}, one[2] = {0, 1};
    const sequence* q = &h->sequences[row];
    lw_session* alone = reference_session(variant, kv_type);
    const lw_adapter* adapter = q->adapter > 0 ? tiny_adapters[variant][0][q->adapter - 1] : NULL;
    const lw_batch model = {.n_seqs = 1,
                            .block_table_stride = SEQUENCE_BLOCKS,
                            .token_ids = q->tokens,
                            .query_start = all,
                            .context_lens = no_context,
                            .block_tables = table,
                            .adapters = &adapter};
    lw_status status = lw_step(alone, &model, NULL, NULL);
    FUZZ_CHECK(status == LW_OK, "alone a sequence fails: %s", lw_last_error());
    static float logits[TINY_VOCAB];
    lw_sampled result;
    for (uint32_t i = 0; i < h->n_known; ++i) {
        const uint32_t behind[1] = {context + i};
        lw_draw draw = s->batch.draws != NULL ? known_draw(s, row, &h->tokens[row][i]) : (lw_draw){0};
        const bool draws = s->batch.draws != NULL && i + 1 == h->n_known;
        const lw_batch head = {.n_seqs = 1,
                               .n_logits = 1,
                               .block_table_stride = SEQUENCE_BLOCKS,
                               .token_ids = &h->tokens[row][i],
                               .query_start = one,
                               .context_lens = behind,
                               .block_tables = table,
                               .logit_rows = first_row,
                               .draws = draws ? &draw : NULL,
                               .adapters = &adapter,
                               .runs = i == 0 ? LW_RUN_HEAD : LW_RUN_HEAD_AGAIN};
        status = lw_step(alone, &head, logits, &result);
        FUZZ_CHECK(status == LW_OK, "alone a head fails: %s", lw_last_error());
    }
    FUZZ_CHECK(memcmp(logits, s->logits + row * TINY_VOCAB, sizeof logits) == 0,
               "the head's logits %u behind %u tokens differ from those alone", h->n_known, context);
    if (s->batch.draws != NULL)
        FUZZ_CHECK(same_draw(&result, &s->results[row]), "the head draws %u, alone %u", s->results[row].token,
                   result.token);
}

static inline void compare_heads(const heads* h, one_step* s, uint32_t variant, lw_type kv_type) {
    for (uint32_t row = 0; row < h->n_rows; ++row) compare_head(h, s, row, variant, kv_type);
}

#endif
