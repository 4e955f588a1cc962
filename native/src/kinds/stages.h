// Attention in two stages, for threads that would have no job.
#ifndef LW_KINDS_STAGES_H
#define LW_KINDS_STAGES_H

#include "kinds/tiles.h"

// Makes the session's room for stages large enough for a tiling, and takes its memory.
void lw_widen_stages(lw_session* s, const lw_tiling* tiling);
void lw_take_stages(lw_session* s, lw_parts* parts);
// Cuts the tiles of a batch for attention in stages, if that is worth a barrier: each tile is then listed once for each
// split of its context. Returns false, and changes nothing, if it is not.
bool lw_make_stages(lw_session* s, lw_tiling* tiling);
// Makes a job of a tile, of which `first` is the first head, one of the first stage; then one of the second, with its
// part of the heads and dimensions.
void lw_score_job(lw_attention_job* job, const lw_tile* tile, size_t n_heads, size_t first);
void lw_value_job(lw_attention_job* job, const lw_stages* stages, size_t part);

#endif
