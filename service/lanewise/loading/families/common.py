"""What the config.json of most families has in common, as Llama's has it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from lanewise.loading.checkpoint import ModelFileError, Role
from lanewise.loading.checks import check_heads
from lanewise.loading.formats import round_to_f32
from lanewise.loading.json_files import Fields
from lanewise.loading.names import HF, TENSOR_NAMES
from lanewise.loading.program import CURVES, Attention, Gated, Layer, ModelConfig, Rope
from lanewise.loading.rope import read_rope
from lanewise.loading.sources import Sources

# What files call the functions that a program names.
CURVE_NAMES = {
    "relu2": "relu_squared",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "swiglu": "silu",
    "geglu": "gelu",
}
KINDS = ("full_attention", "sliding_attention")  # of layer_types


def has(sources: Sources, role: Role, column: int, layer: int = 0) -> bool:
    """Return whether a layer of the file has a tensor."""
    return TENSOR_NAMES[role][column].format(layer) in sources


def hf_attention(
    fields: Fields,
    sources: Sources,
    head_dim: int | None = None,
    qkv_bias: bool = False,
    qk_norm: str = "none",
    window: int | None = None,
) -> Attention:
    """Return attention as config.json describes it, with the biases that the file has.

    ``head_dim`` is what the family has where the config does not say; None: heads share the hidden
    size.
    """
    n_heads = fields.integer("num_attention_heads")
    qkv_bias = fields.flag("attention_bias", default=False) or qkv_bias
    default = head_dim or fields.integer("hidden_size") // n_heads or 1
    attention = Attention(
        n_heads=n_heads,
        n_kv_heads=fields.integer("num_key_value_heads", default=n_heads),
        head_dim=fields.integer("head_dim", default=default),
        rope=0,
        window=window,
        qkv_bias=qkv_bias or has(sources, Role.ATTN_Q_BIAS, HF),
        output_bias=has(sources, Role.ATTN_OUTPUT_BIAS, HF),
        qk_norm=qk_norm,
    )
    return check_heads(attention, fields.source)


def check_activation(fields: Fields) -> None:
    """Refuse layers that are gated by anything but silu."""
    if fields.text("hidden_act", default="silu") != "silu":
        raise fields.fail("hidden_act", "'silu'")


def curve(fields: Fields, key: str, default: str) -> str:
    """Return the activation that a field names."""
    name = fields.text(key, default=default)
    name = CURVE_NAMES.get(name, name)
    if name not in CURVES:
        raise fields.fail(key, f"one of {', '.join([*CURVES, *CURVE_NAMES])}")
    return name


def check_values(fields: Fields, accepted: Mapping[str, tuple[object, ...]]) -> None:
    """Refuse fields, where they are there, that say something else than is accepted."""
    for key, values in accepted.items():
        if fields.is_set(key) and fields.raw(key) not in values:
            raise fields.fail(key, " or ".join(map(repr, values)))


def hf_gated(fields: Fields, sources: Sources, layer: int = 0) -> Gated:
    """Return a gated layer as config.json describes it, with biases if the file has them."""
    check_activation(fields)
    size = fields.integer("intermediate_size")
    bias = fields.flag("mlp_bias", default=False) or has(sources, Role.FFN_GATE_BIAS, HF, layer)
    return Gated(size, bias)


def hf_n_layers(fields: Fields, sources: Sources) -> int:
    """Return the number of layers, which no file has more of than tensors."""
    n_layers = fields.integer("num_hidden_layers")
    if n_layers > len(sources):
        raise fields.fail("num_hidden_layers", f"at most the number of tensors, {len(sources)},")
    return n_layers


def hf_model(
    fields: Fields,
    name: str,
    layers: Sequence[Layer],
    theta: float = 10000.0,
    partial: float = 1.0,
    tied: bool = False,
    own: Sequence[str] = (),
    own_kinds: bool = False,
    eps: str = "rms_norm_eps",
    norm: str = "rms",
    norm_bias: bool = False,
) -> ModelConfig:
    """Return the whole of a model with one set of angles.

    ``theta``, ``partial`` and ``tied`` are what the family has where the config does not say,
    ``own`` what it reads of the RoPE settings itself and ``own_kinds`` whether it reads layer_types
    itself; ``eps`` is the name that it has for that of norms, which are ``norm`` of NORMS.
    """
    if not own_kinds:
        check_kinds(fields, layers)
    rope, context = read_rope(fields, heads_of(fields, layers).turning, theta, partial, own)
    return ModelConfig(
        architecture=name,
        hidden_size=fields.integer("hidden_size"),
        vocab_size=fields.integer("vocab_size"),
        context_length=context,
        rms_norm_eps=round_to_f32(fields.number(eps)),
        tied_embeddings=fields.flag("tie_word_embeddings", default=tied),
        ropes=(rope,),
        layers=tuple(layers),
        norm=norm,
        norm_bias=norm_bias,
    )


def heads_of(fields: Fields, layers: Sequence[Layer]) -> Attention:
    """Return the attention of the first layer that has some."""
    for layer in layers:
        if layer.attention is not None:
            return layer.attention
    raise ModelFileError(f"{fields.source}: no layer has attention; one is needed")


def hf_kinds(fields: Fields, n_layers: int) -> list[str] | None:
    """Return layer_types, one for each layer, or None if the config does not have them."""
    kinds = fields.raw("layer_types")
    if kinds is None:
        return None
    is_list = isinstance(kinds, list) and len(kinds) == n_layers
    if not is_list or not all(kind in KINDS for kind in kinds):
        raise fields.fail("layer_types", f"{n_layers} times {' or '.join(map(repr, KINDS))}")
    return list(kinds)


def hf_ropes_of_kinds(
    fields: Fields,
    head_dim: int | Mapping[str, int],
    theta_keys: Mapping[str, str],
    thetas: Mapping[str, float],
    scaled: int = len(KINDS),
) -> tuple[tuple[Rope, ...], int]:
    """Return the angles of each of KINDS, and the longest of their contexts.

    ``head_dim`` may be one for each. ``theta_keys`` name the fields of configs that have no
    rope_parameters, ``thetas`` are what the family has where neither says, and the first ``scaled``
    kinds turn by rope_scaling.
    """
    given, scaling = fields.raw("rope_parameters"), fields.raw("rope_scaling")
    if given is None and scaling is None:
        given = fields.meanings.get("rope_parameters")
    nested = isinstance(given, Mapping) and all(
        isinstance(given.get(kind), Mapping) for kind in KINDS
    )
    ropes, context = [], 0
    for number, kind in enumerate(KINDS):
        values: dict[str, Any] = {
            "max_position_embeddings": fields.meant("max_position_embeddings")
        }
        values["rope_parameters"] = given[kind] if nested and given is not None else given
        values["rope_scaling"] = scaling if number < scaled else None
        values["rope_theta"] = fields.raw(theta_keys[kind])
        own_dim = head_dim if isinstance(head_dim, int) else head_dim[kind]
        rope, own_context = read_rope(Fields(values, fields.source), own_dim, thetas[kind])
        ropes.append(rope)
        context = max(context, own_context)
    return tuple(ropes), context


def hf_window(fields: Fields, switched: bool = False) -> int | None:
    """Return the sliding window of a config, or None.

    ``switched``: the family's layers have it only where use_sliding_window is set.
    """
    window = fields.integer("sliding_window", default=0, least=0) or None
    return window if not switched or fields.flag("use_sliding_window", default=False) else None


def hf_windows(fields: Fields, window: int | None, have: Sequence[bool]) -> list[int | None]:
    """Return each layer's window: of those that layer_types names, or else those that ``have``."""
    kinds = hf_kinds(fields, len(have))
    if kinds is not None:
        have = [kind == "sliding_attention" for kind in kinds]
    return [window if has_window else None for has_window in have]


def check_kinds(fields: Fields, layers: Sequence[Layer]) -> None:
    """Refuse layer_types that say something else than what the layers became."""
    windows = [one.attention and one.attention.window for one in layers]
    found = ["full_attention" if window is None else "sliding_attention" for window in windows]
    if hf_kinds(fields, len(layers)) not in (None, found):
        raise fields.fail("layer_types", f"{found[:4]}, by the other fields,")


def with_windows(layer: Layer, windows: Iterable[int | None]) -> list[Layer]:
    """Return a layer for each window, otherwise alike."""
    made: dict[int | None, Layer] = {}
    attention = layer.attention
    assert attention is not None
    return [made.setdefault(w, Layer(replace(attention, window=w), layer.ffn)) for w in windows]


def hf_sparse_layers(fields: Fields, n_layers: int) -> list[bool]:
    """Return which layers have experts, by mlp_only_layers and decoder_sparse_step."""
    dense = fields.raw("mlp_only_layers") or []
    if not isinstance(dense, list) or not all(type(number) is int for number in dense):
        raise fields.fail("mlp_only_layers", "a list of layers")
    step = fields.integer("decoder_sparse_step", default=1)
    gated = set(dense)
    return [number not in gated and (number + 1) % step == 0 for number in range(n_layers)]
