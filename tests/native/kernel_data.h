// Made-up weights and activations for kernels: plain values first, then packed for any level's layout.
#ifndef LW_TESTS_KERNEL_DATA_H
#define LW_TESTS_KERNEL_DATA_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kernels/half.h"
#include "kernels/layout.h"
#include "model/coded.h"

// splitmix64
static inline uint64_t next_random(uint64_t* state) {
    uint64_t z = (*state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static inline int random_between(uint64_t* state, int low, int high) {
    return low + (int)(next_random(state) % (uint64_t)(high - low + 1));
}

static const lw_type all_types[] = {
    LW_Q4_0, LW_Q8_0, LW_Q6_K, LW_F32, LW_F16, LW_BF16,
#define CODED(type, ...) type,
#include "kernels/formats.inc"
#undef CODED
};

static inline bool holds_rows_of(lw_type type, uint32_t cols) {
    lw_format f;
    if (!lw_find_format(type, &f)) return type != LW_Q6_K || cols % 256 == 0;
    return cols % (f.super == LW_SUPER_BLOCK ? 256 : LW_GROUP) == 0;
}

// What the values are like: EDGE_CASES has every finite value a file may hold, subnormals included; LARGEST_SUMS only
// the codes of largest magnitude in most rows; ORDINARY is for measuring speed.
typedef enum data_kind { EDGE_CASES, LARGEST_SUMS, ORDINARY } data_kind;

// Memory that ends at an unreadable page: one byte too far is a fault.
static inline void* guarded_alloc(size_t bytes) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t body = (bytes + page - 1) / page * page;
    uint8_t* base = mmap(NULL, page + body + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED || mprotect(base + page + body, page, PROT_NONE) != 0) {
        perror("guarded_alloc");
        exit(2);
    }
    *(size_t*)base = page + body + page;
    return base + page + body - bytes;
}

static inline void guarded_free(const void* pointer, size_t bytes) {
    if (pointer == NULL) return;
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uint8_t* base = (uint8_t*)pointer + bytes - (bytes + page - 1) / page * page - page;
    munmap(base, *(size_t*)base);
}

// One matrix as plain values. Q4_0: codes -8..7; Q8_0: -128..127; Q6_K: -32..31, whose scale is half * sub_scale.
typedef struct plain_matrix {
    lw_type type;
    uint32_t rows, cols, groups;
    int8_t* codes;       // [rows][groups * 32], zero past cols
    uint16_t* scales;    // [rows][groups] halves; Q6_K: [rows][cols / 256]
    int8_t* sub_scales;  // Q6_K: [rows][cols / 16]
    uint32_t* values;    // float types: [rows][cols] bits
    uint8_t* open;       // coded types: [rows] open rows (model/coded.h)
    int8_t table[16];    // coded types
} plain_matrix;

static inline size_t scales_per_row(const plain_matrix* m) { return m->type == LW_Q6_K ? m->cols / 256 : m->groups; }

static inline int is_float_type(lw_type type) { return type == LW_F32 || type == LW_F16 || type == LW_BF16; }

// Every kind of finite half a file may hold: ordinary, zero, subnormal, largest, and neighbours far apart.
static inline uint16_t random_half(data_kind kind, uint64_t* rng) {
    static const uint16_t special[] = {0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x0400, 0x7BFF, 0xFBFF};
    const int way = kind == ORDINARY ? 11 : random_between(rng, 0, 11);
    if (way == 0) return special[next_random(rng) % 8];
    float value = (float)random_between(rng, 1, 4096) * 0x1p-17f;
    if (way == 1) value *= 1e4f;
    if (way == 2) value *= 1e-4f;
    return lw_float_to_half(next_random(rng) % 2 ? -value : value);
}

static inline uint32_t random_float_bits(lw_type type, data_kind kind, uint64_t* rng) {
    if (type == LW_F16) return random_half(kind, rng);
    const uint64_t bits = next_random(rng);
    if (bits % 61 == 0) return 0;
    const uint32_t exponent =
        bits % 127 == 0 && kind != ORDINARY ? 0 : 107 + (uint32_t)(bits >> 8) % 40;  // subnormal now and then
    const uint32_t value = (uint32_t)(bits >> 63) << 31 | exponent << 23 | ((uint32_t)(bits >> 32) & 0x7FFFFF);
    return type == LW_BF16 ? value >> 16 : value;
}

// Open rows of any codes, selectors and scales; the largest codes (of tables: entries) in LARGEST_SUMS.
static inline void fill_open_row(lw_format f, uint32_t cols, data_kind kind, bool high, uint8_t* open, uint64_t* rng) {
    const lw_stored_row s = lw_stored_row_of(f, cols);
    uint8_t* parts = open + cols - s.scales;
    for (size_t k = 0; k < cols; ++k) {
        const int top = (1 << (f.low + f.high)) - 1;
        open[k] = (uint8_t)(kind == LARGEST_SUMS ? (high ? top : 0) : random_between(rng, 0, top));
    }
    for (size_t i = s.scales; i < s.bytes; ++i) parts[i] = (uint8_t)next_random(rng);
    for (size_t i = s.scales; f.scale == LW_SCALE_SIX && i < s.selectors; ++i) parts[i] &= 63;  // and the minimums
    if (f.scale == LW_SCALE_F16)
        for (size_t i = s.scales; i < s.minimums; i += 2) {
            const uint16_t half = random_half(kind, rng);
            memcpy(parts + i, &half, 2);
        }
    for (size_t i = s.scales; f.scale == LW_SCALE_E8M0 && i < s.minimums; ++i)
        parts[i] = (uint8_t)(kind == EDGE_CASES && next_random(rng) % 8 == 0 ? random_between(rng, 0, 3)
                                                                             : random_between(rng, 100, 140));
    for (size_t i = s.scales; f.scale == LW_SCALE_E4M3 && i < s.minimums; ++i)
        parts[i] = (uint8_t)random_between(rng, 0, kind == EDGE_CASES && next_random(rng) % 4 == 0 ? 7 : 126);
    for (size_t i = s.minimums; f.minimum == LW_MINIMUM_F16 && i < s.selectors; i += 2) {
        const uint16_t half = random_half(kind, rng);
        memcpy(parts + i, &half, 2);
    }
    if (f.super == LW_SUPER_ROW) {
        const float scale = (float)random_between(rng, -4095, 4095) * 0x1p-30f;
        memcpy(parts + s.supers, &scale, sizeof scale);
    } else {
        for (size_t i = s.supers; i < s.bytes; i += 2) {
            const uint16_t half = random_half(kind, rng);
            memcpy(parts + i, &half, 2);
        }
    }
}

static inline plain_matrix coded_matrix_make(lw_type type, lw_format f, uint32_t rows, uint32_t cols, data_kind kind,
                                             uint64_t* rng) {
    plain_matrix m = {.type = type, .rows = rows, .cols = cols, .groups = cols / LW_GROUP};
    const size_t bytes = lw_open_row_bytes(f, cols);
    m.open = malloc(rows * bytes);
    for (size_t row = 0; row < rows; ++row)
        fill_open_row(f, cols, row % 3 ? kind : EDGE_CASES, row % 2, m.open + row * bytes, rng);
    for (int i = 0; i < 16; ++i)
        m.table[i] = (int8_t)(kind == LARGEST_SUMS ? (i % 2 ? 127 : -127) : random_between(rng, -127, 127));
    if (lw_fixed_table(type) != NULL) memcpy(m.table, lw_fixed_table(type), 16);
    return m;
}

static inline plain_matrix plain_matrix_make(lw_type type, uint32_t rows, uint32_t cols, data_kind kind,
                                             uint64_t* rng) {
    lw_format f;
    if (lw_find_format(type, &f)) return coded_matrix_make(type, f, rows, cols, kind, rng);
    plain_matrix m = {.type = type, .rows = rows, .cols = cols, .groups = (cols + LW_GROUP - 1) / LW_GROUP};
    if (is_float_type(type)) {
        m.values = malloc((size_t)rows * cols * sizeof *m.values);
        for (size_t i = 0; i < (size_t)rows * cols; ++i) m.values[i] = random_float_bits(type, kind, rng);
        return m;
    }
    const int low = type == LW_Q4_0 ? -8 : type == LW_Q8_0 ? -128 : -32, high = -low - 1;
    const size_t width = (size_t)m.groups * LW_GROUP;
    m.codes = calloc(rows * width, 1);
    for (size_t row = 0; row < rows; ++row)
        for (size_t k = 0; k < cols; ++k) {
            const int edge = row % 2 ? high : low;
            m.codes[row * width + k] =
                (int8_t)(kind == LARGEST_SUMS && row % 3 ? edge : random_between(rng, low, high));
        }
    m.scales = malloc(rows * scales_per_row(&m) * sizeof *m.scales);
    for (size_t i = 0; i < rows * scales_per_row(&m); ++i) m.scales[i] = random_half(kind, rng);
    if (type == LW_Q6_K) {
        m.sub_scales = malloc(rows * (cols / 16));
        for (size_t i = 0; i < rows * (cols / 16); ++i) m.sub_scales[i] = (int8_t)random_between(rng, -128, 127);
    }
    return m;
}

static inline void plain_matrix_free(plain_matrix* m) {
    free(m->codes);
    free(m->scales);
    free(m->sub_scales);
    free(m->values);
    free(m->open);
}

static inline void put16(uint8_t* to, uint16_t value) { memcpy(to, &value, 2); }

static inline void pack_group(const plain_matrix* m, lw_layout layout, size_t row, size_t output, size_t group,
                              uint8_t* panel) {
    const int8_t* codes = m->codes + (row * m->groups + group) * LW_GROUP;
    uint8_t* base = panel;
    if (m->type == LW_Q6_K)
        base += group / LW_SEGMENT_GROUPS * LW_Q6_SUPER_BYTES + group % LW_SEGMENT_GROUPS * LW_Q6_GROUP_BYTES;
    if (m->type == LW_Q4_0) base += group * LW_Q4_GROUP_BYTES;
    if (m->type == LW_Q8_0) base += group * LW_Q8_GROUP_BYTES;
    for (size_t k = 0; k < LW_GROUP; ++k) {
        if (m->type == LW_Q8_0) {
            base[lw_packed_byte(layout, output, k, 1)] = (uint8_t)(codes[k] + (layout.q8_biased ? 128 : 0));
            continue;
        }
        uint8_t* low = base + lw_packed_byte(layout, output, k, 2);
        const size_t shift = 4 * lw_packed_part(layout, k, 2);
        if (m->type == LW_Q4_0) {
            *low |= (uint8_t)(((codes[k] + 8) ^ (layout.q4_toggled ? 8 : 0)) << shift);
            continue;
        }
        uint8_t* high = base + LW_Q6_LOW_BYTES + lw_packed_byte(layout, output, k, 4);
        *low |= (uint8_t)(((codes[k] + 32) & 15) << shift);
        *high |= (uint8_t)(((codes[k] + 32) >> 4) << 2 * lw_packed_part(layout, k, 4));
    }
    if (m->type == LW_Q4_0) put16(base + LW_PANEL * LW_GROUP / 2 + 2 * output, m->scales[row * m->groups + group]);
    if (m->type == LW_Q8_0) put16(base + LW_PANEL * LW_GROUP + 2 * output, m->scales[row * m->groups + group]);
    if (m->type != LW_Q6_K) return;
    for (size_t half = 0; half < 2; ++half)
        base[LW_Q6_LOW_BYTES + LW_Q6_HIGH_BYTES + half * LW_PANEL + output] =
            (uint8_t)m->sub_scales[row * (m->cols / 16) + group * 2 + half];
    if (group % LW_SEGMENT_GROUPS == 0)
        put16(base + LW_SEGMENT_GROUPS * LW_Q6_GROUP_BYTES + 2 * output, m->scales[row * (m->cols / 256) + group / 8]);
}

// Outputs past the last row are packed as zero weights with zero scales.
static inline lw_matrix pack_matrix(const plain_matrix* m, lw_layout layout) {
    lw_matrix w = {.type = m->type,
                   .layout = layout,
                   .rows = m->rows,
                   .cols = m->cols,
                   .groups = m->groups,
                   .panels = (m->rows + LW_PANEL - 1) / LW_PANEL,
                   .panel_bytes = lw_panel_bytes(m->type, m->cols)};
    uint8_t* data = guarded_alloc(w.panels * w.panel_bytes);
    w.data = data;
    lw_format f;
    if (lw_find_format(m->type, &f)) {
        const size_t bytes = lw_open_row_bytes(f, m->cols);
        uint8_t* zeros = malloc(bytes);
        lw_open_zero_row(f, m->cols, zeros);
        memcpy(w.table, m->table, sizeof w.table);
        memset(data, 0, w.panels * w.panel_bytes);
        for (size_t row = 0; row < (size_t)w.panels * LW_PANEL; ++row)
            lw_put_open_row(&w, f, data + row / LW_PANEL * w.panel_bytes, row % LW_PANEL,
                            row < m->rows ? m->open + row * bytes : zeros);
        free(zeros);
        return w;
    }
    const plain_matrix zero = {.type = m->type,
                               .rows = 1,
                               .cols = m->cols,
                               .groups = m->groups,
                               .codes = calloc(w.groups, LW_GROUP),
                               .scales = calloc(w.groups, 2),
                               .sub_scales = calloc(w.groups, 2)};
    for (size_t row = 0; row < (size_t)w.panels * LW_PANEL; ++row) {
        uint8_t* panel = data + row / LW_PANEL * w.panel_bytes;
        const size_t output = row % LW_PANEL;
        const plain_matrix* source = row < m->rows ? m : &zero;
        const size_t source_row = row < m->rows ? row : 0;
        if (!is_float_type(m->type)) {
            for (size_t g = 0; g < w.groups; ++g) pack_group(source, layout, source_row, output, g, panel);
            continue;
        }
        const size_t bytes = m->type == LW_F32 ? 4 : 2;
        for (size_t k = 0; row < m->rows && k < m->cols; ++k)
            memcpy(panel + (k * LW_PANEL + output) * bytes, m->values + row * m->cols + k, bytes);
    }
    free(zero.codes);
    free(zero.scales);
    free(zero.sub_scales);
    return w;
}

static inline void packed_free(const lw_matrix* w) { guarded_free(w->data, w->panels * w->panel_bytes); }

// Activations as plain values: every row's codes in order.
typedef struct plain_activations {
    size_t rows, cols, stride, groups;  // groups: in whole segments
    int8_t* q;                          // [rows][stride], zero past cols
    float* scale;                       // [rows][groups], zero past cols
    float* f32;                         // [rows][cols]
} plain_activations;

static inline plain_activations plain_activations_make(size_t rows, size_t cols, data_kind kind, uint64_t* rng) {
    plain_activations x = {.rows = rows, .cols = cols};
    x.groups = (cols + LW_SEGMENT - 1) / LW_SEGMENT * LW_SEGMENT_GROUPS;
    x.stride = lw_activation_stride(cols);
    x.q = calloc(rows, x.stride);
    x.scale = calloc(rows * x.groups, sizeof *x.scale);
    x.f32 = malloc(rows * cols * sizeof *x.f32);
    for (size_t row = 0; row < rows; ++row)
        for (size_t k = 0; k < cols; ++k) {
            const int edge = row % 2 ? 127 : -127;
            x.q[row * x.stride + k] =
                (int8_t)(kind == LARGEST_SUMS && row % 3 != 2 ? edge : random_between(rng, -127, 127));
        }
    for (size_t i = 0; i < rows * x.groups; ++i)
        if (i % x.groups < (cols + LW_GROUP - 1) / LW_GROUP)
            x.scale[i] = next_random(rng) % 16 ? (float)random_between(rng, 1, 1 << 20) * 0x1p-24f : 0.0f;
    for (size_t i = 0; i < rows * cols; ++i) {
        const uint32_t bits = random_float_bits(LW_F32, kind, rng);
        memcpy(x.f32 + i, &bits, 4);
    }
    return x;
}

static inline void plain_activations_free(plain_activations* x) {
    free(x->q);
    free(x->scale);
    free(x->f32);
}

static inline size_t q_bytes(const lw_activations* x) {
    const size_t padded = (x->rows + x->row_block - 1) / x->row_block * x->row_block;
    return padded * (x->segment_major ? x->segments * LW_SEGMENT : x->stride);
}

// The first `rows` rows as a kernel of a level sees them.
static inline lw_activations pack_activations(const plain_activations* p, size_t rows, lw_layout level) {
    lw_activations x = {.rows = rows, .cols = p->cols};
    lw_lay_out_activations(&x, level);
    int8_t* q = guarded_alloc(q_bytes(&x));
    float* scale = guarded_alloc(lw_scale_floats(&x) * sizeof *scale);
    memset(scale, 0, lw_scale_floats(&x) * sizeof *scale);  // of a partner that the last row lacks
    int32_t* totals = guarded_alloc(q_bytes(&x) / 16 * sizeof *totals);
    float* f32 = guarded_alloc(rows * p->cols * sizeof *f32);
    float* sums = guarded_alloc(rows * x.segments * LW_SUMS * sizeof *sums);
    uint8_t* outlying = guarded_alloc(rows * x.segments);
    memset(outlying, 0, rows * x.segments);
    for (size_t row = 0; row < rows; ++row) {
        int32_t sum = 0;
        for (size_t k = 0; k < (x.segment_major ? x.segments * LW_SEGMENT : x.stride); ++k) {
            const bool unused = k >= x.segments * LW_SEGMENT;  // may hold anything
            const int8_t code = unused ? 77 : p->q[row * p->stride + k];
            q[lw_q_offset(&x, row, k)] = code;
            sum = k % LW_GROUP ? sum + code : code;
            totals[lw_totals_offset(&x, row, k)] = sum;
        }
        for (size_t group = 0; group < p->groups; ++group) {
            float* at = scale + lw_scale_offset(&x, row, group);
            at[0] = at[x.row_block - 1] = p->scale[row * p->groups + group];
        }
        for (size_t segment = 0; segment < x.segments; ++segment) {
            const int8_t* codes = p->q + row * p->stride + segment * LW_SEGMENT;
            const float* da = p->scale + row * p->groups + segment * LW_SEGMENT_GROUPS;
            for (size_t i = 0; i < LW_SUMS; ++i) {  // of 32 inputs, then of 16
                const size_t first = i < LW_SUMS_16 ? i * 32 : (i - LW_SUMS_16) * 16, n = i < LW_SUMS_16 ? 32 : 16;
                int32_t total = 0;
                for (size_t k = first; k < first + n; ++k) total += codes[k];
                sums[(row * x.segments + segment) * LW_SUMS + i] = da[first / LW_GROUP] * (float)total;
            }
        }
    }
    memcpy(f32, p->f32, rows * p->cols * sizeof *f32);
    x.q = q;
    x.scale = scale;
    x.totals = totals;
    x.sums = sums;
    x.outlying = outlying;
    x.outliers = guarded_alloc(rows * x.segments * LW_SEGMENT_GROUPS * sizeof *x.outliers);
    x.f32 = f32;
    return x;
}

static inline void activations_free(const lw_activations* x) {
    guarded_free(x->q, q_bytes(x));
    guarded_free(x->scale, lw_scale_floats(x) * sizeof *x->scale);
    guarded_free(x->totals, q_bytes(x) / 16 * sizeof *x->totals);
    guarded_free(x->outlying, x->rows * x->segments);
    guarded_free(x->outliers, x->rows * x->segments * LW_SEGMENT_GROUPS * sizeof *x->outliers);
    guarded_free(x->sums, x->rows * x->segments * LW_SUMS * sizeof *x->sums);
    guarded_free(x->f32, x->rows * x->cols * sizeof *x->f32);
}

static inline bool is_scalar(const lw_kernel* kernel) { return strstr(kernel->symbol, "__scalar") != NULL; }

// The names say it: a gemv kernel takes one row.
static inline bool takes_rows(const lw_kernel* kernel, size_t rows) {
    return rows >= kernel->min_rows && (rows == 1 || strncmp(kernel->symbol, "gemv", 4) != 0);
}

// The levels whose layout a kernel can be run with on this CPU.
static inline uint32_t levels_to_test(const lw_kernel* kernel) {
    if (kernel->run == NULL) return 0;
    return is_scalar(kernel) ? (1u << LW_LEVEL_COUNT) - 1 : kernel->levels & lw_cpu_levels();
}

#endif
