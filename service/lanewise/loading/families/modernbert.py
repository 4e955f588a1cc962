"""ModernBERT: norms before each branch, RoPE, GeGLU, and layers that see neighbours only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lanewise.loading.checkpoint import Role
from lanewise.loading.families.common import KINDS, curve, hf_kinds, hf_n_layers, hf_ropes_of_kinds
from lanewise.loading.families.encoders import (
    CLASSIFIER,
    classifier,
    encoder_attention,
    encoder_family,
    give_heads,
    layers_by_turns,
    norm_eps,
    plain_names,
)
from lanewise.loading.families.encoders_gguf import (
    HEADS,
    POOLING_TYPES,
    gguf_encoder,
    gguf_tensors,
)
from lanewise.loading.families.gguf import gguf_windows
from lanewise.loading.families.naming import QKV, give_roles, split_roles, usual
from lanewise.loading.formats import round_to_f32
from lanewise.loading.json_files import Fields
from lanewise.loading.names import GGUF
from lanewise.loading.program import Attention, Dense, Gated, Layer, ModelConfig, Pooling
from lanewise.loading.rearranging import Rearranged
from lanewise.loading.sources import Sources

PREFIXES = ("model.",)
OLD_THETAS = {"full_attention": "global_rope_theta", "sliding_attention": "local_rope_theta"}
THETAS = {"full_attention": 160000.0, "sliding_attention": 10000.0}
HEAD = "head.dense"
CLASSIFY_BY = ("cls", "mean")
OF_LAYER = {
    "attn.Wo": Role.ATTN_OUTPUT,
    "mlp.Wo": Role.FFN_DOWN,
    "attn_norm": Role.ATTN_NORM,
    "mlp_norm": Role.FFN_NORM,
}


def from_hf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read config.json."""
    n_layers = hf_n_layers(fields, sources)
    every = fields.integer("global_attn_every_n_layers", default=3)
    kinds = hf_kinds(fields, n_layers) or [KINDS[n % every > 0] for n in range(n_layers)]
    attention = encoder_attention(fields, rope=0, bias=fields.flag("attention_bias", default=False))
    ropes, context = hf_ropes_of_kinds(fields, attention.head_dim, OLD_THETAS, THETAS)
    window = fields.integer("local_attention", default=128)
    windows = [None if kind == KINDS[0] else window for kind in kinds]
    ffn = Gated(
        fields.integer("intermediate_size"),
        fields.flag("mlp_bias", default=False),
        curve(fields, "hidden_activation", "gelu"),
    )
    return ModelConfig(
        architecture="modernbert",
        hidden_size=fields.integer("hidden_size"),
        vocab_size=fields.integer("vocab_size"),
        context_length=context,
        rms_norm_eps=norm_eps(fields, "norm_eps", 1e-5),
        tied_embeddings=True,
        ropes=ropes,
        layers=layers_before(attention, ffn, windows),
        norm="layer",
        norm_bias=fields.flag("norm_bias", default=False),
        pooling=read_pooling(fields, plain_names(sources, PREFIXES)),
    )


def layers_before(
    attention: Attention, ffn: Gated, windows: Sequence[int | None]
) -> tuple[Layer, ...]:
    """Return layers that normalize first, each with its window."""
    first, *others = layers_by_turns(attention, ffn, windows)
    return (replace(first, attn_norm_replaces=True), *others)  # that of the embedding


def read_pooling(fields: Fields, sources: Sources) -> Pooling:
    """Return the mean, or the heads of a classifier."""
    kind = fields.text("classifier_pooling", default="cls")
    bias = fields.flag("classifier_bias", default=False)
    activation = curve(fields, "classifier_activation", "gelu")
    if f"{CLASSIFIER}.weight" not in sources:
        return Pooling()
    if kind not in CLASSIFY_BY:
        raise fields.fail("classifier_pooling", "'cls' or 'mean'")
    head = Dense(fields.integer("hidden_size"), bias, activation, norm=True)
    return Pooling(kind, dense=(head, classifier(sources)))


def hf_tensors(sources: Sources, config: ModelConfig) -> Sources:
    """Take Q, K and V apart, and what is activated from what it is multiplied by."""
    tensors = Rearranged(plain_names(sources, PREFIXES))
    tensors.rename("embeddings.tok_embeddings.weight", usual(Role.TOKEN_EMBEDDING))
    give_roles(tensors, "embeddings.norm", Role.ATTN_NORM)
    give_roles(tensors, "final_norm", Role.OUTPUT_NORM)
    for number in range(config.n_layers):
        folder, rows = f"layers.{number}", config.heads.n_heads * config.heads.head_dim
        gated = (Role.FFN_GATE, Role.FFN_UP)
        split_roles(tensors, f"{folder}.attn.Wqkv", QKV, rows, number)
        split_roles(tensors, f"{folder}.mlp.Wi", gated, config.ffn_size(number), number)
        for name, role in OF_LAYER.items():
            give_roles(tensors, f"{folder}.{name}", role, number)
    give_heads(tensors, config, (HEAD, CLASSIFIER))
    if config.pooling is not None and config.pooling.dense:
        give_roles(tensors, "head.norm", Role.DENSE_NORM)
    unused = [name for name in tensors.out if name.startswith(("head.", "decoder."))]
    tensors.drop(*unused)
    return tensors.out


def from_gguf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read metadata."""
    ffn = Gated(
        fields.integer("modern-bert.feed_forward_length"),
        activation=curve(fields, "modern-bert.hidden_activation", "gelu"),
    )
    key = "modern-bert.classifier.pooling_type"
    kind = POOLING_TYPES.get(fields.integer(key, default=1))
    if kind not in CLASSIFY_BY:
        raise fields.fail(key, "1 or 2")
    model = gguf_encoder(
        *(fields, sources, "modernbert", ffn),
        theta=THETAS[KINDS[0]],
        head=Dense(fields.integer("modern-bert.embedding_length"), False, "gelu", norm=True),
        classifies=kind,
    )
    windows = gguf_windows(fields, model.n_layers, 3, last=False)
    theta = fields.number("modern-bert.rope.freq_base_swa", default=THETAS[KINDS[1]])
    local = replace(model.ropes[0], theta=round_to_f32(theta))
    layers = layers_before(model.heads, ffn, windows)
    return replace(model, ropes=(*model.ropes, local), layers=layers, norm_bias=False)


def from_gguf_tensors(sources: Sources, config: ModelConfig) -> Sources:
    """Do what all encoders' files need, and take gate and up apart."""
    tensors = Rearranged(gguf_tensors(sources, config))
    for number in range(config.n_layers):
        halves, size = (Role.FFN_GATE, Role.FFN_UP), config.ffn_size(number)
        split_roles(tensors, f"blk.{number}.ffn_up", halves, size, number, GGUF)
    give_roles(tensors, f"{HEADS[0]}.norm", Role.DENSE_NORM, column=GGUF)
    return tensors.out


FAMILY = replace(
    encoder_family("modernbert", from_hf, hf_tensors),
    gguf="modern-bert",
    from_gguf=from_gguf,
    gguf_tensors=from_gguf_tensors,
)
