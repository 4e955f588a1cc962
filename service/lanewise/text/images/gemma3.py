"""Gemma 3: a square, to which every image is stretched. Crops beside it are not made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lanewise.text.images.layouts import (
    BILINEAR,
    WHERE,
    Detail,
    Layout,
    PreprocessorError,
    Size,
    Unframed,
    View,
    resample_of,
    side_of,
)


@dataclass(frozen=True, slots=True)
class Gemma3(Unframed):
    """What the files of one model say."""

    size: Size
    n_tokens: int
    resample: int
    placeholder: str
    mark: str = "<start_of_image>"
    end: str = "<end_of_image>"

    def layout(self, size: Size, detail: Detail) -> Layout:
        """The same for every image."""
        return Layout((View((self.size,), self.n_tokens),))

    def text(self, layout: Layout) -> str:
        """Rows between their marks, on lines of their own."""
        return f"\n\n{self.mark}{self.placeholder}{self.end}\n\n"


def gemma3(facts: dict[str, Any], placeholder: str) -> Gemma3:
    """What a model's files say; PreprocessorError if it cannot be done."""
    fields, block = facts["preprocessor"], facts["patch_size"] * facts["merge"]
    if fields.get("do_pan_and_scan"):
        raise PreprocessorError(f"{WHERE}: do_pan_and_scan is true; accepted: false")
    sides = [side_of(fields, "size", name, facts["image_size"]) for name in ("width", "height")]
    width, height = sides
    if (width, height) != (facts["image_size"],) * 2:
        raise PreprocessorError(
            f"{WHERE}: size is {width} x {height}; accepted: {facts['image_size']} both, as the"
            " tower has it"
        )
    n_tokens = (width // block) * (height // block)
    return Gemma3((width, height), n_tokens, resample_of(fields, BILINEAR), placeholder)
