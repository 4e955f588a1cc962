"""What the metadata and tensors of encoders' GGUF files have in common."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lanewise.loading.base.checkpoint import ModelFileError, Role
from lanewise.loading.base.names import GGUF
from lanewise.loading.base.program import Dense, Gated, ModelConfig, Plain, Pooling, Rope
from lanewise.loading.base.sources import Sources, SourceTensor
from lanewise.loading.families.encoders import encoder_attention, give_norm_after, post_norm_model
from lanewise.loading.families.gguf_rope import gguf_rope
from lanewise.loading.families.naming import give_roles, usual
from lanewise.loading.files.rearranging import Rearranged
from lanewise.loading.programs.model_file import ModelFile
from lanewise.loading.vocabulary.gguf_text import TEMPLATE

# pooling_type by number; unspecified means the mean, as for directories.
POOLING_TYPES = {0: "mean", 1: "mean", 2: "cls", 3: "last"}
ANSWERS = ("yes", "no")  # logits that score the rows of generative models
OUTPUT_LABELS = "{arch}.classifier.output_labels"
RANK = 4  # a classifier's heads on the first row
HEADS = ("cls", "cls.output")
GGUF_TEMPLATE = f"{TEMPLATE}.rerank"  # has {query} and {document}
# Matrices with perhaps one row, which some programs write as vectors.
MAYBE_VECTORS = ("token_types.weight", *(f"{name}.weight" for name in HEADS))


def gguf_text_pooling(
    file: ModelFile, sources: dict[str, SourceTensor]
) -> tuple[Pooling | None, dict[str, SourceTensor]]:
    """Return the pooling of a generative model that makes vectors or scores; None if neither.

    Scores are the logits of yes and no, which then are the output head.
    """
    key = "{arch}.pooling_type"
    kind = file.integer(key, default=0, least=0)
    if kind == RANK:
        return Pooling("last", dense=(Dense(len(ANSWERS)),)), _with_answers(file, sources)
    if kind and kind not in POOLING_TYPES:
        raise file.fail(key, "0 to 4 of a model that is no encoder")
    return (Pooling(POOLING_TYPES[kind], normalize=True) if kind else None), sources


def labels_of(file: ModelFile, pooling: Pooling | None) -> list[str]:
    """Return the names of a classifier's scores; none of other models."""
    if file.integer("{arch}.pooling_type", default=0, least=0) != RANK or pooling is None:
        return []
    n_labels = pooling.dense[-1].outputs
    if not file.is_set(OUTPUT_LABELS):
        return [f"LABEL_{number}" for number in range(n_labels)]
    labels = file.raw(OUTPUT_LABELS)
    if not isinstance(labels, list) or not all(isinstance(one, str) for one in labels):
        raise file.fail(OUTPUT_LABELS, "a list of strings")
    if len(labels) != n_labels:
        raise file.fail(OUTPUT_LABELS, f"{n_labels}, as there are scores,")
    return labels


def _with_answers(file: ModelFile, sources: Sources) -> dict[str, SourceTensor]:
    """Return the tensors with the head of yes and no under its usual name."""
    if file.is_set(OUTPUT_LABELS) and file.raw(OUTPUT_LABELS) != list(ANSWERS):
        raise file.fail(OUTPUT_LABELS, f"{list(ANSWERS)}")
    name = f"{HEADS[1]}.weight"
    head = sources.get(name)
    if head is None or head.shape[:-1] != (len(ANSWERS),):
        raise ModelFileError(
            f"{file.source}: {file.key_of('{arch}.pooling_type')} is {RANK}; a tensor {name!r} of"
            f" {len(ANSWERS)} rows is needed, those of {' and '.join(ANSWERS)}"
        )
    if type(file.raw(GGUF_TEMPLATE)) is not str:
        raise file.fail(GGUF_TEMPLATE, "how a query and a document are written, a string,")
    others = {key: tensor for key, tensor in sources.items() if key != name}
    return others | {usual(Role.DENSE, 0, GGUF): head}


def gguf_pooling(file: ModelFile, head: Dense | None = None, classifies: str = "cls") -> Pooling:
    """Return the pooling, with the heads of a classifier.

    ``head`` is a classifier's first head (None: the one with tanh), ``classifies`` its pooling.
    """
    key = "{arch}.pooling_type"
    kind = file.integer(key, default=0, least=0)
    sources = with_matrices(file.tensors)
    heads = [sources.get(f"{name}.weight") for name in HEADS]
    if kind == RANK:
        if None in heads:
            raise ModelFileError(
                f"{file.source}: {file.key_of(key)} is {RANK}; tensors {HEADS} are needed"
            )
        dense = [
            Dense(head.shape[0], f"{name}.bias" in sources)
            for name, head in zip(HEADS, heads, strict=True)
            if head is not None
        ]
        return Pooling(classifies, dense=(head or replace(dense[0], activation="tanh"), dense[1]))
    if kind not in POOLING_TYPES:
        raise file.fail(key, "0 to 4")
    return Pooling(POOLING_TYPES[kind])


def gguf_encoder(
    file: ModelFile,
    name: str,
    ffn: Gated | Plain,
    theta: float | None = None,
    alibi: bool = False,
    **classifier: Any,
) -> ModelConfig:
    """Return the program of a post-norm encoder, with RoPE if it has a ``theta``.

    The tensors tell what fields of a config.json tell. ``classifier`` goes to gguf_pooling.
    """
    file = file.with_tensors(with_matrices(file.tensors))
    if file.flag("{arch}.attention.causal", default=True):
        raise file.fail("{arch}.attention.causal", "false")
    file.ignore("num_key_value_heads")
    attention = encoder_attention(file, rope=None if theta is None else 0, alibi=alibi)
    context = file.integer("max_position_embeddings")
    ropes: tuple[Rope, ...] = ()
    if theta is not None:
        rope, context = gguf_rope(file, attention.head_dim, theta)
        ropes = (rope,)
    types = file.tensors.get(usual(Role.TOKEN_TYPE_EMBEDDING, column=GGUF))
    pooling = gguf_pooling(file, **classifier)
    return replace(
        post_norm_model(file, name, attention, ffn, context, pooling),
        ropes=ropes,
        learned_positions=file.has(Role.POSITION_EMBEDDING),
        n_token_types=types.shape[0] if types is not None and types.shape else 0,
    )


def with_matrices(sources: Sources) -> dict[str, SourceTensor]:
    """Return the tensors with one-row matrices in two dimensions."""
    return {
        name: replace(one, shape=(1, *one.shape))
        if name in MAYBE_VECTORS and len(one.shape) == 1
        else one
        for name, one in sources.items()
    }


def gguf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Rename tensors; the norm after a layer becomes the norm before the next one."""
    tensors.out = with_matrices(tensors.out)
    give_roles(tensors, "token_embd_norm", Role.ATTN_NORM)
    for number in range(config.n_layers):
        give_roles(tensors, f"blk.{number}.attn_output_norm", Role.FFN_NORM, number)
        give_norm_after(tensors, f"blk.{number}.layer_output_norm", config, number)
    for number, head in enumerate(HEADS):
        give_roles(tensors, head, Role.DENSE, number)
