// How queries of sparse attention choose what they see. Candidates are tokens, blocks of tokens, or entries.
#ifndef LW_KINDS_CHOICE_H
#define LW_KINDS_CHOICE_H

#include "graph/worker.h"

typedef struct lw_scored_choice {
    float* scores;         // [threads][scored]
    size_t scored, piece;  // most candidates of a row; as many one thread scores where threads share a row
    // Number of candidates of a row that have scores: 0, 1, 2, ... Without a choice to make it is 0.
    size_t (*of_row)(const lw_worker* w, const lw_attention_config* c, size_t row);
    // Writes the score of each candidate in `some` to scores[candidate]. `some` begins at a multiple of `piece`.
    void (*score)(lw_worker* w, const lw_layer* layer, uint32_t index, size_t row, lw_tokens some, float* scores);
    void (*choose)(lw_worker* w, const lw_attention_config* c, uint32_t index, size_t row, const float* scores);
} lw_scored_choice;

// Phases: scores what each row may choose from, and chooses.
void lw_choose_rows(lw_worker* w, const lw_layer* layer, uint32_t index, const lw_scored_choice* by);

// Writes the indices of the k largest of n scores, ascending; of equal scores the first ones. k is below n.
void lw_choose_largest(const float* scores, size_t n, size_t k, uint32_t* out);

#endif
