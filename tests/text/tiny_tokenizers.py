"""Small tokenizers made in the test: byte-level BPE and SentencePiece, as both kinds of file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tiktoken_vocab import CHAR_OF_BYTE

from lanewise.loading.base.checkpoint import TokenizerFiles

CONTROL, USER_DEFINED, BYTE, UNKNOWN = 3, 4, 6, 2
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|user|>{{ m.content }}<|end|>{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def byte_level_metadata(pre: str = "gpt-2", **changes: Any) -> dict[str, Any]:
    tokens = [CHAR_OF_BYTE[byte] for byte in range(256)]
    merges = ["h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or", "Ġwor l", "Ġworl d"]
    merges += ["Ġ Ġ"]
    tokens += [merge.replace(" ", "") for merge in merges]
    plain = len(tokens)
    tokens += ["<|begin|>", "<|end|>", "<|user|>", "<|assistant|>", "<think>", "</think>"]
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * plain + [CONTROL] * 4 + [USER_DEFINED] * 2,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": plain,
        "tokenizer.ggml.eos_token_id": plain + 1,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.chat_template": TEMPLATE,
    }
    return with_changes(metadata, changes)


def sentencepiece_metadata(**changes: Any) -> dict[str, Any]:
    pieces = ["▁", "h", "e", "l", "o", "w", "r", "d", "<", ">", "|", "s", "n"]
    merged = ["he", "ll", "hell", "hello", "▁hello", "or", "wor", "▁wor", "ld", "▁world", "▁▁"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    types = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256]
    scores = [0.0] * len(tokens)
    tokens += pieces + merged
    types += [1] * (len(pieces) + len(merged))
    scores += [-100.0 - i for i in range(len(pieces))] + [-float(i) for i in range(len(merged))]
    tokens += ["<|user|>", "<|end|>", "<|assistant|>"]
    types += [CONTROL] * 3
    scores += [0.0] * 3
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.chat_template": TEMPLATE,
    }
    return with_changes(metadata, changes)


def with_changes(metadata: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    for name, value in changes.items():
        key = name if name.startswith("tokenizer.") else f"tokenizer.ggml.{name}"
        if value is None:
            metadata.pop(key, None)
        else:
            metadata[key] = value
    return metadata


def gguf_files(metadata: dict[str, Any], vocab_size: int | None = None) -> TokenizerFiles:
    size = vocab_size or len(metadata.get("tokenizer.ggml.tokens", [])) or 1
    return TokenizerFiles(Path("tiny.gguf"), size, gguf=metadata)


def hf_files(
    tokenizer_json: str | None,
    vocab_size: int,
    text_files: dict[str, str] | None = None,
    **json_files: dict[str, Any],
) -> TokenizerFiles:
    """Make a directory's files; json_files are named without their suffix."""
    texts = dict(text_files or {})
    if tokenizer_json is not None:
        texts["tokenizer.json"] = tokenizer_json
    return TokenizerFiles(
        Path("tiny"),
        vocab_size,
        json_files={f"{name}.json": value for name, value in json_files.items()},
        text_files=texts,
    )


def from_directory(path: Path) -> TokenizerFiles:
    """Read the tokenizer of a directory that has no weights."""
    from lanewise.loading.vocabulary.tokenizer_files import read_tokenizer_files

    tokenizer = json.loads((path / "tokenizer.json").read_text(encoding="utf-8"))
    added = [token["id"] for token in tokenizer["added_tokens"]]
    return read_tokenizer_files(path, max([*added, *tokenizer["model"]["vocab"].values()]) + 1)
