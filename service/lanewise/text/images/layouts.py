"""How an image is cut and resized for a tower, by its size alone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Literal, Protocol

Size = tuple[int, int]  # width, height
Box = tuple[int, int, int, int]  # left, top, right, bottom
Detail = Literal["auto", "low", "high", "original"]
DETAILS: tuple[Detail, ...] = ("auto", "low", "high", "original")
NEAREST, LANCZOS, BILINEAR, BICUBIC = 0, 1, 2, 3  # as Pillow numbers them
WHERE = "preprocessor_config.json"
FILTERS = (NEAREST, LANCZOS, BILINEAR, BICUBIC)


class ImageError(Exception):
    """An image cannot be used; ``code`` is the reason in OpenAI's words."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class PreprocessorError(Exception):
    """A model's files ask for a preparation of images that is not done here."""


@dataclass(frozen=True, slots=True)
class View:
    """What a tower sees at once: a part of the image, after it was resized one or more times."""

    resizes: tuple[Size, ...]
    n_tokens: int
    box: Box | None = None  # None: the whole
    lines: int = 1  # into which its rows are split by other tokens, all of one length

    @property
    def size(self) -> Size:
        """Of what the tower gets."""
        if self.box is None:
            return self.resizes[-1]
        left, top, right, bottom = self.box
        return right - left, bottom - top


@dataclass(frozen=True, slots=True)
class Layout:
    """The views of one image; of tiles so many rows and columns come first."""

    views: tuple[View, ...]
    rows: int = 0
    columns: int = 0

    @property
    def n_tokens(self) -> int:
        """Rows that the towers make of it."""
        return sum(view.n_tokens for view in self.views)


class Family(Protocol):
    """What a family does with images."""

    @property
    def resample(self) -> int:
        """A filter of Pillow's."""

    @property
    def mark(self) -> str:
        """What a chat template writes for an image."""

    def layout(self, size: Size, detail: Detail) -> Layout:
        """What the tower sees of an image; ImageError if it is of no size that it takes."""

    def text(self, layout: Layout) -> str:
        """What stands for the image in the prompt, with one placeholder for each line of a view."""

    def alone(self, layout: Layout) -> str:
        """The same with what a chat template would write around it."""


class Unframed(ABC):
    """A family whose chat templates write nothing around what stands for an image."""

    __slots__ = ()

    @abstractmethod
    def text(self, layout: Layout) -> str:
        """As ``Family.text``."""

    def alone(self, layout: Layout) -> str:
        """As ``Family.alone``."""
        return self.text(layout)


def tiles(resizes: tuple[Size, ...], side: int, n_tokens: int) -> list[View]:
    """Views of all squares of an image that was resized to a multiple of them, row by row."""
    width, height = resizes[-1]
    return [
        View(resizes, n_tokens, (x, y, x + side, y + side))
        for y in range(0, height, side)
        for x in range(0, width, side)
    ]


def check_equal(fields: dict[str, Any], **wanted: int) -> None:
    """PreprocessorError if a file says another value than the tower has."""
    for name, value in wanted.items():
        if fields.get(name, value) != value:
            raise PreprocessorError(f"{WHERE}: {name} is {fields[name]!r}; accepted: {value}")


def resample_of(fields: dict[str, Any], default: int) -> int:
    """The filter that images are resized with."""
    given = fields.get("resample")
    resample = default if given is None else given
    if resample not in FILTERS:
        raise PreprocessorError(f"{WHERE}: resample is {given!r}; accepted: 0, 1, 2 or 3")
    return int(resample)


def side_of(fields: dict[str, Any], name: str, key: str, default: int) -> int:
    """A length of ``{name: {key: length}}``, or the default where the file has none."""
    given = fields.get(name)
    given = default if given is None else given.get(key) if isinstance(given, dict) else given
    if isinstance(given, bool) or not isinstance(given, int) or not 0 < given <= 1 << 30:
        raise PreprocessorError(f"{WHERE}: {name}.{key} is {given!r}; accepted: a number of pixels")
    return given
