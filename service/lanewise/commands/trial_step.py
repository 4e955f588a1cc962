"""One step of a model over a few tokens: whether its weights give numbers at all.

Of a model that sees also one picture through its tower.
"""

from math import isqrt
from pathlib import Path

import numpy as np

from lanewise.host import format_size, memory_limit
from lanewise.loading.base.checkpoint import Checkpoint, ModelFileError
from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise.runtime import BLOCK_TOKENS, Batch, Model, NativeError, Session
from lanewise.runtime.model import resolve_kv_type
from lanewise.runtime.targets import held_bytes, tower_bytes
from lanewise.runtime.tower import Tower

TOKENS = 16
ENDLESS = 1 << 60  # nanoseconds


def trial_step(path: Path, threads: int) -> tuple[str | None, str | None]:
    """What is wrong with the logits of a few tokens, and why they could not be computed.

    Weights may all be finite and their products not: only computing tells.
    """
    try:
        with open_checkpoint(path) as checkpoint:
            size, limit = held_bytes(checkpoint, None), memory_limit()
            size += tower_bytes(checkpoint, None)
            if size > limit.n_bytes // 2:
                return (
                    None,
                    f"{format_size(size)} of weights, {format_size(limit.n_bytes)} of memory",
                )
            with Model.load(checkpoint, threads=threads) as model:
                problem = _problem(model, threads)
            if problem is None and checkpoint.tower is not None:
                problem = _problem_of_tower(checkpoint.tower, threads)
            return problem, None
    except (ModelFileError, NativeError) as error:
        return None, str(error)


def _problem(model: Model, threads: int) -> str | None:
    vocab_size = model.config.vocab_size
    count = min(TOKENS, model.config.context_length, BLOCK_TOKENS)
    ids = [i * vocab_size // count for i in range(count)]
    with Session(
        model,
        threads=threads,
        blocks=1,
        max_batch_tokens=count,
        max_batch_logits=count,
        kv_type=resolve_kv_type("auto", model.weights),
    ) as session:
        try:
            logits = session.step(Batch(ids, [0, count], [0], [[0]], range(count)))
        except NativeError as error:
            return f"a step over {count} tokens: {error}: products of the weights are too large"
    if np.isfinite(logits).all():
        return None
    return (
        f"a step over {count} tokens gives logits that are NaN or infinite: products of the weights"
        " are too large"
    )


def _problem_of_tower(tower: Checkpoint, threads: int) -> str | None:
    """What is wrong with the rows of the smallest picture, of ramps."""
    with Model.load(tower, threads=threads) as model, Tower(model, threads=threads) as see:
        patches = model.config.patches
        assert patches is not None
        is_square = patches.positions == "square"
        across = isqrt(model.config.n_positions) if is_square else patches.merge
        side = across * patches.side
        ramps = np.indices((side, side, 3)).sum(axis=0) * 7
        job = see.begin([(ramps % 256).astype(np.uint8)])
        try:
            while not job.advance(ENDLESS):
                pass
        except NativeError as error:
            return (
                f"a picture of {side} x {side} pixels: {error}: products of the weights are too"
                " large"
            )
    return None
