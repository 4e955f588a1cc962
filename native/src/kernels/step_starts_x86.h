// What integer sums of unsigned codes start at on x86, so that they end as floats (LW_MAGIC_BITS) without the offset.
#ifndef LW_KERNELS_STEP_STARTS_X86_H
#define LW_KERNELS_STEP_STARTS_X86_H

#include <immintrin.h>

#include "kernels/kernel.h"

enum { STEPS = LW_SEGMENT / 16 };  // most steps of a segment, and totals of a row in it

// LW_MAGIC_BITS less what an offset of 1 << shift (none below 0) adds to the step that ends with each 16 inputs: of those
// alone with `halves`, else of their group. `to`: [STEPS], 32-byte aligned.
LW_INLINE void lw_step_starts(const int shift, const bool halves, const int32_t* totals, int32_t* to) {
    _Static_assert(STEPS == 8, "one vector holds the totals of a segment");
    __m256i sums = _mm256_setzero_si256();
    if (shift >= 0) {
        sums = _mm256_loadu_si256((const __m256i*)totals);
        // The second half of a group alone: its total less that of the first.
        if (halves) sums = _mm256_sub_epi32(sums, _mm256_slli_epi64(sums, 32));
        sums = _mm256_slli_epi32(sums, shift);
    }
    _mm256_store_si256((__m256i*)to, _mm256_sub_epi32(_mm256_set1_epi32(LW_MAGIC_BITS), sums));
}

#endif
