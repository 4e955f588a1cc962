"""Whether the numbers of a program fit together, whoever wrote them."""

from __future__ import annotations

import math
from collections.abc import Iterable

from lanewise.loading.checkpoint import ModelFileError
from lanewise.loading.program import (
    ACTIVATIONS,
    CURVES,
    DENSE_CURVES,
    FFN_CURVES,
    MAX_DENSE,
    NORMS,
    POOLINGS,
    QK_NORMS,
    ROUTERS,
    WIRINGS,
    Attention,
    Experts,
    Layer,
    ModelConfig,
    Rope,
    ShortConv,
    Ssd,
    State,
)

MAX_HEAD_DIM = 512
MAX_STATE_DIM = 256  # rows and columns of states
LEAST_TAPS, MOST_TAPS = 2, 8  # of the convolutions of layers with a state
STATE_MULTIPLE = 16  # of rows and columns of states
MAX_EXPERTS = 4096
EXPERT_MULTIPLE = 32  # of the sizes that the matrices of experts have
LATENT_MULTIPLE = 32  # of what the matrices of heads give
MAX_LATENT = 1024


def check_program(config: ModelConfig, source: str) -> ModelConfig:
    """Return the program if its numbers fit together; ``source`` names it in errors."""
    _raise(source, layer_faults(config))
    for attention in dict.fromkeys(layer.attention for layer in config.layers):
        if attention is not None:
            check_heads(attention, source)
            _raise(source, attention_faults(attention, config.ropes))
            _raise(source, latent_faults(attention, config))
    for state in dict.fromkeys(layer.state for layer in config.layers):
        if state is not None:
            _raise(source, state_faults(state))
    for rope in config.ropes:
        _raise(source, rope_faults(rope))
    for ffn in dict.fromkeys(layer.ffn for layer in config.layers):
        if isinstance(ffn, Experts):
            _raise(source, expert_faults(ffn, config.hidden_size))
        elif ffn is not None and ffn.activation not in FFN_CURVES:
            _raise(source, [_unknown("activation", ffn.activation, FFN_CURVES)])
    for layer in dict.fromkeys(config.layers):
        _raise(source, result_norm_faults(layer, config))
        _raise(source, wiring_faults(layer))
    _raise(source, shared_kv_faults(config))
    _raise(source, mtp_faults(config))
    _raise(source, pooling_faults(config))
    return config


def layer_faults(config: ModelConfig) -> Iterable[str]:
    """What is wrong with what layers are made of."""
    if all(layer.attention is None for layer in config.layers):
        yield "no layer has attention; one is needed"
    for layer in dict.fromkeys(config.layers):
        parts = (layer.attention, layer.state, layer.ffn)
        if all(part is None for part in parts):
            yield "a layer without attention, state and FFN"
        if None in parts[::2] and (layer.attn_norm_replaces or layer.ffn_norm_replaces):
            yield "norms that replace, in a layer without attention or without an FFN"
    if config.per_layer_size and config.residual_scale != 1.0:
        yield "a per_layer_size beside a residual_scale"
    if config.per_layer_size and (config.pooling is not None or config.norm != "rms"):
        yield "a per_layer_size in a model that is pooled or has other norms than RMSNorm"
    if config.learned_positions and config.residual_scale != 1.0:
        yield "learned positions beside a residual_scale"
    if config.has_states and (config.pooling is not None or config.norm != "rms"):
        yield "layers with a state in a model that is pooled or has other norms than RMSNorm"


def wiring_faults(layer: Layer) -> Iterable[str]:
    """What is wrong with how the parts of a layer add to x."""
    if layer.wiring not in WIRINGS:
        yield _unknown("wiring", layer.wiring, WIRINGS)
    elif layer.wiring != "in_turn":
        if layer.attention is None or layer.ffn is None:
            yield f"wiring {layer.wiring} without attention or an FFN"
        if layer.attn_norm_replaces or layer.ffn_norm_replaces:
            yield f"wiring {layer.wiring} with norms that replace"
    if isinstance(layer.ffn, Experts) and layer.ffn.own_norms:
        replaced = layer.ffn_norm_replaces or layer.no_input_norms
        if not layer.result_norms or layer.wiring != "in_turn" or replaced:
            yield "own_norms of experts without result_norms, beside attention or with other norms"
    if layer.no_input_norms and not layer.result_norms:
        yield "no_input_norms without result_norms"
    if layer.output_scale <= 0:
        yield f"output_scale is {layer.output_scale}; a positive number is needed"


def shared_kv_faults(config: ModelConfig) -> Iterable[str]:
    """What is wrong with layers that read the keys and values of others."""
    for number, layer in enumerate(config.layers):
        own = layer.attention
        if own is None or own.kv_layer is None:
            continue
        other = config.layers[own.kv_layer].attention if own.kv_layer < number else None
        if other is None or other.kv_layer is not None:
            yield f"layer {number} reads keys and values of layer {own.kv_layer}, which has none"
        elif (other.n_kv_heads, other.head_dim, other.window) != (
            own.n_kv_heads,
            own.head_dim,
            own.window,
        ):
            yield (
                f"layer {number} reads keys and values of layer {own.kv_layer}, whose heads or"
                " window are others"
            )


def mtp_faults(config: ModelConfig) -> Iterable[str]:
    """What is wrong with a head that predicts further tokens."""
    if any(layer.mtp for layer in config.layers[:-1]) or (config.has_mtp and config.n_layers == 1):
        yield "mtp of a layer that is not the last of several"
    if not config.has_mtp:
        return
    head = config.layers[-1]
    if head.attention is None or head.ffn is None or head.state is not None:
        yield "mtp of a layer without attention or FFN, or with a state"


def state_faults(state: State) -> Iterable[str]:
    """What is wrong with the state of a layer."""
    if not LEAST_TAPS <= state.taps <= MOST_TAPS:
        yield f"convolutions see {state.taps} tokens; {LEAST_TAPS} to {MOST_TAPS} are supported"
    if isinstance(state, ShortConv):
        return
    for name in ("value_dim", "key_dim"):
        size = getattr(state, name)
        if size % STATE_MULTIPLE or size > MAX_STATE_DIM:
            yield (
                f"{name} of a state is {size}; a multiple of {STATE_MULTIPLE} up to"
                f" {MAX_STATE_DIM} is needed"
            )
    if state.n_heads % state.n_key_heads:
        yield (
            f"{state.n_heads} heads of a state are not a multiple of {state.n_key_heads} key heads"
        )
    if isinstance(state, Ssd) and state.norm_size is not None and state.inner % state.norm_size:
        yield f"norms over {state.norm_size} of {state.inner} values of a state"


def result_norm_faults(layer: Layer, config: ModelConfig) -> Iterable[str]:
    """What does not go with norms of what is added."""
    if not layer.result_norms:
        return
    if layer.ffn is None or (layer.attention is None) == (layer.state is None):
        yield "result_norms without an FFN and either attention or a state"
        return
    has_norms = not isinstance(layer.ffn, Experts) or layer.ffn.own_norms
    if not has_norms or layer.ffn.bias or layer.ffn.down_bias:
        yield "result_norms with experts without own_norms or a bias of down"
    if (layer.attention is not None and layer.attention.output_bias) or config.norm_bias:
        yield "result_norms with biases of attention's output or of norms"
    if config.residual_scale != 1.0:
        yield f"result_norms with residual_scale {config.residual_scale}"


def _unknown(what: str, value: str, accepted: Iterable[str]) -> str:
    return f"{what} is {value!r}; one of {', '.join(accepted)} is needed"


def pooling_faults(config: ModelConfig) -> Iterable[str]:
    """What is wrong with norms, and what pooled models have."""
    if config.norm not in NORMS:
        yield _unknown("norm", config.norm, NORMS)
    if config.norm_bias and config.norm != "layer":
        yield f"norm_bias with norm {config.norm!r}; 'layer' is needed"
    if config.pooling is None:
        if any(one.attention is not None and one.attention.both_ways for one in config.layers):
            yield "attention sees both ways, and nothing is pooled"
        if config.n_token_types:
            yield "token types, and nothing is pooled"
        return
    if config.pooling.kind not in POOLINGS:
        yield _unknown("pooling", config.pooling.kind, POOLINGS)
    if len(config.pooling.dense) > MAX_DENSE:
        yield f"{len(config.pooling.dense)} dense heads; at most {MAX_DENSE} are supported"
    for dense in config.pooling.dense:
        if dense.activation not in DENSE_CURVES:
            yield _unknown("a dense head's activation", dense.activation, DENSE_CURVES)


def _raise(source: str, faults: Iterable[str]) -> None:
    for fault in faults:
        raise ModelFileError(f"{source}: {fault}")


def rope_faults(rope: Rope) -> Iterable[str]:
    """What is wrong with a set of angles."""
    if rope.rotated % 2:
        yield f"RoPE over {rope.rotated} dimensions; an even number is needed"
    for factors in filter(None, (rope.factors, rope.short_factors)):
        if len(factors) != rope.rotated // 2 or not all(0 < f < math.inf for f in factors):
            yield (
                f"{len(factors)} RoPE factors; {rope.rotated // 2} positive finite numbers are"
                " needed, half the rotated dimensions"
            )


def check_heads(attention: Attention, source: str) -> Attention:
    """Return attention if its heads can be served; before anything is made of their size."""
    _raise(source, head_faults(attention))
    return attention


def head_faults(attention: Attention) -> Iterable[str]:
    """What is wrong with the heads."""
    if attention.n_heads % attention.n_kv_heads:
        yield (
            f"{attention.n_heads} attention heads are not a multiple of"
            f" {attention.n_kv_heads} key/value heads"
        )
    if attention.head_dim % 2 or attention.head_dim > MAX_HEAD_DIM:
        yield (
            f"head dimension {attention.head_dim} is not supported;"
            f" it must be even and at most {MAX_HEAD_DIM}"
        )


def attention_faults(attention: Attention, ropes: tuple[Rope, ...]) -> Iterable[str]:
    """What is wrong with attention, its heads apart."""
    if attention.qk_norm not in QK_NORMS:
        yield f"qk_norm is {attention.qk_norm!r}; one of {', '.join(QK_NORMS)} is needed"
    if attention.output_gate and attention.head_gate:
        yield "output_gate beside head_gate; one of them is needed at most"
    if attention.scaled_alibi and not attention.alibi:
        yield "scaled_alibi without alibi"
    if attention.rope is None:
        return
    if attention.rope >= len(ropes):
        yield f"rope is {attention.rope}; there are {len(ropes)} sets of angles"
    elif ropes[attention.rope].rotated > attention.head_dim:
        yield (
            f"RoPE over {ropes[attention.rope].rotated} dimensions; the head dimension is"
            f" {attention.head_dim}"
        )


def latent_faults(attention: Attention, config: ModelConfig) -> Iterable[str]:
    """What is wrong with latent attention."""
    if not attention.latent_rank:
        if attention.rope_dim or attention.value_dim or attention.query_rank:
            yield "rope_dim, value_dim or query_rank without a latent_rank"
        return
    for name in ("latent_rank", "value_dim"):
        size = getattr(attention, name)
        if size % LATENT_MULTIPLE or not 0 < size <= MAX_LATENT:
            yield (
                f"{name} of latent attention is {size}; a multiple of {LATENT_MULTIPLE} up to"
                f" {MAX_LATENT} is needed"
            )
    rotated = None if attention.rope is None else config.ropes[attention.rope].rotated
    if rotated != attention.rope_dim or not 0 < attention.rope_dim < attention.head_dim:
        yield (
            f"latent attention whose heads of {attention.head_dim} turn {attention.rope_dim}"
            f" dimensions, by RoPE over {rotated}; the same number, below the heads', is needed"
        )
    if attention.n_kv_heads != 1:
        yield f"latent attention with {attention.n_kv_heads} key/value heads; 1 is needed"
    gates = attention.output_gate or attention.head_gate
    plain = attention.qkv_bias or attention.alibi or attention.values_are_keys
    if (
        gates
        or plain
        or attention.value_norm
        or attention.qkv_clip
        or attention.qk_norm != "none"
        or attention.kv_layer is not None
    ):
        yield "latent attention beside biases, norms, gates, clips, slopes or keys of other layers"
    if config.pooling is not None:
        yield "latent attention in a model that is pooled"


def expert_faults(ffn: Experts, hidden: int) -> Iterable[str]:
    """What is wrong with a layer of experts."""
    if ffn.n > MAX_EXPERTS:
        yield f"{ffn.n} experts; at most {MAX_EXPERTS} are supported"
    if ffn.n_used > ffn.n:
        yield f"{ffn.n_used} experts are used of {ffn.n}"
    if ffn.router not in ROUTERS:
        yield f"router is {ffn.router!r}; one of {', '.join(ROUTERS)} is needed"
    accepted = ACTIVATIONS if ffn.gated else CURVES
    if ffn.activation not in accepted:
        yield _unknown("activation", ffn.activation, accepted)
    if ffn.n % ffn.groups or ffn.groups_used > ffn.groups:
        yield f"{ffn.groups_used} of {ffn.groups} groups of {ffn.n} experts"
    elif ffn.n_used > ffn.n // ffn.groups * ffn.groups_used:
        yield f"{ffn.n_used} experts are used of {ffn.groups_used} groups of {ffn.groups}"
    sizes = {"experts of": ffn.size, "hidden size": hidden, "a shared expert of": ffn.shared_size}
    for name, size in sizes.items():
        if size % EXPERT_MULTIPLE:
            yield f"{name} {size}; a multiple of {EXPERT_MULTIPLE} is needed beside experts"
    if ffn.down_bias and ffn.bias:
        yield "down_bias of experts that have biases each"
    if ffn.shared_gate and not ffn.shared_size:
        yield "shared_gate without a shared expert"
    if ffn.own_norms and (not ffn.shared_size or ffn.shared_gate or ffn.bias or ffn.down_bias):
        yield "own_norms without a shared expert, with its gate or with biases"
