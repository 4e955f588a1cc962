"""GPTBigCode: StarCoder 1 and SantaCoder, GPT-2 with one key and value for all heads."""

from __future__ import annotations

from dataclasses import replace

from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.program import Layer, ModelConfig
from lanewise.loading.families.common import check_values, n_layers_of
from lanewise.loading.families.family import Family
from lanewise.loading.families.gpt2 import (
    KEYS,
    MUST_BE,
    OF_LAYER,
    UNUSED,
    decoder,
    parts_of,
    scale,
)
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
    if not file.is_gguf:
        check_values(file, MUST_BE)
        file = file.called(KEYS)
        one = file.flag("multi_query", default=True)
        heads = 1 if one else file.integer("num_attention_heads")
        file = file.replacing({"num_key_value_heads": heads})
    plain, ffn = parts_of(file)
    layer = Layer(replace(plain, score_scale=scale(file, plain, 0)), ffn)
    return decoder(file, "gpt_bigcode", [layer] * n_layers_of(file))


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
