"""The forward step of a model in float32, one layer at a time.

Hidden states are [windows, tokens, hidden]: windows of one length that do not see each other. A
layer is run in steps, one for each set of matrices that share an input, so that the matrices of one
step can be replaced before their outputs are needed by the next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lanewise.loading.binding import layer_shapes
from lanewise.loading.checkpoint import ModelFileError, Role
from lanewise.loading.names import ORDERS, is_vector
from lanewise.loading.plain import further_kinds
from lanewise.loading.program import (
    Attention,
    Experts,
    Gated,
    Layer,
    ModelConfig,
    Plain,
    Rope,
    ShortConv,
)
from lanewise.loading.rope import frequencies
from lanewise_quantizer.fit.activations import activated
from lanewise_quantizer.fit.experts import mixed, sigmoid, silu
from lanewise_quantizer.fit.recurrence import KEPT, results

Floats = npt.NDArray[np.float32]
Weights = Callable[[Role, int], Floats]

# The matrices of attention and of a gated layer in the order of the forward step; those of one step
# share their input.
ATTENTION_STEPS: tuple[tuple[Role, ...], ...] = (
    (Role.ATTN_Q, Role.ATTN_K, Role.ATTN_V),
    (Role.ATTN_OUTPUT,),
)
STEPS_OF_FFN: tuple[tuple[Role, ...], ...] = ((Role.FFN_GATE, Role.FFN_UP), (Role.FFN_DOWN,))
STEPS = (*ATTENTION_STEPS, *STEPS_OF_FFN)  # of layers like Llama's
ENDS = (Role.ATTN_OUTPUT, Role.STATE_OUT, Role.FFN_DOWN)  # what they give is added
CANNOT = "calibration cannot compute"
# Of further_kinds; what is done with logits is no layer's.
COMPUTED = (
    *("biases of logits", "capped logits", "capped scores", "layers without norms of their input"),
    *("norms of queries and keys that have turned", "norms of values"),
    "LayerNorm of queries and keys",
    *("an FFN beside attention", "layers whose results are scaled", "values that are keys"),
)
CHUNK_TOKENS = 2048  # rows computed at a time, which bounds what is held beside the hidden states


def check_computable(config: ModelConfig) -> None:
    """ModelFileError for models of which :class:`Forward` does not know how to run the layers."""
    odd = None
    if config.pooling is not None:
        odd = "encoders"
    for layer in config.layers:
        if not has_computable_ffn(layer):
            odd = "experts of other activations than silu with a gate and relu^2 without"
        elif layer.attn_norm_replaces or layer.ffn_norm_replaces:
            odd = "norms after each addition"
    odd = next((kind for kind in further_kinds(config) if kind not in COMPUTED), odd)
    if odd is not None:
        raise ModelFileError(
            f"{config.architecture}: {CANNOT} {odd} yet; accepted are models that make logits,"
            " with a norm, if any, before attention and before what is behind it"
        )


def has_computable_ffn(layer: Layer) -> bool:
    """Return whether a layer has no experts, or those that are gated by silu or plain."""
    ffn = layer.ffn
    if not isinstance(ffn, Experts):
        return True
    return ffn.activation in (("silu", "clamped") if ffn.gated else ("relu_squared",))


class Norm(NamedTuple):
    """What a norm multiplies by and adds: nothing where there is none, or no bias."""

    weight: Floats | None
    bias: Floats | None = None


def output_norm(config: ModelConfig, weights: Weights) -> Norm:
    """The norm before the head."""
    bias = weights(Role.OUTPUT_NORM_BIAS, 0) if config.norm_bias else None
    return Norm(weights(Role.OUTPUT_NORM, 0), bias)


@dataclass(frozen=True)
class Vectors:
    """What a layer is, and its vectors: norms, biases, sinks; small matrices that are kept."""

    layer: Layer
    of: Mapping[Role, Floats]

    @property
    def attention(self) -> Attention:
        """The layer's attention, which it must have."""
        assert self.layer.attention is not None
        return self.layer.attention

    @property
    def attn_norm(self) -> Norm:
        """The norm before attention."""
        return Norm(self.of.get(Role.ATTN_NORM), self.of.get(Role.ATTN_NORM_BIAS))

    @property
    def ffn_norm(self) -> Norm:
        """The norm before the feed-forward layer."""
        if self.layer.wiring == "parallel_one_norm":
            return self.attn_norm
        return Norm(self.of.get(Role.FFN_NORM), self.of.get(Role.FFN_NORM_BIAS))

    @property
    def is_beside(self) -> bool:
        """Whether the feed-forward layer reads what attention does."""
        return self.layer.wiring != "in_turn"


class Turn:
    """RoPE of one set of angles, for positions from 0."""

    def __init__(self, rope: Rope, tokens: int) -> None:
        inverse = np.array(frequencies(rope.theta, rope.rotated), np.float32)
        if rope.factors is not None:
            inverse /= np.array(rope.factors, np.float32)
        angles = np.arange(tokens, dtype=np.float32)[:, None] * inverse
        scale = np.float32(rope.scale)
        self.cos, self.sin = np.cos(angles)[:, None] * scale, np.sin(angles)[:, None] * scale
        self.half = rope.rotated // 2

    def __call__(self, heads: Floats) -> Floats:
        """Rotate the first dimensions of heads [windows, tokens, heads, head_dim]."""
        low, high = heads[..., : self.half], heads[..., self.half : 2 * self.half]
        turned = (low * self.cos - high * self.sin, high * self.cos + low * self.sin)
        return np.concatenate((*turned, heads[..., 2 * self.half :]), axis=-1)


class Forward:
    """Runs a model's layers on hidden states."""

    def __init__(self, config: ModelConfig, tokens: int) -> None:
        check_computable(config)
        self.config = config
        self.turns = [Turn(rope, tokens) for rope in config.ropes]
        self._masks = {
            window: _mask(tokens, window)
            for window in {
                one.attention.window for one in config.layers if one.attention is not None
            }
        }

    def vectors(self, weights: Weights, layer: int) -> Vectors:
        """Read a layer's vectors."""
        shapes = layer_shapes(self.config, layer)
        roles = [r for r in shapes if (is_vector(r) and r not in ORDERS) or r in KEPT]
        return Vectors(self.config.layers[layer], {role: weights(role, layer) for role in roles})

    def norm(self, x: Floats, norm: Norm) -> Floats:
        """The model's norm over the last dimension; x itself where a layer has none."""
        if norm.weight is None:
            return x
        if self.config.norm == "rms":
            return self.rms(x, norm.weight)
        result = self.rms(x - np.mean(x, axis=-1, keepdims=True, dtype=np.float32), norm.weight)
        return result if norm.bias is None else result + norm.bias

    def rms(self, x: Floats, weight: Floats) -> Floats:
        """RMSNorm over the last dimension."""
        mean: Floats = np.mean(np.square(x), axis=-1, keepdims=True, dtype=np.float32)
        scale: Floats = np.float32(1) / np.sqrt(mean + np.float32(self.config.rms_norm_eps))
        result: Floats = x * scale * weight
        return result

    def heads(self, x: Floats, role: Role, weight: Floats, vectors: Vectors) -> Floats:
        """One of Q, K and V as [windows, heads, tokens, head_dim], rotated where it must be."""
        kind = vectors.attention
        y: Floats = np.matmul(x, weight.T)
        if kind.qkv_bias:
            bias = Role.ATTN_K if kind.values_are_keys and role == Role.ATTN_V else role
            y += vectors.of[BIASES[bias]]
        norm = QK_NORMS.get(role)
        if norm is not None and kind.qk_norm == "whole":
            y = self.rms(y, vectors.of[norm])
        y = y.reshape(x.shape[0], x.shape[1], -1, kind.head_dim)
        if norm is not None and kind.qk_norm == "head":
            y = self.rms(y, vectors.of[norm])
        if norm is not None and kind.qk_norm == "layer":
            centred = y - np.mean(y, axis=-1, keepdims=True, dtype=np.float32)
            y = self.rms(centred, vectors.of[norm].reshape(-1, kind.head_dim))
        if role != Role.ATTN_V and kind.rope is not None:
            y = self.turns[kind.rope](y)
        if norm is not None and kind.qk_norm == "turned":
            y = self.rms(y, vectors.of[norm])
        if role == Role.ATTN_V and kind.value_norm:
            y = self.rms(y, np.ones(kind.head_dim, np.float32))
        if role == Role.ATTN_Q and kind.position_scale is not None:
            beta, original = kind.position_scale
            steps = np.log(1 + np.arange(x.shape[1]) // original)
            y = y * (1 + beta * steps).astype(np.float32)[:, None, None]
        return y.swapaxes(1, 2)

    def attention(self, x: Floats, weights: Mapping[Role, Floats], vectors: Vectors) -> Floats:
        """What ATTN_OUTPUT is given, [windows, tokens, heads * head_dim], for normalized x."""
        kind = vectors.attention
        values = Role.ATTN_K if kind.values_are_keys else Role.ATTN_V
        q, k, v = (
            self.heads(x, role, weights[values if role == Role.ATTN_V else role], vectors)
            for role in ATTENTION_STEPS[0]
        )
        n, _, tokens, size = q.shape
        groups = q.reshape(n, kind.n_kv_heads, -1, tokens, size)
        scores = groups @ k[:, :, None].swapaxes(-1, -2)
        scores *= np.float32(kind.score_scale)
        if kind.score_softcap:
            cap = np.float32(kind.score_softcap)
            scores = cap * np.tanh(scores / cap)
        if kind.alibi:
            scores -= _falls(kind, tokens)
        scores += self._masks[kind.window]
        _softmax(scores, _sinks(kind, vectors))
        out: Floats = np.matmul(scores, v[:, :, None], dtype=np.float32)
        out = out.reshape(n, -1, tokens, size)
        out = np.ascontiguousarray(out.swapaxes(1, 2)).reshape(n, tokens, -1)
        if kind.output_gate:
            out *= sigmoid(x @ weights[Role.ATTN_GATE].T)
        if kind.head_gate:
            out *= sigmoid(x @ weights[Role.ATTN_GATE].T).repeat(kind.head_dim, axis=-1)
        return out

    def state(self, x: Floats, weights: Mapping[Role, Floats], vectors: Vectors) -> Floats:
        """What STATE_OUT is given, [windows, tokens, inner], for normalized x."""
        state = vectors.layer.state
        assert state is not None
        return results(state, self.config.rms_norm_eps, weights, vectors.of, x)

    def gated(
        self, x: Floats, weights: Mapping[Role, Floats], vectors: Vectors | None = None
    ) -> Floats:
        """What FFN_DOWN is given, [windows, tokens, ffn], for normalized x."""
        ffn = None if vectors is None else vectors.layer.ffn
        up = x @ weights[Role.FFN_UP].T
        if vectors is not None and Role.FFN_UP_BIAS in vectors.of:
            up += vectors.of[Role.FFN_UP_BIAS]
        if isinstance(ffn, Plain):
            return activated(ffn, up)
        gate = x @ weights[Role.FFN_GATE].T
        if vectors is not None and Role.FFN_GATE_BIAS in vectors.of:
            gate += vectors.of[Role.FFN_GATE_BIAS]
        if isinstance(ffn, Gated) and ffn.activation != "silu":
            return activated(ffn, gate) * up
        return silu(gate, up)

    def inputs(
        self, role: Role, x: Floats, weights: Mapping[Role, Floats], vectors: Vectors
    ) -> Floats:
        """What the step that begins with a matrix is given, for hidden states before its branch."""
        if role in (Role.ATTN_Q, Role.STATE_IN):
            return self.norm(x, vectors.attn_norm)
        if role in (Role.ATTN_OUTPUT, Role.STATE_OUT):
            mix = self.attention if role == Role.ATTN_OUTPUT else self.state
            return mix(self.norm(x, vectors.attn_norm), weights, vectors)
        normed = self.norm(x, vectors.ffn_norm)
        return self.gated(normed, weights, vectors) if role == Role.FFN_DOWN else normed

    def add(self, x: Floats, product: Floats, role: Role, vectors: Vectors) -> None:
        """Add what a matrix that ends a branch gives to the hidden states, in place."""
        bias = vectors.of.get(BIASES[role]) if role in BIASES else None
        if bias is not None:
            product = product + bias
        if vectors.layer.result_norms:
            product = self.norm(product, Norm(vectors.of[RESULT_NORMS[role]]))
        if self.config.residual_scale != 1.0:
            product = product * np.float32(self.config.residual_scale)
        x += product

    def chunks(self, x: Floats) -> list[slice]:
        """Slices of whole windows of about CHUNK_TOKENS tokens."""
        step = max(1, CHUNK_TOKENS // x.shape[1])
        return [slice(i, i + step) for i in range(0, x.shape[0], step)]

    def layer(self, x: Floats, weights: Mapping[Role, Floats], vectors: Vectors) -> None:
        """Run one layer, in place."""
        ends = [last for last in (Role.ATTN_OUTPUT, Role.STATE_OUT) if last in weights]
        for part in self.chunks(x):
            before = x[part].copy() if vectors.is_beside else x[part]
            inners = [self.inputs(last, x[part], weights, vectors) for last in ends]
            for last, inner in zip(ends, inners, strict=True):  # which all read the same x
                self.add(x[part], inner @ weights[last].T, last, vectors)
            normed = self.norm(before, vectors.ffn_norm)
            if vectors.layer.ffn is None:
                pass
            elif isinstance(vectors.layer.ffn, Experts):
                rows = normed.reshape(-1, normed.shape[-1])
                product = mixed(vectors.layer.ffn, weights, vectors.of, rows).reshape(normed.shape)
                self.add(x[part], product, Role.EXPERTS_DOWN, vectors)
            else:
                inner = self.gated(normed, weights, vectors)
                self.add(x[part], inner @ weights[Role.FFN_DOWN].T, Role.FFN_DOWN, vectors)
            self.end(x[part], vectors)

    def end(self, x: Floats, vectors: Vectors) -> None:
        """What a layer does to the hidden states when all has been added, in place."""
        if vectors.layer.output_scale != 1.0:
            x *= np.float32(vectors.layer.output_scale)


# Of matrices whose outputs a vector is added to; an expert's are added before they are weighted.
BIASES = {
    Role.ATTN_Q: Role.ATTN_Q_BIAS,
    Role.ATTN_K: Role.ATTN_K_BIAS,
    Role.ATTN_V: Role.ATTN_V_BIAS,
    Role.ATTN_OUTPUT: Role.ATTN_OUTPUT_BIAS,
    Role.FFN_DOWN: Role.FFN_DOWN_BIAS,
}
RESULT_NORMS = {
    Role.ATTN_OUTPUT: Role.ATTN_RESULT_NORM,
    Role.STATE_OUT: Role.ATTN_RESULT_NORM,
    Role.FFN_DOWN: Role.FFN_RESULT_NORM,
}
QK_NORMS = {Role.ATTN_Q: Role.ATTN_Q_NORM, Role.ATTN_K: Role.ATTN_K_NORM}


def _mask(tokens: int, window: int | None) -> Floats:
    ages = np.arange(tokens)[:, None] - np.arange(tokens)
    seen = ages >= 0
    if window is not None:
        seen &= ages < window
    return np.where(seen, np.float32(0), np.float32(-np.inf)).astype(np.float32)


def _falls(kind: Attention, tokens: int) -> Floats:
    """What scores fall by as [kv heads, heads of each, query, key]."""
    n = 1 << (kind.n_heads.bit_length() - 1)
    heads = np.arange(kind.n_heads)
    exponents = np.where(heads < n, 8 * (heads + 1) / n, 4 * (2 * (heads - n) + 1) / n)
    slopes = 2.0**-exponents * (kind.score_scale if kind.scaled_alibi else 1)
    ages = np.abs(np.arange(tokens)[:, None] - np.arange(tokens))
    found: Floats = slopes.reshape(kind.n_kv_heads, -1, 1, 1).astype(np.float32) * ages
    return found.astype(np.float32)


def _sinks(kind: Attention, vectors: Vectors) -> Floats | None:
    """The logits of the sinks as [kv heads, heads of each, 1, 1]."""
    if not kind.sinks:
        return None
    return vectors.of[Role.ATTN_SINKS].reshape(kind.n_kv_heads, -1, 1, 1)


def _softmax(scores: Floats, sinks: Floats | None) -> None:
    """Over the last dimension, in place; a sink is one more term of the denominator."""
    largest = scores.max(axis=-1, keepdims=True)
    if sinks is not None:
        largest = np.maximum(largest, sinks)
    scores -= largest
    np.exp(scores, out=scores)
    total = scores.sum(axis=-1, keepdims=True)
    if sinks is not None:
        total += np.exp(sinks - largest)
    scores /= total


def passes_gate(attention: Attention) -> bool:
    """Return whether results of attention go through a gate of either kind."""
    return attention.output_gate or attention.head_gate


def steps_of(layer: Layer) -> tuple[tuple[Role, ...], ...]:
    """The steps of a layer; its experts, which are none, come after them.

    Attention and a state read the same: what both begin with is one step.
    """
    begin: tuple[Role, ...] = ()
    ends: list[tuple[Role, ...]] = []
    if layer.attention is not None:
        first, last = ATTENTION_STEPS
        if layer.attention.values_are_keys:
            first = first[:2]
        begin += (*first, Role.ATTN_GATE) if passes_gate(layer.attention) else first
        ends.append(last)
    if layer.state is not None:
        has_gate = not isinstance(layer.state, ShortConv)
        begin += (Role.STATE_IN, Role.STATE_GATE)[: 1 + has_gate]
        ends.append((Role.STATE_OUT,))
    steps = [begin, *ends] if begin else []
    if isinstance(layer.ffn, Gated):
        steps += STEPS_OF_FFN
    if isinstance(layer.ffn, Plain):
        steps += [(Role.FFN_UP,), (Role.FFN_DOWN,)]
    return tuple(steps)


def matrices_of(config: ModelConfig, layer: int) -> list[Role]:
    """The roles of a layer's matrices, in the order of the forward step."""
    return [role for role in layer_shapes(config, layer) if not is_vector(role)]


def embedded(config: ModelConfig, vectors: Floats) -> Floats:
    """The hidden states that vectors of the embedding begin as."""
    if config.embedding_scale == 1.0:
        return vectors
    return vectors * np.float32(config.embedding_scale)


def run(config: ModelConfig, weights: Weights, ids: npt.NDArray[np.integer]) -> Floats:
    """The normalized hidden states [windows, tokens, hidden] that the head is given."""
    forward = Forward(config, ids.shape[1])
    x = embedded(config, weights(Role.TOKEN_EMBEDDING, 0)[ids])
    for layer in range(config.n_layers):
        matrices = {role: weights(role, layer) for role in matrices_of(config, layer)}
        forward.layer(x, matrices, forward.vectors(weights, layer))
    return forward.norm(x, output_norm(config, weights))
