"""The part of a program that those read who compute nothing but layers like Llama's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lanewise.loading.checkpoint import ModelFileError
from lanewise.loading.program import (
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
    """What all layers of a model have in common."""

    attention: Attention
    ffn: Gated
    rope: Rope


def plain_layers(config: ModelConfig, who: str) -> PlainLayers:
    """Return the layer that all are like; ModelFileError if they differ from Llama's.

    ``who`` begins the error, such as "calibration cannot compute".
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


def _differences(config: ModelConfig, layer: Layer) -> Iterable[str]:
    attention, ffn = layer.attention, layer.ffn
    if config.has_states:
        yield "layers with a state"
    if attention is None or ffn is None:
        yield "layers without attention or without an FFN"
        return
    if config.pooling is not None or config.norm != "rms":
        yield "encoders"
    if layer.result_norms:
        yield "norms of what attention and FFN add"
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
        yield "scores that fall with the distance"
    if attention.output_gate:
        yield "attention with an output gate"
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
