"""Vocabularies of directories without tokenizer.json, as GGUF metadata would have them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lanewise.loading.checkpoint import ModelFileError
from lanewise.loading.json_files import read_object, read_text
from lanewise.loading.sentencepiece_model import read_sentencepiece

PREFIX = "tokenizer.ggml."
PIECES, TOKENS, MERGES, ADDED = "tokenizer.model", "vocab.json", "merges.txt", "added_tokens.json"
NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5  # GGUF's types of tokens
# How text is cut before merging, by the tokenizer's class.
PRE_TOKENIZERS = {
    "GPT2Tokenizer": "gpt-2",
    "CodeGenTokenizer": "gpt-2",
    "Qwen2Tokenizer": "qwen2",
}
SAMPLING = {  # of generation_config.json, in metadata
    "temperature": "temp",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
}

Files = Mapping[str, Mapping[str, Any]]


def read_plain_vocabulary(
    path: Path, json_files: Files, text_files: Mapping[str, str]
) -> dict[str, Any] | None:
    """Return metadata made of tokenizer.model, or of vocab.json and merges.txt.

    None if neither is there. ModelFileError names what is wrong with them.
    """
    config = json_files.get("tokenizer_config.json", {})
    if (path / PIECES).is_file():
        found = read_sentencepiece(path / PIECES)
    elif (path / TOKENS).is_file() and (path / MERGES).is_file():
        found = _byte_level(path, config)
    else:
        return None
    _add_tokens(path, config, found)
    _name_special(json_files, config, found)
    for key in ("add_bos_token", "add_eos_token"):
        if isinstance(config.get(key), bool):
            found[key] = config[key]
    metadata = {f"{PREFIX}{key}": value for key, value in found.items()}
    return metadata | _template(config, text_files) | _sampling(json_files)


def _byte_level(path: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    name = str(config.get("tokenizer_class", "GPT2Tokenizer")).removesuffix("Fast")
    if name not in PRE_TOKENIZERS:
        raise ModelFileError(
            f"{path}/tokenizer_config.json: tokenizer_class is {name!r}: how it cuts text is not"
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
    kinds = [NORMAL] * len(tokens)
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
    """Take in what was added to the vocabulary: texts, and whether they are special."""
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
            raise ModelFileError(
                f"{path}/tokenizer_config.json: added_tokens_decoder: {key!r} needs a content"
            )
        added[int(key)] = content, bool(entry.get("special"))
    tokens, kinds = found["tokens"], found["token_type"]
    most = len(tokens) + len(added)
    for number, (text, special) in sorted(added.items()):
        if not 0 <= number < most + 1024:
            raise ModelFileError(f"{path}: added token {text!r} has number {number}")
        if number >= len(tokens):
            gap = number + 1 - len(tokens)
            tokens += _unused(gap, len(tokens))
            kinds += [UNUSED] * gap
            if "scores" in found:
                found["scores"] += [0.0] * gap
        tokens[number] = text
        if special or kinds[number] in (NORMAL, UNUSED):
            kinds[number] = CONTROL if special else USER_DEFINED


def _name_special(json_files: Files, config: Mapping[str, Any], found: dict[str, Any]) -> None:
    """Say which tokens begin and end texts, as the small files do."""
    numbers = {text: number for number, text in enumerate(found["tokens"])}
    beside = json_files.get("special_tokens_map.json", {})
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        value = config.get(f"{name}_token", beside.get(f"{name}_token"))
        text = value.get("content") if isinstance(value, Mapping) else value
        if isinstance(text, str) and text in numbers:
            number = numbers[text]
            found[f"{key}_token_id"] = number
            if found["token_type"][number] == NORMAL:
                found["token_type"][number] = CONTROL
    ends = json_files.get("generation_config.json", {}).get("eos_token_id")
    more = [number for number in ends if type(number) is int] if isinstance(ends, list) else []
    for key, number in zip(("eot", "eom"), more[1:], strict=False):
        found[f"{key}_token_id"] = number


def _template(config: Mapping[str, Any], text_files: Mapping[str, str]) -> dict[str, Any]:
    found = text_files.get("chat_template.jinja", config.get("chat_template"))
    return {} if not isinstance(found, str) else {"tokenizer.chat_template": found}


def _sampling(json_files: Files) -> dict[str, Any]:
    known = json_files.get("generation_config.json", {})
    return {
        f"general.sampling.{ours}": known[name]
        for name, ours in SAMPLING.items()
        if type(known.get(name)) in (int, float)
    }
