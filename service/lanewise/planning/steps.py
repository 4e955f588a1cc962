"""Seconds of a step: bytes over bandwidth, or multiplications over their rate, and overhead."""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, fields
from math import inf, log

from lanewise.engine.scheduling.pacing import Work
from lanewise.planning.machines import Kernels, Machine
from lanewise.planning.work import WHOLE, ModelWork, WindowShares

CHUNK = 512  # tokens of a prompt in one step, by a bench and by our server when it has no others
MANY_ROWS = 16  # from which on types differ as they do with very many rows


@dataclass(frozen=True, slots=True)
class StepSize:
    """What a step does."""

    rows: float  # tokens
    logits: float  # rows whose logits are wanted
    attended: float  # pairs of a row and a token that it sees
    cached: float  # tokens whose keys and values are read; once for each sequence
    sequences: float = 0.0  # their states are read and written


@dataclass(frozen=True, slots=True)
class StepTime:
    """What a step takes, by what it waits for."""

    bandwidth: float = 0.0
    arithmetic: float = 0.0
    overhead: float = 0.0  # threads waiting for each other, and the server outside the library

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.bandwidth + self.arithmetic + self.overhead

    @property
    def limit(self) -> str:
        """Which part is the longest."""
        return max((one.name for one in fields(self)), key=lambda name: getattr(self, name))

    def __add__(self, other: "StepTime") -> "StepTime":
        """Both, one after the other."""
        return StepTime(
            self.bandwidth + other.bandwidth,
            self.arithmetic + other.arithmetic,
            self.overhead + other.overhead,
        )

    def times(self, factor: float) -> "StepTime":
        """So many of them, or as much slower."""
        return StepTime(factor * self.bandwidth, factor * self.arithmetic, factor * self.overhead)


StepCost = Callable[[StepSize], StepTime]


def decode_size(sequences: int, context: int, windows: WindowShares = WHOLE) -> StepSize:
    """A step of one token for each of some sequences behind so many tokens."""
    attended, cached = seen(1, context, windows)
    return StepSize(sequences, sequences, sequences * attended, sequences * cached, sequences)


def prompt_size(tokens: int, context: int = 0, windows: WindowShares = WHOLE) -> StepSize:
    """A step of one prompt's tokens behind others, and the logits of its last one."""
    return StepSize(tokens, 1, *seen(tokens, context, windows), sequences=1)


def chunk_size(tokens: int, windows: WindowShares = WHOLE) -> StepSize:
    """The average step of a prompt that is run in chunks with no other request."""
    chunk = min(tokens, CHUNK)
    return prompt_size(chunk, (tokens - chunk) // 2, windows)


def seen(count: int, context: int, windows: WindowShares) -> tuple[float, float]:
    """Pairs that so many tokens behind others see, and the tokens that are read for it.

    Both are means over the layers, by their windows.
    """
    pairs = tokens = 0.0
    for window, share in windows:
        work = Work()
        work.add(count, context, window)
        pairs += share * work.attended
        tokens += share * (count + context if window is None else count + min(context, window - 1))
    return pairs, tokens


def step_time(machine: Machine, work: ModelWork, size: StepSize) -> StepTime:
    """What a step takes, on paper.

    Products wait for memory and for arithmetic, and so does attention, which may have work for
    some threads only; what becomes no faster with threads counts as arithmetic.
    """
    kernels = machine.kernels
    parallel = machine.team.serial + (1 - machine.team.serial) / machine.threads
    products = parallel * product_seconds(kernels, work, size)
    time = _both(work.bytes_read(size.rows) / machine.read_s, products, kernels.overlap)
    attention = size.attended * work.attention_weights / kernels.attention_s
    attention *= machine.team.serial + (1 - machine.team.serial) / attention_threads(
        machine, work, size
    )
    time += _both(size.cached * work.kv_token_bytes / machine.read_s, attention, kernels.overlap)
    time += StepTime(bandwidth=size.sequences * work.moved_state_bytes / machine.read_s)
    values = parallel * size.rows * work.values / kernels.values_s
    waits = work.n_layers * machine.team.phases * machine.team.wait_s
    return time + StepTime(arithmetic=values, overhead=waits)


def attention_threads(machine: Machine, work: ModelWork, size: StepSize) -> float:
    """Threads that have a part in attention: all unless there are few rows, heads and tokens."""
    tokens = machine.team.attention_tokens
    seen_by_row = size.attended / size.rows if size.rows else 0.0
    parts = max(1.0, seen_by_row / tokens) if tokens else 1.0
    return max(1.0, min(machine.threads, size.rows * work.attention_heads * parts))


def product_seconds(kernels: Kernels, work: ModelWork, size: StepSize) -> float:
    """What one core takes to multiply all weights that the step uses."""
    seconds = 0.0
    for one in work.matrices:
        rows = size.logits if one.of_head else size.rows
        if rows > 0:
            # Rows choose different experts, so that each expert has fewer at a time.
            together = max(1.0, rows * work.expert_share) if one.of_experts else rows
            seconds += rows * one.weights / rate(kernels, one.type, together)
    return seconds


def rate(kernels: Kernels, kind: str, rows: float) -> float:
    """Weights of a type that one core multiplies in a second, for so many rows at once."""
    single, many = kernels.types.get(kind, kernels.types["others"])
    if kind == "q4_0":
        single = many = 1.0
    share = min(1.0, log(rows) / log(MANY_ROWS)) if rows > 1 else 0.0
    return interpolate(kernels.rows, kernels.macs_s, rows) * (single + share * (many - single))


def interpolate(rows: tuple[float, ...], values: tuple[float, ...], at: float) -> float:
    """Between points that are known, straight over the logarithm of the rows; flat beyond them."""
    if at <= rows[0]:
        return values[0]
    if at >= rows[-1]:
        return values[-1]
    i = bisect_right(rows, at) - 1
    share = log(at / rows[i]) / log(rows[i + 1] / rows[i])
    return values[i] + share * (values[i + 1] - values[i])


def _both(reading: float, computing: float, overlap: float) -> StepTime:
    """What reading and computing take together; it counts as what the longer of both is."""
    longer, other = max(reading, computing), min(reading, computing)
    if longer > 0 and overlap != inf:
        longer *= (1 + (other / longer) ** overlap) ** (1 / overlap)
    return StepTime(bandwidth=longer) if reading > computing else StepTime(arithmetic=longer)
