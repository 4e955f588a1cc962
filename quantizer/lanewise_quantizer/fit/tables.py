"""Fits the tables of cb2, cb3, cb4 and t2 to a model: one table of 16 int8 for all its matrices.

Codebooks are found in two phases. First without constraints: groups, scaled to their largest
weight, are clustered by shape (their sorted values), and every cluster gets a codebook of its own.
Then under the format's constraints: as many codebooks as fit 16 bytes are chosen from these, such
that no layer loses much more than with the codebooks it would choose itself; assignment and
centroids then alternate, with the largest entry of a codebook at 127, and are rounded to int8: for
a fixed assignment the loss is a separate quadratic in each entry, so the nearest integer is best.

A trellis's table has no phases: its codes come from Viterbi, its entries from least squares.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lanewise_quantizer import coded
from lanewise_quantizer.coded import TABLE_PEAK, CodedType
from lanewise_quantizer.fit.group import Book, Choice, GroupFitter, Metric
from lanewise_quantizer.fit.samples import Sample
from lanewise_quantizer.quantize import DEFAULT_TABLES

Floats = npt.NDArray[np.float32]
Table = npt.NDArray[np.int8]

CLUSTERS = 32  # shapes of the first phase
SHAPE_ROUNDS, LLOYD_ROUNDS, EM_ROUNDS = 12, 15, 12
LAYER_TOLERANCE = 1.10  # of the loss with the layer's own choice of codebooks
LAYER_TRIES = 5
DEFAULT_TRELLIS = (-54, -5, 62, 19, 127, -40, 8, 54, 3, 54, -33, -79, 30, -104, 88, -21)


def default_table(kind: CodedType) -> Table:
    """A table for weights that were not sampled."""
    entries = DEFAULT_TRELLIS if kind.map is coded.Map.TRELLIS else DEFAULT_TABLES[kind.name]
    return np.array(entries, np.int8)


def fit_table(kind: CodedType, samples: Sequence[Sample]) -> Table:
    """The table of a type that needs one."""
    start = default_table(kind).astype(np.float32)
    starts = [start]
    if kind.map is coded.Map.TABLE:
        starts.append(choose_codebooks(kind, samples).reshape(-1))
    found = [alternate(kind, samples, first) for first in starts]
    rounded = [np.rint(table).astype(np.int8) for table, _ in found]
    losses = [total_loss(kind, samples, table.astype(np.float32)) for table in rounded]
    return rounded[int(np.argmin(losses))]


def total_loss(kind: CodedType, samples: Sequence[Sample], table: Floats) -> float:
    """The weighted squared error of all samples with real scales."""
    return sum(float(choice.losses.sum()) for choice in assign(kind, samples, table))


def assign(kind: CodedType, samples: Sequence[Sample], table: Floats) -> list[Choice]:
    """The best codes, scales and codebooks under a table of real numbers."""
    fitter = GroupFitter(Book(kind, table), None)
    return [_search(fitter, sample) for sample in samples]


def _search(fitter: GroupFitter, sample: Sample) -> Choice:
    states = np.zeros(sample.weights.shape[1], np.uint8)
    return fitter.search(sample.weights, Metric.diagonal(sample.importance), states, 1)


def alternate(
    kind: CodedType, samples: Sequence[Sample], table: Floats
) -> tuple[Floats, list[float]]:
    """Assignment and entries by turns; the table, and the loss at every assignment."""
    losses: list[float] = []
    for _ in range(EM_ROUNDS):
        choices = assign(kind, samples, table)
        losses.append(sum(float(choice.losses.sum()) for choice in choices))
        table = entries(kind, samples, choices, table)
    return table, losses


def entries(
    kind: CodedType, samples: Sequence[Sample], choices: Sequence[Choice], table: Floats
) -> Floats:
    """The entries of least loss for an assignment, the largest of each codebook at 127."""
    book = Book(kind, table)
    above, below = np.zeros(len(table)), np.zeros(len(table))
    for sample, choice in zip(samples, choices, strict=True):
        codes = book.stored(choice.codes, choice.selectors).astype(np.int64)
        if kind.map is coded.Map.TRELLIS:
            before = np.concatenate([np.zeros_like(codes[:1]), codes[:-1]])
            index = codes << 2 | before
        else:
            index = choice.selectors.astype(np.int64) << kind.bits | codes
        weight = sample.importance[:, None] * choice.scales
        above += np.bincount(index.ravel(), (weight * sample.weights).ravel(), len(table))
        below += np.bincount(index.ravel(), (weight * choice.scales).ravel(), len(table))
    fitted = np.where(below > 0, above / np.maximum(below, 1e-300), table)
    width = len(table) if kind.map is coded.Map.TRELLIS else 1 << kind.bits
    books = fitted.reshape(-1, width)
    books = books * (TABLE_PEAK / np.maximum(np.abs(books).max(axis=1, keepdims=True), 1e-30))
    fitted_table: Floats = books.reshape(-1).astype(np.float32)
    return fitted_table


@dataclass(frozen=True)
class Shapes:
    """Groups turned so that their largest weight is 1: sorted values [groups, 32]."""

    sorted: Floats
    size: Floats  # weighted square of each group, which is what its relative error costs


def shapes_of(samples: Sequence[Sample]) -> Shapes:
    """The shapes of all sampled groups."""
    turned, sizes = [], []
    for sample in samples:
        w = sample.weights
        at = np.abs(w).argmax(axis=0)
        largest = w[at, np.arange(w.shape[1])]
        turned.append(np.sort(w / np.where(largest == 0, np.float32(1), largest), axis=0).T)
        sizes.append(np.square(largest) * sample.importance.mean())
    return Shapes(np.concatenate(turned), np.concatenate(sizes))


def cluster(points: Floats, weights: Floats, count: int, rounds: int) -> npt.NDArray[np.intp]:
    """Weighted k-means of points [n, dims]: the cluster of each, the first ones spread by size."""
    spread = points.sum(axis=1).argsort(kind="stable")
    firsts = spread[((np.arange(count) + 0.5) * len(points) / count).astype(int)]
    centres = points[firsts].astype(np.float64)
    nearest = np.zeros(len(points), np.intp)
    for _ in range(rounds):
        nearest = (np.square(centres).sum(axis=1) - 2 * (points @ centres.T)).argmin(axis=1)
        total = np.bincount(nearest, weights, count)
        for d in range(points.shape[1]):
            sums = np.bincount(nearest, weights * points[:, d], count)
            centres[:, d] = np.where(total > 0, sums / np.maximum(total, 1e-300), centres[:, d])
    return nearest


def line_codebook(values: Floats, weights: Floats, count: int) -> Floats:
    """Weighted Lloyd on a line: ``count`` ascending centroids, the largest at 127."""
    order = values.argsort(kind="stable")
    ranks = np.cumsum(weights[order])
    ranks /= ranks[-1]
    centroids = values[order][np.searchsorted(ranks, (np.arange(count) + 0.5) / count)]
    centroids = centroids.astype(np.float64)
    for _ in range(LLOYD_ROUNDS):
        nearest = np.searchsorted((centroids[1:] + centroids[:-1]) / 2, values)
        total = np.bincount(nearest, weights, count)
        sums = np.bincount(nearest, weights * values, count)
        centroids = np.sort(np.where(total > 0, sums / np.maximum(total, 1e-300), centroids))
    book: Floats = (centroids * (TABLE_PEAK / np.abs(centroids).max())).astype(np.float32)
    return book


def choose_codebooks(kind: CodedType, samples: Sequence[Sample]) -> Floats:
    """Both phases up to the choice: codebooks [count, entries]."""
    shapes = shapes_of(samples)
    nearest = cluster(shapes.sorted, shapes.size, CLUSTERS, SHAPE_ROUNDS)
    free = []
    for number in range(CLUSTERS):
        inside = nearest == number
        if inside.any():
            values = shapes.sorted[inside]
            weights = np.repeat(shapes.size[inside], values.shape[1])
            free.append(line_codebook(values.ravel(), weights.astype(np.float64), 1 << kind.bits))
    books = np.stack(free)
    losses = np.concatenate([_losses(kind, sample, books) for sample in samples], axis=1)
    layers = np.concatenate([np.full(s.weights.shape[1], s.layer) for s in samples])
    return books[choose(losses, layers, 1 << kind.selector_bits)]


def _losses(kind: CodedType, sample: Sample, books: Floats) -> Floats:
    """What each group of a sample loses with each codebook alone, [books, groups]."""
    every = []
    for book in books:
        alone = Book(kind, np.tile(book, 1 << kind.selector_bits))
        alone.peaks = alone.peaks[:1]  # the others are the same
        every.append(_search(GroupFitter(alone, None), sample).losses)
    return np.stack(every)


def choose(losses: Floats, layers: npt.NDArray[np.integer], count: int) -> list[int]:
    """``count`` codebooks of least total loss; layers that lose too much count for more."""
    numbers = np.unique(layers)
    weight = np.ones(losses.shape[1], np.float32)
    own = {n: _least(losses[:, layers == n], count)[1] for n in numbers}
    chosen, _ = _least(losses * weight, count)
    for _ in range(LAYER_TRIES):
        best = losses[chosen].min(axis=0)
        late = [n for n in numbers if best[layers == n].sum() > LAYER_TOLERANCE * own[n]]
        if not late:
            break
        weight[np.isin(layers, late)] *= np.float32(1.5)
        chosen, _ = _least(losses * weight, count)
    return chosen


def _least(losses: Floats, count: int) -> tuple[list[int], float]:
    """Greedy choice of rows whose minimum has the least sum, then swaps while one helps."""
    chosen: list[int] = []
    best = np.full(losses.shape[1], np.inf)
    for _ in range(min(count, len(losses))):
        sums = np.minimum(losses, best).sum(axis=1)
        sums[chosen] = np.inf
        chosen.append(int(sums.argmin()))
        best = np.minimum(best, losses[chosen[-1]])
    total, improved = float(best.sum()), True
    while improved:
        improved = False
        for place in range(len(chosen)):
            rest = [*chosen[:place], *chosen[place + 1 :]]
            held = losses[rest].min(axis=0) if rest else np.full(losses.shape[1], np.inf)
            sums = np.minimum(losses, held).sum(axis=1)
            if sums.min() < total * (1 - 1e-9):
                chosen[place], total, improved = int(sums.argmin()), float(sums.min()), True
    return chosen, total
