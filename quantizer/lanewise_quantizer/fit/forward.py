"""The forward step of a model in float32, one layer at a time.

Hidden states are [windows, tokens, hidden]: windows of one length that do not see each other. A
layer is run in steps, one for each set of matrices that share an input, so that the matrices of one
step can be replaced before their outputs are needed by the next.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from lanewise.loading.base.checkpoint import ModelFileError, Role
from lanewise.loading.base.program import Experts, Gated, ModelConfig, Plain
from lanewise_quantizer.fit.activations import activated, capped, clamped, silu
from lanewise_quantizer.fit.attention import Attending
from lanewise_quantizer.fit.experts import Read, mixed, shared
from lanewise_quantizer.fit.latent import query_inputs
from lanewise_quantizer.fit.layer import (
    BIASES,
    RESULT_NORMS,
    Norm,
    Vectors,
    Weights,
    matrices_of,
    output_norm,
    rms,
    vectors_of,
)
from lanewise_quantizer.fit.recurrence import behind, results
from lanewise_quantizer.fit.states import States

Floats = npt.NDArray[np.float32]
Matrices = Mapping[Role, Floats]

CANNOT = "calibration cannot compute"


def check_computable(config: ModelConfig) -> None:
    """ModelFileError for models of which :class:`Forward` does not know how to run the layers."""
    odd = None
    if config.pooling is not None:
        odd = "encoders"
    elif config.n_streams or config.hyper_streams:
        odd = "several residual streams"
    elif any(one.attention is not None and one.attention.shared_rows for one in config.layers):
        odd = "attention to shared rows"
    elif any(layer.attn_norm_replaces or layer.ffn_norm_replaces for layer in config.layers):
        odd = "norms after each addition"
    if odd is not None:
        raise ModelFileError(
            f"{config.architecture}: {CANNOT} {odd} yet; accepted are models that make logits,"
            " with a norm, if any, before attention and before what is behind it"
        )


def check_window(config: ModelConfig, tokens: int) -> None:
    """ModelFileError where a token of a window would not attend to all before it.

    Up to so many tokens as an index chooses, sparse attention is dense.
    """
    chosen = [one.attention.index_topk for one in config.layers if one.attention is not None]
    least = min(filter(None, chosen), default=tokens)
    if least < tokens:
        raise ModelFileError(
            f"{config.architecture}: {CANNOT} attention to {least} tokens that an index chooses"
            f" among {tokens}; accepted are windows of at most {least}"
        )


class Forward:
    """Runs a model's layers on hidden states."""

    def __init__(self, config: ModelConfig, tokens: int) -> None:
        check_computable(config)
        check_window(config, tokens)
        self.config = config
        self.attention = Attending(config, tokens)

    def norm(self, x: Floats, norm: Norm, eps: float = 0.0) -> Floats:
        """The model's norm over the last dimension; x itself where a layer has none."""
        if norm.weight is None:
            return x
        eps = eps or self.config.rms_norm_eps
        if self.config.norm == "rms":
            return rms(x, norm.weight, eps)
        result = rms(x - np.mean(x, axis=-1, keepdims=True, dtype=np.float32), norm.weight, eps)
        return result if norm.bias is None else result + norm.bias

    def begin(self, states: States, projection: Floats, weight: Floats) -> None:
        """Make what layers have of tokens for themselves of the rows of the table, in place.

        ``projection`` [layers * size, hidden] is of the embedded text, ``weight`` of its norm.
        """
        size = self.config.per_layer_size
        for chunk in states.chunks():
            own = chunk.own
            assert own is not None
            projected = chunk.x @ projection.T / np.float32(math.sqrt(self.config.hidden_size))
            projected = projected.reshape(*chunk.x.shape[:2], -1, size)
            normed = rms(projected, weight, self.config.rms_norm_eps).reshape(own.shape)
            own *= np.float32(math.sqrt(size))
            own += normed
            own /= np.float32(math.sqrt(2))

    def state(self, x: Floats, weights: Matrices, vectors: Vectors) -> Floats:
        """What STATE_OUT is given, [windows, tokens, inner], for normalized x."""
        state = vectors.layer.state
        assert state is not None
        return results(state, self.config.rms_norm_eps, weights, vectors.of, x)

    def gated(self, x: Floats, weights: Matrices, vectors: Vectors) -> Floats:
        """What FFN_DOWN is given, [windows, tokens, ffn], for normalized x."""
        ffn = vectors.layer.ffn
        up = x @ weights[Role.FFN_UP].T
        if Role.FFN_UP_BIAS in vectors.of:
            up += vectors.of[Role.FFN_UP_BIAS]
        if isinstance(ffn, Plain):
            return activated(ffn, up)
        gate = x @ weights[Role.FFN_GATE].T
        if Role.FFN_GATE_BIAS in vectors.of:
            gate += vectors.of[Role.FFN_GATE_BIAS]
        if isinstance(ffn, Gated) and ffn.cutoff:
            spread = np.float32(ffn.cutoff) * gate.std(axis=-1, keepdims=True)
            gate = np.maximum(gate - gate.mean(axis=-1, keepdims=True) - spread, np.float32(0))
        if isinstance(ffn, Gated) and ffn.activation == "capped":
            return capped(gate, up, ffn.limit)
        if isinstance(ffn, Gated) and ffn.activation == "clamped":
            return clamped(gate, up, ffn.limit, ffn.alpha)
        if isinstance(ffn, Gated) and ffn.activation != "silu":
            return activated(ffn, gate) * up
        return silu(gate, up)

    def of_its_own(self, states: States, weights: Matrices, vectors: Vectors) -> Floats:
        """What PER_LAYER_OUT is given, [windows, tokens, per_layer_size]."""
        assert states.own is not None
        assert vectors.layer.ffn is not None
        size = self.config.per_layer_size
        own = states.own[..., vectors.number * size : (vectors.number + 1) * size]
        return activated(vectors.layer.ffn, states.x @ weights[Role.PER_LAYER_GATE].T) * own

    def inputs(self, role: Role, states: States, weights: Matrices, vectors: Vectors) -> Floats:
        """What the step that begins with a matrix is given, for hidden states before its branch."""
        x = states.x
        if role == Role.PER_LAYER_GATE:
            return x
        if role == Role.PER_LAYER_OUT:
            return self.of_its_own(states, weights, vectors)
        if role in (Role.FFN_GATE, Role.FFN_UP, Role.FFN_DOWN):
            normed = as_codes(self.norm(x, vectors.ffn_norm), vectors)
            if role != Role.FFN_DOWN:
                return normed
            inner = self.gated(normed, weights, vectors)
            inner = self.norm(inner, Norm(vectors.of.get(Role.FFN_INNER_NORM)))
            return as_codes(inner, vectors)
        normed = as_codes(self.norm(x, vectors.attn_norm), vectors)
        if role == Role.ATTN_OUTPUT:
            found = self.attention.results(normed, weights, vectors, states.stored)
            found = self.norm(found, Norm(vectors.of.get(Role.ATTN_INNER_NORM)))
            return as_codes(found, vectors)
        if role == Role.STATE_OUT:
            return self.state(normed, weights, vectors)
        if role == Role.STATE_GATE:  # not in a step with others: it reads a product
            return behind(Role.STATE_GATE_DOWN, vectors.of, normed)
        if role == Role.ATTN_Q and vectors.attention.latent_rank:
            return query_inputs(normed, weights, vectors)
        return normed

    def inputs_by_head(
        self, role: Role, states: States, weights: Matrices, vectors: Vectors
    ) -> Floats:
        """What the heads' parts of a matrix are given [windows, tokens, heads, inputs]."""
        normed = self.norm(states.x, vectors.attn_norm)
        if role == Role.LATENT_KEYS:
            return self.attention.latent_queries(normed, weights, vectors)
        return self.attention.latent_sums(normed, weights, vectors)

    def add(self, x: Floats, product: Floats, role: Role, vectors: Vectors) -> None:
        """Add what a matrix that ends a branch gives to the hidden states, in place."""
        bias = vectors.of.get(BIASES[role]) if role in BIASES else None
        if bias is not None:
            product = product + bias
        if role in RESULT_NORMS:
            norm = Norm(vectors.of.get(RESULT_NORMS[role]))
            product = self.norm(product, norm, self.config.result_eps)
        if self.config.residual_scale != 1.0:
            product = product * np.float32(self.config.residual_scale)
        x += product

    def layer(self, states: States, weights: Matrices, vectors: Vectors) -> None:
        """Run one layer, in place."""
        for chunk in states.chunks():
            self._layer(chunk, weights, vectors)

    def _layer(self, states: States, weights: Matrices, vectors: Vectors) -> None:
        x = states.x
        before = states.copied() if vectors.is_beside else states
        ends = [last for last in (Role.ATTN_OUTPUT, Role.STATE_OUT) if last in weights]
        inners = [self.inputs(last, states, weights, vectors) for last in ends]
        for last, inner in zip(ends, inners, strict=True):  # which all read the same x
            self.add(x, inner @ weights[last].T, last, vectors)
        if isinstance(vectors.layer.ffn, Experts):
            ffn, read = vectors.layer.ffn, self.read_by_experts(before.x, vectors)
            product = mixed(ffn, weights, vectors.of, read)
            if ffn.shared_size:
                always = shared(ffn, weights, vectors.of, read.shared)
                product = self.together(product, always, vectors)
            self.add(x, product.reshape(x.shape), Role.EXPERTS_DOWN, vectors)
        elif vectors.layer.ffn is not None:
            inner = self.inputs(Role.FFN_DOWN, before, weights, vectors)
            self.add(x, inner @ weights[Role.FFN_DOWN].T, Role.FFN_DOWN, vectors)
        if self.config.per_layer_size:
            inner = self.inputs(Role.PER_LAYER_OUT, states, weights, vectors)
            self.add(x, inner @ weights[Role.PER_LAYER_OUT].T, Role.PER_LAYER_OUT, vectors)
        self.end(x, vectors)

    def read_by_experts(self, x: Floats, vectors: Vectors) -> Read:
        """What a layer's router, experts and shared expert read of hidden states."""

        def rows(norm: Norm) -> Floats:
            return self.norm(x, norm).reshape(-1, x.shape[-1])

        normed = rows(vectors.ffn_norm)
        if Role.ROUTER_NORM not in vectors.of:
            return Read(normed, normed, normed)
        routed, experts = (
            rows(Norm(vectors.of[role])) for role in (Role.ROUTER_NORM, Role.EXPERTS_NORM)
        )
        return Read(routed, experts, normed)

    def together(self, experts: Floats, shared: Floats, vectors: Vectors) -> Floats:
        """The sum of what experts and the shared one give, each behind its norm if it has one."""
        of, eps = vectors.of, self.config.result_eps
        shared = self.norm(shared, Norm(of.get(Role.SHARED_RESULT_NORM)), eps)
        return self.norm(experts, Norm(of.get(Role.EXPERTS_RESULT_NORM)), eps) + shared

    def end(self, x: Floats, vectors: Vectors) -> None:
        """What a layer does to the hidden states when all has been added, in place."""
        if vectors.layer.output_scale != 1.0:
            x *= np.float32(vectors.layer.output_scale)


def as_codes(x: Floats, vectors: Vectors) -> Floats:
    """What codes with one scale for each token stand for, in layers that read such."""
    if not vectors.layer.row_codes:
        return x
    peak = np.maximum(np.abs(x).max(axis=-1, keepdims=True), np.float32(1e-5))
    return np.asarray(np.rint(x * (np.float32(127) / peak)) * (peak / np.float32(127)))


def embedded(
    config: ModelConfig, weights: Weights, vectors: Floats, rows: Floats | None = None
) -> States:
    """A text before the first layer.

    ``vectors`` [windows, tokens, hidden] are of the embedding, ``rows`` of the table of what layers
    have for themselves, where there is one; they become part of the result.
    """
    scale = np.float32(config.embedding_scale)
    if config.embedding_norm:
        vectors = rms(vectors, np.ones(config.hidden_size, np.float32), config.rms_norm_eps)
    x = vectors if scale == 1 else vectors * scale
    if config.learned_positions:
        x = x + weights(Role.POSITION_EMBEDDING, 0)[: x.shape[1]]
    return States.of(config, x, rows)


def run(config: ModelConfig, weights: Weights, ids: npt.NDArray[np.integer]) -> Floats:
    """The normalized hidden states [windows, tokens, hidden] that the head is given."""
    rows = weights(Role.PER_LAYER_EMBEDDING, 0)[ids] if config.per_layer_size else None
    vectors = weights(Role.TOKEN_EMBEDDING, 0)[ids]
    return run_on(config, weights, embedded(config, weights, vectors, rows))


def run_on(config: ModelConfig, weights: Weights, states: States) -> Floats:
    """What :func:`run` returns, for an embedded text."""
    forward = Forward(config, states.x.shape[1])
    if config.per_layer_size:
        norm = weights(Role.PER_LAYER_NORM, 0)
        forward.begin(states, weights(Role.PER_LAYER_PROJECTION, 0), norm)
    for layer in range(config.n_layers):
        matrices = {role: weights(role, layer) for role in matrices_of(config, layer)}
        forward.layer(states, matrices, vectors_of(config, weights, layer))
    return forward.norm(states.x, output_norm(config, weights))
