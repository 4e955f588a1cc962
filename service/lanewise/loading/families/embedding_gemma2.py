"""EmbeddingGemma 2: an encoder of Gemma 4's layers, whose inputs of each layer have no table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.program import Attention, Dense, Gated, ModelConfig, Pooling
from lanewise.loading.families import gemma3, gemma4
from lanewise.loading.families.common import (
    KINDS,
    attention_of,
    by_turns,
    check_values,
    curve,
    model_of,
    n_layers_of,
    ropes_of_kinds,
    windows_of,
)
from lanewise.loading.families.encoders import encoder_family
from lanewise.loading.families.gemma import CURVE, root_scale
from lanewise.loading.families.naming import give_layer_roles, give_roles, one_number
from lanewise.loading.files.rearranging import Rearranged
from lanewise.loading.programs.checks import check_heads
from lanewise.loading.programs.model_file import ModelFile

MUST_BE = {"attention_bias": (False,)}
PROJECTION = "model.embedding_projection"  # which makes a row's vector
OUTSIDE_LAYERS = {
    "ple.per_layer_model_projection": Role.PER_LAYER_PROJECTION,
    "ple.per_layer_projection_norm": Role.PER_LAYER_NORM,
}
OF_LAYER = {
    **gemma3.OF_LAYER,
    "ple_block.per_layer_input_gate": Role.PER_LAYER_GATE,
    "ple_block.per_layer_projection": Role.PER_LAYER_OUT,
    "ple_block.post_per_layer_input_norm": Role.PER_LAYER_RESULT_NORM,
}


def program(file: ModelFile) -> ModelConfig:
    """Read config.json."""
    check_values(file, MUST_BE)
    n_layers = n_layers_of(file)
    radius = file.integer("sliding_window", default=512)  # tokens on each side
    windows = windows_of(file, radius + 1, by_turns(n_layers, gemma4.PERIOD))
    windows[-1] = None  # as the reference does, whatever the file says
    whole, windowed = attentions_of(file, windows)
    each = [whole if one is None else replace(windowed, rope=1, window=one) for one in windows]
    size = file.integer("intermediate_size")
    ffn = Gated(size, activation=curve(file, "hidden_activation", CURVE))
    name = gemma4.SCALES[file.column]
    scales = [
        one_number(file.tensors, name.format(number), file.source) for number in range(n_layers)
    ]
    layers = gemma4.layers_of(each, [ffn] * n_layers, scales)
    dims = {KINDS[0]: whole.head_dim, KINDS[1]: windowed.head_dim}
    ropes = ropes_of_kinds(file, dims, gemma4.THETA_KEYS, gemma4.THETAS, scaled=1)
    model = model_of(
        *(file, "embedding_gemma2_text", layers), tied=True, own_kinds=True, ropes=ropes
    )
    return replace(
        model,
        tied_embeddings=True,
        per_layer_size=file.integer("hidden_size_per_layer_input", default=512),
        per_layer_projected=True,
        embedding_scale=root_scale(file),
        pooling=Pooling("mean", dense=(Dense(file.integer("embedding_dim", default=768)),)),
    )


def attentions_of(file: ModelFile, windows: Sequence[int | None]) -> tuple[Attention, Attention]:
    """Return attention without a window, which has other heads, and with one."""
    plain = replace(
        attention_of(file, qk_norm="head"), score_scale=1.0, value_norm=True, both_ways=True
    )
    own = {
        "head_dim": file.integer("global_head_dim", default=gemma4.GLOBAL_HEAD_DIM),
        "num_key_value_heads": file.integer("num_global_key_value_heads", default=1),
    }
    if file.is_set("per_layer_config"):
        own = {"head_dim": plain.head_dim, "num_key_value_heads": plain.n_kv_heads}
        own |= gemma4.hf_overrides(file, windows)
    whole = replace(plain, head_dim=own["head_dim"], n_kv_heads=own["num_key_value_heads"])
    return check_heads(whole, file.source), plain


def hf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Rename norms, inputs of layers and the projection; the scales have been read."""
    for number in range(config.n_layers):
        tensors.drop(gemma4.SCALES[tensors.column].format(number))
    give_layer_roles(tensors, config, OF_LAYER)
    for name, role in OUTSIDE_LAYERS.items():
        give_roles(tensors, f"model.{name}", role)
    give_roles(tensors, PROJECTION, Role.DENSE)


FAMILY = encoder_family("embedding_gemma2_text", program, hf_tensors)
