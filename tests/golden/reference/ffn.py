"""FFNs and experts of the definition, in float64."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.program import Experts, Gated, ModelConfig, Plain
from tests.golden.reference.parts import Array, coded, curve, norm, sigmoid, softmax


@dataclass(frozen=True)
class Inner:
    """What happens to what the last matrix of an FFN without experts reads."""

    config: ModelConfig
    own: Mapping[Role, Array]
    row_codes: bool

    def __call__(self, x: Array) -> Array:
        """Behind its norm, and as codes say it."""
        normed = norm(self.config, self.own, Role.FFN_INNER_NORM, x)
        return coded(normed) if self.row_codes else normed


def ffn(
    c: Gated | Plain | Experts, own: Mapping[Role, Array], x: Array, inner: Inner
) -> tuple[Array, float]:
    """What a layer's FFN gives, and how near a choice of experts came to another one."""
    if isinstance(c, Experts):
        return experts(c, own, x)
    return (plain if isinstance(c, Plain) else gated)(c, own, x, inner), np.inf


def gated(c: Gated, own: Mapping[Role, Array], x: Array, behind: Inner) -> Array:
    """down(activation(gate x) * up x)."""
    gate, up = x @ own[Role.FFN_GATE].T, x @ own[Role.FFN_UP].T
    if c.bias:
        gate, up = gate + own[Role.FFN_GATE_BIAS], up + own[Role.FFN_UP_BIAS]
    if c.cutoff:
        least = gate.mean(axis=-1, keepdims=True) + c.cutoff * gate.std(axis=-1, keepdims=True)
        gate = np.maximum(gate - least, 0)
    if c.activation == "clamped":
        inner = clamped(gate, up, c.limit, c.alpha)
    else:
        inner = capped(gate, up, c.limit) if c.activation == "capped" else ffn_curve(c, gate) * up
    result = behind(inner) @ own[Role.FFN_DOWN].T
    return np.asarray(result + own[Role.FFN_DOWN_BIAS] if c.bias or c.down_bias else result)


def capped(gate: Array, up: Array, limit: float) -> Array:
    """min(silu(gate), limit) times up within the limit; 0 is none."""
    limit = limit or np.inf
    return np.asarray(np.minimum(gate * sigmoid(gate), limit) * np.clip(up, -limit, limit))


def clamped(gate: Array, up: Array, limit: float, alpha: float) -> Array:
    """Of a gate at most the limit, and up within it."""
    gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
    return np.asarray(gate * sigmoid(alpha * gate) * (up + 1))


def plain(c: Plain, own: Mapping[Role, Array], x: Array, behind: Inner) -> Array:
    """down(activation(up x))."""
    up = x @ own[Role.FFN_UP].T
    if c.bias:
        up = up + own[Role.FFN_UP_BIAS]
    result = behind(ffn_curve(c, up)) @ own[Role.FFN_DOWN].T
    return np.asarray(result + own[Role.FFN_DOWN_BIAS] if c.bias or c.down_bias else result)


def ffn_curve(c: Gated | Plain | Experts, x: Array) -> Array:
    """One of FFN_CURVES."""
    if c.activation != "xielu":
        return curve(c.activation, x)
    below = c.limit * (np.expm1(np.minimum(x, -1e-6)) - x) + x / 2
    return np.asarray(np.where(x > 0, c.alpha * x * x + x / 2, below))


def experts(c: Experts, own: Mapping[Role, Array], x: Array) -> tuple[Array, float]:
    """Token by token."""
    rows = [of_token(c, own, row) for row in x]
    return np.stack([result for result, _ in rows]), min(margin for _, margin in rows)


def with_own_norms(
    config: ModelConfig, c: Experts, own: Mapping[Role, Array], x: Array
) -> tuple[Array, float]:
    """The sum of the shared expert and of the others, each behind its norm."""
    routed, read = (norm(config, own, role, x) for role in (Role.ROUTER_NORM, Role.EXPERTS_NORM))
    normed = norm(config, own, Role.FFN_NORM, x)
    both = activate(c, normed @ own[Role.SHARED_GATE].T, normed @ own[Role.SHARED_UP].T)
    shared, sums, least = both @ own[Role.SHARED_DOWN].T, np.zeros_like(x), np.inf
    for token in range(len(x)):
        chosen, weights, margin = route(c, own, routed[token])
        least = min(least, margin)
        for expert, weight in zip(chosen, weights * own[Role.ROUTER_SCALES][chosen], strict=True):
            gate, up = (
                product(c, own, role, expert, read[token])
                for role in (Role.EXPERTS_GATE, Role.EXPERTS_UP)
            )
            sums[token] += weight * product(
                c, own, Role.EXPERTS_DOWN, expert, activate(c, gate, up)
            )
    result = norm(config, own, Role.SHARED_RESULT_NORM, shared)
    return result + norm(config, own, Role.EXPERTS_RESULT_NORM, sums), float(least)


def of_token(c: Experts, own: Mapping[Role, Array], x: Array) -> tuple[Array, float]:
    """The sum over the experts of one token, and the margin of their choice."""
    chosen, weights, margin = route(c, own, x)
    read = own[Role.EXPERTS_IN] @ x if c.latent_size else x
    total = np.zeros(len(read))
    for expert, weight in zip(chosen, weights, strict=True):
        gate = product(c, own, Role.EXPERTS_GATE, expert, read) if c.gated else None
        up = product(c, own, Role.EXPERTS_UP, expert, read)
        if c.weighs_inputs:
            gate, up, weight = None if gate is None else weight * gate, weight * up, 1.0
        inner = activate(c, gate, up)
        total += weight * product(c, own, Role.EXPERTS_DOWN, expert, inner)
    if c.latent_size:
        total = own[Role.EXPERTS_OUT] @ total
    if c.shared_size:
        gate = own[Role.SHARED_GATE] @ x if c.gated else None
        of_shared = replace(c, limit=c.shared_limit) if c.activation == "capped" else c
        inner = activate(of_shared, gate, own[Role.SHARED_UP] @ x)
        share = sigmoid(own[Role.SHARED_ROUTER].ravel() @ x) if c.shared_gate else 1.0
        total += share * (own[Role.SHARED_DOWN] @ inner)
    if c.down_bias:
        total += own[Role.FFN_DOWN_BIAS]
    return total, margin


def product(c: Experts, own: Mapping[Role, Array], role: Role, expert: int, x: Array) -> Array:
    """What the matrix of one expert gives, and its bias."""
    result = own[role].reshape(c.n, -1, len(x))[expert] @ x
    if c.bias:
        result = result + own[Role[f"{role.name}_BIAS"]].reshape(c.n, -1)[expert]
    return np.asarray(result)


def activate(c: Experts, gate: Array | None, up: Array) -> Array:
    """What goes into the down projection."""
    if gate is None:
        return curve(c.activation, up)
    if c.activation == "capped":
        return capped(gate, up, c.limit)
    if c.activation != "clamped":
        return curve(c.activation, gate) * up
    return clamped(gate, up, c.limit, c.alpha)


def largest(keys: Array, n: int) -> tuple[Array, float]:
    """The n largest, the first of equal ones first; and how far the next one is."""
    order = np.argsort(-keys, kind="stable")
    left = keys[order[n:]]
    return order[:n], float(keys[order[n - 1]] - left[0]) if len(left) else np.inf


def route(c: Experts, own: Mapping[Role, Array], x: Array) -> tuple[Array, Array, float]:
    """The experts of a token and their weights, the largest first; and how far the next one is."""
    logits = own[Role.ROUTER] @ x
    if c.router_bias:
        logits = logits + own[Role.ROUTER_BIAS]
    scores = {"softmax": softmax, "sigmoid": sigmoid}.get(c.router, np.asarray)(logits)
    keys = scores + own[Role.ROUTER_CHOICE_BIAS] if c.choice_bias else scores.copy()
    margin = np.inf
    if c.groups_used < c.groups:
        of_groups = keys.reshape(c.groups, -1)
        counted = 1 if c.groups_by_best else 2
        best = np.sort(of_groups, axis=1)[:, -counted:].sum(axis=1)
        kept, margin = largest(best, c.groups_used)
        of_groups[[g for g in range(c.groups) if g not in kept]] = -np.inf
    chosen, near = largest(keys, c.n_used)
    weights = softmax(scores[chosen]) if c.router == "top_softmax" else scores[chosen]
    if c.renormalize:
        weights = weights / max(weights.sum() + c.denominator_eps, c.denominator_least)
    return chosen, weights * c.scale, min(margin, near)
