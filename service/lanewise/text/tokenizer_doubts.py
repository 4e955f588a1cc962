"""The parts of a tokenizer.json that may take more time or memory than in proportion to a text.

A tokenizer that a model brings is a program: its normalizer can make a text a million times as
long, and a regular expression can take time that doubles with each character. Tokenizers of
published models do neither, and their parts are listed here. A tokenizer with other parts is no
error: it runs in a process with limits (``limited_tokenizer``).
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Iterator, Mapping
from typing import Any

from lanewise.text.pre_tokenizers import LINEAR

MAX_STEPS = 32  # of which one does something to what the one before has made
MAX_GROWTH = 64.0  # characters made of one
MAX_PIECE = 256  # characters of a Unigram vocabulary's
MAX_WORD = 1024  # characters that WordPiece tries to cut
# Characters that each step makes of one at most; the largest of Unicode's own is 18.
GROWTH = {
    **dict.fromkeys(("NFC", "NFD"), 4.0),
    **dict.fromkeys(("NFKC", "NFKD"), 18.0),
    **dict.fromkeys(("Strip", "StripAccents", "Nmt"), 1.0),
    "BertNormalizer": 12.0,
    "ByteLevel": 4.0,
    "Lowercase": 2.0,
}
CUTTING = (
    *("ByteLevel", "Metaspace", "Whitespace", "WhitespaceSplit", "BertPreTokenizer"),
    *("Punctuation", "Digits", "UnicodeScripts", "CharDelimiterSplit", "FixedLength"),
)
DECODING = (
    *("ByteLevel", "Metaspace", "WordPiece", "ByteFallback", "Fuse", "Strip", "CTC"),
    "BPEDecoder",
)
MODELS = ("BPE", "Unigram", "WordLevel", "WordPiece")


def doubt(parsed: Mapping[str, Any]) -> str | None:
    """Which part of a tokenizer.json is not known to be cheap, if one is not."""
    return next(_doubts(parsed), None)


def charsmap_doubt(charsmap: bytes) -> str | None:
    """The same of what the normalizer of a SentencePiece model replaces."""
    longest = longest_replacement(charsmap)
    if longest <= MAX_GROWTH:
        return None
    return f"one character may become {longest} bytes; accepted: at most {MAX_GROWTH:.0f}"


def longest_replacement(charsmap: bytes) -> int:
    """Bytes that a precompiled map makes of one place: after its index come texts and NULs."""
    size = int.from_bytes(charsmap[:4], "little")
    return max(map(len, charsmap[4 + size :].split(b"\0")))


def _doubts(parsed: Mapping[str, Any]) -> Iterator[str]:
    growth = 1.0
    for index, step in enumerate(_steps(parsed.get("normalizer"), "normalizers")):
        growth *= _growth(step)
        if index >= MAX_STEPS or growth > MAX_GROWTH:
            yield f"normalizer {_name(step)}"
    for part, inner, known in (
        ("pre_tokenizer", "pretokenizers", CUTTING),
        ("decoder", "decoders", DECODING),
    ):
        for index, step in enumerate(_steps(parsed.get(part), inner)):
            if index >= MAX_STEPS or not _is_plain(step, known):
                yield f"{part} {_name(step)}"
    for index, step in enumerate(_steps(parsed.get("post_processor"), "processors")):
        if index >= MAX_STEPS or not _is_once(step):
            yield f"post_processor {_name(step)}"
    yield from _model_doubts(parsed.get("model"))


def _model_doubts(model: Any) -> Iterator[str]:
    if not isinstance(model, Mapping) or model.get("type") not in MODELS:
        yield "model"
    elif model["type"] == "WordPiece":
        longest = model.get("max_input_chars_per_word")
        if not isinstance(longest, int) or longest > MAX_WORD:
            yield "model.max_input_chars_per_word"
    elif model["type"] == "Unigram":
        pieces = model.get("vocab")
        if not isinstance(pieces, list) or any(_length(piece) > MAX_PIECE for piece in pieces):
            yield "model.vocab"


def _length(piece: Any) -> int:
    is_piece = isinstance(piece, list) and piece and isinstance(piece[0], str)
    return len(piece[0]) if is_piece else MAX_PIECE + 1


def _steps(part: Any, inner: str) -> Iterator[Any]:
    """What a part does, in order; sequences may hold others."""
    waiting = [part]
    while waiting:
        found = waiting.pop()
        if isinstance(found, Mapping) and found.get("type") == "Sequence":
            steps = found.get(inner)
            if isinstance(steps, list):
                waiting.extend(reversed(steps))
                continue
        if found is not None:
            yield found


def _growth(step: Any) -> float:
    """Characters that a normalizer makes of one at most, or of which nothing is known."""
    if not isinstance(step, Mapping):
        return math.inf
    kind = step.get("type")
    if kind == "Replace":
        length, content = _shortest_match(step.get("pattern")), step.get("content")
        if not length or not isinstance(content, str):
            return math.inf
        return max(1.0, len(content) / length)
    if kind == "Prepend":
        added = step.get("prepend")  # once, before a text of a character or more
        return 1.0 + len(added) if isinstance(added, str) else math.inf
    if kind == "Precompiled":
        return _growth_of_map(step.get("precompiled_charsmap"))
    return GROWTH.get(str(kind), math.inf)


def _growth_of_map(packed: Any) -> float:
    try:
        return float(max(1, longest_replacement(base64.b64decode(packed, validate=True))))
    except (binascii.Error, TypeError, ValueError):
        return math.inf


def _shortest_match(pattern: Any) -> int | None:
    """Characters that a pattern takes at least; None if what it costs is not known."""
    if not isinstance(pattern, Mapping) or len(pattern) != 1:
        return None
    if isinstance(text := pattern.get("String"), str):
        return len(text) or None
    expression = pattern.get("Regex")
    return 1 if isinstance(expression, str) and expression in LINEAR else None


def _is_plain(step: Any, known: tuple[str, ...]) -> bool:
    if not isinstance(step, Mapping):
        return False
    if step.get("type") in ("Split", "Replace"):
        return _shortest_match(step.get("pattern")) is not None
    return step.get("type") in known


def _is_once(step: Any) -> bool:
    """Whether a post-processor has each text in what it makes at most once."""
    if not isinstance(step, Mapping):
        return False
    if step.get("type") != "TemplateProcessing":
        return step.get("type") in ("ByteLevel", "RobertaProcessing", "BertProcessing")
    for name in ("single", "pair"):
        pieces = step.get(name)
        if not isinstance(pieces, list):
            return False
        texts = [str(piece["Sequence"]) for piece in pieces if _has_text(piece)]
        if len(texts) > (1 if name == "single" else 2):
            return False
    return True


def _has_text(piece: Any) -> bool:
    return isinstance(piece, Mapping) and "Sequence" in piece


def _name(step: Any) -> str:
    kind = step.get("type") if isinstance(step, Mapping) else None
    return kind[:40] if isinstance(kind, str) else "of no type"
