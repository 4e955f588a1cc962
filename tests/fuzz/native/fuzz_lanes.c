// Every function of the lane tables that this CPU runs against scalar's, bit for bit: norms, quantization, RoPE,
// activations, softmax, what a cache holds, and attention over it whole and in splits.
#include <float.h>
#include <math.h>

#include "../../native/kernel_data.h"
#include "input.h"
#include "kernels/lane_ops.h"
#include "kernels/limit_ops.h"
#include "kv_cache.h"

enum { MAX_VALUES = 300, MAX_BLOCKS = 40, MAX_ROWS = 24 };

typedef struct values {
    float* data;  // ends at an unreadable page
    size_t n;
} values;

static values make_values(size_t n) { return (values){guarded_alloc(n * sizeof(float)), n}; }

static void free_values(values v) { guarded_free(v.data, v.n * sizeof(float)); }

static values copy_of(values from) {
    const values v = make_values(from.n);
    memcpy(v.data, from.data, from.n * sizeof(float));
    return v;
}

// Made-up values of one size, some of which are the input's.
static values take_values(fuzz_input* in, size_t n) {
    const values v = make_values(n);
    uint64_t seed = take_word(in);
    const float scale = ldexpf(1.0f, (int)take_below(in, 200) - 100);
    for (size_t i = 0; i < n; ++i) v.data[i] = (float)random_between(&seed, -4096, 4096) * 0x1p-12f * scale;
    for (uint32_t changes = take_below(in, 12); changes > 0 && n > 0; --changes)
        v.data[take_below(in, (uint32_t)n)] = take_float(in);
    return v;
}

// Scores that overflow are NaN, of which each compiler makes something else: attention is promised for less.
static const float LARGEST_ATTENDED = 1e15f;

static values take_bounded_values(fuzz_input* in, size_t n, float most) {
    const values v = take_values(in, n);
    for (size_t i = 0; i < n; ++i) v.data[i] = v.data[i] > most ? most : v.data[i] < -most ? -most : v.data[i];
    return v;
}

static bool are_within(values v, float most) {
    for (size_t i = 0; i < v.n; ++i)
        if (v.data[i] > most || v.data[i] < -most) return false;
    return true;
}

static bool is_same(const float* a, const float* b, size_t n) {
    for (size_t i = 0; i < n; ++i)
        if (memcmp(a + i, b + i, sizeof *a) != 0 && !(isnan(a[i]) && isnan(b[i]))) return false;
    return true;
}

static const lw_lane_ops* scalar_ops(void) { return lw_level_lane_ops[LW_LEVEL_SCALAR]; }

static bool runs_here(int level) { return lw_cpu_levels() >> level & 1; }

static void check_elementwise(fuzz_input* in) {
    const size_t n = 1 + take_below(in, MAX_VALUES), half = n / 2 + 1;
    const values x = take_values(in, 2 * half), y = take_values(in, 2 * half), want = make_values(n);
    const float eps = fabsf(take_float(in)), shift = take_float(in);
    const float asked = fabsf(take_float(in)), scale = asked > 0 ? asked : 1;  // infinity times zero is NaN
    for (int level = 0; level < LW_LEVEL_COUNT; ++level) {
        if (!runs_here(level)) continue;
        const lw_lane_ops* ops = lw_level_lane_ops[level];
        const values got = make_values(n);
        scalar_ops()->rmsnorm(want.data, x.data, y.data, n, eps);
        ops->rmsnorm(got.data, x.data, y.data, n, eps);
        FUZZ_CHECK(is_same(got.data, want.data, n), "rmsnorm of %zu at level %s", n, lw_level_names[level]);
        scalar_ops()->silu_mul(want.data, x.data, y.data, n);
        ops->silu_mul(got.data, x.data, y.data, n);
        FUZZ_CHECK(is_same(got.data, want.data, n), "silu_mul of %zu at level %s", n, lw_level_names[level]);
        scalar_ops()->exp(want.data, x.data, n, shift, scale);
        ops->exp(got.data, x.data, n, shift, scale);
        FUZZ_CHECK(is_same(got.data, want.data, n), "exp of %zu at level %s", n, lw_level_names[level]);
        const float sums[] = {scalar_ops()->sum_exp(x.data, n, shift, scale), ops->sum_exp(x.data, n, shift, scale)};
        FUZZ_CHECK(is_same(sums, sums + 1, 1), "sum_exp of %zu at level %s", n, lw_level_names[level]);
        const float most[] = {scalar_ops()->max(x.data, n), ops->max(x.data, n)};
        FUZZ_CHECK(most[0] == most[1], "max of %zu at level %s", n, lw_level_names[level]);
        free_values(got);
        const values head = copy_of(x), other = copy_of(x);
        scalar_ops()->rope(head.data, y.data, y.data + half, 2 * half);
        ops->rope(other.data, y.data, y.data + half, 2 * half);
        FUZZ_CHECK(is_same(head.data, other.data, head.n), "rope of %zu at level %s", head.n, lw_level_names[level]);
        free_values(head);
        free_values(other);
    }
    free_values(x);
    free_values(y);
    free_values(want);
}

// One row as codes of a level, read back in the plain order.
typedef struct coded_row {
    bool finite;
    int8_t codes[3 * LW_SEGMENT];
    float scales[3 * LW_SEGMENT_GROUPS], sums[3 * LW_SUMS];
    int32_t totals[3 * LW_SEGMENT / 16];
    uint8_t outlying[3];
    lw_outlier outliers[3 * LW_SEGMENT_GROUPS];
} coded_row;

static coded_row quantize_at(int level, const float* x, size_t cols, size_t rows, size_t row) {
    const plain_activations plain = {.cols = cols,
                                     .groups = (cols + LW_SEGMENT - 1) / LW_SEGMENT * LW_SEGMENT_GROUPS,
                                     .stride = lw_activation_stride(cols),
                                     .q = calloc(rows, lw_activation_stride(cols)),
                                     .scale = calloc(rows * 3 * LW_SEGMENT_GROUPS, sizeof(float)),
                                     .f32 = calloc(rows * cols, sizeof(float))};
    const lw_activations a = pack_activations(&plain, rows, lw_level_layouts[level]);
    coded_row r;
    memset(&r, 0, sizeof r);
    r.finite = lw_level_lane_ops[level]->quantize(&a, row, 0, a.segments, x);
    for (size_t k = 0; r.finite && k < a.segments * LW_SEGMENT; ++k) r.codes[k] = a.q[lw_q_offset(&a, row, k)];
    for (size_t k = 0; r.finite && k < a.segments * LW_SEGMENT; k += 16)
        r.totals[k / 16] = a.totals[lw_totals_offset(&a, row, k)];
    for (size_t g = 0; r.finite && g < a.segments * LW_SEGMENT_GROUPS; ++g) {
        r.scales[g] = a.scale[lw_scale_offset(&a, row, g)];
        r.outlying[g / 4] = a.outlying[row * a.segments + g / 4];
        if (r.outlying[g / 4] >> g % 4 & 1) r.outliers[g] = a.outliers[row * a.segments * LW_SEGMENT_GROUPS + g];
    }
    if (r.finite) memcpy(r.sums, a.sums + row * a.segments * LW_SUMS, a.segments * LW_SUMS * sizeof(float));
    activations_free(&a);
    free(plain.q);
    free(plain.scale);
    free(plain.f32);
    return r;
}

static void check_quantize(fuzz_input* in) {
    const size_t cols = 1 + take_below(in, 3 * LW_SEGMENT), rows = 1 + take_below(in, 5);
    const size_t row = take_below(in, (uint32_t)rows);
    const values x = take_values(in, cols);
    const uint8_t way = take_byte(in);
    if (way < 16) x.data[take_below(in, (uint32_t)cols)] = way % 3 == 0 ? NAN : way % 3 == 1 ? INFINITY : -INFINITY;
    const coded_row want = quantize_at(LW_LEVEL_SCALAR, x.data, cols, rows, row);
    FUZZ_CHECK(want.finite == (way >= 16), "quantize of %zu values says finite: %d", cols, want.finite);
    for (int level = 0; level < LW_LEVEL_COUNT; ++level) {
        if (!runs_here(level)) continue;
        const coded_row got = quantize_at(level, x.data, cols, rows, row);
        FUZZ_CHECK(memcmp(&got, &want, sizeof got) == 0, "quantize of %zu values, row %zu of %zu, at level %s", cols,
                   row, rows, lw_level_names[level]);
    }
    free_values(x);
}

typedef struct cache {
    lw_kv_cache kv;
    uint8_t* data;
    size_t n_bytes;
} cache;

// Keys and values of every place of every block; NaN between them, as in memory that nobody wrote.
static cache make_cache(fuzz_input* in, lw_type type, uint32_t head_dim, uint32_t kv_heads, uint32_t n_blocks) {
    const lw_attention_config config = {.n_kv_heads = kv_heads, .head_dim = head_dim};
    cache c = {0};
    lw_kv_describe(&config, type, n_blocks, &c.kv);
    c.n_bytes = c.kv.slot_bytes;
    c.data = guarded_alloc(c.n_bytes);
    memset(c.data, 0xFF, c.n_bytes);
    c.kv.block.data = c.data;
    const float most = type == LW_F16 ? 65504 : LARGEST_ATTENDED;
    const values keys = take_bounded_values(in, (size_t)kv_heads * head_dim * 8, most);
    const values these = take_bounded_values(in, keys.n, most);
    const size_t token = (size_t)kv_heads * head_dim;
    for (uint32_t i = 0; i < n_blocks * LW_BLOCK_TOKENS; ++i)
        (void)lw_kv_write(&c.kv, scalar_ops(), 0, i / LW_BLOCK_TOKENS, i % LW_BLOCK_TOKENS,
                          (lw_kv_rows){1, keys.data + i * 7 % 8 * token, these.data + i * 3 % 8 * token, NULL});
    free_values(keys);
    free_values(these);
    return c;
}

static void free_cache(cache c) { guarded_free(c.data, c.n_bytes); }

static void attend(const lw_lane_ops* ops, lw_attention_job job, values out, bool in_splits) {
    const size_t rows = lw_attention_rows(job.n_tokens, job.group);
    const lw_tokens splits = lw_attention_splits(job.first_position, job.n_tokens, job.window, job.length);
    const size_t floats = lw_attention_state_floats(rows, job.kv.value_dim), n = splits.end - splits.first;
    const values scratch =
        make_values(lw_align_floats(lw_attention_scratch_floats(job.n_tokens, job.group, job.kv.value_dim)));
    memset(scratch.data, 0xFF, scratch.n * sizeof(float));
    memset(out.data, 0, out.n * sizeof(float));
    job.out = out.data;
    job.scratch = scratch.data;
    if (in_splits) {
        float* states = aligned_alloc(64, (n * floats * sizeof(float) + 63) / 64 * 64);
        if (states == NULL) exit(2);
        for (size_t i = n; i-- > 0;) ops->attention_split(&job, splits.first + i, states + i * floats);
        ops->attention_merge(&job, states, n);
        free(states);
    } else {
        ops->attention(&job);
    }
    free_values(scratch);
}

static void check_attention(fuzz_input* in) {
    static const lw_type types[] = {LW_F16, LW_F32, LW_I8, LW_I4, LW_I8_I4};
    const lw_type type = types[take_below(in, 5)];
    const uint32_t head_dim = 2 * (1 + take_below(in, 66)), kv_heads = 1 + take_below(in, 3);
    const uint32_t n_blocks = 1 + take_below(in, take_byte(in) < 240 ? 5 : MAX_BLOCKS);
    const cache c = make_cache(in, type, head_dim, kv_heads, n_blocks);
    uint32_t blocks[MAX_BLOCKS];
    for (uint32_t i = 0; i < n_blocks; ++i) blocks[i] = take_flag(in) ? i : take_below(in, n_blocks);
    lw_attention_job job = {.kv = lw_kv_slot(&c.kv, 0), .blocks = blocks, .kv_head = take_below(in, kv_heads)};
    job.group = 1 + take_below(in, 9);
    job.n_tokens = 1 + take_below(in, MAX_ROWS / (uint32_t)job.group);
    const uint32_t room = n_blocks * LW_BLOCK_TOKENS - (uint32_t)job.n_tokens;
    job.first_position = take_below(in, room + 1);
    job.window = take_flag(in) ? 1 + take_below(in, room + 40) : 0;
    job.q_stride = job.out_stride = job.group * head_dim + take_below(in, 20);
    const values q = take_bounded_values(in, job.n_tokens * job.q_stride, LARGEST_ATTENDED);
    const values want = make_values(q.n), got = make_values(q.n);
    job.q = q.data;
    attend(scalar_ops(), job, want, false);
    for (int level = 0; level < LW_LEVEL_COUNT; ++level)
        for (int in_splits = 0; in_splits < 2; ++in_splits) {
            if (!runs_here(level)) continue;
            attend(lw_level_lane_ops[level], job, got, in_splits);
            FUZZ_CHECK(is_same(got.data, want.data, want.n),
                       "attention at level %s, in splits %d: cache type %d, head_dim %u, group %zu, %zu tokens at %zu, "
                       "window %zu",
                       lw_level_names[level], in_splits, (int)type, head_dim, job.group, job.n_tokens,
                       job.first_position, job.window);
        }
    free_values(q);
    free_values(want);
    free_values(got);
    free_cache(c);
}

static void check_store(fuzz_input* in) {
    const lw_attention_config config = {.n_kv_heads = 1, .head_dim = 2 * (1 + take_below(in, 128))};
    lw_kv_cache kv;
    static const lw_type types[] = {LW_I8, LW_I4, LW_I8_I4};
    lw_kv_describe(&config, types[take_below(in, 3)], 1, &kv);
    uint8_t* want = guarded_alloc(kv.block_bytes);
    kv.block.data = want;
    const lw_kv_view view = lw_kv_slot(&kv, 0);
    const values key = take_values(in, config.head_dim), value = take_values(in, config.head_dim);
    const uint8_t way = take_byte(in);
    if (way < 8) value.data[take_below(in, config.head_dim)] = way % 2 ? NAN : INFINITY;
    const size_t offset = take_below(in, LW_BLOCK_TOKENS);
    memset(want, 0xA5, view.head_bytes);
    const bool finite = scalar_ops()->store_kv(&view, want, offset, key.data, value.data);
    // Sums of a turn may be more than floats hold; nothing is turned in 8-bit codes.
    const float most = FLT_MAX / LW_MAX_HEAD_DIM;
    if (way < 8 || kv.type == LW_I8 || (are_within(key, most) && are_within(value, most)))
        FUZZ_CHECK(finite == (way >= 8), "store_kv says finite: %d", finite);
    for (int level = 0; level < LW_LEVEL_COUNT; ++level) {
        if (!runs_here(level)) continue;
        uint8_t* got = guarded_alloc(view.head_bytes);
        memset(got, 0xA5, view.head_bytes);
        FUZZ_CHECK(lw_level_lane_ops[level]->store_kv(&view, got, offset, key.data, value.data) == finite,
                   "store_kv at level %s and finite values", lw_level_names[level]);
        FUZZ_CHECK(!finite || memcmp(got, want, view.head_bytes) == 0, "store_kv of %u values at level %s",
                   config.head_dim, lw_level_names[level]);
        guarded_free(got, view.head_bytes);
    }
    guarded_free(want, view.head_bytes);
    free_values(key);
    free_values(value);
}

// Reads nothing past the end; which bytes are read is up to each.
static void check_limits(fuzz_input* in) {
    const size_t bytes = 4096 * (size_t)(1 + take_below(in, 8));
    void* data = guarded_alloc(bytes);
    memset(data, take_byte(in), bytes);
    for (int level = 0; level < LW_LEVEL_COUNT; ++level) {
        if (!runs_here(level)) continue;
        for (int way = 0; way < LW_READ_WAYS; ++way) (void)lw_level_limit_ops[level]->read(data, bytes, way);
        lw_level_limit_ops[level]->multiply(1 + take_below(in, 4));
    }
    guarded_free(data, bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static void (*const checks[])(fuzz_input*) = {check_elementwise, check_quantize, check_attention, check_store,
                                                  check_limits};
    fuzz_input in = {data, size};
    const uint64_t saved = lw_fp_enter();
    checks[take_below(&in, sizeof checks / sizeof *checks)](&in);
    lw_fp_restore(saved);
    return 0;
}
