"""Reads ``tekken.json``, Mistral's form of a byte-level vocabulary, which has no merges.

A text's bytes are joined by the ranks of the results, so every way to cut a token into two others
is a merge. Control tokens have the first numbers.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lanewise.loading.base.checkpoint import ModelFileError
from lanewise.loading.base.json_files import Fields, read_object
from lanewise.loading.vocabulary.byte_letters import lettered
from lanewise.loading.vocabulary.gguf_text import TokenType

TEKKEN = "tekken.json"
# The regular expression that cuts text before merging; all published files have it.
PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# The control tokens of files up to version v7, which do not list them.
CONTROLS = (
    *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
    *("[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]"),
    *("[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
    "[TOOL_CONTENT]",
)
WITHOUT_A_LIST = ("v3", "v7")
PARTS = {"<unk>": "unknown", "<s>": "bos", "</s>": "eos", "<pad>": "padding"}
LONGEST, MAX_CONTROLS = 1024, 1 << 16  # most bytes of a token, all of whose cuts are tried
BYTES = 256  # the first tokens of the vocabulary


def read_tekken(path: Path) -> dict[str, Any]:
    """Return the vocabulary as GGUF metadata, without the prefix of its keys.

    ModelFileError if the file is not supported.
    """
    file = Fields(read_object(path), str(path))
    config = Fields(_object(file, "config"), f"{path}: config")
    if config.text("pattern") != PATTERN:
        raise config.fail("pattern", "the one of all Mistral's files")
    n_controls = config.integer("default_num_special_tokens", least=len(PARTS))
    if n_controls > MAX_CONTROLS:
        raise config.fail("default_num_special_tokens", f"at most {MAX_CONTROLS}")
    texts, kinds = _controls(file, config.text("version"), n_controls)
    n_plain = config.integer("default_vocab_size", least=n_controls + BYTES) - n_controls
    plain = _plain(file, n_plain)
    numbers = {text: number for number, text in enumerate(texts)}
    return {
        "model": "gpt2",
        "pre": "tekken",
        "tokens": [*texts, *map(lettered, plain)],
        "token_type": [*kinds, *[TokenType.NORMAL] * n_plain],
        "merges": [f"{lettered(left)} {lettered(right)}" for left, right in _merges(plain)],
        "add_bos_token": True,
        **{f"{key}_token_id": numbers[text] for text, key in PARTS.items() if text in numbers},
    }


def _object(file: Fields, key: str) -> dict[str, Any]:
    value = file.raw(key)
    if not isinstance(value, dict):
        raise file.fail(key, "an object")
    return value


def _entries(file: Fields, key: str, count: int) -> list[dict[str, Any]]:
    """Return a list of objects whose ranks are their positions."""
    given = file.raw(key)
    if not isinstance(given, list) or len(given) < count:
        raise file.fail(key, f"a list of {count}")
    for rank, entry in enumerate(given):
        if not isinstance(entry, dict) or entry.get("rank") != rank:
            raise ModelFileError(f"{file.source}: {key}[{rank}]: rank {rank} is needed")
    return given


def _controls(file: Fields, version: str, count: int) -> tuple[list[str], list[TokenType]]:
    """Return the control tokens and their kinds: the listed ones, then unused ones."""
    if file.is_set("special_tokens"):
        entries = _entries(file, "special_tokens", 0)
        texts = [entry.get("token_str") for entry in entries]
        kinds = [
            TokenType.CONTROL if entry.get("is_control", True) else TokenType.USER_DEFINED
            for entry in entries
        ]
    elif version in WITHOUT_A_LIST:
        texts, kinds = list(CONTROLS), [TokenType.CONTROL] * len(CONTROLS)
    else:
        raise file.fail("special_tokens", f"the list of tokens that files of {version} have")
    named = [text for text in texts if isinstance(text, str) and text]
    if len(named) < len(texts) or len(texts) > count:
        raise file.fail("special_tokens", f"at most {count} texts")
    fillers = [f"<SPECIAL_{number}>" for number in range(len(texts), count)]
    return [*named, *fillers], [*kinds, *[TokenType.CONTROL] * len(fillers)]


def _plain(file: Fields, count: int) -> list[bytes]:
    """Return the first tokens of the vocabulary, which begins with the single bytes."""
    found = []
    for rank, entry in enumerate(_entries(file, "vocab", count)[:count]):
        try:
            token = base64.b64decode(entry["token_bytes"], validate=True)
        except (KeyError, TypeError, ValueError, binascii.Error):
            token = b""
        if not 1 <= len(token) <= LONGEST or (rank < BYTES and token != bytes([rank])):
            raise ModelFileError(
                f"{file.source}: vocab[{rank}]: token_bytes is"
                f" {str(entry.get('token_bytes'))[:80]!r}; 1 to {LONGEST} bytes in base64 are"
                f" needed, of the first {BYTES} tokens the byte of their rank"
            )
        found.append(token)
    return found


def _merges(tokens: Sequence[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Return all ways to make a token from two others, in the order of the tokens."""
    known = set(tokens)
    for token in tokens:
        for cut in range(1, len(token)):
            if token[:cut] in known and token[cut:] in known:
                yield token[:cut], token[cut:]
