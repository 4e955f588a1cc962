"""MiMo V2 Flash: sigmoid experts, windows with sinks, values smaller than keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.formats import round_to_f32
from lanewise.loading.base.program import Attention, ModelConfig, Rope
from lanewise.loading.families.common import (
    KINDS,
    attention_of,
    check_values,
    in_use,
    model_of,
    ropes_of_kinds,
    trunk_layers_of,
)
from lanewise.loading.families.experts import (
    flatten_gguf_experts,
    mixture_of,
    routed_experts_of,
    stack_routed_experts,
)
from lanewise.loading.families.family import Family
from lanewise.loading.families.naming import take_heads_apart
from lanewise.loading.files.rearranging import Rearranged
from lanewise.loading.programs.model_file import ModelFile

PERIOD = 6  # of whose layers the last one has no window, nor has the first layer of all
THETAS = dict(zip(KINDS, (5e6, 1e4), strict=True))
THETA_KEYS = dict(zip(KINDS, ("rope_theta", "swa_rope_theta"), strict=True))
NO_KEYS = dict.fromkeys(KINDS, "")
PARTIAL = 0.334
PATTERN = "{arch}.attention.sliding_window_pattern"
SINKS = "model.layers.{}.self_attn.attention_sink_bias"  # the makers' name
# The makers' names of fields.
NAMES = {"rms_norm_eps": "layernorm_epsilon"}
MUST_BE = {
    "scoring_func": ("sigmoid",),
    "topk_method": ("noaux_tc",),
    "n_shared_experts": (None, 0),
    "hybrid_block_size": (None,),
}
# Fields for layers with a window that must repeat those of the others.
REPEATED = {
    "swa_num_attention_heads": "num_attention_heads",
    "swa_head_dim": "head_dim",
    "swa_v_head_dim": "v_head_dim",
}


def program(file: ModelFile) -> ModelConfig:
    """Read a file."""
    file = file if file.is_gguf else file.called_if_set(NAMES)
    check_values(file, MUST_BE)
    n_layers = trunk_layers_of(file)
    windowed = flags_of(file, n_layers, "hybrid_layer_pattern", "layer_types", KINDS)
    if windowed is None:
        windowed = [number > 0 and (number + 1) % PERIOD != 0 for number in range(n_layers)]
    sparse = flags_of(file, n_layers, "moe_layer_freq", "mlp_layer_types", ("dense", "sparse"))
    kinds = attention_of_kinds(file, windowed)
    experts = routed_experts_of(file, "sigmoid", True)
    is_sparse = sparse or [number > 0 for number in range(n_layers)]
    layers = mixture_of(file, kinds[0], experts, is_sparse)
    layers = [
        replace(layer, attention=kinds[has_window])
        for layer, has_window in zip(layers, windowed, strict=True)
    ]
    ropes = in_use(own_ropes(file, kinds[0].head_dim), layers)
    return model_of(file, "mimo_v2_flash", layers, own_kinds=True, ropes=ropes)


def flags_of(
    file: ModelFile, n_layers: int, own: str, key: str, words: tuple[str, str]
) -> list[bool] | None:
    """Return whether each layer is of the second kind; further ones are of layers that guess.

    ``own`` is the makers' field, of 0 and 1, ``key`` that of transformers.
    """
    known: tuple[Any, ...] = (0, 1)
    if file.is_gguf:
        key = PATTERN
    elif file.raw(key) is None:
        key = own
    else:
        known = words
    values = file.raw(key)
    if values is None:
        return None
    if not isinstance(values, list) or len(values) < n_layers or set(values) - set(known):
        raise file.fail(key, f"{' or '.join(map(repr, known))} for each layer, {n_layers} values")
    return [value == known[1] for value in values[:n_layers]]


def attention_of_kinds(file: ModelFile, windowed: list[bool]) -> tuple[Attention, Attention]:
    """Return attention without a window, and with one."""
    full, sliding = kv_heads_of_kinds(file, windowed)
    attention = attention_of(file.replacing({"num_key_value_heads": full}), own_values=True)
    scale = file.number("attention_value_scale", default=1.0)
    attention = replace(attention, value_scale=0.0 if scale == 1 else round_to_f32(scale))
    for key, same in () if file.is_gguf else REPEATED.items():
        if file.is_set(key) and file.raw(key) != file.meant(same):
            raise file.fail(key, f"{file.meant(same)}, as {same},")
    both = replace(attention, window=window_of(file), n_kv_heads=sliding, rope=1)
    has_window = (False, True)
    keys = ("add_full_attention_sink_bias", "add_swa_attention_sink_bias")
    found = []
    for one, kind, key in zip((attention, both), has_window, keys, strict=True):
        first = windowed.index(kind) if kind in windowed else 0
        there = file.has(Role.ATTN_SINKS, first)
        sinks = there if file.is_gguf else file.flag(key, default=kind)
        found.append(replace(one, sinks=sinks))
    return found[0], found[1]


def window_of(file: ModelFile) -> int:
    """Return how many tokens a query sees: the makers' number is that of the tokens before it."""
    key = "sliding_window_size"
    file.ignore("sliding_window")
    if file.is_gguf or file.is_set(key):
        return file.integer("sliding_window" if file.is_gguf else key) + 1
    return file.integer("sliding_window")


def kv_heads_of_kinds(file: ModelFile, windowed: list[bool]) -> tuple[int, int]:
    """Return the number of KV heads of layers without a window, and with one."""
    if not file.is_gguf:
        n = file.integer("num_key_value_heads")
        return n, file.integer("swa_num_key_value_heads", default=2 * n)
    counts = file.raw("num_key_value_heads")
    counts = counts if isinstance(counts, list) else [counts] * len(windowed)
    of_kinds: tuple[set[int], set[int]] = (set(), set())
    for has_window, n in zip(windowed, counts, strict=False):
        of_kinds[has_window].add(n)
    if max(map(len, of_kinds)) > 1:
        raise file.fail("num_key_value_heads", "one number for all layers of a kind")
    first, second = (next(iter(numbers), counts[0]) for numbers in of_kinds)
    return first, second


def own_ropes(file: ModelFile, head_dim: int) -> tuple[tuple[Rope, ...], int]:
    """Return the angles of both kinds of layers."""
    if file.is_gguf:
        return ropes_of_kinds(file, head_dim, NO_KEYS, THETAS)
    given = file.raw("rope_parameters")
    file.ignore(*THETA_KEYS.values(), "partial_rotary_factor")  # beside rope_parameters
    if not isinstance(given, Mapping) or not isinstance(given.get(KINDS[0]), Mapping):
        usual = {THETA_KEYS[kind]: THETAS[kind] for kind in KINDS}
        # Transformers computes with these whatever is said here.
        for key, value in (usual | {"partial_rotary_factor": PARTIAL}).items():
            if file.number(key, default=value) != value:
                raise file.fail(key, f"{value}, or rope_parameters,")
        given = {
            kind: {
                "rope_type": "default",
                "rope_theta": THETAS[kind],
                "partial_rotary_factor": PARTIAL,
            }
            for kind in KINDS
        }
    given = {kind: {"partial_rotary_factor": PARTIAL} | dict(given[kind]) for kind in KINDS}
    return ropes_of_kinds(file.replacing({"rope_parameters": given}), head_dim, NO_KEYS, THETAS)


def hf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Drop layers that guess further tokens, rename sinks, stack experts."""
    for name in [name for name in tensors.out if name.startswith("model.mtp.")]:
        tensors.drop(name)
    for number in range(config.n_layers):
        tensors.rename(SINKS.format(number), tensors.usual(Role.ATTN_SINKS, number))
    stack_routed_experts(tensors, config)


def gguf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Drop layers that guess further tokens, split fused heads, make matrices of experts."""
    tensors.drop_layers_from(config.n_layers)
    take_heads_apart(tensors, config)
    flatten_gguf_experts(tensors, config)


FAMILY = Family(
    "mimo_v2_flash",
    program,
    "mimo2",
    hf_tensors=hf_tensors,
    gguf_tensors=gguf_tensors,
    gguf_is_usual=False,
)
