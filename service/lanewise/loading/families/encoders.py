"""What the configs and tensors of encoders have in common."""

from __future__ import annotations

from lanewise.loading.checkpoint import ModelFileError, Role
from lanewise.loading.checks import check_heads
from lanewise.loading.formats import round_to_f32
from lanewise.loading.json_files import Fields
from lanewise.loading.names import HF, TENSOR_NAMES
from lanewise.loading.program import CURVES, Attention, Gated, Layer, Plain
from lanewise.loading.sources import Sources, SourceTensor

# What files call the functions that a program names.
CURVE_NAMES = {
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "swiglu": "silu",
    "geglu": "gelu",
}


def curve(fields: Fields, key: str, default: str) -> str:
    """Return the activation that a field names."""
    name = fields.text(key, default=default)
    name = CURVE_NAMES.get(name, name)
    if name not in CURVES:
        raise fields.fail(key, f"one of {', '.join([*CURVES, *CURVE_NAMES])}")
    return name


def plain_names(sources: Sources, prefixes: tuple[str, ...]) -> dict[str, SourceTensor]:
    """Return tensors without the prefix that they have in a model with a head of its own."""
    found = {}
    for name, tensor in sources.items():
        for prefix in prefixes:
            name = name.removeprefix(prefix)
        found[name] = tensor
    return found


def encoder_attention(fields: Fields, rope: int | None = None, bias: bool = True) -> Attention:
    """Return attention that sees both ways, its heads sharing the hidden size."""
    n_heads, hidden = fields.integer("num_attention_heads"), fields.integer("hidden_size")
    if hidden % n_heads:
        raise ModelFileError(
            f"{fields.source}: {n_heads} attention heads do not share {hidden} dimensions evenly"
        )
    attention = Attention(
        n_heads,
        n_heads,
        hidden // n_heads,
        rope,
        both_ways=True,
        qkv_bias=bias,
        output_bias=bias,
    )
    return check_heads(attention, fields.source)


def layers_after(attention: Attention, ffn: Gated | Plain, n_layers: int) -> tuple[Layer, ...]:
    """Return layers that normalize after each addition, as BERT's."""
    return (Layer(attention, ffn, attn_norm_replaces=True, ffn_norm_replaces=True),) * n_layers


def norm_eps(fields: Fields, key: str = "layer_norm_eps", default: float = 1e-12) -> float:
    """Return what is added to variances."""
    return round_to_f32(fields.number(key, default=default))


def usual(role: Role, layer: int = 0) -> str:
    """Return the usual name of a tensor in Hugging Face files."""
    return TENSOR_NAMES[role][HF].format(layer)
