"""Mixtures of experts in float32: which tokens go where, and what comes of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.program import Experts
from lanewise_quantizer.fit.activations import activated, capped, clamped, sigmoid, silu

Floats = npt.NDArray[np.float32]
Vectors = Mapping[Role, Floats]

# Matrices of all experts, one below the other.
STACKED = (Role.EXPERTS_GATE, Role.EXPERTS_UP, Role.EXPERTS_DOWN)
SHARED = (Role.SHARED_GATE, Role.SHARED_UP, Role.SHARED_DOWN)


def roles_of(ffn: Experts, roles: tuple[Role, Role, Role]) -> tuple[Role, ...]:
    """The given roles of gate, up and down, without gate if the experts have none."""
    return roles if ffn.gated else roles[1:]


@dataclass(frozen=True)
class Routes:
    """The experts of each token [tokens, used], and their weights."""

    experts: npt.NDArray[np.intp]
    weights: Floats

    def tokens_of(self, expert: int) -> tuple[npt.NDArray[np.intp], Floats]:
        """The tokens that go to an expert, ascending, and the weight it has for each."""
        tokens, places = np.nonzero(self.experts == expert)
        return tokens, self.weights[tokens, places]


def route(ffn: Experts, router: Floats, vectors: Vectors, x: Floats) -> Routes:
    """Choose experts for normalized rows x [tokens, hidden]."""
    logits: Floats = x @ router.T
    if ffn.router_bias:
        logits += vectors[Role.ROUTER_BIAS]
    scores = logits
    if ffn.router == "softmax":
        scores = softmax(logits)
    elif ffn.router == "sigmoid":
        scores = sigmoid(logits)
    keys = scores + vectors[Role.ROUTER_CHOICE_BIAS] if ffn.choice_bias else scores.copy()
    if ffn.groups_used < ffn.groups:
        _keep_groups(ffn, keys)
    chosen = _largest(keys, ffn.n_used)
    weights = np.take_along_axis(scores, chosen, axis=1)
    if ffn.router == "top_softmax":
        weights = softmax(weights)
    if ffn.renormalize:
        total = weights.sum(axis=1, keepdims=True) + np.float32(ffn.denominator_eps)
        weights = weights / np.maximum(total, np.float32(ffn.denominator_least))
    weights = weights * np.float32(ffn.scale)
    if ffn.own_norms:
        weights = weights * vectors[Role.ROUTER_SCALES][chosen]
    return Routes(chosen, weights)


@dataclass(frozen=True)
class Read:
    """Normalized rows [tokens, hidden] that parts of a layer read, all the same in most models."""

    router: Floats
    experts: Floats
    shared: Floats


def mixed(ffn: Experts, weights: Mapping[Role, Floats], vectors: Vectors, read: Read) -> Floats:
    """What the chosen experts give, without the shared one."""
    routes = route(ffn, weights[Role.ROUTER], vectors, read.router)
    x = read.experts @ weights[Role.EXPERTS_IN].T if ffn.latent_size else read.experts
    out = np.zeros_like(x)
    stacks = {role: stack_of(ffn, weights[role]) for role in roles_of(ffn, STACKED)}
    for expert, tokens, shares in by_expert(ffn, routes):
        rows = x[tokens]
        gate = None
        if ffn.gated:
            gate = rows @ stacks[Role.EXPERTS_GATE][expert].T
            gate = with_bias(ffn, gate, vectors, Role.EXPERTS_GATE_BIAS, expert)
        up = rows @ stacks[Role.EXPERTS_UP][expert].T
        up = with_bias(ffn, up, vectors, Role.EXPERTS_UP_BIAS, expert)
        if ffn.weighs_inputs:
            gate = None if gate is None else gate * shares[:, None]
            up, shares = up * shares[:, None], np.ones_like(shares)
        product = activate(ffn, gate, up) @ stacks[Role.EXPERTS_DOWN][expert].T
        product = with_bias(ffn, product, vectors, Role.EXPERTS_DOWN_BIAS, expert)
        out[tokens] += shares[:, None] * product
    if ffn.down_bias:
        out += vectors[Role.FFN_DOWN_BIAS]
    return out @ weights[Role.EXPERTS_OUT].T if ffn.latent_size else out


def shared(ffn: Experts, weights: Mapping[Role, Floats], vectors: Vectors, x: Floats) -> Floats:
    """What the expert that all tokens go to gives for its rows x."""
    gate = x @ weights[Role.SHARED_GATE].T if ffn.gated else None
    inner = activate(of_shared(ffn), gate, x @ weights[Role.SHARED_UP].T)
    return shared_part(ffn, vectors, x, inner @ weights[Role.SHARED_DOWN].T)


def of_shared(ffn: Experts) -> Experts:
    """The same with the limit of the shared expert."""
    return replace(ffn, limit=ffn.shared_limit) if ffn.activation == "capped" else ffn


def by_expert(ffn: Experts, routes: Routes) -> Iterator[tuple[int, npt.NDArray[np.intp], Floats]]:
    """Each expert that some tokens go to, those, and the weight that it has for each."""
    for expert in range(ffn.n):
        tokens, shares = routes.tokens_of(expert)
        if len(tokens):
            yield expert, tokens, shares


def shared_part(ffn: Experts, vectors: Vectors, x: Floats, product: Floats) -> Floats:
    """What the shared expert's product adds."""
    if not ffn.shared_gate:
        return product
    return product * sigmoid(x @ vectors[Role.SHARED_ROUTER])[:, None]


def stack_of(ffn: Experts, weights: Floats) -> Floats:
    """The matrices [experts, outputs, inputs] in one of all experts."""
    return weights.reshape(ffn.n, -1, weights.shape[-1])


def with_bias(ffn: Experts, y: Floats, vectors: Vectors, role: Role, expert: int) -> Floats:
    """Outputs of one expert's matrix, its bias added if it has one."""
    return y + vectors[role].reshape(ffn.n, -1)[expert] if ffn.bias else y


def activate(ffn: Experts, gate: Floats | None, up: Floats) -> Floats:
    """What the down projection is given; ``gate`` is None where experts have none."""
    if gate is None:
        return activated(ffn, up)
    if ffn.activation == "silu":
        return silu(gate, up)
    if ffn.activation == "capped":
        return capped(gate, up, ffn.limit)
    if ffn.activation != "clamped":
        return activated(ffn, gate) * up
    return clamped(gate, up, ffn.limit, ffn.alpha)


def softmax(x: Floats) -> Floats:
    """Over the last dimension."""
    terms: Floats = np.exp(x - x.max(axis=-1, keepdims=True))
    terms /= terms.sum(axis=-1, keepdims=True)
    return terms


def _largest(keys: Floats, n: int) -> npt.NDArray[np.intp]:
    """Places of the n largest of each row, the first of equal ones first."""
    return np.argsort(-keys, axis=1, kind="stable")[:, :n]


def _keep_groups(ffn: Experts, keys: Floats) -> None:
    """Leave only the groups that may be chosen from: of the best expert, or best two together."""
    groups = keys.reshape(len(keys), ffn.groups, -1)
    counted = 1 if ffn.groups_by_best else 2
    best = np.sort(groups, axis=2)[:, :, -counted:].sum(axis=2)
    kept = np.zeros((len(keys), ffn.groups), bool)
    np.put_along_axis(kept, _largest(best, ffn.groups_used), values=True, axis=1)
    groups[~kept] = -np.inf
