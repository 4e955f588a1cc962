"""How many prompt tokens a step may take beside its decodes, from what steps have cost so far.

Pure data in, pure data out. A step's time is close to linear in two sizes: its rows, and the pairs
of a row and a token it attends to. What steps of each class of sizes took is averaged; a line
through the averages, bent at the numbers of rows that were seen, says what a step would take, and a
factor that follows the last few steps says how much slower or faster the machine is just now.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence as Items
from dataclasses import dataclass
from statistics import median

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

TILE = 4  # rows that every GEMM kernel computes together; a part of them costs as much as all
# Whatever the target, no prompt starves: a step takes so many of its tokens, and as many as take
# about this part of the time of its decodes. So tokens come about half as fast at worst.
MIN_CHUNK = 4
MIN_SHARE = 0.75
MAX_CHUNK = 1 << 16  # as good as any number
# Beside no decodes no request waits for a token, but one that arrives waits for the step's end: it
# takes about so long at most, or has so many rows, with which weights are read almost for nothing.
ALONE_S = 1.0
ALONE_ROWS = 128
SINGLE_TILES = 16  # steps of fewer are told apart by each tile: kernels differ there
AIM = 0.95  # of the target: about half of all steps take longer than predicted
REFIT_STEPS = 64
FAMILIAR = 4  # after so many steps of a size, a deviating one says that the speed has changed
# A size seen fewer than FAMILIAR times is left out of the correction of the line if its mean is off
# the line by more than this factor: its steps were probably disturbed.
DOUBTFUL = 1.5
CLASS_RATE = 1 / 128  # how fast an average forgets
SPEED_RATE = 1 / 8
MAX_SLOWDOWN = 2.0  # of one step: more is a pause of the machine and says nothing of the next


@dataclass(slots=True)
class Work:
    """The size of a step."""

    rows: int = 0  # tokens the model sees
    attended: int = 0  # sum over the rows of the tokens that each attends to

    def add(self, count: int, context: int, window: int | None = None) -> None:
        """Include ``count`` tokens behind ``context`` others; each sees the last ``window``."""
        self.rows += count
        if window is not None and context + count > window:
            whole = max(0, window - context)  # tokens that see all before them
            self.attended += (count - whole) * window
            count = whole
        self.attended += count * context + count * (count + 1) // 2


@dataclass(slots=True)
class _Average:
    """Of steps of about one size."""

    n: int = 0
    rows: float = 0.0
    attended: float = 0.0
    seconds: float = 0.0

    def learn(self, rows: int, attended: int, seconds: float) -> None:
        self.n += 1
        rate = max(1 / self.n, CLASS_RATE)
        self.rows += rate * (rows - self.rows)
        self.attended += rate * (attended - self.attended)
        self.seconds += rate * (seconds - self.seconds)


class SizeCost:
    """Predicts what a step takes.

    It is ``speed * bend(rows) * (base + per_row * rows + per_pair * attended)``.
    """

    def __init__(self) -> None:
        self._classes: dict[tuple[int, int], _Average] = {}
        self._fit = (0.0, 0.0, 0.0)
        self._bend_rows = self._bends = np.ones(1)  # what was seen of the line's error, by rows
        self._speed = 1.0
        self._until_refit = 0

    @property
    def is_known(self) -> bool:
        """Whether steps of several sizes were seen."""
        return self._fit[1] > 0

    def learn(self, work: Work, seconds: float) -> None:
        """Note what a step took."""
        tiles = -(-work.rows // TILE)
        if tiles >= SINGLE_TILES:
            tiles = SINGLE_TILES + tiles.bit_length()
        key = (tiles, work.attended.bit_length())
        average = self._classes.get(key)
        if average is None:
            average = self._classes[key] = _Average()
        elif average.n >= FAMILIAR and self._fit[1] > 0:
            # Compared with earlier steps of this size, not with the fitted line: where that fits
            # badly, the step would look as if the machine's speed had changed.
            expected = self._speed * average.seconds
            expected *= self._line(work.rows, work.attended) / self._line(
                average.rows, average.attended
            )
            ratio = min(MAX_SLOWDOWN, max(1 / MAX_SLOWDOWN, seconds / expected))
            seconds = ratio * expected
            self._speed *= 1 + SPEED_RATE * (ratio - 1)
        elif seconds * MAX_SLOWDOWN < average.seconds * self._speed:
            average.n = 0  # what it knows was disturbed, as the first step is that touches a model
        # At the standard speed, so that what was seen long ago still tells the line's direction.
        average.learn(work.rows, work.attended, seconds / self._speed)
        self._until_refit -= 1
        if self._until_refit <= 0 or average.n in (1, FAMILIAR):
            self._until_refit = REFIT_STEPS
            self._refit()

    def seconds(self, work: Work) -> float:
        """What a step of this size takes; 0 while nothing is known."""
        bend = float(np.interp(work.rows, self._bend_rows, self._bends))
        return self._speed * bend * self._line(work.rows, work.attended)

    def rows_within(self, seconds: float, decodes: Work, context: int, about_s: float = 0.0) -> int:
        """Most rows of a prompt behind ``context`` tokens that such a step holds beside decodes.

        Counted in whole tiles, those of the decodes included; or as many as bring the step nearest
        to ``about_s``, if that is more: rounded down, a share of few tiles would be a half of it.
        """

        def takes(tiles: int) -> float:
            work = Work(decodes.rows, decodes.attended)
            work.add(max(0, tiles * TILE - decodes.rows), context)
            return self.seconds(work)

        tiles = bisect_right(range(MAX_CHUNK // TILE), max(seconds, about_s), key=takes) - 1
        if takes(tiles + 1) - about_s < about_s - takes(tiles):
            tiles += 1
        return max(0, tiles * TILE - decodes.rows)

    def _line(self, rows: float, attended: float) -> float:
        base, per_row, per_pair = self._fit
        return base + per_row * rows + per_pair * attended

    def _refit(self) -> None:
        averages = list(self._classes.values())
        sizes = np.array([(1.0, one.rows, one.attended) for one in averages])
        seconds = np.array([one.seconds for one in averages])
        trust = np.sqrt([min(one.n, 1 / CLASS_RATE) for one in averages])
        weights = trust / np.maximum(seconds, 1e-9)  # 20 ms and 2 s alike matter by their ratio
        base, per_row, per_pair = _fit_positive(sizes * weights[:, None], seconds * weights)
        if per_row > 0:
            self._fit = (float(base), float(per_row), float(per_pair))
            self._bend(averages)

    def _bend(self, averages: Items[_Average]) -> None:
        """Note how far the line is off for each number of rows; far only if seen several times."""
        seen: Counter[int] = Counter()
        errors: dict[int, list[float]] = {}
        for one in averages:
            rows = round(one.rows)
            seen[rows] += one.n
            error = one.seconds / self._line(one.rows, one.attended)
            errors.setdefault(rows, []).append(error)
        bends = {rows: median(errors[rows]) for rows in sorted(errors)}
        for rows, bend in list(bends.items()):
            if seen[rows] < FAMILIAR and not 1 / DOUBTFUL < bend < DOUBTFUL:
                del bends[rows]
        self._bend_rows = np.array([*bends] or [0], dtype=np.float64)
        self._bends = np.array([*bends.values()] or [1], dtype=np.float64)


def _fit_positive(sizes: Array, values: Array) -> Array:
    """Least squares without negative coefficients: the most negative is left out, and again."""
    columns = list(range(sizes.shape[1]))
    fit = np.zeros(sizes.shape[1])
    while columns:
        scale = np.maximum(np.abs(sizes[:, columns]).max(axis=0), 1e-30)
        found = np.linalg.lstsq(sizes[:, columns] / scale, values, rcond=1e-6)[0] / scale
        if found.min() >= 0:
            fit[columns] = found
            break
        del columns[int(found.argmin())]
    return fit


class Pacer:
    """Chooses what a step does beside its decodes so that it ends within a target."""

    def __init__(self, target_s: float) -> None:
        self.cost = SizeCost()
        self._target_s = target_s

    def spare_tokens(self, decodes: Work, context: int, prompts: Work | None = None) -> int:
        """Tokens of a prompt behind ``context`` cached ones, or guesses, beside these decodes.

        The step has ``prompts`` too.
        """
        n_before = 0 if prompts is None else prompts.rows
        others = decodes
        if prompts is not None:
            others = Work(decodes.rows + n_before, decodes.attended + prompts.attended)
        if not decodes.rows:
            if not self.cost.is_known:
                return MAX_CHUNK
            within = self.cost.rows_within(ALONE_S, others, context)
            return max(ALONE_ROWS - n_before, within)
        within = 0
        if self.cost.is_known:
            least_s = (1 + MIN_SHARE) * self.cost.seconds(decodes)
            within = self.cost.rows_within(AIM * self._target_s, others, context, least_s)
        least = -(-(decodes.rows + MIN_CHUNK) // TILE) * TILE - decodes.rows
        return max(least - n_before, within)
