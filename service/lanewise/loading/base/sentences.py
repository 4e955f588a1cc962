"""How texts become vectors, as a directory's files describe it beside the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

COSINE = "cosine"


@dataclass(frozen=True, slots=True)
class DenseModule:
    """A matrix applied after the pooling; ``folder`` has linear.weight and linear.bias."""

    folder: Path
    inputs: int
    outputs: int
    bias: bool
    activation: str  # by its name in programs


@dataclass(frozen=True, slots=True)
class Expansion:
    """Tokens appended to a query up to a fixed length; their rows are compared too."""

    length: int
    attend: bool  # whether the query's own tokens attend to them
    token: str | None = None  # None: the tokenizer's mask token
    cuts: bool = True  # longer queries are cut to this length


@dataclass(frozen=True, slots=True)
class TokenVectors:
    """How texts are compared by the vectors of their tokens, as in ColBERT."""

    skipped: tuple[str, ...] = ()  # document tokens that are not compared
    query_length: int | None = None  # special tokens included; None: no own limit
    document_length: int | None = None
    expansion: Expansion | None = None
    control: tuple[str, ...] = ()  # single tokens with which prompts begin


@dataclass(frozen=True, slots=True)
class SentenceModel:
    """How texts become vectors, and how vectors are compared."""

    pooling: str  # mean, cls or last; none: a vector for each token
    normalize: bool  # to length 1, as the last step
    dense: tuple[DenseModule, ...] = ()
    max_tokens: int | None = None  # special tokens included; None: the model's limit
    lower_case: bool = False  # texts are lower-cased before tokenization
    prompts: Mapping[str, str] = field(default_factory=dict)  # by name; put before a text
    default_prompt: str | None = None  # name of the prompt for requests that name none
    similarity: str = COSINE
    tokens: TokenVectors | None = None  # if pooling is none

    def prepare(self, text: str) -> str:
        """Return the text that is tokenized."""
        text = text.strip()
        return text.lower() if self.lower_case else text
