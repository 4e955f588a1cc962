"""What stands in the place of attention: convolutions and recurrences of a text, in float32."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.recurrences import (
    GatedDelta,
    ShortConv,
    Ssd,
    State,
)
from lanewise_quantizer.fit.activations import sigmoid

Floats = npt.NDArray[np.float32]
Tensors = Mapping[Role, Floats]

# Matrices that are never quantized, so that they are with the vectors of a layer.
KEPT = (Role.STATE_DECAY, Role.STATE_BETA)
CHUNK = 64  # tokens that are solved together; what is between chunks is the state
LENGTH_EPS = np.float32(1e-6)  # beside the squared length of queries and keys


def results(state: State, eps: float, weights: Tensors, vectors: Tensors, x: Floats) -> Floats:
    """What STATE_OUT is given [windows, tokens, inner], for normalized x of whole texts.

    ``eps`` is that of norms.
    """
    mixed = x @ weights[Role.STATE_IN].T
    if isinstance(state, ShortConv):
        before, gate, values = np.split(mixed, 3, axis=-1)
        return np.asarray(gate * convolved(state, vectors, before * values))
    mixed = convolved(state, vectors, mixed)
    if Role.STATE_CONV_BIAS in vectors:
        mixed += vectors[Role.STATE_CONV_BIAS]
    mixed *= sigmoid(mixed)
    gate = x @ weights[Role.STATE_GATE].T
    gate *= sigmoid(gate)
    steps = x @ vectors[Role.STATE_DECAY].T + vectors[Role.STATE_DECAY_BIAS]
    steps = np.logaddexp(steps, np.float32(0))
    if isinstance(state, GatedDelta):
        betas = sigmoid(x @ vectors[Role.STATE_BETA].T)
        out = _delta(state, vectors, mixed, steps, betas)
        return np.asarray(_normed(out, eps, vectors[Role.STATE_NORM]).reshape(gate.shape) * gate)
    out = _dual(state, vectors, mixed, steps).reshape(gate.shape)
    out *= gate
    if state.norm_size is None:
        return out
    groups = out.reshape(*out.shape[:2], -1, state.norm_size)
    weight = vectors[Role.STATE_NORM].reshape(-1, state.norm_size)
    return _normed(groups, eps, weight).reshape(gate.shape)


def convolved(state: State, vectors: Tensors, x: Floats) -> Floats:
    """Each channel of x [windows, tokens, channels] with the tokens before it."""
    taps = vectors[Role.STATE_CONV].reshape(-1, state.taps)
    padded = np.pad(x, ((0, 0), (state.taps - 1, 0), (0, 0)))
    out = np.zeros_like(x)
    for tap in range(state.taps):
        out += padded[:, tap : tap + x.shape[1]] * taps[:, tap]
    return out


def _normed(x: Floats, eps: float, weight: Floats) -> Floats:
    mean = np.mean(np.square(x), axis=-1, keepdims=True, dtype=np.float32)
    return np.asarray(x / np.sqrt(mean + np.float32(eps)) * weight)


def _heads(x: Floats, size: int) -> Floats:
    """Rows [windows, tokens, heads * size] as [windows, heads, tokens, size]."""
    return x.reshape(*x.shape[:2], -1, size).swapaxes(1, 2)


def _for_each(keys: Floats, state: GatedDelta | Ssd) -> Floats:
    """The head of keys of each head."""
    if isinstance(state, GatedDelta) and state.keys_in_turn:
        return np.tile(keys, (1, state.n_heads // state.n_key_heads, 1, 1))
    return keys.repeat(state.n_heads // state.n_key_heads, axis=1)


def _delta(
    state: GatedDelta, vectors: Tensors, mixed: Floats, steps: Floats, betas: Floats
) -> Floats:
    size = state.n_key_heads * state.key_dim
    q, k, v = np.split(mixed, [size, 2 * size], axis=-1)
    q, k = _heads(q, state.key_dim), _heads(k, state.key_dim)
    q, k = (y / np.sqrt(np.square(y).sum(-1, keepdims=True) + LENGTH_EPS) for y in (q, k))
    q = q / np.float32(np.sqrt(state.key_dim))
    decays = (steps * vectors[Role.STATE_RATE]).swapaxes(1, 2)
    return _scan(
        _for_each(q, state),
        _for_each(k, state),
        _heads(v, state.value_dim),
        decays,
        betas.swapaxes(1, 2),
    )


def _dual(state: Ssd, vectors: Tensors, mixed: Floats, steps: Floats) -> Floats:
    size = state.n_key_heads * state.key_dim
    x, keys, reads = np.split(mixed, [state.inner, state.inner + size], axis=-1)
    values = _heads(x, state.value_dim)
    steps = steps.swapaxes(1, 2)
    out = _scan(
        _for_each(_heads(reads, state.key_dim), state),
        _for_each(_heads(keys, state.key_dim), state),
        values * steps[..., None],
        steps * vectors[Role.STATE_RATE][:, None],
        None,
    )
    return np.asarray(out + vectors[Role.STATE_SKIP][:, None] * values.swapaxes(1, 2))


def _scan(q: Floats, k: Floats, v: Floats, decays: Floats, betas: Floats | None) -> Floats:
    """The results [windows, tokens, heads, value_dim] of a recurrence from a state of zeros.

    Of each token t: S = exp(decay) S + k u^T, o = S^T q, with u = v, or beta (v - S^T k) of the
    shrunk S. ``q``, ``k`` and ``v`` are [windows, heads, tokens, size]. In a chunk, the u of all
    tokens solve a triangular system, as what token s adds has shrunk by exp(G[t] - G[s]) at t.
    """
    n, heads, tokens, size = v.shape
    state = np.zeros((n, heads, k.shape[-1], size), np.float32)
    out = np.empty((n, tokens, heads, size), np.float32)
    for start in range(0, tokens, CHUNK):
        part = slice(start, start + CHUNK)
        keys, reads, u = k[:, :, part], q[:, :, part], v[:, :, part]
        sums = np.cumsum(decays[:, :, part], axis=-1, dtype=np.float32)
        ages = sums[..., :, None] - sums[..., None, :]
        seen = np.tril(np.ones((u.shape[2],) * 2, bool))
        shrunk = np.exp(np.where(seen, ages, -np.inf)).astype(np.float32)
        since = np.exp(sums)[..., None]  # since the chunk began
        if betas is not None:
            beta = betas[:, :, part, None]
            before = np.tril(keys @ keys.swapaxes(-1, -2) * shrunk, -1) * beta
            u = beta * (u - since * (keys @ state))
            u = np.linalg.solve(before + np.eye(u.shape[2], dtype=np.float32), u)
        found = since * (reads @ state) + (reads @ keys.swapaxes(-1, -2) * shrunk) @ u
        out[:, part] = found.swapaxes(1, 2)
        left = np.exp(sums[..., -1:] - sums)[..., None]  # at the end of the chunk
        state = since[..., -1:, :] * state + (keys * left).swapaxes(-1, -2) @ u
    return out
