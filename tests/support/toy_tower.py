"""A tower in a few lines for tests: what it makes of pixels is their hash."""

import threading
import time
from hashlib import blake2b

import numpy as np

from lanewise.api.shared.image_fetch import Fetcher
from lanewise.api.shared.images import Eyes
from lanewise.sandbox.images import ImageService
from lanewise.sandbox.pool import Sandbox

SIDE = 16  # pixels of a row's square
FACTS = {
    "family": "idefics3",
    "patch_size": 4,
    "merge": 4,
    "preprocessor": {"size": {"longest_edge": 64}, "max_image_size": {"longest_edge": 32}},
}
NAMES = (
    *("<image>", "<fake_token_around_image>", "<global-img>"),
    *(f"<row_{row}_col_{column}>" for row in range(1, 3) for column in range(1, 3)),
)


class ToyJob:
    """One picture, which takes some slices."""

    def __init__(self, tower: "ToyTower", pixels: np.ndarray) -> None:
        self._tower = tower
        self._left = tower.n_slices
        height, width, _ = pixels.shape
        n_tokens = (height // SIDE) * (width // SIDE)
        digest = blake2b(pixels.tobytes(), digest_size=4).digest()
        first = int.from_bytes(digest, "little")
        self.rows = (np.arange(n_tokens * 2, dtype=np.uint32) * 7919 + first).view(np.float32)
        self.rows = self.rows.reshape(n_tokens, 2)

    def advance(self, nanoseconds: int) -> bool:
        self._tower.gate.wait()
        if self._tower.error is not None:
            error, self._tower.error = self._tower.error, None
            self._tower.current = None
            raise error
        self._left -= 1
        self._tower.slices.append(nanoseconds)
        if self._left <= 0:
            self._tower.current = None
            self._tower.n_done += 1
        return self._left <= 0

    def drop(self) -> None:
        self._tower.current = None
        self._tower.n_dropped += 1


class ToyTower:
    """Works on one picture at a time."""

    def __init__(self, n_slices: int = 3) -> None:
        self.n_slices = n_slices
        self.current: ToyJob | None = None
        self.n_done = self.n_dropped = 0
        self.slices: list[int] = []
        self.error: Exception | None = None
        self.gate = threading.Event()  # cleared: slices wait
        self.gate.set()
        self.closed = False

    def begin(self, parts: list[np.ndarray]) -> ToyJob:
        assert self.current is None, "one at a time"
        (pixels,) = parts
        self.current = ToyJob(self, pixels)
        return self.current

    def wait_until(self, condition, timeout_s: float = 60) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, "it did not come to pass"
            time.sleep(0.005)

    def close(self) -> None:
        self.closed = True


def toy_eyes(placeholder: int, fetcher: Fetcher | None = None, **limits: int):
    """What a state needs to read images."""

    def see(sandbox: Sandbox) -> Eyes:
        return Eyes(
            service=ImageService(sandbox, FACTS, "<image>", limits.get("most_pixels", 1 << 20)),
            written_as="<image>",
            placeholder=placeholder,
            max_images=limits.get("max_images", 4),
            max_bytes=limits.get("max_bytes", 1 << 16),
            fetcher=fetcher,
        )

    return see
