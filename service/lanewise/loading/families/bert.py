"""BERT: an encoder that normalizes after each addition; JinaBERT v2, which has the same name."""

from __future__ import annotations

from dataclasses import replace

from lanewise.loading.checkpoint import Role
from lanewise.loading.families.common import hf_n_layers
from lanewise.loading.families.encoders import (
    CLASSIFIER,
    POOLER,
    classifier_pooling,
    curve,
    encoder_attention,
    encoder_family,
    give_roles,
    layers_after,
    norm_eps,
    plain_names,
    usual,
)
from lanewise.loading.families.encoders_gguf import gguf_encoder, gguf_tensors
from lanewise.loading.json_files import Fields
from lanewise.loading.program import Gated, ModelConfig, Plain, Pooling
from lanewise.loading.rearranging import Rearranged
from lanewise.loading.sources import Sources, SourceTensor

PREFIXES = ("bert.", "roberta.")
OF_LAYER = {
    "attention.self.query": (Role.ATTN_Q, Role.ATTN_Q_BIAS),
    "attention.self.key": (Role.ATTN_K, Role.ATTN_K_BIAS),
    "attention.self.value": (Role.ATTN_V, Role.ATTN_V_BIAS),
    "attention.output.dense": (Role.ATTN_OUTPUT, Role.ATTN_OUTPUT_BIAS),
    "attention.output.LayerNorm": (Role.FFN_NORM, Role.FFN_NORM_BIAS),
    "intermediate.dense": (Role.FFN_UP, Role.FFN_UP_BIAS),
    "output.dense": (Role.FFN_DOWN, Role.FFN_DOWN_BIAS),
    "mlp.wo": (Role.FFN_DOWN, Role.FFN_DOWN_BIAS),
}
# Of JinaBERT, which is a BERT by name.
GATED = {"geglu": "gelu", "reglu": "relu"}
EMBEDDINGS = {
    "word_embeddings": Role.TOKEN_EMBEDDING,
    "position_embeddings": Role.POSITION_EMBEDDING,
    "token_type_embeddings": Role.TOKEN_TYPE_EMBEDDING,
}
HEADS = (POOLER, CLASSIFIER)  # of classifiers
# Tensors that an embedder has for nothing.
UNUSED = ("embeddings.position_ids", "embeddings.token_type_ids")
UNUSED_PREFIXES = ("cls.", "lm_head.", "pooler.")


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
    return ModelConfig(
        architecture=name,
        hidden_size=fields.integer("hidden_size"),
        vocab_size=fields.integer("vocab_size"),
        context_length=positions - first_position,
        rms_norm_eps=norm_eps(fields),
        tied_embeddings=True,
        ropes=(),
        layers=layers_after(attention, read_ffn(fields), hf_n_layers(fields, sources)),
        norm="layer",
        norm_bias=True,
        pooling=pooling,
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


def hf_tensors(
    sources: Sources, config: ModelConfig, heads: tuple[str, str] = HEADS
) -> dict[str, SourceTensor]:
    """Give tensors their usual names; the norms after additions are those before the next.

    ``heads`` are those of classifiers.
    """
    tensors = Rearranged(plain_names(sources, PREFIXES))
    tensors.drop(*UNUSED)
    for name, role in EMBEDDINGS.items():
        tensors.rename(f"embeddings.{name}.weight", usual(role))
    give_roles(tensors, "embeddings.LayerNorm", Role.ATTN_NORM, Role.ATTN_NORM_BIAS)
    for number in range(config.n_layers):
        folder = f"encoder.layer.{number}"
        size = config.layers[number].ffn.size
        parts = {usual(role, number): size for role in (Role.FFN_GATE, Role.FFN_UP)}
        tensors.split_rows(f"{folder}.mlp.gated_layers.weight", parts)
        for name, (weight, bias) in OF_LAYER.items():
            give_roles(tensors, f"{folder}.{name}", weight, bias, number)
        last = number + 1 == config.n_layers
        roles = (Role.OUTPUT_NORM, Role.OUTPUT_NORM_BIAS)
        if not last:
            roles = (Role.ATTN_NORM, Role.ATTN_NORM_BIAS)
        for norm in ("output.LayerNorm", "mlp.layernorm"):
            give_roles(tensors, f"{folder}.{norm}", *roles, 0 if last else number + 1)
    assert config.pooling is not None
    if config.pooling.dense:
        for number, name in enumerate(heads):
            give_roles(tensors, name, Role.DENSE, Role.DENSE_BIAS, number)
    tensors.drop(*(name for name in tensors.out if name.startswith(UNUSED_PREFIXES)))
    return tensors.out


FAMILY = replace(
    encoder_family("bert", from_hf, hf_tensors),
    gguf="bert",
    from_gguf=from_gguf,
    gguf_tensors=gguf_tensors,
)
