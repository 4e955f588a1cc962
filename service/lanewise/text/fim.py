"""Filling in the middle: the tokens around what is before a gap and what is behind it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

# What is before the gap, what is behind it, and where the answer begins, as families call them.
FAMILIES = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),
    ("<\uff5cfim▁begin\uff5c>", "<\uff5cfim▁hole\uff5c>", "<\uff5cfim▁end\uff5c>"),
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),
    ("<PRE>", "<SUF>", "<MID>"),
)
# Mistral's come in another order, and the answer goes on behind the prefix.
SUFFIX_FIRST = ("[PREFIX]", "[SUFFIX]")
REPOSITORY = ("<|repo_name|>", "<repo_name>", "<reponame>", "<|fim_repo|>", "<fim-repo>", "<REPO>")
FILE = ("<|file_sep|>", "<file_sep>")
# A model that has filled a gap may go on with padding, another file or another repository.
ENDS = (
    *("<|fim_pad|>", "<fim_pad>", "<fim-pad>", "<|file_separator|>"),
    *("▁<EOT>", "<EOT>", "<|endoftext|>"),
)
# Keys of GGUF's metadata below "tokenizer.ggml.", the newer first.
GGUF_KEYS = (
    ("fim_pre_token_id", "prefix_token_id"),
    ("fim_suf_token_id", "suffix_token_id"),
    ("fim_mid_token_id", "middle_token_id"),
    ("fim_rep_token_id",),
    ("fim_sep_token_id",),
    ("fim_pad_token_id",),
)


@dataclass(frozen=True, slots=True)
class FimTokens:
    """Tokens by what they announce."""

    prefix: int
    suffix: int
    middle: int | None  # None: the suffix comes first, and the prefix is what is continued
    repository: int | None = None
    file: int | None = None
    ends: frozenset[int] = frozenset()  # what may end an answer beside the ends of texts

    def prompt(self, prefix: Sequence[int], suffix: Sequence[int]) -> list[int]:
        """What a model continues with what is missing between two texts."""
        if self.middle is None:
            return [self.suffix, *suffix, self.prefix, *prefix]
        return [self.prefix, *prefix, self.suffix, *suffix, self.middle]


def find_fim(
    id_of: Callable[[str], int | None], given: Mapping[str, int] | None = None
) -> FimTokens | None:
    """The tokens of a vocabulary, or those that GGUF's metadata gives by ``GGUF_KEYS``."""
    known = given or {}
    first = (next((known[key] for key in keys if key in known), None) for keys in GGUF_KEYS)
    prefix, suffix, middle, repository, file, padding = first
    names: Sequence[str] = next((one for one in FAMILIES if None not in map(id_of, one)), ())
    if not names and None not in map(id_of, SUFFIX_FIRST):
        names = SUFFIX_FIRST
    by_name = [*map(id_of, names), None, None, None]
    prefix = by_name[0] if prefix is None else prefix
    suffix = by_name[1] if suffix is None else suffix
    middle = by_name[2] if middle is None or names is SUFFIX_FIRST else middle
    if prefix is None or suffix is None or (middle is None and names is not SUFFIX_FIRST):
        return None

    def any_of(names: Sequence[str]) -> int | None:
        return next((found for name in names if (found := id_of(name)) is not None), None)

    repository = any_of(REPOSITORY) if repository is None else repository
    file = any_of(FILE) if file is None else file
    ends = (*map(id_of, ENDS), repository, file, padding)
    known_ends = frozenset(one for one in ends if one is not None)
    return FimTokens(prefix, suffix, middle, repository, file, known_ends)
