"""How a model's makers want its answers drawn, for requests that do not say."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lanewise.loading.base.checkpoint import TokenizerFiles
from lanewise.loading.vocabulary.gguf_text import SAMPLING_KEYS

logger = logging.getLogger(__name__)

FILE = "generation_config.json"
# What requests may ask for, too.
RANGES: Mapping[str, tuple[float, float]] = {
    "temperature": (0, 2),
    "top_p": (0, 1),
    "top_k": (-1, 2**31 - 1),
    "min_p": (0, 1),
    "repetition_penalty": (0.01, 100),
}


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """What a request gets that does not say; without a model's own, OpenAI's."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # which switches it off
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    @classmethod
    def of_model(cls, files: TokenizerFiles) -> SamplingDefaults:
        """Those of a model's files. A value that no request may have is left out, with a warning.

        ``do_sample`` and ``max_new_tokens`` count for nothing, as in other servers.
        """
        found = _said(files)
        return cls(**{name: found[name] for name in RANGES if name in found})

    def unusual(self) -> dict[str, float]:
        """Those that are not OpenAI's."""
        usual = SamplingDefaults()
        values = ((name, getattr(self, name)) for name in RANGES)
        return {name: value for name, value in values if value != getattr(usual, name)}

    def gguf_metadata(self) -> dict[str, float]:
        """The same as GGUF's metadata says it."""
        return {
            SAMPLING_KEYS[name]: value if name == "top_k" else float(value)
            for name, value in self.unusual().items()
        }

    def __str__(self) -> str:
        """Those that are not OpenAI's; empty if there are none."""
        return ", ".join(f"{name} {value:g}" for name, value in self.unusual().items())


def source_of(files: TokenizerFiles) -> str:
    """Where the defaults of a model are from."""
    return FILE if files.gguf is None else "the model file"


def _said(files: TokenizerFiles) -> dict[str, Any]:
    kept = {}
    for name, (least, most) in RANGES.items():
        key = name if files.gguf is None else SAMPLING_KEYS[name]
        where = files.json_files.get(FILE, {}) if files.gguf is None else files.gguf
        value = where.get(key)
        if value is None:
            continue
        kinds = (int,) if name == "top_k" else (int, float)
        if type(value) in kinds and least <= value <= most:
            kept[name] = max(value, 0) if name == "top_k" else value
        else:
            logger.warning(
                "%s: %s is %.80r and is not used; accepted: %g to %g",
                *(files.path, key, value, least, most),
            )
    return kept
