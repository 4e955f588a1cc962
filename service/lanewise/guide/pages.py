"""The pages of the guide: their order, their text, their HTML, and what holds given words."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from markdown_it.token import Token

FOLDER = Path(__file__).parent
# The order in which a reader needs them; the index and the site show it.
PARTS: dict[str, tuple[str, ...]] = {
    "Start": ("quickstart", "choose", "models", "commands"),
    "Use": (
        *("api", "vision", "structured", "tools", "reasoning", "lora", "speculation", "agents"),
        *("labels", "batches", "receipts"),
    ),
    "API by dialect": (
        *("api-openai", "api-responses", "api-anthropic", "api-ollama", "api-llama-cpp"),
        *("api-vectors", "api-server"),
    ),
    "Run": (
        *("configure", "several-models", "stored-prompts", "deploy", "arm", "operate"),
        "budgets",
        *("metrics", "tune", "troubleshooting"),
    ),
    "Understand": ("quantize", "performance", "design", "decisions/index"),
}
DECISIONS = "decisions"  # folder of pages that only its index lists
COMMENT = re.compile(r"^<!--.*?-->\n", re.MULTILINE | re.DOTALL)
REPOSITORY_LINK = re.compile(r"\[([^\]]+)\]\((?:\.\./)+([^)#]*)(?:#[^)]*)?\)")
PAGE_LINK = re.compile(rf"((?:{DECISIONS}/)?[\w-]+)\.md(#[\w-]+)?")
MAX_WORDS = 8  # of a search; more find nothing else


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading of a page, by its anchor."""

    level: int
    text: str
    anchor: str


@dataclass(frozen=True, slots=True)
class Page:
    """A page as HTML."""

    title: str
    html: str
    headings: tuple[Heading, ...]


@dataclass(frozen=True, slots=True)
class Found:
    """A section that holds all words of a search."""

    page: str
    title: str
    anchor: str
    text: str


def names() -> list[str]:
    """The pages that the contents list and that are here, in order."""
    return [name for pages in PARTS.values() for name in pages if path_of(name).is_file()]


def decisions() -> list[str]:
    """The pages of decisions, which are reached from their index and by a search."""
    found = sorted(path.stem for path in (FOLDER / DECISIONS).glob("*.md"))
    return [f"{DECISIONS}/{name}" for name in found if name != "index"]


def path_of(name: str) -> Path:
    """The file of a page."""
    return FOLDER / f"{name}.md"


def markdown_of(name: str) -> str:
    """The text of a page, for readers without the repository: links into it become its paths."""
    text = path_of(name).read_text(encoding="utf-8")
    return REPOSITORY_LINK.sub(r"\1 (`\2` in the repository)", COMMENT.sub("", text))


def anchor_of(heading: str) -> str:
    """The anchor of a heading, as Python-Markdown makes it too."""
    plain = unicodedata.normalize("NFKD", heading).encode("ascii", "ignore").decode()
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())


@cache
def title_of(name: str) -> str:
    """The first heading of a page."""
    return re.search(r"^# (.+)$", markdown_of(name), re.MULTILINE)[1]  # type: ignore[index]


@cache
def page_of(name: str) -> Page:
    """A page as HTML. No HTML of the text itself is let through."""
    # Imported by the first reader: a server that answers requests has no use for it.
    from markdown_it import MarkdownIt

    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = markdown.parse(markdown_of(name))
    headings = tuple(_with_anchors(tokens))
    for token in tokens:
        for inner in token.children or ():
            if inner.type == "link_open":
                inner.attrs["href"] = _page_href(str(inner.attrs["href"]))
    html = markdown.renderer.render(tokens, markdown.options, {})
    html = html.replace("<pre>", '<pre tabindex="0">')  # what scrolls is reached by keys
    html = html.replace("<table>", '<div class="table" tabindex="0"><table>')
    return Page(headings[0].text, html.replace("</table>", "</table></div>"), headings)


def _with_anchors(tokens: Sequence[Token]) -> Iterator[Heading]:
    """The headings, each of which gets its anchor."""
    used: dict[str, int] = {}
    for token, inline in pairwise(tokens):
        if token.type != "heading_open":
            continue
        text = "".join(one.content for one in inline.children or ())
        anchor = anchor_of(text)
        used[anchor] = used.get(anchor, -1) + 1
        if used[anchor]:
            anchor = f"{anchor}_{used[anchor]}"
        token.attrs["id"] = anchor
        yield Heading(int(token.tag[1]), text, anchor)


def _page_href(href: str) -> str:
    match = PAGE_LINK.fullmatch(href)
    return href if match is None else match[1] + (match[2] or "")


@cache
def _sections() -> tuple[Found, ...]:
    found = []
    for name in (*names(), *decisions()):
        text = markdown_of(name)
        marks = [*re.finditer(r"^#{1,3} (.+)$", text, re.MULTILINE)]
        ends = [*(mark.start() for mark in marks[1:]), len(text)]
        for mark, end in zip(marks, ends, strict=True):
            heading = mark[1].replace("`", "")
            found.append(Found(name, heading, anchor_of(heading), text[mark.end() : end].strip()))
    return tuple(found)


def search(asked: str) -> list[Found]:
    """The sections that hold all words: decisions last, headings with the words first."""
    words = asked.lower().split()[:MAX_WORDS]
    if not words:
        return []
    ranked = []
    for section in _sections():
        heading, text = section.title.lower(), section.text.lower()
        if all(word in heading or word in text for word in words):
            rank = section.page.startswith(DECISIONS), -sum(word in heading for word in words)
            ranked.append((rank, _excerpt(section, words)))
    ranked.sort(key=itemgetter(0))
    return [section for _, section in ranked]


def _excerpt(section: Found, words: Sequence[str]) -> Found:
    """The section with the first line that holds one of the words in the place of its text."""
    lines = [line.strip("|> ") for line in section.text.splitlines() if line.strip()]
    line = next((one for one in lines if any(word in one.lower() for word in words)), "")
    return Found(section.page, section.title, section.anchor, line[:200])


def contents_html(prefix: str) -> str:
    """The list of all pages; ``prefix`` is the way to them."""
    here = set(names())
    parts = []
    for part, pages in PARTS.items():
        links = "".join(
            f'<li><a href="{prefix}{name}">{escape(title_of(name))}</a></li>'
            for name in pages
            if name in here
        )
        parts.append(f"<h2>{escape(part)}</h2><ul>{links}</ul>")
    return "".join(parts)
