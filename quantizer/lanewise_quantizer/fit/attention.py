"""Attention in float32: each token of a window to those before it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.program import Attention, ModelConfig, Rope
from lanewise.loading.programs.rope import frequencies
from lanewise_quantizer.fit import latent
from lanewise_quantizer.fit.activations import sigmoid
from lanewise_quantizer.fit.layer import BIASES, Vectors, rms

Floats = npt.NDArray[np.float32]
Matrices = Mapping[Role, Floats]

QK_NORMS = {Role.ATTN_Q: Role.ATTN_Q_NORM, Role.ATTN_K: Role.ATTN_K_NORM}


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


class Attending:
    """Attention of a model's layers in windows of so many tokens."""

    def __init__(self, config: ModelConfig, tokens: int) -> None:
        self.eps = config.rms_norm_eps
        self.turns = [Turn(rope, tokens) for rope in config.ropes]
        self._masks = {
            place: _mask(tokens, *place)
            for place in {
                (one.attention.window, one.attention.chunk)
                for one in config.layers
                if one.attention is not None
            }
        }

    def results(
        self, x: Floats, weights: Matrices, vectors: Vectors, stored: dict[int, Floats]
    ) -> Floats:
        """What ATTN_OUTPUT is given, [windows, tokens, heads * output_dim], for normalized x.

        ``stored`` has K and V of layers that others read; those of this one are written there.
        """
        kind = vectors.attention
        if kind.latent_rank:
            sums = self.latent_sums(x, weights, vectors)
            found = latent.by_head(sums, weights[Role.LATENT_VALUES])
            out = np.ascontiguousarray(found).reshape(*x.shape[:2], -1)
            return self.gated(out, x, weights, kind)
        q = self.heads(x, Role.ATTN_Q, weights[Role.ATTN_Q], vectors)
        k, v = self.keys_and_values(x, weights, vectors, stored)
        return self.gated(self.mixed(q, k, v, vectors), x, weights, kind)

    @staticmethod
    def gated(out: Floats, x: Floats, weights: Matrices, kind: Attention) -> Floats:
        """Multiply results by the output gate, in place, if there is one."""
        if kind.output_gate or kind.head_gate:
            gate = x @ weights[Role.ATTN_GATE].T
            gate = np.logaddexp(np.float32(0), gate) if kind.gate_softplus else sigmoid(gate)
            out *= gate.repeat(kind.output_dim, axis=-1) if kind.head_gate else gate
        return out

    def latent_queries(self, x: Floats, weights: Matrices, vectors: Vectors) -> Floats:
        """What LATENT_KEYS is given, [windows, tokens, heads, inputs]."""
        return latent.queries(x, weights, vectors, self._turn(vectors))[0]

    def latent_sums(self, x: Floats, weights: Matrices, vectors: Vectors) -> Floats:
        """What LATENT_VALUES is given, [windows, tokens, heads, inputs]."""
        turn = self._turn(vectors)
        still, turned = latent.queries(x, weights, vectors, turn)
        long = latent.by_head(still, weights[Role.LATENT_KEYS])
        q = _placed(vectors.attention, np.concatenate([long, turned], axis=-1))
        k, v = latent.rows(x, weights, vectors, turn)
        out = self.mixed(q.swapaxes(1, 2), k, v, vectors)
        return out.reshape(*x.shape[:2], vectors.attention.n_heads, -1)

    def _turn(self, vectors: Vectors) -> Callable[[Floats], Floats]:
        rope = vectors.attention.rope
        return (lambda heads: heads) if rope is None else self.turns[rope]

    def keys_and_values(
        self, x: Floats, weights: Matrices, vectors: Vectors, stored: dict[int, Floats]
    ) -> tuple[Floats, Floats]:
        """K and V as [windows, heads, tokens, size], a layer's own or another's."""
        kind = vectors.attention
        if kind.kv_layer is not None:
            k, v = stored[kind.kv_layer]
            return k, v[..., : kind.output_dim]
        values = Role.ATTN_K if kind.values_are_keys else Role.ATTN_V
        k = self.heads(x, Role.ATTN_K, weights[Role.ATTN_K], vectors)
        v = self.heads(x, Role.ATTN_V, weights[values], vectors)
        if vectors.number in stored:
            stored[vectors.number][0] = k
            stored[vectors.number][1, ..., : kind.output_dim] = v
        return k, v

    def heads(self, x: Floats, role: Role, weight: Floats, vectors: Vectors) -> Floats:
        """One of Q, K and V as [windows, heads, tokens, size], rotated where it must be."""
        kind = vectors.attention
        size = kind.output_dim if role == Role.ATTN_V else kind.head_dim
        y: Floats = np.matmul(x, weight.T)
        if kind.qkv_bias:
            bias = Role.ATTN_K if kind.values_are_keys and role == Role.ATTN_V else role
            y += vectors.of[BIASES[bias]]
        norm = QK_NORMS.get(role)
        if norm is not None and kind.qk_norm == "whole":
            y = rms(y, vectors.of[norm], self.eps)
        y = y.reshape(x.shape[0], x.shape[1], -1, size)
        if norm is not None and kind.qk_norm == "head":
            y = rms(y, vectors.of[norm], self.eps)
        if norm is not None and kind.qk_norm == "layer":
            centred = y - np.mean(y, axis=-1, keepdims=True, dtype=np.float32)
            y = rms(centred, vectors.of[norm].reshape(-1, kind.head_dim), self.eps)
        if kind.qkv_clip:
            y = np.clip(y, -kind.qkv_clip, kind.qkv_clip)
        if role != Role.ATTN_V and kind.rope is not None:
            y = self.turns[kind.rope](y)
        if norm is not None and kind.qk_norm == "turned":
            y = rms(y, vectors.of[norm], self.eps)
        if role == Role.ATTN_V and kind.value_norm:
            y = rms(y, np.ones(size, np.float32), self.eps)
        if role == Role.ATTN_V and kind.value_scale:
            y = y * np.float32(kind.value_scale)
        if role == Role.ATTN_Q:
            y = _placed(kind, y)
        return y.swapaxes(1, 2)

    def mixed(self, q: Floats, k: Floats, v: Floats, vectors: Vectors) -> Floats:
        """What queries find among values, [windows, tokens, heads * size of a value].

        ``q``, ``k`` and ``v`` are [windows, heads, tokens, size], those of K and V fewer.
        """
        kind = vectors.attention
        n, n_heads, tokens, size = q.shape
        groups = q.reshape(n, k.shape[1], -1, tokens, size)
        scores = groups @ k[:, :, None].swapaxes(-1, -2)
        scores *= np.float32(kind.score_scale)
        if kind.score_softcap:
            cap = np.float32(kind.score_softcap)
            scores = cap * np.tanh(scores / cap)
        if kind.alibi:
            scores -= _falls(kind, tokens)
        scores += self._masks[kind.window, kind.chunk]
        _softmax(scores, _sinks(kind, vectors))
        out: Floats = np.matmul(scores, v[:, :, None], dtype=np.float32)
        out = out.reshape(n, n_heads, tokens, -1)
        return np.ascontiguousarray(out.swapaxes(1, 2)).reshape(n, tokens, -1)


def _placed(kind: Attention, y: Floats) -> Floats:
    """Queries [windows, tokens, heads, head_dim] multiplied by what their position asks for."""
    if kind.position_scale is None:
        return y
    beta, original = kind.position_scale
    steps = np.log(1 + (np.arange(y.shape[1]) + kind.position_offset) // original)
    return np.asarray(y * (1 + beta * steps).astype(np.float32)[:, None, None])


def _mask(tokens: int, window: int | None, chunk: int) -> Floats:
    positions = np.arange(tokens)
    ages = positions[:, None] - positions
    seen = ages >= 0
    if chunk:
        seen &= positions[:, None] // chunk == positions // chunk
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
