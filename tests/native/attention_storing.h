// How keys and values are written to the cache, against the definition; part of test_attention.c.
#ifndef ATTENTION_STORING_H
#define ATTENTION_STORING_H

// Whether a level writes a token's key and value as the definition does, touching nothing else, and notices NaN.
static bool stores_alike(const sample* s, const lw_lane_ops* ops) {
    sample defined = *s;
    uint8_t* const head = head_at(s, 0);
    uint8_t* const got = allocate(s->job.kv.head_bytes);
    defined.cache = allocate(MAX_BLOCKS * s->job.kv.block_bytes);
    float key[MAX_DIM], value[MAX_DIM];
    for (size_t d = 0; d < s->job.kv.head_dim; ++d) {
        key[d] = uniform();
        value[d] = uniform() * 1e-3f;
    }
    const size_t offset = draw(LW_BLOCK_TOKENS);
    put_token(&defined, offset, key, value);
    bool alike = ops->store_kv(&s->job.kv, got, offset, key, value) &&
                 memcmp(got, defined.cache + (head - s->cache), s->job.kv.head_bytes) == 0;
    float* const last =
        s->job.kv.latent ? &key[draw(2) ? s->job.kv.head_dim - 1 : 0] : &value[s->job.kv.result_dim - 1];
    *last = draw(2) ? NAN : -INFINITY;
    alike &= !ops->store_kv(&s->job.kv, got, offset, key, value);
    free(got);
    free(defined.cache);
    return alike;
}

// Some tokens written at once against their definition, all heads of a block.
static bool writes_alike(const sample* s, const lw_lane_ops* ops) {
    const size_t dim = s->job.kv.head_dim, token = s->kv_heads * dim, offset = draw(LW_BLOCK_TOKENS);
    const size_t of_value = s->job.kv.result_dim;
    lw_attention_config config = {
        .n_kv_heads = (uint32_t)s->kv_heads, .head_dim = (uint32_t)dim, .value_dim = (uint32_t)of_value};
    if (s->job.kv.latent) {
        config.latent_rank = (uint32_t)s->job.kv.value_dim;
        config.rope_dim = (uint32_t)dim - config.latent_rank;
    }
    lw_kv_cache cache;
    lw_kv_describe(&config, s->job.kv.type, 1, &cache);
    cache.block.data = allocate(cache.block_bytes);
    sample defined = {.job = {.kv = lw_kv_slot(&cache, 0)}, .cache = allocate(cache.block_bytes)};
    const size_t n = 1 + draw(LW_BLOCK_TOKENS - offset);
    float* const values = allocate(2 * n * token * sizeof(float));
    for (size_t i = 0; i < 2 * n * token; ++i) values[i] = uniform();
    const lw_kv_rows rows = {n, values, values + n * token, NULL};
    bool alike = lw_kv_write(&cache, ops, 0, 0, (uint32_t)offset, rows);
    for (size_t h = defined.job.kv_head = 0; h < s->kv_heads; defined.job.kv_head = ++h)
        for (size_t t = 0; t < n; ++t)
            put_token(&defined, offset + t, rows.keys + t * token + h * dim,
                      rows.values + (t * s->kv_heads + h) * of_value);
    alike &= memcmp(cache.block.data, defined.cache, cache.block_bytes) == 0;
    free(values);
    free(defined.cache);
    free(cache.block.data);
    return alike;
}

#endif
