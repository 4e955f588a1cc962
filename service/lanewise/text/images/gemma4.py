"""Gemma 4: one of five budgets of tokens, which every image is scaled to, up or down."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from lanewise.text.images.layouts import (
    BICUBIC,
    WHERE,
    Detail,
    ImageError,
    Layout,
    PreprocessorError,
    Size,
    Unframed,
    View,
    check_equal,
    resample_of,
)

BUDGETS = (70, 140, 280, 560, 1120)
PATCH, MERGE = 16, 3  # where files do not say
START, END = "<|image>", "<image|>"


@dataclass(frozen=True, slots=True)
class Gemma4(Unframed):
    """What the files of one model say."""

    block: int  # pixels of a side
    budgets: tuple[int, ...]  # that there is room for
    usual: int  # of them
    resample: int
    mark: str

    def layout(self, size: Size, detail: Detail) -> Layout:
        """One view; with much detail of the largest budget, with little of the smallest."""
        if detail == "auto":
            most = self.usual
        else:
            most = self.budgets[0] if detail == "low" else self.budgets[-1]
        width, height = self._within(size, most)
        return Layout((View(((width, height),), width * height // self.block**2),))

    def text(self, layout: Layout) -> str:
        """Rows between their marks."""
        return f"{START}{self.mark}{END}"

    def _within(self, size: Size, most: int) -> Size:
        """The largest size of this shape with so many tokens at most; ImageError if it has none."""
        factor = math.sqrt(most * self.block**2 / (size[0] * size[1]))
        columns, rows = (math.floor(factor * side / self.block) for side in size)
        if not columns and not rows:
            raise ImageError("image_too_small", f"{size[0]} x {size[1]} pixels have no token")
        if not rows:
            columns, rows = min(size[0] // size[1], most), 1
        elif not columns:
            columns, rows = 1, min(size[1] // size[0], most)
        return columns * self.block, rows * self.block


def gemma4(facts: dict[str, Any], placeholder: str) -> Gemma4:
    """What a model's files say; PreprocessorError if it cannot be done."""
    check_equal(
        facts["preprocessor"],
        patch_size=facts["patch_size"],
        pooling_kernel_size=facts["merge"],
    )
    return _made(facts, placeholder)


def gemma4_unified(facts: dict[str, Any], placeholder: str) -> Gemma4:
    """The same of a model whose patches are as large as blocks; files say both numbers."""
    fields, side = facts["preprocessor"], facts["patch_size"]
    patch, merge = fields.get("patch_size", PATCH), fields.get("pooling_kernel_size", MERGE)
    if type(patch) is not int or type(merge) is not int or patch * merge != side:
        raise PreprocessorError(
            f"{WHERE}: patch_size is {patch!r} and pooling_kernel_size {merge!r}; accepted: numbers"
            f" whose product is {side}"
        )
    return _made(facts, placeholder)


def _made(facts: dict[str, Any], placeholder: str) -> Gemma4:
    fields, cap = facts["preprocessor"], facts.get("max_tokens_per_image") or BUDGETS[-1]
    usual = fields.get("max_soft_tokens", 280)
    if usual not in BUDGETS:
        raise PreprocessorError(
            f"{WHERE}: max_soft_tokens is {usual!r}; accepted: {', '.join(map(str, BUDGETS))}"
        )
    budgets = tuple(one for one in BUDGETS if one <= cap)
    if usual not in budgets:
        raise PreprocessorError(f"an image has {usual} tokens; there is room for {cap} in a step")
    return Gemma4(
        block=facts["patch_size"] * facts["merge"],
        budgets=budgets,
        usual=usual,
        resample=resample_of(fields, BICUBIC),
        mark=placeholder,
    )
