"""A program as the C library's structs, and what the library says about it: errors, tensors.

Fields are copied by name from a dataclass to the C struct. Fields with another form in C have a
statement each in the functions below.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from lanewise.loading.base.checkpoint import ModelFileError, Role
from lanewise.loading.base.program import (
    FFN_KINDS,
    POOLINGS,
    Attention,
    Experts,
    Gated,
    Layer,
    ModelConfig,
    Rope,
)
from lanewise.loading.base.recurrences import (
    STATE_KINDS,
    Recurrence,
    Ssd,
)
from lanewise.native.library import Native, NativeError, native

# Fields of dataclasses whose names differ in C.
OTHER_NAMES: Mapping[str, str] = {
    "n": "n_experts",
    "groups": "n_groups",
    "denominator_eps": "divisor_extra",
    "denominator_least": "divisor_least",
}
# Prefixes of the C constants for fields that hold a word.
CONSTANTS: Mapping[str, str] = {
    "activation": "LW_",
    "norm": "LW_NORM_",
    "positions": "LW_POSITIONS_",
    "input_norm": "LW_INPUT_",
    "qk_norm": "LW_QK_NORM_",
    "router": "LW_ROUTER_",
    "wiring": "LW_",
}
PLACE = "model config: "  # start of the library's messages about a program


class ProgramTensor(NamedTuple):
    """A tensor that a program needs; ``rows`` is 1 for a vector."""

    role: Role
    of_layer: bool  # belongs to layer ``layer``, else to the model or a dense head
    layer: int
    rows: int
    cols: int
    is_vector: bool
    optional: bool


class NativeProgram:
    """An ``lw_model_config`` and the memory that it points to.

    ModelFileError if a field has a word without a constant in the library, or a list of the wrong
    length.
    """

    def __init__(self, clib: Native, config: ModelConfig) -> None:
        self._clib = clib
        self._kept: list[Any] = []
        new = clib.ffi.new
        ropes = new("lw_rope[]", len(config.ropes))
        for rope, out in zip(config.ropes, ropes, strict=True):
            self._rope(rope, out)
        layers = new("lw_layer_config[]", config.n_layers)
        for layer, out in zip(config.layers, layers, strict=True):
            self._layer(layer, config, out)
        heads = () if config.pooling is None else config.pooling.dense
        dense = new("lw_dense_config[]", len(heads))
        for head, out in zip(heads, dense, strict=True):
            self._copy(head, out)
        self._kept += [ropes, layers, dense]
        self.struct = new("lw_model_config*")
        self._model(config, self.struct[0])
        self.struct.ropes, self.struct.layers, self.struct.dense = ropes, layers, dense
        self.struct.n_ropes, self.struct.n_dense = len(ropes), len(dense)

    def _copy(self, record: Any, out: Any) -> None:
        """Copy the fields of a dataclass that the struct has; None becomes 0."""
        fields = dict(self._clib.ffi.typeof(out).fields)
        for name in record.__dataclass_fields__:
            field = fields.get(OTHER_NAMES.get(name, name))
            if field is None or field.type.kind not in ("primitive", "enum"):
                continue
            value = getattr(record, name)
            if field.type.kind == "enum":
                value = self._constant(field.type, name, value)
            setattr(out, OTHER_NAMES.get(name, name), 0 if value is None else value)

    def _constant(self, kind: Any, field: str, word: str) -> int:
        """The value of an enumeration's constant LW_..._WORD."""
        names: Mapping[str, int] = kind.relements
        start = CONSTANTS[field]
        number = names.get(f"{start}{word.upper()}")
        if number is None:
            numbered = sorted(names, key=lambda name: names[name])
            accepted = ", ".join(name.removeprefix(start).lower() for name in numbered)
            raise ModelFileError(f"{field} is {word!r}; one of {accepted} is needed")
        return number

    def _model(self, config: ModelConfig, out: Any) -> None:
        self._copy(config, out)
        # The residual stream is stored divided by residual_scale, which norms do not notice.
        out.rms_norm_eps = config.rms_norm_eps / config.residual_scale**2
        out.embedding_scale = config.embedding_scale / config.residual_scale
        out.n_layers = config.n_layers
        if config.reader is not None:
            out.reader_layers = config.n_head_layers
            out.reader_size, out.reader_eps = config.reader.size, config.reader.norm_eps
        if config.patches is not None:
            self._copy(config.patches, out.patches)
            for number, layer in enumerate(config.patches.taps[: len(out.patches.taps)]):
                out.patches.taps[number] = layer
            out.patches.n_taps = len(config.patches.taps)
            out.patches.mean, out.patches.deviation = config.patches.mean, config.patches.deviation
        out.pooled = config.pooling is not None
        out.n_positions = config.n_positions
        if config.learned_positions and config.patches is None:
            out.n_positions = config.context_length

    def _rope(self, rope: Rope, out: Any) -> None:
        for factors in filter(None, (rope.factors, rope.short_factors)):
            if len(factors) != rope.rotated // 2 or not all(0 < f < math.inf for f in factors):
                raise ModelFileError(
                    f"{len(factors)} RoPE factors; {rope.rotated // 2} positive finite numbers are"
                    " needed, half the rotated dimensions"
                )
        self._copy(rope, out)
        if rope.factors is not None:
            self._kept.append(self._clib.ffi.new("float[]", list(rope.factors)))
            out.factors = self._kept[-1]
        if rope.frequencies is not None:
            self._kept.append(self._clib.ffi.new("float[]", self._of_pairs(rope, rope.frequencies)))
            out.frequencies = self._kept[-1]
        if rope.axes is not None:
            self._kept.append(self._clib.ffi.new("uint32_t[]", self._of_pairs(rope, rope.axes)))
            out.axes = self._kept[-1]

    @staticmethod
    def _of_pairs(rope: Rope, values: Sequence[float]) -> list[Any]:
        if len(values) != rope.rotated // 2:
            raise ModelFileError(
                f"{len(values)} numbers for pairs of RoPE; {rope.rotated // 2} are needed"
            )
        return list(values)

    def _layer(self, layer: Layer, config: ModelConfig, out: Any) -> None:
        lib = self._clib.lib
        self._copy(layer, out)
        out.mtp = layer.mtp + layer.follows  # 2: a further layer of a head
        if layer.head is not None:
            self._copy(layer.head, out.head)
            taps = layer.head.taps
            out.head.n_taps, out.head.taps = len(taps), taps[: len(out.head.taps)]
        if layer.attention is not None:
            self._attention(layer.attention, out.attention)
        if layer.state is not None:
            self._copy(layer.state, out.state)
            out.state.kind = getattr(lib, f"LW_{_name(STATE_KINDS, layer.state)}")
            if isinstance(layer.state, Recurrence):
                out.state.norm_eps = config.rms_norm_eps
        if layer.ffn is None:
            out.ffn.kind = lib.LW_FFN_NONE
            return
        self._copy(layer.ffn, out.ffn)
        out.ffn.kind = getattr(lib, f"LW_FFN_{_name(FFN_KINDS, layer.ffn)}")
        if isinstance(layer.ffn, Experts):
            out.ffn.ungated = not layer.ffn.gated

    def _attention(self, attention: Attention, out: Any) -> None:
        self._copy(attention, out)
        if attention.rope is None:
            out.rope = self._clib.lib.LW_NO_ROPE
        if attention.sees_ahead:
            out.both_ways = 2
        if attention.scaled_alibi:
            out.alibi = 2
        if attention.head_gate:
            out.output_gate = 2
        out.shares_kv = attention.kv_layer is not None
        if attention.position_scale is not None:
            out.position_beta, out.position_original = attention.position_scale


def _has_inner_norm(layer: Layer) -> bool:
    return bool(getattr(layer.attention, "inner_norm", False)) or (
        isinstance(layer.ffn, Gated) and layer.ffn.inner_norm
    )


def _name(kinds: Mapping[str, type], part: Any) -> str:
    return next(name for name, kind in kinds.items() if isinstance(part, kind)).upper()


def check_program(config: ModelConfig, source: str) -> ModelConfig:
    """Return the program if its numbers fit together.

    ModelFileError otherwise; it names ``source``, layer, field, value and what is accepted.
    """
    clib = native()
    try:
        for fault in _faults(config):
            raise ModelFileError(fault)
        program = NativeProgram(clib, config)  # owns the memory that the struct points to
        clib.check(clib.lib.lw_program_check(program.struct))
    except NativeError as error:
        raise ModelFileError(f"{source}: {str(error).removeprefix(PLACE)}") from None
    except ModelFileError as error:
        raise ModelFileError(f"{source}: {error}") from None
    return config


def _faults(config: ModelConfig) -> Iterable[str]:
    """Yield errors in fields that the C struct lacks or combines with others."""
    if config.residual_scale != 1.0:
        for name, here in {
            "per_layer_size": config.per_layer_size > 0,
            "learned_positions": config.learned_positions,
            "result_norms": any(layer.result_norms for layer in config.layers),
            "inner_norm": any(_has_inner_norm(layer) for layer in config.layers),
            "embedding_norm": config.embedding_norm,
            "n_streams": config.n_streams > 0,
            "hyper_streams": config.hyper_streams > 0,
        }.items():
            if here:
                yield f"residual_scale is {config.residual_scale}; 1 is needed beside {name}"
    if config.pooling is not None and config.pooling.kind not in POOLINGS:
        yield f"pooling is {config.pooling.kind!r}; one of {', '.join(POOLINGS)} is needed"
    for number, layer in enumerate(config.layers):
        attention, state = layer.attention, layer.state
        if layer.output_scale <= 0:
            yield f"layer {number}: output_scale is {layer.output_scale}; it must be above 0"
        if isinstance(state, Ssd) and state.norm_size == 0:
            yield f"layer {number} state: norm_size is 0; null or a divisor of {state.inner}"
        if attention is None:
            continue
        if attention.output_gate and attention.head_gate:
            yield f"layer {number}: output_gate and head_gate are true; one of them at most"
        if attention.scaled_alibi and not attention.alibi:
            yield f"layer {number}: scaled_alibi is true; false is needed where alibi is false"


@lru_cache(maxsize=8)
def program_tensors(config: ModelConfig) -> tuple[ProgramTensor, ...]:
    """Return the tensors of a program, in the order in which a step reads them.

    ModelFileError if the program cannot be run.
    """
    clib = native()
    program = NativeProgram(clib, config)
    n = clib.ffi.new("uint32_t*")
    try:
        clib.check(clib.lib.lw_program_tensors(program.struct, clib.ffi.NULL, 0, n))
        out = clib.ffi.new("lw_program_tensor[]", n[0])
        clib.check(clib.lib.lw_program_tensors(program.struct, out, n[0], n))
    except NativeError as error:
        raise ModelFileError(str(error).removeprefix(PLACE)) from None
    return tuple(
        ProgramTensor(
            Role(one.role),
            bool(one.of_layer),
            one.layer,
            one.rows,
            one.cols,
            bool(one.is_vector),
            bool(one.optional),
        )
        for one in out
    )


Shapes = Mapping[Role, tuple[int, int]]  # (rows, cols), one row for a vector


def layer_shapes(config: ModelConfig, number: int) -> Shapes:
    """Return the roles and shapes of the tensors that a layer may have."""
    return _shapes_of_layers(config)[number]


@lru_cache(maxsize=8)
def _shapes_of_layers(config: ModelConfig) -> list[Shapes]:
    found: list[dict[Role, tuple[int, int]]] = [{} for _ in config.layers]
    for one in program_tensors(config):
        if one.of_layer:
            found[one.layer][one.role] = (one.rows, one.cols)
    return list(found)
