"""One step of a model over a few tokens: whether its weights give numbers at all."""

from pathlib import Path

import numpy as np

from lanewise.host import format_size, memory_limit
from lanewise.loading.base.checkpoint import ModelFileError
from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise.runtime import BLOCK_TOKENS, Batch, Model, NativeError, Session
from lanewise.runtime.model import resolve_kv_type
from lanewise.runtime.targets import held_bytes

TOKENS = 16


def trial_step(path: Path, threads: int) -> tuple[str | None, str | None]:
    """What is wrong with the logits of a few tokens, and why they could not be computed.

    Weights may all be finite and their products not: only computing tells.
    """
    try:
        with open_checkpoint(path) as checkpoint:
            size, limit = held_bytes(checkpoint, None), memory_limit()
            if size > limit.n_bytes // 2:
                return (
                    None,
                    f"{format_size(size)} of weights, {format_size(limit.n_bytes)} of memory",
                )
            with Model.load(checkpoint, threads=threads) as model:
                return _problem(model, threads), None
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
