"""The table of families; a new one is a new file and a new row."""

from __future__ import annotations

from lanewise.loading.checkpoint import ModelFileError
from lanewise.loading.families import (
    ernie4_5,
    ernie4_5_moe,
    glm4_moe,
    gpt_oss,
    granite,
    granitemoe,
    llama,
    ministral3,
    mistral,
    mixtral,
    olmoe,
    phi3,
    qwen2,
    qwen2_moe,
    qwen3,
    qwen3_moe,
    seed_oss,
    smollm3,
)
from lanewise.loading.families.family import Family

FAMILIES: tuple[Family, ...] = (
    llama.FAMILY,
    mistral.FAMILY,
    mixtral.FAMILY,
    ministral3.FAMILY,
    qwen2.FAMILY,
    qwen2_moe.FAMILY,
    qwen3.FAMILY,
    qwen3_moe.FAMILY,
    gpt_oss.FAMILY,
    phi3.FAMILY,
    granite.FAMILY,
    granitemoe.FAMILY,
    glm4_moe.FAMILY,
    ernie4_5.FAMILY,
    ernie4_5_moe.FAMILY,
    olmoe.FAMILY,
    smollm3.FAMILY,
    seed_oss.FAMILY,
)


def hf_family(model_type: str, source: str) -> Family:
    """Return the family of a config.json's model_type."""
    known = {family.name: family for family in FAMILIES}
    if model_type not in known:
        raise ModelFileError(
            f"{source}: model_type {model_type!r} is not supported; accepted are {', '.join(known)}"
        )
    return known[model_type]


def gguf_family(architecture: str, source: str) -> Family:
    """Return the family of a GGUF file's general.architecture."""
    known = {family.gguf: family for family in FAMILIES if family.gguf}
    if architecture not in known:
        raise ModelFileError(
            f"{source}: general.architecture {architecture!r} is not supported;"
            f" accepted are {', '.join(known)}"
        )
    return known[architecture]


def family_named(architecture: str) -> Family:
    """Return the family that a ModelConfig names; KeyError if there is none."""
    return {family.name: family for family in FAMILIES}[architecture]
