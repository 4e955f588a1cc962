"""The forward step of a Llama or Qwen model in float32, one layer at a time.

Hidden states are [windows, tokens, hidden]: windows of one length that do not see each other. A
layer is run in four steps, one for each set of matrices that share an input, so that the matrices
of one step can be replaced before their outputs are needed by the next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lanewise.loading.checkpoint import Role
from lanewise.loading.plain import plain_layers
from lanewise.loading.program import ModelConfig
from lanewise.loading.rope import frequencies

Floats = npt.NDArray[np.float32]
Weights = Callable[[Role, int], Floats]

# The matrices of a layer in the order of the forward step; those of one step share their input.
STEPS = (
    (Role.ATTN_Q, Role.ATTN_K, Role.ATTN_V),
    (Role.ATTN_OUTPUT,),
    (Role.FFN_GATE, Role.FFN_UP),
    (Role.FFN_DOWN,),
)
CANNOT = "calibration cannot compute"
CHUNK_TOKENS = 2048  # rows computed at a time, which bounds what is held beside the hidden states


@dataclass(frozen=True)
class Vectors:
    """Norms and biases of one layer."""

    attn_norm: Floats
    ffn_norm: Floats
    biases: Mapping[Role, Floats]  # of ATTN_Q, ATTN_K and ATTN_V
    q_norm: Floats | None
    k_norm: Floats | None


class Forward:
    """Runs a model's layers on hidden states."""

    def __init__(self, config: ModelConfig, tokens: int) -> None:
        self.config = config
        plain = plain_layers(config, CANNOT)
        self.layer_kind = plain.attention
        inverse = np.array(frequencies(plain.rope.theta, plain.attention.head_dim), np.float32)
        if plain.rope.factors is not None:
            inverse /= np.array(plain.rope.factors, np.float32)
        angles = np.arange(tokens, dtype=np.float32)[:, None] * inverse
        self.cos, self.sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
        ages = np.arange(tokens)[:, None] - np.arange(tokens)
        seen = ages >= 0
        if plain.attention.window:
            seen &= ages < plain.attention.window
        self.mask = np.where(seen, np.float32(0), np.float32(-np.inf)).astype(np.float32)

    def vectors(self, weights: Weights, layer: int) -> Vectors:
        """Read a layer's norms and biases."""
        kind = self.layer_kind
        pairs = {
            Role.ATTN_Q: Role.ATTN_Q_BIAS,
            Role.ATTN_K: Role.ATTN_K_BIAS,
            Role.ATTN_V: Role.ATTN_V_BIAS,
        }
        return Vectors(
            weights(Role.ATTN_NORM, layer),
            weights(Role.FFN_NORM, layer),
            {m: weights(b, layer) for m, b in pairs.items()} if kind.qkv_bias else {},
            weights(Role.ATTN_Q_NORM, layer) if kind.qk_norm != "none" else None,
            weights(Role.ATTN_K_NORM, layer) if kind.qk_norm != "none" else None,
        )

    def norm(self, x: Floats, weight: Floats) -> Floats:
        """RMSNorm over the last dimension."""
        mean: Floats = np.mean(np.square(x), axis=-1, keepdims=True, dtype=np.float32)
        scale: Floats = np.float32(1) / np.sqrt(mean + np.float32(self.config.rms_norm_eps))
        result: Floats = x * scale * weight
        return result

    def heads(self, x: Floats, role: Role, weight: Floats, vectors: Vectors) -> Floats:
        """One of Q, K and V as [windows, heads, tokens, head_dim], rotated where it must be."""
        y: Floats = np.matmul(x, weight.T)
        if role in vectors.biases:
            y += vectors.biases[role]
        y = y.reshape(x.shape[0], x.shape[1], -1, self.layer_kind.head_dim)
        norm = {Role.ATTN_Q: vectors.q_norm, Role.ATTN_K: vectors.k_norm}.get(role)
        if norm is not None:
            y = self.norm(y, norm)
        if role != Role.ATTN_V:
            low, high = np.split(y, 2, axis=-1)
            turned = (low * self.cos - high * self.sin, high * self.cos + low * self.sin)
            y = np.concatenate(turned, axis=-1)
        return y.swapaxes(1, 2)

    def attention(self, x: Floats, weights: Mapping[Role, Floats], vectors: Vectors) -> Floats:
        """What ATTN_OUTPUT is given, [windows, tokens, heads * head_dim], for normalized x."""
        q, k, v = (self.heads(x, role, weights[role], vectors) for role in STEPS[0])
        n, _, tokens, size = q.shape
        groups = q.reshape(n, self.layer_kind.n_kv_heads, -1, tokens, size)
        scores = groups @ k[:, :, None].swapaxes(-1, -2)
        scores *= np.float32(size**-0.5)
        scores += self.mask
        scores -= scores.max(axis=-1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(axis=-1, keepdims=True)
        mixed: Floats = np.matmul(scores, v[:, :, None], dtype=np.float32)
        mixed = mixed.reshape(n, -1, tokens, size)
        return np.ascontiguousarray(mixed.swapaxes(1, 2)).reshape(n, tokens, -1)

    def gated(self, x: Floats, weights: Mapping[Role, Floats]) -> Floats:
        """What FFN_DOWN is given, [windows, tokens, ffn], for normalized x."""
        gate = x @ weights[Role.FFN_GATE].T
        divisor = np.maximum(gate, np.float32(-80))
        np.negative(divisor, out=divisor)
        np.exp(divisor, out=divisor)
        divisor += np.float32(1)
        gate /= divisor
        gate *= x @ weights[Role.FFN_UP].T
        return gate

    def chunks(self, x: Floats) -> list[slice]:
        """Slices of whole windows of about CHUNK_TOKENS tokens."""
        step = max(1, CHUNK_TOKENS // x.shape[1])
        return [slice(i, i + step) for i in range(0, x.shape[0], step)]

    def layer(self, x: Floats, weights: Mapping[Role, Floats], vectors: Vectors) -> None:
        """Run one layer, in place."""
        for part in self.chunks(x):
            normed = self.norm(x[part], vectors.attn_norm)
            mixed = self.attention(normed, weights, vectors)
            x[part] += mixed @ weights[Role.ATTN_OUTPUT].T
            gated = self.gated(self.norm(x[part], vectors.ffn_norm), weights)
            x[part] += gated @ weights[Role.FFN_DOWN].T


def run(config: ModelConfig, weights: Weights, ids: npt.NDArray[np.integer]) -> Floats:
    """The normalized hidden states [windows, tokens, hidden] that the head is given."""
    forward = Forward(config, ids.shape[1])
    x = weights(Role.TOKEN_EMBEDDING, 0)[ids]
    for layer in range(config.n_layers):
        matrices = {role: weights(role, layer) for step in STEPS for role in step}
        forward.layer(x, matrices, forward.vectors(weights, layer))
    return forward.norm(x, weights(Role.OUTPUT_NORM, 0))
