"""Inputs whose weights stand out are evened out beforehand: the same function, kinder to groups.

Weights of a group share a scale, so where those of one input are fifty times as large as its
neighbours', few codes are left for these; where they are fifty times smaller, they become zeros.
Where something before the matrix can take the factor exactly, it does: a norm's weights, or rows of
a matrix whose outputs are only multiplied by others. Factors are powers of two, so in floats the
model stays what it is to the bit.

A group whose largest weight is M loses about M^2 times the sum of its inputs' squares. Weights
brought to the size of the others make M theirs, and only their own input's square grows.

Models whose inputs do not stand out are left as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt

from lanewise.loading.base.checkpoint import Checkpoint, Role, Tensor
from lanewise.loading.base.formats import VECTOR_TYPES
from lanewise.loading.base.program import CURVES, Gated, Layer
from lanewise_quantizer.fit.layer import steps_of
from lanewise_quantizer.fit.source import Multiplied, Source

Floats = npt.NDArray[np.float32]
Key = tuple[Role, int]

STANDS_OUT = 4.0  # times the usual size, or a part of it
SAMPLED_ROWS = 256  # of each matrix, which show the size of its columns
MOST_POWERS = 12  # a factor is 2 to the power of so many at most
TABLE = Role.PER_LAYER_EMBEDDING


@dataclass(frozen=True)
class Place:
    """Inputs of matrices, and what takes the factors of their columns."""

    readers: Sequence[Key]  # all matrices that read these inputs, and nothing else does
    vectors: Sequence[Key] = ()  # of a norm before them; biases
    rows: Key | None = None  # a matrix that makes these inputs, or a factor of them
    table: Key | None = None  # a table with these inputs once for each layer


@dataclass(frozen=True)
class EvenedOut:
    """What a model's tensors are multiplied by; a small thing, for it is sent to processes."""

    by_row: dict[Key, Floats]
    by_column: dict[Key, Floats]
    inputs: int = 0  # that stood out
    matrices: int = 0  # that read them

    def __str__(self) -> str:
        return (
            f"{self.inputs} inputs of {self.matrices} matrices stood out from their neighbours:"
            " evened out, which changes nothing else"
        )

    def applied_to(self, checkpoint: Checkpoint) -> None:
        """Have the tensors of a checkpoint multiplied as they are read."""
        checkpoint.tensors[:] = [self._multiplied(tensor) for tensor in checkpoint.tensors]

    def _multiplied(self, tensor: Tensor) -> Tensor:
        key = tensor.role, tensor.layer
        by_row, by_column = self.by_row.get(key), self.by_column.get(key)
        if by_row is None and by_column is None:
            return tensor
        values = {field.name: getattr(tensor, field.name) for field in fields(Tensor)}
        return Multiplied(**values, by_row=by_row, by_column=by_column)


def evened_out(source: Source) -> EvenedOut:
    """Find what stands out in a model, and by what it is to be multiplied."""
    chosen = (
        (place, factors_of(source, place))
        for place in places(source)  # a source of few bits has lost what could be saved
        if all(source.tensors[key].type in VECTOR_TYPES for key in place.readers)
    )
    return multiplied_by(source, chosen)


def multiplied_by(source: Source, chosen: Iterable[tuple[Place, Floats]]) -> EvenedOut:
    """Multiply the columns of some places' readers by factors [inputs], and make up for it."""
    found = EvenedOut({}, {})
    for place, factors in chosen:
        inputs = int((factors != 1).sum())
        if not inputs:
            continue
        inverse = np.float32(1) / factors
        for key in place.readers:
            _multiply(found.by_column, key, factors)
        for key in place.vectors:
            _multiply(found.by_column, key, inverse)
        if place.rows is not None:
            _multiply(found.by_row, place.rows, inverse)
        if place.table is not None:
            layers = source.tensors[place.table].cols // len(factors)
            _multiply(found.by_column, place.table, np.tile(inverse, layers))
        n = len(place.readers) + (place.table is not None)
        found = replace(found, inputs=found.inputs + inputs, matrices=found.matrices + n)
    return found


def _multiply(factors: dict[Key, Floats], key: Key, more: Floats) -> None:
    factors[key] = factors[key] * more if key in factors else more


def places(source: Source) -> Iterator[Place]:
    """Every place of a model where columns can be multiplied without changing what it computes."""
    config = source.config
    for number, layer in enumerate(config.layers):
        yield from _behind_norms(source, layer, number)
        ffn = layer.ffn
        is_linear = isinstance(ffn, Gated) and ffn.activation in CURVES and not ffn.inner_norm
        if is_linear and not layer.row_codes:
            bias = (Role.FFN_UP_BIAS, number)
            vectors = [bias] if source.has(*bias) else []
            yield Place([(Role.FFN_DOWN, number)], vectors, rows=(Role.FFN_UP, number))
    if config.per_layer_size and not config.n_streams:
        readers = [(Role.PER_LAYER_OUT, number) for number in range(config.n_layers)]
        yield Place(readers, [(Role.PER_LAYER_NORM, 0)], table=(TABLE, 0))


def _behind_norms(source: Source, layer: Layer, number: int) -> Iterator[Place]:
    """The inputs of a plain layer's attention and of its FFN, each behind a norm of its own."""
    kind, steps = layer.attention, steps_of(layer)
    is_plain = kind is not None and not (
        kind.latent_rank or kind.shared_rows or kind.index_topk or layer.state is not None
    )
    if layer.row_codes or layer.mtp or layer.wiring == "parallel_one_norm":
        return
    if is_plain and not layer.attn_norm_replaces:
        yield from _of_norm(source, Role.ATTN_NORM, Role.ATTN_NORM_BIAS, steps[0], number)
    if isinstance(layer.ffn, Gated) and not layer.ffn_norm_replaces:
        yield from _of_norm(source, Role.FFN_NORM, Role.FFN_NORM_BIAS, steps[-2], number)


def _of_norm(
    source: Source, norm: Role, bias: Role, readers: Sequence[Role], number: int
) -> Iterator[Place]:
    if source.has(norm, number):
        vectors = [(role, number) for role in (norm, bias) if source.has(role, number)]
        yield Place([(role, number) for role in readers], vectors)


def factors_of(source: Source, place: Place) -> Floats:
    """What the columns of a place's readers are multiplied by; 1 where nothing stands out.

    A table's columns are divided by the same, so both get half of the way.
    """
    size = _relative(_columns(source, place.readers))
    if place.table is None:
        wanted = 1 / size
        stands_out = np.maximum(size, wanted) > STANDS_OUT
    else:
        table = _columns(source, [place.table]).reshape(-1, len(size))
        other = _relative(np.sqrt(np.mean(np.square(table), axis=0)))
        wanted = np.sqrt(other / size)
        stands_out = np.maximum.reduce([size, 1 / size, other, 1 / other]) > STANDS_OUT
    powers = np.clip(np.rint(np.log2(wanted)), -MOST_POWERS, MOST_POWERS)
    return np.exp2(np.where(stands_out, powers, 0)).astype(np.float32)


def _columns(source: Source, keys: Sequence[Key]) -> npt.NDArray[np.float64]:
    """The size of each column of some matrices together, by some of their rows."""
    total, n_rows = np.zeros(source.tensors[keys[0]].cols), 0
    for role, layer in keys:
        rows = source.tensors[role, layer].rows
        numbers = np.linspace(0, rows - 1, min(rows, SAMPLED_ROWS)).astype(np.intp)
        values = source.rows(role, numbers, layer)
        total += np.square(values, dtype=np.float64).sum(axis=0)
        n_rows += len(numbers)
    return np.sqrt(total / n_rows)


def _relative(size: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Sizes as multiples of the usual one; what is 0 counts as usual, for no factor changes it."""
    usual = np.median(size[size > 0]) if (size > 0).any() else 1.0
    return np.where(size > 0, size / usual, 1.0)
