"""A program as JSON, in the config.json of packed and quantized directories.

Fields with their default values are left out, so that files stay unchanged when fields are added.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from lanewise.loading.base.checkpoint import ModelFileError
from lanewise.loading.base.json_files import Fields
from lanewise.loading.base.patches import Patches
from lanewise.loading.base.program import (
    FFN_KINDS,
    Attention,
    Dense,
    Gated,
    Layer,
    ModelConfig,
    Pooling,
    Rope,
)
from lanewise.loading.base.recurrences import STATE_KINDS
from lanewise.loading.programs.native_program import check_program

AGAIN = "pack or quantize the model again with this version"
# The parts of a layer: at most one of each of these kinds.
PARTS: tuple[Mapping[str, Any], ...] = ({"attention": Attention}, STATE_KINDS, FFN_KINDS)
LAYER_FLAGS = (
    "attn_norm_replaces",
    "ffn_norm_replaces",
    "result_norms",
    "no_input_norms",
    "mtp",
    "clamps",
    "row_codes",
)
MAY_BE_0 = ("rope", "shared_size", "kv_layer", "vocab_size")  # numbers; a tower reads no tokens
LAYER_FIELDS = (*LAYER_FLAGS, "wiring", "output_scale")
# Fields of version 1, in which all layers were alike.
FIRST_FIELDS = {
    *("architecture", "n_layers", "hidden_size", "ffn_size", "n_heads", "n_kv_heads", "head_dim"),
    *("vocab_size", "context_length", "rms_norm_eps", "rope_theta", "rope_factors"),
    *("sliding_window", "tied_embeddings", "qkv_bias", "qk_norm"),
}


def program_as_json(config: ModelConfig) -> dict[str, Any]:
    """Return the JSON that :func:`read_program` reads."""
    names = {kind: name for kinds in PARTS for name, kind in kinds.items()}
    layers = [
        {
            names[type(part)]: _as_json(part)
            for part in (layer.attention, layer.state, layer.ffn)
            if part is not None
        }
        | {
            item.name: getattr(layer, item.name)
            for item in dataclasses.fields(Layer)
            if item.name in LAYER_FIELDS and getattr(layer, item.name) != item.default
        }
        for layer in config.layers
    ]
    stored = _as_json(config)
    if config.pooling is not None:
        dense = [_as_json(one) for one in config.pooling.dense]
        stored["pooling"] = _as_json(config.pooling) | {"dense": dense}
    if config.patches is not None:
        stored["patches"] = _as_json(config.patches)
    return stored | {"ropes": [_as_json(rope) for rope in config.ropes], "layers": layers}


def _as_json(record: Any) -> dict[str, Any]:
    found = {}
    for item in dataclasses.fields(record):
        value = getattr(record, item.name)
        if value != item.default:
            found[item.name] = list(value) if isinstance(value, tuple) else value
    return found


def read_program(stored: Fields) -> ModelConfig:
    """Return the program; ModelFileError if it cannot be run."""
    ropes = tuple(_record(Rope, fields) for fields in _objects(stored, "ropes"))
    layers = tuple(_layer(fields) for fields in _objects(stored, "layers"))
    if not layers and not stored.is_set("patches"):
        raise stored.fail("layers", "at least one layer")
    known: dict[str, Any] = {"ropes": ropes, "layers": layers}
    if stored.is_set("pooling"):
        known["pooling"] = _pooling(stored)
    if stored.is_set("patches"):
        value = stored.values["patches"]
        if not isinstance(value, Mapping):
            raise stored.fail("patches", "an object")
        known["patches"] = _record(Patches, Fields(value, f"{stored.source}: patches"))
    config = _record(ModelConfig, stored, **known)
    return check_program(config, stored.source)


def _objects(stored: Fields, key: str) -> list[Fields]:
    values = stored.values.get(key)
    if not isinstance(values, list) or not all(isinstance(value, Mapping) for value in values):
        raise stored.fail(key, "a list of objects")
    return [Fields(value, f"{stored.source}: {key}[{i}]") for i, value in enumerate(values)]


def _pooling(stored: Fields) -> Pooling:
    value = stored.values["pooling"]
    if not isinstance(value, Mapping):
        raise stored.fail("pooling", "an object")
    fields = Fields(value, f"{stored.source}: pooling")
    dense = tuple(_record(Dense, one) for one in _objects(fields, "dense"))
    pooling: Pooling = _record(Pooling, fields, dense=dense)
    return pooling


def _layer(fields: Fields) -> Layer:
    found = [next((name for name in kinds if name in fields.values), None) for kinds in PARTS]
    if not any(found) or set(fields.values) - set(LAYER_FIELDS) != set(filter(None, found)):
        accepted = ", ".join(" or ".join(map(repr, kinds)) for kinds in PARTS)
        raise ModelFileError(
            f"{fields.source}: at most one of each of {accepted} is accepted; {AGAIN}"
        )
    attention, state, ffn = (
        None if name is None else _record(kinds[name], _object(fields, name))
        for kinds, name in zip(PARTS, found, strict=True)
    )
    flags: dict[str, Any] = {name: fields.flag(name, default=False) for name in LAYER_FLAGS}
    wiring = fields.text("wiring") if fields.is_set("wiring") else "in_turn"
    scale = fields.number("output_scale", default=1.0)
    return Layer(attention, ffn, state=state, wiring=wiring, output_scale=scale, **flags)


def _object(fields: Fields, key: str) -> Fields:
    value = fields.values[key]
    return Fields(value if isinstance(value, Mapping) else {}, f"{fields.source}: {key}")


def _record(kind: Any, fields: Fields, **known: Any) -> Any:
    items = {item.name: item for item in dataclasses.fields(kind)}
    # "int | None" without a default is never None in files, except for rope.
    odd = {
        name
        for name in set(items) | set(fields.values)
        if name not in items
        or (name not in fields.values and items[name].default is dataclasses.MISSING)
    }
    if odd:
        raise ModelFileError(
            f"{fields.source}: {', '.join(sorted(odd))}: missing or unknown; {AGAIN}"
        )
    values = {
        name: _value(fields, name, str(items[name].type))
        for name in fields.values
        if name not in known
    }
    return kind(**values, **known)


def _value(fields: Fields, name: str, hint: str) -> Any:
    """The value of a present field, of the type that the record declares."""
    if fields.values[name] is None and hint.endswith("| None"):
        return None
    first = hint.removesuffix(" | None")
    if first == "int":
        return fields.integer(name, least=0 if name in MAY_BE_0 else 1)
    if first == "float":
        return fields.number(name)
    if first == "bool":
        return fields.flag(name, default=False)
    if first == "str":
        return fields.text(name)
    if first in ("tuple[int, ...]", "tuple[float, float, float]"):
        return _from_0(fields, name, whole=first == "tuple[int, ...]")
    return _numbers(fields, name, pair=first == "tuple[float, int]")


def _from_0(fields: Fields, name: str, whole: bool) -> tuple[float | int, ...]:
    """Numbers that may be 0: whole ones, or three."""
    found = fields.values[name]
    kinds = (int,) if whole else (int, float)
    is_list = isinstance(found, list) and (whole or len(found) == 3)
    if not is_list or not all(type(item) in kinds and 0 <= item < 2**31 for item in found):
        raise fields.fail(name, f"a list of {'whole' if whole else 'three'} numbers from 0")
    return tuple(found) if whole else tuple(map(float, found))


def _numbers(fields: Fields, name: str, pair: bool) -> tuple[float | int, ...]:
    found = fields.values[name]
    if not isinstance(found, list) or not all(type(item) in (int, float) for item in found):
        raise fields.fail(name, "null or a list of numbers")
    numbers = Fields({str(i): item for i, item in enumerate(found)}, f"{fields.source}: {name}")
    if not pair:
        return tuple(map(numbers.number, numbers.values))
    if len(found) != 2:
        raise fields.fail(name, "two numbers")
    return numbers.number("0"), numbers.integer("1")


def read_first_version(stored: Fields, most_layers: int) -> ModelConfig:
    """Return the program of a file of version 1, in which all layers were alike."""
    if set(stored.values) != FIRST_FIELDS:
        odd = ", ".join(sorted(set(stored.values) ^ FIRST_FIELDS))
        raise ModelFileError(f"{stored.source}: {odd}: missing or unknown; {AGAIN}")
    n_layers = stored.integer("n_layers")
    if n_layers > most_layers:
        raise stored.fail("n_layers", f"at most the number of tensors, {most_layers},")
    head_dim = stored.integer("head_dim")
    attention = Attention(
        n_heads=stored.integer("n_heads"),
        n_kv_heads=stored.integer("n_kv_heads"),
        head_dim=head_dim,
        rope=0,
        window=stored.integer("sliding_window", default=0, least=0) or None,
        qkv_bias=stored.flag("qkv_bias", default=False),
        qk_norm="head" if stored.flag("qk_norm", default=False) else "none",
    )
    factors = stored.values["rope_factors"]
    divisors = None if factors is None else _numbers(stored, "rope_factors", pair=False)
    config = ModelConfig(
        architecture=stored.text("architecture"),
        hidden_size=stored.integer("hidden_size"),
        vocab_size=stored.integer("vocab_size"),
        context_length=stored.integer("context_length"),
        rms_norm_eps=stored.number("rms_norm_eps"),
        tied_embeddings=stored.flag("tied_embeddings", default=False),
        ropes=(Rope(stored.number("rope_theta"), head_dim, divisors),),
        layers=(Layer(attention, Gated(stored.integer("ffn_size"))),) * n_layers,
    )
    return check_program(config, stored.source)
