// One golden hash of logits, whatever computes them.
//
// Small models of every weight type and architecture feature, their weights made by a counter-based generator, run over
// one set of prompts at every instruction-set level of this CPU, with 1 to 3 threads, alone and in batches of up to
// nine sequences, in prefill chunks of 1, 7, 32 and whole. Prints "model hash" lines and exits 0 if every way of
// computing a model gave the same hash. Arguments: --quick runs fewer combinations; --isa=NAME only that level; --perturb
// changes one weight by one step after packing order is settled, which must change the hash.
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/format.h"
#include "lanewise.h"
#include "model/gguf_blocks.h"

enum { N_SEQS = 9, MAX_TOKENS = 40, VOCAB = 301, BLOCKS_PER_SEQ = 2 };

typedef struct variant {
    const char* name;
    int matrices;  // a type, or MIXED
    lw_type embedding;
    uint32_t hidden, ffn, heads, kv_heads, head_dim, window;
    bool tied, bias, norm, factors, interleaved;
    lw_type kv;
    const lw_type* mixed;  // used when `matrices` is MIXED
} variant;

enum { MIXED = -1 };

// Types of Q, K, V, output, gate, up and down.
static const lw_type k_quants_types[] = {LW_Q4_K, LW_Q5_K, LW_Q3_K, LW_Q2_K, LW_Q4_K, LW_IQ4_XS, LW_Q6_K};
static const lw_type legacy_types[] = {LW_Q4_1, LW_Q5_0, LW_Q5_1, LW_MXFP4, LW_IQ4_NL, LW_Q4_1, LW_Q5_1};
static const lw_type codebooks_types[] = {LW_CB2, LW_CB3, LW_CB4, LW_T2, LW_T2, LW_CB2, LW_CB3};
static const lw_type groups_types[] = {LW_Q4_G64, LW_Q4_G128, LW_A4_G32, LW_A4_G64, LW_A4_G128, LW_A8_G32, LW_A8_G128};
static const lw_type row_scales_types[] = {LW_FP6, LW_W8A8, LW_FP6, LW_W8A8, LW_FP6, LW_FP6, LW_W8A8};

static const variant variants[] = {
    {"q4_0+q6_k head", LW_Q4_0, LW_Q6_K, 256, 512, 4, 2, 64, 0, true, false, false, true, true, LW_F16, NULL},
    {"q8_0 bias", LW_Q8_0, LW_Q8_0, 288, 352, 6, 2, 48, 0, false, true, false, false, false, LW_F16, NULL},
    {"q4_0 qk norm", LW_Q4_0, LW_Q4_0, 192, 320, 4, 4, 80, 0, true, false, true, false, false, LW_F32, NULL},
    {"f16 window", LW_F16, LW_F16, 72, 100, 4, 1, 18, 24, false, false, false, false, false, LW_F16, NULL},
    {"bf16", LW_BF16, LW_BF16, 64, 96, 2, 2, 32, 0, true, false, false, false, false, LW_F16, NULL},
    {"f32", LW_F32, LW_F32, 64, 172, 8, 4, 8, 0, true, false, false, false, true, LW_F32, NULL},
    {"k-quants", MIXED, LW_Q4_K, 256, 512, 4, 2, 64, 0, true, false, false, false, false, LW_F16, k_quants_types},
    {"legacy", MIXED, LW_IQ4_NL, 192, 352, 6, 2, 32, 0, true, false, false, false, false, LW_F16, legacy_types},
    {"codebooks", MIXED, LW_CB4, 192, 352, 6, 2, 32, 0, false, false, false, false, false, LW_F16, codebooks_types},
    {"groups", MIXED, LW_A8_G32, 192, 352, 6, 2, 32, 0, true, false, false, false, false, LW_F16, groups_types},
    {"row scales", MIXED, LW_FP6, 192, 352, 6, 2, 32, 0, true, false, false, false, false, LW_F16, row_scales_types},
    {"q4_0 int8 cache", LW_Q4_0, LW_Q4_0, 256, 512, 8, 2, 32, 0, true, false, false, false, false, LW_I8, NULL},
    {"f32 int8 cache, window", LW_F32, LW_F32, 60, 96, 3, 1, 18, 24, true, false, false, false, false, LW_I8, NULL},
    {"orders", LW_A4_G64, LW_F16, 256, 512, 4, 2, 64, 0, true, false, false, false, false, LW_F16, NULL},
    {"q4_0 adapters", LW_Q4_0, LW_Q4_0, 288, 608, 6, 2, 48, 0, true, false, false, false, true, LW_F16, NULL},
    {"f32 adapters", LW_F32, LW_F32, 60, 172, 3, 1, 18, 24, true, true, true, false, false, LW_F32, NULL},
};

// The variant whose matrices before the last read their inputs in another order.
static bool has_orders(const variant* v) { return strcmp(v->name, "orders") == 0; }

// The variant of which most sequences have one of three adapters.
static bool has_adapters(const variant* v) { return strstr(v->name, "adapters") != NULL; }

enum { N_ADAPTERS = 3 };
static lw_adapter* adapters[N_ADAPTERS];
static bool without_adapters;  // in spite of all

// Neighbours with the same one, one alone, some without.
static const lw_adapter* adapter_of(const variant* v, uint32_t seq) {
    static const int of[N_SEQS] = {0, 0, -1, 1, 2, -1, 1, 1, 0};
    return has_adapters(v) && !without_adapters && of[seq] >= 0 ? adapters[of[seq]] : NULL;
}

static bool perturb;

static uint64_t mix(uint64_t x) {  // splitmix64
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

static float uniform(uint64_t key) { return (float)(int32_t)(mix(key) >> 32) * 0x1p-31f; }

static uint16_t half_of(uint64_t key) {  // f16 of about 2^-6 .. 2^-5
    return (uint16_t)(0x2400 + (mix(key) & 0x3FF));
}

static void check(lw_status status) {
    if (status == LW_OK) return;
    printf("status %d: %s\n", (int)status, lw_last_error());
    exit(2);
}

static void put_half(uint8_t* to, uint64_t key, int exponents) {  // so many powers of two smaller, either sign
    const uint16_t bits = (uint16_t)((half_of(key) - exponents * 0x400) | (mix(key) >> 63 << 15));
    memcpy(to, &bits, 2);
}

// Rows of a coded type: any codes, scales that make weights of about the size of the other types'.
static void fill_coded(uint8_t* data, lw_type type, lw_format f, uint32_t rows, uint32_t cols, uint64_t key) {
    const uint64_t bytes = rows * lw_row_bytes(type, cols);
    for (uint64_t i = 0; i < bytes; ++i) data[i] = (uint8_t)mix(key + i);
    const lw_stored_row s = lw_stored_row_of(f, cols);
    for (uint32_t row = 0; lw_gguf_block_bytes(type) == 0 && row < rows; ++row, data += s.bytes) {
        const int smaller = f.low == 8 ? 4 : 0;
        for (size_t at = s.scales; f.scale == LW_SCALE_F16 && at < s.minimums; at += 2)
            put_half(data + at, key + row * s.bytes + at, smaller);
        const float scale = (float)(1 + mix(key + row) % 1024) * (f.scale == LW_SCALE_ONE ? 0x1p-20f : 0x1p-26f);
        if (f.super == LW_SUPER_ROW) memcpy(data + s.supers, &scale, sizeof scale);
    }
    if (lw_gguf_block_bytes(type) == 0) return;
    const size_t first = type == LW_Q2_K ? 80 : type == LW_Q3_K ? 108 : 0;
    const int smaller = type == LW_IQ4_NL ? 4 : type == LW_IQ4_XS ? 8 : f.super == LW_SUPER_BLOCK ? 5 : 0;
    const bool two = f.minimum != LW_MINIMUM_NONE;
    for (uint64_t at = 0; at < bytes; at += lw_gguf_block_bytes(type)) {
        if (type == LW_MXFP4) data[at] = (uint8_t)(118 + data[at] % 4);
        if (type != LW_MXFP4) put_half(data + at + first, key + at, smaller);
        if (two) put_half(data + at + first + 2, key + at + 1, smaller);
    }
}

// Rows of `type` with values of about `size`.
static void fill(uint8_t* data, lw_type type, uint64_t weights, float size, uint64_t key) {
    for (uint64_t i = 0; type == LW_F32 && i < weights; ++i) {
        const float value = size * uniform(key + i);
        memcpy(data + 4 * i, &value, 4);
    }
    for (uint64_t i = 0; type == LW_F16 && i < weights; ++i) {
        const uint16_t bits = (uint16_t)(half_of(key + i) + (size > 0.5f ? 0x1400 : 0) + (mix(key + i) & 1) * 0x8000);
        memcpy(data + 2 * i, &bits, 2);
    }
    for (uint64_t i = 0; type == LW_BF16 && i < weights; ++i) {
        const float value = size * uniform(key + i);
        memcpy(data + 2 * i, (const uint8_t*)&value + 2, 2);
    }
    if (type == LW_F32 || type == LW_F16 || type == LW_BF16) return;
    const uint64_t block = type == LW_Q6_K ? 256 : 32, bytes = type == LW_Q4_0 ? 18 : type == LW_Q8_0 ? 34 : 210;
    for (uint64_t b = 0; b < weights / block; ++b, data += bytes) {
        for (uint64_t i = 0; i < bytes; ++i) data[i] = (uint8_t)mix(key + b * 256 + i);
        uint16_t scale = half_of(key + b);
        if (type == LW_Q8_0) scale = (uint16_t)(scale - 0x1000);  // codes are 16 times larger
        if (type == LW_Q6_K) scale = (uint16_t)(scale - 0x2000);  // and scales multiply codes of 32
        memcpy(data + (type == LW_Q6_K ? 208 : 0), &scale, 2);
    }
}

static void load(lw_model* model, lw_role role, uint32_t layer, lw_type type, uint32_t rows, uint32_t cols, float size,
                 uint32_t rope_heads) {
    const uint64_t bytes = rows * lw_row_bytes(type, cols);
    uint8_t* data = malloc(bytes);
    if (data == NULL) exit(2);
    lw_format f;
    const uint64_t key = (uint64_t)role << 48 | (uint64_t)layer << 40;
    if (lw_find_format(type, &f))
        fill_coded(data, type, f, rows, cols, key);
    else
        fill(data, type, (uint64_t)rows * cols, size, key);
    // Of an f32 weight a bit that rounding cannot hide: the lowest may be lost in the sum that it goes into.
    if (perturb && role == LW_FFN_DOWN && layer == 0) data[bytes / 2 + (type == LW_F32 ? 2 : 0)] ^= 1;
    static const int8_t table[16] = {-127, -96, -71, -50, -33, -20, -9, -2, 4, 11, 21, 34, 49, 70, 95, 127};
    const lw_tensor tensor = {data, bytes, type, rows, cols, rope_heads, table};
    check(lw_model_load(model, role, layer, &tensor, type));
    free(data);
}

static void load_order(lw_model* model, lw_role role, uint32_t layer, uint32_t n) {
    float* order = malloc(n * sizeof(float));
    if (order == NULL) exit(2);
    for (uint32_t i = 0; i < n; ++i) order[i] = (float)((i * 37 + layer) % n);  // n is a power of two
    const lw_tensor tensor = {.data = order, .n_bytes = n * sizeof(float), .type = LW_F32, .rows = 1, .cols = n};
    check(lw_model_load(model, role, layer, &tensor, LW_F32));
    free(order);
}

static lw_type matrix_type(const variant* v, int i) {
    return v->matrices == MIXED ? v->mixed[i] : (lw_type)v->matrices;
}

static lw_model* open_model(const variant* v, const char* isa) {
    float factors[128];
    for (uint32_t i = 0; i < 128; ++i) factors[i] = i < 8 ? 1.0f : 1.0f + (float)i / 16;
    const lw_model_config config = {.n_layers = 2,
                                    .hidden_size = v->hidden,
                                    .ffn_size = v->ffn,
                                    .n_heads = v->heads,
                                    .n_kv_heads = v->kv_heads,
                                    .head_dim = v->head_dim,
                                    .vocab_size = VOCAB,
                                    .context_length = 512,
                                    .sliding_window = v->window,
                                    .tied_embeddings = v->tied,
                                    .qkv_bias = v->bias,
                                    .qk_norm = v->norm,
                                    .rms_norm_eps = 1e-5f,
                                    .rope_theta = 10000,
                                    .rope_factors = v->factors ? factors : NULL};
    lw_model* model;
    check(lw_model_create(&config, isa, 2, &model));
    const uint32_t q = v->heads * v->head_dim, kv = v->kv_heads * v->head_dim, h = v->hidden;
    const uint32_t q_heads = v->interleaved ? v->heads : 0, k_heads = v->interleaved ? v->kv_heads : 0;
    load(model, LW_TOKEN_EMBEDDING, 0, v->embedding, VOCAB, h, 1.0f, 0);
    if (!v->tied) load(model, LW_OUTPUT, 0, v->embedding, VOCAB, h, 0.2f, 0);
    load(model, LW_OUTPUT_NORM, 0, LW_F32, 1, h, 1.0f, 0);
    for (uint32_t l = 0; l < 2; ++l) {
        load(model, LW_ATTN_NORM, l, LW_F32, 1, h, 1.0f, 0);
        load(model, LW_ATTN_Q, l, matrix_type(v, 0), q, h, 0.2f, q_heads);
        load(model, LW_ATTN_K, l, matrix_type(v, 1), kv, h, 0.2f, k_heads);
        load(model, LW_ATTN_V, l, matrix_type(v, 2), kv, h, 0.2f, 0);
        if (v->bias) {
            load(model, LW_ATTN_Q_BIAS, l, LW_F32, 1, q, 0.1f, 0);
            load(model, LW_ATTN_K_BIAS, l, LW_F32, 1, kv, 0.1f, 0);
            load(model, LW_ATTN_V_BIAS, l, LW_F32, 1, kv, 0.1f, 0);
        }
        if (v->norm) {
            load(model, LW_ATTN_Q_NORM, l, LW_F32, 1, v->head_dim, 1.0f, 0);
            load(model, LW_ATTN_K_NORM, l, LW_F32, 1, v->head_dim, 1.0f, 0);
        }
        // rows of q inputs: q4_0 and q8_0 need multiples of 32, which every quantized variant has
        load(model, LW_ATTN_OUTPUT, l, matrix_type(v, 3), h, q, 0.2f, 0);
        if (has_orders(v)) {
            load_order(model, LW_ATTN_INPUT_ORDER, l, h);
            load_order(model, LW_ATTN_OUTPUT_ORDER, l, q);
            load_order(model, LW_FFN_INPUT_ORDER, l, h);
        }
        load(model, LW_FFN_NORM, l, LW_F32, 1, h, 1.0f, 0);
        load(model, LW_FFN_GATE, l, matrix_type(v, 4), v->ffn, h, 0.2f, 0);
        load(model, LW_FFN_UP, l, matrix_type(v, 5), v->ffn, h, 0.2f, 0);
        load(model, LW_FFN_DOWN, l, matrix_type(v, 6), h, v->ffn, 0.2f, 0);
    }
    check(lw_model_finish(model));
    return model;
}

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

static uint64_t hash_floats(uint64_t hash, const float* x, size_t n) {  // FNV-1a over the bits
    for (size_t i = 0; i < n; ++i) {
        uint32_t bits;
        memcpy(&bits, x + i, 4);
        for (int b = 0; b < 4; ++b) hash = (hash ^ (bits >> (8 * b) & 0xFF)) * 0x100000001B3u;
    }
    return hash;
}

// Runs `n_seqs` prompts together, `chunk` tokens of each at a time; out[seq][position][VOCAB].
static void run(const variant* v, lw_model* model, uint32_t threads, uint32_t first, uint32_t n_seqs, uint32_t chunk,
                float* out) {
    const lw_session_config config = {.n_threads = threads,
                                      .n_blocks = N_SEQS * BLOCKS_PER_SEQ,
                                      .max_batch_tokens = N_SEQS * MAX_TOKENS,
                                      .max_batch_logits = N_SEQS * MAX_TOKENS,
                                      .kv_type = v->kv,
                                      .max_adapter_rank = has_adapters(v) ? 40 : 0};
    lw_session* session;
    check(lw_session_open(model, &config, &session));
    float* logits = malloc(sizeof(float) * N_SEQS * MAX_TOKENS * VOCAB);
    if (logits == NULL) exit(2);
    uint32_t done[N_SEQS] = {0};
    for (bool more = true; more;) {
        uint32_t ids[N_SEQS * MAX_TOKENS], rows[N_SEQS * MAX_TOKENS], start[N_SEQS + 1] = {0}, lens[N_SEQS];
        uint32_t tables[N_SEQS * BLOCKS_PER_SEQ], owner[N_SEQS], n = 0, total = 0;
        const lw_adapter* adapted[N_SEQS];
        for (uint32_t i = 0; i < n_seqs; ++i) {
            const uint32_t seq = first + i, left = prompt_length(seq) - done[i];
            const uint32_t take = left < chunk ? left : chunk;
            if (take == 0) continue;
            owner[n] = i;
            lens[n] = done[i];
            adapted[n] = adapter_of(v, seq);
            // Blocks in a scattered order: where they lie must not matter.
            for (uint32_t b = 0; b < BLOCKS_PER_SEQ; ++b)
                tables[n * BLOCKS_PER_SEQ + b] = (i * BLOCKS_PER_SEQ + b) * 5 % (N_SEQS * BLOCKS_PER_SEQ);
            for (uint32_t t = 0; t < take; ++t, ++total) {
                ids[total] = (uint32_t)(mix(seq * 1000 + done[i] + t) % VOCAB);
                rows[total] = total;
            }
            start[++n] = total;
        }
        const lw_batch batch = {
            n, total, BLOCKS_PER_SEQ, ids, start, lens, tables, rows, NULL, NULL, has_adapters(v) ? adapted : NULL,
            0, NULL};
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
                         float* out) {
    for (uint32_t first = 0; first < N_SEQS; first += batch)
        run(v, model, threads, first, batch < N_SEQS - first ? batch : N_SEQS - first, chunk, out);
    uint64_t hash = 0xCBF29CE484222325u;
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
        const uint64_t hash = hash_all(v, model, 2, 3, 32, out);
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
    hash_all(v, model, 2, 9, 32, out);
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
    for (int i = 1; i < argc; ++i) {
        if (strncmp(argv[i], "--isa=", 6) == 0) only = argv[i] + 6;
        quick |= strcmp(argv[i], "--quick") == 0;
        perturb |= strcmp(argv[i], "--perturb") == 0;
    }
    float* out = calloc((size_t)N_SEQS * MAX_TOKENS * VOCAB, sizeof(float));
    if (out == NULL) return 2;
    int failed = 0, passed = 0;
    for (size_t i = 0; i < sizeof variants / sizeof *variants; ++i) {
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
                const uint64_t hash = hash_all(v, model, ways[w].threads, ways[w].batch, ways[w].chunk, out);
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
