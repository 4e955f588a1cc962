"""What stands in the place of attention: convolutions and recurrences of a text, in float32."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.recurrences import ChannelDelta, GatedDelta, ShortConv, Ssd, State
from lanewise_quantizer.fit.activations import sigmoid

Floats = npt.NDArray[np.float32]
Tensors = Mapping[Role, Floats]

# Matrices that are never quantized, so that they are with the vectors of a layer.
KEPT = (Role.STATE_DECAY, Role.STATE_BETA, Role.STATE_DECAY_DOWN, Role.STATE_GATE_DOWN)
CHUNK = 64  # tokens that are solved together; what is between chunks is the state
# The same where channels decay apart. A decay below exp(FASTEST) is taken as that: it leaves
# nothing, and SHORT of them together have an inverse.
SHORT, FASTEST = 16, -40.0
LENGTH_EPS = np.float32(1e-6)  # beside the squared length of queries and keys


def results(state: State, eps: float, weights: Tensors, vectors: Tensors, x: Floats) -> Floats:
    """What STATE_OUT is given [windows, tokens, inner], for normalized x of whole texts.

    ``eps`` is that of norms.
    """
    mixed = x @ weights[Role.STATE_IN].T
    if isinstance(state, ChannelDelta):
        keys, values = (x @ weights[role].T for role in (Role.STATE_KEYS, Role.STATE_VALUES))
        return _of_channels(
            state, eps, weights, vectors, x, np.concatenate([mixed, keys, values], axis=-1)
        )
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


def behind(role: Role, vectors: Tensors, x: Floats) -> Floats:
    """The product of normalized x with the matrix ``role``, or x if there is none."""
    return np.asarray(x @ vectors[role].T) if role in vectors else x


def _of_channels(
    state: ChannelDelta, eps: float, weights: Tensors, vectors: Tensors, x: Floats, mixed: Floats
) -> Floats:
    """The results of a state whose channels decay apart; ``mixed`` are q, k and v."""
    mixed = convolved(state, vectors, mixed)
    mixed *= sigmoid(mixed)
    steps = behind(Role.STATE_DECAY_DOWN, vectors, x) @ vectors[Role.STATE_DECAY].T
    steps = (steps + vectors[Role.STATE_DECAY_BIAS]).reshape(*x.shape[:2], -1, state.key_dim)
    rates = vectors[Role.STATE_RATE][:, None]
    if state.decay_floor:
        decays = sigmoid(np.asarray(-rates * steps, np.float32)) * np.float32(-state.decay_floor)
    else:
        decays = np.asarray(rates * np.logaddexp(steps, np.float32(0)), np.float32)
    betas = sigmoid(x @ vectors[Role.STATE_BETA].T)
    q, k, v = _delta_parts(state, mixed)
    out = _scan_channels(q, k, v, decays.swapaxes(1, 2), betas.swapaxes(1, 2))
    gate = sigmoid(behind(Role.STATE_GATE_DOWN, vectors, x) @ weights[Role.STATE_GATE].T)
    return np.asarray(_normed(out, eps, vectors[Role.STATE_NORM]).reshape(gate.shape) * gate)


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


def _for_each(keys: Floats, state: GatedDelta | Ssd | ChannelDelta) -> Floats:
    """The head of keys of each head."""
    if isinstance(state, GatedDelta) and state.keys_in_turn:
        return np.tile(keys, (1, state.n_heads // state.n_key_heads, 1, 1))
    return keys.repeat(state.n_heads // state.n_key_heads, axis=1)


def _delta(
    state: GatedDelta, vectors: Tensors, mixed: Floats, steps: Floats, betas: Floats
) -> Floats:
    q, k, v = _delta_parts(state, mixed)
    decays = (steps * vectors[Role.STATE_RATE]).swapaxes(1, 2)
    return _scan(q, k, v, decays, betas.swapaxes(1, 2))


def _delta_parts(state: GatedDelta | ChannelDelta, mixed: Floats) -> tuple[Floats, Floats, Floats]:
    """What a delta rule reads of each head: queries and keys of length 1, values."""
    size = state.n_key_heads * state.key_dim
    q, k, v = np.split(mixed, [size, 2 * size], axis=-1)
    q, k = _heads(q, state.key_dim), _heads(k, state.key_dim)
    q, k = (y / np.sqrt(np.square(y).sum(-1, keepdims=True) + LENGTH_EPS) for y in (q, k))
    q = q / np.float32(np.sqrt(state.key_dim))
    return _for_each(q, state), _for_each(k, state), _heads(v, state.value_dim)


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


def _scan_channels(q: Floats, k: Floats, v: Floats, decays: Floats, betas: Floats) -> Floats:
    """As ``_scan``, with decays [windows, heads, tokens, key_dim], and in float64.

    What token s adds has shrunk by exp(G[t]) / exp(G[s]) at t, one factor for each channel.
    """
    n, heads, tokens, size = v.shape
    state = np.zeros((n, heads, k.shape[-1], size))
    out = np.empty((n, tokens, heads, size), np.float32)
    for start in range(0, tokens, SHORT):
        part = slice(start, start + SHORT)
        since = np.exp(np.cumsum(np.maximum(decays[:, :, part], FASTEST), axis=2, dtype=float))
        keys, reads = k[:, :, part] * since, q[:, :, part] * since
        grown = (k[:, :, part] / since).swapaxes(-1, -2)
        beta = betas[:, :, part, None]
        before = np.tril(keys @ grown, -1) * beta
        u = beta * (v[:, :, part] - keys @ state)
        u = np.linalg.solve(before + np.eye(u.shape[2]), u)
        out[:, part] = (reads @ state + np.tril(reads @ grown) @ u).swapaxes(1, 2)
        state = since[:, :, -1, :, None] * (state + grown @ u)
    return out
