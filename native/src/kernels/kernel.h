// What every matmul kernel reads and writes: packed weights, activations, and one row of the kernel table.
//
// A panel is 32 consecutive outputs. A kernel computes one panel for all rows: threads split outputs and never a sum,
// and every lane is one output. matmul__scalar.c defines to the bit what each kernel must compute.
#ifndef LW_KERNELS_KERNEL_H
#define LW_KERNELS_KERNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cpu.h"

// Helpers are inlined into each kernel, so that constants of the kernel are constants in its helpers, too.
#if defined(LW_ISA_scalar)
#define LW_INLINE static inline  // if forced, the scalar loops of sixteen would take minutes to compile
#else
#define LW_INLINE static inline __attribute__((always_inline))
#endif

enum {
    LW_PANEL = 32,     // outputs in a panel
    LW_GROUP = 32,     // inputs that share an activation scale (numeric contract), and the unit of packing
    LW_SEGMENT = 128,  // inputs whose activations lie next to each other, and whose weights are decoded together
    LW_SEGMENT_GROUPS = LW_SEGMENT / LW_GROUP,
};

// as_float(LW_MAGIC_BITS + i) == LW_MAGIC + i exactly for |i| < 2^22. So i * s, rounded once, is one fused operation on
// an integer sum that started at LW_MAGIC_BITS: fma(as_float(sum), s, -LW_MAGIC * s). The addend is exact because
// scales have at most 20 significant bits, and finite because they are below LW_SCALE_LIMIT.
#define LW_MAGIC_BITS 0x4B400000
#define LW_MAGIC 12582912.0f
#define LW_SCALE_LIMIT 0x1p103f

// How a level packs quantized weights (quantizer/FORMAT.md, "Packed layouts").
typedef struct lw_layout {
    uint8_t chunk;       // consecutive inputs of one output that lie next to each other: 2, 4 or 8
    bool q4_toggled;     // Q4_0 nibbles hold q ^ 8 (two's complement of q - 8) instead of q
    bool q8_biased;      // Q8_0 bytes hold q + 128 (unsigned) instead of q
    uint8_t row_block;   // 1 or 2: in products of more than one row, so many activation rows alternate every 8 inputs,
                         // and their scales alternate by group
    bool segment_major;  // activations lie [segment][row] instead of [row][segment]
} lw_layout;

typedef struct lw_matrix {
    lw_type type;
    lw_layout layout;
    uint32_t rows;    // outputs
    uint32_t cols;    // inputs
    uint32_t panels;  // ceil(rows / LW_PANEL); missing outputs are zero
    uint32_t groups;  // ceil(cols / LW_GROUP)
    size_t panel_bytes;
    const uint8_t* data;  // [panels][panel_bytes], 64-byte aligned
    int8_t table[16];     // levels of table and trellis types
} lw_matrix;

// An input whose magnitude is more than LW_OUTLYING times that of every other input of its group. Its code in the group
// is 0, and its product is added in f32 (kernels/outliers.inc).
enum { LW_OUTLYING = 8 };
typedef struct lw_outlier {
    float value;
    uint32_t input;  // index within the row
} lw_outlier;

// A batch of activation rows. Quantized matrices read q, scale and totals; float matrices read f32.
typedef struct lw_activations {
    size_t rows;
    size_t cols;
    size_t segments;   // ceil(cols / LW_SEGMENT); inputs past cols are zero up to the segment's end
    size_t row_block;  // see lw_q_offset; rows up to the next multiple of it exist and are zero
    bool segment_major;
    size_t stride;          // bytes from a row of q to the next
    size_t segment_stride;  // bytes from a segment of q to the next one of the same rows
    const int8_t* q;
    const float* scale;     // at lw_scale_offset. With row_block 2 each scale of a pair of rows is stored twice: a a b
                            // b
    const int32_t* totals;  // at lw_totals_offset: for each group the sum of its first 16 codes, and of all 32
    const float* sums;      // [rows][segments][LW_SUMS], or NULL if no minimums are used: the factors of minimums
                            // (row-major at every level)
    const uint8_t* outlying;     // [rows][segments], or NULL without outliers: bit g is set if group g has an outlier
    const lw_outlier* outliers;  // [rows][segments][LW_SEGMENT_GROUPS]; only groups whose bit is set have an entry
    const float* f32;            // row r at f32 + r * f32_stride
    size_t f32_stride;           // cols, unless the rows are columns of wider rows
    float peak;                  // for lw_lane_ops.quantize: 0, or what all groups take for their largest magnitude
} lw_activations;

// The stride is an odd number of segments: a kernel walks one segment of many rows, which then spread over all cache
// sets.
static inline size_t lw_activation_stride(size_t cols) {
    return ((cols + LW_SEGMENT - 1) / LW_SEGMENT | 1) * LW_SEGMENT;
}

// Sets the fields that follow from x->rows, x->cols and the level. A batch of one row is never interleaved.
static inline void lw_lay_out_activations(lw_activations* x, lw_layout level) {
    x->f32_stride = x->cols;
    x->segments = (x->cols + LW_SEGMENT - 1) / LW_SEGMENT;
    x->row_block = x->rows > 1 ? level.row_block : 1;
    x->segment_major = level.segment_major;
    x->stride = level.segment_major ? LW_SEGMENT : lw_activation_stride(x->cols);
    x->segment_stride = (level.segment_major ? x->rows : x->row_block) * LW_SEGMENT;
}

// Offset in q of input k of a row. With row_block 1 rows are plain; with 2, two rows alternate every 8 inputs.
static inline size_t lw_q_offset(const lw_activations* x, size_t row, size_t k) {
    const size_t block = x->row_block, segment = k / LW_SEGMENT;
    k %= LW_SEGMENT;
    return segment * x->segment_stride + row / block * block * x->stride + k / 8 * 8 * block + row % block * 8 + k % 8;
}

// Index of the total for the 16 inputs that hold input k: of these 16 alone in the first half of a group, of the whole
// group in the second half.
static inline size_t lw_totals_offset(const lw_activations* x, size_t row, size_t k) {
    return (k / LW_SEGMENT * (x->segment_stride / x->row_block) + row * x->stride + k % LW_SEGMENT) / 16;
}

// Index of the scale of a group. Segment-major: [segment][row][4]. Row-major: [row][group]. Pairs of rows:
// [pair][group][4], where a scale's second copy follows the first.
static inline size_t lw_scale_offset(const lw_activations* x, size_t row, size_t group) {
    const size_t groups = x->segments * LW_SEGMENT_GROUPS;
    if (x->row_block == 2) return (row / 2 * groups + group) * 4 + row % 2 * 2;
    if (!x->segment_major) return row * groups + group;
    const size_t rows = x->segment_stride / LW_SEGMENT;
    return (group / LW_SEGMENT_GROUPS * rows + row) * LW_SEGMENT_GROUPS + group % LW_SEGMENT_GROUPS;
}

// Number of floats that the scales of a batch take; enough for any batch with fewer rows and inputs.
static inline size_t lw_scale_floats(const lw_activations* x) {
    const size_t groups = x->segments * LW_SEGMENT_GROUPS;
    return x->row_block == 2 ? (x->rows + 1) / 2 * groups * 4 : x->rows * groups;
}

// Per segment: scale times the sum of the codes of each 32 inputs, then of each 16; each product is rounded once.
enum { LW_SUMS_16 = LW_SEGMENT / 32, LW_SUMS = LW_SUMS_16 + LW_SEGMENT / 16 };

// A view of `n` rows of a batch. `first` is a multiple of row_block; n is 1 only if the batch has one row.
static inline lw_activations lw_rows_of(const lw_activations* x, size_t first, size_t n) {
    lw_activations part = *x;
    part.rows = n;
    if (first == 0) return part;
    if (x->f32 != NULL) part.f32 += first * x->f32_stride;
    if (x->q == NULL) return part;
    part.q += lw_q_offset(x, first, 0);
    part.scale += lw_scale_offset(x, first, 0);
    part.totals += lw_totals_offset(x, first, 0);
    if (x->sums != NULL) part.sums += first * x->segments * LW_SUMS;
    if (x->outlying != NULL) part.outlying += first * x->segments;
    if (x->outliers != NULL) part.outliers += first * x->segments * LW_SEGMENT_GROUPS;
    return part;
}

typedef struct lw_output {
    float* data;  // row r, output n of the matrix at data[r * stride + n]
    size_t stride;
    bool add;  // true: add to the present value (one rounding) instead of overwriting it
} lw_output;

// Computes outputs [32 * panel, 32 * panel + 32) of all rows. `scratch` is private to the calling thread, 64-byte
// aligned, lw_matmul_scratch_bytes(rows) long.
typedef void (*lw_matmul_fn)(const lw_matrix* weights, const lw_activations* x, size_t panel, lw_output out,
                             void* scratch);

// Kernel scratch besides the results of one panel for every row and the chains of minimums: a panel's decoded segment,
// its scales, and on AMX sums.
enum { LW_KERNEL_SCRATCH_BYTES = 40960 };

static inline size_t lw_matmul_scratch_bytes(size_t rows) {
    return 2 * (rows + 16) * LW_PANEL * sizeof(float) + LW_KERNEL_SCRATCH_BYTES;
}

// Valid outputs of a panel: LW_PANEL except in the last one.
static inline size_t lw_panel_outputs(const lw_matrix* w, size_t panel) {
    const size_t left = w->rows - panel * LW_PANEL;
    return left < LW_PANEL ? left : LW_PANEL;
}

// Epilogue of all kernels: writes results[row][32] to the output. Adding 0 turns -0 into +0, because whether a tiny sum
// underflows to -0 would depend on whether groups of zeros follow.
static inline void lw_store_panel(const lw_matrix* w, size_t panel, size_t rows, const float* results, lw_output out) {
    const size_t n = lw_panel_outputs(w, panel);
    for (size_t r = 0; r < rows; ++r) {
        float* to = out.data + r * out.stride + panel * LW_PANEL;
        const float* from = results + r * LW_PANEL;
        if (out.add)
            for (size_t i = 0; i < n; ++i) to[i] += from[i] + 0.0f;
        else
            for (size_t i = 0; i < n; ++i) to[i] = from[i] + 0.0f;
    }
}

typedef struct lw_kernel {
    const char* symbol;
    lw_matmul_fn run;  // NULL when built for another CPU family
    lw_type weights;
    uint32_t levels;    // bit set of the levels that use the kernel
    uint32_t min_rows;  // smallest number of rows that the kernel is used for
} lw_kernel;

extern const lw_kernel lw_kernels[];
extern const uint32_t lw_n_kernels;

extern const lw_layout lw_level_layouts[LW_LEVEL_COUNT];

// The type's name in lower case, such as "q4_0"; "unknown" for numbers that are no type.
const char* lw_type_name(lw_type type);

// The first row of the table that fits; NULL when the type has no kernel.
const lw_kernel* lw_kernel_find(lw_type type, lw_level level, size_t rows);

// The multi-row kernel that would be chosen if `kernel`, also a multi-row one, were removed from the table. Which of
// the two is faster depends on the core. NULL if there is none. NULL also for coded types: measuring all of them would
// take most of a second, and they use the other types' tiles.
const lw_kernel* lw_kernel_rival(const lw_kernel* kernel, lw_level level);

// The smallest number of rows a kernel is used for: the number set by lw_kernel_choose (0 = none), or the table's, or
// UINT32_MAX for tiles of SVE where its vectors are no longer than those of I8MM. Only kernels with a rival have one set, and never below the table's.
uint32_t lw_kernel_min_rows(const lw_kernel* kernel);
void lw_kernel_choose(const lw_kernel* kernel, uint32_t min_rows);

#endif
