"""Gemma 3 and EmbeddingGemma: norms of attention's and FFN's results, windows in most layers."""

from __future__ import annotations

from dataclasses import replace

from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.formats import round_to_f32
from lanewise.loading.base.program import Attention, Dense, Gated, Layer, ModelConfig, Pooling
from lanewise.loading.families.common import (
    attention_of,
    by_turns,
    check_values,
    curve,
    model_of,
    n_layers_of,
    ropes_of_kinds,
    window_of,
    windows_of,
)
from lanewise.loading.families.encoders_gguf import gguf_pooling
from lanewise.loading.families.family import Family
from lanewise.loading.families.gemma import cap, root_scale
from lanewise.loading.families.naming import add_one_to_norms, give_layer_roles
from lanewise.loading.files.rearranging import Rearranged
from lanewise.loading.programs.model_file import ModelFile

PERIOD, SCALAR = 6, 256  # if the config does not say, as for 4B to 27B
THETAS = {"full_attention": 1e6, "sliding_attention": 1e4}
THETA_KEYS = {"full_attention": "rope_theta", "sliding_attention": "rope_local_base_freq"}
MUST_BE = {
    "attn_logit_softcapping": (None,),
    "attention_bias": (False,),
}
PERIODS = ("sliding_window_pattern", "_sliding_window_pattern")
# Names to roles, in an order in which each new name is free.
OF_LAYER = {
    "post_attention_layernorm": Role.ATTN_RESULT_NORM,
    "pre_feedforward_layernorm": Role.FFN_NORM,
    "post_feedforward_layernorm": Role.FFN_RESULT_NORM,
}
NORMS = (Role.ATTN_NORM, Role.ATTN_Q_NORM, Role.ATTN_K_NORM, *OF_LAYER.values())
# Number of layers of 27B, whose scores have another scale.
LARGEST = 62
# Numbers of the dense heads in GGUF files: the modules before them have no weights.
DENSE = (2, 3)


def program(file: ModelFile) -> ModelConfig:
    """Read a file."""
    both_ways = file.flag("use_bidirectional_attention", default=False)
    return gemma_of(file, Pooling() if both_ways else None)


def embedding_program(file: ModelFile) -> ModelConfig:
    """Read a GGUF file of an embedding model."""
    file.ignore("{arch}.attention.causal")
    pooling = gguf_pooling(file)
    model = gemma_of(file, replace(pooling, dense=_dense(file)))
    return replace(model, tied_embeddings=True)


def gemma_of(file: ModelFile, pooling: Pooling | None) -> ModelConfig:
    """Return the program; an embedding model attends to both sides."""
    check_values(file, MUST_BE)
    attention = replace(
        attention_of(file, qk_norm="head"),
        score_scale=scale_of(file, LARGEST),
        both_ways=pooling is not None,
    )
    ffn = Gated(
        file.integer("intermediate_size"),
        activation=curve(file, "hidden_activation", "gelu_tanh"),
    )
    period = next((file.integer(key) for key in PERIODS if file.is_set(key)), PERIOD)
    have = by_turns(n_layers_of(file), period)
    windows = windows_of(file, window_of(file, always=True), have)
    ropes = ropes_of_kinds(file, attention.head_dim, THETA_KEYS, THETAS, scaled=1)
    layers = layers_of(attention, ffn, windows)
    model = model_of(file, "gemma3_text", layers, tied=True, own_kinds=True, ropes=ropes)
    return replace(
        model,
        embedding_scale=root_scale(file),
        pooling=pooling,
        logit_softcap=cap(file, "final_logit_softcapping"),
    )


def scale_of(file: ModelFile, largest: int) -> float:
    """Return the scale of scores; 0 is the usual one.

    Among GGUF files only models with ``largest`` layers have another one.
    """
    if not file.is_gguf:
        return round_to_f32(file.number("query_pre_attn_scalar", default=SCALAR) ** -0.5)
    if n_layers_of(file) != largest:
        return 0.0
    share = file.integer("hidden_size") // file.integer("num_attention_heads")
    return round_to_f32(share**-0.5)


def _dense(file: ModelFile) -> tuple[Dense, ...]:
    heads = []
    for number in DENSE:
        head = file.tensors.get(f"dense_{number}.weight")
        file.ignore(*(f"{{arch}}.dense_{number}_feat_{end}" for end in ("in", "out")))
        if head is not None and len(head.shape) == 2:
            heads.append(Dense(head.shape[0]))
    return tuple(heads)


def layers_of(attention: Attention, ffn: Gated, windows: list[int | None]) -> tuple[Layer, ...]:
    """Return layers without a window, or with a window and the second angles.

    Bidirectional layers have half of the window on each side.
    """
    made: dict[int | None, Layer] = {}
    for window in set(windows):
        seen = window
        if window is not None and attention.both_ways:
            seen = window // 2 + 1
        own = attention if seen is None else replace(attention, rope=1, window=seen)
        made[window] = Layer(own, ffn, result_norms=True)
    return tuple(made[window] for window in windows)


def hf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Rename norms, and add the 1 that files leave out of them."""
    give_layer_roles(tensors, config, OF_LAYER)
    add_one_to_norms(tensors, config, NORMS)


def embedding_gguf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Rename the dense heads; an output head is unused."""
    for place, number in enumerate(DENSE):
        tensors.rename(f"dense_{number}.weight", tensors.usual(Role.DENSE, place))
    tensors.drop(tensors.usual(Role.OUTPUT))


FAMILY = Family(
    "gemma3_text",
    program=program,
    gguf="gemma3",
    hf_tensors=hf_tensors,
    gguf_is_usual=False,
    harmless=("sliding_window_pattern",),
)
EMBEDDING = replace(
    FAMILY, gguf="gemma-embedding", program=embedding_program, gguf_tensors=embedding_gguf_tensors
)
