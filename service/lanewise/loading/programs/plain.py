"""The view of a program for readers that know only layers like Llama's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from lanewise.loading.base.checkpoint import ModelFileError
from lanewise.loading.base.program import (
    Attention,
    Experts,
    Gated,
    Layer,
    ModelConfig,
    Plain,
    Rope,
    plain_score_scale,
)


@dataclass(frozen=True)
class PlainLayers:
    """The values that all layers of a model share."""

    attention: Attention
    ffn: Gated
    rope: Rope


def plain_layers(config: ModelConfig, who: str) -> PlainLayers:
    """Return the values shared by all layers; ModelFileError if they are not like Llama's.

    ``who`` begins the error, such as "--gguf cannot write".
    """
    first = config.layers[0]
    for odd in _differences(config, first):
        raise ModelFileError(
            f"{config.architecture}: {who} {odd} yet; accepted are models whose layers are like"
            " Llama's, dense and all alike"
        )
    assert isinstance(first.ffn, Gated)
    assert first.attention is not None
    assert first.attention.rope is not None
    return PlainLayers(first.attention, first.ffn, config.ropes[first.attention.rope])


def _further_kinds(config: ModelConfig) -> Iterator[str]:
    """Yield a program's rarer features, of the model and of its layers."""
    if config.learned_positions:
        yield "learned positions"
    if isinstance(config.layers[0].ffn, Gated) and config.layers[0].ffn.cutoff:
        yield "gates that are cut off"
    if config.embedding_norm:
        yield "a norm of embeddings"
    if config.output_bias:
        yield "biases of logits"
    if config.per_layer_size:
        yield "inputs of each layer"
    if config.logit_softcap:
        yield "capped logits"
    for layer in config.layers:
        if layer.wiring != "in_turn":
            yield "attention and FFN in parallel"
        if layer.no_input_norms:
            yield "layers without norms of their input"
        if layer.output_scale != 1.0:
            yield "layers whose results are scaled"
        if layer.row_codes:
            yield "activations with one scale for a token"
        if isinstance(layer.ffn, Gated) and layer.ffn.inner_norm:
            yield "norms of what down reads"
        if isinstance(layer.ffn, Experts) and layer.ffn.own_norms:
            yield "experts with norms of their own"
        if isinstance(layer.ffn, Experts) and layer.ffn.latent_size:
            yield "experts in a space of their own"
        if layer.attention is not None:
            yield from _further_attention(layer.attention)


def _further_attention(attention: Attention) -> Iterator[str]:
    """Yield attention's rarer features."""
    if attention.latent_rank:
        yield "latent attention"
    if attention.qk_norm == "turned":
        yield "norms of queries and keys after RoPE"
    if attention.qk_norm == "layer":
        yield "LayerNorm of queries and keys"
    if attention.chunk:
        yield "attention in chunks"
    if attention.score_softcap:
        yield "capped scores"
    if attention.qkv_clip:
        yield "clipped queries, keys and values"
    if attention.values_are_keys:
        yield "values equal to keys"
    if attention.value_dim and not attention.latent_rank:
        yield "values of another size than keys"
    if attention.value_scale:
        yield "scaled values"
    if attention.value_norm:
        yield "norms of values"
    if attention.inner_norm:
        yield "norms of what attention's output matrix reads"
    if attention.kv_layer is not None:
        yield "keys and values shared by layers"


def _differences(config: ModelConfig, layer: Layer) -> Iterable[str]:
    attention, ffn = layer.attention, layer.ffn
    if config.has_states:
        yield "layers with a state"
    if attention is None or ffn is None:
        yield "layers without attention or without an FFN"
        return
    if config.pooling is not None:
        yield "encoders"
    if config.norm != "rms":
        yield "LayerNorm"
    yield from _further_kinds(config)
    if layer.result_norms:
        yield "norms of the results of attention and FFN"
    if any(isinstance(other.ffn, Experts) for other in config.layers):
        yield "experts"
    if not isinstance(ffn, Experts) and (isinstance(ffn, Plain) or ffn.activation != "silu"):
        yield "other activations than silu with a gate"
    if isinstance(ffn, Gated) and (ffn.bias or ffn.down_bias):
        yield "biases of gate, up and down"
    if attention.rope is None:
        yield "attention without positions"
    else:
        rope = config.ropes[attention.rope]
        if rope.rotated != attention.head_dim:
            yield f"RoPE over {rope.rotated} of {attention.head_dim} dimensions"
        if rope.scale != 1.0:
            yield f"RoPE with its cosines and sines scaled by {rope.scale}"
    if attention.output_bias:
        yield "a bias of attention's output"
    if attention.qk_norm not in ("none", "head"):
        yield "RMSNorm over whole projections"
    if attention.alibi:
        yield "attention with ALiBi"
    if attention.output_gate or attention.head_gate:
        yield "attention with an output gate"
    if attention.distances:
        yield "scores that change by distance"
    if attention.sinks:
        yield "attention sinks"
    if attention.score_scale != plain_score_scale(attention.head_dim):
        yield f"attention scores scaled by {attention.score_scale}"
    if attention.position_scale is not None:
        yield "queries scaled by their position"
    for name in ("embedding_scale", "residual_scale", "logit_scale"):
        if getattr(config, name) != 1.0:
            yield f"{name} {getattr(config, name)}"
    if any(other != layer for other in config.layers):
        yield "layers that differ from each other"
