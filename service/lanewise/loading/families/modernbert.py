"""ModernBERT: norms before each branch, RoPE, GeGLU, and layers that see neighbours only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lanewise.loading.checkpoint import Role
from lanewise.loading.families.common import hf_kinds, hf_n_layers
from lanewise.loading.families.encoders import (
    CLASSIFIER,
    QKV,
    classifier,
    curve,
    encoder_attention,
    encoder_family,
    give_heads,
    give_roles,
    norm_eps,
    plain_names,
    split_roles,
    usual,
)
from lanewise.loading.json_files import Fields
from lanewise.loading.program import Dense, Gated, Layer, ModelConfig, Pooling, Rope
from lanewise.loading.rearranging import Rearranged
from lanewise.loading.rope import read_rope
from lanewise.loading.sources import Sources

PREFIXES = ("model.",)
KINDS = ("full_attention", "sliding_attention")  # and their angles, in this order
OLD_THETAS = {"full_attention": "global_rope_theta", "sliding_attention": "local_rope_theta"}
THETAS = {"full_attention": 160000.0, "sliding_attention": 10000.0}
HEAD = "head.dense"
OF_LAYER = {
    "attn.Wo": Role.ATTN_OUTPUT,
    "mlp.Wo": Role.FFN_DOWN,
    "attn_norm": Role.ATTN_NORM,
    "mlp_norm": Role.FFN_NORM,
}
OWN_HARMLESS = (
    *("sparse_prediction", "sparse_pred_ignore_index", "deterministic_flash_attn", "decoder_bias"),
    *("reference_compile", "repad_logits_with_grad", "initializer_cutoff_factor", "layer_norm_eps"),
    "position_embedding_type",
)


def from_hf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read config.json."""
    n_layers = hf_n_layers(fields, sources)
    every = fields.integer("global_attn_every_n_layers", default=3)
    kinds = hf_kinds(fields, n_layers) or [KINDS[n % every > 0] for n in range(n_layers)]
    attention = encoder_attention(fields, rope=0, bias=fields.flag("attention_bias", default=False))
    ropes, context = read_ropes(fields, attention.head_dim)
    # On each side of a token it sees half of local_attention.
    window = fields.integer("local_attention", default=128) // 2 + 1
    local = replace(attention, rope=1, window=window)
    ffn = Gated(
        fields.integer("intermediate_size"),
        fields.flag("mlp_bias", default=False),
        curve(fields, "hidden_activation", "gelu"),
    )
    layers = [Layer(attention if kind == KINDS[0] else local, ffn) for kind in kinds]
    layers[0] = replace(layers[0], attn_norm_replaces=True)  # that of the embedding
    return ModelConfig(
        architecture="modernbert",
        hidden_size=fields.integer("hidden_size"),
        vocab_size=fields.integer("vocab_size"),
        context_length=context,
        rms_norm_eps=norm_eps(fields, "norm_eps", 1e-5),
        tied_embeddings=True,
        ropes=ropes,
        layers=tuple(layers),
        norm="layer",
        norm_bias=fields.flag("norm_bias", default=False),
        pooling=read_pooling(fields, plain_names(sources, PREFIXES)),
    )


def read_ropes(fields: Fields, head_dim: int) -> tuple[tuple[Rope, ...], int]:
    """Return the angles of layers that see all, of those that see neighbours, and the context."""
    given = fields.raw("rope_parameters")
    nested = isinstance(given, Mapping) and all(
        isinstance(given.get(kind), Mapping) for kind in KINDS
    )
    ropes, context = [], 0
    for kind in KINDS:
        values: dict[str, Any] = {"max_position_embeddings": fields.raw("max_position_embeddings")}
        values["rope_parameters"] = given[kind] if nested and given is not None else given
        values["rope_scaling"] = fields.raw("rope_scaling")
        values["rope_theta"] = fields.raw(OLD_THETAS[kind])
        rope, context = read_rope(Fields(values, fields.source), head_dim, THETAS[kind])
        ropes.append(rope)
    return tuple(ropes), context


def read_pooling(fields: Fields, sources: Sources) -> Pooling:
    """Return the mean, or the heads of a classifier."""
    kind = fields.text("classifier_pooling", default="cls")
    bias = fields.flag("classifier_bias", default=False)
    activation = curve(fields, "classifier_activation", "gelu")
    if f"{CLASSIFIER}.weight" not in sources:
        return Pooling()
    if kind not in ("cls", "mean"):
        raise fields.fail("classifier_pooling", "'cls' or 'mean'")
    head = Dense(fields.integer("hidden_size"), bias, activation, norm=True)
    return Pooling(kind, dense=(head, classifier(sources)))


def hf_tensors(sources: Sources, config: ModelConfig) -> Sources:
    """Take Q, K and V apart, and what is activated from what it is multiplied by."""
    tensors = Rearranged(plain_names(sources, PREFIXES))
    tensors.rename("embeddings.tok_embeddings.weight", usual(Role.TOKEN_EMBEDDING))
    give_roles(tensors, "embeddings.norm", Role.ATTN_NORM)
    give_roles(tensors, "final_norm", Role.OUTPUT_NORM)
    for number, layer in enumerate(config.layers):
        folder, rows = f"layers.{number}", layer.attention.n_heads * layer.attention.head_dim
        gated = (Role.FFN_GATE, Role.FFN_UP)
        split_roles(tensors, f"{folder}.attn.Wqkv", QKV, rows, number)
        split_roles(tensors, f"{folder}.mlp.Wi", gated, layer.ffn.size, number)
        for name, role in OF_LAYER.items():
            give_roles(tensors, f"{folder}.{name}", role, number)
    give_heads(tensors, config, (HEAD, CLASSIFIER))
    if config.pooling is not None and config.pooling.dense:
        give_roles(tensors, "head.norm", Role.DENSE_NORM)
    unused = [name for name in tensors.out if name.startswith(("head.", "decoder."))]
    tensors.drop(*unused)
    return tensors.out


FAMILY = encoder_family("modernbert", from_hf, hf_tensors, OWN_HARMLESS)
