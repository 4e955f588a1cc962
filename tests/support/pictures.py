"""Small images in many formats, made by Pillow."""

import io

import numpy as np
from PIL import Image


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    """Ramps of colour, different for each seed, so that every pixel tells where it is."""
    y, x = np.mgrid[:height, :width]
    ramps = x * 7 + seed * 31, y * 5 + seed * 17, x + y + seed
    return Image.fromarray((np.stack(ramps, axis=-1) % 256).astype(np.uint8))


def encoded(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    """An image as a file of this kind."""
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def png(width: int, height: int, seed: int = 0) -> bytes:
    """A PNG of that size."""
    return encoded(picture(width, height, seed))
