"""GPT-NeoX and Pythia: attention and FFN in parallel, each after its own LayerNorm."""

from __future__ import annotations

from dataclasses import replace

from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.program import Layer, ModelConfig
from lanewise.loading.families.common import (
    attention_of,
    model_of,
    n_layers_of,
    plain_of,
)
from lanewise.loading.families.family import Family
from lanewise.loading.families.naming import give_layer_roles, give_roles, split_heads
from lanewise.loading.files.rearranging import Rearranged
from lanewise.loading.programs.model_file import ModelFile

PARTIAL = 0.25  # share of each head that RoPE turns by default
OLD_KEYS = {"partial_rotary_factor": "rotary_pct", "rope_theta": "rotary_emb_base"}
OF_LAYER = {
    "input_layernorm": Role.ATTN_NORM,
    "post_attention_layernorm": Role.FFN_NORM,
    "attention.dense": Role.ATTN_OUTPUT,
    "mlp.dense_h_to_4h": Role.FFN_UP,
    "mlp.dense_4h_to_h": Role.FFN_DOWN,
}
# Masks stored in old files.
UNUSED = ("attention.bias", "attention.masked_bias", "attention.rotary_emb.inv_freq")


def program(file: ModelFile) -> ModelConfig:
    """Read a file."""
    file = file.called_if_set(OLD_KEYS)
    bias = file.flag("attention_bias", default=True)
    attention = replace(attention_of(file, qkv_bias=bias), output_bias=bias)
    parallel = file.flag("use_parallel_residual", default=True)
    wiring = "parallel" if parallel else "in_turn"
    layer = Layer(attention, plain_of(file, "gelu", bias=True), wiring=wiring)
    return model_of(
        *(file, "gpt_neox", [layer] * n_layers_of(file)),
        partial=PARTIAL,
        eps="layer_norm_eps",
        norm="layer",
        norm_bias=True,
    )


def hf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Rename tensors, and split Q, K and V, which are interleaved by head."""
    give_roles(tensors, "gpt_neox.final_layer_norm", Role.OUTPUT_NORM)
    for number in range(config.n_layers):
        folder = f"gpt_neox.layers.{number}"
        tensors.drop(*(f"{folder}.{name}" for name in UNUSED))
        split_heads(tensors, f"{folder}.attention.query_key_value", config.heads, number)
    give_layer_roles(tensors, config, OF_LAYER, "gpt_neox.layers.{}.")


FAMILY = Family("gpt_neox", program, "gptneox", hf_tensors=hf_tensors, gguf_is_usual=False)
