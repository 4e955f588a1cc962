"""GPT-2: learned positions, LayerNorm, biases everywhere; matrices stored [inputs, outputs]."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.formats import round_to_f32
from lanewise.loading.base.program import Attention, Layer, ModelConfig, Plain
from lanewise.loading.families.common import (
    attention_of,
    check_values,
    curve,
    model_of,
    n_layers_of,
)
from lanewise.loading.families.family import Family
from lanewise.loading.families.naming import (
    QKV,
    give_layer_roles,
    give_roles,
    qkv_rows,
    split_roles,
)
from lanewise.loading.files.rearranging import Rearranged
from lanewise.loading.programs.model_file import ModelFile

KEYS = {
    "hidden_size": "n_embd",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
    "max_position_embeddings": "n_positions",
}
MUST_BE = {"add_cross_attention": (False,)}
OF_LAYER = {
    "ln_1": Role.ATTN_NORM,
    "attn.c_proj": Role.ATTN_OUTPUT,
    "ln_2": Role.FFN_NORM,
    "mlp.c_fc": Role.FFN_UP,
    "mlp.c_proj": Role.FFN_DOWN,
}
INPUTS_FIRST = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
UNUSED = ("attn.bias", "attn.masked_bias")


def program(file: ModelFile) -> ModelConfig:
    """Read a file."""
    if not file.is_gguf:
        check_values(file, MUST_BE)
        file = file.called(KEYS)
    plain, ffn = parts_of(file)
    numbers = range(n_layers_of(file))
    layers = [Layer(replace(plain, score_scale=scale(file, plain, n)), ffn) for n in numbers]
    return decoder(file, "gpt2", layers)


def parts_of(file: ModelFile) -> tuple[Attention, Plain]:
    """Return a layer's attention, whose scale is not set, and FFN; fields have our names."""
    if file.is_gguf:
        size = file.integer("intermediate_size")
    else:
        size = file.integer("n_inner", default=4 * file.integer("hidden_size"))
    ffn = Plain(size, True, curve(file, "activation_function", "gelu_tanh"))
    return replace(attention_of(file, qkv_bias=True), rope=None, output_bias=True), ffn


def decoder(file: ModelFile, name: str, layers: Sequence[Layer]) -> ModelConfig:
    """Return the model of the family ``name``: LayerNorm, positions from a table."""
    config = model_of(
        *(file, name, layers), tied=True, eps="layer_norm_epsilon", norm="layer", norm_bias=True
    )
    return replace(config, ropes=(), learned_positions=True)


def scale(file: ModelFile, attention: Attention, number: int) -> float:
    """Return the scale of scores in layer ``number``."""
    by_size = file.flag("scale_attn_weights", default=True)
    by_layer = file.flag("scale_attn_by_inverse_layer_idx", default=False)
    own = attention.score_scale if by_size else 1.0
    return round_to_f32(own / (number + 1)) if by_layer else own


def hf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Rename tensors, transpose matrices, and split Q, K and V."""
    tensors.remove_prefixes("transformer.")
    tensors.rename("wpe.weight", tensors.usual(Role.POSITION_EMBEDDING))
    give_roles(tensors, "ln_f", Role.OUTPUT_NORM)
    for number in range(config.n_layers):
        folder = f"h.{number}"
        tensors.drop(*(f"{folder}.{name}" for name in UNUSED))
        for name in INPUTS_FIRST:
            tensors.transpose(f"{folder}.{name}.weight")
        split_roles(tensors, f"{folder}.attn.c_attn", QKV, qkv_rows(config.heads), number)
    give_layer_roles(tensors, config, OF_LAYER, "h.{}.")


FAMILY = Family(
    "gpt2",
    program,
    "gpt2",
    hf_tensors=hf_tensors,
    hf_inputs_first=True,
    gguf_is_usual=False,
    harmless=("reorder_and_upcast_attn",),
)
