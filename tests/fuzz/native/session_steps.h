// Steps that are right: made from a fuzzer's bytes, and what they must give.
#ifndef LW_FUZZ_SESSION_STEPS_H
#define LW_FUZZ_SESSION_STEPS_H

#include "tiny_model.h"

enum {
    SEQUENCES = 3,
    SEQUENCE_BLOCKS = 3,
    MAX_GROUPS = 2,  // of layers, each with BLOCKS of the cache
    BLOCKS = 12,
    MAX_TOKENS = SEQUENCE_BLOCKS * LW_BLOCK_TOKENS,
    MAX_BATCH = 48,
    MAX_LOGITS = 12,
    MAX_HISTORY = 8,
    MAX_GUESSES = 4
};

typedef struct sequence {
    uint32_t tokens[MAX_TOKENS], n;  // in the cache, or on their way to it
    uint32_t guesses;                // behind those, which its state does not have
    uint32_t adapter;                // 0: none
    uint32_t table[SEQUENCE_BLOCKS];
} sequence;

// A batch and all that it points to, which stays where it is until the step is finished.
typedef struct one_step {
    lw_batch batch;
    uint32_t token_ids[MAX_BATCH], query_start[SEQUENCES + 1], context_lens[SEQUENCES];
    uint32_t n_groups;
    uint32_t tables[SEQUENCES * MAX_GROUPS * SEQUENCE_BLOCKS], table_rows[SEQUENCES], logit_rows[MAX_LOGITS];
    uint32_t copies[2 * MAX_GROUPS * SEQUENCE_BLOCKS], state_copies[2];
    uint32_t guesses[SEQUENCES], accepted[SEQUENCES];
    bool has_states;  // then a sequence's is in the place that its row of the tables has
    bool has_head;    // that predicts
    const lw_adapter* adapters[SEQUENCES];
    lw_draw draws[MAX_LOGITS];
    lw_sampling samplings[MAX_LOGITS];
    uint32_t masks[MAX_LOGITS][2], bias_ids[MAX_LOGITS][2], history[MAX_LOGITS][MAX_HISTORY + 1];
    float bias_values[MAX_LOGITS][2];
    float logits[MAX_LOGITS * TINY_VOCAB];
    lw_sampled results[MAX_LOGITS];
    uint32_t sequence[SEQUENCES];  // whose each row of the batch is
    sequence after[SEQUENCES];     // all sequences as the step leaves them: those of the session go on before it is run
    const char* fault;
} one_step;

static inline float take_choice(fuzz_input* in, const float* values, uint32_t n) { return values[take_below(in, n)]; }

static inline void take_draw(fuzz_input* in, one_step* s, uint32_t row) {
    static const float temperatures[] = {0, 1, 0.7f, 1e-6f, 1e6f}, shares[] = {1, 0.5f, 1e-9f, 1e-40f, 0.999f},
                       least[] = {0, 0.1f, 1, 1e-40f}, repetition[] = {1, 1.3f, 1e-30f, 1e30f},
                       penalties[] = {0, 0.5f, -2, 1e30f}, biases[] = {0, 5, -1e30f, -__builtin_inff()};
    lw_sampling* p = &s->samplings[row];
    *p = (lw_sampling){.temperature = take_choice(in, temperatures, 5),
                       .top_p = take_choice(in, shares, 5),
                       .min_p = take_choice(in, least, 4),
                       .top_k = take_below(in, 4) * take_below(in, 20),
                       .repetition_penalty = take_choice(in, repetition, 4),
                       .presence_penalty = take_choice(in, penalties, 4),
                       .frequency_penalty = take_choice(in, penalties, 4),
                       .n_bias = take_below(in, 3),
                       .bias_ids = s->bias_ids[row],
                       .bias_values = s->bias_values[row],
                       .seed = take_word(in),
                       .choice = take_byte(in),
                       .n_top_logprobs = take_below(in, LW_MAX_TOP_LOGPROBS + 1),
                       .want_logprob = take_flag(in)};
    for (uint32_t i = 0; i < 2; ++i) {
        s->bias_ids[row][i] = take_below(in, TINY_VOCAB);
        s->bias_values[row][i] = take_choice(in, biases, 4);
        s->masks[row][i] = take_word(in);
    }
    if (take_byte(in) < 80) p->mask = s->masks[row];
    lw_draw* d = &s->draws[row];
    *d = (lw_draw){.sampling = p, .position = take_byte(in), .history = s->history[row], .forced_token = -1};
    d->n_history = take_below(in, MAX_HISTORY + 1);
    d->n_prompt = take_below(in, d->n_history + 1);
    for (uint32_t i = 0; i < d->n_history; ++i) s->history[row][i] = take_below(in, TINY_VOCAB);
    if (take_byte(in) < 20) d->forced_token = take_below(in, TINY_VOCAB);
}

// Sequence `to` becomes a copy of whole blocks of `from`; where there are states, of all its tokens, or there is none.
static inline void take_copies(fuzz_input* in, one_step* s, sequence* sequences) {
    const uint32_t from = take_below(in, SEQUENCES), to = take_below(in, SEQUENCES);
    const uint32_t blocks = sequences[from].n / LW_BLOCK_TOKENS;
    if (from == to || blocks == 0 || (s->has_states && sequences[from].n % LW_BLOCK_TOKENS != 0)) return;
    for (uint32_t i = 0; i < s->n_groups * blocks; ++i) {
        s->copies[2 * i] = sequences[from].table[i % blocks] + i / blocks * BLOCKS;
        s->copies[2 * i + 1] = sequences[to].table[i % blocks] + i / blocks * BLOCKS;
    }
    memcpy(sequences[to].tokens, sequences[from].tokens, sizeof sequences[to].tokens);
    sequences[to].n = blocks * LW_BLOCK_TOKENS;
    sequences[to].adapter = sequences[from].adapter;
    sequences[to].guesses = 0;  // their keys and values are in no block that is copied
    s->batch.block_copies = s->copies;
    s->batch.n_block_copies = s->n_groups * blocks;
    if (!s->has_states) return;
    s->state_copies[0] = from;
    s->state_copies[1] = to;
    s->batch.state_copies = s->state_copies;
    s->batch.n_state_copies = 1;
}

static inline uint32_t take_token(fuzz_input* in, uint32_t n_drawn) {
    const uint8_t way = take_byte(in);
    return way >= 200 && n_drawn > 0 ? LW_DRAWN_BEFORE + way % n_drawn : way % TINY_VOCAB;
}

// One row of the batch: the next tokens of a sequence, none if there is no room.
static inline void take_row(fuzz_input* in, one_step* s, const lw_session_config* c, uint32_t index, sequence* q,
                            const lw_adapter* const* adapters, uint32_t n_drawn) {
    const uint32_t row = s->batch.n_seqs++, first = s->query_start[row];
    const uint32_t accepted = q->guesses > 0 ? take_below(in, q->guesses + 1) : 0;
    q->n += accepted;
    if (q->n == MAX_TOKENS) q->n = 0;
    if (q->n == 0) q->adapter = adapters != NULL ? take_below(in, 1 + TINY_ADAPTERS) : 0;
    s->adapters[row] = q->adapter > 0 && adapters != NULL ? adapters[q->adapter - 1] : NULL;
    s->sequence[row] = index;
    s->context_lens[row] = q->n;
    for (uint32_t group = 0; group < s->n_groups; ++group)
        for (uint32_t i = 0; i < SEQUENCE_BLOCKS; ++i)
            s->tables[(index * s->n_groups + group) * SEQUENCE_BLOCKS + i] = q->table[i] + group * BLOCKS;
    s->table_rows[row] = index;
    uint32_t n = take_below(in, 24);
    if (n > MAX_TOKENS - q->n) n = MAX_TOKENS - q->n;
    if (n > c->max_batch_tokens - first) n = c->max_batch_tokens - first;
    const uint32_t most = n > c->max_guesses ? c->max_guesses : n > 0 ? n - 1 : 0;
    q->guesses = most > 0 ? take_below(in, most + 1) : 0;
    s->guesses[row] = q->guesses;
    s->accepted[row] = s->context_lens[row] > 0 ? accepted : 0;
    for (uint32_t i = 0; i < n; ++i) {
        // Whatever a later step puts in the place of a guess stays there.
        const uint32_t token = take_token(in, i < n - q->guesses ? n_drawn : 0);
        s->token_ids[first + i] = q->tokens[q->n++] = token;
        const bool wanted = token % 4 == 0 || i + 1 == n;
        if (wanted && s->batch.n_logits < c->max_batch_logits) s->logit_rows[s->batch.n_logits++] = first + i;
    }
    s->query_start[row + 1] = first + n;
    q->n -= q->guesses;
}

static inline bool is_empty(const one_step* s) { return s->query_start[s->batch.n_seqs] == 0; }

// A batch that points to what a step has, without rows yet.
static inline lw_batch batch_of(one_step* s, bool has_adapters) {
    return (lw_batch){.block_table_stride = SEQUENCE_BLOCKS,
                      .token_ids = s->token_ids,
                      .query_start = s->query_start,
                      .context_lens = s->context_lens,
                      .block_tables = s->tables,
                      .logit_rows = s->logit_rows,
                      .table_rows = s->table_rows,
                      .adapters = has_adapters ? s->adapters : NULL,
                      .accepted = s->accepted};
}

// Adds the tokens and copies of the step to `sequences`; of one without tokens, which is refused, nothing.
static inline void take_step(fuzz_input* in, one_step* s, const lw_session_config* c, sequence* sequences,
                             const lw_adapter* const* adapters, bool is_ahead, uint32_t n_drawn) {
    sequence before[SEQUENCES];
    memcpy(before, sequences, sizeof before);
    s->batch = batch_of(s, adapters != NULL);
    s->batch.guesses = s->guesses;
    if (!is_ahead && take_byte(in) < 60) take_copies(in, s, sequences);
    const uint32_t turn = take_below(in, SEQUENCES), given = take_byte(in) | 1;
    for (uint32_t i = 0; i < SEQUENCES; ++i) {
        const uint32_t index = (i + turn) % SEQUENCES;
        if (given >> i & 1) take_row(in, s, c, index, &sequences[index], adapters, n_drawn);
    }
    if (is_empty(s)) memcpy(sequences, before, sizeof before);
    memcpy(s->after, sequences, sizeof s->after);
    if (!take_flag(in)) return;
    s->batch.draws = s->draws;
    for (uint32_t i = 0; i < s->batch.n_logits; ++i) take_draw(in, s, i);
}

// Puts what the step before drew in the place of what stood for it. No sequence of a step begun later has begun anew over
// that place: only one that is full does, with fewer tokens than would reach it.
static inline void resolve(const one_step* s, sequence* sequences, const uint32_t* drawn) {
    for (uint32_t row = 0; row < s->batch.n_seqs; ++row) {
        uint32_t* tokens = sequences[s->sequence[row]].tokens + s->context_lens[row];
        for (uint32_t i = s->query_start[row]; i < s->query_start[row + 1]; ++i)
            if (s->token_ids[i] & LW_DRAWN_BEFORE)
                tokens[i - s->query_start[row]] = drawn[s->token_ids[i] - LW_DRAWN_BEFORE];
    }
}

enum { KV_TYPES = 5 };
static const lw_type kv_types[KV_TYPES] = {LW_F16, LW_F32, LW_I8, LW_I4, LW_I8_I4};

static inline lw_session* reference_session(uint32_t variant, lw_type kv_type) {
    static lw_session* sessions[TINY_VARIANTS][KV_TYPES];
    uint32_t number = 0;
    while (kv_types[number] != kv_type) ++number;
    lw_session** kept = &sessions[variant][number];
    const lw_session_config config = {.n_threads = 1,
                                      .n_blocks = SEQUENCE_BLOCKS,
                                      .n_states = variant >= TINY_WITHOUT_STATES ? 1 : 0,
                                      .max_batch_tokens = MAX_TOKENS,
                                      .max_batch_logits = MAX_LOGITS,
                                      .kv_type = kv_type,
                                      .max_adapter_rank = TINY_MAX_RANK};
    if (*kept == NULL)
        FUZZ_CHECK(lw_session_open(tiny_model(variant, 0), &config, kept) == LW_OK, "%s", lw_last_error());
    return *kept;
}

// A draw as whoever knows all tokens asks for it.
static inline lw_draw known_draw(one_step* s, uint32_t row, const uint32_t* tokens) {
    lw_draw d = s->draws[row];
    if (s->token_ids[s->logit_rows[row]] & LW_DRAWN_BEFORE) s->history[row][d.n_history++] = *tokens;
    return d;
}

static inline bool same_draw(const lw_sampled* a, const lw_sampled* b) {
    return a->status == b->status && a->token == b->token && a->n_top == b->n_top &&
           memcmp(&a->logprob, &b->logprob, sizeof a->logprob) == 0 &&
           memcmp(a->top_ids, b->top_ids, a->n_top * sizeof *a->top_ids) == 0 &&
           memcmp(a->top_logprobs, b->top_logprobs, a->n_top * sizeof *a->top_logprobs) == 0;
}

// One sequence alone from its first token on, at level scalar.
static inline void compare_row(one_step* s, uint32_t row, const sequence* q, uint32_t variant, lw_type kv_type) {
    static const uint32_t table[SEQUENCE_BLOCKS] = {2, 0, 1}, no_context[1] = {0};
    const uint32_t context = s->context_lens[row], begin = s->query_start[row], end = s->query_start[row + 1];
    const uint32_t query_start[2] = {0, context + end - begin};
    uint32_t rows[MAX_LOGITS], n = 0, first = 0;
    lw_draw draws[MAX_LOGITS];
    for (uint32_t i = 0; i < s->batch.n_logits; ++i) {
        if (s->logit_rows[i] < begin || s->logit_rows[i] >= end) continue;
        if (n == 0) first = i;
        rows[n] = context + s->logit_rows[i] - begin;
        if (s->batch.draws != NULL) draws[n] = known_draw(s, i, q->tokens + rows[n]);
        ++n;
    }
    if (n == 0) return;
    lw_session* alone = reference_session(variant, kv_type);
    const lw_adapter* adapter = q->adapter > 0 ? tiny_adapters[variant][0][q->adapter - 1] : NULL;
    const lw_batch batch = {.n_seqs = 1,
                            .n_logits = n,
                            .block_table_stride = SEQUENCE_BLOCKS,
                            .token_ids = q->tokens,
                            .query_start = query_start,
                            .context_lens = no_context,
                            .block_tables = table,
                            .logit_rows = rows,
                            .draws = s->batch.draws != NULL ? draws : NULL,
                            .adapters = &adapter};
    static float logits[MAX_LOGITS * TINY_VOCAB];
    lw_sampled results[MAX_LOGITS];
    const lw_status status = lw_step(alone, &batch, logits, results);
    FUZZ_CHECK(status == LW_OK, "alone a sequence fails: %s", lw_last_error());
    FUZZ_CHECK(memcmp(logits, s->logits + first * TINY_VOCAB, n * TINY_VOCAB * sizeof *logits) == 0,
               "logits of a sequence of %u tokens, %u new, differ from those alone", query_start[1], end - begin);
    for (uint32_t i = 0; batch.draws != NULL && i < n; ++i)
        FUZZ_CHECK(same_draw(&results[i], &s->results[first + i]), "draw %u is %u, alone %u", i,
                   s->results[first + i].token, results[i].token);
}

static inline void compare_with_reference(one_step* s, uint32_t variant, lw_type kv_type) {
    for (uint32_t row = 0; row < s->batch.n_seqs; ++row)
        compare_row(s, row, &s->after[s->sequence[row]], variant, kv_type);
}

#endif
