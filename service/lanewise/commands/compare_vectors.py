"""``lanewise compare`` of models that make vectors: what fewer bits cost an embedder.

Each model makes a vector of every sentence of one text. Of those of the first model and of another
the cosines are reported, their mean and the least; then, for each sentence, how many of its ten
nearest among all others are the same, whether the nearest is, and whether all ten come in the same
order. Vectors are compared in float64, and two that are as near by their place in the text.
"""

import json
import re
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
from numpy.typing import NDArray
from rich.table import Column, Table

from lanewise.commands.compared import print_whole
from lanewise.commands.opening import Opened, open_model
from lanewise.host import cpu_name, format_size
from lanewise.loading.base.checkpoint import ModelFileError
from lanewise.loading.checkpoints.hub import resolve_model
from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise.runtime import Encoder
from lanewise.settings import CompareSettings, SettingsError
from lanewise.text.pooled_text import of_checkpoint
from lanewise.text.tokenizer import Tokenizer

NEAREST = 10
ENDS = re.compile(r"(?<=[.!?…。])[\"')\]]*\s+|\n\s*\n")
MIN_WORDS = 3
ROWS = 256  # compared at a time, to find their nearest
# What other models are compared by.
OF_TEXT = ("float_activations", "chat", "tasks", "picture")

Vectors = NDArray[np.float64]
Places = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Vectored:
    """One model's row; None is what the first has nothing to compare with."""

    model: str
    name: str
    weights: str
    bytes: int  # of the weights in memory
    texts_per_second: float
    cosine: float | None = None  # to the first model's vectors, mean
    cosine_least: float | None = None
    nearest_ten: float | None = None  # share of the ten nearest that are the same
    nearest: float | None = None  # share of sentences whose nearest is the same
    order: float | None = None  # share of sentences whose ten come in the same order


def makes_vectors(model: str) -> bool:
    """Whether a model is pooled."""
    with open_checkpoint(resolve_model(model)) as checkpoint:
        return checkpoint.config.pooling is not None


def run(models: Sequence[str], settings: CompareSettings, text: str) -> None:
    """Measure all, and print the table or a JSON object."""
    for name in OF_TEXT:
        if getattr(settings, name):
            flag = "--" + name.replace("_", "-")
            raise SettingsError(f"{flag}: accepted for models that write text, not vectors")
    texts = sentences_of(text)[: settings.sentences]
    if len(texts) <= NEAREST:
        raise SettingsError(
            f"--file: {len(texts)} sentences of {MIN_WORDS} words and more; accepted: at least"
            f" {NEAREST + 1}"
        )
    rows = measure_all(models, settings, texts)
    if settings.json:
        report = {
            "reference": rows[0].model,
            "models": [asdict(row) for row in rows],
            "file": settings.file,
            "sentences": len(texts),
            "cpu": cpu_name(),
        }
        print(json.dumps(report))
    else:
        show(rows, len(texts))


def sentences_of(text: str) -> list[str]:
    """The sentences of a text that have a few words, each once."""
    found = (" ".join(part.split()) for part in ENDS.split(text))
    return list(dict.fromkeys(one for one in found if one.count(" ") >= MIN_WORDS - 1))


def measure_all(
    models: Sequence[str], settings: CompareSettings, texts: Sequence[str]
) -> list[Vectored]:
    """A row for each model, and for each type that the first is to be held in."""
    wanted = [(models[0], settings.weights)]
    wanted += [(models[0], weights) for weights in settings.load_as]
    wanted += [(model, settings.weights) for model in models[1:]]
    rows: list[Vectored] = []
    first: Vectors | None = None
    for model, weights in wanted:
        with open_model(replace(settings, model=model, weights=weights)) as opened:
            vectors, seconds = vectors_of(opened, texts)
            row = Vectored(
                model=model,
                name=opened.checkpoint.name,
                weights=weights or opened.model.weights,
                bytes=opened.model.info.packed_bytes,
                texts_per_second=len(texts) / seconds,
            )
            if first is None:
                first = vectors
            elif vectors.shape != first.shape:
                raise ModelFileError(
                    f"{opened.checkpoint.path}: vectors of {vectors.shape[1]} dimensions; accepted:"
                    f" {first.shape[1]}, as the first model's"
                )
            else:
                row = compared(row, first, vectors)
        rows.append(row)
    return rows


def vectors_of(opened: Opened, texts: Sequence[str]) -> tuple[Vectors, float]:
    """The vectors, of length 1, and how many seconds the model took."""
    checkpoint = opened.checkpoint
    if checkpoint.config.pooling is None:
        raise ModelFileError(
            f"{checkpoint.path}: writes text; accepted: models that make vectors, as the first"
        )
    text = of_checkpoint(checkpoint, Tokenizer.from_files(checkpoint.tokenizer))
    if text.labels:
        raise ModelFileError(f"{checkpoint.path}: scores texts; accepted: models that make vectors")
    prompt = text.prompt(None) or ""
    with Encoder(opened.model, threads=opened.threads) as encoder:
        limit = min(encoder.max_text_tokens, text.max_tokens or encoder.max_text_tokens)
        whole = text.whole.encode([prompt + one for one in texts], limit, "right")
        types = [one.types for one in whole] if text.has_types else None
        began = time.perf_counter()
        pooling = None if text.compared is None else "mean"
        ids = [one.ids for one in whole]
        rows = encoder.run(ids, types, pooling=pooling, normalize=False)
        seconds = time.perf_counter() - began
    vectors: Vectors = rows.astype(np.float64)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(lengths > 0, lengths, 1), seconds


def compared(row: Vectored, first: Vectors, found: Vectors) -> Vectored:
    """The row of a model with these vectors of length 1."""
    cosines = (first * found).sum(axis=1)
    ours, theirs = nearest_of(first), nearest_of(found)
    same = [len({*one} & {*other}) for one, other in zip(ours, theirs, strict=True)]
    return replace(
        row,
        cosine=float(cosines.mean()),
        cosine_least=float(cosines.min()),
        nearest_ten=float(np.mean(same)) / NEAREST,
        nearest=float((ours[:, 0] == theirs[:, 0]).mean()),
        order=float((ours == theirs).all(axis=1).mean()),
    )


def nearest_of(vectors: Vectors) -> Places:
    """The places of the ten others nearest to each vector, the nearest first."""
    found = []
    for start in range(0, len(vectors), ROWS):
        cosines = vectors[start : start + ROWS] @ vectors.T
        own = np.arange(len(cosines))
        cosines[own, start + own] = -np.inf
        found.append(np.argsort(-cosines, axis=1, kind="stable")[:, :NEAREST])
    return np.concatenate(found)


def show(rows: Sequence[Vectored], count: int) -> None:
    """Print the table."""
    heads = ("size", "cosine", "worst", "of ten nearest", "nearest", "order kept", "texts/s")
    names = [Column(head, no_wrap=True) for head in ("model", "held as")]
    right = [Column(head, justify="right", no_wrap=True) for head in heads]
    table = Table(*names, *right, box=None, pad_edge=False)
    for row in rows:
        cosines = ["" if one is None else f"{one:.7f}" for one in (row.cosine, row.cosine_least)]
        shares = (row.nearest_ten, row.nearest, row.order)
        cells = ["" if one is None else f"{one:.2%}" for one in shares]
        speed = f"{row.texts_per_second:.1f}"
        table.add_row(row.name, row.weights, format_size(row.bytes), *cosines, *cells, speed)
    print_whole(table).print(f"{count} sentences", markup=False)
