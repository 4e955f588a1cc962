"""A type for each matrix: for N bits per weight of the file, or for a divergence of N nats."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lanewise.commands.progress import steps_bar
from lanewise.host import format_size
from lanewise.loading.base.checkpoint import Checkpoint, Role
from lanewise.loading.base.names import is_vector
from lanewise.settings import SettingsError
from lanewise_quantizer.allocate import Option, choose, few_bytes
from lanewise_quantizer.commands.files import gguf_plan, safetensors_plan
from lanewise_quantizer.commands.plan import (
    HEADS,
    Kinds,
    Target,
    fitting,
    is_kept,
    is_written,
    own_type,
    plan_as,
)
from lanewise_quantizer.commands.tables import Fitting
from lanewise_quantizer.fit.sensitivity import Losses, losses_on_text, losses_without_text
from lanewise_quantizer.fit.source import Source
from lanewise_quantizer.storage import row_bytes

# From few bits to many.
CANDIDATES = ("cb2", "cb3", "cb4", "q5_k", "q6_k", "q8_0", "f16")
WITH_TEXT = ("t2",)
OF_GGUF = ("q2_k", "q3_k", "iq4_xs", "iq4_nl", "q5_k", "q6_k", "q8_0", "f16")

TOLD = (2.5, 3, 3.5, 4, 4.5, 5, 5.5, 6, 7, 8)  # bits per weight of files that are told of
Key = tuple[Role, int]
Chosen = Mapping[Key, Option]
Options = Mapping[Key, Sequence[Option]]


@dataclass(frozen=True)
class Wanted:
    """What the user asked for: bits, or a loss."""

    head: str | None
    to_gguf: bool
    bits: float | None = None  # per weight, of the whole file
    kl: float | None = None  # nats of divergence
    most_bytes: int | None = None  # of the file


def allocate(checkpoint: Checkpoint, wanted: Wanted, ids: npt.NDArray[np.int64] | None) -> Kinds:
    """Return the type of each matrix; ``ids`` is calibration text, or None."""
    candidates = OF_GGUF if wanted.to_gguf else CANDIDATES + (WITH_TEXT if ids is not None else ())
    types: dict[Key, Sequence[str]] = {}
    for tensor in checkpoint.tensors:
        if is_vector(tensor.role) or not is_written(checkpoint, tensor, wanted.to_gguf):
            continue
        names = (wanted.head,) if tensor.role in HEADS and wanted.head is not None else candidates
        names = (own_type(tensor),) if is_kept(tensor) else names
        possible = [fitting(name, tensor.cols, wanted.to_gguf) for name in names]
        types[tensor.role, tensor.layer] = list(dict.fromkeys(possible))
    losses = measure(checkpoint, types, ids)
    options = options_of(checkpoint, types, losses)
    smallest = {key: min(found, key=_bytes) for key, found in options.items()}
    rest = file_size(checkpoint, wanted, smallest) - _size(smallest)  # header, vectors, copies
    if ids is not None:
        print(all_sizes(options, checkpoint.n_weights, rest), file=sys.stderr)
    return chosen_within(checkpoint, wanted, options, rest)


def measure(
    checkpoint: Checkpoint,
    types: Mapping[Key, Sequence[str]],
    ids: npt.NDArray[np.int64] | None,
) -> Losses:
    """Return what each matrix loses as each of its types, under a bar."""
    source = Source(checkpoint)
    with steps_bar("measuring") as bar:
        steps = len(types) * (1 if ids is None else 2)
        task = bar.add_task(checkpoint.name, total=steps)
        if ids is None:
            return losses_without_text(source, types, lambda: bar.advance(task))
        return losses_on_text(source, ids, types, lambda: bar.advance(task))


def options_of(
    checkpoint: Checkpoint, types: Mapping[Key, Sequence[str]], losses: Losses
) -> dict[Key, list[Option]]:
    """Return what each matrix can become, with its bytes and its loss."""
    shapes = {(t.role, t.layer): (t.rows, t.cols) for t in checkpoint.tensors}
    return {
        key: [
            Option(name, shapes[key][0] * row_bytes(name, shapes[key][1]), losses[key][name])
            for name in names
        ]
        for key, names in types.items()
    }


def all_sizes(options: Options, weights: int, rest: int) -> str:
    """Return what files of other sizes should lose, for people: none has to be made to know it.

    ``rest`` is the bytes of a file that are no options'.
    """
    least = sum(min(map(_bytes, found)) for found in options.values())
    told: list[str] = []
    for bits in TOLD:
        room = bits * weights / 8 - rest
        if room >= least:
            told.append(f"{bits:g}: {_loss(few_bytes(options, 0.0, room)):.3f}")
    return f"bits per weight, and the nats that so many should lose: {', '.join(told)}"


def chosen_within(checkpoint: Checkpoint, wanted: Wanted, options: Options, rest: int) -> Kinds:
    """Return the types of least loss within the bits wanted, or in fewest bits for the loss.

    ``rest`` is the bytes of a file that are no options'.
    """
    smallest = {key: min(found, key=_bytes) for key, found in options.items()}
    largest = {key: max(found, key=_bytes) for key, found in options.items()}
    weights = checkpoint.n_weights
    if wanted.kl is not None:
        room = math.inf if wanted.most_bytes is None else wanted.most_bytes - rest
        found = few_bytes(options, wanted.kl, room)
        size = file_size(checkpoint, wanted, found)
        print(reason(8 * size / weights, _loss(found), wanted), file=sys.stderr)
        return _types(found)
    assert wanted.bits is not None
    limits = [8 * file_size(checkpoint, wanted, kinds) / weights for kinds in (smallest, largest)]
    if not limits[0] <= wanted.bits <= limits[1] * 1.01:
        raise SettingsError(
            f"--bits: {wanted.bits:g}; accepted for this model, whole file counted:"
            f" {np.ceil(limits[0] * 1000) / 1000:.3f} to {limits[1]:.3f}"
        )
    budget = int(wanted.bits * weights / 8)
    room = budget - rest
    for _ in range(3):  # what types do to the header is taken off in another go
        found = choose(options, max(room, _size(smallest)))
        excess = file_size(checkpoint, wanted, found) - budget
        if excess <= 0:
            break
        room -= excess
    return _types(found)


def reason(bits: float, loss: float, wanted: Wanted) -> str:
    """Return what was chosen and why, for people."""
    assert wanted.kl is not None
    chosen = f"{bits:.2f} bits per weight should lose {loss:.3f} nats"
    if loss <= wanted.kl:
        return f"{chosen}: the fewest that should lose at most {wanted.kl:g}"
    if wanted.most_bytes is None:
        return f"{chosen}: the most that a file of this model can have"
    size = format_size(wanted.most_bytes)
    return f"{chosen}, where {wanted.kl:g} were wanted: half of this machine's memory is {size}"


def file_size(checkpoint: Checkpoint, wanted: Wanted, chosen: Chosen) -> int:
    """Return the bytes of the whole weights file."""
    targets: list[Target] = plan_as(checkpoint, _types(chosen), wanted.to_gguf)
    if wanted.to_gguf:
        return gguf_plan(checkpoint, targets).size
    return safetensors_plan(targets, Fitting.default(targets)).size


def _bytes(option: Option) -> int:
    return option.n_bytes


def _size(chosen: Chosen) -> int:
    return sum(option.n_bytes for option in chosen.values())


def _loss(chosen: Chosen) -> float:
    return sum(option.loss for option in chosen.values())


def _types(chosen: Chosen) -> Kinds:
    return {key: option.type for key, option in chosen.items()}
