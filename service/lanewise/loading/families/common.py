"""Readers of the fields and tensors that most families share with Llama."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from lanewise.loading.base.checkpoint import ModelFileError, Role
from lanewise.loading.base.formats import round_to_f32
from lanewise.loading.base.json_files import Fields
from lanewise.loading.base.names import GGUF, TENSOR_NAMES
from lanewise.loading.base.program import (
    CURVES,
    Attention,
    Gated,
    Layer,
    ModelConfig,
    Plain,
    Pooling,
    Rope,
)
from lanewise.loading.families.gguf_rope import gguf_rope
from lanewise.loading.programs.checks import check_heads
from lanewise.loading.programs.model_file import ModelFile
from lanewise.loading.programs.rope import read_rope

# The names in files of the functions that a program names.
CURVE_NAMES = {
    "relu2": "relu_squared",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "swiglu": "silu",
    "geglu": "gelu",
}
MROPE = ("mrope_section", "mrope_interleaved")  # no effect on text: its three positions are equal
# Keys of GGUF files that have an effect only beside a tower.
MROPE_KEYS = ("{arch}.rope.dimension_sections", "{arch}.n_deepstack_layers")
FUSED_BIAS = "blk.0.attn_qkv.bias"  # of fused Q, K and V in GGUF files
KINDS = ("full_attention", "sliding_attention")  # values of layer_types
PERIOD = 4  # one layer of so many has no window, by default


def attention_of(
    file: ModelFile,
    qkv_bias: bool = False,
    qk_norm: str = "none",
    window: int | None = None,
    own_values: bool = False,
) -> Attention:
    """Return attention as a file describes it, with the biases that the file has.

    Without a head dimension, the heads share the hidden size. With ``own_values`` values may have
    another size.
    """
    n_heads = file.integer("num_attention_heads")
    qkv_bias = file.flag("attention_bias", default=False) or qkv_bias
    shared = file.integer("hidden_size") // n_heads or 1
    head_dim = file.integer("head_dim", default=shared)
    in_gguf = file.is_gguf or not own_values
    key = "{arch}.attention.value_length" if in_gguf else "v_head_dim"
    value_dim = file.integer(key, default=head_dim)
    if value_dim != head_dim and not own_values:
        raise file.fail(key, f"the head dimension, {head_dim},")
    attention = Attention(
        n_heads=n_heads,
        n_kv_heads=file.integer("num_key_value_heads", default=n_heads),
        head_dim=head_dim,
        rope=0,
        window=window,
        qkv_bias=qkv_bias or has_qkv_bias(file),
        output_bias=file.has(Role.ATTN_OUTPUT_BIAS),
        qk_norm=qk_norm,
        value_dim=0 if value_dim == head_dim else value_dim,
    )
    return check_heads(attention, file.source)


def with_both_ways(config: ModelConfig, file: Fields, key: str) -> ModelConfig:
    """Return a generative model whose tokens see later ones too, as ``key`` says; it is pooled.

    A window has as many tokens before as after, besides the token itself.
    """
    if config.has_states:
        raise file.fail(key, "true of a model whose layers keep a state of earlier tokens")
    layers = []
    for layer in config.layers:
        attention = layer.attention
        if attention is not None:
            window = None if attention.window is None else attention.window + 1
            attention = replace(attention, both_ways=True, window=window)
        layers.append(replace(layer, attention=attention))
    return replace(config, layers=tuple(layers), pooling=Pooling(), tied_embeddings=True)


def has_qkv_bias(file: ModelFile) -> bool:
    """Return whether Q, K and V have biases, which GGUF files may fuse."""
    return file.has(Role.ATTN_Q_BIAS) or FUSED_BIAS in file.tensors


def gated_of(file: ModelFile, layer: int = 0) -> Gated:
    """Return a silu-gated FFN as a file describes it, with the biases that the file has."""
    check_activation(file)
    size = file.integer("intermediate_size")
    bias = file.flag("mlp_bias", default=False) or file.has(Role.FFN_GATE_BIAS, layer)
    return Gated(size, bias)


def plain_of(file: ModelFile, activation: str, bias: bool = False) -> Plain:
    """Return an FFN without a gate as a file describes it, with the biases that it has.

    ``activation`` is the family's; a config.json may name another one, a GGUF file does not.
    """
    bias = file.flag("mlp_bias", default=False) or file.has(Role.FFN_UP_BIAS) or bias
    return Plain(file.integer("intermediate_size"), bias, curve(file, "hidden_act", activation))


def curve(file: Fields, key: str, default: str) -> str:
    """Return the activation that a field names."""
    name = file.text(key, default=default)
    name = CURVE_NAMES.get(name, name)
    if name not in CURVES:
        raise file.fail(key, f"one of {', '.join([*CURVES, *CURVE_NAMES])}")
    return name


def check_activation(file: ModelFile) -> None:
    """Raise ModelFileError if the FFN's gate is not silu."""
    if file.text("hidden_act", default="silu") != "silu":
        raise file.fail("hidden_act", "'silu'")


def check_values(file: ModelFile, accepted: Mapping[str, tuple[object, ...]]) -> None:
    """Raise ModelFileError for fields of a config.json with other values than the accepted."""
    if file.is_gguf:
        return
    for key, values in accepted.items():
        if file.is_set(key) and file.raw(key) not in values:
            raise file.fail(key, " or ".join(map(repr, values)))


def n_layers_of(file: ModelFile) -> int:
    """Return the number of layers, which cannot exceed the number of tensors."""
    n_layers = file.integer("num_hidden_layers")
    if n_layers > len(file.tensors):
        raise file.fail("num_hidden_layers", f"at most the number of tensors, {len(file.tensors)},")
    return n_layers


def trunk_layers_of(file: ModelFile) -> int:
    """Return the number of layers without multi-token prediction layers at the end.

    GGUF files count these layers, directories do not.
    """
    n_layers, key = n_layers_of(file), "{arch}.nextn_predict_layers"
    further = file.integer(key, default=0, least=0)
    if further >= n_layers:
        raise file.fail(key, f"a number below the number of layers, {n_layers},")
    return n_layers - further


def model_of(
    file: ModelFile,
    name: str,
    layers: Sequence[Layer],
    theta: float = 10000.0,
    partial: float = 1.0,
    tied: bool = False,
    own: Sequence[str] = (),
    own_kinds: bool = False,
    eps: str | None = None,
    norm: str = "rms",
    norm_bias: bool = False,
    truncate: bool = True,
    ropes: tuple[tuple[Rope, ...], int] | None = None,
) -> ModelConfig:
    """Return the program, with one set of angles unless ``ropes`` are given.

    ``theta``, ``partial`` and ``tied`` are the family's values if a config.json does not say.
    ``own`` are RoPE settings that the family reads itself; with ``own_kinds`` it reads layer_types
    itself. ``eps`` is its name for the norms' epsilon. ``norm`` is one of NORMS; norms in GGUF
    files have biases if the output norm has one. ``truncate``: see gguf_rope.
    """
    if not own_kinds:
        check_kinds(file, layers)
    if ropes is None:
        head_dim = heads_of(file, layers).turning
        rope, context = rope_of(file, head_dim, theta, partial, own, truncate)
        ropes = (rope,), context
    if file.is_gguf:
        eps = "layer_norm_eps" if norm == "layer" else "rms_norm_eps"
        tied, norm_bias = not file.has(Role.OUTPUT), file.has(Role.OUTPUT_NORM_BIAS)
        file.ignore("{arch}.attention.layer_norm_rms_epsilon")
    return ModelConfig(
        architecture=name,
        hidden_size=file.integer("hidden_size"),
        vocab_size=vocab_size_of(file),
        context_length=ropes[1],
        rms_norm_eps=round_to_f32(file.number(eps or "rms_norm_eps")),
        tied_embeddings=file.flag("tie_word_embeddings", default=tied),
        ropes=ropes[0],
        layers=tuple(layers),
        norm=norm,
        norm_bias=norm_bias,
    )


def heads_of(file: ModelFile, layers: Sequence[Layer]) -> Attention:
    """Return the attention of the first layer that has attention."""
    for layer in layers:
        if layer.attention is not None:
            return layer.attention
    raise ModelFileError(f"{file.source}: no layer has attention; one is needed")


def vocab_size_of(file: ModelFile) -> int:
    """Return the size of the vocabulary; a GGUF file's embedding has it."""
    if not file.is_gguf:
        return file.integer("vocab_size")
    file.ignore("{arch}.vocab_size")
    embedding = file.tensors.get(TENSOR_NAMES[Role.TOKEN_EMBEDDING][GGUF])
    if embedding is None or len(embedding.shape) != 2:
        raise ModelFileError(
            f"{file.source}: missing tensor 'token_embd.weight' with two dimensions"
        )
    return embedding.shape[0]


def rope_of(
    file: ModelFile,
    head_dim: int,
    theta: float = 10000.0,
    partial: float = 1.0,
    own: Sequence[str] = (),
    truncate: bool = True,
) -> tuple[Rope, int]:
    """Return the angles that a file describes, and the context that they allow."""
    if file.is_gguf:
        return gguf_rope(file, head_dim, theta, truncate)
    return read_rope(file, head_dim, theta, partial, own)


def ropes_of_kinds(
    file: ModelFile,
    head_dim: int | Mapping[str, int],
    theta_keys: Mapping[str, str],
    thetas: Mapping[str, float],
    scaled: int = len(KINDS),
) -> tuple[tuple[Rope, ...], int]:
    """Return the angles of each of KINDS, and their longest context.

    ``head_dim`` may be one for each kind. ``thetas`` are the family's values if the file does not
    say. ``theta_keys`` are the fields of a config.json without rope_parameters. Only the first
    ``scaled`` kinds have scaled angles.
    """
    dims = dict.fromkeys(KINDS, head_dim) if isinstance(head_dim, int) else head_dim
    if not file.is_gguf:
        return _hf_ropes_of_kinds(file, dims, theta_keys, thetas, scaled)
    rope, context = gguf_rope(file, dims[KINDS[0]], thetas[KINDS[0]])
    theta = file.number("{arch}.rope.freq_base_swa", default=thetas[KINDS[1]])
    key, most = "{arch}.rope.dimension_count_swa", dims[KINDS[1]]
    turned = file.integer(key, default=rope.rotated if isinstance(head_dim, int) else most)
    if turned > most or turned % 2:
        raise file.fail(key, f"an even number up to the head dimension, {most},")
    like = rope if scaled == len(KINDS) else Rope(theta, turned)
    return (rope, replace(like, theta=round_to_f32(theta))), context


def _hf_ropes_of_kinds(
    file: ModelFile,
    dims: Mapping[str, int],
    theta_keys: Mapping[str, str],
    thetas: Mapping[str, float],
    scaled: int,
) -> tuple[tuple[Rope, ...], int]:
    given, scaling = file.raw("rope_parameters"), file.raw("rope_scaling")
    if given is None and scaling is None:
        given = file.meanings.get("rope_parameters")
    nested = isinstance(given, Mapping) and all(
        isinstance(given.get(kind), Mapping) for kind in KINDS
    )
    ropes, context = [], 0
    for number, kind in enumerate(KINDS):
        values: dict[str, Any] = {"max_position_embeddings": file.meant("max_position_embeddings")}
        values["rope_parameters"] = given[kind] if nested and given is not None else given
        values["rope_scaling"] = scaling if number < scaled else None
        values["rope_theta"] = file.raw(theta_keys[kind])
        rope, own_context = read_rope(Fields(values, file.source), dims[kind], thetas[kind])
        ropes.append(rope)
        context = max(context, own_context)
    return tuple(ropes), context


def in_use(
    ropes: tuple[tuple[Rope, ...], int], layers: Sequence[Layer]
) -> tuple[tuple[Rope, ...], int]:
    """Return the angles without the last ones that no layer has; the first ones stay."""
    used = [layer.attention.rope or 0 for layer in layers if layer.attention is not None]
    return ropes[0][: max(used) + 1], ropes[1]


def window_of(file: ModelFile, switched: bool = False, always: bool = False) -> int | None:
    """Return a file's sliding window, or None.

    ``switched``: a config.json has it only with use_sliding_window. ``always``: a config.json must
    have it.
    """
    if always and not file.is_gguf:
        return file.integer("sliding_window")
    window = file.integer("sliding_window", default=0, least=0) or None
    is_used = file.is_gguf or not switched or file.flag("use_sliding_window", default=False)
    return window if is_used else None


def windows_of(
    file: ModelFile, window: int | None, have: Sequence[bool] | None = None, last: bool = True
) -> list[int | None]:
    """Return each layer's window: the file chooses the layers, or else ``have``.

    A config.json chooses by layer_types. A GGUF file chooses by a list of flags or by a period, of
    which the ``last`` or the first layer has no window. Without ``have`` all layers of a
    config.json have the window.
    """
    n_layers = n_layers_of(file)
    if file.is_gguf:
        key = "{arch}.attention.sliding_window_pattern"
        pattern = file.raw(key)
        if type(pattern) is int:
            have = by_turns(n_layers, pattern, last)
        elif isinstance(pattern, list) and len(pattern) == n_layers:
            have = pattern
        elif pattern is not None:
            raise file.fail(key, f"a number, or {n_layers} times true or false")
    elif have is not None:
        kinds = layer_types_of(file, n_layers)
        have = have if kinds is None else [kind == KINDS[1] for kind in kinds]
    return [window if has_window else None for has_window in have or [True] * n_layers]


def by_turns(n_layers: int, period: int, last: bool = True) -> list[bool]:
    """Return False for the last, or the first, of every ``period`` layers, else True.

    With a period of 0 all are True.
    """
    without = period - 1 if last else 0
    return [period == 0 or number % period != without for number in range(n_layers)]


def layer_types_of(file: ModelFile, n_layers: int) -> list[str] | None:
    """Return layer_types, one for each layer, or None if the config has none."""
    kinds = file.raw("layer_types")
    if kinds is None:
        return None
    is_list = isinstance(kinds, list) and len(kinds) == n_layers
    if not is_list or not all(kind in KINDS for kind in kinds):
        raise file.fail("layer_types", f"{n_layers} times {' or '.join(map(repr, KINDS))}")
    return list(kinds)


def check_kinds(file: ModelFile, layers: Sequence[Layer]) -> None:
    """Raise ModelFileError if layer_types disagree with the layers' windows."""
    windows = [one.attention and one.attention.window for one in layers]
    found = ["full_attention" if window is None else "sliding_attention" for window in windows]
    if layer_types_of(file, len(layers)) not in (None, found):
        raise file.fail("layer_types", f"{found[:4]}, by the other fields,")


def with_kinds(
    file: ModelFile, layers: Sequence[Layer], window: int | None, last: bool = True
) -> list[Layer]:
    """Return layers with the window of their kind; those that have one turn by the second angles.

    layer_types tell the kinds, or the pattern of a GGUF file, by which every fourth layer has no
    window if there is none: the ``last`` or the first of four.
    """
    have = by_turns(len(layers), PERIOD, last) if file.is_gguf else [False] * len(layers)
    made = []
    for layer, own in zip(layers, windows_of(file, window, have, last), strict=True):
        assert layer.attention is not None
        attention = replace(layer.attention, window=own, rope=int(own is not None))
        made.append(replace(layer, attention=attention))
    return made


def with_windows(layer: Layer, windows: Iterable[int | None]) -> list[Layer]:
    """Return copies of a layer, one for each window."""
    made: dict[int | None, Layer] = {}
    attention = layer.attention
    assert attention is not None
    return [made.setdefault(w, Layer(replace(attention, window=w), layer.ffn)) for w in windows]
