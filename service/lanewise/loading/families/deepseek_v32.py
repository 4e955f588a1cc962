"""DeepSeek V3.2: V3's layers, in which an index chooses the tokens that a query attends to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.program import Attention, ModelConfig
from lanewise.loading.families.common import check_values, model_of, trunk_layers_of
from lanewise.loading.families.deepseek_v2 import gguf_tensors, gguf_unscaled
from lanewise.loading.families.deepseek_v3 import MUST_BE, first_sparse_of
from lanewise.loading.families.experts import mixture_of, routed_experts_of, sparse_from
from lanewise.loading.families.family import Family
from lanewise.loading.families.latent import hf_latent_tensors, latent_attention_of
from lanewise.loading.files.rearranging import Rearranged, Rows
from lanewise.loading.programs.model_file import ModelFile
from lanewise.loading.programs.turned_rows import in_halves

KINDS = ("indexed_attention", "deepseek_sparse_attention")  # two names of one kind of layer
KEYS = (Role.INDEX_KEY, Role.INDEX_KEY_NORM, Role.INDEX_KEY_NORM_BIAS)
INDEX = (*KEYS, Role.INDEX_QUERY, Role.INDEX_WEIGHTS)


def program(file: ModelFile) -> ModelConfig:
    """Read a file."""
    return indexed_of(file, "deepseek_v32", [True] * trunk_layers_of(file))


def indexed_of(file: ModelFile, name: str, own: Sequence[bool]) -> ModelConfig:
    """Return the program; layers that have no index of their ``own`` use the one before."""
    check_values(file, MUST_BE)
    kinds, n_layers = file.raw("layer_types"), len(own)
    if kinds is not None and kinds not in [[kind] * n_layers for kind in KINDS]:
        raise file.fail("layer_types", f"{n_layers} times {' or '.join(map(repr, KINDS))}")
    experts = routed_experts_of(file, "sigmoid", renormalize=not file.is_gguf)
    is_sparse = sparse_from(file, first_sparse_of(file, 3))
    layers = mixture_of(file, latent_attention_of(file), experts, is_sparse)
    with_index = [
        replace(layer, attention=index_of(file, layer.attention, has_own))
        for layer, has_own in zip(layers, own, strict=True)
    ]
    config = model_of(file, name, with_index, own_kinds=True)
    return gguf_unscaled(file, config) if file.is_gguf else config


def index_of(file: ModelFile, attention: Attention | None, own: bool) -> Attention:
    """Return attention to the tokens that an index chooses, the layer's ``own`` or one before."""
    assert attention is not None
    heads, dim = file.integer("index_n_heads"), file.integer("index_head_dim")
    return replace(
        attention,
        index_topk=file.integer("index_topk"),
        index_heads=heads if own else 0,
        index_dim=dim if own else 0,
    )


def drop_unused_index(tensors: Rearranged, config: ModelConfig) -> None:
    """Leave out the tensors of an index that a layer does not use."""
    for number, layer in enumerate(config.layers):
        if layer.attention is not None and not layer.attention.index_heads:
            tensors.drop(*(tensors.usual(role, number) for role in INDEX))


def put_index_in_halves(tensors: Rearranged, config: ModelConfig) -> None:
    """Reorder rows of index queries and keys if files have RoPE's pairs side by side."""
    for number, layer in enumerate(config.layers):
        attention = layer.attention
        if attention is None or not attention.index_heads:
            continue
        for role in (Role.INDEX_QUERY, *KEYS):
            heads = attention.index_heads if role is Role.INDEX_QUERY else 1
            rows = in_halves(heads, attention.index_dim, attention.rope_dim)
            name = tensors.usual(role, number)

            def parts(_: Rows, name: str = name, rows: Rows = rows) -> Mapping[str, Rows]:
                return {name: rows}

            tensors.take_rows(name, len(rows), parts)


def hf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Rename and split matrices; drop the index of a prediction head."""
    hf_latent_tensors(tensors, config)
    drop_unused_index(tensors, config)


def indexed_gguf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Reshape the matrices of heads and experts; drop the index of a prediction head."""
    gguf_tensors(tensors, config)
    drop_unused_index(tensors, config)


FAMILY = Family(
    "deepseek_v32",
    program,
    "deepseek32",
    hf_tensors=hf_tensors,
    gguf_tensors=indexed_gguf_tensors,
    gguf_interleaved_rope=True,
    hf_interleaved_rope=True,
    gguf_is_usual=False,
    has_mtp=True,
)
