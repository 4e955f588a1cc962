"""How many prompt tokens a step may take beside its decodes, learnt from what steps have cost.

No clock and no I/O: data in, data out. A step's time is nearly linear in two sizes: its rows, and
the (row, attended token) pairs. Times of steps of similar size are averaged. A line is fitted to
the averages and corrected at each number of rows that was seen. A factor that follows the last few
steps says how much faster or slower the machine is just now.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

TILE = 4  # rows that every GEMM kernel computes together; a partial tile costs a full one
# Whatever the target, no prompt starves: a step takes at least MIN_CHUNK prompt tokens, and as many
# as take MIN_SHARE of its decodes' time. So a stream is at worst about half as fast.
MIN_CHUNK = 4
MIN_SHARE = 0.75
MAX_CHUNK = 1 << 16  # practically no limit
# Without decodes no stream waits for the step, but a new request does. So a step of prompts only is
# to take at most ALONE_S, or has ALONE_ROWS rows, at which reading the weights is well used.
ALONE_S = 1.0
ALONE_ROWS = 128
SINGLE_TILES = 16  # below this each number of tiles is a class: kernels differ there
AIM = 0.95  # share of the target to aim at: about half of all steps take longer than predicted
REFIT_STEPS = 64
MANY_ROWS = 16  # of a step that shows what the rows of prompts cost
MOST_BEYOND = 4.0  # times what its rows cost: attention takes no more of a prompt
FAMILIAR = 4  # after this many steps of a size, a deviation means a change of speed
# A size seen fewer than FAMILIAR times does not correct the line if its mean is off by more than
# this factor: its steps were probably disturbed.
DOUBTFUL = 1.5
CLASS_RATE = 1 / 128  # weight of a new step in its class's average
SPEED_RATE = 1 / 8
MAX_SLOWDOWN = 2.0  # of one step: more is a pause, which says nothing of the next step


@dataclass(slots=True)
class Work:
    """The size of a step."""

    rows: int = 0  # tokens that the model sees
    attended: int = 0  # sum over the rows of the tokens that each attends to

    def add(self, count: int, context: int, window: int | None = None) -> None:
        """Add ``count`` tokens after ``context`` others; each attends to the last ``window``."""
        self.rows += count
        if window is not None and context + count > window:
            whole = max(0, window - context)  # tokens that attend to all before them
            self.attended += (count - whole) * window
            count = whole
        self.attended += count * context + count * (count + 1) // 2


@dataclass(slots=True)
class _Average:
    """The average of steps of about one size."""

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
    """Predicts the seconds of a step.

    The formula is ``speed * bend(rows) * (base + per_row * rows + per_pair * attended)``.
    """

    def __init__(self) -> None:
        self._classes: dict[tuple[int, int], _Average] = {}
        self._fit = (0.0, 0.0, 0.0)
        self._bend_rows = self._bends = np.ones(1)  # by rows: measured time / the line's
        self._speed = 1.0
        self._until_refit = 0

    @property
    def is_known(self) -> bool:
        """Whether steps of several sizes were seen."""
        return self._fit[1] > 0

    def learn(self, work: Work, seconds: float) -> None:
        """Note the seconds that a step took."""
        tiles = -(-work.rows // TILE)
        if tiles >= SINGLE_TILES:
            tiles = SINGLE_TILES + tiles.bit_length()
        key = (tiles, work.attended.bit_length())
        average = self._classes.get(key)
        if average is None:
            average = self._classes[key] = _Average()
        elif average.n >= FAMILIAR and self._fit[1] > 0:
            # The reference is the mean of earlier steps of this size. Where the fitted line is bad,
            # comparing with it would look like a change of the machine's speed.
            expected = self._speed * average.seconds
            expected *= self._line(work.rows, work.attended) / self._line(
                average.rows, average.attended
            )
            ratio = min(MAX_SLOWDOWN, max(1 / MAX_SLOWDOWN, seconds / expected))
            seconds = ratio * expected
            self._speed *= 1 + SPEED_RATE * (ratio - 1)
        elif seconds * MAX_SLOWDOWN < average.seconds * self._speed:
            average.n = 0  # the earlier ones were disturbed
        # Stored as if the speed were 1, so that old averages still give the line's slope.
        average.learn(work.rows, work.attended, seconds / self._speed)
        self._until_refit -= 1
        if self._until_refit <= 0 or average.n in (1, FAMILIAR):
            self._until_refit = REFIT_STEPS
            self._refit()

    def seconds(self, work: Work) -> float:
        """The predicted seconds of a step of this size; 0 while nothing is known."""
        bend = float(np.interp(work.rows, self._bend_rows, self._bends))
        return self._speed * bend * self._line(work.rows, work.attended)

    def seconds_beyond(self, work: Work) -> float:
        """The seconds of more work than one step has, such as a whole prompt; 0 if none was seen.

        What pairs cost is not known before long contexts were seen, and a fit of short steps may
        be far off. So the result is bounded by what the rows of prompts have cost.
        """
        rates = [one.seconds / one.rows for one in self._classes.values() if one.rows >= MANY_ROWS]
        if not rates:
            return 0.0
        of_rows = self._speed * median(rates) * work.rows
        return min(MOST_BEYOND * of_rows, max(of_rows, self.seconds(work)))

    def rows_within(self, seconds: float, decodes: Work, context: int, about_s: float = 0.0) -> int:
        """How many rows of a prompt fit beside the decodes in ``seconds``.

        ``context`` tokens come before these rows. Rows are counted in whole tiles, the decodes'
        rows included. If more rows bring the step closest to ``about_s``, that many: rounding a
        share of few tiles down could halve it.
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
        weights = trust / np.maximum(seconds, 1e-9)  # relative errors: 20 ms and 2 s count alike
        base, per_row, per_pair = _fit_positive(sizes * weights[:, None], seconds * weights)
        if per_row > 0:
            self._fit = (float(base), float(per_row), float(per_pair))
            self._bend(averages)

    def _bend(self, averages: Sequence[_Average]) -> None:
        """Store the line's error for each number of rows; large ones only if seen often."""
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
    """Least squares without negative coefficients: drop the most negative term and fit again."""
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
    """Chooses how much a step does beside its decodes so that it ends within a target time."""

    def __init__(self, target_s: float) -> None:
        self.cost = SizeCost()
        self.target_s = target_s

    def spare_tokens(self, decodes: Work, context: int, prompts: Work | None = None) -> int:
        """How many tokens of a prompt, or guesses, fit beside the decodes.

        ``context`` tokens are cached before them. ``prompts`` is what the step already has of
        prompts.
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
            within = self.cost.rows_within(AIM * self.target_s, others, context, least_s)
        least = -(-(decodes.rows + MIN_CHUNK) // TILE) * TILE - decodes.rows
        return max(least - n_before, within)

    def spare_guesses(self, decodes: Work, n_rows: int) -> int:
        """How many guesses fit beside the decodes of a step that has ``n_rows`` with them."""
        context = decodes.attended // max(1, decodes.rows)
        return max(0, self.spare_tokens(decodes, context) - (n_rows - decodes.rows))
