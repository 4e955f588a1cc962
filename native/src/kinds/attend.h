// The phase in which queries meet keys.
#ifndef LW_KINDS_ATTEND_H
#define LW_KINDS_ATTEND_H

#include "graph/worker.h"
#include "kinds/kind.h"
#include "kinds/tiles.h"

// Makes the session's room for splits large enough for a tiling.
void lw_widen_splits(lw_session* s, const lw_tiling* tiling);
// Fills all tilings for a batch.
void lw_make_tiles(lw_session* s, const lw_batch* batch);
// Where attention reads queries and writes results, both [rows][heads][dimensions]. The thread that completes the
// results of heads first .. first + n - 1 of some rows calls `finish`, unless it is NULL.
typedef struct lw_attended {
    const float* q;
    float* out;
    void (*finish)(lw_worker* w, const lw_layer* layer, lw_rows rows, size_t first, size_t n);
} lw_attended;
// A phase: attention of layer `index`.
void lw_attend(lw_worker* w, uint32_t index, lw_attended of);
// Multiplies columns first .. first + n - 1 of a row's results by the layer's output gate. lw_attend does so unless
// attention is latent: there results are complete only behind the value matrices.
void lw_pass_gate(lw_worker* w, const lw_layer* layer, size_t row, size_t first, size_t n);
// Whether lw_attend leaves the codes of its result in b->codes.
bool lw_attend_makes_codes(const lw_worker* w, uint32_t index);
// Finishes the keys (norm, RoPE) and values of a layer and stores them in the cache (attention.c).
void lw_store_keys(lw_worker* w, const lw_layer* layer, uint32_t index);
// The two halves of attention that is not latent, for towers, whose queries see keys of later rows. The first finishes
// queries, keys and values of all rows and stores the keys and values. The second is x += output(attention).
void lw_begin_attention(lw_worker* w, const lw_layer* layer, uint32_t index);
void lw_end_attention(lw_worker* w, const lw_layer* layer, uint32_t index);

#endif
