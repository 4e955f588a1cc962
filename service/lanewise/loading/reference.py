"""What the references read of model files: transformers of a config.json, llama.cpp of GGUF.

The table is made of their sources by tests/golden/fields. What they do not read cannot change
their answers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from lanewise.loading.json_files import read_object

TABLE = Path(__file__).with_name("reference_fields.json")


@cache
def _table() -> Mapping[str, Mapping[str, Any]]:
    return read_object(TABLE)


def config_fields(family: str, model_type: str | None = None) -> Mapping[str, Any]:
    """Return what is read of a config.json, and what each field means where it is left out.

    Some of a family's names have other meanings than its own name.
    """
    fields: Mapping[str, Mapping[str, Any]] = _table()["config.json"]
    return fields.get(model_type or family, fields[family])


def rope_settings(kind: str) -> Collection[str]:
    """Return what is read of RoPE's settings of a type."""
    of_kinds = _table()["rope_parameters"]
    return {*of_kinds[""], *of_kinds[kind]}


def gguf_keys(arch: str) -> Collection[str]:
    """Return what is read of GGUF metadata, without the architecture before it."""
    of_archs = _table()["gguf"]
    return {*of_archs[""], *of_archs[arch]}
