"""What a directory may say of texts and their vectors, beside the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

COSINE = "cosine"


@dataclass(frozen=True, slots=True)
class DenseModule:
    """A matrix behind the pooling: ``folder`` has its weights, linear.weight and linear.bias."""

    folder: Path
    inputs: int
    outputs: int
    bias: bool
    activation: str  # by its name in a program


@dataclass(frozen=True, slots=True)
class SentenceModel:
    """What a directory says about texts and their vectors."""

    pooling: str  # mean | cls | last
    normalize: bool  # to length 1, behind everything else
    dense: tuple[DenseModule, ...] = ()
    max_tokens: int | None = None  # of a text with its special tokens; None: what the model takes
    lower_case: bool = False  # texts are made so before they are cut into tokens
    prompts: Mapping[str, str] = field(default_factory=dict)  # by name; put before a text
    default_prompt: str | None = None  # the name of the one for requests that name none
    similarity: str = COSINE

    def prepare(self, text: str) -> str:
        """Return a text as it is cut into tokens."""
        text = text.strip()
        return text.lower() if self.lower_case else text
