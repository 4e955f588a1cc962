"""What the configs and tensors of encoders have in common."""

from __future__ import annotations

from lanewise.loading.checkpoint import ModelFileError, Role
from lanewise.loading.checks import check_heads
from lanewise.loading.families.family import Family, Program, Rename
from lanewise.loading.formats import round_to_f32
from lanewise.loading.json_files import Fields
from lanewise.loading.names import HF, TENSOR_NAMES
from lanewise.loading.program import CURVES, Attention, Dense, Gated, Layer, Plain, Pooling
from lanewise.loading.rearranging import Rearranged
from lanewise.loading.sources import Sources, SourceTensor

# What encoders' configs have for nothing: whose head for training shares the embedding, and such.
HARMLESS = (
    *("tie_word_embeddings", "gradient_checkpointing", "classifier_dropout", "output_past"),
    *("sentence_transformers", "sbert_ce_default_activation_function", "emb_pooler"),
)
# Dense heads of most classifiers.
POOLER, CLASSIFIER = "pooler.dense", "classifier"
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


def encoder_family(
    name: str, from_hf: Program, hf_tensors: Rename, own: tuple[str, ...] = ()
) -> Family:
    """Return a row of the table; ``own`` are fields that its configs have for nothing, too."""
    harmless = (*HARMLESS, *own)
    return Family(name, from_hf, hf_tensors=hf_tensors, gguf_is_usual=False, harmless=harmless)


def give_roles(tensors: Rearranged, name: str, weight: Role, bias: Role, number: int = 0) -> None:
    """Give a weight and its bias their usual names, if they are there."""
    tensors.rename(f"{name}.weight", usual(weight, number))
    tensors.rename(f"{name}.bias", usual(bias, number))


def classifier(sources: Sources, name: str = CLASSIFIER) -> Dense:
    """Return the dense head that scores are made with: an output for each label."""
    shape = sources[f"{name}.weight"].shape
    return Dense(shape[0] if shape else 1, bias=f"{name}.bias" in sources)


def classifier_pooling(sources: Sources, hidden: int, name: str = CLASSIFIER) -> Pooling:
    """Return the mean, or what a classifier has: the first row, a head with tanh, its scores."""
    if f"{name}.weight" not in sources:
        return Pooling()
    return Pooling("cls", dense=(Dense(hidden, True, "tanh"), classifier(sources, name)))
