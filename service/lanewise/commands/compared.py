"""What ``lanewise compare`` says of one model, and how it prints tables."""

from collections.abc import Mapping
from dataclasses import dataclass

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Score:
    """What lm-eval says of one task."""

    metric: str  # such as acc_norm
    value: float
    error: float | None  # standard error


@dataclass(frozen=True, slots=True)
class Compared:
    """One model's row; what was not measured is None."""

    model: str
    name: str  # that tells it from the others
    weights: str
    bytes: int  # of the weights' files
    bits_per_weight: float
    perplexity: float
    kl: float | None = None  # mean, nats; None for the original
    kl_error: float | None = None  # standard error of the mean
    kl_p99: float | None = None  # of one position in a hundred it is more
    top1: float | None = None  # share of positions with the original's most likely token
    prefill: float | None = None  # tokens per second
    decode: float | None = None
    activations: str = "int8"  # of quantized matrices
    on_front: bool = False
    chat_same: float | None = None  # share of the prompts with the original's very answer
    chat_prefix: float | None = None  # mean tokens before the first that differs
    chat_tokens: float | None = None  # mean tokens of the original's answers
    scores: Mapping[str, Score] | None = None  # of lm-eval's tasks


def print_whole(table: Table) -> Console:
    """Print a table: a line too long is better than one cut short. Returns where it was."""
    console = Console(highlight=False)
    needed = Measurement.get(console, console.options.update(max_width=1000), table).maximum
    console.width = max(console.width, needed)
    console.print(table)
    return console
