"""Texts of models that compare their tokens (ColBERT): lengths, expansion, what is left out."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken

from lanewise.loading.base.checkpoint import ModelFileError
from lanewise.loading.base.sentences import TokenVectors
from lanewise.text.backend import Library
from lanewise.text.whole_texts import Ids, WholeText

logger = logging.getLogger(__name__)

Mask = NDArray[np.bool_]
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class ComparedTokens:
    """What is done to the texts of one side, and with their rows."""

    vectors: TokenVectors
    skipped: Ids  # of documents
    expansion_id: int = 0  # of what queries are made longer with
    is_mean: bool = False  # scores are divided by the number of the query's tokens

    @property
    def cuts_queries(self) -> bool:
        """Whether queries that are longer than all are made are cut."""
        expansion = self.vectors.expansion
        return expansion is not None and expansion.cuts

    def limit(self, is_query: bool, most: int) -> int:
        """Tokens that a text may have."""
        said = self.vectors.query_length if is_query else self.vectors.document_length
        expansion = self.vectors.expansion
        if is_query and expansion is not None and expansion.cuts:
            said = expansion.length
        return most if said is None else min(most, said)

    def expanded(self, query: WholeText, most: int) -> tuple[WholeText, int]:
        """A query as long as all are made, of at most so many, and how many tokens are seen."""
        expansion, n = self.vectors.expansion, len(query.ids)
        missing = 0 if expansion is None else min(expansion.length, most) - n
        if expansion is None or missing <= 0:
            return query, n
        ids = np.concatenate([query.ids, np.full(missing, self.expansion_id, np.uint32)])
        types = np.concatenate([query.types, np.zeros(missing, np.uint32)])
        return WholeText(ids, types), len(ids) if expansion.attend else n

    def kept(self, ids: Ids, is_query: bool) -> Mask:
        """Which of a text's tokens are compared."""
        if is_query:
            return np.ones(len(ids), bool)
        return ~np.isin(ids, self.skipped)

    def score(self, query: Floats, document: Floats) -> float:
        """The sum over the query's tokens of the largest product with one of the document's."""
        if not len(document) or not len(query):
            return 0.0
        products = query.astype(np.float64) @ document.astype(np.float64).T
        total = float(products.max(axis=1).sum())
        return total / len(query) if self.is_mean else total


def compared_tokens(
    vectors: TokenVectors, library: Library, similarity: str, mask: str | None, source: str
) -> ComparedTokens:
    """Find the tokens that are named; ``mask`` is the tokenizer's mask token.

    What prompts begin with becomes one token of ``library`` where it is in the vocabulary.
    """
    for prefix in vectors.control:
        _make_control(library, prefix)
    expansion, found = vectors.expansion, 0
    if expansion is not None:
        name = expansion.token or mask or "[MASK]"
        token = library.token_to_id(name)
        if token is None:
            raise ModelFileError(
                f"{source}: queries are made longer with {name!r}, which is no token; accepted: one"
                " of the vocabulary"
            )
        found = token
    return ComparedTokens(
        vectors, _ids(vectors.skipped, library), found, is_mean=similarity == "meanmaxsim"
    )


def _ids(words: Sequence[str], library: Library) -> Ids:
    """The tokens of words that are one; no unknown token, which others are too."""
    found = [token for word in words if (token := library.token_to_id(word)) is not None]
    return np.array(sorted(found), np.uint32)


def _make_control(library: Library, prefix: str) -> None:
    """Have a prefix, or its first word, be read as the token that it is in the vocabulary.

    Files may have it as a word that the normalizer or the splitting of words would take apart.
    """
    for name in (prefix, *prefix.split(None, 1)[:1]):
        token = library.token_to_id(name)
        if token is None:
            continue
        if list(library.encode(name, add_special_tokens=False).ids) != [token]:
            library.add_special_tokens([AddedToken(name, normalized=False, special=True)])
        return
