// What a cache of four bits holds, by its definition (attention_packed.inc); part of test_attention.c.
#ifndef ATTENTION_PACKING_H
#define ATTENTION_PACKING_H

static const int32_t numbers[16] = {-127, -96, -75, -58, -44, -31, -18, -6, 6, 18, 31, 44, 58, 75, 96, 127};

static void turn(float* x, size_t n) {
    if (n == 1) return;
    for (size_t i = 0; i < n / 2; ++i) {
        const float a = x[i], b = x[i + n / 2];
        x[i] = a + b;
        x[i + n / 2] = a - b;
    }
    turn(x, n / 2);
    turn(x + n / 2, n / 2);
}

// The same sums pair by pair: runs of the largest power of two that divides n, halves of one value first.
static void turn_runs(float* x, size_t n) {
    float in_order[MAX_DIM];
    size_t run = 1;
    while (n % (2 * run) == 0) run *= 2;
    for (size_t first = 0; first < n; first += run) {
        for (size_t i = 0; i < run; ++i) {  // bits of places backwards, so that the last bit is turned first
            size_t back = 0;
            for (size_t bit = 1, other = run / 2; bit < run; bit *= 2, other /= 2) back |= i & bit ? other : 0;
            in_order[back] = x[first + i];
        }
        turn(in_order, run);
        for (size_t i = 0; i < run; ++i) {
            size_t back = 0;
            for (size_t bit = 1, other = run / 2; bit < run; bit *= 2, other /= 2) back |= i & bit ? other : 0;
            x[first + i] = in_order[back];
        }
    }
}

static float sum_of_lanes(const float* lanes) {
    float t[LW_LANES];
    memcpy(t, lanes, sizeof t);
    for (size_t width = LW_LANES / 2; width > 0; width /= 2)
        for (size_t i = 0; i < width; ++i) t[i] += t[i + width];
    return t[0];
}

// The places of the numbers next to x / scale; returns the scale that fits them, and what they explain.
static float fit(int32_t* codes, const float* x, size_t n, float scale, float* gain) {
    float products[LW_LANES] = {0}, squares[LW_LANES] = {0};
    const float inverse = 1 / scale;
    for (size_t d = 0; d < n; ++d) {
        const float size = fabsf(x[d]) * inverse;
        int32_t place = 8;
        while (place < 15 && size >= (float)(numbers[place] + numbers[place + 1]) / 2) ++place;
        const float number = (float)numbers[place];
        products[d % LW_LANES] = fmaf(fabsf(x[d]), number, products[d % LW_LANES]);
        squares[d % LW_LANES] += number * number;
        codes[d] = x[d] >= 0 ? place : 15 - place;
    }
    const float all = sum_of_lanes(squares), fitted = sum_of_lanes(products) / all;
    *gain = fitted * sum_of_lanes(products);
    return fitted;
}

// Codes of a vector that is turned first; returns their scale.
static float pack(int32_t* codes, const float* vector, size_t n) {
    static const float tries[] = {1.0f, 0.9f, 0.8f};
    float x[MAX_DIM], peak = 0, best = 0, most = -1, gain;
    memcpy(x, vector, n * sizeof *x);
    turn_runs(x, n);
    for (size_t d = 0; d < n; ++d) peak = fabsf(x[d]) > peak ? fabsf(x[d]) : peak;
    memset(codes, 0, n * sizeof *codes);
    if (peak < 1e-30f) return 0;
    for (size_t d = 0; d < n; ++d) x[d] *= 1 / peak;
    for (int i = 0; i < 3; ++i) {
        const float fitted = fit(codes, x, n, tries[i] / 127, &gain);
        if (gain > most) best = fitted;
        if (gain > most) most = gain;
    }
    return fit(codes, x, n, best, &gain) * peak;
}

// The code of a dimension, 8 past the vector's end where it is not zero.
static int32_t past(size_t d, size_t n, const int32_t* codes, float scale) {
    return d < n ? codes[d] : scale > 0 ? 8 : 0;
}

static void put_half(uint8_t* byte, size_t high, int32_t code) {
    *byte = (uint8_t)(high ? (*byte & 15) | code << 4 : (*byte & 0xF0) | code);
}

static uint8_t* packed_value_at(const lw_kv_view* kv, uint8_t* values, size_t offset, size_t d) {
    return values + ((offset / 4 * lw_value_pairs(kv->value_dim) + d / 32) * 16 + d % 16) * 4 + offset % 4;
}

// What queries are multiplied with: a part of one, which is turned if its keys are, as codes.
static float query_codes(int32_t* codes, const float* q, size_t n, bool turned, float peak) {
    float x[MAX_DIM];
    memcpy(x, q, n * sizeof *q);
    if (turned) turn_runs(x, n);
    for (size_t d = 0; d < n && turned; ++d) x[d] *= 1.0f / (float)(n & -n);
    return code(codes, x, n, peak);
}

static float scale_at(const lw_kv_view* kv, const uint8_t* head, size_t place) {
    float scale;
    memcpy(&scale, head + kv->scale_offset + 4 * place, 4);
    return scale;
}

static void put_byte(uint8_t* keys, size_t offset, size_t d, int32_t code) {
    keys[d / 4 * 4 * LW_BLOCK_TOKENS + 4 * offset + d % 4] = (uint8_t)(code + LW_KEY_BIAS);
}

static int32_t byte_code(const uint8_t* keys, size_t offset, size_t d) {
    return (int8_t)(uint8_t)(keys[d / 4 * 4 * LW_BLOCK_TOKENS + 4 * offset + d % 4] - LW_KEY_BIAS);
}

static uint8_t* packed_key_at(uint8_t* keys, size_t offset, size_t d) {
    return keys + d / 8 * 4 * LW_BLOCK_TOKENS + 4 * offset + d % 4;
}

// A latent row (attention_latent.inc): its first values, turned, with the second scales; then the rest.
static void put_latent(const lw_kv_view* kv, uint8_t* head, size_t offset, const float* row) {
    const size_t first = kv->value_dim, rest = kv->head_dim - first;
    uint8_t* const behind = head + LW_BLOCK_TOKENS * (kv->type == LW_I4 ? first / 2 : first);
    int32_t codes[MAX_DIM];
    float x[MAX_DIM];
    memcpy(x, row, first * sizeof *x);
    if (kv->type != LW_I4) turn_runs(x, first);
    float scale = kv->type == LW_I4 ? pack(codes, x, first) : code(codes, x, first, 127);
    memcpy(head + kv->scale_offset + 4 * (LW_BLOCK_TOKENS + offset), &scale, 4);
    for (size_t d = 0; d < first; ++d)
        if (kv->type == LW_I4)
            put_half(packed_key_at(head, offset, d), d / 4 % 2, codes[d]);
        else
            put_byte(head, offset, d, codes[d]);
    scale = code(codes, row + first, rest, 127);
    memcpy(head + kv->scale_offset + 4 * offset, &scale, 4);
    for (size_t d = 0; d < kv->key_dim - first; ++d) put_byte(behind, offset, d, d < rest ? codes[d] : 0);
}

static int32_t key_code(const lw_kv_view* kv, const uint8_t* head, size_t offset, size_t d) {
    if (kv->type == LW_I4) return numbers[*packed_key_at((uint8_t*)head, offset, d) >> d / 4 % 2 * 4 & 15];
    return byte_code(head, offset, d);
}

static float latent_score(const lw_kv_view* kv, const float* q, const uint8_t* head, size_t offset) {
    const size_t first = kv->value_dim, rest = kv->head_dim - first;
    const uint8_t* const behind = head + LW_BLOCK_TOKENS * (kv->type == LW_I4 ? first / 2 : first);
    int32_t codes[MAX_DIM], sum = 0;
    float scale = query_codes(codes, q, first, true, 16256);
    for (size_t d = 0; d < first; ++d) sum += codes[d] * key_code(kv, head, offset, d);
    const float score = (float)sum * (scale_at(kv, head, LW_BLOCK_TOKENS + offset) * scale);
    scale = query_codes(codes, q + first, rest, false, 16256);
    sum = 0;
    for (size_t d = 0; d < rest; ++d) sum += codes[d] * byte_code(behind, offset, d);
    return fmaf((float)sum, scale_at(kv, head, offset) * scale, score);
}

static int32_t value_code(const lw_kv_view* kv, const uint8_t* values, size_t offset, size_t d) {
    if (kv->latent) return key_code(kv, values - kv->value_offset, offset, d);
    if (kv->type != LW_I8) return numbers[*packed_value_at(kv, (uint8_t*)values, offset, d) >> d / 16 % 2 * 4 & 15];
    return (int8_t)values[(offset / 4 * kv->value_dim + d) * 4 + offset % 4];
}

#endif
