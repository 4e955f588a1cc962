// One golden hash of logits, whatever computes them.
//
// Small models of every weight type and architecture feature, their weights made by a counter-based generator, run over
// one set of prompts at every instruction-set level of this CPU, with 1 to 3 threads, alone and in batches of up to
// nine sequences, in prefill chunks of 1, 7, 32 and whole. Prints "model hash" lines and exits 0 if every way of
// computing a model gave the same hash. Arguments: --quick runs fewer combinations; --isa=NAME only that level; --part=K/N
// every Nth model, from K on; --perturb changes one weight by one step after packing order is settled, which must
// change the hash.
#include "golden_models.h"
#include "hash_floats.h"
#include "uniform_model.h"

// Ranks of less and more than a panel, types of all kinds, and not every matrix of every layer.
static void load_adapter(lw_model* model, const variant* v, int index) {
    static const uint32_t ranks[N_ADAPTERS] = {16, 5, 40};
    static const lw_type types[N_ADAPTERS] = {LW_BF16, LW_F32, LW_F16};
    const uint32_t q = v->heads * v->head_dim, kv = v->kv_heads * v->head_dim, h = v->hidden, r = ranks[index];
    const struct {
        lw_role role;
        uint32_t rows, cols;
    } all[] = {{LW_ATTN_Q, q, h},      {LW_ATTN_K, kv, h},       {LW_ATTN_V, kv, h},      {LW_ATTN_OUTPUT, h, q},
               {LW_FFN_UP, v->ffn, h}, {LW_FFN_GATE, v->ffn, h}, {LW_FFN_DOWN, h, v->ffn}};
    check(lw_adapter_create(model, &adapters[index]));
    for (uint32_t i = 0; i < 14; ++i) {
        if (index == 1 && i % 3 == 0) continue;
        const uint32_t rows = all[i % 7].rows, cols = all[i % 7].cols;
        const lw_type type = types[index];
        uint8_t *a = malloc((uint64_t)r * cols * 4), *b = malloc((uint64_t)r * rows * 4);
        if (a == NULL || b == NULL) exit(2);
        fill(a, type, (uint64_t)r * cols, 0.2f, (uint64_t)(100 + index) << 48 | (uint64_t)i << 40);
        fill(b, type, (uint64_t)r * rows, 0.2f, (uint64_t)(200 + index) << 48 | (uint64_t)i << 40);
        const lw_tensor low = {
            .data = a, .n_bytes = r * lw_row_bytes(type, cols), .type = type, .rows = r, .cols = cols};
        const lw_tensor up = {
            .data = b, .n_bytes = rows * lw_row_bytes(type, r), .type = type, .rows = rows, .cols = r};
        check(lw_adapter_load(adapters[index], all[i % 7].role, i / 7, &low, &up, 0.5f));
        free(a);
        free(b);
    }
}

static void close_adapters(void) {
    for (int i = 0; i < N_ADAPTERS; ++i) {
        lw_adapter_close(adapters[i]);
        adapters[i] = NULL;
    }
}

static uint32_t prompt_length(uint32_t seq) { return 9 + seq * 11 % 32; }

// The table of a sequence in one group of layers. Blocks lie in a scattered order: where they are must not matter. Those
// that no token after the first `done` sees are none.
static void fill_table(uint32_t* table, uint32_t index, uint32_t n_blocks, uint32_t window, uint32_t done) {
    const uint32_t unseen = window != 0 && done + 1 > window ? (done + 1 - window) / LW_BLOCK_TOKENS : 0;
    for (uint32_t b = 0; b < BLOCKS_PER_SEQ; ++b)
        table[b] = b < unseen ? UINT32_MAX : (index * BLOCKS_PER_SEQ + b) * 5 % n_blocks;
}

// Runs `n_seqs` prompts together, `chunk` tokens of each at a time; out[seq][position][VOCAB]. States move to another place
// before each step.
static void run(const variant* v, lw_model* model, uint32_t threads, uint32_t first, uint32_t n_seqs, uint32_t chunk,
                bool groups_by_window, float* out) {
    lw_kv_layout layout;
    check(lw_model_kv_layout(model, v->kv, groups_by_window, &layout));
    const uint32_t groups = layout.n_groups;
    const lw_session_config config = {.n_threads = threads,
                                      .n_blocks = N_SEQS * groups * BLOCKS_PER_SEQ,
                                      .n_states = layout.state_bytes > 0 ? 2 * N_SEQS : 0,
                                      .groups_by_window = groups_by_window,
                                      .max_batch_tokens = N_SEQS * MAX_TOKENS,
                                      .max_batch_logits = N_SEQS * MAX_TOKENS,
                                      .kv_type = v->kv,
                                      .max_adapter_rank = has_adapters(v) ? 40 : 0};
    lw_session* session;
    check(lw_session_open(model, &config, &session));
    float* logits = malloc(sizeof(float) * N_SEQS * MAX_TOKENS * VOCAB);
    if (logits == NULL) exit(2);
    uint32_t done[N_SEQS] = {0}, turn = 0;
    for (bool more = true; more; ++turn) {
        uint32_t ids[N_SEQS * MAX_TOKENS], rows[N_SEQS * MAX_TOKENS], start[N_SEQS + 1] = {0}, lens[N_SEQS];
        uint32_t tables[2 * N_SEQS * LW_MAX_KV_GROUPS * BLOCKS_PER_SEQ], owner[N_SEQS], n = 0, total = 0;
        uint32_t places[N_SEQS], moves[N_SEQS][2];
        const lw_adapter* adapted[N_SEQS];
        for (uint32_t i = 0; i < n_seqs; ++i) {
            const uint32_t seq = first + i, left = prompt_length(seq) - done[i];
            const uint32_t take = left < chunk ? left : chunk;
            if (take == 0) continue;
            owner[n] = i;
            places[n] = moves[n][1] = (turn % 2) * N_SEQS + i;
            moves[n][0] = (1 - turn % 2) * N_SEQS + i;
            lens[n] = done[i];
            adapted[n] = adapter_of(v, seq);
            for (uint32_t g = 0; g < groups; ++g)
                fill_table(tables + (places[n] * groups + g) * BLOCKS_PER_SEQ, i * groups + g, config.n_blocks,
                           layout.windows[g], done[i]);
            for (uint32_t t = 0; t < take; ++t, ++total) {
                ids[total] = (uint32_t)(mix(seq * 1000 + done[i] + t) % VOCAB);
                rows[total] = total;
            }
            start[++n] = total;
        }
        const lw_batch batch = {.n_seqs = n,
                                .n_logits = total,
                                .block_table_stride = BLOCKS_PER_SEQ,
                                .token_ids = ids,
                                .query_start = start,
                                .context_lens = lens,
                                .block_tables = tables,
                                .logit_rows = rows,
                                .table_rows = places,
                                .adapters = has_adapters(v) ? adapted : NULL,
                                .n_state_copies = layout.state_bytes > 0 ? n : 0,
                                .state_copies = &moves[0][0]};
        check(lw_step(session, &batch, logits, NULL));
        more = false;
        for (uint32_t j = 0; j < n; ++j) {
            const uint32_t i = owner[j], count = start[j + 1] - start[j];
            memcpy(out + ((size_t)(first + i) * MAX_TOKENS + done[i]) * VOCAB, logits + (size_t)start[j] * VOCAB,
                   sizeof(float) * count * VOCAB);
            done[i] += count;
        }
        for (uint32_t i = 0; i < n_seqs; ++i) more |= done[i] < prompt_length(first + i);
    }
    free(logits);
    lw_session_close(session);
}

static uint64_t hash_all(const variant* v, lw_model* model, uint32_t threads, uint32_t batch, uint32_t chunk,
                         bool groups_by_window, float* out) {
    for (uint32_t first = 0; first < N_SEQS; first += batch)
        run(v, model, threads, first, batch < N_SEQS - first ? batch : N_SEQS - first, chunk, groups_by_window, out);
    uint64_t hash = hash_of_nothing;
    for (uint32_t seq = 0; seq < N_SEQS; ++seq)
        hash = hash_floats(hash, out + (size_t)seq * MAX_TOKENS * VOCAB, (size_t)prompt_length(seq) * VOCAB);
    return hash;
}

typedef struct way {
    uint32_t threads, batch, chunk;
} way;

static const way ways[] = {{1, 1, MAX_TOKENS}, {2, 9, 7}, {2, 4, 32}, {1, 9, 1},
                           {3, 2, MAX_TOKENS}, {2, 3, 1}, {1, 5, 7},  {2, 6, 32},
                           {1, 7, 32},         {2, 8, 7}, {2, 1, 1},  {1, 9, MAX_TOKENS}};

// Every answer that lw_tune can give, and the table's again at the end.
static const uint32_t choices[] = {12, 16, 24, 48, 96, UINT32_MAX, 0};

// Runs of a level whose kernels have rivals, with every choice between them; how many had another hash than `golden`.
static int hash_choices(const variant* v, lw_model* model, const char* isa, bool quick, uint64_t golden, float* out) {
    lw_choice open[16];
    uint32_t n;
    int wrong = 0;
    check(lw_choices(isa, open, 16, &n));
    for (size_t c = 0; n > 0 && c < sizeof choices / sizeof *choices; ++c) {
        for (uint32_t i = 0; i < n; ++i)
            open[i].min_rows = choices[c] > open[i].least_rows ? choices[c] : open[i].least_rows;
        check(lw_choose(open, n));
        if (choices[c] == 0 || (quick && choices[c] != 16 && choices[c] != UINT32_MAX)) continue;
        const uint64_t hash = hash_all(v, model, 2, 3, 32, false, out);
        wrong += hash != golden;
        if (hash != golden)
            printf("%s: %s, another kernel from %u rows on: %016llx\n", v->name, isa, choices[c],
                   (unsigned long long)hash);
    }
    return wrong;
}

// With `out` from a run with adapters: each changes the logits of the sequences that have it and of no other.
static int check_adapters(const variant* v, lw_model* model, float* out) {
    const size_t floats = (size_t)N_SEQS * MAX_TOKENS * VOCAB;
    float* with = malloc(floats * sizeof(float));
    if (with == NULL) exit(2);
    memcpy(with, out, floats * sizeof(float));
    without_adapters = true;
    hash_all(v, model, 2, 9, 32, false, out);
    without_adapters = false;
    int wrong = 0;
    for (uint32_t seq = 0; seq < N_SEQS; ++seq) {
        const size_t first = (size_t)seq * MAX_TOKENS * VOCAB;
        const size_t bytes = (size_t)prompt_length(seq) * VOCAB * sizeof(float);
        const bool same = memcmp(with + first, out + first, bytes) == 0;
        wrong += same != (adapter_of(v, seq) == NULL);
    }
    free(with);
    if (wrong > 0) printf("%s: %d sequences have logits that are not theirs\n", v->name, wrong);
    return wrong;
}

static const char* const levels[] = {"scalar", "avx2",    "avx512vnni", "avx512vbmi", "amx",
                                     "neon",   "dotprod", "i8mm",       "sve"};

int main(int argc, char** argv) {
    bool quick = false;
    const char* only = NULL;
    unsigned long part = 0, parts = 1;
    for (int i = 1; i < argc; ++i) {
        if (strncmp(argv[i], "--isa=", 6) == 0) only = argv[i] + 6;
        if (strncmp(argv[i], "--part=", 7) == 0) {
            char* rest;
            part = strtoul(argv[i] + 7, &rest, 10);
            parts = strtoul(rest + 1, NULL, 10);
        }
        quick |= strcmp(argv[i], "--quick") == 0;
        perturb |= strcmp(argv[i], "--perturb") == 0;
    }
    float* out = calloc((size_t)N_SEQS * MAX_TOKENS * VOCAB, sizeof(float));
    if (out == NULL) return 2;
    int failed = 0, passed = 0;
    for (size_t i = 0; i < sizeof variants / sizeof *variants; ++i) {
        if (i % parts != part) continue;
        const variant* v = &variants[i];
        uint64_t golden = 0;
        for (size_t l = 0; l < sizeof levels / sizeof *levels; ++l) {
            if (lw_cpu_check(levels[l]) != LW_OK || (only != NULL && strcmp(levels[l], only) != 0)) continue;
            lw_model* model = open_model(v, levels[l]);
            lw_model_info info;
            check(lw_model_describe(model, &info));
            if (strcmp(info.isa, levels[l]) != 0) ++failed;
            for (int a = 0; has_adapters(v) && a < N_ADAPTERS; ++a) load_adapter(model, v, a);
            if (has_orders(v)) failed += lw_adapter_create(model, &adapters[0]) != LW_ERR_ARGUMENT;
            for (size_t w = 0; w < (quick ? 3 : sizeof ways / sizeof *ways); ++w) {
                if (l == 0 && w > (quick ? 0 : 3)) break;  // scalar is slow
                const uint64_t hash =
                    hash_all(v, model, ways[w].threads, ways[w].batch, ways[w].chunk, w % 2 == 1, out);
                if (golden == 0) golden = hash;
                ++*(hash == golden ? &passed : &failed);
                if (hash != golden)
                    printf("%s: %s, %u threads, batch %u, chunk %u: %016llx, not %016llx\n", v->name, levels[l],
                           ways[w].threads, ways[w].batch, ways[w].chunk, (unsigned long long)hash,
                           (unsigned long long)golden);
            }
            const int wrong = hash_choices(v, model, levels[l], quick, golden, out);
            failed += wrong;
            passed += wrong == 0;
            if (has_adapters(v) && l > 0) failed += check_adapters(v, model, out);
            close_adapters();
            lw_model_close(model);
        }
        printf("%s %016llx\n", v->name, (unsigned long long)golden);
    }
    free(out);
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
