"""BitNet b1.58: ternary weights, codes of eight bits with one scale for each token's activations.

What attention's output matrix reads and what the FFN's last matrix reads go through norms.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from lanewise.loading.base.checkpoint import LastConverted, ModelFileError, Role
from lanewise.loading.base.formats import VECTOR_TYPES, TensorType
from lanewise.loading.base.program import Gated, Layer, ModelConfig
from lanewise.loading.families.common import attention_of, curve, model_of, n_layers_of
from lanewise.loading.families.family import Family
from lanewise.loading.files.rearranging import Rearranged
from lanewise.loading.programs.model_file import ModelFile
from lanewise.loading.quantized.ternary_sources import ternary

THETA = 500000.0
# The FFN's curve by general.architecture, which says it alone.
CURVES: Mapping[str, str] = {
    "bitnet": "silu",
    "bitnet-b1.58": "relu_squared",
    "bitnet-25": "relu_squared",
}
MATRICES = (
    *(Role.ATTN_Q, Role.ATTN_K, Role.ATTN_V, Role.ATTN_OUTPUT),
    *(Role.FFN_GATE, Role.FFN_UP, Role.FFN_DOWN),
)
I2_S = TensorType.IQ4_NL_4_4  # has the same number in BitNet's own program


def program(file: ModelFile) -> ModelConfig:
    """Read a file; matrices of GGUF files are ternary, of directories as their settings say."""
    named = CURVES[file.text("general.architecture")] if file.is_gguf else "relu_squared"
    size, activation = file.integer("intermediate_size"), curve(file, "hidden_act", named)
    if file.flag("attention_bias", default=False):
        raise file.fail("attention_bias", "false")
    ffn = Gated(size, activation=activation, inner_norm=True)
    attention = replace(attention_of(file), inner_norm=True)
    layers = [Layer(attention, ffn, row_codes=file.is_gguf)] * n_layers_of(file)
    return model_of(file, "bitnet", layers, THETA)


def gguf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Take ternary floats apart."""
    last = LastConverted()
    for number in range(config.n_layers):
        for name in (tensors.usual(role, number) for role in MATRICES):
            one = tensors.out.get(name)
            if one is None or len(one.shape) != 2:
                continue  # the binding reports it
            if one.type == I2_S:
                raise ModelFileError(
                    f"{one.where}: tensor {name!r} is I2_S, whose order of weights is that of the"
                    " machine that wrote it, which files do not say; accepted are TQ1_0, TQ2_0 and"
                    " floats, or the directory that the file was made from"
                )
            if one.type in VECTOR_TYPES:
                tensors.out[name] = ternary(name, one, last)


FAMILY = Family("bitnet", program, "bitnet", gguf_tensors=gguf_tensors, gguf_is_usual=False)
