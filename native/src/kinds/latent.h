// Latent attention: what attention (attention.c, attend.c) does in another way where keys and values are rows of one matrix.
#ifndef LW_KINDS_LATENT_H
#define LW_KINDS_LATENT_H

#include "graph/worker.h"

// Queries of rows of the cache, [rows][n_heads * lw_key_dim], and their results, [rows][n_heads * latent_rank].
float* lw_latent_queries(const lw_session* s);
float* lw_latent_results(const lw_session* s);

// Phases: the queries, where they have a rank; queries of rows of the cache; results of heads from those of rows of the cache.
void lw_make_latent_queries(lw_worker* w, const lw_layer* layer);
void lw_absorb_keys(lw_worker* w, const lw_layer* layer);
void lw_expand_values(lw_worker* w, const lw_layer* layer);
// Of one row: the part of queries that turns, multiplied by `scale`, the row of the cache, and codes.
void lw_make_latent_row(lw_worker* w, const lw_layer* layer, size_t row, float scale);
// Codes of the results of heads first .. first + n - 1 of some rows.
void lw_quantize_latents(lw_worker* w, const lw_layer* layer, lw_rows rows, size_t first, size_t n);

#endif
