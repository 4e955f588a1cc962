"""Layers that keep a state, token by token, from their definition in float64."""

from collections.abc import Mapping

import numpy as np

from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.program import ModelConfig
from lanewise.loading.base.recurrences import ChannelDelta, GatedDelta, ShortConv, Ssd, State
from tests.golden.reference.parts import Array, rms, sigmoid, silu, softplus


def recurrence(config: ModelConfig, c: State, own: Mapping[Role, Array], x: Array) -> Array:
    """What stands in the place of attention, token by token, from a state of zeros."""
    mixed = x @ own[Role.STATE_IN].T
    if isinstance(c, ShortConv):
        b, gate, values = np.split(mixed, 3, axis=1)
        return np.asarray((gate * convolve(c, own, b * values)) @ own[Role.STATE_OUT].T)
    if isinstance(c, ChannelDelta):
        return channel_delta(config, c, own, x)
    mixed = convolve(c, own, mixed)
    if isinstance(c, Ssd) and c.conv_bias:
        mixed = mixed + own[Role.STATE_CONV_BIAS]
    mixed, z = silu(mixed), silu(x @ own[Role.STATE_GATE].T)
    shrinks = softplus(x @ own[Role.STATE_DECAY].T + own[Role.STATE_DECAY_BIAS])
    if isinstance(c, GatedDelta):
        betas = sigmoid(x @ own[Role.STATE_BETA].T)
        heads = delta_rule(c, own, mixed, shrinks, betas)
        normed = rms(heads, own[Role.STATE_NORM], config.rms_norm_eps)
        results = normed.reshape(len(x), -1) * z
    else:
        results = dual(c, own, mixed, shrinks).reshape(len(x), -1) * z
        if c.norm_size is not None:
            groups, weight = results.reshape(len(x), -1, c.norm_size), own[Role.STATE_NORM]
            weight = weight.reshape(-1, c.norm_size)
            results = rms(groups, weight, config.rms_norm_eps).reshape(len(x), -1)
    return np.asarray(results @ own[Role.STATE_OUT].T)


def channel_delta(
    config: ModelConfig, c: ChannelDelta, own: Mapping[Role, Array], x: Array
) -> Array:
    """What the delta rule gives whose decays are those of channels."""
    inputs = (Role.STATE_IN, Role.STATE_KEYS, Role.STATE_VALUES)
    mixed = silu(convolve(c, own, np.concatenate([x @ own[role].T for role in inputs], axis=1)))
    of_decay = x @ own[Role.STATE_DECAY_DOWN].T if c.decay_rank else x
    of_gate = x @ own[Role.STATE_GATE_DOWN].T if c.gate_rank else x
    a = of_decay @ own[Role.STATE_DECAY].T + own[Role.STATE_DECAY_BIAS]
    a = a.reshape(len(x), c.n_heads, c.key_dim)
    rate = own[Role.STATE_RATE][:, None]
    logs = -c.decay_floor * sigmoid(-rate * a) if c.decay_floor else rate * softplus(a)
    betas = sigmoid(x @ own[Role.STATE_BETA].T)
    heads = rms(delta_rule(c, own, mixed, logs, betas), own[Role.STATE_NORM], config.rms_norm_eps)
    gate = sigmoid(of_gate @ own[Role.STATE_GATE].T)
    return np.asarray((heads.reshape(len(x), -1) * gate) @ own[Role.STATE_OUT].T)


def convolve(c: State, own: Mapping[Role, Array], x: Array) -> Array:
    """Of [tokens][channels], each channel with the tokens before it."""
    taps = own[Role.STATE_CONV].reshape(-1, c.taps)
    padded = np.concatenate([np.zeros((c.taps - 1, x.shape[1])), x])
    return np.sum([padded[j : j + len(x)] * taps[:, j] for j in range(c.taps)], axis=0)


def delta_rule(
    c: GatedDelta | ChannelDelta,
    own: Mapping[Role, Array],
    mixed: Array,
    shrinks: Array,
    betas: Array,
) -> Array:
    """The results of all heads [tokens][heads][value_dim] of the gated delta rule.

    ``shrinks`` are logarithms of decays [tokens][heads][key_dim], or of heads still without rates.
    """
    keys = c.n_key_heads * c.key_dim
    q, k = (
        part.reshape(len(mixed), -1, c.key_dim) for part in np.split(mixed[:, : 2 * keys], 2, 1)
    )
    v = mixed[:, 2 * keys :].reshape(len(mixed), c.n_heads, c.value_dim)
    q, k = (part / np.sqrt((part * part).sum(-1, keepdims=True) + 1e-6) for part in (q, k))
    out = np.zeros(v.shape)
    for head in range(c.n_heads):
        state, of = np.zeros((c.key_dim, c.value_dim)), key_head(c, head)
        for t in range(len(mixed)):
            if isinstance(c, ChannelDelta):
                state = state * np.exp(shrinks[t, head])[:, None]
            else:
                state = state * np.exp(own[Role.STATE_RATE][head] * shrinks[t, head])
            change = betas[t, head] * (v[t, head] - state.T @ k[t, of])
            state = state + np.outer(k[t, of], change)
            out[t, head] = state.T @ q[t, of] / np.sqrt(c.key_dim)
    return out


def key_head(c: GatedDelta | Ssd | ChannelDelta, head: int) -> int:
    """Which head of keys a head has."""
    if isinstance(c, GatedDelta) and c.keys_in_turn:
        return head % c.n_key_heads
    return head // (c.n_heads // c.n_key_heads)


def dual(c: Ssd, own: Mapping[Role, Array], mixed: Array, steps: Array) -> Array:
    """The results of all heads [tokens][heads][value_dim] of Mamba 2."""
    n, keys = len(mixed), c.n_key_heads * c.key_dim
    inner = c.n_heads * c.value_dim
    x = mixed[:, :inner].reshape(n, c.n_heads, c.value_dim)
    b = mixed[:, inner : inner + keys].reshape(n, c.n_key_heads, c.key_dim)
    reads = mixed[:, inner + keys :].reshape(n, c.n_key_heads, c.key_dim)
    out = np.zeros(x.shape)
    for head in range(c.n_heads):
        state, of = np.zeros((c.key_dim, c.value_dim)), key_head(c, head)
        for t in range(n):
            step = steps[t, head]
            state = state * np.exp(step * own[Role.STATE_RATE][head])
            state = state + np.outer(b[t, of], step * x[t, head])
            out[t, head] = state.T @ reads[t, of] + own[Role.STATE_SKIP][head] * x[t, head]
    return out
