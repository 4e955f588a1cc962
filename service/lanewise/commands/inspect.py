"""``lanewise inspect``: the tensors of a model file, their types, shapes and bits."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from lanewise.commands.inspect_tower import tower_about, tower_line
from lanewise.commands.progress import bytes_bar
from lanewise.host import default_threads, format_size
from lanewise.loading.base.checkpoint import Checkpoint, Converted, ModelFileError
from lanewise.loading.base.formats import HELD, MATRIX_TYPES, TensorType, row_bytes
from lanewise.loading.base.json_files import Fields, read_object
from lanewise.loading.base.mapped_file import close_all
from lanewise.loading.base.names import is_vector
from lanewise.loading.checkpoints.hub import resolve_model
from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise.loading.checkpoints.packed_checkpoint import (
    ROWS,
    TOWER_WEIGHTS,
    TensorNote,
    is_packed,
)
from lanewise.loading.files.gguf import GgufFile
from lanewise.loading.files.safetensors import DTYPES, SafetensorsFile
from lanewise.loading.files.weights_files import open_weights
from lanewise.loading.quantized.quantization import find_quantization
from lanewise.settings import InspectSettings
from lanewise.told import told
from lanewise_quantizer.quantize import check_finite
from lanewise_quantizer.storage import checksum, decode_rows

OK, FAILED = 0, 1
CHECKED_BYTES = 8 << 20  # at a time; a multiple of 8


@dataclass(frozen=True)
class Inspected:
    """One tensor of a file."""

    name: str
    type: str
    shape: tuple[int, ...]  # outputs first
    stored: memoryview | Converted
    note: TensorNote | None = None  # of our own files
    is_packed: bool = False

    @property
    def data(self) -> memoryview:
        """Its bytes."""
        return self.stored if isinstance(self.stored, memoryview) else self.stored.view()

    @property
    def weights(self) -> int:
        """How many numbers it holds."""
        return prod(self.shape)

    @property
    def bits(self) -> float | None:
        """Bits per weight; None where the size of the type is not known."""
        return 8 * self.stored.nbytes / self.weights if self.stored.nbytes else None


def checked(tensors: Sequence[Inspected], name: str) -> list[str]:
    """What is wrong with any of them; all weights are read, under a bar."""
    problems: list[str] = []
    with bytes_bar("checking") as bar:
        task = bar.add_task(name, total=sum(tensor.stored.nbytes for tensor in tensors))
        for tensor in tensors:
            problems += problems_of(tensor)
            bar.advance(task, tensor.stored.nbytes)
    return problems


def run(settings: InspectSettings) -> int:
    """Print what is in the file; the exit status is 1 if --check finds something wrong."""
    path = resolve_model(settings.model)
    with opened(path) as (kind, tensors):
        problems = checked(tensors, path.name) if settings.check else []
        report = report_of(path, kind, tensors)
        report["tower"] = tower_about(path)
        if settings.check:
            problems += try_out(path, report) if not problems else []
            report["problems"] = problems
        if settings.outliers:
            report["outliers"] = outliers_of(path)
        if settings.json:
            print(json.dumps(report))
        else:
            show(report)
    return FAILED if problems else OK


@contextmanager
def opened(path: Path) -> Iterator[tuple[str, list[Inspected]]]:
    """The kind of file and its tensors, whether or not the model could be served."""
    if path.is_file():
        gguf = GgufFile(path)
        try:
            yield "GGUF", list(gguf_tensors(gguf))
        finally:
            gguf.close()
        return
    if not path.is_dir():
        raise ModelFileError(f"{path}: no such file or directory")
    config = path / "config.json"
    fields = Fields(read_object(config) if config.is_file() else {}, str(config))
    ours = is_packed(fields)
    quantization = None if ours else find_quantization(fields, path)
    if quantization is not None:
        with open_checkpoint(path) as checkpoint:
            kind = f"Hugging Face, {quantization.text('quant_method')}"
            yield kind, list(checkpoint_tensors(checkpoint))
        return
    files = open_weights(path)
    try:
        kind = "Hugging Face"
        if ours:
            kind = "quantized" if files[0].metadata.get("layout") == ROWS else "packed"
        tensors = [t for file in files for t in safetensors_tensors(file, kind)]
        if ours and (path / TOWER_WEIGHTS).is_file():
            files.append(SafetensorsFile(path / TOWER_WEIGHTS))
            of_tower = safetensors_tensors(files[-1], "packed")
            tensors += [replace(tensor, name=f"tower.{tensor.name}") for tensor in of_tower]
        yield kind, tensors
    finally:
        close_all(files)


def checkpoint_tensors(checkpoint: Checkpoint) -> Iterator[Inspected]:
    """The tensors of a model as it is served."""
    for tensor in checkpoint.tensors:
        shape = (tensor.cols,) if is_vector(tensor.role) else (tensor.rows, tensor.cols)
        yield Inspected(tensor.name, tensor.type.name.lower(), shape, tensor.stored)


def gguf_tensors(file: GgufFile) -> Iterator[Inspected]:
    """The tensors of a GGUF file."""
    for tensor in file.tensors.values():
        data = file.file.view[tensor.start : tensor.start + tensor.n_bytes]
        shape = tuple(reversed(tensor.shape))
        yield Inspected(tensor.name, tensor.type.name.lower(), shape, data)


def safetensors_tensors(file: SafetensorsFile, kind: str) -> Iterator[Inspected]:
    """The tensors of a safetensors file, of other programs or ours."""
    for tensor in file.tensors.values():
        data = file.file.view[tensor.start : tensor.start + tensor.n_bytes]
        if kind == "Hugging Face":
            known = DTYPES.get(tensor.dtype)
            name = tensor.dtype if known is None else known.name
            yield Inspected(tensor.name, name.lower(), tensor.shape, data)
            continue
        note = TensorNote.read(file, tensor.name)
        is_matrix = tensor.dtype == "U8"
        shape = (note.rows, note.cols) if is_matrix else tensor.shape
        is_packed_matrix = is_matrix and kind == "packed"
        yield Inspected(tensor.name, note.type.name.lower(), shape, data, note, is_packed_matrix)


def problems_of(tensor: Inspected) -> Iterator[str]:
    """What is wrong with the bytes of a tensor."""
    if tensor.note is not None:
        total = 0
        for at in range(0, tensor.data.nbytes, CHECKED_BYTES):
            part = np.frombuffer(tensor.data[at : at + CHECKED_BYTES], np.uint8)
            total += checksum(part, at)
        if total % 2**64 != tensor.note.checksum:
            yield (
                f"{tensor.name}: checksum {total % 2**64:016x}, its note says"
                f" {tensor.note.checksum:016x}: the file is damaged"
            )
            return
    try:
        kind = TensorType[tensor.type.upper()]
    except KeyError:
        return
    # Every code and every scale of NVFP4 is a number.
    if tensor.is_packed or kind not in MATRIX_TYPES or kind is TensorType.NVFP4:
        return
    cols = tensor.shape[-1]
    size = row_bytes(kind, cols)
    table = None if tensor.note is None or tensor.note.table is None else tensor.note.table
    entries = None if table is None else np.frombuffer(table, np.int8)
    rows = np.frombuffer(tensor.data, np.uint8).reshape(-1, size)
    step = max(1, CHECKED_BYTES // (4 * cols))
    for start in range(0, len(rows), step):
        part = np.ascontiguousarray(rows[start : start + step])
        try:
            if kind in HELD:
                # Imported here: see try_out.
                from lanewise.runtime.unpacking import row_weights

                weights = row_weights(kind, part, len(part), cols)
            else:
                weights = decode_rows(tensor.type, part, cols, entries)
            check_finite(weights, range(start, start + len(part)))
        except ValueError as error:
            yield f"{tensor.name}: {error}"
            return


def try_out(path: Path, report: dict[str, Any]) -> list[str]:
    """What is wrong with the model's answers; the report gets why none could be had."""
    # Imported here: only --check needs the native library, and it is there without one.
    from lanewise.commands.trial_step import trial_step

    problem, report["not_run"] = trial_step(path, default_threads().threads)
    return [] if problem is None else [problem]


def outliers_of(path: Path) -> list[dict[str, Any]]:
    """How far inputs of the model's matrices stand out."""
    # Imported here: see try_out.
    from lanewise.commands.outliers import find_outliers

    return [asdict(row) for row in find_outliers(path, default_threads().threads)]


def report_of(path: Path, kind: str, tensors: list[Inspected]) -> dict[str, Any]:
    """Everything as plain values."""
    types: dict[str, dict[str, Any]] = {}
    for tensor in tensors:
        row = types.setdefault(tensor.type, {"tensors": 0, "weights": 0, "bytes": 0})
        row["tensors"] += 1
        row["weights"] += tensor.weights
        row["bytes"] += tensor.stored.nbytes
    for row in types.values():
        row["bits_per_weight"] = 8 * row["bytes"] / row["weights"] if row["bytes"] else None
    weights, size = (sum(row[key] for row in types.values()) for key in ("weights", "bytes"))
    return {
        "path": str(path),
        "kind": kind,
        "tensors": [
            {
                "name": tensor.name,
                "type": tensor.type,
                "shape": list(tensor.shape),
                "bytes": tensor.stored.nbytes,
                "bits_per_weight": tensor.bits,
            }
            for tensor in tensors
        ],
        "types": types,
        "weights": weights,
        "bytes": size,
        "bits_per_weight": 8 * size / weights if weights else None,
    }


def show(report: dict[str, Any]) -> None:
    """Print a report as tables."""
    console = Console(highlight=False)
    right = [Column(name, justify="right", no_wrap=True) for name in ("shape", "bytes", "bits")]
    names = [Column(name, no_wrap=True) for name in ("tensor", "type")]
    table = Table(*names, *right, box=None, pad_edge=False)
    for tensor in report["tensors"]:
        shape = " x ".join(map(str, tensor["shape"]))
        bits = _bits(tensor["bits_per_weight"])
        table.add_row(Text(told(tensor["name"])), tensor["type"], shape, str(tensor["bytes"]), bits)
    console.print(table, soft_wrap=True)
    console.print()
    for name, row in report["types"].items():
        of_type = f"{row['tensors']} {name}: {row['weights']} weights, {format_size(row['bytes'])}"
        console.print(f"{of_type}, {_bits(row['bits_per_weight'])} bits each", soft_wrap=True)
    total = f"{report['weights']} weights, {format_size(report['bytes'])}"
    line = f"{report['path']} ({report['kind']}): {total}, {_bits(report['bits_per_weight'])} bits"
    console.print(line, soft_wrap=True, markup=False)
    if (tower := report["tower"]) is not None:
        console.print(told(tower_line(tower)), soft_wrap=True, markup=False)
    if "outliers" in report:
        show_outliers(console, report)
    if "problems" in report:
        for line in report["problems"] or ["checked: all weights are sound"]:
            console.print(told(line), soft_wrap=True, markup=False)
        if reason := report.get("not_run"):
            console.print(told(f"a step was not tried: {reason}"), soft_wrap=True, markup=False)


def show_outliers(console: Console, report: dict[str, Any]) -> None:
    """Print how far inputs stand out, and what to do where that is unusual."""
    console.print()
    heads = ("largest", "times the mean", "layer", "input", "groups with an outlier")
    right = [Column(name, justify="right", no_wrap=True) for name in heads]
    table = Table(Column("inputs of", no_wrap=True), *right, box=None, pad_edge=False)
    for row in report["outliers"]:
        layer = "" if row["layer"] is None else str(row["layer"])
        sizes = (f"{row['largest']:.4g}", f"{row['times_mean']:.0f}", layer, str(row["input"]))
        table.add_row(row["inputs_of"], *sizes, f"{row['outlier_groups']:.2%}")
    console.print(table, soft_wrap=True)
    unusual = ", ".join(row["inputs_of"] for row in report["outliers"] if row["unusual"])
    line = "outliers: as usual"
    if unusual:
        line = (
            f"outliers: unusual, of {unusual}: what int8 activations cost this model is measured by"
            f" lanewise compare {report['path']} --float-activations --file TEXT"
        )
    console.print(line, soft_wrap=True, markup=False)


def _bits(value: float | None) -> str:
    return "?" if value is None else f"{value:.3f}"
