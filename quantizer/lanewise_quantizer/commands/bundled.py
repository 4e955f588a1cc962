"""Windows of the bundled text, its conversations as the model's chat template has them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from lanewise.loading.base.checkpoint import Checkpoint
from lanewise.sandbox.alone import encode_chats
from lanewise.text.chat_template import ChatTemplateError
from lanewise.text.tokenizer import Tokenizer
from lanewise_quantizer.text import KINDS, Document, documents

Ids = list[int]


@dataclass(frozen=True)
class Bundled:
    """Windows of one size, of all kinds of text in turn."""

    windows: list[Ids]
    problem: str | None  # why conversations are plain text though the model has a chat template


def bundled_windows(
    checkpoint: Checkpoint, size: int, tokens: int, kinds: Mapping[str, int] = KINDS
) -> Bundled:
    """Return windows of ``size`` tokens, about ``tokens`` in all if the text has so many."""
    tokenizer = Tokenizer.from_files(checkpoint.tokenizer)
    start = tokenizer.encode("", add_bos=True, parse_special=False)
    texts = {kind: documents(kind) for kind in kinds}
    chats = [list(d.messages) for found in texts.values() for d in found if d.messages]
    encoded: Iterator[Ids] | None = None
    problem = None
    if tokenizer.chat_template is not None:
        try:
            encoded = iter(encode_chats(tokenizer, tokenizer.chat_template, chats))
        except ChatTemplateError as error:
            problem = str(error)

    def ids_of(document: Document) -> Ids:
        if document.messages and encoded is not None:
            return without(next(encoded), start)
        return tokenizer.encode(document.plain, add_bos=False, parse_special=False)

    cut = {
        kind: windows_of([ids_of(document) for document in found], start, size)
        for kind, found in texts.items()
    }
    return Bundled(in_turn(cut, kinds)[: max(1, tokens // size)], problem)


def without(ids: Ids, start: Ids) -> Ids:
    """Return ids without the tokens that texts of the model start with."""
    return ids[len(start) :] if start and ids[: len(start)] == start else ids


def windows_of(texts: Sequence[Ids], start: Ids, size: int) -> list[Ids]:
    """Cut texts into whole windows, each behind the model's start tokens.

    A window begins where a text does, or goes on with the one before it if half a window or more
    is left of that.
    """
    room = size - len(start)
    windows = []
    window: Ids = []
    for text in texts:
        rest = text
        while rest:
            taken = room - len(window)
            window, rest = window + rest[:taken], rest[taken:]
            if len(window) < room:
                break
            windows.append(start + window)
            window = []
            if len(rest) < room // 2:
                break
    return windows


def in_turn(groups: Mapping[str, Sequence[Ids]], shares: Mapping[str, int]) -> list[Ids]:
    """Return the windows of all groups, so many of each in turn, until there are no more."""
    places = [
        ((at + 0.5) / shares[kind], which, window)
        for which, (kind, group) in enumerate(groups.items())
        for at, window in enumerate(group)
    ]
    return [window for _, _, window in sorted(places, key=lambda place: place[:2])]
