// Towers: one picture, one set of rows. Models with every form of patches run over one picture at every level of this
// CPU, with 1 to 3 threads, in units of different sizes and in slices. Prints "model hash" lines; then what is refused.
// --isa=NAME: only that level; --quick: one way only; --part=K/N: every Nth model.
#include "hash_floats.h"
#include "model/model.h"
#include "small_model.h"

enum { SIDE = 6, MERGE = 2, INPUTS = 128, TABLE = 36, MOST = 256 * 192, HEIGHT = 72, WIDTH = 96 };

typedef struct variant {
    const char* name;
    lw_type type;
    lw_type kv;
    uint32_t hidden, heads, ffn;
    lw_patch_positions positions;
    bool layered;  // LayerNorm and biases, else RMSNorm and gated FFNs
    bool turned;   // RoPE by row and column
    bool mean;     // of each block, and a norm of it
    uint32_t taps;
    bool bare;  // no layers, norms before positions
} variant;

static const variant variants[] = {
    {"f32 square", LW_F32, LW_F32, 72, 2, 96, LW_POSITIONS_SQUARE, true, false, false, 0, false},
    {"q8_0 stretched", LW_Q8_0, LW_F32, 64, 4, 128, LW_POSITIONS_STRETCHED, true, true, false, 1, false},
    {"q8_0 resampled, f16 keys", LW_Q8_0, LW_F16, 192, 3, 160, LW_POSITIONS_RESAMPLED, false, false, true, 0, false},
    {"q8_0 without layers", LW_Q8_0, LW_I8, 96, 1, 0, LW_POSITIONS_TABLES, true, false, false, 0, true},
};
enum { N_VARIANTS = sizeof variants / sizeof *variants };

typedef struct tower {
    lw_rope rope;
    uint32_t axes[64];
    lw_layer_config layers[LAYERS];
    lw_dense_config dense[4];
    lw_model_config model;
} tower;

static void set_config(const variant* v, tower* out) {
    const uint32_t dim = v->hidden / v->heads;
    for (uint32_t i = 0; i < dim / 2; ++i) out->axes[i] = i % 2;
    out->rope = (lw_rope){.theta = 1e2, .rotated = dim, .scale = 1, .axes = out->axes};
    for (uint32_t i = 0; i < 4; ++i) {
        out->dense[i] = (lw_dense_config){.outputs = i % 2 == 0 ? 96 : 40,
                                          .bias = i % 2 == 0,
                                          .activation = i % 2 == 0 ? LW_GELU : LW_IDENTITY,
                                          .input_norm = i == 0 && v->mean ? LW_INPUT_RMS : LW_INPUT_NONE,
                                          .input_eps = 1e-5f};
        if (i == 2) out->dense[i].input_norm = LW_INPUT_LAYER;
    }
    for (uint32_t l = 0; l < LAYERS; ++l)
        out->layers[l] = (lw_layer_config){.attention = {.n_heads = v->heads,
                                                         .n_kv_heads = v->heads,
                                                         .head_dim = dim,
                                                         .both_ways = 1,
                                                         .rope = v->turned ? 0 : LW_NO_ROPE,
                                                         .qkv_bias = v->layered,
                                                         .output_bias = v->layered},
                                           .ffn = {.kind = v->layered ? LW_FFN_PLAIN : LW_FFN_GATED,
                                                   .size = v->ffn,
                                                   .bias = v->layered,
                                                   .activation = v->layered ? LW_GELU_TANH : LW_SILU}};
    out->model = (lw_model_config){.n_layers = v->bare ? 0 : LAYERS,
                                   .hidden_size = v->hidden,
                                   .context_length = 1000,
                                   .rms_norm_eps = 1e-6f,
                                   .embedding_scale = 1,
                                   .logit_scale = 1,
                                   .n_ropes = v->turned,
                                   .ropes = &out->rope,
                                   .layers = out->layers,
                                   .norm = v->layered ? LW_NORM_LAYER : LW_NORM_RMS,
                                   .norm_bias = v->layered,
                                   .pooled = 1,
                                   .n_positions = v->positions == LW_POSITIONS_SQUARE ? 144 : TABLE,
                                   .n_dense = 2 * (1 + v->taps),
                                   .dense = out->dense,
                                   .patches = {.side = SIDE,
                                               .merge = MERGE,
                                               .bias = v->layered,
                                               .mean = {0.5f, 0.4f, 0.3f},
                                               .deviation = {0.5f, 0.3f, 0.2f},
                                               .positions = v->positions,
                                               .input_norm = v->bare,
                                               .norm = !v->layered || v->bare,
                                               .norm_first = v->bare,
                                               .output_eps = v->layered ? 0 : 1e-3f,
                                               .mean_of_block = v->mean,
                                               .n_taps = v->taps,
                                               .taps = {0}}};
}

static lw_model* make_model(const variant* v, const char* isa) {
    static lw_program_tensor tensors[100];
    static float values[MOST];
    tower config;
    uint32_t n = 0;
    lw_model* model = NULL;
    set_config(v, &config);
    expect(lw_program_tensors(&config.model, tensors, 100, &n) == LW_OK && n <= 100, v->name);
    expect(lw_model_create(&config.model, isa, 2, &model) == LW_OK, v->name);
    if (model == NULL) exit(1);
    for (uint32_t i = 0; i < n; ++i) {
        const lw_program_tensor* t = &tensors[i];
        if (t->optional) continue;
        const lw_tensor tensor = float_tensor(values, t->rows, t->cols, 100 * (uint32_t)t->role + t->layer);
        for (size_t k = 0; t->rows > 1 && k < (size_t)t->rows * t->cols; ++k) values[k] *= 4;
        const bool coded = t->rows > 1 && t->role != LW_POSITION_EMBEDDING && t->cols % 32 == 0;
        expect(lw_model_load(model, t->role, t->layer, &tensor, coded ? v->type : LW_F32) == LW_OK, "a tensor");
    }
    expect(lw_model_finish(model) == LW_OK, "the model is complete");
    return model;
}

static lw_session* open_tower(const lw_model* model, const variant* v, uint32_t threads, uint32_t unit) {
    const lw_session_config config = {
        .n_threads = threads, .n_blocks = 6, .max_batch_tokens = unit, .max_batch_logits = 1, .kv_type = v->kv};
    lw_session* session = NULL;
    expect(lw_session_open(model, &config, &session) == LW_OK, "a session of a tower");
    if (session == NULL) exit(1);
    return session;
}

static uint8_t pixels[HEIGHT * WIDTH * 3];

static lw_picture picture_of(const variant* v) {
    for (size_t i = 0; i < sizeof pixels; ++i) pixels[i] = (uint8_t)((i * 37 + i * i / 7) % 251);
    const bool square = v->positions == LW_POSITIONS_SQUARE;
    return (lw_picture){pixels, HEIGHT, square ? HEIGHT : WIDTH};
}

static size_t n_floats(const variant* v, const lw_picture* p) {
    return p->height / SIDE / MERGE * (p->width / SIDE / MERGE) * 40 * (1 + v->taps);
}

// Returns how many times lw_see_advance was called.
static uint32_t see(lw_session* session, const lw_picture* picture, uint64_t budget_ns, float* rows) {
    uint32_t done = 0, calls = 0;
    expect(lw_see_begin(session, picture, rows) == LW_OK, "lw_see_begin");
    for (; !done && calls < 1000; ++calls) expect(lw_see_advance(session, budget_ns, &done) == LW_OK, "lw_see_advance");
    return calls;
}

static void test_one_answer(const variant* v, const char* only, bool quick) {
    static const struct {
        uint32_t threads, unit;
        uint64_t budget_ns;
    } ways[] = {{2, 64, UINT64_MAX}, {1, 4, UINT64_MAX}, {3, 20, 0}};
    static float rows[60 * 80];
    uint64_t golden = 0;
    const lw_picture picture = picture_of(v);
    for (size_t l = 0; l < LW_LEVEL_COUNT; ++l) {
        const char* level = lw_level_names[l];
        if (lw_cpu_check(level) != LW_OK || (only != NULL && strcmp(level, only) != 0)) continue;
        lw_model* model = make_model(v, level);
        for (size_t w = 0; w < (quick ? 1 : sizeof ways / sizeof *ways); ++w) {
            lw_session* session = open_tower(model, v, ways[w].threads, ways[w].unit);
            const uint32_t calls = see(session, &picture, ways[w].budget_ns, rows);
            expect((calls == 1) == (ways[w].budget_ns > 0), "a budget of nothing is one unit of work");
            const uint64_t hash = hash_floats(hash_of_nothing, rows, n_floats(v, &picture));
            if (golden == 0) golden = hash;
            char what[128];
            snprintf(what, sizeof what, "%s, %s: %u threads, units of %u", v->name, level, ways[w].threads,
                     ways[w].unit);
            expect(hash == golden, what);
            lw_session_close(session);
        }
        lw_model_close(model);
    }
    printf("%s %016llx\n", v->name, (unsigned long long)golden);
}

// A picture that is begun takes the place of one that is not done, and changes nothing of the next.
static void test_dropped(void) {
    const variant* v = &variants[1];
    static float alone[60 * 80], rows[60 * 80], others[60 * 80];
    lw_model* model = make_model(v, NULL);
    lw_session* session = open_tower(model, v, 1, 16);
    const lw_picture picture = picture_of(v), other = {pixels + 30, 24, 24};
    uint32_t done = 1;
    see(session, &picture, UINT64_MAX, alone);
    expect(lw_see_begin(session, &other, others) == LW_OK && lw_see_advance(session, 0, &done) == LW_OK && !done,
           "a picture that is not done");
    see(session, &picture, 0, rows);
    expect(memcmp(alone, rows, n_floats(v, &picture) * sizeof(float)) == 0, "the rows of the picture");
    pixels[sizeof pixels - 1] ^= 255;
    see(session, &picture, UINT64_MAX, rows);
    expect(memcmp(alone, rows, 40 * sizeof(float)) != 0, "the first row depends on the last pixel");
    lw_session_close(session);
    lw_model_close(model);
}

static void test_refusals(void) {
    const variant* v = &variants[0];
    static float rows[60 * 80];
    lw_model* model = make_model(v, NULL);
    lw_session *session = open_tower(model, v, 1, 16), *other = NULL;
    lw_picture picture = picture_of(v);
    uint32_t done = 0;
    ARGUMENT(lw_see_advance(session, 0, &done), "no picture has been begun");
    ARGUMENT(lw_see_begin(NULL, &picture, rows), "no argument may be NULL");
    ARGUMENT(lw_see_begin(session, NULL, rows), "no argument may be NULL");
    ARGUMENT(lw_see_begin(session, &picture, NULL), "no argument may be NULL");
    ARGUMENT(lw_see_advance(session, 0, NULL), "no argument may be NULL");
    picture.pixels = NULL;
    ARGUMENT(lw_see_begin(session, &picture, rows), "pixels must not be NULL");
    picture = (lw_picture){pixels, 0, 12};
    ARGUMENT(lw_see_begin(session, &picture, rows), "0 x 12 pixels, must be multiples of 12");
    picture = (lw_picture){pixels, 72, 78};
    ARGUMENT(lw_see_begin(session, &picture, rows), "72 x 78 pixels, must be multiples of 12");
    picture = (lw_picture){pixels, 96, 96};
    ARGUMENT(lw_see_begin(session, &picture, rows), "at most 192 patches");
    picture = (lw_picture){pixels, 36, 48};
    ARGUMENT(lw_see_begin(session, &picture, rows), "must be a square of 144 patches");
    const lw_texts texts = {.n_texts = 1};
    const uint32_t start[2] = {0, 1}, ids[1] = {0};
    lw_texts good = texts;
    good.start = start, good.token_ids = ids;
    ARGUMENT(lw_encode(session, &good, rows), "lw_see_begin takes them");
    lw_session_config config = {.n_threads = 1, .n_blocks = 6, .max_batch_tokens = 18, .max_batch_logits = 1};
    ARGUMENT(lw_session_open(model, &config, &other), "must be a multiple of a block's 4 patches");
    config.max_batch_tokens = 16, config.n_blocks = 0;
    ARGUMENT(lw_session_open(model, &config, &other), "n_blocks is 0");
    lw_session_close(session);
    lw_model_close(model);
}

static void test_configs(void) {
    tower c;
    lw_model* model = NULL;
#define SPOILT(change, says)                                        \
    do {                                                            \
        set_config(&variants[1], &c);                               \
        change;                                                     \
        ARGUMENT(lw_model_create(&c.model, NULL, 1, &model), says); \
    } while (0)
    SPOILT(c.model.patches.side = 65, "patches.side is 65, must be 1 to 64");
    SPOILT((c.model.patches.side = 0, c.model.n_positions = 0, c.model.vocab_size = 1), "there is no patches");
    SPOILT(c.model.patches.merge = 9, "patches.merge is 9");
    SPOILT(c.model.patches.deviation[1] = 0, "patches.deviation is 0");
    SPOILT(c.model.patches.norm = 2, "patches.norm is 2");
    SPOILT(c.model.patches.norm_first = 1, "patches.norm_first is 1, must be 0");
    SPOILT((c.model.norm = LW_NORM_RMS, c.model.norm_bias = 0, c.model.patches.input_norm = 1),
           "patches.input_norm is 1, must be 0");
    SPOILT(c.model.n_layers = 0, "patches.n_taps is 1, must be 0");
    SPOILT(c.model.vocab_size = 1, "vocab_size is 1, must be 0");
    SPOILT(c.model.n_positions = 35, "n_positions is 35, must be a square");
    SPOILT(c.model.n_dense = 0, "n_dense beside patches is 0");
    SPOILT(c.model.n_dense = 3, "n_dense beside taps is 3, must be a multiple of 2");
    SPOILT(c.model.patches.taps[0] = 2, "patches.taps is 2, must be 0 to 1");
    SPOILT(c.dense[3].outputs = 39, "outputs of a tap is 39, must be 40");
    SPOILT(c.layers[1].attention.window = 5, "layer 1 of a tower");
    SPOILT(c.layers[0].attention.both_ways = 2, "both_ways is 2, must be 0 or 1");
    SPOILT(c.axes[3] = 3, "axes is 3, must be 0 to 2");
#undef SPOILT
}

int main(int argc, char** argv) {
    const char* only = NULL;
    bool calls = false, quick = false;
    uint32_t part = 0, parts = 1;
    for (int i = 1; i < argc; ++i) {
        if (strncmp(argv[i], "--isa=", 6) == 0) only = argv[i] + 6;
        quick |= strcmp(argv[i], "--quick") == 0;
        calls |= strcmp(argv[i], "--calls") == 0;
        if (strncmp(argv[i], "--part=", 7) == 0) sscanf(argv[i] + 7, "%u/%u", &part, &parts);
    }
    for (uint32_t i = part; !calls && i < N_VARIANTS; i += parts) test_one_answer(&variants[i], only, quick);
    test_dropped();
    test_refusals();
    test_configs();
    if (calls) list_calls();
    return report();
}
