// Attention to shared rows (lw_attention_config.shared_rows, DeepSeek V4).
#ifndef LW_KINDS_SHARED_H
#define LW_KINDS_SHARED_H

#include "graph/worker.h"

// Phases: queries, rows and entries of all tokens, what each query sees, and its results in lw_attention_own.attn.
void lw_mix_shared(lw_worker* w, const lw_layer* layer, uint32_t index);
// x += the output projections of the results.
void lw_add_shared(lw_worker* w, const lw_layer* layer, uint32_t index);

#endif
