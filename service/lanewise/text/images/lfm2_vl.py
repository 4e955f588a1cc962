"""LFM2-VL: small images whole, large ones in a grid of tiles, perhaps with the whole behind them.

As ``Lfm2VlImageProcessor`` of transformers, with Pillow's bilinear filter for torchvision's: values
differ by one at most.
"""

from __future__ import annotations

from collections.abc import Mapping
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
    tiles,
)
from lanewise.text.images.qwen import smart_resize_within

START, END, THUMBNAIL = "<|image_start|>", "<|image_end|>", "<|img_thumbnail|>"
# Fields of the preprocessor, as its class has them.
DEFAULTS: Mapping[str, Any] = {
    "do_image_splitting": True,
    "min_tiles": 2,
    "max_tiles": 10,
    "use_thumbnail": True,
    "min_image_tokens": 64,
    "max_image_tokens": 256,
    "tile_size": 512,
    "max_pixels_tolerance": 2.0,
}
MOST_TILES = 64


@dataclass(frozen=True, slots=True)
class Lfm2Vl(Unframed):
    """What the files of one model say."""

    block: int  # pixels of a side
    fields: Mapping[str, Any]
    resample: int
    mark: str

    def layout(self, size: Size, detail: Detail) -> Layout:
        """Tiles of a large image, or one view; with little detail one view of few tokens."""
        fields = self.fields
        least, most = fields["min_image_tokens"], fields["max_image_tokens"]
        whole = self._whole(size, least, least if detail == "low" else most)
        width, height = (max(self.block, round(side / self.block) * self.block) for side in size)
        large = width * height > most * self.block**2 * fields["max_pixels_tolerance"]
        splits = fields["do_image_splitting"] and fields["max_tiles"] > 1
        if not large or not splits or detail == "low":
            return Layout((whole,))
        tile = fields["tile_size"]
        columns, rows = self._grid(size)
        resizes = ((columns * tile, rows * tile),)
        views = tiles(resizes, tile, (tile // self.block) ** 2)
        if fields["use_thumbnail"] and rows * columns > 1:
            views.append(whole)
        return Layout(tuple(views), rows, columns)

    def text(self, layout: Layout) -> str:
        """Tiles behind their places, and the whole behind a name of its own."""
        if layout.rows * layout.columns <= 1:
            return START + self.mark * len(layout.views) + END
        placed = "".join(
            f"<|img_row_{row + 1}_col_{column + 1}|>{self.mark}"
            for row in range(layout.rows)
            for column in range(layout.columns)
        )
        has_whole = len(layout.views) > layout.rows * layout.columns
        return START + placed + (THUMBNAIL + self.mark if has_whole else "") + END

    def _whole(self, size: Size, least: int, most: int) -> View:
        area = self.block**2
        width, height = smart_resize_within(size, self.block, least * area, most * area)
        return View(((width, height),), width * height // area)

    def _grid(self, size: Size) -> Size:
        """Columns and rows whose shape is nearest to the image's; of equals the larger one."""
        least, most = self.fields["min_tiles"], self.fields["max_tiles"]
        grids = {
            (w, h)
            for n in range(least, most + 1)
            for w in range(1, n + 1)
            for h in range(1, n + 1)
            if least <= w * h <= most
        }
        ratio, area = size[0] / size[1], size[0] * size[1]
        best, nearest = (1, 1), float("inf")
        for grid in sorted(grids, key=lambda one: one[0] * one[1]):
            apart = abs(ratio - grid[0] / grid[1])
            tiles = self.fields["tile_size"] ** 2 * grid[0] * grid[1]
            if apart < nearest or (apart == nearest and area > 0.5 * tiles):
                best, nearest = grid, apart
        return best


def lfm2_vl(facts: dict[str, Any], placeholder: str) -> Lfm2Vl:
    """What a model's files say; PreprocessorError if it cannot be done."""
    given = facts["preprocessor"]
    block = facts["patch_size"] * facts["merge"]
    fields = {name: given.get(name, default) for name, default in DEFAULTS.items()}
    for name, default in DEFAULTS.items():
        value = fields[name]
        kinds = (int, float) if isinstance(default, float) else type(default)
        if not isinstance(value, kinds) or value < 0:
            raise PreprocessorError(f"{WHERE}: {name} is {value!r}; accepted: such as {default}")
    if fields["max_tiles"] > MOST_TILES or not fields["min_image_tokens"]:
        raise PreprocessorError(
            f"{WHERE}: max_tiles is {fields['max_tiles']}, min_image_tokens"
            f" {fields['min_image_tokens']}; accepted: at most {MOST_TILES} and at least 1"
        )
    if fields["tile_size"] % block:
        raise PreprocessorError(
            f"{WHERE}: tile_size is {fields['tile_size']}; accepted: multiples of {block}"
        )
    return Lfm2Vl(block, fields, resample_of(given, BILINEAR), placeholder)
