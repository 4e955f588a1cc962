"""SmolVLM and Idefics3: square tiles, row by row, and the whole image once more.

The longest edge becomes that of the file, also upwards, and both edges multiples of a tile's. What
is done here is ``Idefics3ImageProcessorPil`` of transformers, and ``Idefics3Processor``'s text.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from lanewise.text.images.layouts import (
    LANCZOS,
    WHERE,
    Detail,
    Layout,
    PreprocessorError,
    Size,
    Unframed,
    View,
    resample_of,
    side_of,
    tiles,
)

LONGEST = 4096
AROUND, WHOLE = "<fake_token_around_image>", "<global-img>"


@dataclass(frozen=True, slots=True)
class Idefics3(Unframed):
    """What the files of one model say."""

    longest: int
    tile: int
    splits: bool
    resample: int
    n_tokens: int  # of a tile
    placeholder: str

    @property
    def mark(self) -> str:
        """The same token."""
        return self.placeholder

    def layout(self, size: Size, detail: Detail) -> Layout:
        """Tiles and the whole; with little detail only the whole."""
        first = _longest_edge(size, self.longest)
        square = self.tile, self.tile
        if not self.splits or detail == "low":
            return Layout((View((first, square), self.n_tokens),))
        second = self._multiples(first)
        rows, columns = second[1] // self.tile, second[0] // self.tile
        if rows == columns == 1:
            return Layout((View((first, second), self.n_tokens),))
        resizes = first, second
        views = tiles(resizes, self.tile, self.n_tokens)
        whole = View((*resizes, square), self.n_tokens)
        return Layout((*views, whole), rows, columns)

    def text(self, layout: Layout) -> str:
        """Each tile behind its place, a row a line."""
        rows = "".join(
            "".join(
                f"{AROUND}<row_{row + 1}_col_{column + 1}>{self.placeholder}"
                for column in range(layout.columns)
            )
            + "\n"
            for row in range(layout.rows)
        )
        whole = f"{AROUND}{WHOLE}{self.placeholder}{AROUND}"
        return f"{rows}\n{whole}" if rows else whole

    def _multiples(self, size: Size) -> Size:
        (width, height), tile = size, self.tile
        ratio = width / height
        if width >= height:
            width = math.ceil(width / tile) * tile
            height = math.ceil(int(width / ratio) / tile) * tile
        else:
            height = math.ceil(height / tile) * tile
            width = math.ceil(int(height * ratio) / tile) * tile
        return max(width, tile), max(height, tile)


def _longest_edge(size: Size, longest: int) -> Size:
    """The size with this longest edge, the other even, within ``LONGEST``."""
    width, height = size
    ratio = width / height
    if width >= height:
        width, height = longest, int(longest / ratio)
        height += height % 2
    else:
        width, height = int(longest * ratio), longest
        width += width % 2
    width, height = max(width, 1), max(height, 1)
    ratio = width / height
    if width >= height and width > LONGEST:
        width, height = LONGEST, int(LONGEST / ratio)
    elif height > width and height > LONGEST:
        width, height = int(LONGEST * ratio), LONGEST
    return max(width, 1), max(height, 1)


def idefics3(facts: dict[str, Any], placeholder: str) -> Idefics3:
    """What a model's files say; PreprocessorError if it cannot be done."""
    fields, patch, merge = facts["preprocessor"], facts["patch_size"], facts["merge"]
    tile = side_of(fields, "max_image_size", "longest_edge", 364)
    if tile % (patch * merge):
        raise PreprocessorError(
            f"{WHERE}: max_image_size.longest_edge is {tile}; accepted: multiples of"
            f" {patch * merge}"
        )
    if facts.get("image_size", tile) != tile:
        raise PreprocessorError(
            f"{WHERE}: max_image_size.longest_edge is {tile}; accepted: {facts['image_size']}, as"
            " the tower has it"
        )
    return Idefics3(
        longest=side_of(fields, "size", "longest_edge", 4 * 364),
        tile=tile,
        splits=fields.get("do_image_splitting", True) is not False,
        resample=resample_of(fields, LANCZOS),
        n_tokens=(tile // patch // merge) ** 2,
        placeholder=placeholder,
    )
