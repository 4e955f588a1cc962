"""``lanewise compare --caches``: what types of cached keys and values cost one model.

The model is loaded once. All types go through each window side by side, a chunk of it at a time, so
no logits wait anywhere. Positions from ``after`` on are scored, each ``every``-th of them: there a
token sees that much context. The divergence is from the same model with the type that
``--kv-cache-dtype`` says (``lanewise compare`` says what the numbers are).
"""

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from rich.table import Column, Table

from lanewise.commands.compared import print_whole
from lanewise.commands.opening import Opened, open_model
from lanewise.commands.perplexity import (
    DEFAULT_CONTEXT,
    context_of,
    cut_windows,
    kl_divergences,
    naming,
    negative_log_likelihoods,
    perplexity_of,
)
from lanewise.commands.progress import steps_bar
from lanewise.host import cpu_name
from lanewise.planning.work import cached_token_bytes
from lanewise.runtime import BLOCK_TOKENS, Batch, Session
from lanewise.settings import CompareSettings, SettingsError
from lanewise.text.tokenizer import Tokenizer

CHUNK = 512  # tokens of a window in one step
LOGITS = 64  # rows of logits of one step at most: vocabularies can be wide

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Cache:
    """One type's row; the divergence of the type that others are compared with is None."""

    kv_type: str
    token_bytes: float  # of all layers
    perplexity: float
    positions: int
    kl: float | None = None  # mean, nats
    kl_error: float | None = None  # standard error of the mean
    kl_p99: float | None = None
    top1: float | None = None  # share of positions with the same most likely token


@dataclass(slots=True)
class _Tally:
    losses: list[float] = field(default_factory=list)
    divergences: list[float] = field(default_factory=list)
    agreed: int = 0


def run(models: Sequence[str], settings: CompareSettings, text: str) -> None:
    """Measure the types and print the table, or a JSON object."""
    if len(models) != 1:
        raise SettingsError(f"--caches: accepted beside one MODEL, {len(models)} given")
    longest = settings.context or DEFAULT_CONTEXT
    with open_model(replace(settings, model=models[0]), longest) as opened:
        windows = _windows_of(opened, settings, text)
        types = [opened.kv_type, *(one for one in settings.caches if one != opened.kv_type)]
        with naming(opened.checkpoint):
            rows = measure(opened, windows, types, settings.after, settings.every)
        name = opened.checkpoint.name
    if settings.json:
        report = {"model": name, "caches": [asdict(row) for row in rows], "cpu": cpu_name()}
        print(json.dumps(report))
    else:
        _show(rows)


def _windows_of(opened: Opened, settings: CompareSettings, text: str) -> list[list[int]]:
    tokenizer = Tokenizer.from_files(opened.checkpoint.tokenizer)
    ids = tokenizer.encode(text, add_bos=False, parse_special=False)[: settings.tokens]
    start = tokenizer.encode("", add_bos=True, parse_special=False)
    context = context_of(settings.context, opened.model.config.context_length)
    windows = [one for one in cut_windows(ids, start, context) if len(one) > settings.after + 1]
    if not windows:
        raise SettingsError(
            f"--after: {settings.after} with windows of {context} tokens and a text of {len(ids)};"
            " accepted: fewer than a window has"
        )
    return windows


def measure(
    opened: Opened, windows: list[list[int]], types: Sequence[str], after: int, every: int
) -> list[Cache]:
    """Rows of all types, the first of which the others are compared with."""
    tallies = [_Tally() for _ in types]
    longest = max(map(len, windows))
    with ExitStack() as stack, steps_bar("scoring") as bar:
        sessions = [
            stack.enter_context(
                Session(
                    opened.model,
                    threads=opened.threads,
                    blocks=-(-longest // BLOCK_TOKENS),
                    max_batch_tokens=min(CHUNK, longest),
                    max_batch_logits=LOGITS,
                    kv_type=kv_type,
                    states=1,
                )
            )
            for kv_type in types
        ]
        parts = [(window, part) for window in windows for part in _parts(window, after, every)]
        for window, (begin, end, rows) in bar.track(parts, description=opened.checkpoint.name):
            targets = [window[row + 1] for row in rows]
            expected: Floats | None = None
            for session, tally in zip(sessions, tallies, strict=True):
                found = _step(session, window, begin, end, rows)
                tally.losses += negative_log_likelihoods(found, targets)
                expected = found.copy() if expected is None else expected
                tally.divergences += kl_divergences(expected, found)
                agrees = expected.argmax(axis=1) == found.argmax(axis=1)
                tally.agreed += int(agrees.sum())
    bytes_of = [cached_token_bytes(opened.model, kv_type) for kv_type in types]
    return list(map(_row, types, bytes_of, tallies, range(len(types))))


def _parts(window: list[int], after: int, every: int) -> Iterator[tuple[int, int, list[int]]]:
    """Tokens of a window that are run at once, and the positions of them that are scored."""
    begin, last = 0, len(window) - 1  # the last token predicts nothing that is scored
    while begin < last:
        end = min(begin + CHUNK, last)
        first = max(after, begin)
        rows = list(range(first + (after - first) % every, end, every))[:LOGITS]
        if rows and rows[-1] + every < end:
            end = rows[-1] + 1
        yield begin, end, rows
        begin = end


def _step(session: Session, window: list[int], begin: int, end: int, rows: list[int]) -> Floats:
    table = [list(range(-(-end // BLOCK_TOKENS)))]
    wanted = [row - begin for row in rows]
    return session.step(Batch(window[begin:end], [0, end - begin], [begin], table, wanted))


def _row(kv_type: str, token_bytes: float, tally: _Tally, number: int) -> Cache:
    count = len(tally.losses)
    perplexity = perplexity_of(math.fsum(tally.losses) / count)
    if number == 0:
        return Cache(kv_type, token_bytes, perplexity, count)
    return Cache(
        *(kv_type, token_bytes, perplexity, count, math.fsum(tally.divergences) / count),
        float(np.std(tally.divergences) / math.sqrt(count)),
        float(np.quantile(tally.divergences, 0.99)),
        tally.agreed / count,
    )


def _show(rows: Sequence[Cache]) -> None:
    heads = ("bytes a token", "positions", "perplexity", "KL", "p99", "top-1")
    right = [Column(head, justify="right", no_wrap=True) for head in heads]
    table = Table(Column("cache", no_wrap=True), *right, box=None, pad_edge=False)
    for row in rows:
        cells = ["", "", ""]
        if row.kl is not None:
            cells = [f"{row.kl:.5f} ± {row.kl_error:.5f}", f"{row.kl_p99:.4f}", f"{row.top1:.2%}"]
        numbers = f"{row.token_bytes:.0f}", str(row.positions), f"{row.perplexity:.4f}"
        table.add_row(row.kv_type, *numbers, *cells)
    print_whole(table)
