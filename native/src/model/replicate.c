// Placement of a model's weights: interleaved over NUMA nodes, or a copy on each node.
#include <stdlib.h>
#include <string.h>

#include "model/model.h"
#include "numa.h"
#include "status.h"

enum { MAX_REPLICAS = 64, CHUNK = 1 << 20 };

lw_status lw_model_place(lw_model* model, lw_numa numa, const uint32_t* nodes, uint32_t n_nodes) {
    if (model == NULL) return lw_fail(LW_ERR_ARGUMENT, "lw_model_place: model must not be NULL");
    if (model->finished || model->arena.n_blocks > 0 || model->nodes.n > 0)
        return lw_fail(LW_ERR_ARGUMENT, "lw_model_place: weights must not be loaded or placed yet");
    if (numa != LW_NUMA_OFF && numa != LW_NUMA_INTERLEAVE && numa != LW_NUMA_REPLICATE)
        return lw_fail(LW_ERR_ARGUMENT, "lw_model_place: numa %d, must be 0 (off), 1 (interleave) or 2 (replicate)",
                       (int)numa);
    if (numa == LW_NUMA_OFF) return LW_OK;
    if (numa == LW_NUMA_REPLICATE && n_nodes > MAX_REPLICAS)
        return lw_fail(LW_ERR_ARGUMENT, "lw_model_place: %u nodes, must be at most %d", n_nodes, MAX_REPLICAS);
    LW_RETURN_IF_FAILED(lw_numa_check(nodes, n_nodes));
    if (numa == LW_NUMA_REPLICATE && n_nodes > 1) {
        model->other_nodes = malloc((n_nodes - 1) * sizeof *model->other_nodes);
        model->replicas = calloc(n_nodes - 1, sizeof *model->replicas);
        if (model->other_nodes == NULL || model->replicas == NULL) {
            lw_free_replicas(model);
            return lw_fail(LW_ERR_MEMORY, "no memory for %u copies of a model", n_nodes);
        }
        memcpy(model->other_nodes, nodes + 1, (n_nodes - 1) * sizeof *nodes);
        model->n_replicas = n_nodes - 1;
    }
    model->nodes = lw_nodes_of(nodes, n_nodes);
    model->arena.nodes = lw_nodes_of(nodes, numa == LW_NUMA_REPLICATE ? 1 : n_nodes);
    return LW_OK;
}

typedef struct copy_job {
    uint8_t* to;
    const uint8_t* from;
    size_t bytes;
    lw_work work;
} copy_job;

static void copy_worker(void* context, unsigned thread) {
    (void)thread;
    copy_job* job = context;
    size_t begin, end;
    while (lw_work_take(&job->work, job->bytes, CHUNK, &begin, &end))
        memcpy(job->to + begin, job->from + begin, end - begin);
}

// Copies a matrix's bytes to `arena` and uses the copy.
static bool copy_matrix(lw_pool* pool, lw_arena* arena, lw_matrix* matrix) {
    const size_t bytes = matrix->panels * matrix->panel_bytes;
    if (bytes == 0) return true;
    copy_job job = {.to = lw_arena_take(arena, bytes), .from = matrix->data, .bytes = bytes};
    if (job.to == NULL) return false;
    lw_pool_run(pool, copy_worker, &job);
    matrix->data = job.to;
    return true;
}

static bool copy_model(const lw_model* model, uint32_t node, lw_model* out) {
    const size_t n = model->config.n_layers > 0 ? model->config.n_layers : 1;  // as lw_model_create makes
    lw_layer* layers = malloc(n * sizeof *layers);
    if (layers == NULL) return false;
    memcpy(layers, model->layers, n * sizeof *layers);
    *out = *model;
    out->layers = layers;
    out->arena = (lw_arena){.nodes = lw_nodes_of(&node, 1)};
    bool ok = true;
    if (!model->config.pooled)
        ok = copy_matrix(model->pool, &out->arena, model->config.tied_embeddings ? &out->embedding : &out->output);
    ok = ok && copy_matrix(model->pool, &out->arena, &out->per_layer_projection);
    ok = ok && copy_matrix(model->pool, &out->arena, &out->streams_in);
    ok = ok && copy_matrix(model->pool, &out->arena, &out->streams_out);
    ok = ok && copy_matrix(model->pool, &out->arena, &out->hyper_head);
    ok = ok && copy_matrix(model->pool, &out->arena, &out->patches);
    for (uint32_t i = 0; ok && i < model->config.n_dense; ++i)
        ok = copy_matrix(model->pool, &out->arena, &out->dense[i].matrix);
    for (uint32_t i = 0; ok && i < model->config.n_layers; ++i)
        for (int m = 0; ok && m < LW_LAYER_MATRICES; ++m)
            ok = copy_matrix(model->pool, &out->arena, &layers[i].matrices[m]);
    return ok;
}

static void empty_replicas(lw_model* model) {
    for (uint32_t i = 0; i < model->n_replicas; ++i) {
        free(model->replicas[i].layers);
        lw_arena_free(&model->replicas[i].arena);
        model->replicas[i] = (lw_model){0};
    }
}

lw_status lw_replicate(lw_model* model) {
    for (uint32_t i = 0; i < model->n_replicas; ++i)
        if (!copy_model(model, model->other_nodes[i], &model->replicas[i])) {
            empty_replicas(model);  // so that the call can be repeated when there is memory
            return lw_fail(LW_ERR_MEMORY, "no memory for copy %u of %u of the weights", i + 2, model->n_replicas + 1);
        }
    return LW_OK;
}

void lw_free_replicas(lw_model* model) {
    empty_replicas(model);
    free(model->replicas);
    free(model->other_nodes);
    model->replicas = NULL;
    model->other_nodes = NULL;
    model->n_replicas = 0;
}
