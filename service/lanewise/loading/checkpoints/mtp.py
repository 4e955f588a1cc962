"""The multi-token prediction head of some models, which is read on request.

In files it is one more layer after the others, ignored by most readers. Two norms feed a
projection, then comes a layer like the model's last attention layer, then a norm. It shares
embedding and output matrix with the model.
"""

from __future__ import annotations

from dataclasses import replace

from lanewise.loading.base.checkpoint import ModelFileError, Role
from lanewise.loading.base.names import GGUF, HF, TENSOR_NAMES
from lanewise.loading.base.program import Layer, ModelConfig
from lanewise.loading.base.sources import Sources, SourceTensor
from lanewise.loading.families.family import Family
from lanewise.loading.files.rearranging import Rearranged

# Tensor prefixes in Qwen's directories, instead of "model.layers.{}.".
PREFIX = "mtp."
LAYER = "mtp.layers.0."
OF_HEAD = {
    "mtp.fc.weight": Role.MTP_PROJECTION,
    "mtp.pre_fc_norm_embedding.weight": Role.MTP_EMBEDDING_NORM,
    "mtp.pre_fc_norm_hidden.weight": Role.MTP_HIDDEN_NORM,
    "mtp.norm.weight": Role.MTP_NORM,
}
# Copies of the model's embedding and output matrix that some files contain.
COPIES = (
    ("nextn.embed_tokens.weight", "embed_tokens.weight"),
    ("nextn.shared_head_head.weight", "shared_head.head.weight"),
)


def with_mtp(
    family: Family, config: ModelConfig, sources: Sources, column: int, where: str
) -> tuple[ModelConfig, dict[str, SourceTensor]]:
    """Return the program with the head as its last layer, and its tensors named as that layer's.

    ``column`` is HF or GGUF. ModelFileError if there is no head.
    """
    if not family.has_mtp:
        raise ModelFileError(
            f"{where}: mtp asks for a multi-token prediction head, which is not supported for"
            f" {family.name} models; accepted: qwen3_5, qwen3_5_moe, qwen3_next, glm4_moe,"
            " glm4_moe_lite, glm_moe_dsa, deepseek_v2, deepseek_v3 or deepseek_v32 files with such"
            " a head"
        )
    number = config.n_layers
    named = {_usual(name, number, column): tensor for name, tensor in sources.items()}
    projection = TENSOR_NAMES[Role.MTP_PROJECTION][column].format(number)
    if projection not in named:
        own = "mtp.fc.weight or " if column == HF else ""
        raise ModelFileError(
            f"{where}: mtp asks for a multi-token prediction head, which this file does not have;"
            f" accepted: a file with {own}{projection}"
        )
    own_part, second = (PREFIX if column == HF else "-"), _layer(number + 1, column)
    more = [name for name in named if name.startswith((own_part, second))]
    if more:
        raise ModelFileError(
            f"{where}: tensor {min(more)!r} belongs to a second multi-token prediction head, or to"
            " one with its own embedding; accepted: one head that shares the model's embedding"
        )
    for copy in COPIES:
        named.pop(f"{_layer(number, column)}{copy[column]}", None)
    norm = TENSOR_NAMES[Role.MTP_NORM][column].format(number)
    if norm not in named and column == GGUF:  # the head then shares the model's norm
        named[norm] = named[TENSOR_NAMES[Role.OUTPUT_NORM][column]]
    head = _head_layer(config)
    return replace(config, layers=(*config.layers, head)), named


def with_mtp_if_there(
    family: Family, config: ModelConfig, sources: dict[str, SourceTensor], column: int, where: str
) -> tuple[ModelConfig, dict[str, SourceTensor]]:
    """As ``with_mtp``, but without a head return program and tensors unchanged."""
    try:
        return with_mtp(family, config, sources, column, where)
    except ModelFileError:
        return config, sources


def without_mtp(config: ModelConfig, sources: Sources) -> tuple[ModelConfig, Sources]:
    """Remove the head from program and tensors of a packed or quantized file."""
    layers = config.layers[:-1]
    tensors = Rearranged(sources)
    tensors.drop_layers_from(len(layers))
    return replace(config, layers=layers), tensors.out


def _usual(name: str, number: int, column: int) -> str:
    """Return the name of a head's tensor as one of layer ``number``; other names unchanged."""
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
    """Return a layer like the last one with attention; without an index it attends to all tokens.

    Guesses change no answer, and the cost of one layer's attention is small.
    """
    layer = [one for one in config.layers if one.attention is not None][-1]
    assert layer.attention is not None
    attention = replace(
        layer.attention, index_topk=0, index_heads=0, index_dim=0, index_block=0, index_local=0
    )
    return replace(layer, attention=attention, state=None, mtp=True)
