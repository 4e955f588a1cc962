// A prediction head that guesses blocks (lw_head_config.block), as mtp.c runs it.
#ifndef LW_KINDS_BLOCKS_H
#define LW_KINDS_BLOCKS_H

#include "graph/worker.h"
#include "kinds/kind.h"

bool lw_has_block_head(const lw_model_config* c);
// Checks one layer of a model that has such a head.
lw_status lw_check_block_head(const lw_model_config* c, uint32_t layer);
// Stores keys and values of all rows, of what lw_fuse_taps has made, in the head's layers from `first` on.
void lw_feed_blocks(lw_worker* w, uint32_t first);
// Stores 0 in their place (lw_batch.skips_head).
void lw_skip_blocks(lw_worker* w, uint32_t first);
// When the head runs alone: sets x of all rows; keeps the rows that get logits.
void lw_enter_block(lw_worker* w, const lw_layer* head);
void lw_leave_block(lw_worker* w);

#endif
