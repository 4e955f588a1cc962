"""Texts' rows as vectors: fewer dimensions, length 1, and how JSON writes them."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
from starlette.responses import Response

from lanewise.api.encoding.fields import PromptFields, Texts
from lanewise.api.encoding.running import Wanted, inputs_of, run
from lanewise.api.errors import BadRequestError
from lanewise.api.generation.call import Call
from lanewise.engine.scheduling.text_queue import Floats


def wanted_of(
    body: PromptFields,
    param: str,
    given: Texts,
    *,
    dimensions: int | None = None,
    normalize: bool | None = None,
    pooling: str | None = None,
) -> Wanted:
    """The texts in a field of a body, and how their vectors shall be."""
    return Wanted(
        inputs=inputs_of(given),
        param=param,
        cut=body.cut,
        prompt=body.named_prompt,
        pooling=pooling,
        normalize=normalize,
        dimensions=dimensions,
    )


def shaped(
    rows: Sequence[Floats], dimensions: int | None, normalize: bool | None
) -> Sequence[Floats]:
    """Rows, or the beginnings of rows: of length 1 again, unless it was said that they shall not.

    It takes long: do it beside the event loop.
    """
    if dimensions is None:
        return rows
    rows = [row[..., :dimensions] for row in rows]
    return rows if normalize is False else [_unit(row) for row in rows]


def _unit(row: Floats) -> Floats:
    # Each sum is of its own row alone, in double precision: the same bits in any company.
    squares = np.square(row, dtype=np.float64).sum(axis=-1, keepdims=True)
    lengths = np.sqrt(squares)
    return np.divide(row, np.where(lengths > 0, lengths, 1)).astype(np.float32)


def written(row: Floats) -> str:
    """A vector, or a list of them, as JSON: the shortest numbers that are read as the same."""
    if row.ndim > 1:
        return "[" + ",".join(map(written, row)) + "]"
    return _form(len(row)) % tuple(row.tolist())


@cache
def _form(dims: int) -> str:
    return "[" + ",".join(["%.9g"] * dims) + "]"


def encoded(row: Floats) -> str:
    """A vector as a string of JSON: base64 of its floats, the lowest byte first."""
    return '"' + base64.b64encode(row.astype("<f4").tobytes()).decode() + '"'


async def answer(
    call: Call[PromptFields],
    wanted: Wanted,
    whole: Callable[[Iterator[str], int], str],
    write: Callable[[Floats], str] = written,
) -> Response:
    """Answer what ``whole`` makes of the texts' vectors as JSON and of how many tokens they have.

    ``write`` makes JSON of a vector.
    """
    state = call.state
    _check_dimensions(wanted.dimensions, state.encoder.config.dims)
    if state.pooled.compared is not None:
        wanted = replace(wanted, are_queries=state.pooled.is_query(wanted.prompt.name))
    found = await run(call, wanted)

    def make() -> str:
        rows = shaped(found.rows, wanted.dimensions, wanted.normalize)
        return whole(map(write, rows), found.n_tokens)

    return await state.workers.answer(found.size, make)


def _check_dimensions(wanted: int | None, dims: int) -> None:
    """Refuse more dimensions than a vector has."""
    if wanted is not None and wanted > dims:
        raise BadRequestError(
            f"dimensions: {wanted} is more than the model has; accepted: 1 to {dims}",
            param="dimensions",
        )
