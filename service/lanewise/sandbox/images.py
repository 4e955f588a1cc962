"""Images in the sandbox: bytes that clients send, decoded and prepared as the model wants them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from lanewise.sandbox.lane import Limits, SandboxError, pack_job
from lanewise.sandbox.pool import Sandbox
from lanewise.text.images.layouts import Detail, ImageError

PREPARING = Limits(cpu_s=10.0, memory=512 << 20, answer=0)  # Pillow, of which nothing is a client's


@dataclass(frozen=True, slots=True)
class Seen:
    """What a tower sees at once, and how many rows it makes of it."""

    width: int
    height: int
    n_tokens: int
    lines: int  # of placeholders, all of one length
    digest: bytes = b""  # of the pixels and of how they were made; empty where there are none
    pixels: bytes | memoryview = b""  # [height][width][3] bytes


@dataclass(frozen=True, slots=True)
class ReadImage:
    """An image, ready for its model."""

    size: tuple[int, int]  # width and height as a person sees it
    text: str  # what stands for it in a conversation, with a placeholder for each view
    alone: str  # the same with what a chat template would write around it
    views: tuple[Seen, ...]
    notes: tuple[str, ...] = ()  # what of it is not read

    @property
    def n_tokens(self) -> int:
        """Rows of all views."""
        return sum(view.n_tokens for view in self.views)


class ImageService:
    """Reads images for one model, with facts as in ``text/images/families.py``."""

    def __init__(
        self, sandbox: Sandbox, facts: Mapping[str, Any], placeholder: str, most_pixels: int
    ) -> None:
        self._sandbox = sandbox
        described = {"facts": dict(facts), "placeholder": placeholder, "most_pixels": most_pixels}
        name = blake2b(json.dumps(described, sort_keys=True).encode(), digest_size=16).hexdigest()
        self._key = f"images {name}"
        self._set_up = {self._key: described}

    async def prepare(self) -> None:
        """Have workers start with what reads images; SandboxError if that cannot be made."""
        await self._sandbox.prepare(self._set_up, PREPARING)

    async def read(
        self, data: bytes, detail: Detail, client: int, *, wants_pixels: bool
    ) -> ReadImage:
        """An image; ImageError if it is none, SandboxError if there is no room for the work now."""
        payload = {"reader": self._key, "detail": detail, "wants_pixels": wants_pixels}
        packed = pack_job("image", payload, data)
        try:
            found = await self._sandbox.images.run(packed, self._set_up, client)
        except SandboxError as error:
            if error.reason in ("busy", "stopped"):
                raise
            raise ImageError("image_parse_error", str(error)) from None
        if "error" in found:
            raise ImageError(found["code"], found["error"])
        return ReadImage(
            tuple(found["size"]),
            found["text"],
            found["alone"],
            tuple(_views(found)),
            tuple(found["notes"]),
        )


def _views(found: Mapping[str, Any]) -> list[Seen]:
    shapes = found["views"]
    if "raw" not in found:
        return [Seen(*shape) for shape in shapes]
    raw, first = memoryview(found["raw"]), 0
    views = []
    for shape, digest in zip(shapes, found["digests"], strict=True):
        width, height, n_tokens, lines = shape
        end = first + 3 * width * height
        made = bytes.fromhex(digest)
        views.append(Seen(width, height, n_tokens, lines, made, raw[first:end]))
        first = end
    return views
