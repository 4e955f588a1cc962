"""Phi-1, 1.5 and 2: attention and FFN in parallel after one LayerNorm, biases everywhere."""

from __future__ import annotations

from dataclasses import replace

from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.program import Layer, ModelConfig
from lanewise.loading.families.common import attention_of, model_of, n_layers_of, plain_of
from lanewise.loading.families.family import Family
from lanewise.loading.families.naming import give_layer_roles, give_roles
from lanewise.loading.files.rearranging import Rearranged
from lanewise.loading.programs.model_file import ModelFile

PARTIAL = 0.5  # share of each head that RoPE turns by default
OF_LAYER = {
    "self_attn.dense": Role.ATTN_OUTPUT,
    "mlp.fc1": Role.FFN_UP,
    "mlp.fc2": Role.FFN_DOWN,
}


def program(file: ModelFile) -> ModelConfig:
    """Read a file."""
    if file.flag("qk_layernorm", default=False):
        raise file.fail("qk_layernorm", "false (LayerNorm of queries and keys is not supported)")
    attention = replace(attention_of(file, qkv_bias=True), output_bias=True)
    ffn = plain_of(file, "gelu_tanh", bias=True)
    layers = [Layer(attention, ffn, wiring="parallel_one_norm")] * n_layers_of(file)
    config = model_of(
        *(file, "phi", layers),
        partial=PARTIAL,
        eps="layer_norm_eps",
        norm="layer",
        norm_bias=True,
    )
    return replace(config, output_bias=True)


def hf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Rename tensors to the usual names."""
    give_roles(tensors, "model.final_layernorm", Role.OUTPUT_NORM)
    give_layer_roles(tensors, config, OF_LAYER)


FAMILY = Family("phi", program, "phi2", hf_tensors=hf_tensors, gguf_is_usual=False)
