"""Command R, R+ and Aya: attention and FFN in parallel after one LayerNorm without a bias."""

from __future__ import annotations

from dataclasses import replace

from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.formats import round_to_f32
from lanewise.loading.base.program import Attention, Gated, Layer, ModelConfig
from lanewise.loading.families.common import attention_of, gated_of, model_of, n_layers_of
from lanewise.loading.families.family import Family
from lanewise.loading.files.rearranging import Rearranged
from lanewise.loading.programs.model_file import ModelFile

THETA = 500000.0  # by default


def program(file: ModelFile) -> ModelConfig:
    """Read a file; some configs have the weights' context length under another name."""
    context = file.integer("max_position_embeddings")
    context = max(context, file.integer("model_max_length", default=context))
    qk_norm = "layer" if has_qk_norm(file, "use_qk_norm") else "none"
    layer = beside(attention_of(file, qk_norm=qk_norm), gated_of(file))
    file = file.replacing({"max_position_embeddings": context})
    return cohere_of(
        file, "cohere", [layer] * n_layers_of(file), 10000.0 if file.is_gguf else THETA
    )


def has_qk_norm(file: ModelFile, name: str) -> bool:
    """Return whether queries and keys have norms; a GGUF file's tensors tell."""
    return file.has(Role.ATTN_Q_NORM) if file.is_gguf else file.flag(name, default=False)


def cohere_of(file: ModelFile, name: str, layers: list[Layer], theta: float) -> ModelConfig:
    """Return the program; logits are multiplied by logit_scale."""
    config = model_of(
        file, name, layers, theta, tied=True, own_kinds=True, eps="layer_norm_eps", norm="layer"
    )
    return replace(config, logit_scale=round_to_f32(file.number("logit_scale", default=1.0)))


def beside(attention: Attention, ffn: Gated) -> Layer:
    """Return a layer whose attention and FFN read the same norm."""
    return Layer(attention, ffn, wiring="parallel_one_norm")


def flatten_norms(tensors: Rearranged, config: ModelConfig) -> None:
    """Reshape norms [heads, dimensions] to vectors."""
    for number in range(config.n_layers if config.heads.qk_norm == "layer" else 0):
        for role in (Role.ATTN_Q_NORM, Role.ATTN_K_NORM):
            tensors.ravel(tensors.usual(role, number), config.heads.head_dim)


FAMILY = Family(
    "cohere",
    program,
    "command-r",
    hf_tensors=flatten_norms,
    gguf_tensors=flatten_norms,
    gguf_interleaved_rope=True,
    hf_interleaved_rope=True,
    gguf_is_usual=False,
)
