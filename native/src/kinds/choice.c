#include "kinds/choice.h"

#include <string.h>

#include "kinds/kind.h"

// Bits that sort as unsigned numbers in the order of the scores; both zeros are one number.
static uint32_t key_of(float score) {
    const float value = score + 0.0f;
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

void lw_choose_largest(const float* scores, size_t n, size_t k, uint32_t* out) {
    enum { PARTS = 3, BITS = 11, BINS = 1 << BITS };
    uint32_t kth = 0, known = 0;  // the bits of the k-th largest key that are known
    size_t left = k;              // as many keys that equal it so far are among the k largest
    for (int part = 0; part < PARTS; ++part) {
        const int shift = 32 - BITS * (part + 1) > 0 ? 32 - BITS * (part + 1) : 0;
        const uint32_t bits = ~known >> shift & (BINS - 1);
        uint32_t counts[BINS] = {0}, bin = bits;
        for (size_t i = 0; i < n; ++i) {
            const uint32_t key = key_of(scores[i]);
            if ((key & known) == kth) ++counts[key >> shift & bits];
        }
        for (; counts[bin] < left; --bin) left -= counts[bin];
        kth |= bin << shift;
        known |= bits << shift;
    }
    for (size_t i = 0, chosen = 0; chosen < k; ++i) {
        const uint32_t key = key_of(scores[i]);
        if (key < kth || (key == kth && left == 0)) continue;
        left -= key == kth;
        out[chosen++] = (uint32_t)i;
    }
}

// Phases for fewer rows than threads: the scores piece by piece, then the choice.
static void choose_in_pieces(lw_worker* w, const lw_layer* layer, uint32_t index, const lw_scored_choice* by,
                             size_t most) {
    const lw_attention_config* c = &layer->config.attention;
    const size_t pieces = (most + by->piece - 1) / by->piece;
    lw_taker parts = lw_this_phase(w, w->rows * pieces);
    for (size_t item; lw_take_item(&parts, &item);) {
        const size_t row = item / pieces, first = item % pieces * by->piece, n = by->of_row(w, c, row);
        if (first >= n) continue;
        const size_t end = first + by->piece < n ? first + by->piece : n;
        by->score(w, layer, index, row, (lw_tokens){first, end}, by->scores + row * by->scored);
    }
    lw_end_phase(w, LW_OP_ATTENTION);
    lw_taker rows = lw_this_phase(w, w->rows);
    for (size_t row; lw_take_item(&rows, &row);)
        if (by->of_row(w, c, row) > 0) by->choose(w, c, index, row, by->scores + row * by->scored);
    lw_end_phase(w, LW_OP_ATTENTION);
}

void lw_choose_rows(lw_worker* w, const lw_layer* layer, uint32_t index, const lw_scored_choice* by) {
    const lw_attention_config* c = &layer->config.attention;
    size_t most = 0;
    for (size_t row = 0; row < w->rows; ++row) lw_widen(&most, by->of_row(w, c, row));
    if (most == 0) return;
    if (w->rows < w->s->threads) {
        choose_in_pieces(w, layer, index, by, most);
        return;
    }
    float* scores = by->scores + w->thread * by->scored;
    lw_taker items = lw_this_phase(w, w->rows);
    for (size_t row; lw_take_item(&items, &row);) {
        const size_t n = by->of_row(w, c, row);
        if (n == 0) continue;
        by->score(w, layer, index, row, (lw_tokens){0, n}, scores);
        by->choose(w, c, index, row, scores);
    }
    lw_end_phase(w, LW_OP_ATTENTION);
}
