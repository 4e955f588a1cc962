"""What a layer is to calibration: its matrices in the order of the forward step, its vectors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.names import ORDERS, is_vector
from lanewise.loading.base.program import (
    Attention,
    Gated,
    Layer,
    ModelConfig,
    Plain,
)
from lanewise.loading.base.recurrences import ChannelDelta, ShortConv
from lanewise.loading.programs.native_program import layer_shapes
from lanewise_quantizer.fit.recurrence import KEPT

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
# Of latent attention: each head has a part of its rows, and inputs of its own.
BY_HEAD = (Role.LATENT_KEYS, Role.LATENT_VALUES)
# Of what layers have for themselves, behind all else.
PER_LAYER_STEPS: tuple[tuple[Role, ...], ...] = ((Role.PER_LAYER_GATE,), (Role.PER_LAYER_OUT,))
# What they give is added.
ENDS = (Role.ATTN_OUTPUT, Role.STATE_OUT, Role.FFN_DOWN, Role.PER_LAYER_OUT)
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
    Role.EXPERTS_DOWN: Role.FFN_RESULT_NORM,
    Role.PER_LAYER_OUT: Role.PER_LAYER_RESULT_NORM,
}


class Norm(NamedTuple):
    """What a norm multiplies by and adds: nothing where there is none, or no bias."""

    weight: Floats | None
    bias: Floats | None = None


def rms(x: Floats, weight: Floats, eps: float) -> Floats:
    """RMSNorm over the last dimension."""
    mean: Floats = np.mean(np.square(x), axis=-1, keepdims=True, dtype=np.float32)
    scale: Floats = np.float32(1) / np.sqrt(mean + np.float32(eps))
    result: Floats = x * scale * weight
    return result


@dataclass(frozen=True)
class Vectors:
    """What a layer is, and its vectors: norms, biases, sinks; small matrices that are kept."""

    number: int
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


def vectors_of(config: ModelConfig, weights: Weights, number: int) -> Vectors:
    """Read a layer's vectors."""
    shapes = layer_shapes(config, number)
    roles = [r for r in shapes if (is_vector(r) and r not in ORDERS) or r in KEPT]
    return Vectors(number, config.layers[number], {role: weights(role, number) for role in roles})


def output_norm(config: ModelConfig, weights: Weights) -> Norm:
    """The norm before the head."""
    bias = weights(Role.OUTPUT_NORM_BIAS, 0) if config.norm_bias else None
    return Norm(weights(Role.OUTPUT_NORM, 0), bias)


def steps_of(layer: Layer) -> tuple[tuple[Role, ...], ...]:
    """The steps of a layer up to its FFN; its experts, which are none, come after them.

    Attention and a state read the same: what both begin with is one step.
    """
    begin: tuple[Role, ...] = ()
    ends: list[tuple[Role, ...]] = []
    if layer.attention is not None:
        first, *more = _attention_steps(layer.attention)
        begin += first
        ends += more
    if layer.state is not None:
        state, has_gate = layer.state, not isinstance(layer.state, ShortConv)
        begin += (Role.STATE_IN,)
        if isinstance(state, ChannelDelta):
            begin += (Role.STATE_KEYS, Role.STATE_VALUES)
            if state.gate_rank:
                ends.append((Role.STATE_GATE,))
                has_gate = False
        begin += (Role.STATE_GATE,) * has_gate
        ends.append((Role.STATE_OUT,))
    steps = [begin, *ends] if begin else []
    if isinstance(layer.ffn, Gated):
        steps += STEPS_OF_FFN
    if isinstance(layer.ffn, Plain):
        steps += [(Role.FFN_UP,), (Role.FFN_DOWN,)]
    return tuple(steps)


def _attention_steps(kind: Attention) -> list[tuple[Role, ...]]:
    """The steps of attention."""
    first, last = ATTENTION_STEPS
    if kind.latent_rank:
        by_head = [(role,) for role in BY_HEAD]
        gate = (Role.ATTN_GATE,) * (kind.output_gate or kind.head_gate)
        if kind.query_rank:
            return [(Role.LATENT_DOWN, Role.LATENT_QUERY, *gate), (Role.ATTN_Q,), *by_head, last]
        return [(Role.LATENT_DOWN, Role.ATTN_Q, *gate), *by_head, last]
    if kind.kv_layer is not None:
        first = (Role.ATTN_Q,)
    elif kind.values_are_keys:
        first = (Role.ATTN_Q, Role.ATTN_K)
    has_gate = kind.output_gate or kind.head_gate
    return [(*first, Role.ATTN_GATE) if has_gate else first, last]


def matrices_of(config: ModelConfig, layer: int) -> list[Role]:
    """The roles of a layer's matrices, in the order of the forward step."""
    return [role for role in layer_shapes(config, layer) if not is_vector(role)]
