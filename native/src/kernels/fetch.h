// Prefetching of weights. Kernels prefetch as many lines as they use in the same time. On Arm they prefetch a set
// distance ahead, or not at all (lw_cpu_fetch_ahead). On x86 the lines and the time depend on the core
// (lw_cpu_fetch_order; prefetch-by-core.md of the guide's decisions).
#ifndef LW_KERNELS_FETCH_H
#define LW_KERNELS_FETCH_H

#include "cpu.h"

#if defined(__aarch64__)
#include "kernels/kernel.h"

// Call when `bytes` of weights are about to be used: prefetches the same number of bytes lw_cpu_fetch_ahead further on,
// four lines at a time. A few lines may be prefetched twice. Past the end of the weights a prefetch does nothing.
// Assembly kernels do the same with each group (neon/fetch.inc).
LW_INLINE void lw_fetch_ahead(const uint8_t* weights, size_t bytes) {
    const size_t ahead = lw_cpu_fetch_distance();
    if (ahead == 0) return;
    for (const uint8_t *line = weights + ahead, *end = line + bytes; line < end; line += 256)
        __asm__ volatile(
            "prfm pldl1keep, [%0]\n\t"
            "prfm pldl1keep, [%0, #64]\n\t"
            "prfm pldl1keep, [%0, #128]\n\t"
            "prfm pldl1keep, [%0, #192]"
            :
            : "r"(line));
}

// The same for part `part` of `parts` of a panel. All parts together prefetch the whole panel, also what precedes its
// segments.
LW_INLINE void lw_fetch_ahead_of(const lw_matrix* w, size_t panel, size_t part, size_t parts) {
    if (lw_cpu_fetch_distance() == 0) return;
    const size_t first = w->panel_bytes * part / parts, end = w->panel_bytes * (part + 1) / parts;
    lw_fetch_ahead(w->data + panel * w->panel_bytes + first, end - first);
}

#else
#include "kernels/lanes.h"
#include "kernels/layout.h"

enum {
    // LW_FETCH_LINES: line after line, so many bytes before use. Zen 5 needs 200 ns at 40 GB/s.
    LW_FETCH_AHEAD = 8192,
    // LW_FETCH_LINES also prefetches one line of each group so much earlier still. That makes its page known, and the
    // hardware prefetcher runs there before the other lines are asked for.
    LW_FETCH_FAR = 24576,
    // LW_FETCH_PAGES: so many segments before use, each group prefetches the next line of each page of a stretch.
    // Hardware prefetchers work within pages, and some cores wait less for memory when many of these are at work.
    LW_FETCH_SEGMENTS = 16,
    LW_FETCH_PAGE = 4096,
    // LW_FETCH_WHOLE and LW_FETCH_PACED: a segment at once, or line by line, to the second-level cache, so many bytes
    // before use.
    LW_FETCH_EARLY = 32768,
};

typedef struct lw_fetch {
    const uint8_t* first;  // address that a segment's first group prefetches from; NULL when nothing is left to
                           // prefetch
    lw_fetch_order order;  // constant in kernels for one row, which are compiled for every order
} lw_fetch;

// LW_FETCH_WHOLE: prefetches `bytes` (whole lines) from LW_FETCH_EARLY after `first`.
LW_INLINE void lw_fetch_whole(const uint8_t* first, const size_t bytes) {
    for (size_t line = 0; line < bytes; line += 64)
        __asm__ volatile("prefetcht1 %0" : : "m"(first[LW_FETCH_EARLY + line]));
}

// LW_FETCH_PACED: prefetches the same bytes, but at most one line in four cycles, or in three. Returns `segment` as a
// result of these instructions, so that no read of it comes before them. In a burst the core drops prefetches for which
// it has no miss buffer, and reads of lines that are still on their way take miss buffers too.
LW_INLINE const uint8_t* lw_fetch_paced(const uint8_t* segment, const size_t bytes, const int cycles) {
    const uint8_t* line = segment + LW_FETCH_EARLY;
    const size_t step = cycles == 4 ? 64 : 0;  // a multiplication takes three cycles, an addition one
    size_t gone = 0;
    for (size_t i = 0; i < bytes; i += 64, line += step, gone += step)
        __asm__ volatile("prefetcht1 %1\n\timul $1, %0, %0" : "+r"(line) : "m"(line[i - gone]));
    __asm__("" : "+r"(line));
    return line - LW_FETCH_EARLY - gone;
}

// The prefetches for the groups of `segment`; `data` is where the matrix begins.
LW_INLINE lw_fetch lw_fetch_of(const lw_fetch_order order, const uint8_t* data, const uint8_t* segment,
                               const size_t segment_bytes) {
    if (order == LW_FETCH_WHOLE) lw_fetch_whole(segment, segment_bytes);
    if (order == LW_FETCH_WHOLE || order == LW_FETCH_PACED || order == LW_FETCH_NONE) return (lw_fetch){NULL, order};
    if (order == LW_FETCH_LINES)
        return (lw_fetch){segment + lw_ceil_div(LW_FETCH_AHEAD, segment_bytes) * segment_bytes, order};
    const size_t n = (size_t)(segment - data) / segment_bytes, in_stretch = n % LW_FETCH_SEGMENTS;
    const size_t stretch = (n - in_stretch + LW_FETCH_SEGMENTS) * segment_bytes;
    return (lw_fetch){data + stretch + in_stretch * LW_SEGMENT_GROUPS * 64, order};
}

// As volatile assembly, because the compiler would move all prefetches of a group next to each other.
LW_INLINE void lw_prefetch(const uint8_t* line) { __asm__ volatile("prefetcht0 %0" : : "m"(*line)); }

// Prefetches part `part` of `parts` of the lines that belong to group `i` of the segment.
LW_INLINE void lw_fetch_part(const lw_fetch f, const size_t i, const size_t part, const size_t parts,
                             const size_t segment_bytes) {
    const size_t bytes = segment_bytes / LW_SEGMENT_GROUPS;
    if (f.order == LW_FETCH_PAGES) {
#pragma GCC unroll 20
        for (size_t page = part; page * 64 < bytes; page += parts) lw_prefetch(f.first + i * 64 + page * LW_FETCH_PAGE);
    } else {
        // Whole lines only, if less than half a line is left over: the rest of a segment's last line comes with its
        // neighbour.
        const size_t group = bytes % 64 < 32 ? bytes / 64 * 64 : bytes;
        if (part == 0) __builtin_prefetch(f.first + i * group + LW_FETCH_FAR, 0, 2);  // to the second-level cache
#pragma GCC unroll 20
        for (size_t line = part; line * 64 < group; line += parts) lw_prefetch(f.first + i * group + line * 64);
    }
}

LW_INLINE void lw_fetch_group(const lw_fetch f, const size_t i, const size_t segment_bytes) {
    if (f.first != NULL) lw_fetch_part(f, i, 0, 1, segment_bytes);
}
#endif

#endif
