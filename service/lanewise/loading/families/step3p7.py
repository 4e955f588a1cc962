"""Step 3.5 and 3.7: sigmoid experts beside a shared one, windows in most layers, gates of heads.

Layers with a window have angles and a number of heads of their own. Activations may have limits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.formats import round_to_f32
from lanewise.loading.base.program import Experts, Gated, Layer, ModelConfig, Rope
from lanewise.loading.families.common import (
    KINDS,
    attention_of,
    gated_of,
    in_use,
    model_of,
    ropes_of_kinds,
    trunk_layers_of,
    window_of,
)
from lanewise.loading.families.experts import (
    EXPERT_ROLES,
    experts_of,
    flatten_gguf_experts,
    layers_of_experts,
    rename_shared,
    stack_routed_experts,
)
from lanewise.loading.families.family import Family
from lanewise.loading.families.naming import add_one_to_norms, rename_attention_gates
from lanewise.loading.files.rearranging import Rearranged
from lanewise.loading.programs.model_file import ModelFile

DENSE = 3  # the first layers have no experts, by default
THETAS = dict.fromkeys(KINDS, 10000.0)
NO_KEYS = dict.fromkeys(KINDS, "")
NORMS = (Role.ATTN_NORM, Role.FFN_NORM, Role.ATTN_Q_NORM, Role.ATTN_K_NORM)
PATTERN = "{arch}.attention.sliding_window_pattern"
LIMITS = (
    ("{arch}.swiglu_clamp_exp", "{arch}.swiglu_clamp_shexp"),
    ("swiglu_limits", "swiglu_limits_shared"),
)
# Other names that configs have for fields.
NAMES = (
    {"num_key_value_heads": "num_attention_groups", "share_expert_dim": "share_expert_dims"},
    {"n_routed_experts": "num_experts"},
    {"n_routed_experts": "moe_num_experts", "num_experts_per_tok": "moe_top_k"},
)


def program(file: ModelFile) -> ModelConfig:
    """Read a file."""
    for names in NAMES:
        file = file if file.is_gguf else file.called_if_set(names)
    n_layers = trunk_layers_of(file)
    windowed, heads = kinds_of(file, n_layers), heads_of_kinds(file)
    attention = attention_of(
        file.replacing({"num_attention_heads": heads[0]}), qk_norm="head", window=None
    )
    scale = file.number("query_pre_attn_scalar", default=float(attention.head_dim)) ** -0.5
    window = window_of(file)
    mixers = [
        replace(attention, n_heads=n, head_gate=True, score_scale=round_to_f32(scale))
        for n in heads
    ]
    mixers[1] = replace(mixers[1], window=window, rope=1)
    layers = [
        Layer(mixers[has_window], ffn)
        for has_window, ffn in zip(windowed, ffns_of(file, n_layers), strict=True)
    ]
    ropes = in_use(own_ropes(file, attention.head_dim, windowed), layers)
    return model_of(file, "step3p7", layers, own_kinds=True, ropes=ropes)


def values_of(file: ModelFile, key: str, n_layers: int) -> list[Any] | None:
    """Return a field's values of the layers; further ones are of layers that guess."""
    values = file.raw(key)
    if values is None:
        return None
    if not isinstance(values, list) or len(values) < n_layers:
        raise file.fail(key, f"{n_layers} values")
    return values[:n_layers]


def kinds_of(file: ModelFile, n_layers: int) -> list[bool]:
    """Return which layers have a window."""
    key = PATTERN if file.is_gguf else "layer_types"
    known: tuple[Any, ...] = (False, True) if file.is_gguf else KINDS
    kinds = values_of(file, key, n_layers) or [known[0]] * n_layers
    if not all(kind in known for kind in kinds):
        raise file.fail(key, f"{n_layers} times {' or '.join(map(repr, known))}")
    return [kind == known[1] for kind in kinds]


def heads_of_kinds(file: ModelFile) -> tuple[int, int]:
    """Return the number of heads of layers without a window, and with one."""
    if file.is_gguf:
        n_layers = trunk_layers_of(file)
        counts = file.raw("num_attention_heads")
        if not isinstance(counts, list):
            counts = [counts] * n_layers
        of_kinds: tuple[set[int], set[int]] = (set(), set())
        for has_window, n in zip(kinds_of(file, n_layers), counts, strict=False):
            of_kinds[has_window].add(n)
        if max(map(len, of_kinds)) > 1:
            raise file.fail("num_attention_heads", "one number for all layers of a kind")
        first, second = (next(iter(numbers), counts[0]) for numbers in of_kinds)
        return first, second
    n = file.integer("num_attention_heads")
    other = file.raw("attention_other_setting")
    own = other.get("num_attention_heads", n) if isinstance(other, Mapping) else n
    return n, file.integer("num_sliding_attention_heads", default=own)


def own_ropes(
    file: ModelFile, head_dim: int, windowed: Sequence[bool]
) -> tuple[tuple[Rope, ...], int]:
    """Return the angles of both kinds of layers."""
    if file.is_gguf:  # layers without a window turn half of what the file says
        (full, sliding), context = ropes_of_kinds(file, head_dim, NO_KEYS, THETAS, scaled=1)
        factors = full.factors and full.factors[: full.rotated // 4]
        return (replace(full, rotated=full.rotated // 2, factors=factors), sliding), context
    given, scaling = file.raw("rope_parameters"), file.raw("rope_scaling") or {}
    if not isinstance(given, Mapping) or not isinstance(given.get(KINDS[0]), Mapping):
        given = {kind: rope_of_kind(file, windowed, kind == KINDS[1]) for kind in KINDS}
        given[KINDS[0]] |= scaling
    both = {kind: given.get(kind) or given[KINDS[0]] for kind in KINDS}
    file = file.replacing({"rope_parameters": both, "rope_scaling": None})
    return ropes_of_kinds(file, head_dim, NO_KEYS, THETAS)


def rope_of_kind(file: ModelFile, windowed: Sequence[bool], has_window: bool) -> dict[str, Any]:
    """Return the settings of RoPE of one kind: those of its first layer, where there is a list."""
    number = windowed.index(has_window) if has_window in windowed else 0
    found: dict[str, Any] = {"rope_type": "default"}
    names = {"rope_theta": "rope_theta", "partial_rotary_factor": "partial_rotary_factors"}
    for name, key in names.items():
        value = file.raw(key)
        if isinstance(value, list):
            value = (values_of(file, key, len(windowed)) or [None])[number]
        if value is not None:
            found[name] = value
    return found


def ffns_of(file: ModelFile, n_layers: int) -> list[Gated | Experts]:
    """Return the FFN of each layer, with its limits."""
    key = "moe_router_scaling_factor"
    experts = experts_of(
        *(file, "sigmoid", True),
        n="n_routed_experts",
        choice_bias=True,
        scale=1.0 if file.is_gguf else round_to_f32(file.number(key, default=1.0)),
        shared_size=0 if file.is_gguf else file.integer("share_expert_dim"),
    )
    file.ignore("hidden_act")  # the class takes silu whatever it says
    gated = gated_of(file.replacing({"hidden_act": "silu"}))
    routed, shared = (limits_of(file, name, n_layers) for name in LIMITS[file.column])
    made: list[Gated | Experts] = []
    for number, is_sparse in enumerate(sparse_layers_of(file, n_layers)):
        of_routed, of_shared = routed[number], shared[number]
        if is_sparse and (of_routed or of_shared):
            capped = replace(experts, activation="capped", limit=of_routed, shared_limit=of_shared)
            made.append(capped)
        elif of_shared and not is_sparse:
            made.append(replace(gated, activation="capped", limit=of_shared))
        else:
            made.append(experts if is_sparse else gated)
    return made


def limits_of(file: ModelFile, key: str, n_layers: int) -> list[float]:
    """Return the limit of each layer's activation; 0 is none."""
    given = file.raw(key)
    listed = given if isinstance(given, list) else [given] * n_layers  # GGUF: one number for all
    values = [value or 0 for value in listed[:n_layers]]
    if len(values) < n_layers:
        raise file.fail(key, f"{n_layers} values")
    if not all(type(value) in (int, float) and value >= 0 for value in values):
        raise file.fail(key, f"{n_layers} numbers, 0 for no limit,")
    return [round_to_f32(value) for value in values]


def sparse_layers_of(file: ModelFile, n_layers: int) -> list[bool]:
    """Return which layers have experts."""
    if file.is_gguf:
        return [file.has(Role.ROUTER, number) for number in range(n_layers)]
    kinds, numbers = values_of(file, "mlp_layer_types", n_layers), file.raw("moe_layers_enum")
    if kinds is not None:
        return [kind == "sparse" for kind in kinds]
    if numbers is None:
        return [number >= DENSE for number in range(n_layers)]
    listed = numbers.split(",") if isinstance(numbers, str) else numbers
    return [str(number) in {str(one).strip() for one in listed} for number in range(n_layers)]


def hf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Drop layers that guess further tokens, make matrices of experts, add the 1 of norms."""
    tensors.drop_layers_from(config.n_layers)
    rename_attention_gates(tensors, config)
    stack_routed_experts(tensors, config)
    for number, _ in layers_of_experts(config):
        folder = f"model.layers.{number}"
        rename_shared(tensors, number, "share_expert")
        for role, part in zip(EXPERT_ROLES, ("gate", "up", "down"), strict=True):
            tensors.flatten(f"{folder}.moe.{part}_proj.weight", tensors.usual(role, number))
        tensors.rename(f"{folder}.moe.gate.weight", tensors.usual(Role.ROUTER, number))
        bias = tensors.usual(Role.ROUTER_CHOICE_BIAS, number)
        tensors.rename(f"{folder}.moe.router_bias", bias)
    add_one_to_norms(tensors, config, NORMS)


def gguf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Drop layers that guess further tokens, rename gates, make matrices of experts."""
    tensors.drop_layers_from(config.n_layers)
    rename_attention_gates(tensors, config)
    flatten_gguf_experts(tensors, config)


FAMILY = Family(
    "step3p7",
    program,
    "step35",
    hf_tensors=hf_tensors,
    gguf_tensors=gguf_tensors,
    gguf_is_usual=False,
)
