"""GTE: BERT with RoPE and GeGLU, model_type "new" in its makers' files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from lanewise.loading.base.formats import round_to_f32
from lanewise.loading.base.json_files import Fields
from lanewise.loading.base.program import Gated, ModelConfig
from lanewise.loading.families.common import check_values, curve
from lanewise.loading.families.encoders import encoder_family
from lanewise.loading.families.rotary_encoders import hf_tensors, rotary_model
from lanewise.loading.programs.model_file import ModelFile
from lanewise.loading.programs.rope import uniform_factors

# Required values in its makers' config.json.
MUST_BE: Mapping[str, tuple[object, ...]] = {
    "layer_norm_type": ("layer_norm",),
    "logn_attention_scale": (False,),
}
NTK = "ntk"


def program(file: ModelFile) -> ModelConfig:
    """Read config.json in transformers' form or its makers' form."""
    check_values(file, MUST_BE)
    theta = 10000.0 if file.text("model_type") == "new" else 160000.0
    scaling = file.raw("rope_scaling")
    if not isinstance(scaling, Mapping) or scaling.get("type") != NTK:
        return _model(file, theta)
    settings = Fields(scaling, f"{file.source}: rope_scaling")
    settings.ignore("type")
    factor = settings.number("factor")
    settings.refuse_unread()
    model = _model(file.replacing({"rope_scaling": None}), theta)
    if factor <= 1.0:
        return model
    (rope,) = model.ropes
    divisor = factor ** (2 / rope.rotated)
    rope = replace(
        rope,
        theta=round_to_f32(rope.theta * factor),
        factors=uniform_factors(divisor, rope.rotated),
    )
    return replace(model, ropes=(rope,))


def _model(file: ModelFile, theta: float) -> ModelConfig:
    size, activation = file.integer("intermediate_size"), curve(file, "hidden_act", "gelu")
    ffn = Gated(size, activation=activation, down_bias=True)
    return rotary_model(file, "gte", ffn, bias=True, theta=theta)


FAMILY = encoder_family("gte", program, hf_tensors)
