"""tokenizer.json whose parts take as much time or memory as they are given."""

import json
from typing import Any

from tokenizers import Tokenizer, decoders, models

REPLACED = {"String": "a"}


def ordinary() -> dict[str, Any]:
    """Five pieces, bytes and two merges."""
    pieces = {"<unk>": 0, "\u2581": 1, "a": 2, "b": 3, "ab": 4, "<0x0A>": 5, "</s>": 6}
    library = Tokenizer(models.BPE(pieces, [("a", "b")], unk_token="<unk>", byte_fallback=True))
    library.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    library.add_special_tokens(["</s>"])
    found: dict[str, Any] = json.loads(library.to_str())
    return found


def replaced(pattern: dict[str, str], content: str) -> dict[str, Any]:
    """A normalizer, or a decoder."""
    return {"type": "Replace", "pattern": pattern, "content": content}


def sequence(part: str, steps: list[dict[str, Any]]) -> dict[str, Any]:
    """Steps one behind the other."""
    return {"type": "Sequence", part: steps}


def cut_at(pattern: str) -> dict[str, Any]:
    """A pre-tokenizer of a regular expression."""
    return {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
    }


def twice() -> dict[str, Any]:
    """A post-processor that puts a text behind itself."""
    text, other = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    return {
        "type": "TemplateProcessing",
        "single": [text, text],
        "pair": [text, other],
        "special_tokens": {},
    }


# What is replaced in an ordinary tokenizer, and a text with which it takes too much.
HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "32 letters for one, three times": (
        {"normalizer": sequence("normalizers", [replaced(REPLACED, "a" * 32)] * 3)},
        "a" * 240,
    ),
    "two letters for one, forty times": (
        {"normalizer": sequence("normalizers", [replaced(REPLACED, "aa")] * 40)},
        "a",
    ),
    "a text before every text": (
        {"normalizer": {"type": "Prepend", "prepend": "b" * 1_000_000}},
        "a",
    ),
    "a text for nothing": (
        {"normalizer": replaced({"Regex": ""}, "b" * 10_000)},
        "a" * 4000,
    ),
    "an exponential expression": ({"pre_tokenizer": cut_at("(a+)+b|x")}, "a" * 28 + "c"),
    "a quadratic expression": ({"pre_tokenizer": cut_at("a+$|b")}, "a" * 60_000 + "c"),
    "an expression of a normalizer": (
        {"normalizer": replaced({"Regex": "(a+)+b|x"}, "b")},
        "a" * 28 + "c",
    ),
}
DOUBLED = {"post_processor": sequence("processors", [twice()] * 24)}
LARGE_TO_LOAD = {
    "normalizer": sequence("normalizers", [replaced(REPLACED, "a" * 32)] * 5),
    "added_tokens": [
        *ordinary()["added_tokens"],
        {
            "id": 7,
            "content": "a" * 240,
            **dict.fromkeys(("single_word", "lstrip", "rstrip", "special"), False),
            "normalized": True,
        },
    ],
}


def written(changes: dict[str, Any]) -> str:
    """The file."""
    return json.dumps(ordinary() | changes)
