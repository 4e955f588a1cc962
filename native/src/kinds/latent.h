// Latent attention (MLA): the parts that differ from attention.c and attend.c. The keys and values of all heads come
// from one latent row of each token.
#ifndef LW_KINDS_LATENT_H
#define LW_KINDS_LATENT_H

#include "graph/worker.h"

// Absorbed queries, [rows][n_heads * lw_key_dim], and attention's results over latent rows, [rows][n_heads *
// latent_rank].
float* lw_latent_queries(const lw_session* s);
float* lw_latent_results(const lw_session* s);

// Whether a gate meets the results of latent attention's heads, before the output matrix.
static inline bool lw_gates_latent(const lw_layer* layer) {
    return layer->config.attention.latent_rank > 0 && layer->config.attention.output_gate > 0;
}

// Phases. The first computes the queries from the latent queries, if query_rank > 0. The second multiplies the queries
// by the heads' key matrices. The third multiplies attention's results by the heads' value matrices.
void lw_make_latent_queries(lw_worker* w, const lw_layer* layer);
void lw_absorb_keys(lw_worker* w, const lw_layer* layer);
void lw_expand_values(lw_worker* w, const lw_layer* layer);
// Finishes one row of the cache: the norm of its latent part, RoPE of the rest.
void lw_make_latent_key(const lw_worker* w, const lw_layer* layer, size_t row);
// Works on one row: scales its queries, rotates their RoPE part, finishes its row of the cache, and quantizes the input
// of lw_absorb_keys.
void lw_make_latent_row(lw_worker* w, const lw_layer* layer, size_t row, float scale);
// Quantizes attention's results of heads first .. first + n - 1 of some rows.
void lw_quantize_latents(lw_worker* w, const lw_layer* layer, lw_rows rows, size_t first, size_t n);

#endif
