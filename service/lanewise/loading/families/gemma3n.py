"""Gemma 3n's language model: several residual streams, inputs of layers, gates that are cut off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import NormalDist

from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.formats import round_to_f32
from lanewise.loading.base.program import Gated, Layer, ModelConfig
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
from lanewise.loading.families.family import Family
from lanewise.loading.families.gemma import CURVE, cap, root_scale
from lanewise.loading.families.gemma3 import OF_LAYER, THETA_KEYS, THETAS
from lanewise.loading.families.gemma4 import drop_unused, gguf_sizes, n_sharing, with_shared_keys
from lanewise.loading.families.naming import give_layer_roles
from lanewise.loading.files.rearranging import Rearranged
from lanewise.loading.programs.model_file import ModelFile

NAME = "gemma3n_text"
PERIOD, SHARED_FROM = 5, 20  # what GGUF files mean
STREAMS, PER_LAYER_SIZE = 4, 256
SPARSE_LAYERS, SPARSITY = 10, 0.95  # of the first layers, in GGUF files and by default
MUST_BE = {"altup_active_idx": (0,), "altup_correct_scale": (True,), "attention_bias": (False,)}
# Without effect: clips change training only.
HARMLESS = ("altup_coef_clip",)
FLAT = (Role.STREAM_ROUTER, Role.STREAM_PREDICTION, Role.STREAM_CORRECTION)
ENDS = ("altup_projections", "altup_unembed_projections")


def program(file: ModelFile) -> ModelConfig:
    """Read a file, or the text_config of a config.json."""
    check_values(file, MUST_BE)
    n_layers = n_layers_of(file)
    windows = windows_of(file, window_of(file, always=True), by_turns(n_layers, PERIOD))
    plain = replace(attention_of(file, qk_norm="head"), score_scale=1.0, value_norm=True)
    attentions = with_shared_keys(
        [plain if window is None else replace(plain, rope=1, window=window) for window in windows],
        min(SHARED_FROM, n_layers) if file.is_gguf else n_layers - n_sharing(file, n_layers),
        file.source,
    )
    ffns = ffns_of(file, gguf_sizes(file, n_layers), cutoffs_of(file, n_layers))
    layers = [
        Layer(attention, ffn, result_norms=True)
        for attention, ffn in zip(attentions, ffns, strict=True)
    ]
    ropes = ropes_of_kinds(file, plain.head_dim, THETA_KEYS, THETAS, scaled=1)
    model = model_of(file, NAME, layers, tied=True, own_kinds=True, ropes=ropes)
    return replace(
        model,
        embedding_scale=root_scale(file),
        logit_softcap=30.0 if file.is_gguf else cap(file, "final_logit_softcapping"),
        n_streams=file.integer(
            "{arch}.altup.num_inputs" if file.is_gguf else "altup_num_inputs", default=STREAMS
        ),
        laurel_rank=laurel_rank_of(file),
        per_layer_size=file.integer("hidden_size_per_layer_input", default=PER_LAYER_SIZE),
        per_layer_rows=rows_of_table(file, model.vocab_size),
    )


def ffns_of(file: ModelFile, sizes: Sequence[int], cutoffs: Sequence[float]) -> list[Gated]:
    """Return the FFN of each layer."""
    activation = curve(file, "hidden_activation", CURVE)
    return [
        Gated(size, activation=activation, cutoff=cutoff)
        for size, cutoff in zip(sizes, cutoffs, strict=True)
    ]


def cutoffs_of(file: ModelFile, n_layers: int) -> list[float]:
    """Return each layer's cutoff, in deviations; 0 is none.

    A share of the gate's values, were they distributed normally, is below it.
    """
    key = "activation_sparsity_pattern"
    given = None if file.is_gguf else file.raw(key)
    if given is None:
        first = SPARSE_LAYERS if file.is_gguf or n_layers > SPARSE_LAYERS else 0
        given = [SPARSITY if number < first else 0.0 for number in range(n_layers)]
    shares = given if isinstance(given, list) else [given] * n_layers
    if len(shares) != n_layers or not all(
        type(share) in (int, float) and (share == 0 or 0.5 < share < 1) for share in shares
    ):
        raise file.fail(key, f"{n_layers} times 0, or a number between 0.5 and 1,")
    return [round_to_f32(NormalDist().inv_cdf(share)) if share else 0.0 for share in shares]


def laurel_rank_of(file: ModelFile) -> int:
    """Return the rank of LAuReL, which a GGUF file's tensor tells."""
    if not file.is_gguf:
        return file.integer("laurel_rank")
    down = file.tensors.get("blk.0.laurel_l.weight")
    return down.shape[0] if down is not None and len(down.shape) == 2 else 1


def rows_of_table(file: ModelFile, vocab_size: int) -> int:
    """Return the rows of the table of layers' inputs; 0 is one for each token."""
    table = file.tensors.get("per_layer_token_embd.weight")
    if file.is_gguf:
        rows = vocab_size if table is None or len(table.shape) != 2 else table.shape[0]
    else:
        rows = file.integer("vocab_size_per_layer_input", default=vocab_size)
    return 0 if rows == vocab_size else rows


def hf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Rename norms, make one matrix of the streams' projections."""
    give_layer_roles(tensors, config, OF_LAYER)
    for name, role in zip(ENDS, (Role.STREAMS_IN, Role.STREAMS_OUT), strict=True):
        parts = [f"model.{name}.{i}.weight" for i in range(config.n_streams - 1)]
        tensors.stack(parts, tensors.usual(role))
        tensors.flatten(tensors.usual(role))
    flattened(tensors, config)


def flattened(tensors: Rearranged, config: ModelConfig) -> None:
    """Make vectors of small matrices."""
    for number in range(config.n_layers):
        for role in FLAT:
            tensors.ravel(tensors.usual(role, number))
    drop_unused(tensors, config)


def gguf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Make one matrix of the streams' projections."""
    for role in (Role.STREAMS_IN, Role.STREAMS_OUT):
        tensors.flatten(tensors.usual(role))
    flattened(tensors, config)


FAMILY = Family(
    NAME,
    program,
    "gemma3n",
    hf_tensors=hf_tensors,
    gguf_tensors=gguf_tensors,
    gguf_is_usual=False,
    harmless=HARMLESS,
)
