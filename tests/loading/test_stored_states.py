"""Programs with states and with experts that have no gate, as packed files have them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from family_models import write_case
from lanewise.loading.base.checkpoint import ModelFileError
from lanewise.loading.base.json_files import Fields
from lanewise.loading.base.program import Experts, ModelConfig
from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise.loading.programs.native_program import layer_shapes
from lanewise.loading.programs.stored_program import program_as_json, read_program


def program_of(path: Path) -> ModelConfig:
    with open_checkpoint(path) as checkpoint:
        return checkpoint.config


def test_stored_programs_with_states(tmp_path: Path) -> None:
    """Fields of a state that nobody knows, and two of what there is one of."""
    config = program_of(write_case("nemotron_h", tmp_path / "hf"))
    stored = json.loads(json.dumps(program_as_json(config)))
    assert read_program(Fields(stored, "m")) == config
    assert set(stored["layers"][0]) == {"ssd"}
    for changes, message in (
        ({"ssd": stored["layers"][0]["ssd"] | {"other": 1}}, "other: missing or unknown"),
        ({"ssd": stored["layers"][0]["ssd"], "short_conv": {"taps": 3}}, "one of each of"),
        (
            {"ssd": stored["layers"][0]["ssd"] | {"taps": 1}},
            "layer 0 state: taps is 1, must be 2 to 8",
        ),
    ):
        layers = [changes, *stored["layers"][1:]]
        with pytest.raises(ModelFileError, match=message):
            read_program(Fields(stored | {"layers": layers}, "m"))


def test_stored_experts_without_a_gate(tmp_path: Path) -> None:
    """They are said to be so, have no such tensors, and cannot be clamped."""
    config = program_of(write_case("nemotron_h_moe", tmp_path / "hf"))
    stored = json.loads(json.dumps(program_as_json(config)))
    assert read_program(Fields(stored, "m")) == config
    experts = stored["layers"][1]["experts"]
    assert (experts["gated"], experts["activation"]) == (False, "relu_squared")
    for activation, says in (
        ("square", "activation is 'square'; one of silu, clamped, gelu, .* is needed"),
        ("clamped", "layer 1 FFN: activation is 1, which needs a gate"),
    ):
        changed = {"experts": experts | {"activation": activation}}
        layers = [stored["layers"][0], changed, *stored["layers"][2:]]
        with pytest.raises(ModelFileError, match=says):
            read_program(Fields(stored | {"layers": layers}, "m"))
    roles = layer_shapes(config, 1)
    assert not any("GATE" in role.name for role in roles)
    first, one, *rest = config.layers
    gated_too = replace(config, layers=(first, replace(one, ffn=gated_like(config)), *rest))
    assert {role.name for role in set(layer_shapes(gated_too, 1)) - set(roles)} == {
        "EXPERTS_GATE",
        "SHARED_GATE",
    }


def gated_like(config: ModelConfig) -> Experts:
    ffn = config.layers[1].ffn
    assert isinstance(ffn, Experts)
    return replace(ffn, gated=True)
