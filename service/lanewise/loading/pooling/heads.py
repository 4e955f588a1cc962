"""Whether a model has an output head of its own: its tensors decide, not its config."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from lanewise.loading.base.checkpoint import ModelFileError, Role
from lanewise.loading.base.names import HF, TENSOR_NAMES
from lanewise.loading.base.program import Dense, ModelConfig, Pooling
from lanewise.loading.base.sources import SourceTensor

COMPARED_BYTES = 16 << 20  # compared at a time
SCORE = "score.weight"  # [labels, hidden], in place of the output head
SCORES = "ForSequenceClassification"  # suffix of architectures that score texts or pairs
Sources = dict[str, SourceTensor]


def with_embedding(sources: Sources, column: int) -> Sources:
    """Return tensors with an embedding; if only the head is there, it serves as both."""
    embedding, head = (TENSOR_NAMES[r][column] for r in (Role.TOKEN_EMBEDDING, Role.OUTPUT))
    if head in sources and embedding not in sources:
        return {name: t for name, t in sources.items() if name != head} | {embedding: sources[head]}
    return sources


def settle_head(config: ModelConfig, sources: Sources) -> tuple[ModelConfig, Sources]:
    """Drop a head that equals the embedding; use one that differs, whatever the config says.

    Where the file had no embedding, the head has been copied to it before.
    """
    embedding, head = (TENSOR_NAMES[r][HF] for r in (Role.TOKEN_EMBEDDING, Role.OUTPUT))
    if head not in sources or not config.tied_embeddings:
        return config, sources
    if embedding not in sources or not is_same(sources[embedding], sources[head]):
        return replace(config, tied_embeddings=False), sources
    return config, {name: tensor for name, tensor in sources.items() if name != head}


def with_pooling(
    config: ModelConfig, sources: Sources, pooling: Pooling | None, column: int
) -> tuple[ModelConfig, Sources]:
    """Replace the output head by pooling; a pooled model is left as it is."""
    if pooling is None or config.pooling is not None:
        return config, sources
    head = TENSOR_NAMES[Role.OUTPUT][column]
    kept = {name: tensor for name, tensor in sources.items() if name != head}
    return replace(config, pooling=pooling), kept


def take_scores(
    config: ModelConfig, sources: Sources, source: str
) -> tuple[ModelConfig, Sources, Sources]:
    """Make a generative model score its last row, and return its score head separately.

    The third result has the head under its usual name. ModelFileError if it is missing.
    """
    head = sources.get(SCORE)
    if head is None or len(head.shape) != 2:
        shown = "missing" if head is None else f"of shape {list(head.shape)}"
        raise ModelFileError(
            f"{source}: tensor {SCORE!r} is {shown}; a model whose architecture ends in {SCORES}"
            " needs one with a row for each label"
        )
    pooling = Pooling("last", dense=(Dense(head.shape[0]),))
    kept = {name: tensor for name, tensor in sources.items() if name != SCORE}
    config, kept = with_pooling(config, kept, pooling, HF)
    return config, kept, {TENSOR_NAMES[Role.DENSE][HF].format(0): head}


def is_same(one: SourceTensor, other: SourceTensor) -> bool:
    """Return whether two tensors have the same bytes."""
    if (one.shape, one.type, one.n_bytes) != (other.shape, other.type, other.n_bytes):
        return False
    first, second = (np.frombuffer(tensor.view(), np.uint8) for tensor in (one, other))
    places = (slice(at, at + COMPARED_BYTES) for at in range(0, one.n_bytes, COMPARED_BYTES))
    return all(np.array_equal(first[place], second[place]) for place in places)
