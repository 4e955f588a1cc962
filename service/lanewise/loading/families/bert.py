"""BERT and RoBERTa: encoders that normalize after each addition, with learned positions."""

from __future__ import annotations

from lanewise.loading.checkpoint import Role
from lanewise.loading.families.common import hf_n_layers
from lanewise.loading.families.encoders import (
    curve,
    encoder_attention,
    layers_after,
    norm_eps,
    plain_names,
    usual,
)
from lanewise.loading.families.family import Family
from lanewise.loading.json_files import Fields
from lanewise.loading.program import Dense, ModelConfig, Plain, Pooling
from lanewise.loading.rearranging import Rearranged
from lanewise.loading.sources import Sources

PREFIXES = ("bert.", "roberta.")
OF_LAYER = {
    "attention.self.query": (Role.ATTN_Q, Role.ATTN_Q_BIAS),
    "attention.self.key": (Role.ATTN_K, Role.ATTN_K_BIAS),
    "attention.self.value": (Role.ATTN_V, Role.ATTN_V_BIAS),
    "attention.output.dense": (Role.ATTN_OUTPUT, Role.ATTN_OUTPUT_BIAS),
    "attention.output.LayerNorm": (Role.FFN_NORM, Role.FFN_NORM_BIAS),
    "intermediate.dense": (Role.FFN_UP, Role.FFN_UP_BIAS),
    "output.dense": (Role.FFN_DOWN, Role.FFN_DOWN_BIAS),
}
EMBEDDINGS = {
    "word_embeddings": Role.TOKEN_EMBEDDING,
    "position_embeddings": Role.POSITION_EMBEDDING,
    "token_type_embeddings": Role.TOKEN_TYPE_EMBEDDING,
}
# Dense heads of classifiers, in both families, and the tensors that an embedder has for nothing.
POOLER, CLASSIFIER = "pooler.dense", "classifier"
ROBERTA_HEADS = ("classifier.dense", "classifier.out_proj")
UNUSED = ("embeddings.position_ids", "embeddings.token_type_ids")
UNUSED_PREFIXES = ("cls.", "lm_head.", "pooler.")
PADDING = 1  # RoBERTa's positions begin after the number of the padding token


def from_hf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read a BERT's config.json."""
    tensors = plain_names(sources, PREFIXES)
    pooling = Pooling()
    if f"{CLASSIFIER}.weight" in tensors:
        hidden = fields.integer("hidden_size")
        pooling = Pooling("cls", dense=(Dense(hidden, True, "tanh"), classifier(tensors)))
    return _encoder(fields, sources, "bert", pooling, first_position=0)


def from_hf_roberta(fields: Fields, sources: Sources) -> ModelConfig:
    """Read the config.json of a RoBERTa or XLM-RoBERTa."""
    tensors = plain_names(sources, PREFIXES)
    pooling, hidden = Pooling(), fields.integer("hidden_size")
    if f"{ROBERTA_HEADS[1]}.weight" in tensors:
        labels = classifier(tensors, ROBERTA_HEADS[1])
        pooling = Pooling("cls", dense=(Dense(hidden, True, "tanh"), labels))
    padding = fields.integer("pad_token_id", default=PADDING, least=0)
    name = fields.text("model_type")
    return _encoder(fields, sources, name, pooling, first_position=padding + 1)


def classifier(sources: Sources, name: str = CLASSIFIER) -> Dense:
    """Return the dense head that scores are made with: an output for each label."""
    shape = sources[f"{name}.weight"].shape
    return Dense(shape[0] if shape else 1, bias=f"{name}.bias" in sources)


def _encoder(
    fields: Fields, sources: Sources, name: str, pooling: Pooling, first_position: int
) -> ModelConfig:
    fields.ignore("gradient_checkpointing", "architectures")
    if fields.text("position_embedding_type", default="absolute") != "absolute":
        raise fields.fail("position_embedding_type", "'absolute'")
    if fields.flag("is_decoder", default=False):
        raise fields.fail("is_decoder", "false")
    positions = fields.integer("max_position_embeddings")
    if positions <= first_position:
        raise fields.fail("max_position_embeddings", f"more than {first_position}")
    ffn = Plain(fields.integer("intermediate_size"), True, curve(fields, "hidden_act", "gelu"))
    return ModelConfig(
        architecture=name,
        hidden_size=fields.integer("hidden_size"),
        vocab_size=fields.integer("vocab_size"),
        context_length=positions - first_position,
        rms_norm_eps=norm_eps(fields),
        tied_embeddings=True,
        ropes=(),
        layers=layers_after(encoder_attention(fields), ffn, hf_n_layers(fields, sources)),
        norm="layer",
        norm_bias=True,
        pooling=pooling,
        learned_positions=True,
        n_token_types=fields.integer("type_vocab_size", default=2),
    )


def hf_tensors(sources: Sources, config: ModelConfig) -> Sources:
    """Give tensors their usual names; the norms after additions are those before the next."""
    tensors = Rearranged(plain_names(sources, PREFIXES))
    tensors.drop(*UNUSED)
    for name, role in EMBEDDINGS.items():
        tensors.rename(f"embeddings.{name}.weight", usual(role))
    _norm(tensors, "embeddings.LayerNorm", Role.ATTN_NORM, Role.ATTN_NORM_BIAS, 0)
    for number in range(config.n_layers):
        folder = f"encoder.layer.{number}"
        for name, (weight, bias) in OF_LAYER.items():
            _norm(tensors, f"{folder}.{name}", weight, bias, number)
        last = number + 1 == config.n_layers
        roles = (Role.OUTPUT_NORM, Role.OUTPUT_NORM_BIAS)
        if not last:
            roles = (Role.ATTN_NORM, Role.ATTN_NORM_BIAS)
        _norm(tensors, f"{folder}.output.LayerNorm", *roles, 0 if last else number + 1)
    assert config.pooling is not None
    if config.pooling.dense:
        heads = (POOLER, CLASSIFIER) if config.architecture == "bert" else ROBERTA_HEADS
        for number, name in enumerate(heads):
            _norm(tensors, name, Role.DENSE, Role.DENSE_BIAS, number)
    tensors.drop(*(name for name in tensors.out if name.startswith(UNUSED_PREFIXES)))
    return tensors.out


def hf_tensors_roberta(sources: Sources, config: ModelConfig) -> Sources:
    """Do the same, without the rows of positions that no token has."""
    tensors = Rearranged(hf_tensors(sources, config))
    name = usual(Role.POSITION_EMBEDDING)
    rows = tensors.out[name].shape[0] if name in tensors.out else 0
    if rows > config.context_length:
        tensors.drop_rows(name, rows - config.context_length)
    return tensors.out


def _norm(tensors: Rearranged, name: str, weight: Role, bias: Role, number: int) -> None:
    tensors.rename(f"{name}.weight", usual(weight, number))
    tensors.rename(f"{name}.bias", usual(bias, number))


FAMILY = Family("bert", from_hf, hf_tensors=hf_tensors, gguf_is_usual=False)
ROBERTA = Family("roberta", from_hf_roberta, hf_tensors=hf_tensors_roberta, gguf_is_usual=False)
XLM_ROBERTA = Family(
    "xlm-roberta", from_hf_roberta, hf_tensors=hf_tensors_roberta, gguf_is_usual=False
)
