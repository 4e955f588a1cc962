"""A program in C's records: no field is forgotten, faults name file, field and value."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from family_models import write_case
from lanewise.loading.base import program, recurrences
from lanewise.loading.base.checkpoint import ModelFileError, Role
from lanewise.loading.base.drafting_heads import Taps
from lanewise.loading.base.names import ORDERS, is_vector
from lanewise.loading.base.patches import Patches
from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise.loading.programs.native_program import (
    OTHER_NAMES,
    NativeProgram,
    check_program,
    layer_shapes,
    program_tensors,
)
from lanewise.native.library import native

# Fields that have another form in C, or that only Python reads.
OTHERWISE = {
    program.Rope: {"factors", "short_factors", "short_context"},
    program.Attention: {"rope", "scaled_alibi", "head_gate", "position_scale", "sees_ahead"},
    program.Experts: {"gated"},
    program.Layer: {"attention", "state", "ffn", "follows"},
    program.ModelConfig: {
        *("architecture", "residual_scale", "row_multipliers"),
        *("ropes", "layers", "pooling", "learned_positions", "reader"),
    },
}
STRUCTS = {
    program.Rope: "lw_rope",
    program.Attention: "lw_attention_config",
    recurrences.ShortConv: "lw_state_config",
    recurrences.GatedDelta: "lw_state_config",
    recurrences.ChannelDelta: "lw_state_config",
    recurrences.Ssd: "lw_state_config",
    program.Gated: "lw_ffn_config",
    program.Plain: "lw_ffn_config",
    program.Experts: "lw_ffn_config",
    program.Layer: "lw_layer_config",
    program.Dense: "lw_dense_config",
    Taps: "lw_head_config",
    Patches: "lw_patches",
    program.ModelConfig: "lw_model_config",
}


@pytest.mark.parametrize("kind", STRUCTS, ids=lambda kind: str(kind.__name__))
def test_each_field_has_a_field_in_c(kind: type) -> None:
    fields = {name for name, _ in native().ffi.typeof(STRUCTS[kind]).fields}
    crossing = {item.name for item in dataclasses.fields(kind)} - OTHERWISE.get(kind, set())
    assert {OTHER_NAMES.get(name, name) for name in crossing} <= fields


# One of each kind of layer.
KINDS = (
    *("llama", "deepseek_v2", "falcon_h1", "gemma4"),
    *("gpt_oss", "lfm2", "nemotron_h", "qwen3_next", "kimi_linear"),
)


@pytest.mark.parametrize("name", KINDS)
def test_vectors_are_what_names_say(name: str, tmp_path: Path) -> None:
    with open_checkpoint(write_case(name, tmp_path)) as opened:
        config = opened.config
    listed = program_tensors(config)
    assert all(t.is_vector == is_vector(t.role) for t in listed)
    assert all(t.optional == (t.role in ORDERS) for t in listed)
    in_layers = [dict(layer_shapes(config, number)) for number in range(config.n_layers)]
    assert sum(map(len, in_layers)) == sum(t.of_layer for t in listed)
    assert all(in_layers[t.layer][t.role] == (t.rows, t.cols) for t in listed if t.of_layer)


def tiny(**changes: object) -> program.ModelConfig:
    attention = program.Attention(4, 2, 16, rope=0)
    config = program.ModelConfig(
        architecture="llama",
        hidden_size=64,
        vocab_size=96,
        context_length=128,
        rms_norm_eps=1e-5,
        tied_embeddings=True,
        ropes=(program.Rope(1e4, 16),),
        layers=(program.Layer(attention, program.Gated(128)),) * 2,
    )
    return dataclasses.replace(config, **changes)


def with_layer(**changes: object) -> program.ModelConfig:
    first, second = tiny().layers
    return tiny(layers=(first, dataclasses.replace(second, **changes)))


def with_attention(**changes: object) -> program.ModelConfig:
    attention = tiny().layers[0].attention
    assert attention is not None
    return with_layer(attention=dataclasses.replace(attention, **changes))


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (with_attention(n_kv_heads=3), "layer 1: 4 heads cannot share 3 KV heads evenly"),
        (with_attention(qk_norm="both"), "qk_norm is 'both'; one of none, head, whole, turned"),
        (with_attention(rope=3), "layer 1: rope is 3, there are 1"),
        (with_attention(output_gate=True, head_gate=True), "layer 1: output_gate and head_gate"),
        (with_attention(scaled_alibi=True), "layer 1: scaled_alibi is true; false is needed"),
        (with_attention(latent_rank=32, rope=9), "layer 1: rope is 9, there are 1"),
        (with_layer(output_scale=0.0), "layer 1: output_scale is 0.0; it must be above 0"),
        (with_layer(wiring="beside"), "wiring is 'beside'; one of in_turn, parallel, parallel_one"),
        (tiny(per_layer_size=8, residual_scale=0.5), "residual_scale is 0.5; 1 is needed beside"),
        (tiny(norm="layer", per_layer_size=8), "per_layer_size is 8, must be 0"),
        (
            dataclasses.replace(with_layer(state=recurrences.ShortConv(3)), norm="layer"),
            "layer 1 state: kind is 1, must be 0",
        ),
        (
            with_layer(ffn=program.Experts(4, 2, 32, "softmax", shared_gate=True)),
            "layer 1 FFN: shared_gate is 1, must be 0",
        ),
        (tiny(ropes=(program.Rope(1e4, 16, (1.0,)),)), "1 RoPE factors; 8 positive finite"),
        (
            tiny(ropes=(program.Rope(1e4, 16, (1.0,) * 8, 1.0, (1.0,) * 7 + (0.0,), 64),)),
            "8 RoPE factors; 8 positive finite numbers are needed, half the rotated dimensions",
        ),
        (tiny(pooling=program.Pooling("sum")), "pooling is 'sum'; one of none, mean, cls, last"),
    ],
)
def test_faults_are_named(config: program.ModelConfig, says: str) -> None:
    with pytest.raises(ModelFileError) as found:
        check_program(config, "dir/config.json")
    assert str(found.value).startswith(f"dir/config.json: {says}")


def test_what_fits_is_returned() -> None:
    config = tiny()
    assert check_program(config, "m") is config
    assert program_tensors(config)[0].role is Role.TOKEN_EMBEDDING
    assert NativeProgram(native(), config).struct.layers[1].attention.score_scale == 0.25
