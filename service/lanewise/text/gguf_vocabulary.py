"""Checked access to what GGUF metadata says of a vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lanewise.loading.base.checkpoint import ModelFileError, TokenizerFiles
from lanewise.loading.vocabulary.directory_text import warn_of_no_token
from lanewise.loading.vocabulary.gguf_text import PREFIX, TokenType
from lanewise.text.backend import warn_of_rowless

SPACE = "▁"


CONTROL_TYPES = frozenset({2, 3})  # UNKNOWN, CONTROL
LITERAL_TYPES = frozenset({2, 3, 4, 5})  # all but NORMAL and BYTE
ADDED_TYPES = frozenset({3, 4, 5})  # CONTROL, USER_DEFINED, UNUSED: no text needs them


class Vocabulary:
    """Checked access to the tokenizer's metadata."""

    def __init__(self, files: TokenizerFiles) -> None:
        self.path = files.path
        self.metadata: Mapping[str, Any] = files.gguf or {}
        if f"{PREFIX}model" not in self.metadata:
            raise ModelFileError(
                f"{self.path}: {PREFIX}model is missing: the file holds no tokenizer"
            )
        self.tokens = self.array("tokens", str)
        if "" in self.tokens:
            self.tokens = [text or f"[EMPTY_{index}]" for index, text in enumerate(self.tokens)]
        self.types: Sequence[int] = self.array("token_type", int, required=False)
        if not self.types:
            self.types = [TokenType.NORMAL] * len(self.tokens)
        if len(self.types) != len(self.tokens):
            raise self.error("token_type", f"{len(self.types)} entries, {len(self.tokens)} tokens")
        self.n_left_out = 0  # tokens
        self._no_tokens: set[str] = set()  # keys that name none, which is said once
        self._leave_out_rowless(files.vocab_size)
        # Most tokens are normal: those that are not, as (id, kind).
        normal = TokenType.NORMAL.value
        self.unusual = [(i, kind) for i, kind in enumerate(self.types) if kind != normal]
        self.ids = self._by_text()

    def rename(self, name: Callable[[str], str]) -> None:
        """Call every token as ``name`` says."""
        self.tokens = list(map(name, self.tokens))
        self.ids = self._by_text()

    def _by_text(self) -> dict[str, int]:
        ids = dict(zip(self.tokens, range(len(self.tokens)), strict=True))
        if len(ids) != len(self.tokens):
            twice = next(text for index, text in enumerate(self.tokens) if ids[text] != index)
            raise self.error("tokens", f"{twice!r} occurs twice")
        return ids

    def _leave_out_rowless(self, n_rows: int) -> None:
        """Forget tokens at the end that were added without rows of the model for them."""
        if set(self.types[n_rows:]) <= ADDED_TYPES and len(self.tokens) > n_rows > 0:
            warn_of_rowless(str(self.path), self.tokens[n_rows:])
            self.n_left_out = len(self.tokens) - n_rows
            self.tokens, self.types = self.tokens[:n_rows], self.types[:n_rows]

    def check_lengths(self, most: int) -> None:
        """ModelFileError if a token has more characters."""
        index, length = max(enumerate(map(len, self.tokens)), key=lambda found: found[1])
        if length > most:
            raise self.error(f"tokens[{index}]", f"{length} characters; accepted: at most {most}")

    def error(self, key: str, problem: str) -> ModelFileError:
        """What to raise of a key."""
        return ModelFileError(f"{self.path}: {PREFIX}{key}: {problem}")

    def get(self, key: str, kind: type, default: Any = None) -> Any:
        """A value of just this type; ModelFileError if it is another, or missing."""
        value = self.metadata.get(PREFIX + key, default)
        if type(value) is not kind:
            found = "missing" if value is None else repr(value)[:80]
            raise self.error(key, f"{found}; a {kind.__name__} is needed")
        return value

    def array(self, key: str, kind: type, required: bool = True) -> list[Any]:
        """An array of just this type."""
        value = self.get(key, list, default=None if required else [])
        if set(map(type, value)) - {kind}:
            raise self.error(key, f"not an array of {kind.__name__}")
        return list(value)

    def token_id(self, key: str) -> int | None:
        """The token that a key names; None without the key, or with the number of no token.

        Some converters write 2^32 - 1 for none, or what a config says of a larger vocabulary.
        """
        if PREFIX + key not in self.metadata:
            return None
        token_id: int = self.get(key, int)
        if not 0 <= token_id < len(self.tokens):
            if key not in self._no_tokens:
                self._no_tokens.add(key)
                warn_of_no_token(f"{self.path}: {PREFIX}{key}", token_id, len(self.tokens))
            return None
        return token_id

    @property
    def adds_space_prefix(self) -> bool:
        """Whether a text gets a space before its first word."""
        return bool(self.get("add_space_prefix", bool, default=self.get("model", str) != "gpt2"))

    def scores(self) -> list[float]:
        """The score of every token."""
        scores: list[float] = self.array("scores", float)
        if self.n_left_out:
            scores = scores[: -self.n_left_out]
        if len(scores) != len(self.tokens):
            raise self.error("scores", f"{len(scores)} for {len(self.tokens)} tokens")
        return scores
