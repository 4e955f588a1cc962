// Quantizing matrices. Part of lanewise.h; include that file.

// How a code becomes the level that is multiplied by the scale.
typedef enum lw_fit_map {
    LW_FIT_UNIFORM = 0,  // low + code
    LW_FIT_TABLE = 1,    // levels[selector][code], ascending
    LW_FIT_TRELLIS = 2   // levels[selector][code << 2 | previous code]; minimums are ignored
} lw_fit_map;

// Some columns of a matrix to quantize, each row by itself. For a row, lw_fit finds the candidate (scales, minimums,
// selector) and the codes with the smallest loss: the sum over columns k of weights[k] * residual[k]^2, where residual
// = target - (scale * level - minimum). Each residual changes the targets after it: target[j] -= residual[k] *
// feedback[k][j]. UNIFORM and TABLE take the nearest code, column by column. TRELLIS keeps the best path to each state.
typedef struct lw_fit_job {
    lw_fit_map map;
    uint32_t rows;
    uint32_t columns;  // at most 128, a multiple of group
    uint32_t group;    // columns that share a scale, 16 or more
    uint32_t n_candidates;
    int32_t low, high;  // UNIFORM: first and last level
    uint32_t n_levels;  // TABLE: 2 to 16; TRELLIS: 16
    uint32_t n_selectors;
    const float* levels;       // [n_selectors][n_levels]; whole numbers
    const float* targets;      // [columns][rows]
    const float* weights;      // [columns]
    const float* feedback;     // [columns][columns], read above its diagonal, or NULL
    const float* scales;       // [n_candidates][columns / group][rows]
    const float* minimums;     // the same shape, or NULL (all 0)
    const uint8_t* selectors;  // [n_candidates][rows], or NULL (all 0)
    const uint8_t* states;     // [rows] code before the first column, or NULL (all 0)
    uint8_t* codes;            // out, [columns][rows]
    float* values;             // out, [columns][rows]: scale * level - minimum
    float* losses;             // out, [rows]
    uint32_t* choices;         // out, [rows]: the first candidate with the smallest loss
} lw_fit_job;

// Fits the job's rows begin .. end-1 in the calling thread. A caller may give disjoint rows to several threads at once.
lw_status lw_fit(const lw_fit_job* job, uint32_t begin, uint32_t end);
