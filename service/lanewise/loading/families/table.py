"""The table of families; a new one is a new file and a new row."""

from __future__ import annotations

from lanewise.loading.checkpoint import ModelFileError
from lanewise.loading.families import llama, mistral, qwen2, qwen3
from lanewise.loading.families.family import Family

FAMILIES: tuple[Family, ...] = (llama.FAMILY, mistral.FAMILY, qwen2.FAMILY, qwen3.FAMILY)


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
