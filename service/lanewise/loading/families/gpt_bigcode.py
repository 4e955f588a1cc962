"""GPTBigCode: StarCoder 1 and SantaCoder, GPT-2 with one key and value for all heads."""

from __future__ import annotations

from dataclasses import replace

from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.program import Layer, ModelConfig, Plain
from lanewise.loading.families.common import (
    attention_of,
    check_values,
    curve,
    model_of,
    n_layers_of,
)
from lanewise.loading.families.family import Family
from lanewise.loading.families.gpt2 import KEYS, MUST_BE, OF_LAYER, UNUSED, scale
from lanewise.loading.families.naming import (
    QKV,
    give_layer_roles,
    give_roles,
    qkv_rows,
    split_heads,
    split_roles,
)
from lanewise.loading.files.rearranging import Rearranged
from lanewise.loading.programs.model_file import ModelFile


def program(file: ModelFile) -> ModelConfig:
    """Read a file."""
    if file.is_gguf:
        size = file.integer("intermediate_size")
    else:
        check_values(file, MUST_BE)
        file = file.called(KEYS)
        size = file.integer("n_inner", default=4 * file.integer("hidden_size"))
        one = file.flag("multi_query", default=True)
        heads = 1 if one else file.integer("num_attention_heads")
        file = file.replacing({"num_key_value_heads": heads})
    ffn = Plain(size, True, curve(file, "activation_function", "gelu_tanh"))
    attention = replace(attention_of(file, qkv_bias=True), rope=None, output_bias=True)
    attention = replace(attention, score_scale=scale(file, attention, 0))
    config = model_of(
        *(file, "gpt_bigcode", [Layer(attention, ffn)] * n_layers_of(file)),
        tied=True,
        eps="layer_norm_epsilon",
        norm="layer",
        norm_bias=True,
    )
    return replace(config, ropes=(), learned_positions=True)


def hf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Rename tensors, and split Q, K and V, which lie by head where each has its own."""
    tensors.remove_prefixes("transformer.")
    tensors.rename("wpe.weight", tensors.usual(Role.POSITION_EMBEDDING))
    give_roles(tensors, "ln_f", Role.OUTPUT_NORM)
    for number in range(config.n_layers):
        folder = f"h.{number}.attn"
        tensors.drop(*(f"h.{number}.{name}" for name in UNUSED))
        if config.heads.n_kv_heads == 1:
            split_roles(tensors, f"{folder}.c_attn", QKV, qkv_rows(config.heads), number)
        else:
            split_heads(tensors, f"{folder}.c_attn", config.heads, number)
    give_layer_roles(tensors, config, OF_LAYER, "h.{}.")


FAMILY = Family(
    "gpt_bigcode",
    program,
    "starcoder",
    hf_tensors=hf_tensors,
    gguf_is_usual=False,
    harmless=("attention_softmax_in_fp32", "scale_attention_softmax_in_fp32"),
)
