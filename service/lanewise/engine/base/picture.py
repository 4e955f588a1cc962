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


@dataclass(frozen=True, slots=True)
class PictureRules:
    """How a model reads pictures beside its rows."""

    n_axes: int = 1  # positions of a token
    see_ahead: bool = False  # tokens of a picture see all of it: they are in one step
    token: int | None = None  # that the library wants in the place of a row; None: any will do


NO_RULES = PictureRules()


@dataclass(frozen=True)
class Span:
    """The tokens of a prompt for which rows of a picture stand, all or some."""

    first: int
    picture: Picture
    row: int  # of the picture, for the first token
    n_tokens: int

    @property
    def end(self) -> int:
        """The token behind the last."""
        return self.first + self.n_tokens

    @cached_property
    def _name(self) -> int:
        return int.from_bytes(self.picture.digest, "little") << 8 * ROW_BYTES

    def name(self, place: int) -> int:
        """What tells the row at a place of the prompt from every token and every other row."""
        return self._name | (self.row + place - self.first)
