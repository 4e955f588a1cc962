"""StableLM and StableLM 2: LayerNorm, RoPE over a quarter of each head; 12B with head norms."""

from __future__ import annotations

from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.program import Layer, ModelConfig
from lanewise.loading.families.cohere import flatten_norms, has_qk_norm
from lanewise.loading.families.common import attention_of, gated_of, model_of, n_layers_of
from lanewise.loading.families.family import Family
from lanewise.loading.files.rearranging import Rearranged
from lanewise.loading.programs.model_file import ModelFile

PARTIAL = 0.25  # share of each head that RoPE turns by default


def program(file: ModelFile) -> ModelConfig:
    """Read a file; a GGUF file's tensors tell the norms, as some files have a wrong key."""
    if file.is_gguf:
        file.ignore("use_parallel_residual")
        one_norm = not file.has(Role.FFN_NORM)
    else:
        one_norm = file.flag("use_parallel_residual", default=False)
    qkv_bias = file.flag("use_qkv_bias", default=False)
    qk_norm = "layer" if has_qk_norm(file, "qk_layernorm") else "none"
    attention = attention_of(file, qkv_bias=qkv_bias, qk_norm=qk_norm)
    wiring = "parallel_one_norm" if one_norm else "in_turn"
    layers = [Layer(attention, gated_of(file), wiring=wiring)] * n_layers_of(file)
    return model_of(
        *(file, "stablelm", layers),
        partial=PARTIAL,
        eps="layer_norm_eps",
        norm="layer",
        norm_bias=True,
    )


def hf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Stack the norms of heads, which are a tensor each."""
    attention = config.heads
    counts = {"q": attention.n_heads, "k": attention.n_kv_heads}
    for number in range(config.n_layers if attention.qk_norm == "layer" else 0):
        for kind, n_heads in counts.items():
            folder = f"model.layers.{number}.self_attn.{kind}_layernorm.norms"
            role = Role.ATTN_Q_NORM if kind == "q" else Role.ATTN_K_NORM
            tensors.stack(
                [f"{folder}.{head}.weight" for head in range(n_heads)], tensors.usual(role, number)
            )


FAMILY = Family(
    "stablelm",
    program,
    "stablelm",
    hf_tensors=hf_tensors,
    gguf_tensors=flatten_norms,
    gguf_is_usual=False,
)
