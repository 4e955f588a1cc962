"""Text that comes with the quantizer: to calibrate on, and some kept apart to judge results on."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import resources

BUNDLED = "bundled"  # what this text is called where a file is named otherwise

# Files to calibrate on, and how many windows of each are taken in turn. The numbers are fixed: how
# many tokens other languages make depends on the vocabulary, how much they matter does not.
KINDS = {"prose": 5, "articles": 5, "chat": 5, "code": 3, "data": 3, "languages": 3}
HELD_OUT = "held_out"  # the file that nothing is calibrated on
PROMPTS = "prompts"  # questions for chat models, each a conversation of one message

TEXT, CONVERSATION = "<<<text>>>\n", "<<<conversation>>>\n"  # lines that begin a document
_BEGINNING = re.compile(f"^(?={TEXT}|{CONVERSATION})", re.MULTILINE)
_TURN = re.compile(r"^<<<(system|user|assistant)>>>\n", re.MULTILINE)


@dataclass(frozen=True)
class Document:
    """A text, or the messages of a conversation in the API's form."""

    text: str = ""
    messages: tuple[dict[str, str], ...] = ()

    @property
    def plain(self) -> str:
        """The text; a conversation as people write one down."""
        if not self.messages:
            return self.text
        said = (f"{m['role'].capitalize()}: {m['content']}\n" for m in self.messages)
        return "\n".join(said)


def documents(kind: str) -> list[Document]:
    """Return the documents of one file, in its order."""
    file = resources.files("lanewise_quantizer") / "text" / f"{kind}.txt"
    parts = _BEGINNING.split(file.read_text(encoding="utf-8"))
    return [_document(part) for part in parts if part]


def plain_text() -> str:
    """Return all there is to calibrate on as one text, for tools that take no documents."""
    return "\n\n".join(document.plain for kind in KINDS for document in documents(kind))


def _document(part: str) -> Document:
    if part.startswith(TEXT):
        return Document(text=part.removeprefix(TEXT))
    _, *turns = _TURN.split(part.removeprefix(CONVERSATION))
    return Document(
        messages=tuple(
            {"role": role, "content": content.removesuffix("\n")}
            for role, content in zip(turns[::2], turns[1::2], strict=True)
        )
    )
