"""GGUF's metadata keys for vocabularies, chat templates and sampling defaults."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

PREFIX = "tokenizer.ggml."
TEMPLATE = "tokenizer.chat_template"
LABELS = "tokenizer.labels"  # no key of files: the names of a classifier's scores
TEXT_KEYS = ("tokenizer.", "general.sampling.")  # prefixes of all these keys
SAMPLING_KEYS: Mapping[str, str] = {  # generation_config.json's names to GGUF's
    "temperature": "general.sampling.temp",
    "top_p": "general.sampling.top_p",
    "top_k": "general.sampling.top_k",
    "min_p": "general.sampling.min_p",
    "repetition_penalty": "general.sampling.penalty_repeat",
}


class TokenType(IntEnum):
    """Kinds of token in tokenizer.ggml.token_type, which are SentencePiece's numbers."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


def template_keys(templates: Mapping[str, str]) -> dict[str, str]:
    """Return the metadata for chat templates by name; "default" adds nothing to the key."""
    return {
        TEMPLATE + ("" if name == "default" else f".{name}"): template
        for name, template in templates.items()
    }
