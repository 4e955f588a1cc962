"""The fields that the references read: transformers of a config.json, llama.cpp of GGUF.

tests/golden/fields makes the table from their sources. Fields that they do not read cannot change
their answers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from lanewise.loading.base.json_files import read_object

TABLE = Path(__file__).with_name("reference_fields.json")


@cache
def _table() -> Mapping[str, Mapping[str, Any]]:
    return read_object(TABLE)


def config_fields(family: str, model_type: str | None = None) -> Mapping[str, Any]:
    """Return the fields read of a config.json, with the meaning of leaving each out.

    For some names of a family the meanings differ from those for its own name.
    """
    fields: Mapping[str, Mapping[str, Any]] = _table()["config.json"]
    return fields.get(model_type or family, fields[family])


def rope_settings(kind: str) -> Collection[str]:
    """Return the RoPE settings that are read for a type of scaling."""
    of_kinds = _table()["rope_parameters"]
    return {*of_kinds[""], *of_kinds[kind]}


def gguf_keys(arch: str) -> Collection[str]:
    """Return the GGUF keys that are read, without the architecture's prefix."""
    of_archs = _table()["gguf"]
    return {*of_archs[""], *of_archs[arch]}
