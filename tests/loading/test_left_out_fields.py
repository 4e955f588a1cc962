"""A field that a config.json leaves out means what the class of transformers takes, run live."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

import topics
from encoder_models import encoder_model
from family_models import FamilyModel, family_model
from lanewise.loading.base.checkpoint import ModelFileError
from lanewise.loading.base.formats import TensorType
from lanewise.loading.base.json_files import Fields
from lanewise.loading.base.program import ModelConfig
from lanewise.loading.base.sources import SourceTensor
from lanewise.loading.checkpoints.hf_checkpoint import family_of, read_program
from lanewise.loading.programs.text_part import text_fields, text_tensors
from published_configs import CASES, ENCODERS

pytestmark = pytest.mark.reference

ALL = {**CASES, **ENCODERS}
NOT_OF_TRANSFORMERS = {"bailing_moe", "minicpm"}  # whose code their makers have
TEXT_CLASSES = {"step3p7": "step3p5"}  # where the name is that of a model with a tower
SUBSETS = 30  # of fields left out at once


def sources_of(name: str) -> dict[str, SourceTensor]:
    """The tensors of a case, of which a program asks for names, shapes and single numbers."""
    model: FamilyModel = family_model(name) if name in CASES else encoder_model(name)

    def source(name: str, value: Any) -> SourceTensor:
        data = memoryview(value.tobytes())
        return SourceTensor(name, value.shape, TensorType.F32, data, lambda: None)

    return text_tensors({key: source(key, value) for key, value in model.tensors.items()}, "m")


def outcome(config: Mapping[str, Any], sources: dict[str, SourceTensor]) -> ModelConfig | str:
    """The program that a config describes, or what is wrong with it."""
    try:
        family, fields = family_of(Fields(config, "config.json"))
        return read_program(family, fields, dict(sources))[0]
    except ModelFileError as error:
        return str(error)


def known_fields(config: Mapping[str, Any], sources: dict[str, SourceTensor]) -> list[str]:
    """Those of a config that the program is made of."""
    family, fields = family_of(Fields(config, "config.json"))
    read_program(family, fields, dict(sources))
    return sorted(config.keys() - {*fields.unread(), "model_type"})


def left_out(fields: list[str], name: str) -> Iterator[set[str]]:
    """Each field alone, all of them, and many of them at once."""
    draw = random.Random(name)
    yield from ({field} for field in fields)
    yield set(fields)
    for number in range(SUBSETS):
        share = (0.15, 0.3, 0.6)[number % 3]
        yield {field for field in fields if draw.random() < share}


def as_its_class_says(config: Mapping[str, Any]) -> dict[str, Any] | None:
    """A config with all that transformers takes for what it leaves out, if it takes the config."""
    topics.module("transformers", "reference")
    from transformers import CONFIG_MAPPING

    name = config["model_type"]
    try:
        kind = CONFIG_MAPPING[TEXT_CLASSES.get(name, name)]
        written: dict[str, Any] = kind.from_dict(config).to_dict() | {"model_type": name}
    except Exception:
        return None  # its classes check what they take in ways of their own
    return written


@pytest.mark.parametrize("name", sorted(ALL.keys() - NOT_OF_TRANSFORMERS))
def test_what_is_left_out_is_what_the_class_takes(name: str) -> None:
    config, sources = text_fields(Fields(ALL[name], "config.json")).values, sources_of(name)
    fields = known_fields(config, sources)
    compared = 0
    for missing in left_out(fields, name):
        given = {key: value for key, value in config.items() if key not in missing}
        said = as_its_class_says(given)
        if said is None:
            continue
        found, expected = outcome(given, sources), outcome(said, sources)
        if isinstance(found, str):
            # A list of values for each layer is too short for as many layers as the class has.
            is_short = "num_hidden_layers" in missing and found.endswith(" values is needed")
            known = " is missing; " in found or is_short
            assert known or isinstance(expected, str), (missing, found)
        else:
            assert found == expected, missing
            compared += 1
    assert compared > len(fields) / 2
