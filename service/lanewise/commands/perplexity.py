"""``lanewise perplexity``: scores a text, and hashes all logits so that anyone can compare them.

The text is tokenized once and cut into windows of ``context`` tokens that do not overlap; a model
that puts a start token before its prompts gets one as the first token of each window, beside
``context - 1`` tokens of text. Every token but the first of a window is scored, given those before
it in the window; the last window may be shorter. Perplexity is ``exp`` of the mean negative
log-likelihood, computed in float64 from the model's float32 logits.

The hash is SHA-256 over the logits at every position that has a next token to score, in the order
of the text, as little-endian float32. It depends on the model, its weights, the text and the
windows alone: never on threads, chunks, batches or the instruction set.

With ``--float-activations`` the same weights multiply the activations themselves instead of int8
codes of them, slowly: the logits are those of the weights in float32. What lies between the two
perplexities is what int8 activations cost.
"""

import hashlib
import itertools
import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from lanewise.commands.opening import Opened, open_model
from lanewise.commands.progress import steps_bar
from lanewise.loading.base.checkpoint import Checkpoint, ModelFileError
from lanewise.runtime import BLOCK_TOKENS, Batch, NativeError, Session
from lanewise.settings import PerplexitySettings, SettingsError
from lanewise.text.tokenizer import Tokenizer

DEFAULT_CONTEXT = 512
CHARS_PER_TOKEN = 16  # more than any text has on average: so much of a file is read at most

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Score:
    """The likelihood of a text and the hash of the logits behind it."""

    perplexity: float
    nll: float  # mean negative log-likelihood of a token, natural logarithm
    tokens: int  # tokens scored
    logits_sha256: str


def run(settings: PerplexitySettings) -> None:
    """Score the file and print the result."""
    text = read_text(settings.file, settings.chars)
    with open_model(settings, settings.context or DEFAULT_CONTEXT) as opened:
        context = context_of(settings.context, opened.model.config.context_length)
        tokenizer = Tokenizer.from_files(opened.checkpoint.tokenizer)
        start = tokenizer.encode("", add_bos=True, parse_special=False)
        ids = tokenizer.encode(text, add_bos=False, parse_special=False)
        windows = cut_windows(ids, start, context)
        if not windows:
            raise SettingsError(
                f"--file: {settings.file} has {len(ids)} tokens; accepted: at least 2"
            )
        with naming(opened.checkpoint):
            score = _score_with_progress(settings, opened, windows)
        report = {
            "perplexity": score.perplexity,
            "tokens": score.tokens,
            "logits_sha256": score.logits_sha256,
            "nll": score.nll,
            "model": opened.checkpoint.name,
            "weights": opened.model.weights,
            "isa": opened.model.info.isa,
            "threads": opened.threads,
            "kv_type": opened.kv_type,
            "activations": "float" if settings.float_activations else "int8",
            "context": context,
            "windows": len(windows),
            "chunk": settings.chunk,
            "batch": settings.batch,
            "numerics": opened.model.info.numerics,
        }
    if settings.json:
        print(json.dumps(report))
    else:
        console = Console(highlight=False)
        for key, value in report.items():
            console.print(f"{key:14} {value}")


@contextmanager
def naming(checkpoint: Checkpoint) -> Iterator[None]:
    """Say of which model it is that scoring fails."""
    try:
        yield
    except (ModelFileError, NativeError) as error:
        raise ModelFileError(f"{checkpoint.path}: {error}") from None


def read_text(file: str | None, chars: int | None, option: str = "--file") -> str:
    """The first ``chars`` characters of a UTF-8 file."""
    if file is None:
        raise SettingsError(f"{option}: not given; accepted: a UTF-8 text file")
    try:
        text = Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"{option}: {file}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise SettingsError(
            f"{option}: {file} is not UTF-8 text (byte {error.start}: {error.reason})"
        ) from None
    return text if chars is None else text[:chars]


def context_of(asked: int | None, limit: int) -> int:
    """Tokens of a window: those asked for, or the default, within the model's limit."""
    if asked is not None and asked > limit:
        raise SettingsError(f"--context: {asked}; accepted: the model's {limit} at most")
    return asked or min(DEFAULT_CONTEXT, limit)


def cut_windows(ids: list[int], start: list[int], context: int) -> list[list[int]]:
    """Windows of at most ``context`` tokens, each behind the model's start tokens."""
    size = context - len(start)
    windows = [start + ids[i : i + size] for i in range(0, len(ids), size)]
    return [window for window in windows if len(window) > 1]


def _score_with_progress(
    settings: PerplexitySettings, opened: Opened, windows: list[list[int]]
) -> Score:
    batch = min(settings.batch, len(windows))
    longest = max(map(len, windows))
    chunk = min(settings.chunk, longest)
    with (
        Session(
            opened.model,
            threads=opened.threads,
            blocks=batch * -(-longest // BLOCK_TOKENS),
            max_batch_tokens=batch * chunk,
            max_batch_logits=batch * chunk,
            kv_type=opened.kv_type,
            states=batch,
            float_activations=settings.float_activations,
        ) as session,
        steps_bar("scoring") as bar,
    ):
        task = bar.add_task("windows", total=len(windows))

        def report(done: int, perplexity: float) -> None:
            bar.update(task, completed=done, description=f"windows, perplexity {perplexity:.3f}")

        return score_windows(session, windows, chunk=chunk, batch=batch, progress=report)


def score_windows(
    session: Session,
    windows: list[list[int]],
    *,
    chunk: int,
    batch: int,
    progress: Callable[[int, float], None] = lambda done, perplexity: None,
) -> Score:
    """Score windows ``batch`` at a time, ``chunk`` tokens of each in one step."""
    tally = _Tally()
    for first in range(0, len(windows), batch):
        group = windows[first : first + batch]
        # The first window can be hashed as it is computed; the others wait for their turn.
        waiting: list[list[tuple[int, Floats]]] = [[] for _ in group]
        for index, start, logits in run_group(session, group, chunk):
            if index == 0:
                tally.add(group[0], start, logits)
            else:
                waiting[index].append((start, logits.copy()))
        for window, chunks in zip(group, waiting, strict=True):
            for start, logits in chunks:
                tally.add(window, start, logits)
        progress(first + len(group), perplexity_of(tally.nll()))
    nll = tally.nll()
    return Score(perplexity_of(nll), nll, len(tally.losses), tally.digest.hexdigest())


def perplexity_of(nll: float) -> float:
    """``exp`` of a mean negative log-likelihood; ModelFileError when there is no such number."""
    try:
        return math.exp(nll)
    except OverflowError:
        raise ModelFileError(
            f"the mean negative log-likelihood is {nll:g}, so the perplexity is beyond 1e308; a"
            " uniform guess has the logarithm of the vocabulary's size: the weights are damaged"
        ) from None


class _Tally:
    """The hash and the losses so far, in the order of the text."""

    def __init__(self) -> None:
        self.digest = hashlib.sha256()
        self.losses: list[float] = []

    def add(self, window: list[int], start: int, logits: Floats) -> None:
        """Take the logits at positions ``start`` and on of a window."""
        self.digest.update(logits.astype("<f4", copy=False).tobytes())
        targets = window[start + 1 : start + 1 + len(logits)]
        self.losses += negative_log_likelihoods(logits, targets)

    def nll(self) -> float:
        return math.fsum(self.losses) / len(self.losses)


def run_group(
    session: Session, group: list[list[int]], chunk: int
) -> Iterator[tuple[int, int, Floats]]:
    """Run the windows of a group side by side; yields (window, position, logits from there on).

    The last token of a window predicts nothing that is scored, so it is not run.
    """
    per_window = -(-max(map(len, group)) // BLOCK_TOKENS)
    tables = [list(range(i * per_window, (i + 1) * per_window)) for i in range(len(group))]
    for start in range(0, max(map(len, group)) - 1, chunk):
        parts = {
            index: window[start : min(start + chunk, len(window) - 1)]
            for index, window in enumerate(group)
            if start < len(window) - 1
        }
        ends = list(itertools.accumulate(map(len, parts.values()), initial=0))
        tokens = [token for part in parts.values() for token in part]
        logits = session.step(
            Batch(
                token_ids=tokens,
                query_start=ends,
                context_lens=[start] * len(parts),
                block_tables=tables,
                logit_rows=list(range(len(tokens))),
                table_rows=list(parts),
            )
        )
        for index, (begin, end) in zip(parts, itertools.pairwise(ends), strict=True):
            yield index, start, logits[begin:end]


def negative_log_likelihoods(logits: Floats, targets: list[int]) -> list[float]:
    """-log softmax(logits)[target] for each row, in float64.

    ModelFileError when logits are not finite, as no number says anything of such a model.
    """
    if not np.isfinite(logits).all():
        bad, column = np.argwhere(~np.isfinite(logits))[0]
        raise ModelFileError(
            f"the logits hold NaN or infinity (that of token {column}, {bad} tokens into a step):"
            " the products of the model's weights are too large"
        )
    losses = []
    for row, target in zip(logits, targets, strict=True):  # one at a time: rows can be wide
        values = row.astype(np.float64)
        top = values.max()
        losses.append(float(top + np.log(np.exp(values - top).sum()) - values[target]))
    return losses


def kl_divergences(expected: Floats, found: Floats) -> list[float]:
    """The divergence of each row's distribution from the expected one, in nats, in float64."""
    out = []
    for p_row, q_row in zip(expected, found, strict=True):  # one at a time: rows can be wide
        log_p, log_q = _log_softmax(p_row), _log_softmax(q_row)
        out.append(float((np.exp(log_p) * (log_p - log_q)).sum()))
    return out


def _log_softmax(logits: Floats) -> NDArray[np.float64]:
    values = logits.astype(np.float64)
    values -= values.max()
    out: NDArray[np.float64] = values - np.log(np.exp(values).sum())
    return out
