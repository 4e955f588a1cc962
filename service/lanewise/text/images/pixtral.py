"""Pixtral's tower, of Mistral 3: any size up to a longest edge, in lines of blocks of patches."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from lanewise.text.images.layouts import (
    BICUBIC,
    Detail,
    ImageError,
    Layout,
    Size,
    Unframed,
    View,
    resample_of,
    side_of,
)

BREAK, END = "[IMG_BREAK]", "[IMG_END]"
LOW_BLOCKS = 8  # on the longest edge


@dataclass(frozen=True, slots=True)
class Pixtral(Unframed):
    """What the files of one model say."""

    longest: int
    block: int  # pixels of a side
    resample: int
    mark: str

    def layout(self, size: Size, detail: Detail) -> Layout:
        """One view, never larger than the image but for whole blocks.

        ImageError for an image of which nothing is left on one side.
        """
        longest = min(self.longest, LOW_BLOCKS * self.block) if detail == "low" else self.longest
        width, height = size
        ratio = max(height / longest, width / longest)
        if ratio > 1:
            width, height = math.floor(width / ratio), math.floor(height / ratio)
        if not width or not height:
            raise ImageError(
                "image_too_small",
                f"{size[0]} x {size[1]} pixels; accepted: sides of which one is at most {longest}"
                " times the other",
            )
        columns, rows = ((side - 1) // self.block + 1 for side in (width, height))
        whole = columns * self.block, rows * self.block
        return Layout((View((whole,), rows * columns, lines=rows),))

    def text(self, layout: Layout) -> str:
        """A placeholder for each line, with a token behind it."""
        return BREAK.join([self.mark] * layout.views[0].lines) + END


def pixtral(facts: dict[str, Any], placeholder: str) -> Pixtral:
    """What a model's files say; PreprocessorError if it cannot be done."""
    fields = facts["preprocessor"]
    return Pixtral(
        longest=side_of(fields, "size", "longest_edge", facts["image_size"]),
        block=facts["patch_size"] * facts["merge"],
        resample=resample_of(fields, BICUBIC),
        mark=placeholder,
    )
