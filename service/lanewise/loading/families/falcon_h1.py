"""Falcon H1: attention and Mamba 2 side by side in every layer, with multipliers of their own.

Most of them are linear and go where they cost nothing: into the scale of scores, taps, embedding
and logits. What is left multiplies matrices as they are loaded, as those who write GGUF files do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from lanewise.loading.checkpoint import ModelFileError, Role
from lanewise.loading.families import mamba2
from lanewise.loading.families.common import has, hf_attention, hf_gated, hf_model, hf_n_layers
from lanewise.loading.families.family import Family
from lanewise.loading.families.gguf import gguf_attention, gguf_gated, gguf_model, gguf_n_layers
from lanewise.loading.families.naming import usual
from lanewise.loading.families.states import check_no_bias, give
from lanewise.loading.formats import round_to_f32
from lanewise.loading.json_files import Fields
from lanewise.loading.names import GGUF
from lanewise.loading.program import Layer, ModelConfig, Ssd
from lanewise.loading.rearranging import Rearranged
from lanewise.loading.sources import Sources

# What each name in a layer of a Hugging Face file is.
OF_LAYER = {
    "pre_ff_layernorm": Role.FFN_NORM,
    "feed_forward.gate_proj": Role.FFN_GATE,
    "feed_forward.up_proj": Role.FFN_UP,
    "feed_forward.down_proj": Role.FFN_DOWN,
}
# Whose rows are multiplied, in the order of ModelConfig.row_multipliers.
MULTIPLIED = (
    *(Role.ATTN_OUTPUT, Role.STATE_GATE, Role.STATE_DECAY, Role.STATE_OUT),
    *(Role.FFN_GATE, Role.FFN_DOWN),
)


@dataclass(frozen=True)
class Multipliers:
    """Of a config.json: what results of matrices, or their inputs, are multiplied by."""

    attention_in: float
    attention_out: float
    key: float
    gate: float  # of the FFN, before its curve
    down: float
    state_out: float
    # Of the input of a state: its gate, what is convolved (x, B, C) and steps.
    z: float
    convolved: tuple[float, float, float]
    steps: float

    @staticmethod
    def of(fields: Fields) -> Multipliers:
        """Read them; 1 where a config does not say."""

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
    """Return so many positive numbers; 1 where a config does not say."""
    values = fields.raw(key)
    if values is None:
        return [1.0] * n
    if not isinstance(values, list) or len(values) != n:
        raise fields.fail(key, f"{n} numbers")
    return [Fields({key: value}, fields.source).number(key) for value in values]


def from_hf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read config.json."""
    check_no_bias(fields, "attention_bias", "mlp_bias", "projectors_bias", "mamba_proj_bias")
    by = Multipliers.of(fields)
    attention = hf_attention(fields, sources)
    scale = attention.score_scale * by.key * by.attention_in**2
    attention = replace(attention, score_scale=round_to_f32(scale))
    layer = Layer(attention, hf_gated(fields, sources), state=hf_state(fields))
    config = hf_model(fields, "falcon_h1", [layer] * hf_n_layers(fields, sources))
    rows = (by.attention_in * by.attention_out, by.z, by.steps, by.state_out, by.gate, by.down)
    return replace(
        config,
        row_multipliers=rows,
        embedding_scale=round_to_f32(fields.number("embedding_multiplier", default=1.0)),
        logit_scale=round_to_f32(fields.number("lm_head_multiplier", default=1.0)),
    )


def hf_state(fields: Fields) -> Ssd:
    """Return the state that a config describes."""
    mamba2.check_steps(fields)
    hidden, n_heads = fields.integer("hidden_size"), fields.integer("mamba_n_heads", default=128)
    inner = fields.integer("mamba_expand", default=2) * hidden
    if fields.meant("mamba_d_ssm") is not None:
        inner = fields.integer("mamba_d_ssm")
    n_key_heads = fields.integer("mamba_n_groups", default=1)
    value_dim = inner // n_heads
    if fields.raw("mamba_d_head") not in (None, "auto"):
        value_dim = fields.integer("mamba_d_head")
    if n_heads * value_dim != inner:
        raise fields.fail("mamba_d_head", f"{inner} divided by the number of heads, {n_heads},")
    normed = fields.flag("mamba_rms_norm", default=False)
    if fields.flag("mamba_norm_before_gate", default=True) and normed:
        raise fields.fail("mamba_norm_before_gate", "false, with mamba_rms_norm,")
    return Ssd(
        taps=fields.integer("mamba_d_conv", default=4),
        n_heads=n_heads,
        value_dim=value_dim,
        n_key_heads=n_key_heads,
        key_dim=fields.integer("mamba_d_state", default=256),
        norm_size=inner // n_key_heads if normed else None,
        conv_bias=fields.flag("mamba_conv_bias", default=True),
    )


def hf_tensors(sources: Sources, config: ModelConfig) -> Sources:
    """Give tensors their usual names."""
    tensors = Rearranged(sources)
    tensors.rename("model.final_layernorm.weight", usual(Role.OUTPUT_NORM))
    for number, layer in enumerate(config.layers):
        folder = f"model.layers.{number}"
        assert isinstance(layer.state, Ssd)
        mamba2.hf_mixer(tensors, f"{folder}.mamba", layer.state, number)
        for name, role in OF_LAYER.items():
            give(tensors, f"{folder}.{name}.weight", role, number)
    return tensors.out


def hf_values(fields: Fields, sources: Sources, config: ModelConfig) -> Sources:
    """Multiply tensors by what nothing else takes.

    Convolutions are linear: what multiplies their inputs multiplies taps, which lose nothing.
    """
    by, tensors = Multipliers.of(fields), Rearranged(sources)
    for number, layer in enumerate(config.layers):
        assert isinstance(layer.state, Ssd)
        keys = layer.state.n_key_heads * layer.state.key_dim
        channels = np.repeat(by.convolved, (layer.state.inner, keys, keys))
        taps = channels.repeat(layer.state.taps)
        tensors.multiply_rows(usual(Role.STATE_CONV, number), taps)
    return multiplied(tensors.out, config)


def multiplied(sources: Sources, config: ModelConfig) -> Sources:
    """Multiply rows of matrices by the model's numbers."""
    assert config.row_multipliers is not None
    tensors = Rearranged(sources)
    for number in range(config.n_layers):
        for role, by in zip(MULTIPLIED, config.row_multipliers, strict=True):
            tensors.multiply_rows(usual(role, number), by)
    return tensors.out


def lora_values(sources: Sources, config: ModelConfig) -> Sources:
    """Multiply rows of lora_B as those of the matrices that they are added to."""
    if config.row_multipliers is None or len(config.row_multipliers) != len(MULTIPLIED):
        where = next(iter(sources.values())).where
        raise ModelFileError(
            f"{where}: matrices of this falcon_h1 have been multiplied by what only its config.json"
            " says, so that no adapter fits; accepted: the model's directory, and what this version"
            " packs or quantizes of it"
        )
    return multiplied(sources, config)


def from_gguf(fields: Fields, sources: Sources) -> ModelConfig:
    """Read metadata; multipliers are in the tensors."""
    state = mamba2.gguf_state(fields, mamba2.has_conv_bias(sources))
    if not has(sources, Role.STATE_NORM, GGUF):
        state = replace(state, norm_size=None)
    layer = Layer(gguf_attention(fields, sources), gguf_gated(fields, sources), state=state)
    layers = [layer] * gguf_n_layers(fields, sources)
    return gguf_model(fields, sources, "falcon_h1", layers)


def gguf_tensors(sources: Sources, config: ModelConfig) -> Sources:
    """Give tensors their usual names; the norm before the FFN has no ending."""
    tensors = Rearranged(sources)
    mamba2.gguf_mixers(tensors, config)
    for number in range(config.n_layers):
        tensors.rename(f"blk.{number}.ffn_norm", usual(Role.FFN_NORM, number, GGUF))
    return tensors.out


FAMILY = Family(
    "falcon_h1",
    from_hf,
    "falcon-h1",
    from_gguf,
    hf_tensors=hf_tensors,
    hf_values=hf_values,
    lora_values=lora_values,
    gguf_tensors=gguf_tensors,
    gguf_is_usual=False,
)
