"""ModernBERT: pre-norm layers with RoPE and GeGLU, most with a window on both sides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.formats import round_to_f32
from lanewise.loading.base.program import Attention, Dense, Gated, Layer, ModelConfig, Pooling
from lanewise.loading.base.sources import Sources
from lanewise.loading.families.common import (
    KINDS,
    by_turns,
    curve,
    n_layers_of,
    ropes_of_kinds,
    window_of,
    windows_of,
)
from lanewise.loading.families.encoders import (
    CLASSIFIER,
    classifier,
    encoder_attention,
    encoder_family,
    give_heads,
    layers_by_turns,
)
from lanewise.loading.families.encoders_gguf import HEADS, POOLING_TYPES, gguf_encoder, gguf_tensors
from lanewise.loading.families.naming import (
    QKV,
    give_layer_roles,
    give_roles,
    split_gate_and_up,
    split_roles,
)
from lanewise.loading.files.rearranging import Rearranged, without_prefixes
from lanewise.loading.programs.model_file import ModelFile

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


def program(file: ModelFile) -> ModelConfig:
    """Read a file."""
    every = file.integer("global_attn_every_n_layers", default=3)
    window = window_of(file) if file.is_gguf else file.integer("local_attention", default=128)
    windows = windows_of(file, window, by_turns(n_layers_of(file), every, last=False), last=False)
    ffn = Gated(
        file.integer("intermediate_size"),
        file.flag("mlp_bias", default=False),
        curve(file, "hidden_activation", "gelu"),
    )
    return (gguf_model if file.is_gguf else hf_model)(file, ffn, windows)


def hf_model(file: ModelFile, ffn: Gated, windows: Sequence[int | None]) -> ModelConfig:
    """Return the program of a config.json."""
    attention = encoder_attention(file, rope=0, bias=file.flag("attention_bias", default=False))
    ropes, context = ropes_of_kinds(file, attention.head_dim, OLD_THETAS, THETAS)
    return ModelConfig(
        architecture="modernbert",
        hidden_size=file.integer("hidden_size"),
        vocab_size=file.integer("vocab_size"),
        context_length=context,
        rms_norm_eps=round_to_f32(file.number("norm_eps", default=1e-5)),
        tied_embeddings=True,
        ropes=ropes,
        layers=layers_before(attention, ffn, windows),
        norm="layer",
        norm_bias=file.flag("norm_bias", default=False),
        pooling=read_pooling(file, without_prefixes(file.tensors, PREFIXES)),
    )


def gguf_model(file: ModelFile, ffn: Gated, windows: Sequence[int | None]) -> ModelConfig:
    """Return the program of a GGUF file, which has other names for classifiers' heads."""
    key = "{arch}.classifier.pooling_type"
    kind = POOLING_TYPES.get(file.integer(key, default=1))
    if kind not in CLASSIFY_BY:
        raise file.fail(key, "1 or 2")
    head = Dense(file.integer("hidden_size"), False, "gelu", norm=True)
    model = gguf_encoder(
        *(file, "modernbert", ffn), theta=THETAS[KINDS[0]], head=head, classifies=kind
    )
    ropes, _ = ropes_of_kinds(file, model.heads.head_dim, OLD_THETAS, THETAS)
    layers = layers_before(model.heads, ffn, windows)
    return replace(model, ropes=ropes, layers=layers, norm_bias=False)


def layers_before(
    attention: Attention, ffn: Gated, windows: Sequence[int | None]
) -> tuple[Layer, ...]:
    """Return pre-norm layers, one for each window."""
    first, *others = layers_by_turns(attention, ffn, windows)
    return (replace(first, attn_norm_replaces=True), *others)  # by the embedding's norm


def read_pooling(file: ModelFile, sources: Sources) -> Pooling:
    """Return the mean, or the heads of a classifier."""
    kind = file.text("classifier_pooling", default="cls")
    bias = file.flag("classifier_bias", default=False)
    activation = curve(file, "classifier_activation", "gelu")
    if f"{CLASSIFIER}.weight" not in sources:
        return Pooling()
    if kind not in CLASSIFY_BY:
        raise file.fail("classifier_pooling", "'cls' or 'mean'")
    head = Dense(file.integer("hidden_size"), bias, activation, norm=True)
    return Pooling(kind, dense=(head, classifier(sources)))


def hf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Split Q, K and V, and the FFN's activated part from its multiplied part."""
    tensors.remove_prefixes(*PREFIXES)
    tensors.rename("embeddings.tok_embeddings.weight", tensors.usual(Role.TOKEN_EMBEDDING))
    give_roles(tensors, "embeddings.norm", Role.ATTN_NORM)
    give_roles(tensors, "final_norm", Role.OUTPUT_NORM)
    for number in range(config.n_layers):
        folder, rows = f"layers.{number}", config.heads.n_heads * config.heads.head_dim
        gated = (Role.FFN_GATE, Role.FFN_UP)
        split_roles(tensors, f"{folder}.attn.Wqkv", QKV, rows, number)
        split_roles(tensors, f"{folder}.mlp.Wi", gated, config.ffn_size(number), number)
    give_layer_roles(tensors, config, OF_LAYER, "layers.{}.")
    give_heads(tensors, config, (HEAD, CLASSIFIER))
    if config.pooling is not None and config.pooling.dense:
        give_roles(tensors, "head.norm", Role.DENSE_NORM)
    unused = [name for name in tensors.out if name.startswith(("head.", "decoder."))]
    tensors.drop(*unused)


def from_gguf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Rename as for all encoders, and split gate and up."""
    gguf_tensors(tensors, config)
    split_gate_and_up(tensors, config)
    give_roles(tensors, f"{HEADS[0]}.norm", Role.DENSE_NORM)


FAMILY = encoder_family(
    "modernbert", program, hf_tensors, "modern-bert", gguf_tensors=from_gguf_tensors
)
