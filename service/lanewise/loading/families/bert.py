"""BERT: an encoder that normalizes after each addition; JinaBERT v2, which has the same name."""

from __future__ import annotations

from dataclasses import replace

from lanewise.loading.checkpoint import Role
from lanewise.loading.families.common import curve
from lanewise.loading.families.encoders import (
    CLASSIFIER,
    POOLER,
    classifier_pooling,
    encoder_attention,
    encoder_family,
    give_norm_after,
    give_outside_layers,
    plain_names,
    post_norm_model,
)
from lanewise.loading.families.encoders_gguf import gguf_encoder, gguf_tensors
from lanewise.loading.families.naming import give_roles, split_roles, usual
from lanewise.loading.json_files import Fields
from lanewise.loading.names import GGUF
from lanewise.loading.program import Gated, ModelConfig, Plain, Pooling
from lanewise.loading.rearranging import Rearranged
from lanewise.loading.sources import Sources, SourceTensor

PREFIXES = ("bert.", "roberta.")
OF_LAYER = {
    "attention.self.query": Role.ATTN_Q,
    "attention.self.key": Role.ATTN_K,
    "attention.self.value": Role.ATTN_V,
    "attention.output.dense": Role.ATTN_OUTPUT,
    "attention.output.LayerNorm": Role.FFN_NORM,
    "intermediate.dense": Role.FFN_UP,
    "output.dense": Role.FFN_DOWN,
    "mlp.wo": Role.FFN_DOWN,
}
# Of JinaBERT, which is a BERT by name.
GATED = {"geglu": "gelu", "reglu": "relu"}
HEADS = (POOLER, CLASSIFIER)  # of classifiers
POSITIONS = "embeddings.position_embeddings.weight"


def from_hf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read config.json."""
    tensors = plain_names(sources, PREFIXES)
    pooling = classifier_pooling(tensors, fields.integer("hidden_size"))
    return bert_model(fields, sources, "bert", pooling, first_position=0)


def bert_model(
    fields: Fields, sources: Sources, name: str, pooling: Pooling, first_position: int
) -> ModelConfig:
    """Return the whole of a model whose table of positions has ``first_position`` unused rows."""
    positions_by = fields.text("position_embedding_type", default="absolute")
    if positions_by not in ("absolute", "alibi"):
        raise fields.fail("position_embedding_type", "'absolute' or 'alibi'")
    if fields.flag("is_decoder", default=False):
        raise fields.fail("is_decoder", "false")
    positions = fields.integer("max_position_embeddings")
    if positions <= first_position:
        raise fields.fail("max_position_embeddings", f"more than {first_position}")
    alibi = positions_by == "alibi"
    attention = replace(encoder_attention(fields), alibi=alibi)
    context = positions - first_position
    model = post_norm_model(fields, sources, name, attention, read_ffn(fields), context, pooling)
    return replace(
        model,
        learned_positions=not alibi,
        n_token_types=fields.integer("type_vocab_size", default=2),
    )


def read_ffn(fields: Fields) -> Plain | Gated:
    """Return BERT's FFN, or a gated one as JinaBERT has it."""
    size, kind = fields.integer("intermediate_size"), fields.text("feed_forward_type", "original")
    activation = curve(fields, "hidden_act", "gelu")
    if kind == "original":
        return Plain(size, True, activation)
    if kind not in GATED:
        raise fields.fail("feed_forward_type", f"'original', {' or '.join(map(repr, GATED))}")
    return Gated(size, activation=GATED[kind], down_bias=True)


def from_gguf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read metadata, which RoBERTa's files have of the same kind."""
    ffn = Plain(fields.integer("bert.feed_forward_length"), True)
    return gguf_encoder(fields, sources, "bert", ffn)


def from_jina_gguf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read metadata of JinaBERT's files."""
    ffn = Gated(
        fields.integer("jina-bert-v2.feed_forward_length"), activation="gelu", down_bias=True
    )
    return gguf_encoder(fields, sources, "bert", ffn, alibi=True)


def jina_gguf_tensors(sources: Sources, config: ModelConfig) -> Sources:
    """Do what all encoders' files need, and take gate and up apart where they are one."""
    tensors = Rearranged(gguf_tensors(sources, config))
    for number in range(config.n_layers):
        if usual(Role.FFN_GATE, number, GGUF) not in tensors.out:
            halves, size = (Role.FFN_GATE, Role.FFN_UP), config.ffn_size(number)
            split_roles(tensors, f"blk.{number}.ffn_up", halves, size, number, GGUF)
    return tensors.out


def hf_tensors(
    sources: Sources, config: ModelConfig, heads: tuple[str, str] = HEADS
) -> dict[str, SourceTensor]:
    """Give tensors their usual names; the norms after additions are those before the next.

    ``heads`` are those of classifiers.
    """
    tensors = Rearranged(plain_names(sources, PREFIXES))
    give_outside_layers(tensors, config, heads)
    tensors.rename(POSITIONS, usual(Role.POSITION_EMBEDDING))
    for number in range(config.n_layers):
        folder = f"encoder.layer.{number}"
        size = config.ffn_size(number)
        parts = {usual(role, number): size for role in (Role.FFN_GATE, Role.FFN_UP)}
        tensors.split_rows(f"{folder}.mlp.gated_layers.weight", parts)
        for name, role in OF_LAYER.items():
            give_roles(tensors, f"{folder}.{name}", role, number)
        for norm in ("output.LayerNorm", "mlp.layernorm"):
            give_norm_after(tensors, f"{folder}.{norm}", config, number)
    return tensors.out


FAMILY = replace(
    encoder_family("bert", from_hf, hf_tensors),
    gguf="bert",
    from_gguf=from_gguf,
    gguf_tensors=gguf_tensors,
)
JINA = replace(
    FAMILY,
    gguf="jina-bert-v2",
    from_gguf=from_jina_gguf,
    gguf_tensors=jina_gguf_tensors,
)
