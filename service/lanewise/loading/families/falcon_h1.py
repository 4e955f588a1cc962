"""Falcon H1: attention and Mamba 2 in parallel in every layer, with many multipliers.

Most multipliers are linear and go where they cost nothing: into the scale of scores, the
convolution's taps, the embedding and the logits. The others multiply matrices at loading, as
converters to GGUF do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from lanewise.loading.base.checkpoint import ModelFileError, Role
from lanewise.loading.base.formats import round_to_f32
from lanewise.loading.base.json_files import Fields
from lanewise.loading.base.program import (
    Layer,
    ModelConfig,
)
from lanewise.loading.base.recurrences import Ssd
from lanewise.loading.families import mamba2
from lanewise.loading.families.common import attention_of, gated_of, model_of, n_layers_of
from lanewise.loading.families.family import Family
from lanewise.loading.families.states import check_no_bias, give
from lanewise.loading.files.rearranging import Rearranged
from lanewise.loading.programs.model_file import ModelFile

# Names in a layer of a directory to roles.
OF_LAYER = {
    "pre_ff_layernorm": Role.FFN_NORM,
    "feed_forward.gate_proj": Role.FFN_GATE,
    "feed_forward.up_proj": Role.FFN_UP,
    "feed_forward.down_proj": Role.FFN_DOWN,
}
# Matrices whose rows are multiplied, in the order of ModelConfig.row_multipliers.
MULTIPLIED = (
    *(Role.ATTN_OUTPUT, Role.STATE_GATE, Role.STATE_DECAY, Role.STATE_OUT),
    *(Role.FFN_GATE, Role.FFN_DOWN),
)


@dataclass(frozen=True)
class Multipliers:
    """Multipliers from a config.json, of matrices' results or inputs."""

    attention_in: float
    attention_out: float
    key: float
    gate: float  # of the FFN, before its activation
    down: float
    state_out: float
    # Of the parts of a state's input: its gate, the convolution's input (x, B, C) and the steps.
    z: float
    convolved: tuple[float, float, float]
    steps: float

    @staticmethod
    def of(fields: Fields) -> Multipliers:
        """Read them; 1 if the config does not say."""

        def single(key: str) -> float:
            return fields.number(key, default=1.0)

        gate, down = _numbers(fields, "mlp_multipliers", 2)
        inner = single("ssm_in_multiplier")
        z, x, b, c, steps = (inner * by for by in _numbers(fields, "ssm_multipliers", 5))
        return Multipliers(
            attention_in=single("attention_in_multiplier"),
            attention_out=single("attention_out_multiplier"),
            key=single("key_multiplier"),
            gate=gate,
            down=down,
            state_out=single("ssm_out_multiplier"),
            z=z,
            convolved=(x, b, c),
            steps=steps,
        )


def _numbers(fields: Fields, key: str, n: int) -> list[float]:
    """Return ``n`` positive numbers; 1 each if the config does not say."""
    values = fields.raw(key)
    if values is None:
        return [1.0] * n
    if not isinstance(values, list) or len(values) != n:
        raise fields.fail(key, f"{n} numbers")
    return [Fields({key: value}, fields.source).number(key) for value in values]


def program(file: ModelFile) -> ModelConfig:
    """Read a file."""
    check_no_bias(file, "attention_bias", "mlp_bias", "projectors_bias", "mamba_proj_bias")
    by, attention = Multipliers.of(file), attention_of(file)
    scale = attention.score_scale * by.key * by.attention_in**2
    attention = replace(attention, score_scale=round_to_f32(scale))
    layer = Layer(attention, gated_of(file), state=state_of(file))
    config = model_of(file, "falcon_h1", [layer] * n_layers_of(file))
    if file.is_gguf:  # the tensors are already multiplied
        return config
    rows = (by.attention_in * by.attention_out, by.z, by.steps, by.state_out, by.gate, by.down)
    return replace(
        config,
        row_multipliers=rows,
        embedding_scale=round_to_f32(file.number("embedding_multiplier", default=1.0)),
        logit_scale=round_to_f32(file.number("lm_head_multiplier", default=1.0)),
    )


def state_of(file: ModelFile) -> Ssd:
    """Return the state that a file describes; in GGUF the tensors tell whether it has a norm."""
    if file.is_gguf:
        state, normed = mamba2.state_of(file), file.has(Role.STATE_NORM)
    else:
        inner = file.integer("mamba_expand") * file.integer("hidden_size")
        state = mamba2.state_of(file, file.integer("mamba_d_ssm", default=inner))
        normed = file.flag("mamba_rms_norm", default=False)
        if file.flag("mamba_norm_before_gate", default=True) and normed:
            raise file.fail("mamba_norm_before_gate", "false, with mamba_rms_norm,")
    return state if normed else replace(state, norm_size=None)


def hf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Rename tensors to the usual names."""
    tensors.rename("model.final_layernorm.weight", tensors.usual(Role.OUTPUT_NORM))
    for number, layer in enumerate(config.layers):
        folder = f"model.layers.{number}"
        assert isinstance(layer.state, Ssd)
        mamba2.hf_mixer(tensors, f"{folder}.mamba", layer.state, number)
        for name, role in OF_LAYER.items():
            give(tensors, f"{folder}.{name}.weight", role, number)


def hf_values(fields: Fields, tensors: Rearranged, config: ModelConfig) -> None:
    """Multiply tensors by the multipliers that have no other place.

    A convolution is linear: a multiplier of its input goes into its taps without rounding loss.
    """
    by = Multipliers.of(fields)
    for number, layer in enumerate(config.layers):
        assert isinstance(layer.state, Ssd)
        keys = layer.state.n_key_heads * layer.state.key_dim
        channels = np.repeat(by.convolved, (layer.state.inner, keys, keys))
        taps = channels.repeat(layer.state.taps)
        tensors.multiply_rows(tensors.usual(Role.STATE_CONV, number), taps)
    multiplied(tensors, config)


def multiplied(tensors: Rearranged, config: ModelConfig) -> None:
    """Multiply rows of matrices by the model's row_multipliers."""
    assert config.row_multipliers is not None
    for number in range(config.n_layers):
        for role, by in zip(MULTIPLIED, config.row_multipliers, strict=True):
            tensors.multiply_rows(tensors.usual(role, number), by)


def lora_values(tensors: Rearranged, config: ModelConfig) -> None:
    """Multiply rows of lora_B like the rows of the matrices that they update."""
    if config.row_multipliers is None or len(config.row_multipliers) != len(MULTIPLIED):
        where = next(iter(tensors.out.values())).where
        raise ModelFileError(
            f"{where}: the matrices of this falcon_h1 model are multiplied by factors that only its"
            " config.json has, so no adapter fits; accepted: the model's directory, or one packed"
            " or quantized from it by this version"
        )
    multiplied(tensors, config)


def gguf_tensors(tensors: Rearranged, config: ModelConfig) -> None:
    """Rename tensors; the norm before the FFN has no suffix."""
    mamba2.gguf_mixers(tensors, config)
    for number in range(config.n_layers):
        tensors.rename(f"blk.{number}.ffn_norm", tensors.usual(Role.FFN_NORM, number))


FAMILY = Family(
    "falcon_h1",
    program,
    "falcon-h1",
    hf_tensors=hf_tensors,
    hf_values=hf_values,
    lora_values=lora_values,
    gguf_tensors=gguf_tensors,
    gguf_is_usual=False,
)
