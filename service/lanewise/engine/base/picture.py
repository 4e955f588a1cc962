"""Pictures in a prompt: what a tower sees at once, and where its rows stand."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROW_BYTES = 4  # of the number of a row in its name
NAME_BYTES = 32 + ROW_BYTES


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """What a tower sees at once; pictures of equal digest are the same."""

    digest: bytes  # of pixels and of how they were made; 32 bytes
    width: int
    height: int
    n_tokens: int
    pixels: Any  # a buffer, [height][width][3] bytes

    @property
    def array(self) -> NDArray[np.uint8]:
        """The pixels, not copied."""
        return np.frombuffer(self.pixels, np.uint8).reshape(self.height, self.width, 3)


@dataclass(frozen=True)
class Span:
    """The tokens of a prompt for which a picture's rows stand."""

    first: int
    picture: Picture

    @property
    def end(self) -> int:
        """The token behind the last."""
        return self.first + self.picture.n_tokens

    @cached_property
    def _name(self) -> int:
        return int.from_bytes(self.picture.digest, "little") << 8 * ROW_BYTES

    def name(self, place: int) -> int:
        """What tells the row at a place of the prompt from every token and every other row."""
        return self._name | (place - self.first)
