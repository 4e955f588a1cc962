"""Tokenizers of GGUF metadata: the values of a right vocabulary, changed one after the other."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tiny_tokenizers import byte_level_metadata, sentencepiece_metadata

from encoder_tokenizers import converted, unigram, word_piece
from lanewise.loading.base.checkpoint import ModelFileError, TokenizerFiles
from lanewise.text.pre_tokenizers import PRE_TOKENIZERS
from tests.fuzz.model_paths import build_tokenizer
from tests.fuzz.reader import Reader, accept

FLAGS = ("add_bos_token", "add_eos_token", "add_space_prefix", "remove_extra_whitespaces")
MODELS: tuple[Callable[[], dict[str, Any]], ...] = (
    sentencepiece_metadata,
    byte_level_metadata,
    lambda: converted(word_piece()),
    lambda: converted(unigram()),
)
IDS = ("bos", "eos", "eot", "eom", "unknown", "padding", "cls", "seperator")
LISTS = ("tokens", "token_type", "merges", "scores", "precompiled_charsmap")
PRE = sorted(PRE_TOKENIZERS)
ODD = (None, 0, -1, 2**31, 2**64 - 1, 1.5, float("nan"), True, "", "x", [], [[]], ["a", 1])
PIECES = (
    "",
    " ",
    "a",
    "h e",
    "\u2581",
    "<0x0A>",
    "<0xZZ>",
    "Ġ",
    "🦙",
    "<|end|>",
    "a b c",
    "\udc80",
)


def one_input(data: bytes) -> None:
    """Change a vocabulary as the bytes say, then use it."""
    reader = Reader(data)
    metadata = MODELS[reader.byte() % len(MODELS)]()
    vocab_size = len(metadata["tokenizer.ggml.tokens"]) + reader.below(4)
    for _ in range(8):
        if reader.is_empty:
            break
        _change(reader, metadata)
    try:
        build_tokenizer(TokenizerFiles(Path("m.gguf"), vocab_size, gguf=metadata))
    except ModelFileError as error:
        accept(error, "m.gguf")


def _change(reader: Reader, metadata: dict[str, Any]) -> None:
    kind = reader.below(7)
    prefix = "tokenizer.ggml."
    if kind == 0:
        metadata[f"{prefix}pre"] = reader.choice(PRE)
    elif kind == 1:
        metadata[prefix + reader.choice(FLAGS)] = bool(reader.byte() & 1)
    elif kind == 2:
        metadata[f"{prefix}{reader.choice(IDS)}_token_id"] = reader.below(400)
    elif kind == 3:
        key = prefix + reader.choice((*LISTS, *FLAGS, "model", "pre", "bos_token_id"))
        value = reader.choice(ODD)
        metadata[key] = value[:] if isinstance(value, list) else value
    elif kind == 4:
        metadata["tokenizer.chat_template" + reader.choice(("", ".x", "."))] = reader.choice(ODD)
    else:
        _change_list(reader, metadata)


def _change_list(reader: Reader, metadata: dict[str, Any]) -> None:
    key = "tokenizer.ggml." + reader.choice(LISTS)
    values = metadata.get(key)
    if not isinstance(values, list) or not values:
        return
    values = metadata[key] = list(values)
    value: Any = reader.choice(PIECES)
    if key.endswith("type"):
        value = reader.below(9) - 1
    elif key.endswith("scores"):
        value = reader.choice((0.0, -1.0, float("inf"), float("nan"), -1e300))
    at = reader.below(len(values))
    way = reader.below(4)
    if way == 0:
        del values[at]
    elif way == 1:
        values.insert(at, value)
    else:
        values[at] = value


def seeds(_folder: Path) -> Iterator[bytes]:
    """One change of each kind, and none."""
    yield from (bytes([model]) for model in range(len(MODELS)))
    for kind in range(7):
        for model in range(len(MODELS)):
            yield bytes([model, 0, kind, 1, 2, 3, 4])


def words() -> Iterator[bytes]:
    """Nothing: numbers are all there is."""
    return iter(())
