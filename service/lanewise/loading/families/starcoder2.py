"""StarCoder 2: LayerNorm, biases everywhere, an FFN with gelu and no gate."""

from __future__ import annotations

from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.program import Layer, ModelConfig
from lanewise.loading.families.common import (
    attention_of,
    model_of,
    plain_of,
    window_of,
    windows_of,
    with_windows,
)
from lanewise.loading.families.family import Family
from lanewise.loading.families.naming import give_layer_roles
from lanewise.loading.files.rearranging import Rearranged
from lanewise.loading.programs.model_file import ModelFile

OF_LAYER = {"mlp.c_fc": Role.FFN_UP, "mlp.c_proj": Role.FFN_DOWN}


def program(file: ModelFile) -> ModelConfig:
    """Read a file; converters to GGUF leave out the window."""
    bias = not file.is_gguf and file.flag("use_bias", default=True)
    ffn = plain_of(file, "gelu_tanh", bias=bias)
    layer = Layer(attention_of(file, qkv_bias=bias), ffn)
    layers = with_windows(layer, windows_of(file, window_of(file)))
    return model_of(
        file, "starcoder2", layers, tied=True, eps="norm_epsilon", norm="layer", norm_bias=True
    )


def hf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Rename the FFN's tensors."""
    give_layer_roles(tensors, config, OF_LAYER)


FAMILY = Family("starcoder2", program, "starcoder2", hf_tensors=hf_tensors, gguf_is_usual=False)
