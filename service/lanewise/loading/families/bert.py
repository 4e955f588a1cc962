"""BERT: an encoder that normalizes after each addition; also JinaBERT v2, which has its name."""

from __future__ import annotations

from dataclasses import replace

from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.program import Gated, ModelConfig, Plain, Pooling
from lanewise.loading.families.common import curve
from lanewise.loading.families.encoders import (
    CLASSIFIER,
    POOLER,
    classifier_pooling,
    encoder_attention,
    encoder_family,
    give_outside_layers,
    give_post_norm_layers,
    post_norm_model,
)
from lanewise.loading.families.encoders_gguf import gguf_encoder, gguf_tensors
from lanewise.loading.families.naming import split_gate_and_up
from lanewise.loading.files.rearranging import Rearranged, without_prefixes
from lanewise.loading.programs.model_file import ModelFile

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
# Feed-forward types of JinaBERT, whose model_type is bert.
GATED = {"geglu": "gelu", "reglu": "relu"}
HEADS = (POOLER, CLASSIFIER)  # of classifiers
POSITIONS = "embeddings.position_embeddings.weight"


def program(file: ModelFile) -> ModelConfig:
    """Read a file; RoBERTa's and DistilBERT's GGUF files are of this kind too."""
    if file.is_gguf:
        model = gguf_encoder(file, "bert", Plain(file.integer("intermediate_size"), True))
        return model if model.n_token_types else with_relu_head(model)
    pooling = classifier_pooling(
        without_prefixes(file.tensors, PREFIXES), file.integer("hidden_size")
    )
    return bert_model(file, "bert", pooling, first_position=0)


def with_relu_head(model: ModelConfig) -> ModelConfig:
    """Return a model without types of tokens, DistilBERT, with its classifier's curve."""
    if model.pooling is None or not model.pooling.dense:
        return model
    first, *others = model.pooling.dense
    dense = (replace(first, activation="relu"), *others)
    return replace(model, pooling=replace(model.pooling, dense=dense))


def jina_program(file: ModelFile) -> ModelConfig:
    """Read a GGUF file of JinaBERT."""
    ffn = Gated(file.integer("intermediate_size"), activation="gelu", down_bias=True)
    return gguf_encoder(file, "bert", ffn, alibi=True)


def bert_model(file: ModelFile, name: str, pooling: Pooling, first_position: int) -> ModelConfig:
    """Return the program; the first ``first_position`` rows of the position table are unused."""
    positions_by = file.text("position_embedding_type", default="absolute")
    if positions_by not in ("absolute", "alibi"):
        raise file.fail("position_embedding_type", "'absolute' or 'alibi'")
    if file.flag("is_decoder", default=False):
        raise file.fail("is_decoder", "false")
    positions = file.integer("max_position_embeddings")
    if positions <= first_position:
        raise file.fail("max_position_embeddings", f"more than {first_position}")
    alibi = positions_by == "alibi"
    attention = encoder_attention(file, alibi=alibi)
    context = positions - first_position
    model = post_norm_model(file, name, attention, read_ffn(file), context, pooling)
    return replace(
        model,
        learned_positions=not alibi,
        n_token_types=file.integer("type_vocab_size", default=2),
    )


def read_ffn(file: ModelFile) -> Plain | Gated:
    """Return BERT's FFN, or JinaBERT's gated one."""
    size, kind = file.integer("intermediate_size"), file.text("feed_forward_type", "original")
    activation = curve(file, "hidden_act", "gelu")
    if kind == "original":
        return Plain(size, True, activation)
    if kind not in GATED:
        raise file.fail("feed_forward_type", f"'original', {' or '.join(map(repr, GATED))}")
    return Gated(size, activation=GATED[kind], down_bias=True)


def jina_gguf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Rename as for all encoders, and split gate and up where they are fused."""
    gguf_tensors(tensors, config)
    split_gate_and_up(tensors, config)


def hf_tensors(tensors: Rearranged, config: ModelConfig, heads: tuple[str, str] = HEADS) -> None:
    """Rename tensors; the norm after a layer becomes the norm before the next one.

    ``heads`` are the names of a classifier's heads.
    """
    tensors.remove_prefixes(*PREFIXES)
    give_outside_layers(tensors, config, heads)
    tensors.rename(POSITIONS, tensors.usual(Role.POSITION_EMBEDDING))
    for number in range(config.n_layers):
        size = config.ffn_size(number)
        parts = {tensors.usual(role, number): size for role in (Role.FFN_GATE, Role.FFN_UP)}
        tensors.split_rows(f"encoder.layer.{number}.mlp.gated_layers.weight", parts)
    for norm in ("output.LayerNorm", "mlp.layernorm"):
        give_post_norm_layers(tensors, config, "encoder.layer.{}.", OF_LAYER, norm)


FAMILY = encoder_family("bert", program, hf_tensors, "bert", gguf_tensors=gguf_tensors)
JINA = replace(FAMILY, gguf="jina-bert-v2", program=jina_program, gguf_tensors=jina_gguf_tensors)
