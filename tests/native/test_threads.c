// Everything that has threads, with several at once: pools, sessions on one model, steps begun ahead, draws released by
// others, adapters that come and go, counters read and kernels chosen meanwhile, sessions closed while they run.
//
// Answers are compared with those of one thread alone. What threads do to each other is for ThreadSanitizer to see (make
// sanitize-threads). Argument: the instruction set, of which ThreadSanitizer knows the scalar one only.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <sys/resource.h>

#include "kinds/attend.h"
#include "numa.h"
#include "small_model.h"
#include "uniform_model.h"

enum { MAX_POOL_THREADS = 35, RUNS = 100, ITEMS = 37, USERS = 3, ROUNDS = 24, PROMPT = 8, LATE_NS = 100000 };
enum { RANK = 40 };  // two panels, which threads share
enum { LONG_CONTEXT = 2100, LONG_BLOCKS = 80, CUT_ROWS = 201 };

static void must(lw_status status) {
    if (status == LW_OK) return;
    printf("status %d: %s\n", (int)status, lw_last_error());
    exit(2);
}

typedef struct meeting {
    lw_pool* pool;
    lw_work chunks, items, shares;
    unsigned run, here[MAX_POOL_THREADS], chunk[ITEMS], item[ITEMS], share[ITEMS];
    bool missed[MAX_POOL_THREADS];
} meeting;

static void meet(void* context, unsigned thread) {
    meeting* m = context;
    const unsigned threads = lw_pool_threads(m->pool);
    size_t begin, end;
    m->here[thread] = m->run;
    while (lw_work_take(&m->chunks, ITEMS, 2, &begin, &end))
        for (; begin < end; ++begin) ++m->chunk[begin];
    lw_pool_barrier(m->pool, thread);
    for (unsigned t = 0; t < threads; ++t) m->missed[thread] |= m->here[t] != m->run;
    lw_taker items = {&m->items, ITEMS, threads, thread, false};
    for (size_t item; lw_take_item(&items, &item);) m->item[item] += m->chunk[item];
    lw_pool_barrier(m->pool, thread);
    lw_taker shares = {&m->shares, ITEMS, threads, thread, false};
    while (lw_take_share(&shares, &begin, &end))
        for (; begin < end; ++begin) m->share[begin] += m->item[begin];
}

// Of 9 threads one is a group of its own; of 19 all but one get a second item; of 35 some are started by a group that was
// itself started.
static void test_pool(unsigned threads) {
    meeting m = {.pool = lw_pool_open(threads, NULL)};
    unsigned sum = 0, expected = 0;
    bool missed = false;
    for (m.run = 1; m.run <= RUNS; ++m.run) {
        atomic_store_explicit(&m.chunks.next, 0, memory_order_relaxed);
        atomic_store_explicit(&m.items.next, 0, memory_order_relaxed);
        atomic_store_explicit(&m.shares.next, 0, memory_order_relaxed);
        lw_pool_run(m.pool, meet, &m);
        expected += m.run * (m.run + 1) / 2;
    }
    for (unsigned i = 0; i < ITEMS; ++i) sum += m.share[i];
    for (unsigned t = 0; t < threads; ++t) missed |= m.missed[t];
    lw_pool_close(m.pool);
    expect(!missed && sum == ITEMS * expected, "every item once in every run, nobody past a barrier alone");
}

typedef struct roll {
    lw_pool* pool;
    unsigned threads, run, here[MAX_POOL_THREADS];
    bool missed[MAX_POOL_THREADS];
} roll;

static void call_roll(void* context, unsigned thread) {
    roll* r = context;
    r->here[thread] = r->run;
    lw_pool_barrier(r->pool, thread);
    for (unsigned t = 0; t < r->threads; ++t) r->missed[thread] |= r->here[t] != r->run;
}

// Runs of one, two and all groups in turn: only their threads run, and they all meet.
static void test_fewer_groups(void) {
    static const unsigned wanted[] = {MAX_POOL_THREADS, 1, 9, 8, 33, 16, MAX_POOL_THREADS, 3},
                          given[] = {MAX_POOL_THREADS, 8, 16, 8, MAX_POOL_THREADS, 16, MAX_POOL_THREADS, 8};
    roll r = {.pool = lw_pool_open(MAX_POOL_THREADS, NULL)};
    bool right = true;
    for (r.run = 1; r.run <= RUNS; ++r.run) {
        r.threads = lw_pool_use(r.pool, wanted[r.run % 8]);
        lw_pool_run(r.pool, call_roll, &r);
        right &= r.threads == given[r.run % 8];
        for (unsigned t = 0; t < MAX_POOL_THREADS; ++t)
            right &= !r.missed[t] && (r.here[t] == r.run) == (t < r.threads);
    }
    lw_pool_use(r.pool, 1);  // a pool closes whichever threads ran last
    lw_pool_close(r.pool);
    expect(right, "only the threads of the first groups run");
}

typedef struct delay {
    lw_pool* pool;
    long slept[ROUNDS];  // how often thread 1 gave its CPU away at the barrier of each round
} delay;

static void come_late(void* context, unsigned thread) {
    delay* d = context;
    struct rusage before, after;
    for (unsigned round = 0; round < ROUNDS; ++round) {
        lw_pool_barrier(d->pool, thread);
        getrusage(RUSAGE_THREAD, &before);
        for (const uint64_t begin = lw_profile_now(); thread == 0 && lw_profile_now() < begin + LATE_NS;) continue;
        lw_pool_barrier(d->pool, thread);
        getrusage(RUSAGE_THREAD, &after);
        if (thread == 1) d->slept[round] = after.ru_nvcsw - before.ru_nvcsw;
    }
}

// Rounds in which it went to sleep.
static unsigned count_sleeps(unsigned cpus) {
    delay d = {.pool = lw_pool_open(2, NULL)};
    unsigned sleeps = 0;
    lw_pool_limit_cpus(d.pool, cpus);
    lw_pool_run(d.pool, come_late, &d);
    lw_pool_close(d.pool);
    for (unsigned round = 0; round < ROUNDS; ++round) sleeps += d.slept[round] > 0;
    return sleeps;
}

// Whether it ever did, or ever did not: others may have the CPUs for a while, so that it is tried again.
static const uint64_t patience_ns = UINT64_C(40) * 1000000000;

static bool ever_slept(unsigned cpus) {
    for (const uint64_t begin = lw_profile_now(); lw_profile_now() < begin + patience_ns;)
        if (count_sleeps(cpus) > 0) return true;
    return false;
}

static bool ever_stayed_awake(unsigned cpus) {
    for (const uint64_t begin = lw_profile_now(); lw_profile_now() < begin + patience_ns;)
        if (count_sleeps(cpus) < ROUNDS) return true;
    return false;
}

static void test_sleep(void) {
    expect(ever_slept(1), "who waits for a thread that may have no CPU sleeps");
    if (lw_count_cpus(NULL, 0) < 2)
        printf("not tested: threads that have a CPU each\n");
    else
        expect(ever_stayed_awake(2), "who waits for a thread that has a CPU does not");
}

// ---- Sessions -------------------------------------------------------------------------------------------------------

typedef struct answers {  // with and without an adapter: logits of a prompt, and of each token that may follow it
    float prompt[2][VOCAB], next[2][VOCAB][VOCAB];
} answers;

typedef struct user {
    const lw_model* model;
    const answers* expected;
    unsigned number;
    pthread_t thread;
    const char* wrong;
} user;

static lw_adapter* load_adapter(const lw_model* model) {
    static _Thread_local float a[RANK * HIDDEN], b[FFN * RANK];
    const lw_tensor ta = float_tensor(a, RANK, HIDDEN, 1), tb = float_tensor(b, FFN, RANK, 2);
    lw_adapter* adapter = NULL;
    must(lw_adapter_create(model, &adapter));
    for (uint32_t layer = 0; layer < LAYERS; ++layer)
        must(lw_adapter_load(adapter, LW_FFN_GATE, layer, &ta, &tb, 0.5f));
    return adapter;
}

static lw_session* new_session(const lw_model* model, uint32_t threads) {
    lw_session_config config = small_session(threads, LW_F16);
    config.max_adapter_rank = RANK;
    lw_session* session = NULL;
    must(lw_session_open(model, &config, &session));
    return session;
}

static void find_answers(const lw_model* model, answers* out) {
    lw_session* session = new_session(model, 1);
    lw_adapter* adapter = load_adapter(model);
    for (int with = 0; with < 2; ++with) {
        const lw_adapter* used = with ? adapter : NULL;
        one_sequence s = {0};
        set_batch(&s, PROMPT, 0, 0);
        s.batch.adapters = &used;
        must(lw_step(session, &s.batch, out->prompt[with], &s.drawn));
        for (uint32_t token = 0; token < VOCAB; ++token) {
            set_batch(&s, 1, PROMPT, 0);
            s.batch.adapters = &used;
            s.tokens[0] = token;
            must(lw_step(session, &s.batch, out->next[with][token], &s.drawn));
        }
    }
    lw_adapter_close(adapter);
    lw_session_close(session);
}

typedef struct release {
    lw_session* session;
    uint32_t mask[(VOCAB + 31) / 32], token;
    lw_counters counters;
} release;

// What a thread of the caller does while a step runs: writes a mask, lets draws go on, reads counters.
static void* write_mask(void* argument) {
    release* r = argument;
    r->mask[r->token / 32] = 1u << r->token % 32;
    must(lw_session_counters(r->session, &r->counters));
    must(lw_session_release_draws(r->session));
    must(lw_session_counters(r->session, &r->counters));
    return NULL;
}

static void finish(lw_session* session) {
    lw_finished times;
    for (uint32_t done = 0; !done;) must(lw_session_await(session, 1000000, &done));
    must(lw_session_finish(session, &times));
}

// A prompt whose draw is held for its mask, and the step behind it, which reads what was drawn.
static bool run_round(lw_session* session, const lw_adapter* adapter, const answers* expected, uint32_t token) {
    one_sequence a = {0}, b = {0};
    release r = {.session = session, .token = token};
    pthread_t other;
    set_batch(&a, PROMPT, 0, 0);
    set_batch(&b, 1, PROMPT, 0);
    a.batch.adapters = b.batch.adapters = &adapter;
    a.sampling.mask = r.mask;
    b.tokens[0] = LW_DRAWN_BEFORE;
    must(lw_session_hold_draws(session));
    must(lw_session_start(session, &a.batch, a.logits, &a.drawn));
    must(lw_session_start(session, &b.batch, b.logits, &b.drawn));
    if (pthread_create(&other, NULL, write_mask, &r) != 0) exit(2);
    finish(session);
    finish(session);
    pthread_join(other, NULL);
    const int with = adapter != NULL;
    return a.drawn.token == token && memcmp(a.logits, expected->prompt[with], sizeof a.logits) == 0 &&
           memcmp(b.logits, expected->next[with][token], sizeof b.logits) == 0;
}

// Leaves a step behind that nobody finishes, its draw held.
static void close_while_it_runs(lw_session* session) {
    one_sequence s = {0};
    set_batch(&s, PROMPT, 0, 0);
    must(lw_session_hold_draws(session));
    must(lw_session_start(session, &s.batch, s.logits, &s.drawn));
    lw_session_close(session);
}

static void* use(void* argument) {
    user* u = argument;
    lw_session* session = new_session(u->model, 1 + u->number);
    for (uint32_t round = 0; round < ROUNDS; ++round) {
        lw_profile_row rows[4];
        lw_choice choices[16];
        uint32_t n;
        if (round % 4 == 1) must(lw_session_profile(session, round % 8 == 1));
        lw_adapter* adapter = round % 3 == u->number % 3 ? load_adapter(u->model) : NULL;
        if (!run_round(session, adapter, u->expected, (round * 7 + u->number) % VOCAB)) u->wrong = "other answers";
        must(lw_session_profile_rows(session, rows, 4, &n));
        if ((n > 0) != (round % 8 >= 1 && round % 8 < 5)) u->wrong = "rows of a profile";
        lw_adapter_close(adapter);
        must(lw_choices(NULL, choices, 16, &n));
    }
    close_while_it_runs(session);
    return NULL;
}

static void test_sessions(const lw_model* model) {
    static answers expected;
    find_answers(model, &expected);
    user users[USERS];
    for (unsigned i = 0; i < USERS; ++i) {
        users[i] = (user){.model = model, .expected = &expected, .number = i};
        if (pthread_create(&users[i].thread, NULL, use, &users[i]) != 0) exit(2);
    }
    for (int i = 0; i < ROUNDS; ++i) {  // meanwhile
        lw_choice choices[16];
        uint32_t n;
        must(lw_choices(NULL, choices, 16, &n));
        must(lw_choose(choices, n < 16 ? n : 16));
    }
    for (unsigned i = 0; i < USERS; ++i) {
        pthread_join(users[i].thread, NULL);
        expect(users[i].wrong == NULL, users[i].wrong);
    }
}

// A context that threads split among themselves; what it holds does not matter.
static void long_step(const lw_model* model, uint32_t threads, float* logits) {
    lw_session_config config = small_session(threads, LW_F32);
    config.n_blocks = LONG_BLOCKS;
    lw_session* session = NULL;
    must(lw_session_open(model, &config, &session));
    uint32_t table[LONG_BLOCKS];
    for (uint32_t i = 0; i < LONG_BLOCKS; ++i) table[i] = i;
    one_sequence s = {0};
    set_batch(&s, 2, LONG_CONTEXT, 0);
    s.batch.block_tables = table;
    s.batch.block_table_stride = LONG_BLOCKS;
    for (int i = 0; i < 8; ++i) must(lw_step(session, &s.batch, logits, &s.drawn));
    expect((lw_attention_of(session)->layers[0].tiling.tiles[0].n_splits > 1) == (threads > 1),
           "threads share a long context");
    lw_session_close(session);
}

// Steps of few rows on some of the threads. A step behind a longer context runs on all of them again.
static void test_fewer_threads(const lw_model* model) {
    const lw_session_config config = small_session(MAX_POOL_THREADS, LW_F32);
    lw_session* session = NULL;
    must(lw_session_open(model, &config, &session));
    float alone[VOCAB], logits[VOCAB];
    one_sequence s = {0};
    set_batch(&s, 2, 0, 0);
    must(lw_step(session, &s.batch, alone, &s.drawn));
    expect(session->threads == MAX_POOL_THREADS, "all threads, unless told otherwise");
    must(lw_session_limit_threads(session, 3, 2, 2));
    must(lw_step(session, &s.batch, logits, &s.drawn));
    expect(session->threads == LW_POOL_GROUP, "a step of few rows runs on one group of threads");
    expect(memcmp(alone, logits, sizeof alone) == 0, "the number of threads changes nothing");
    set_batch(&s, 3, 0, 0);
    must(lw_step(session, &s.batch, logits, &s.drawn));
    expect(session->threads == MAX_POOL_THREADS, "a step of more rows runs on all");
    set_batch(&s, 1, 3, 0);
    must(lw_step(session, &s.batch, logits, &s.drawn));
    expect(session->threads == MAX_POOL_THREADS, "so does one behind a longer context");
    ARGUMENT(lw_session_limit_threads(session, 0, 1, 1), "0 threads, must be 1 to the session's 35");
    ARGUMENT(lw_session_limit_threads(session, 36, 1, 1), "36 threads, must be 1 to the session's 35");
    lw_session_close(session);
}

static void test_long_context(const lw_model* model) {
    float alone[VOCAB], shared[VOCAB];
    long_step(model, 1, alone);
    long_step(model, 3, shared);
    expect(memcmp(alone, shared, sizeof alone) == 0, "threads that share a context change nothing");
}

// A prompt whose products are cut by rows too, the last piece of an odd number of them; some of its rows have an adapter.
typedef struct long_prompt {
    uint32_t tokens[CUT_ROWS], rows[CUT_ROWS], blocks[CUT_ROWS / LW_BLOCK_TOKENS + 1], starts[4], contexts[3];
    const lw_adapter* adapters[3];
    float logits[CUT_ROWS][VOCAB];
} long_prompt;

static void run_prompt(const lw_model* model, const lw_adapter* adapter, uint32_t threads, long_prompt* p) {
    const uint32_t n_blocks = CUT_ROWS / LW_BLOCK_TOKENS + 1;
    lw_session_config config = small_session(threads, LW_F16);
    config.n_blocks = n_blocks;
    config.max_batch_tokens = config.max_batch_logits = CUT_ROWS;
    config.max_adapter_rank = RANK;
    lw_session* session = NULL;
    must(lw_session_open(model, &config, &session));
    *p = (long_prompt){.starts = {0, 32, 96, CUT_ROWS}, .adapters = {NULL, adapter, NULL}};
    for (uint32_t i = 0; i < CUT_ROWS; ++i) p->tokens[i] = (i * 7 + 3) % VOCAB, p->rows[i] = i;
    uint32_t tables[3][CUT_ROWS / LW_BLOCK_TOKENS + 1] = {{0}};
    for (uint32_t sequence = 0; sequence < 3; ++sequence)  // of one, two and the rest of the blocks
        for (uint32_t i = 0; i < n_blocks; ++i)
            tables[sequence][i] = (p->starts[sequence] / LW_BLOCK_TOKENS + i) % n_blocks;
    const lw_batch batch = {.n_seqs = 3,
                            .n_logits = CUT_ROWS,
                            .block_table_stride = n_blocks,
                            .token_ids = p->tokens,
                            .query_start = p->starts,
                            .context_lens = p->contexts,
                            .block_tables = tables[0],
                            .logit_rows = p->rows,
                            .adapters = p->adapters};
    must(lw_step(session, &batch, p->logits[0], NULL));
    must(lw_step(session, &batch, p->logits[0], NULL));  // counters are as they were before the first
    lw_session_close(session);
}

static void test_cuts(const char* isa) {
    static long_prompt alone, shared;
    uniform_config config = small_config();
    lw_model* model = NULL;
    config.context_length = 2 * CUT_ROWS;
    must(uniform_create(&config, isa, 2, &model));
    must(load_all(model));
    must(lw_model_finish(model));
    lw_adapter* adapter = load_adapter(model);
    run_prompt(model, adapter, 1, &alone);
    for (uint32_t threads = 2; threads < 8; ++threads) {
        run_prompt(model, adapter, threads, &shared);
        expect(memcmp(alone.logits, shared.logits, sizeof alone.logits) == 0, "how rows are cut changes nothing");
    }
    expect(lw_cut_rows(CUT_ROWS, 2, 1).n == 1 && lw_cut_rows(CUT_ROWS, 2, 2).n == 1, "rows stay whole for one or two");
    expect(lw_cut_rows(CUT_ROWS, 2, 3).n == 3 && lw_cut_rows(CUT_ROWS, 6, 5).n == 3, "rows are cut for more");
    lw_adapter_close(adapter);
    lw_model_close(model);
}

int main(int argc, char** argv) {
    uniform_config config = small_config();
    lw_model* model = NULL;
    config.context_length = LONG_BLOCKS * LW_BLOCK_TOKENS;
    must(uniform_create(&config, argc > 1 ? argv[1] : NULL, 3, &model));
    must(load_all(model));
    must(lw_model_finish(model));
    for (unsigned threads = 1; threads < 6; ++threads) test_pool(threads);
    test_pool(9);
    test_pool(19);
    test_pool(MAX_POOL_THREADS);
    test_fewer_groups();
    test_sleep();
    test_sessions(model);
    test_long_context(model);
    test_fewer_threads(model);
    for (int level = 0; level < LW_LEVEL_COUNT; ++level)
        if (argc > 1 ? strcmp(argv[1], lw_level_names[level]) == 0 : lw_cpu_levels() >> level & 1)
            test_cuts(lw_level_names[level]);
    lw_model_close(model);
    return report();
}
