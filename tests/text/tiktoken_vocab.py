"""Turns a tiktoken text file (base64 token, rank) into the GGUF metadata of the same vocabulary."""

from __future__ import annotations

import base64
from pathlib import Path

PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
OTHERS = [byte for byte in range(256) if byte not in PRINTABLE]
CHAR_OF_BYTE = {byte: chr(byte) for byte in PRINTABLE}
CHAR_OF_BYTE |= {byte: chr(0x100 + index) for index, byte in enumerate(OTHERS)}


def printable(token: bytes) -> str:
    return "".join(CHAR_OF_BYTE[byte] for byte in token)


def metadata(path: Path, pre: str) -> dict[str, object]:
    ranks: dict[bytes, int] = {}
    for line in path.read_bytes().splitlines():
        token, _, rank = line.partition(b" ")
        ranks[base64.b64decode(token)] = int(rank)
    merges = []
    for token, rank in ranks.items():
        if len(token) > 1:
            parts = last_parts(token, rank, ranks)
            if len(parts) == 2:  # a few tokens are found only whole (ignore_merges)
                merges.append(" ".join(map(printable, parts)))
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [printable(token) for token in ranks],
        "tokenizer.ggml.merges": merges,
    }


def last_parts(token: bytes, rank: int, ranks: dict[bytes, int]) -> list[bytes]:
    """Return the tokens that earlier merges leave of a token's bytes, usually two."""
    parts = [token[i : i + 1] for i in range(len(token))]
    while len(parts) > 2:
        pairs = [(ranks.get(parts[i] + parts[i + 1], rank), i) for i in range(len(parts) - 1)]
        best, i = min(pairs)
        if best >= rank:
            break
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    return parts
