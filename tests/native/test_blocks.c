// Blocks of the KV cache that are copied from session to session.
#include <limits.h>
#include <unistd.h>

#include "small_model.h"

static lw_session* new_session(const lw_model* model, uint32_t threads, lw_type kv_type) {
    const lw_session_config config = small_session(threads, kv_type);
    lw_session* session = NULL;
    if (lw_session_open(model, &config, &session) != LW_OK) exit(2);
    return session;
}

static bool same_logits(const float* found, const float* wanted) {
    return memcmp(found, wanted, VOCAB * sizeof(float)) == 0;
}

// A block of one session goes on in another, at another place and with another number of threads, with the same bits.
static void test_blocks_from_elsewhere(const lw_model* model, lw_type kv_type) {
    static one_sequence s, next;
    lw_session *here = new_session(model, 2, kv_type), *there = new_session(model, 1, kv_type);
    const size_t n = lw_session_block_bytes(here);
    uint8_t* bytes = malloc(n + 1);
    if (bytes == NULL) exit(2);
    set_batch(&s, 20, 0, 0);
    expect(lw_step(here, &s.batch, s.logits, &s.drawn) == LW_OK, "a prompt in block 0");
    set_batch(&next, 1, 20, 0);
    expect(lw_step(here, &next.batch, next.logits, &next.drawn) == LW_OK, "and the token after it");
    bytes[n] = 0x5A;
    expect(lw_session_read_block(here, 0, bytes) == LW_OK && bytes[n] == 0x5A, "as many bytes are read as are said");
    expect(lw_session_block_bytes(there) == n && lw_session_write_block(there, 5, bytes) == LW_OK, "and written");
    set_batch(&s, 1, 20, 5);
    expect(lw_step(there, &s.batch, s.logits, &s.drawn) == LW_OK && same_logits(s.logits, next.logits),
           "a sequence goes on behind a block that was read elsewhere");
    memset(bytes, 0x5A, n);
    ARGUMENT(lw_session_read_block(NULL, 0, bytes), "must not be NULL");
    ARGUMENT(lw_session_read_block(here, 0, NULL), "must not be NULL");
    ARGUMENT(lw_session_read_block(here, 8, bytes), "block is 8; accepted: less than 8");
    ARGUMENT(lw_session_write_block(NULL, 0, bytes), "must not be NULL");
    ARGUMENT(lw_session_write_block(here, 0, NULL), "must not be NULL");
    ARGUMENT(lw_session_write_block(here, UINT_MAX, bytes), "block is 4294967295");
    expect(bytes[0] == 0x5A && bytes[n - 1] == 0x5A, "a refused call reads nothing");
    HARMLESS(lw_session_block_bytes(NULL));
    // test_states.c copies states; this model has none.
    ARGUMENT(lw_session_read_state(NULL, 0, bytes), "must not be NULL");
    ARGUMENT(lw_session_read_state(here, 0, bytes), "place is 0; accepted: less than 0");
    ARGUMENT(lw_session_write_state(NULL, 0, bytes), "must not be NULL");
    ARGUMENT(lw_session_write_state(here, 0, bytes), "place is 0; accepted: less than 0");
    expect(lw_session_state_bytes(here) == 0, "no state has no bytes");
    HARMLESS(lw_session_state_bytes(NULL));
    free(bytes);
    lw_session_close(here);
    lw_session_close(there);
}

int main(int argc, char** argv) {
    alarm(300);  // what hangs fails
    const uniform_config config = small_config();
    lw_model* model = NULL;
    if (uniform_create(&config, NULL, 2, &model) != LW_OK || load_all(model) != LW_OK) exit(2);
    if (lw_model_finish(model) != LW_OK) exit(2);
    test_blocks_from_elsewhere(model, LW_F32);
    test_blocks_from_elsewhere(model, LW_F16);
    test_blocks_from_elsewhere(model, LW_I8);
    test_blocks_from_elsewhere(model, LW_I4);
    lw_model_close(model);
    if (argc > 1 && strcmp(argv[1], "--calls") == 0) list_calls();
    return report();
}
