"""Decodes an image and prepares it as its model was trained with: Pillow, and no bound of its own.

It runs in the sandbox: bytes that clients send reach libraries in C here.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from PIL import Image, ImageOps, UnidentifiedImageError

from lanewise.text.images.layouts import Detail, Family, ImageError, Size, View

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP")
ACCEPTED = "JPEG, PNG, WebP, GIF, TIFF and BMP"
WHITE = (255, 255, 255, 255)
FIRST_ONLY = "of several frames or pages only the first is read"
DIGEST = 32  # bytes

# What is too large is refused by its own size, before it is decoded.
Image.MAX_IMAGE_PIXELS = None
# Plugins are found now: a process that is forked later need not open their files.
Image.preinit()
Image.init()


@dataclass(frozen=True, slots=True)
class ImageReader:
    """Reads images for one model."""

    family: Family
    settings: bytes  # equal for models that prepare images alike
    most_pixels: int

    def read(self, data: bytes, detail: Detail, *, wants_pixels: bool) -> dict[str, Any]:
        """What the tower sees of an image, and its pixels one view after the other.

        ImageError if it is none that can be used.
        """
        image, notes = self._decoded(data)
        layout = self.family.layout(image.size, detail)
        found: dict[str, Any] = {
            "size": image.size,
            "tiles": (layout.rows, layout.columns),
            "text": self.family.text(layout),
            "alone": self.family.alone(layout),
            "views": [(*view.size, view.n_tokens, view.lines) for view in layout.views],
            "notes": notes,
        }
        if wants_pixels:
            done: dict[tuple[Size, ...], Image.Image] = {(): image}
            pixels = [self._seen(view, done).tobytes() for view in layout.views]
            shapes = zip(found["views"], pixels, strict=True)
            found["digests"] = [self._digest(shape, one) for shape, one in shapes]
            found["raw"] = b"".join(pixels)
        return found

    def _decoded(self, data: bytes) -> tuple[Image.Image, list[str]]:
        if not data:
            raise ImageError("empty_image_file", "the image has no bytes")
        try:
            return self._opened(data)
        except ImageError:
            raise
        except MemoryError:
            raise
        except UnidentifiedImageError:
            raise ImageError(
                "invalid_image_format", f"no image of a known format; accepted: {ACCEPTED}"
            ) from None
        except Exception as error:  # of each format's reader another
            raise ImageError("image_parse_error", f"the image cannot be read: {error}") from None

    def _opened(self, data: bytes) -> tuple[Image.Image, list[str]]:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            width, height = image.size
            if width * height > self.most_pixels:
                raise ImageError(
                    "image_too_large",
                    f"{width} x {height} pixels; accepted: at most {self.most_pixels} in all",
                )
            image.load()
            found = _as_rgb(ImageOps.exif_transpose(image))
            return found, [FIRST_ONLY] if getattr(image, "is_animated", False) else []

    def _seen(self, view: View, done: dict[tuple[Size, ...], Image.Image]) -> Image.Image:
        """A view; ``done`` has what the image was resized to for the views before."""
        for count, size in enumerate(view.resizes, start=1):
            chain = view.resizes[:count]
            if chain not in done:
                before = done[chain[:-1]]
                done[chain] = before.resize(size, self.family.resample)
        whole = done[view.resizes]
        return whole if view.box is None else whole.crop(view.box)

    def _digest(self, shape: tuple[int, ...], pixels: bytes) -> str:
        digest = blake2b(repr(shape).encode(), key=self.settings, digest_size=DIGEST)
        digest.update(pixels)
        return digest.hexdigest()


def _as_rgb(image: Image.Image) -> Image.Image:
    """Three channels of 8 bits, on white where the image has transparent places."""
    if image.mode.startswith("I;16"):
        scaled = image.convert("I").point(lambda value: value * (1 / 257) + 0.5)
        return scaled.convert("L").convert("RGB")
    if image.mode in ("I", "F"):
        raise ImageError(
            "invalid_image_format", "values of 32 bits; accepted: 8 or 16 bits a channel"
        )
    if "A" in image.getbands() or image.info.get("transparency") is not None:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, WHITE), image).convert("RGB")
    return image.convert("RGB")
