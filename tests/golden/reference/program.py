"""Runs a model's program straight from its definition, in float64: the library's second opinion.

One sequence from its first token, all of its logits. Nothing here is fast, and nothing is shared
with what computes in earnest.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.program import Attention, Experts, ModelConfig, Rope
from tests.golden.reference import streams
from tests.golden.reference.ffn import Inner, ffn, ffn_curve, with_own_norms
from tests.golden.reference.parts import Array, coded, norm, rms, sigmoid
from tests.golden.reference.recurrences import recurrence

Weights = Mapping[tuple[Role, int], Array]  # matrices (outputs, inputs), vectors (size,)


@dataclass
class Stored:
    """What layers leave for later ones."""

    kv: dict[int, tuple[Array, Array]] = field(default_factory=dict)  # keys and values of layers
    chosen: Array | None = None  # [tokens][tokens] which tokens the last index chose
    margin: float = np.inf  # how near its choice came to another one


def logits_of(config: ModelConfig, weights: Weights, tokens: list[int]) -> tuple[Array, float]:
    """Logits [tokens][vocab_size], and how near any choice of experts came to another one."""
    rows, margin = hidden_rows(config, weights, tokens)
    return logits_of_rows(config, weights, rows), margin


def hidden_rows(
    config: ModelConfig, weights: Weights, tokens: list[int], fronts: list[Array] | None = None
) -> tuple[Array, float]:
    """Rows behind the output norm, without a head that predicts further tokens; and the margin.

    ``fronts`` gets x in front of each layer, and behind the last.
    """
    x, margin = embedded(config, weights, tokens), np.inf
    if config.learned_positions:
        x = x + weights[Role.POSITION_EMBEDDING, 0][: len(tokens)]
    inputs = layer_inputs(config, weights, tokens, x)
    stored = Stored()
    if config.n_streams:
        x, margin = streams.hidden_rows(config, weights, x, inputs)
        return norm(config, of_layer(weights, 0), Role.OUTPUT_NORM, x), margin
    for index in range(config.n_layers - config.has_mtp):
        own = of_layer(weights, index)
        if fronts is not None:
            fronts.append(x)
        x, near = through_layer(config, index, own, x, stored)
        margin = min(margin, near)
        if config.per_layer_size:
            kind = config.layers[index].ffn
            assert kind is not None
            gate = ffn_curve(kind, x @ own[Role.PER_LAYER_GATE].T)
            result = gate * inputs[:, index] @ own[Role.PER_LAYER_OUT].T
            x = x + norm(config, own, Role.PER_LAYER_RESULT_NORM, result)
        x = x * config.layers[index].output_scale
    if fronts is not None:
        fronts.append(x)
    margin = min(margin, stored.margin)
    return norm(config, of_layer(weights, 0), Role.OUTPUT_NORM, x), float(margin)


def embedded(config: ModelConfig, weights: Weights, tokens: list[int]) -> Array:
    """The rows of tokens behind their norm, if they have one, and their scale."""
    rows = weights[Role.TOKEN_EMBEDDING, 0][tokens]
    if config.embedding_norm:
        rows = rms(rows, np.ones(config.hidden_size), config.rms_norm_eps)
    return rows * config.embedding_scale


def logits_of_rows(config: ModelConfig, weights: Weights, rows: Array) -> Array:
    """Of rows behind an output norm."""
    head = weights[Role.TOKEN_EMBEDDING if config.tied_embeddings else Role.OUTPUT, 0]
    logits = rows @ head.T * config.logit_scale
    if config.output_bias:
        logits = logits + weights[Role.OUTPUT_BIAS, 0]
    return capped(logits, config.logit_softcap)


def of_layer(weights: Weights, index: int) -> dict[Role, Array]:
    """The tensors of one layer; of the first with those of the model."""
    return {role: value for (role, i), value in weights.items() if i == index}


def through_layer(
    config: ModelConfig,
    index: int,
    own: Mapping[Role, Array],
    x: Array,
    stored: Stored,
) -> tuple[Array, float]:
    """x behind attention or a state and the FFN; and how near a choice of experts was."""
    layer, before, margin = config.layers[index], x, np.inf
    if layer.attention is not None or layer.state is not None:
        normed, result = norm(config, own, Role.ATTN_NORM, x), np.zeros_like(x)
        if layer.attention is not None:
            result = result + attention(config, index, own, normed, stored)
        if layer.state is not None:
            result = result + recurrence(config, layer.state, own, normed)
        if layer.result_norms:
            result = norm(config, own, Role.ATTN_RESULT_NORM, result)
        x = x + config.residual_scale * result
    if config.n_streams:
        x = streams.with_laurel(config, own, before, x)
    if layer.ffn is not None:
        one_norm = layer.wiring == "parallel_one_norm"
        of = x if layer.wiring == "in_turn" else before
        normed = norm(config, own, Role.ATTN_NORM if one_norm else Role.FFN_NORM, of)
        inner = Inner(config, own, layer.row_codes)
        result, margin = ffn(layer.ffn, own, coded(normed) if layer.row_codes else normed, inner)
        if isinstance(layer.ffn, Experts) and layer.ffn.own_norms:
            result, margin = with_own_norms(config, layer.ffn, own, x)
        if layer.result_norms:
            result = norm(config, own, Role.FFN_RESULT_NORM, result)
        x = x + config.residual_scale * result
    return x, margin


def layer_inputs(config: ModelConfig, weights: Weights, tokens: list[int], x: Array) -> Array:
    """What layers have of tokens for themselves, [tokens][layers][per_layer_size]."""
    size, shape = config.per_layer_size, (len(tokens), config.n_layers, config.per_layer_size)
    if not size:
        return np.zeros(shape)
    projected = x @ weights[Role.PER_LAYER_PROJECTION, 0].T / math.sqrt(config.hidden_size)
    rows = weights[Role.PER_LAYER_EMBEDDING, 0]
    found = [token if token < len(rows) else 0 for token in tokens]
    table = rows[found].reshape(shape) * math.sqrt(size)
    weight = weights[Role.PER_LAYER_NORM, 0]
    return (rms(projected.reshape(shape), weight, config.rms_norm_eps) + table) / math.sqrt(2)


def capped(x: Array, cap: float) -> Array:
    """Softcap; none where the cap is 0."""
    return np.asarray(cap * np.tanh(x / cap)) if cap else x


def product_of(own: Mapping[Role, Array], role: Role, x: Array) -> Array:
    """What a matrix of attention gives, and its bias if it has one."""
    product, bias = x @ own[role].T, Role[f"{role.name}_BIAS"]
    return np.asarray(product + own[bias] if bias in own else product)


def limited(c: Attention, heads: Array) -> Array:
    """Values no larger than a clip, if there is one."""
    return np.clip(heads, -c.qkv_clip, c.qkv_clip) if c.qkv_clip else heads


def heads_of(
    config: ModelConfig, c: Attention, own: Mapping[Role, Array], role: Role, flat: Array
) -> Array:
    """Queries or keys [tokens][heads][head_dim] behind their norm and RoPE."""
    weight, eps = own.get(Role[f"{role.name}_NORM"]), config.rms_norm_eps
    if c.qk_norm == "whole":
        flat = rms(flat, own[Role[f"{role.name}_NORM"]], eps)
    heads = flat.reshape(len(flat), -1, c.head_dim)
    if c.qk_norm == "head" and weight is not None:
        heads = rms(heads, weight, eps)
    if c.qk_norm == "layer" and weight is not None:
        centred = heads - heads.mean(axis=-1, keepdims=True)
        heads = rms(centred, weight.reshape(-1, c.head_dim), eps)
    heads = limited(c, heads)
    if c.rope is not None:
        heads = turn(config.ropes[c.rope], heads)
    if c.qk_norm == "turned" and weight is not None:
        heads = rms(heads, weight, eps)
    return heads


def keys_and_values(
    config: ModelConfig, c: Attention, own: Mapping[Role, Array], x: Array
) -> tuple[Array, Array]:
    """[tokens][heads] of each, of head_dim and of output_dim values."""
    flat = product_of(own, Role.ATTN_K, x)
    values = flat if c.values_are_keys else product_of(own, Role.ATTN_V, x)
    v = limited(c, values.reshape(len(x), -1, c.output_dim))
    if c.value_norm:
        v = rms(v, np.ones(c.output_dim), config.rms_norm_eps)
    v = v * (c.value_scale or 1)
    return heads_of(config, c, own, Role.ATTN_K, flat), v


def expanded(
    config: ModelConfig, c: Attention, own: Mapping[Role, Array], x: Array
) -> tuple[Array, Array, Array]:
    """Q, K and V of latent attention as plain heads: nothing is absorbed."""
    of_q = x
    if c.query_rank:
        of_q = rms(x @ own[Role.LATENT_QUERY].T, own[Role.LATENT_QUERY_NORM], c.latent_eps)
    q = (of_q @ own[Role.ATTN_Q].T).reshape(len(x), c.n_heads, c.head_dim)
    still = c.head_dim - c.rope_dim
    q = np.concatenate([q[..., :still], turned_part(config, c, q[..., still:])], axis=-1)
    both = x @ own[Role.LATENT_DOWN].T
    latent = rms(both[:, : c.latent_rank], own[Role.LATENT_NORM], c.latent_eps)
    turned = turned_part(config, c, both[:, None, c.latent_rank :])
    keys = own[Role.LATENT_KEYS].reshape(c.n_heads, c.latent_rank, still)
    values = own[Role.LATENT_VALUES].reshape(c.n_heads, c.value_dim, c.latent_rank)
    k = np.einsum("tr,hrd->thd", latent, keys)
    k = np.concatenate([k, np.repeat(turned, c.n_heads, axis=1)], axis=-1)
    return q, k, np.einsum("tr,hvr->thv", latent, values)


def turned_part(config: ModelConfig, c: Attention, heads: Array) -> Array:
    """The part of latent attention's heads that RoPE turns, if there is any."""
    return heads if c.rope is None else turn(config.ropes[c.rope], heads)


def choose(
    config: ModelConfig, c: Attention, own: Mapping[Role, Array], x: Array, stored: Stored
) -> None:
    """Choose the tokens that queries see by their index scores."""
    assert c.rope is not None
    rope, n = config.ropes[c.rope], len(x)
    of_q = rms(x @ own[Role.LATENT_QUERY].T, own[Role.LATENT_QUERY_NORM], c.latent_eps)
    q = turn(rope, (of_q @ own[Role.INDEX_QUERY].T).reshape(n, c.index_heads, c.index_dim))
    keys = x @ own[Role.INDEX_KEY].T
    centred = keys - keys.mean(axis=1, keepdims=True)
    keys = rms(centred, own[Role.INDEX_KEY_NORM], c.latent_eps) + own[Role.INDEX_KEY_NORM_BIAS]
    products = np.einsum("thd,sd->ths", q, turn(rope, keys[:, None])[:, 0])
    scores = np.einsum("th,ths->ts", x @ own[Role.INDEX_WEIGHTS].T, np.maximum(products, 0))
    stored.chosen = np.ones((n, n), bool)
    for token in range(c.index_topk, n):
        row = scores[token, : token + 1]
        order = np.argsort(-row, kind="stable")
        stored.chosen[token, order[c.index_topk :]] = False
        last, next_one = row[order[c.index_topk - 1]], row[order[c.index_topk]]
        if last != next_one:
            stored.margin = min(stored.margin, float((last - next_one) / np.abs(row).max()))


def choose_blocks(
    config: ModelConfig, c: Attention, own: Mapping[Role, Array], x: Array, stored: Stored
) -> None:
    """Choose the blocks of tokens that queries see, for each KV head."""
    assert c.rope is not None
    rope, n, size = config.ropes[c.rope], len(x), c.index_block
    eps = config.rms_norm_eps
    q = (x @ own[Role.INDEX_QUERY].T).reshape(n, c.index_heads, c.index_dim)
    q = turn(rope, rms(q, own[Role.INDEX_QUERY_NORM], eps))
    keys = rms(x @ own[Role.INDEX_KEY].T, own[Role.INDEX_KEY_NORM], eps)
    products = np.einsum("thd,sd->hts", q, turn(rope, keys[:, None])[:, 0])
    chosen = np.ones((c.index_heads, n, n), bool)
    for token in range(c.index_topk, n):
        first = (token // size + 1 - c.index_local) * size
        for head in range(c.index_heads):
            scores = products[head, token, :first].reshape(-1, size).max(axis=1)
            order, k = np.argsort(-scores, kind="stable"), c.index_topk // size - c.index_local
            for block in order[k:]:
                chosen[head, token, block * size : (block + 1) * size] = False
            if k and scores[order[k - 1]] != scores[order[k]]:
                margin = (scores[order[k - 1]] - scores[order[k]]) / np.abs(scores).max()
                stored.margin = min(stored.margin, float(margin))
    stored.chosen = np.repeat(chosen, c.n_kv_heads // c.index_heads, axis=0)


def attention(
    config: ModelConfig,
    index: int,
    own: Mapping[Role, Array],
    x: Array,
    stored: Stored,
) -> Array:
    """Causal attention of all tokens to those before them."""
    layer = config.layers[index]
    c = layer.attention
    assert c is not None
    if layer.row_codes:
        x = coded(x)
    if c.latent_rank:
        q, k, v = expanded(config, c, own, x)
    else:
        q = heads_of(config, c, own, Role.ATTN_Q, product_of(own, Role.ATTN_Q, x))
        if c.kv_layer is None:
            stored.kv[index] = keys_and_values(config, c, own, x)
        k, v = stored.kv[index if c.kv_layer is None else c.kv_layer]
    n = len(x)
    positions = np.arange(n)
    if c.position_scale is not None:
        beta, original = c.position_scale
        steps = np.log(1 + (positions + c.position_offset) // original)
        q = q * (1 + beta * steps)[:, None, None]
    seen = positions[None, :] <= positions[:, None]
    if c.window is not None:
        seen &= positions[None, :] > positions[:, None] - c.window
    if c.chunk:
        seen &= positions[None, :] // c.chunk == positions[:, None] // c.chunk
    if c.index_heads:
        (choose_blocks if c.index_block else choose)(config, c, own, x, stored)
    of_heads = np.broadcast_to(seen, (k.shape[1], n, n))
    if c.index_topk and stored.chosen is not None:
        of_heads = of_heads & stored.chosen
    group = c.n_heads // k.shape[1]
    out = np.zeros((n, c.n_heads, v.shape[2]))
    for head in range(c.n_heads):
        scores = capped(q[:, head] @ k[:, head // group].T * c.score_scale, c.score_softcap)
        if c.alibi:
            fall = alibi_slope(head, c.n_heads) * (c.score_scale if c.scaled_alibi else 1)
            scores = scores - fall * (positions[:, None] - positions[None, :])
        ahead = np.clip(positions - positions[:, None], -c.distances, c.distances) + c.distances
        if c.disentangled:
            of_key, of_query = (
                own[role].reshape(c.n_heads, c.head_dim, -1)[head][:, ahead]
                for role in (Role.ATTN_POSITION_KEYS, Role.ATTN_POSITION_QUERIES)
            )
            scores = scores + np.einsum("id,dij->ij", q[:, head] * c.score_scale, of_key)
            scores = scores + np.einsum("jd,dij->ij", k[:, head // group], of_query)
        elif c.distances:
            scores = scores + own[Role.ATTN_DISTANCES].reshape(c.n_heads, -1)[head][ahead]
        scores = np.where(of_heads[head // group], scores, -np.inf)
        sink = own[Role.ATTN_SINKS][head] if c.sinks else -np.inf
        largest = np.maximum(scores.max(axis=1), sink)[:, None]
        terms = np.exp(scores - largest)
        total = terms.sum(axis=1, keepdims=True) + np.exp(sink - largest)
        out[:, head] = terms / total @ v[:, head // group]
    values = out.reshape(n, -1)
    if c.output_gate or c.head_gate:
        gate = x @ own[Role.ATTN_GATE].T
        gate = np.logaddexp(0, gate) if c.gate_softplus else sigmoid(gate)
        values = values * (np.repeat(gate, c.output_dim, axis=1) if c.head_gate else gate)
    values = norm(config, own, Role.ATTN_INNER_NORM, values)
    if layer.row_codes:
        values = coded(values)
    result = values @ own[Role.ATTN_OUTPUT].T
    return np.asarray(result + own[Role.ATTN_OUTPUT_BIAS] if c.output_bias else result)


def alibi_slope(head: int, n_heads: int) -> float:
    """As its inventors give it for every number of heads."""
    n = 1 << (n_heads.bit_length() - 1)
    return float(
        2.0 ** (-8 * (head + 1) / n) if head < n else 2.0 ** (-4 * (2 * (head - n) + 1) / n)
    )


def turn(rope: Rope, heads: Array) -> Array:
    """RoPE: the first ``rotated`` dimensions of [tokens][heads][head_dim], half by half."""
    half = rope.rotated // 2
    frequencies = rope.theta ** (-2.0 * np.arange(half) / rope.rotated)
    if rope.factors is not None:
        frequencies = frequencies / np.array(rope.factors)
    angles = np.arange(len(heads))[:, None, None] * frequencies
    cosine, sine = np.cos(angles) * rope.scale, np.sin(angles) * rope.scale
    a, b = heads[..., :half], heads[..., half : rope.rotated]
    parts = (a * cosine - b * sine, b * cosine + a * sine, heads[..., rope.rotated :])
    return np.concatenate(parts, axis=-1)
