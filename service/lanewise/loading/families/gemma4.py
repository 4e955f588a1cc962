"""Gemma 4: larger heads without a window, shared keys and values, inputs of each layer, experts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lanewise.loading.base.checkpoint import ModelFileError, Role
from lanewise.loading.base.json_files import Fields
from lanewise.loading.base.program import Attention, Experts, Gated, Layer, ModelConfig
from lanewise.loading.families import gemma3
from lanewise.loading.families.common import (
    KINDS,
    attention_of,
    by_turns,
    check_values,
    curve,
    model_of,
    n_layers_of,
    ropes_of_kinds,
    window_of,
    windows_of,
)
from lanewise.loading.families.experts import (
    experts_of,
    flatten_gguf_experts,
    layers_of_experts,
    stack_hf_experts,
)
from lanewise.loading.families.family import Family
from lanewise.loading.families.gemma import CURVE, cap, root_scale
from lanewise.loading.families.naming import one_number
from lanewise.loading.files.rearranging import Rearranged
from lanewise.loading.programs.checks import check_heads
from lanewise.loading.programs.model_file import ModelFile

GLOBAL_HEAD_DIM, PERIOD = 512, 6  # by default
# Factor of each layer's result: tensor name by the kind of file.
SCALES = ("blk.{}.layer_output_scale.weight", "model.layers.{}.layer_scalar")
THETAS = {"full_attention": 1e6, "sliding_attention": 1e4}
THETA_KEYS = dict.fromkeys(KINDS, "rope_theta")
MUST_BE = {
    "use_bidirectional_attention": (None, "vision"),
    "attention_bias": (False,),
}
HARMLESS = (
    *("num_experts", "top_k_experts", "moe_intermediate_size", "vocab_size_per_layer_input"),
)
# Of layers with experts.
OF_MIXTURE = {
    "router.proj.weight": Role.ROUTER,
    "router.scale": Role.ROUTER_NORM,
    "router.per_expert_scale": Role.ROUTER_SCALES,
    "pre_feedforward_layernorm_2.weight": Role.EXPERTS_NORM,
    "post_feedforward_layernorm_1.weight": Role.SHARED_RESULT_NORM,
    "post_feedforward_layernorm_2.weight": Role.EXPERTS_RESULT_NORM,
}
SHARED = {
    Role.FFN_GATE: Role.SHARED_GATE,
    Role.FFN_UP: Role.SHARED_UP,
    Role.FFN_DOWN: Role.SHARED_DOWN,
}
PER_LAYER_SIZE = 256  # if the config does not say, where there is a table
# Tensors of layers that reuse other layers' keys and values, which files may still contain.
UNUSED = (Role.ATTN_K, Role.ATTN_V, Role.ATTN_K_NORM)


def program(file: ModelFile) -> ModelConfig:
    """Read a file."""
    check_values(file, MUST_BE)
    n_layers = n_layers_of(file)
    window = window_of(file, always=True)
    windows = windows_of(file, window, by_turns(n_layers, PERIOD))
    if not file.is_gguf:
        windows[-1] = None  # as the reference does, whatever the file says
    whole, windowed = (gguf_attentions if file.is_gguf else hf_attentions)(file, windows)
    attentions = with_shared_keys(
        [
            whole if window is None else replace(windowed, rope=1, window=window)
            for window in windows
        ],
        n_layers - n_sharing(file, n_layers),
        file.source,
    )
    name = SCALES[file.column]
    scales = [
        one_number(file.tensors, name.format(number), file.source) for number in range(n_layers)
    ]
    sizes = gguf_sizes(file, n_layers) if file.is_gguf else hf_sizes(file, n_layers)
    layers = layers_of(attentions, ffns_of(file, sizes), scales)
    dims = {KINDS[0]: whole.head_dim, KINDS[1]: windowed.head_dim}
    ropes = ropes_of_kinds(file, dims, THETA_KEYS, THETAS, scaled=1)
    model = model_of(file, "gemma4_text", layers, tied=True, own_kinds=True, ropes=ropes)
    table = not file.is_gguf and file.has(Role.PER_LAYER_EMBEDDING)
    return replace(
        model,
        per_layer_size=file.integer(
            "hidden_size_per_layer_input", default=PER_LAYER_SIZE if table else 0, least=0
        ),
        embedding_scale=root_scale(file),
        logit_softcap=cap(file, "final_logit_softcapping"),
    )


def n_sharing(file: ModelFile, n_layers: int) -> int:
    """Return how many of the last layers reuse earlier layers' keys and values."""
    number = file.integer("num_kv_shared_layers", default=0, least=0)
    if number >= n_layers:
        raise file.fail("num_kv_shared_layers", f"a number below the number of layers, {n_layers},")
    return number


def ffns_of(file: ModelFile, sizes: Sequence[int]) -> list[Gated | Experts]:
    """Return an FFN of each size; where there are experts it is the shared expert."""
    activation = curve(file, "hidden_activation", CURVE)
    is_mixture = file.flag("enable_moe_block", default=False)
    if not (file.has(Role.ROUTER) if file.is_gguf else is_mixture):
        return [Gated(size, activation=activation) for size in sizes]
    if not file.is_gguf and not file.is_set("moe_intermediate_size"):
        old = file.raw("expert_intermediate_size")
        file = file.replacing({"moe_intermediate_size": old})
    experts = experts_of(
        *(file, "softmax", True), used="top_k_experts", activation=activation, own_norms=True
    )
    return [replace(experts, shared_size=size) for size in sizes]


def hf_sizes(file: ModelFile, n_layers: int) -> list[int]:
    """Return each layer's FFN size, which may be doubled in layers that reuse keys."""
    size, n_own = file.integer("intermediate_size"), n_layers - n_sharing(file, n_layers)
    wider = size * (2 if file.flag("use_double_wide_mlp", default=False) else 1)
    return [size if number < n_own else wider for number in range(n_layers)]


def gguf_sizes(file: ModelFile, n_layers: int) -> list[int]:
    """Return each layer's FFN size, of which a GGUF file has one for all or a list."""
    name = "intermediate_size"
    sizes = file.raw(name)
    if not isinstance(sizes, list):
        return [file.integer(name)] * n_layers
    if len(sizes) != n_layers:
        raise file.fail(name, f"{n_layers} numbers, or one")
    items = Fields({str(n): size for n, size in enumerate(sizes)}, f"{file.source}: {name}")
    return [items.integer(str(n)) for n in range(n_layers)]


def hf_attentions(file: ModelFile, windows: Sequence[int | None]) -> tuple[Attention, Attention]:
    """Return attention without a window, which may have other heads, and with one."""
    plain = attention_of(file, qk_norm="head")
    same = file.flag("attention_k_eq_v", default=False)
    head_dim = file.integer("global_head_dim", default=GLOBAL_HEAD_DIM)
    n_kv = file.integer("num_global_key_value_heads", default=plain.n_kv_heads)
    own = {"head_dim": head_dim, "num_key_value_heads": n_kv if same else plain.n_kv_heads}
    if file.is_set("per_layer_config"):
        own = {"head_dim": plain.head_dim, "num_key_value_heads": plain.n_kv_heads}
        own |= hf_overrides(file, windows)
    plain = replace(plain, score_scale=1.0, value_norm=True)
    whole = replace(
        plain,
        head_dim=own["head_dim"],
        n_kv_heads=own["num_key_value_heads"],
        values_are_keys=same,
    )
    return check_heads(whole, file.source), plain


def gguf_attentions(file: ModelFile, windows: Sequence[int | None]) -> tuple[Attention, Attention]:
    """Return the same for a GGUF file, which lists the KV heads of each layer.

    The sizes of heads with a window have keys of their own.
    """
    counts, lengths = "num_key_value_heads", "{arch}.attention.%s_length"
    given = file.raw(counts)
    each = given if isinstance(given, list) else [given] * len(windows)
    if len(each) != len(windows):
        raise file.fail(counts, f"{len(windows)} numbers, or one")
    found = []
    for sees_all in (True, False):
        own = [n for n, window in zip(each, windows, strict=True) if (window is None) == sees_all]
        values = {counts: own if own else each} if isinstance(given, list) else {}
        if not sees_all:
            keys = [lengths % name for name in ("key", "value")]
            values |= {key: file.raw(f"{key}_swa") for key in keys}
        attention = attention_of(file.replacing(values), qk_norm="head")
        found.append(replace(attention, score_scale=1.0, value_norm=True))
    first = next((n for n, window in enumerate(windows) if window is None), 0)
    return replace(found[0], values_are_keys=not file.has(Role.ATTN_V, first)), found[1]


def with_shared_keys(attentions: Sequence[Attention], n_own: int, source: str) -> list[Attention]:
    """Return attention of all layers; from ``n_own`` on it reuses the last keys of its kind."""
    last: dict[int | None, int] = {}
    found = []
    for number, attention in enumerate(attentions):
        if number < n_own:
            last[attention.window] = number
        elif attention.window not in last:
            raise ModelFileError(f"{source}: layer {number} has no layer of its kind with keys")
        else:
            attention = replace(
                attention,
                kv_layer=last[attention.window],
                values_are_keys=False,
                value_norm=False,
            )
        found.append(attention)
    return found


def hf_overrides(file: ModelFile, windows: Sequence[int | None]) -> dict[str, int]:
    """Return per_layer_config's values for layers without a window; others are refused."""
    key = "per_layer_config"
    given = file.raw(key)
    if given == {}:
        return {}
    names = ("head_dim", "num_key_value_heads")
    wanted = {str(number) for number, window in enumerate(windows) if window is None}
    values = list(given.values()) if isinstance(given, dict) else []
    is_same = bool(values) and set(map(str, given)) == wanted and values == values[:1] * len(values)
    if not is_same or not isinstance(values[0], dict) or set(values[0]) - set(names):
        raise file.fail(key, f"the same of {' and '.join(names)} for each full_attention layer")
    found = Fields(values[0], f"{file.source}: {key}")
    return {name: found.integer(name) for name in values[0]}


def layers_of(
    attentions: Sequence[Attention], ffns: Sequence[Gated | Experts], scales: Sequence[float]
) -> tuple[Layer, ...]:
    """Return layers that end with a multiplication."""
    return tuple(
        Layer(attention, ffn, result_norms=True, output_scale=scale)
        for attention, ffn, scale in zip(attentions, ffns, scales, strict=True)
    )


def hf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Rename norms, which multiply by w; the scales have been read."""
    for number in range(config.n_layers):
        folder = f"model.layers.{number}"
        tensors.drop(f"{folder}.layer_scalar")
        for name, role in gemma3.OF_LAYER.items():
            tensors.rename(f"{folder}.{name}.weight", tensors.usual(role, number))
    for number, experts in layers_of_experts(config):
        stack_hf_experts(tensors, number, experts, "experts")
        folder = f"model.layers.{number}"
        for name, role in OF_MIXTURE.items():
            tensors.rename(f"{folder}.{name}", tensors.usual(role, number))
        for role, shared in SHARED.items():
            tensors.rename(tensors.usual(role, number), tensors.usual(shared, number))
        tensors.multiply_rows(tensors.usual(Role.ROUTER_NORM, number), config.hidden_size**-0.5)
    drop_unused(tensors, config)


def drop_unused(tensors: Rearranged, config: ModelConfig) -> None:
    """Drop keys and values of layers that reuse other layers'."""
    for number, layer in enumerate(config.layers):
        if layer.attention is not None and layer.attention.kv_layer is not None:
            tensors.drop(*(tensors.usual(role, number) for role in UNUSED))


def gguf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Drop the scales, which have been read."""
    flatten_gguf_experts(tensors, config)
    for number in range(config.n_layers):
        tensors.drop(f"blk.{number}.layer_output_scale.weight")
    for number, _ in layers_of_experts(config):
        for role, shared in SHARED.items():
            tensors.rename(tensors.usual(role, number), tensors.usual(shared, number))
        tensors.multiply_rows(tensors.usual(Role.ROUTER_NORM, number), config.hidden_size**-0.5)
    drop_unused(tensors, config)


FAMILY = Family(
    "gemma4_text",
    program,
    "gemma4",
    hf_tensors=hf_tensors,
    gguf_tensors=gguf_tensors,
    gguf_is_usual=False,
    harmless=HARMLESS,
)
