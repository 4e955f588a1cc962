"""The head with which some models predict further tokens (multi-token prediction), if asked for.

Files have it as one more layer behind the others, which most readers leave out: a projection
of two norms in front of a layer like the model's last one with attention, and a norm behind it. It
shares embedding and output matrix with the model.
"""

from __future__ import annotations

from dataclasses import replace

from lanewise.loading.checkpoint import ModelFileError, Role
from lanewise.loading.families.family import Family
from lanewise.loading.names import GGUF, HF, TENSOR_NAMES
from lanewise.loading.program import Layer, ModelConfig
from lanewise.loading.rearranging import Rearranged
from lanewise.loading.sources import Sources, SourceTensor

# Of Qwen's directories, by what the usual names have behind "model.layers.{}.".
PREFIX = "mtp."
LAYER = "mtp.layers.0."
OF_HEAD = {
    "mtp.fc.weight": Role.MTP_PROJECTION,
    "mtp.pre_fc_norm_embedding.weight": Role.MTP_EMBEDDING_NORM,
    "mtp.pre_fc_norm_hidden.weight": Role.MTP_HIDDEN_NORM,
    "mtp.norm.weight": Role.MTP_NORM,
}
# Copies of the model's own embedding and output matrix, which some files have once more.
COPIES = (
    ("nextn.embed_tokens.weight", "embed_tokens.weight"),
    ("nextn.shared_head_head.weight", "shared_head.head.weight"),
)


def with_mtp(
    family: Family, config: ModelConfig, sources: Sources, column: int, where: str
) -> tuple[ModelConfig, dict[str, SourceTensor]]:
    """Return a program with the head as its last layer, and tensors under names of that layer.

    ``column`` is the kind of file, HF or GGUF. Raises ModelFileError where there is none.
    """
    if not family.has_mtp:
        raise ModelFileError(
            f"{where}: a head that predicts further tokens is asked for (mtp), which is not read of"
            f" {family.name} models; accepted: qwen3_5, qwen3_5_moe, qwen3_next or glm4_moe files"
            " that have one"
        )
    number = config.n_layers
    named = {_usual(name, number, column): tensor for name, tensor in sources.items()}
    projection = TENSOR_NAMES[Role.MTP_PROJECTION][column].format(number)
    if projection not in named:
        own = "mtp.fc.weight or " if column == HF else ""
        raise ModelFileError(
            f"{where}: a head that predicts further tokens is asked for (mtp), and the file was"
            f" made without it; accepted: one that has {own}{projection}"
        )
    own_part, second = (PREFIX if column == HF else "-"), _layer(number + 1, column)
    more = [name for name in named if name.startswith((own_part, second))]
    if more:
        raise ModelFileError(
            f"{where}: tensor {min(more)!r} is of a second head that predicts further tokens, or"
            " one with an embedding of its own; accepted: files with one that has the model's"
        )
    for copy in COPIES:
        named.pop(f"{_layer(number, column)}{copy[column]}", None)
    norm = TENSOR_NAMES[Role.MTP_NORM][column].format(number)
    if norm not in named and column == GGUF:  # then it has the model's
        named[norm] = named[TENSOR_NAMES[Role.OUTPUT_NORM][column]]
    head = _head_layer(config)
    return replace(config, layers=(*config.layers, head)), named


def with_mtp_if_there(
    family: Family, config: ModelConfig, sources: dict[str, SourceTensor], column: int, where: str
) -> tuple[ModelConfig, dict[str, SourceTensor]]:
    """Return the same, or program and tensors as they are where there is none that is read."""
    try:
        return with_mtp(family, config, sources, column, where)
    except ModelFileError:
        return config, sources


def without_mtp(config: ModelConfig, sources: Sources) -> tuple[ModelConfig, Sources]:
    """Return program and tensors, of a file of ours that has the head, without it."""
    layers = config.layers[:-1]
    tensors = Rearranged(sources)
    tensors.drop_layers_from(len(layers))
    return replace(config, layers=layers), tensors.out


def _usual(name: str, number: int, column: int) -> str:
    """What a tensor of the head is called as one of layer ``number``; others as they are."""
    if column == GGUF or not name.startswith(PREFIX):
        return name
    if name in OF_HEAD:
        return TENSOR_NAMES[OF_HEAD[name]][column].format(number)
    if name.startswith(LAYER):
        return f"model.layers.{number}.{name.removeprefix(LAYER)}"
    return name


def _layer(number: int, column: int) -> str:
    return f"{'blk' if column == GGUF else 'model.layers'}.{number}."


def _head_layer(config: ModelConfig) -> Layer:
    layers = [one for one in config.layers if one.attention is not None]
    return replace(layers[-1], state=None, mtp=True)
