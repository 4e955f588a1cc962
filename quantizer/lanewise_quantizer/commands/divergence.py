"""How far a quantized model's predictions are from its source's, measured as it would be served."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from lanewise.commands.compare import read_logits
from lanewise.commands.perplexity import kl_divergences, run_group
from lanewise.commands.progress import steps_bar
from lanewise.host import format_size, memory_limit
from lanewise.loading.base.checkpoint import Checkpoint, ModelFileError
from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise.runtime import BLOCK_TOKENS, Model, NativeError, Session
from lanewise.runtime.model import resolve_kv_type
from lanewise.runtime.targets import held_bytes
from lanewise_quantizer.commands import llama_cpp
from lanewise_quantizer.commands.bundled import bundled_windows
from lanewise_quantizer.text import HELD_OUT

WINDOW = 256  # tokens that see each other
MAX_S = 8.0  # of running the source; what is not done by then is left out
# Mean divergences, in nats, up to which a result is called so.
WORDS = {"fine": 0.02, "noticeable": 0.15, "heavy": 0.7, "broken": math.inf}

Floats = npt.NDArray[np.float32]
Windows = Sequence[list[int]]


@dataclass(frozen=True)
class Divergence:
    """What was found at so many positions of text that nothing is calibrated on."""

    kl: float  # mean, nats
    top1: float  # share of positions with the source's most likely token
    positions: int

    @property
    def word(self) -> str:
        """How much that is, in plain words."""
        return next(word for word, most in WORDS.items() if not self.kl > most)

    def __str__(self) -> str:
        return (
            f"divergence from the source: {self.word} (mean {self.kl:.4f} nats, the same likeliest"
            f" token in {self.top1:.1%} of {self.positions} places of text of several kinds)"
        )


AsGguf = Callable[[Path], Path]  # the source as a GGUF file, which may be written to a path


def divergence_lines(
    source: Path, result: Path, tokens: int, threads: int, as_gguf: AsGguf
) -> Iterator[str]:
    """Return how far ``result`` is from ``source``, or why that is not known; then, where
    llama.cpp's package is installed, how far its nearest type is."""
    try:
        with tempfile.TemporaryFile(prefix=".lanewise-logits-", dir=result.parent) as logits:
            windows = keep_logits(source, tokens, threads, logits)
            found = measured(result, logits, windows, threads)
            yield line_of(found)
            if llama_cpp.is_installed():
                yield beside_llama_cpp(result, logits, windows, threads, as_gguf)
    except (ModelFileError, NativeError, OSError) as error:  # such as a disk that is full now
        why = error.strerror if isinstance(error, OSError) else error
        yield f"divergence from the source: not measured: {why}"


def line_of(found: Divergence) -> str:
    """Return what was found, and what keeps more where that is needed."""
    if math.isfinite(found.kl) and found.word != "broken":
        return str(found)
    return f"{found}; more bits, another --format or --calibrate keep more"


def beside_llama_cpp(
    result: Path, logits: IO[bytes], windows: Windows, threads: int, as_gguf: AsGguf
) -> str:
    """Return how far llama.cpp's nearest type is from the source on the same text, run here."""
    with open_checkpoint(result) as made:
        kind = llama_cpp.nearest(made.tensors)
    name = f"llama.cpp's {kind.name}"
    with tempfile.TemporaryDirectory(prefix=".lanewise-", dir=result.parent) as folder:
        file = Path(folder) / "model.gguf"
        try:
            source = as_gguf(Path(folder) / "floats.gguf")
            if not llama_cpp.quantize(source, file, kind, threads):
                return f"{name}: its package could not make it of {source.name}"
            with open_checkpoint(file) as other:
                bits = bits_of(other)
            found = measured(file, logits, windows, threads)
        except (ModelFileError, NativeError, OSError) as error:
            return f"{name}: not measured: {error}"
    return (
        f"{name}, {bits:.3f} bits per weight, without an importance matrix: mean"
        f" {found.kl:.4f} nats on the same text, the same likeliest token in {found.top1:.1%}"
    )


def bits_of(checkpoint: Checkpoint) -> float:
    """Return the bits of a weight, vectors counted, the file's header not."""
    weights = checkpoint.n_weights
    return 8 * sum(tensor.n_bytes for tensor in checkpoint.tensors) / weights


def measured(model: Path, logits: IO[bytes], windows: Windows, threads: int) -> Divergence:
    """Run a model on windows of which the source's logits are kept.

    ModelFileError or NativeError if it cannot be run, or not in half of the memory.
    """
    kls: list[float] = []
    agreed = 0
    logits.seek(0)
    for found in run(model, windows, threads):
        expected = read_logits(logits, found)
        kls += kl_divergences(expected, found)
        agreed += int((expected.argmax(axis=1) == found.argmax(axis=1)).sum())
    return Divergence(math.fsum(kls) / len(kls), agreed / len(kls), len(kls))


def keep_logits(source: Path, tokens: int, threads: int, logits: IO[bytes]) -> Windows:
    """Write the source's logits for some windows; returns those that it had time for."""
    with open_checkpoint(source) as checkpoint:
        if checkpoint.config.pooling is not None:
            raise ModelFileError(f"{source}: it makes vectors, and has no predictions to compare")
        size = min(WINDOW, checkpoint.config.context_length)
        windows = bundled_windows(checkpoint, size, tokens, {HELD_OUT: 1}).windows
    if not windows:
        raise ModelFileError(f"{source}: its tokenizer makes less than {size} tokens of the text")
    done = 0
    begun: float | None = None
    for found in run(source, windows, threads):
        logits.write(np.ascontiguousarray(found, "<f4").data)
        done += 1
        begun = begun or time.monotonic()  # the first step also reads all weights for once
        if time.monotonic() - begun > MAX_S:
            break
    return windows[:done]


def run(path: Path, windows: Windows, threads: int) -> Iterator[Floats]:
    """Yield the logits of each window, for all its tokens but the last."""
    with open_checkpoint(path) as checkpoint:
        size, limit = held_bytes(checkpoint, None), memory_limit()
        if size > limit.n_bytes // 2:
            raise ModelFileError(
                f"{format_size(size)} of weights, {format_size(limit.n_bytes)} of memory"
            )
        longest = max(map(len, windows))
        checkpoint.limit_context(longest)
        with (
            Model.load(checkpoint, threads=threads) as model,
            Session(
                model,
                threads=threads,
                blocks=-(-longest // BLOCK_TOKENS),
                max_batch_tokens=longest,
                max_batch_logits=longest,
                kv_type=resolve_kv_type("auto", model.weights),
            ) as session,
            steps_bar("comparing") as bar,
        ):
            for window in bar.track(windows, description=checkpoint.name):
                for _, _, found in run_group(session, [window], longest):
                    if not np.isfinite(found).all():
                        raise ModelFileError(f"{path}: its logits are NaN or infinite")
                    yield found
