"""What belongs to the texts of a model that is pooled: limits, prompts, labels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lanewise.loading.base.checkpoint import Checkpoint, ModelFileError, TokenizerFiles
from lanewise.loading.base.sentences import SentenceModel
from lanewise.loading.pooling.heads import SCORES
from lanewise.loading.pooling.judges import template_of
from lanewise.loading.vocabulary.gguf_text import LABELS
from lanewise.text.compared_tokens import ComparedTokens, compared_tokens
from lanewise.text.judged_pairs import JudgedPairs
from lanewise.text.tokenizer import Tokenizer
from lanewise.text.whole_texts import WholeTexts

CONFIG = "config.json"
# Names of one another, where a model has a prompt under only one of them.
ALIKE = (("query", "search_query"), ("document", "passage", "search_document", "corpus"))


@dataclass(frozen=True)
class PooledText:
    """How texts become tokens, and what their rows are."""

    whole: WholeTexts
    has_types: bool = False  # the model tells the texts of a pair apart by types of tokens
    labels: tuple[str, ...] = ()  # a row is a score of each; none: it is an embedding
    is_multi_label: bool = False  # labels do not exclude each other
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    max_tokens: int | None = None  # of a text, where its makers say less than the model takes
    is_raw: bool = False  # the scores of pairs are as the model gives them, and not from 0 to 1
    pooling: str = "mean"
    normalize: bool = False
    judged: JudgedPairs | None = None  # how pairs are written, of whose scores yes and no are two
    compared: ComparedTokens | None = None  # of a model that makes a vector of each token

    @property
    def ranks(self) -> bool:
        """Whether it scores pairs by one number."""
        return len(self.labels) == 1

    @property
    def takes_instruction(self) -> bool:
        """Whether requests may say what makes a document fit."""
        return self.judged is not None and bool(self.judged.instruction)

    def pairs(
        self, pairs: Sequence[tuple[str, str]], instruction: str | None = None
    ) -> Sequence[tuple[str, str]]:
        """The texts of pairs that are scored; without an instruction the usual one is in them."""
        return pairs if self.judged is None else self.judged.texts(pairs, instruction)

    def values(self, row: Sequence[float]) -> Sequence[float]:
        """A row as one value for each label: of yes and no, how much likelier yes is."""
        return row if self.judged is None else [row[0] - row[1]]

    def scores(self, values: Sequence[float]) -> list[float]:
        """The scores of pairs, as the makers of the model have them read."""
        return list(values) if self.is_raw else list(map(sigmoid, values))

    def is_query(self, name: str | None) -> bool:
        """Whether a prompt's name says that texts are queries."""
        return name in ALIKE[0]

    def prompt(self, name: str | None) -> str | None:
        """The text before a text for a prompt's name, or for none; None: there is no such."""
        if name is None:
            name = self.default_prompt
            return "" if name is None else self.prompts[name]
        if name in self.prompts:
            return self.prompts[name]
        alike = next((names for names in ALIKE if name in names), ())
        return next((self.prompts[one] for one in alike if one in self.prompts), None)

    def probabilities(self, row: Sequence[float]) -> list[float]:
        """Values of a row as numbers from 0 to 1, in all 1 if one label excludes the others."""
        if self.ranks or self.is_multi_label:
            return [sigmoid(score) for score in row]
        largest = max(row)
        powers = [math.exp(score - largest) for score in row]
        total = sum(powers)
        return [power / total for power in powers]


def sigmoid(score: float) -> float:
    """A score as a number from 0 to 1."""
    if score >= 0:
        return 1 / (1 + math.exp(-score))
    power = math.exp(score)
    return power / (1 + power)


def of_checkpoint(checkpoint: Checkpoint, tokenizer: Tokenizer) -> PooledText:
    """What belongs to the texts of a checkpoint that is pooled."""
    config = checkpoint.config
    assert config.pooling is not None
    dense = config.pooling.dense
    return pooled_text(
        tokenizer,
        checkpoint.tokenizer,
        checkpoint.sentences,
        has_types=config.n_token_types > 1,
        pooling=config.pooling.kind,
        normalize=config.pooling.normalize,
        n_outputs=dense[-1].outputs if dense else config.hidden_size,
        template=template_of(checkpoint),
    )


def pooled_text(
    tokenizer: Tokenizer,
    files: TokenizerFiles,
    sentence: SentenceModel | None,
    *,
    has_types: bool,
    pooling: str,
    normalize: bool,
    n_outputs: int,
    template: str | None = None,
) -> PooledText:
    """Put together what a checkpoint's files say; ``n_outputs`` floats are in a row.

    ``template`` is how a pair is written for a model that answers yes or no.
    """
    config = files.json_files.get(CONFIG, {})
    if template is not None:
        judged = JudgedPairs.of(template, str(files.path), tokenizer.first_control)
        return PooledText(
            whole=WholeTexts(tokenizer, pair=judged.fixed),
            labels=("yes",),
            pooling=pooling,
            judged=judged,
        )
    labels, is_multi_label = _labels(config, n_outputs, str(files.path))
    if files.gguf is not None:
        labels = tuple(files.gguf.get(LABELS, ()))
    prepare = (lambda text: text) if sentence is None else sentence.prepare
    compared = None
    if sentence is not None and sentence.tokens is not None:
        mask = tokenizer.special_tokens.get("mask_token")
        compared = compared_tokens(
            *(sentence.tokens, tokenizer.whole, sentence.similarity, mask, str(files.path))
        )
    return PooledText(
        whole=WholeTexts(tokenizer, prepare),
        has_types=has_types,
        labels=labels,
        is_multi_label=is_multi_label,
        is_raw=_is_raw(config),
        prompts={} if sentence is None else sentence.prompts,
        default_prompt=None if sentence is None else sentence.default_prompt,
        max_tokens=None if sentence is None else sentence.max_tokens,
        pooling=pooling,
        normalize=normalize,
        compared=compared,
    )


def _is_raw(config: Mapping[str, Any]) -> bool:
    """Whether sentence-transformers does nothing to scores: by its newer field, or the older."""
    newer = config.get("sentence_transformers")
    name = newer.get("activation_fn") if isinstance(newer, Mapping) else None
    if name is None:
        name = config.get("sbert_ce_default_activation_function")
    return isinstance(name, str) and name.rpartition(".")[2] == "Identity"


def _labels(config: Mapping[str, Any], n_outputs: int, source: str) -> tuple[tuple[str, ...], bool]:
    architectures = config.get("architectures")
    names = architectures if isinstance(architectures, list) else []
    if not any(isinstance(name, str) and name.endswith(SCORES) for name in names):
        return (), False
    said = config.get("id2label")
    given = said if isinstance(said, Mapping) else {}
    labels = [given.get(str(index), f"LABEL_{index}") for index in range(n_outputs)]
    if not all(isinstance(label, str) for label in labels):
        raise ModelFileError(f"{source}/{CONFIG}: id2label: strings are needed")
    return tuple(labels), config.get("problem_type") == "multi_label_classification"
