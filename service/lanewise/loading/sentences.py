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
class Expansion:
    """Tokens behind a query until it has so many: their rows are compared as its own are."""

    length: int
    attend: bool  # whether others see them
    token: str | None = None  # None: the tokenizer's mask token
    cuts: bool = True  # queries that are longer are cut to this length


@dataclass(frozen=True, slots=True)
class TokenVectors:
    """How texts are compared by the vectors of their tokens, as ColBERT does."""

    skipped: tuple[str, ...] = ()  # tokens of documents that are not compared
    query_length: int | None = None  # with special tokens; None: as any text
    document_length: int | None = None
    expansion: Expansion | None = None
    control: tuple[str, ...] = ()  # what prompts begin with that is one token


@dataclass(frozen=True, slots=True)
class SentenceModel:
    """What a directory says about texts and their vectors."""

    pooling: str  # mean | cls | last; none: each token's row is a vector
    normalize: bool  # to length 1, behind everything else
    dense: tuple[DenseModule, ...] = ()
    max_tokens: int | None = None  # of a text with its special tokens; None: what the model takes
    lower_case: bool = False  # texts are made so before they are cut into tokens
    prompts: Mapping[str, str] = field(default_factory=dict)  # by name; put before a text
    default_prompt: str | None = None  # the name of the one for requests that name none
    similarity: str = COSINE
    tokens: TokenVectors | None = None  # of models whose pooling is none

    def prepare(self, text: str) -> str:
        """Return a text as it is cut into tokens."""
        text = text.strip()
        return text.lower() if self.lower_case else text
