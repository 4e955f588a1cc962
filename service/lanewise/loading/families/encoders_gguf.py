"""What the metadata and tensors of encoders' GGUF files have in common."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lanewise.loading.checkpoint import ModelFileError, Role
from lanewise.loading.checks import check_heads
from lanewise.loading.families.common import has
from lanewise.loading.families.encoders import give_norm_after, layers_after
from lanewise.loading.families.gguf import (
    arch_of,
    gguf_n_layers,
    gguf_qkv_bias,
    gguf_rope,
    gguf_uniform,
)
from lanewise.loading.families.naming import give_roles, usual
from lanewise.loading.formats import round_to_f32
from lanewise.loading.gguf_text import TEMPLATE
from lanewise.loading.json_files import Fields
from lanewise.loading.names import GGUF
from lanewise.loading.program import Attention, Dense, Gated, ModelConfig, Plain, Pooling, Rope
from lanewise.loading.rearranging import Rearranged
from lanewise.loading.sources import Sources, SourceTensor

# pooling_type by number; what says nothing is the mean, as for directories.
POOLING_TYPES = {0: "mean", 1: "mean", 2: "cls", 3: "last"}
ANSWERS = ("yes", "no")  # what scores the rows of models that wrote text
RANK = 4  # a classifier's heads, of the first row
HEADS = ("cls", "cls.output")
GGUF_TEMPLATE = f"{TEMPLATE}.rerank"  # has {query} and {document}
# Matrices that may have one row, which some programs write as vectors.
MAYBE_VECTORS = ("token_types.weight", *(f"{name}.weight" for name in HEADS))


def gguf_text_pooling(
    fields: Fields, sources: dict[str, SourceTensor]
) -> tuple[Pooling | None, dict[str, SourceTensor]]:
    """Return how rows are pooled of a model that wrote text before it made vectors; None: it does.

    Of one whose rows are scored the scores are the logits of yes and no, which it has a head for.
    """
    arch = arch_of(fields)
    key = f"{arch}.pooling_type"
    kind = fields.integer(key, default=0, least=0)
    if kind == RANK:
        return Pooling("last", dense=(Dense(len(ANSWERS)),)), _with_answers(fields, sources)
    if kind and kind not in POOLING_TYPES:
        raise fields.fail(key, "0 to 4 of a model that is no encoder")
    return (Pooling(POOLING_TYPES[kind], normalize=True) if kind else None), sources


def _with_answers(fields: Fields, sources: Sources) -> dict[str, SourceTensor]:
    """Return the tensors with the head of yes and no under its usual name."""
    labels = f"{arch_of(fields)}.classifier.output_labels"
    if fields.is_set(labels) and fields.raw(labels) != list(ANSWERS):
        raise fields.fail(labels, f"{list(ANSWERS)}")
    name = f"{HEADS[1]}.weight"
    head = sources.get(name)
    if head is None or head.shape[:-1] != (len(ANSWERS),):
        raise ModelFileError(
            f"{fields.source}: {arch_of(fields)}.pooling_type is {RANK}; a tensor {name!r} of"
            f" {len(ANSWERS)} rows is needed, those of {' and '.join(ANSWERS)}"
        )
    if type(fields.raw(GGUF_TEMPLATE)) is not str:
        raise fields.fail(GGUF_TEMPLATE, "how a query and a document are written, a string,")
    others = {key: tensor for key, tensor in sources.items() if key != name}
    return others | {usual(Role.DENSE, 0, GGUF): head}


def gguf_pooling(
    fields: Fields, sources: Sources, head: Dense | None = None, classifies: str = "cls"
) -> Pooling:
    """Return how rows are pooled, and the heads of a classifier.

    ``head`` is a classifier's first one, None: with tanh, and ``classifies`` its kind of pooling.
    """
    key = f"{arch_of(fields)}.pooling_type"
    kind = fields.integer(key, default=0, least=0)
    sources = with_matrices(sources)
    heads = [sources.get(f"{name}.weight") for name in HEADS]
    if kind == RANK:
        if None in heads:
            raise ModelFileError(f"{fields.source}: {key} is {RANK}; tensors {HEADS} are needed")
        dense = [
            Dense(head.shape[0], f"{name}.bias" in sources)
            for name, head in zip(HEADS, heads, strict=True)
            if head is not None
        ]
        return Pooling(classifies, dense=(head or replace(dense[0], activation="tanh"), dense[1]))
    if kind not in POOLING_TYPES:
        raise fields.fail(key, "0 to 4")
    return Pooling(POOLING_TYPES[kind])


def gguf_encoder(
    fields: Fields,
    sources: Sources,
    name: str,
    ffn: Gated | Plain,
    theta: float | None = None,
    alibi: bool = False,
    **classifier: Any,
) -> ModelConfig:
    """Return a model that normalizes after each addition, with RoPE if it has a ``theta``.

    ``classifier`` is what :func:`gguf_pooling` takes.
    """
    arch = arch_of(fields)
    sources = with_matrices(sources)
    fields.ignore(f"{arch}.vocab_size")
    if fields.flag(f"{arch}.attention.causal", default=True):
        raise fields.fail(f"{arch}.attention.causal", "false")
    embedding = sources.get("token_embd.weight")
    types, positions = (sources.get(f"{one}.weight") for one in ("token_types", "position_embd"))
    if embedding is None or len(embedding.shape) != 2:
        raise ModelFileError(f"{fields.source}: missing tensor 'token_embd.weight'")
    hidden = fields.integer(f"{arch}.embedding_length")
    n_heads = gguf_uniform(fields, f"{arch}.attention.head_count")
    fields.ignore(f"{arch}.attention.head_count_kv")
    attention = Attention(
        n_heads,
        n_heads,
        hidden // n_heads,
        rope=None if theta is None else 0,
        both_ways=True,
        qkv_bias=gguf_qkv_bias(sources),
        output_bias=has(sources, Role.ATTN_OUTPUT_BIAS, GGUF),
        alibi=alibi,
    )
    check_heads(attention, fields.source)
    context = fields.integer(f"{arch}.context_length")
    ropes: tuple[Rope, ...] = ()
    if theta is not None:
        rope, context = gguf_rope(fields, sources, attention.head_dim, theta, truncate=True)
        ropes = (rope,)
    eps = fields.number(f"{arch}.attention.layer_norm_epsilon")
    return ModelConfig(
        architecture=name,
        hidden_size=hidden,
        vocab_size=embedding.shape[0],
        context_length=context,
        rms_norm_eps=round_to_f32(eps),
        tied_embeddings=True,
        ropes=ropes,
        layers=layers_after(attention, ffn, gguf_n_layers(fields, sources)),
        norm="layer",
        norm_bias=True,
        pooling=gguf_pooling(fields, sources, **classifier),
        learned_positions=positions is not None,
        n_token_types=types.shape[0] if types is not None and types.shape else 0,
    )


def with_matrices(sources: Sources) -> Sources:
    """Return tensors of which matrices of one row have two dimensions."""
    return {
        name: replace(one, shape=(1, *one.shape))
        if name in MAYBE_VECTORS and len(one.shape) == 1
        else one
        for name, one in sources.items()
    }


def gguf_tensors(sources: Sources, config: ModelConfig) -> Sources:
    """Give tensors their usual names; the norms after additions are those before the next."""
    tensors = Rearranged(with_matrices(sources))
    give_roles(tensors, "token_embd_norm", Role.ATTN_NORM, column=GGUF)
    for number in range(config.n_layers):
        give_roles(tensors, f"blk.{number}.attn_output_norm", Role.FFN_NORM, number, GGUF)
        give_norm_after(tensors, f"blk.{number}.layer_output_norm", config, number, GGUF)
    for number, head in enumerate(HEADS):
        give_roles(tensors, head, Role.DENSE, number, GGUF)
    return tensors.out
