"""Qwen's towers: any size in blocks of patches, within limits of pixels; ``smart_resize``."""

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
    View,
    check_equal,
    resample_of,
    side_of,
)

MOST_RATIO = 200
LOW_TOKENS = 128


@dataclass(frozen=True, slots=True)
class Qwen:
    """What the files of one model say."""

    block: int  # pixels of a side
    least: int  # pixels
    most: int
    resample: int
    mark: str

    def layout(self, size: Size, detail: Detail) -> Layout:
        """One view, as near to the image's own size as the limits allow."""
        least, most = self.least, self.most
        if detail == "low":
            most = max(least, min(most, LOW_TOKENS * self.block**2))
        width, height = smart_resize(size, self.block, least, most)
        return Layout((View(((width, height),), width * height // self.block**2),))

    def text(self, layout: Layout) -> str:
        """Rows alone: the template writes what is around them."""
        return self.mark

    def alone(self, layout: Layout) -> str:
        """Rows between their marks."""
        return f"<|vision_start|>{self.mark}<|vision_end|>"


def smart_resize(size: Size, block: int, least: int, most: int) -> Size:
    """A size in whole blocks, within limits of pixels, of about the same shape.

    ImageError for an image that is more than 200 times as long as it is wide.
    """
    width, height = size
    if max(size) / min(size) > MOST_RATIO:
        raise ImageError(
            "image_too_small",
            f"{width} x {height} pixels; accepted: sides of which one is at most {MOST_RATIO} times"
            " the other",
        )
    return smart_resize_within(size, block, least, most, smallest=0)


def smart_resize_within(size: Size, block: int, least: int, most: int, smallest: int = 1) -> Size:
    """The same for every shape, of sides of ``smallest`` blocks at least before the limits."""
    width, height = size
    wide, high = (max(smallest, round(side / block)) * block for side in size)
    if wide * high > most:
        beta = math.sqrt((height * width) / most)
        wide, high = (max(block, math.floor(side / beta / block) * block) for side in size)
    elif wide * high < least:
        beta = math.sqrt(least / (height * width))
        wide, high = (math.ceil(side * beta / block) * block for side in size)
    return wide, high


def qwen(facts: dict[str, Any], placeholder: str) -> Qwen:
    """What a model's files say; PreprocessorError if it cannot be done."""
    fields, patch, merge = facts["preprocessor"], facts["patch_size"], facts["merge"]
    check_equal(fields, patch_size=patch, merge_size=merge)
    block = patch * merge
    older = {"shortest_edge": fields.get("min_pixels"), "longest_edge": fields.get("max_pixels")}
    limits = {
        name: older[name] or side_of(fields, "size", name, default)
        for name, default in (("shortest_edge", 64 * block**2), ("longest_edge", 16384 * block**2))
    }
    return Qwen(
        block=block,
        least=limits["shortest_edge"],
        most=limits["longest_edge"],
        resample=resample_of(fields, BICUBIC),
        mark=placeholder,
    )
