"""What the configs and tensors of encoders have in common."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from lanewise.loading.base.checkpoint import ModelFileError, Role
from lanewise.loading.base.formats import round_to_f32
from lanewise.loading.base.program import (
    Attention,
    Dense,
    Gated,
    Layer,
    ModelConfig,
    Plain,
    Pooling,
)
from lanewise.loading.base.sources import Sources
from lanewise.loading.families.common import has_qkv_bias, n_layers_of, vocab_size_of
from lanewise.loading.families.family import Family, Program, Rename
from lanewise.loading.families.naming import give_layer_roles, give_roles
from lanewise.loading.files.rearranging import Rearranged
from lanewise.loading.programs.checks import check_heads
from lanewise.loading.programs.model_file import ModelFile

# Dense heads of most classifiers.
POOLER, CLASSIFIER = "pooler.dense", "classifier"
# Unused tensors of embedding models in BERT's form.
UNUSED = ("embeddings.position_ids", "embeddings.token_type_ids")
UNUSED_PREFIXES = ("cls.", "lm_head.", "pooler.", "vocab_")


def encoder_attention(
    file: ModelFile, rope: int | None = None, bias: bool = True, alibi: bool = False
) -> Attention:
    """Return bidirectional attention whose heads share the hidden size.

    The tensors of a GGUF file tell which biases there are.
    """
    n_heads, hidden = file.integer("num_attention_heads"), file.integer("hidden_size")
    if hidden % n_heads:
        raise ModelFileError(
            f"{file.source}: {n_heads} attention heads do not share {hidden} dimensions evenly"
        )
    attention = Attention(
        n_heads,
        n_heads,
        hidden // n_heads,
        rope,
        both_ways=True,
        qkv_bias=has_qkv_bias(file) if file.is_gguf else bias,
        output_bias=file.has(Role.ATTN_OUTPUT_BIAS) if file.is_gguf else bias,
        alibi=alibi,
    )
    return check_heads(attention, file.source)


def layers_after(attention: Attention, ffn: Gated | Plain, n_layers: int) -> tuple[Layer, ...]:
    """Return layers like BERT's, which normalize after each addition."""
    return (Layer(attention, ffn, attn_norm_replaces=True, ffn_norm_replaces=True),) * n_layers


def layers_by_turns(
    attention: Attention, ffn: Gated, windows: Sequence[int | None]
) -> tuple[Layer, ...]:
    """Return layers without a window, or with half of it on each side and the second angles."""
    return tuple(
        Layer(
            attention if window is None else replace(attention, rope=1, window=window // 2 + 1), ffn
        )
        for window in windows
    )


def post_norm_model(
    file: ModelFile,
    name: str,
    attention: Attention,
    ffn: Gated | Plain,
    context: int,
    pooling: Pooling,
) -> ModelConfig:
    """Return the common part of models with post-norm layers, without positions."""
    return ModelConfig(
        architecture=name,
        hidden_size=file.integer("hidden_size"),
        vocab_size=vocab_size_of(file),
        context_length=context,
        rms_norm_eps=norm_eps(file),
        tied_embeddings=True,
        ropes=(),
        layers=layers_after(attention, ffn, n_layers_of(file)),
        norm="layer",
        norm_bias=True,
        pooling=pooling,
    )


def norm_eps(file: ModelFile) -> float:
    """Return the norms' epsilon, which every GGUF file has."""
    default = None if file.is_gguf else 1e-12
    return round_to_f32(file.number("layer_norm_eps", default=default))


def encoder_family(
    name: str, program: Program, hf_tensors: Rename, gguf: str | None = None, **more: Any
) -> Family:
    """Return a row of the table; ``more`` are fields of Family."""
    return Family(name, program, gguf, hf_tensors=hf_tensors, gguf_is_usual=False, **more)


def give_norm_after(tensors: Rearranged, name: str, config: ModelConfig, number: int) -> None:
    """Rename the norm after a layer to the next layer's; after the last, to the output norm."""
    if number + 1 == config.n_layers:
        give_roles(tensors, name, Role.OUTPUT_NORM)
    else:
        give_roles(tensors, name, Role.ATTN_NORM, number + 1)


def give_post_norm_layers(
    tensors: Rearranged, config: ModelConfig, folder: str, of_layer: Mapping[str, Role], last: str
) -> None:
    """Rename the tensors of layers; ``last`` is the norm after each."""
    give_layer_roles(tensors, config, of_layer, folder)
    for number in range(config.n_layers):
        give_norm_after(tensors, f"{folder.format(number)}{last}", config, number)


def give_heads(tensors: Rearranged, config: ModelConfig, names: Iterable[str]) -> None:
    """Rename the dense heads of classifiers."""
    if config.pooling is not None and config.pooling.dense:
        for number, name in enumerate(names):
            give_roles(tensors, name, Role.DENSE, number)


def give_outside_layers(
    tensors: Rearranged, config: ModelConfig, heads: Iterable[str] = (POOLER, CLASSIFIER)
) -> None:
    """Rename BERT's tensors outside of layers, and drop unused ones.

    ``heads`` are the names of a classifier's heads.
    """
    tensors.rename("embeddings.word_embeddings.weight", tensors.usual(Role.TOKEN_EMBEDDING))
    tensors.rename(
        "embeddings.token_type_embeddings.weight", tensors.usual(Role.TOKEN_TYPE_EMBEDDING)
    )
    give_roles(tensors, "embeddings.LayerNorm", Role.ATTN_NORM)
    give_heads(tensors, config, heads)
    unused = [name for name in tensors.out if name.startswith(UNUSED_PREFIXES)]
    tensors.drop(*UNUSED, *unused)


def classifier(sources: Sources, name: str = CLASSIFIER) -> Dense:
    """Return the dense head that makes scores: an output for each label."""
    shape = sources[f"{name}.weight"].shape
    return Dense(shape[0] if shape else 1, bias=f"{name}.bias" in sources)


def classifier_pooling(
    sources: Sources, hidden: int, name: str = CLASSIFIER, activation: str = "tanh"
) -> Pooling:
    """Return the mean, or a classifier's pooling: first row, a head with a curve, scores."""
    if f"{name}.weight" not in sources:
        return Pooling()
    return Pooling("cls", dense=(Dense(hidden, True, activation), classifier(sources, name)))
