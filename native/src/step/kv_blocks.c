// Blocks of the KV cache, copied out of a session and into it.
#include <string.h>

#include "graph/session.h"
#include "status.h"

size_t lw_session_block_bytes(const lw_session* session) {
    return session == NULL || session->model->config.pooled ? 0 : session->groups.n_slots * session->kv.block_bytes;
}

static lw_status check_block(const lw_session* session, uint32_t block, const void* bytes, const char* function) {
    if (session == NULL || bytes == NULL)
        return lw_fail(LW_ERR_ARGUMENT, "%s: session and bytes must not be NULL", function);
    if (session->model->config.pooled)
        return lw_fail(LW_ERR_ARGUMENT, "%s: a session of a pooled model has no blocks", function);
    if (block >= session->kv.n_blocks)
        return lw_fail(LW_ERR_ARGUMENT, "%s: block is %u; accepted: less than %u", function, block,
                       session->kv.n_blocks);
    return LW_OK;
}

lw_status lw_session_read_block(const lw_session* session, uint32_t block, void* bytes) {
    LW_RETURN_IF_FAILED(check_block(session, block, bytes, "lw_session_read_block"));
    const lw_kv_cache* kv = &session->kv;
    const uint8_t* from = (const uint8_t*)kv->block.data + block * kv->block_bytes;
    uint8_t* to = bytes;
    for (uint32_t i = 0; i < session->groups.n_slots; ++i, from += kv->slot_bytes, to += kv->block_bytes)
        memcpy(to, from, kv->block_bytes);
    return LW_OK;
}

lw_status lw_session_write_block(lw_session* session, uint32_t block, const void* bytes) {
    LW_RETURN_IF_FAILED(check_block(session, block, bytes, "lw_session_write_block"));
    const lw_kv_cache* kv = &session->kv;
    uint8_t* to = (uint8_t*)kv->block.data + block * kv->block_bytes;
    const uint8_t* from = bytes;
    for (uint32_t i = 0; i < session->groups.n_slots; ++i, to += kv->slot_bytes, from += kv->block_bytes)
        memcpy(to, from, kv->block_bytes);
    return LW_OK;
}
