"""Streams tensors through the quantizer: some rows at a time, by several processes."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lanewise.loading.base.checkpoint import ModelFileError
from lanewise_quantizer.coded import CODED_TYPES
from lanewise_quantizer.commands.partial_output import PartialOutput, write_all
from lanewise_quantizer.commands.plan import Kinds, Target, plan_as
from lanewise_quantizer.commands.sources import open_source
from lanewise_quantizer.commands.tables import Fitting, is_copied
from lanewise_quantizer.fit.outliers import EvenedOut
from lanewise_quantizer.fit.source import multiplied
from lanewise_quantizer.quantize import check_finite, quantize_matrix
from lanewise_quantizer.storage import (
    FLOAT_BYTES,
    checksum,
    decode_rows,
    encode_floats,
    encode_rows,
    row_bytes,
)

Bytes = npt.NDArray[np.uint8]

CHUNK_WEIGHTS = 1 << 20
SMALL_MODEL = 1 << 25  # weights
CHUNK_ROWS = 8  # a multiple of so many, which makes chunks begin at whole words of the checksum


@dataclass(frozen=True)
class Job:
    """What a worker process needs to make any part of the result; small, for it is sent to each."""

    model: Path
    kinds: Kinds
    to_gguf: bool
    fitting: Fitting
    offsets: Mapping[str, int]  # of tensors in the weights file
    weights: Path
    evened: EvenedOut | None = None


class Worker:
    """Makes parts of tensors; one in each process."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.checkpoint = open_source(job.model)
        if job.evened is not None:
            job.evened.applied_to(self.checkpoint)
        self.targets = plan_as(self.checkpoint, job.kinds, job.to_gguf)
        self.file = os.open(job.weights, os.O_WRONLY)

    def make(self, index: int, start: int, stop: int) -> int:
        """Quantize and write some rows of a target; returns their part of its checksum."""
        target = self.targets[index]
        try:
            data = quantized_rows(target, start, stop, self.job.fitting)
        except ValueError as error:
            raise ModelFileError(f"tensor {target.source.name!r}: {error}") from None
        target.source.release()
        at = start * target.row_bytes
        offset = self.job.offsets[target.name] + at
        write_all(self.file, memoryview(data.data).cast("B"), offset, self.job.weights)
        return checksum(data, at)

    def close(self) -> None:
        """Close the files."""
        os.close(self.file)
        self.checkpoint.close()


_worker: Worker | None = None


def start_worker(job: Job) -> None:
    """Begin a worker process, which ends with its parent and leaves Ctrl-C to it."""
    global _worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=end_with, args=(parent,), daemon=True).start()
    _worker = Worker(job)


def end_with(parent: multiprocessing.process.BaseProcess) -> None:
    """End this process when its parent has."""
    parent.join()
    os._exit(1)


def make_chunk(index: int, start: int, stop: int) -> int:
    """Have this process's worker make some rows."""
    assert _worker is not None
    return _worker.make(index, start, stop)


def stream(
    job: Job,
    targets: Sequence[Target],
    output: PartialOutput,
    threads: int,
    progress: Callable[[Target, int], None],
) -> None:
    """Write every target that is not done; ``progress`` is told which rows are made.

    Processes, not threads: numpy's operations are so short here that threads would spend their
    time handing the interpreter to each other. Small models are not worth starting any.
    """
    weights = sum(target.source.rows * target.source.cols for target in targets)
    if threads == 1 or weights < SMALL_MODEL:
        worker = Worker(job)
        try:
            _stream(targets, output, progress, 0, lambda *rows: _done(worker.make(*rows)))
        finally:
            worker.close()
        return
    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(threads, spawn, initializer=start_worker, initargs=(job,))
    with pool:
        try:
            _stream(
                *(targets, output, progress, 2 * threads),
                lambda index, start, stop: pool.submit(make_chunk, index, start, stop),
            )
        except BrokenProcessPool:
            why = "a worker process was killed, as happens when memory runs out; fewer --threads"
            raise OSError(errno.ENOMEM, f"{why} need less of it") from None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _done(result: int) -> Future[int]:
    future: Future[int] = Future()
    future.set_result(result)
    return future


def _stream(
    targets: Sequence[Target],
    output: PartialOutput,
    progress: Callable[[Target, int], None],
    most_waiting: int,
    submit: Callable[[int, int, int], Future[int]],
) -> None:
    window: deque[tuple[Target, int, bool, Future[int]]] = deque()
    sums: dict[str, int] = {}

    def take_oldest() -> None:
        target, rows, is_last, future = window.popleft()
        sums[target.name] = (sums.get(target.name, 0) + future.result()) % 2**64
        if is_last:
            output.mark_done(target.name, sums.pop(target.name))
        progress(target, rows)

    for index, target in enumerate(targets):
        if target.name in output.done:
            continue
        for start, stop in chunks(target):
            future = submit(index, start, stop)
            window.append((target, stop - start, stop == target.source.rows, future))
            while len(window) > most_waiting:
                take_oldest()
    while window:
        take_oldest()


def chunks(target: Target) -> Iterator[tuple[int, int]]:
    """Ranges of rows, of about a million weights each."""
    rows = target.source.rows
    step = max(CHUNK_WEIGHTS // target.source.cols // CHUNK_ROWS * CHUNK_ROWS, CHUNK_ROWS)
    for start in range(0, rows, step):
        yield start, min(start + step, rows)


def quantized_rows(target: Target, start: int, stop: int, fitting: Fitting) -> Bytes:
    """The bytes of some rows of the result."""
    name = target.source.type.name.lower()
    rows = source_rows(target, start, stop)
    cols = target.source.cols
    table = target.source.table
    own = None if table is None else np.frombuffer(table, np.int8)
    weights = decode_rows(name, rows, cols, own)
    if target.columns is not None:
        weights = weights[:, target.columns]
    numbers = range(start, stop) if target.order is None else target.order[start:stop].tolist()
    weights = multiplied(target.source, numbers, weights)
    if target.is_matrix:
        check_finite(weights, numbers)
    else:
        check_finite(weights)
        weights = weights if target.order is None else weights[:, target.order]
    if is_copied(target, fitting):
        return rows  # as it is: to quantize again what is quantized would only lose
    if target.type in FLOAT_BYTES:
        return encode_floats(target.type, weights)
    kind = CODED_TYPES[target.type]
    return encode_rows(quantize_matrix(weights, kind, fitting.tables.get(target.type)))


def source_rows(target: Target, start: int, stop: int) -> Bytes:
    """Rows of the source as stored, in the order that the result has."""
    tensor = target.source
    size = row_bytes(tensor.type.name.lower(), tensor.cols)
    rows = np.frombuffer(tensor.data, np.uint8).reshape(tensor.rows, size)
    if target.order is None or not target.is_matrix:
        return np.ascontiguousarray(rows[start:stop])
    return rows[target.order[start:stop]]


def check_done(targets: Iterable[Target], offsets: Mapping[str, int], output: PartialOutput) -> int:
    """Have tensors made again that an interruption of the machine damaged; returns how many."""
    damaged = 0
    for target in targets:
        if target.name not in output.done:
            continue
        total = 0
        for start, stop in chunks(target):
            at, size = start * target.row_bytes, (stop - start) * target.row_bytes
            data = np.frombuffer(output.read(size, offsets[target.name] + at), np.uint8)
            total += checksum(data, at)
        if total % 2**64 != output.done[target.name]:
            output.forget(target.name)
            damaged += 1
    return damaged
