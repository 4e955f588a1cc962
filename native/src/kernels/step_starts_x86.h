// Start values of integer sums of unsigned codes on x86: the sums end as floats (LW_MAGIC_BITS) without the codes'
// offset.
#ifndef LW_KERNELS_STEP_STARTS_X86_H
#define LW_KERNELS_STEP_STARTS_X86_H

#include <immintrin.h>

#include "kernels/kernel.h"

enum { STEPS = LW_SEGMENT / 16 };  // maximum number of steps in a segment, and number of totals of a row in it

// LW_MAGIC_BITS minus the sum that an offset of 1 << shift (shift below 0: no offset) adds to the step that ends with
// each 16 inputs. A step is these 16 inputs with `halves`, else their group. `to`: [STEPS], 32-byte aligned.
LW_INLINE void lw_step_starts(const int shift, const bool halves, const int32_t* totals, int32_t* to) {
    _Static_assert(STEPS == 8, "one vector holds the totals of a segment");
    __m256i sums = _mm256_setzero_si256();
    if (shift >= 0) {
        sums = _mm256_loadu_si256((const __m256i*)totals);
        // The second half of a group alone: the group's total minus the first half's.
        if (halves) sums = _mm256_sub_epi32(sums, _mm256_slli_epi64(sums, 32));
        sums = _mm256_slli_epi32(sums, shift);
    }
    _mm256_store_si256((__m256i*)to, _mm256_sub_epi32(_mm256_set1_epi32(LW_MAGIC_BITS), sums));
}

#endif
