"""The vocabulary with which a grammar is compiled only to see whether it can be."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

from lanewise.text.grammar import GrammarSource, first_matchers, library_grammar


class ProbeVocabulary:
    """A vocabulary as far as compiling depends on it: its size, its control tokens, single bytes.

    The masks of whole vocabularies are the matcher's work, which its own limits bound.
    """

    is_tokenizer_wrapper = True

    def __init__(self, described: Mapping[str, Any]) -> None:
        from llguidance import LLTokenizer

        names = dict(described["special"])
        n_tokens = max(described["n_tokens"], len(names) + 256)
        plain = (i for i in range(n_tokens) if i not in names)
        self._id_of_byte = list(islice(plain, 256))
        self.tokens = [b""] * n_tokens
        for byte, token in enumerate(self._id_of_byte):
            self.tokens[token] = bytes([byte])
        for token, name in names.items():
            self.tokens[token] = name.encode("utf-8", "replace")
        self.special_token_ids = sorted(names)
        self.eos_token_id = min(described["eos_ids"])
        self.bos_token_id = described["bos_id"]
        library = LLTokenizer(
            self,  # type: ignore[arg-type]
            n_vocab=n_tokens,
            eos_token=sorted(described["eos_ids"]),
        )
        self.tokens = []  # the library has a copy
        self.library = library
        # What the first grammar brings into memory is not that grammar's.
        first_matchers(library, library_grammar(GrammarSource.from_json_schema(True)))

    def __call__(self, text: str | bytes) -> list[int]:
        """The tokens of a text, one for each byte."""
        text = text.encode() if isinstance(text, str) else text
        return [self._id_of_byte[byte] for byte in text]
