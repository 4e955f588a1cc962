"""How a tower reads a picture."""

from __future__ import annotations

from dataclasses import dataclass

# How learned positions become those of a picture: they are those of a square, which all pictures
# are; the square is stretched over the picture, corner to corner, linear between four rows; it is
# resampled to the picture, with a triangle that reaches to the next position or row.
# Or there is a table for columns and one for rows.
PATCH_POSITIONS = ("square", "stretched", "resampled", "tables")


@dataclass(frozen=True)
class Patches:
    """How a tower reads a picture: patches of ``side`` pixels, which are its tokens.

    Blocks of ``merge`` x ``merge`` patches come row by row, and so do the patches of a block. After
    the output norm the rows of a block are read as one, which is the first dense head's input.
    """

    side: int
    merge: int = 1
    bias: bool = False
    # Of R, G and B: a value v of 0 to 255 becomes (v / 255 - mean) / deviation.
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    deviation: tuple[float, float, float] = (0.5, 0.5, 0.5)
    positions: str = "square"  # one of PATCH_POSITIONS
    norm: bool = False  # patches go through a norm, behind their positions
    norm_first: bool = False  # that norm comes before positions are added
    input_norm: bool = False  # the values of a patch go through a LayerNorm of their own
    no_output_norm: bool = False
    output_eps: float = 0.0  # of the output norm; 0: rms_norm_eps
    mean_of_block: bool = False  # rows of a block become their mean, not one row
    mean_factor: float = 1.0
    shifts_mean: bool = False  # then a shift is subtracted and the result scaled, for each value
    # Layers behind which rows of blocks go through dense heads too: as many for each as for the
    # result, which their results follow.
    taps: tuple[int, ...] = ()

    @property
    def inputs(self) -> int:
        """Inputs of the patches' matrix: rounded up to whole groups, the further ones are 0."""
        return -(-3 * self.side**2 // 32) * 32
