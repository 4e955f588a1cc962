"""Vocabularies of directories without tokenizer.json, in the form of GGUF metadata."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lanewise.loading.base.checkpoint import ModelFileError
from lanewise.loading.base.json_files import read_object, read_text
from lanewise.loading.vocabulary.directory_text import (
    CONFIG,
    Files,
    chat_templates,
    end_ids,
    special_tokens,
)
from lanewise.loading.vocabulary.gguf_text import PREFIX, SAMPLING_KEYS, TokenType, template_keys
from lanewise.loading.vocabulary.sentencepiece_model import read_sentencepiece
from lanewise.loading.vocabulary.tekken import TEKKEN, read_tekken

ENDS = ("eos_token_id", "eot_token_id", "eom_token_id")
PIECES, TOKENS, MERGES, ADDED = "tokenizer.model", "vocab.json", "merges.txt", "added_tokens.json"
# The pre-tokenizer of each tokenizer class.
PRE_TOKENIZERS = {
    "GPT2Tokenizer": "gpt-2",
    "CodeGenTokenizer": "gpt-2",
    "Qwen2Tokenizer": "qwen2",
}


def read_plain_vocabulary(
    path: Path, json_files: Files, text_files: Mapping[str, str], vocab_size: int
) -> dict[str, Any] | None:
    """Return metadata made from tekken.json, tokenizer.model, or vocab.json and merges.txt.

    ``vocab_size`` is the model's. None if none of the files is there. ModelFileError names what is
    wrong with them.
    """
    config = json_files.get(CONFIG, {})
    if (path / TEKKEN).is_file():
        found = read_tekken(path / TEKKEN)
    elif (path / PIECES).is_file():
        found = read_sentencepiece(path / PIECES)
    elif (path / TOKENS).is_file() and (path / MERGES).is_file():
        found = _byte_level(path, config)
    else:
        return None
    _add_tokens(path, config, found)
    _name_special(special_tokens(path, json_files), found)
    _name_ends(end_ids(path, json_files, vocab_size), found)
    for key in ("add_bos_token", "add_eos_token"):
        if isinstance(config.get(key), bool):
            found[key] = config[key]
    found["token_type"] = list(map(int, found["token_type"]))
    metadata = {f"{PREFIX}{key}": value for key, value in found.items()}
    templates = chat_templates(path, json_files, text_files)
    return metadata | template_keys(templates) | _sampling(json_files)


def _byte_level(path: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    name = str(config.get("tokenizer_class", "GPT2Tokenizer")).removesuffix("Fast")
    if name not in PRE_TOKENIZERS:
        raise ModelFileError(
            f"{path / CONFIG}: tokenizer_class is {name!r}: how it cuts text is not"
            f" known without tokenizer.json; accepted are {', '.join(PRE_TOKENIZERS)}"
        )
    ids = read_object(path / TOKENS)
    if not ids or not all(type(number) is int and number >= 0 for number in ids.values()):
        raise ModelFileError(f"{path / TOKENS}: texts with their numbers are needed")
    if max(ids.values()) >= 2 * len(ids) + 1024:
        raise ModelFileError(f"{path / TOKENS}: {max(ids.values())} is the number of a token")
    tokens = _unused(max(ids.values()) + 1)
    for text, number in ids.items():
        tokens[number] = text
    lines = read_text(path / MERGES).splitlines()
    merges = [line for line in lines if line and not line.startswith("#version")]
    kinds = [TokenType.NORMAL] * len(tokens)
    return {
        "model": "gpt2",
        "pre": PRE_TOKENIZERS[name],
        "tokens": tokens,
        "token_type": kinds,
        "merges": merges,
        "add_bos_token": False,
    }


def _unused(count: int, first: int = 0) -> list[str]:
    return [f"[UNUSED_{first + i}]" for i in range(count)]


def _add_tokens(path: Path, config: Mapping[str, Any], found: dict[str, Any]) -> None:
    """Add tokens that were added to the vocabulary: their texts, and whether they are special."""
    added: dict[int, tuple[str, bool]] = {}
    if (path / ADDED).is_file():
        for text, number in read_object(path / ADDED).items():
            if type(number) is not int:
                raise ModelFileError(f"{path / ADDED}: {text!r}: {number!r}; a number is needed")
            added[number] = text, False
    decoder = config.get("added_tokens_decoder")
    for key, entry in decoder.items() if isinstance(decoder, Mapping) else ():
        content = entry.get("content") if isinstance(entry, Mapping) else None
        if not isinstance(content, str) or not str(key).isdecimal():
            raise ModelFileError(f"{path / CONFIG}: added_tokens_decoder: {key!r} needs a content")
        added[int(key)] = content, bool(entry.get("special"))
    tokens, kinds = found["tokens"], found["token_type"]
    most = len(tokens) + len(added)
    for number, (text, special) in sorted(added.items()):
        if not 0 <= number < most + 1024:
            raise ModelFileError(f"{path}: added token {text!r} has number {number}")
        if number >= len(tokens):
            gap = number + 1 - len(tokens)
            tokens += _unused(gap, len(tokens))
            kinds += [TokenType.UNUSED] * gap
            if "scores" in found:
                found["scores"] += [0.0] * gap
        tokens[number] = text
        if special or kinds[number] in (TokenType.NORMAL, TokenType.UNUSED):
            kinds[number] = TokenType.CONTROL if special else TokenType.USER_DEFINED


def _name_special(texts: Mapping[str, str], found: dict[str, Any]) -> None:
    """Set the ids of tokens that begin and end texts, and mark control tokens, by their texts."""
    numbers = {text: number for number, text in enumerate(found["tokens"])}
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        number = numbers.get(texts.get(f"{name}_token", ""))
        if number is None:
            continue
        found[f"{key}_token_id"] = number
        if found["token_type"][number] == TokenType.NORMAL:
            found["token_type"][number] = TokenType.CONTROL


def _name_ends(ids: Sequence[int], found: dict[str, Any]) -> None:
    """Set further end tokens: the metadata has room for three."""
    first = [found["eos_token_id"]] if "eos_token_id" in found else []
    known = [number for number in (*first, *ids) if number < len(found["tokens"])]
    found |= dict(zip(ENDS, dict.fromkeys(known), strict=False))


def _sampling(json_files: Files) -> dict[str, Any]:
    known = json_files.get("generation_config.json", {})
    return {key: known[name] for name, key in SAMPLING_KEYS.items() if known.get(name) is not None}
