// Loads a model and runs steps of it, so that their instructions can be counted under emulation:
//     one_step DESCRIPTION DATA ISA PROMPT STEPS
// It prefills PROMPT tokens in one step (none if 0), then decodes STEPS times one token, and prints a hash of the last
// logits. bench_arm.py makes DESCRIPTION, a text: "config" and its numbers in the order of uniform_config, then for
// each tensor "tensor ROLE LAYER TYPE ROWS COLS ROPE_HEADS BYTES". DATA holds the tensors' bytes, one tensor after the
// other.
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "lanewise.h"
#include "uniform_model.h"

static void check(lw_status status) {
    if (status == LW_OK) return;
    fprintf(stderr, "one_step: %s\n", lw_last_error());
    exit(1);
}

static void bad(const char* path) {
    fprintf(stderr, "one_step: %s is not what bench_arm.py writes\n", path);
    exit(1);
}

static lw_model* load(const char* description, const char* data, const char* isa, uniform_config* c) {
    FILE *text = fopen(description, "r"), *bytes = fopen(data, "rb");
    lw_model* model;
    if (text == NULL || bytes == NULL) bad(text ? data : description);
    if (fscanf(text, "config %u %u %u %u %u %u %u %u %u %u %u %u %f %lf", &c->n_layers, &c->hidden_size, &c->ffn_size,
               &c->n_heads, &c->n_kv_heads, &c->head_dim, &c->vocab_size, &c->context_length, &c->sliding_window,
               &c->tied_embeddings, &c->qkv_bias, &c->qk_norm, &c->rms_norm_eps, &c->rope_theta) != 14)
        bad(description);
    check(uniform_create(c, isa, 1, &model));
    unsigned role, layer, type;
    lw_tensor t;
    while (fscanf(text, " tensor %u %u %u %u %u %u %" SCNu64, &role, &layer, &type, &t.rows, &t.cols, &t.rope_heads,
                  &t.n_bytes) == 7) {
        void* buffer = malloc(t.n_bytes);
        if (buffer == NULL || fread(buffer, 1, t.n_bytes, bytes) != t.n_bytes) bad(data);
        t.data = buffer;
        t.type = (lw_type)type;
        check(lw_model_load(model, (lw_role)role, layer, &t, t.type));
        free(buffer);
    }
    if (!feof(text)) bad(description);
    fclose(text);
    fclose(bytes);
    check(lw_model_finish(model));
    return model;
}

int main(int argc, char** argv) {
    if (argc != 6) return 2;
    const uint32_t prompt = (uint32_t)strtoul(argv[4], NULL, 10), steps = (uint32_t)strtoul(argv[5], NULL, 10);
    uniform_config config = {0};
    lw_model* model = load(argv[1], argv[2], argv[3], &config);
    const uint32_t blocks = (prompt + steps) / LW_BLOCK_TOKENS + 1;
    const lw_session_config room = {.n_threads = 1,
                                    .n_blocks = blocks,
                                    .max_batch_tokens = prompt ? prompt : 1,
                                    .max_batch_logits = 1,
                                    .kv_type = LW_F16};
    lw_session* session;
    check(lw_session_open(model, &room, &session));
    uint32_t *table = malloc(blocks * 4), *ids = malloc((prompt + 1) * 4), context = 0;
    float* logits = calloc(config.vocab_size, sizeof(float));
    for (uint32_t i = 0; i < blocks; ++i) table[i] = i;
    for (uint32_t i = 0; i <= prompt; ++i) ids[i] = i * 7919 % config.vocab_size;
    for (uint32_t step = prompt ? 0 : 1; step <= steps; ++step) {
        const uint32_t n = step ? 1 : prompt, start[] = {0, n}, row = n - 1;
        const lw_batch batch = {.n_seqs = 1,
                                .n_logits = 1,
                                .block_table_stride = blocks,
                                .token_ids = ids,
                                .query_start = start,
                                .context_lens = &context,
                                .block_tables = table,
                                .logit_rows = &row};
        check(lw_step(session, &batch, logits, NULL));
        context += n;
    }
    uint64_t hash = 0xCBF29CE484222325u;  // FNV-1a
    for (size_t i = 0; i < config.vocab_size * sizeof(float); ++i)
        hash = (hash ^ ((const uint8_t*)logits)[i]) * 0x100000001B3u;
    printf("%016" PRIx64 "\n", hash);
    lw_session_close(session);
    lw_model_close(model);
    free(logits);
    free(ids);
    free(table);
    return 0;
}
