"""``lanewise quantize``: a model in fewer bits; streaming, resumable, whole or not at all."""

from __future__ import annotations

import hashlib
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lanewise.commands.opening import threads_of, warn
from lanewise.commands.progress import work_bar
from lanewise.host import format_size, memory_limit
from lanewise.loading.base.checkpoint import Checkpoint, ModelFileError
from lanewise.loading.base.formats import VECTOR_TYPES
from lanewise.loading.base.names import GGUF, HF, TENSOR_NAMES, is_vector
from lanewise.loading.checkpoints.hub import resolve_model
from lanewise.loading.checkpoints.packed_checkpoint import WEIGHTS
from lanewise.loading.writing.packed_writer import (
    check_folder,
    packed_config,
    write_json,
    write_tokenizer,
)
from lanewise.runtime.fitting import use_threads
from lanewise.settings import QuantizeSettings, SettingsError
from lanewise_quantizer.coded import CODED_TYPES
from lanewise_quantizer.commands.bits import Wanted, allocate
from lanewise_quantizer.commands.calibrated import (
    NONE,
    Calibrated,
    calibration_windows,
    chosen_text,
    has_one_scale,
)
from lanewise_quantizer.commands.divergence import divergence_lines
from lanewise_quantizer.commands.files import (
    Copied,
    GgufPlan,
    WeightsFile,
    gguf_plan,
    safetensors_header,
    safetensors_plan,
)
from lanewise_quantizer.commands.partial_output import PartialOutput, plan_begun
from lanewise_quantizer.commands.plan import (
    HEADS,
    Kinds,
    Target,
    bytes_asked,
    is_kept,
    is_written,
    kinds_of,
    not_written,
    plan,
    plan_as,
    replaced,
    rewrites,
)
from lanewise_quantizer.commands.sources import open_source, quantized_twice
from lanewise_quantizer.commands.stream import Job, check_done, stream
from lanewise_quantizer.commands.tables import Fitting, is_copied
from lanewise_quantizer.commands.towers import check_tower, write_tower
from lanewise_quantizer.fit.forward import check_computable
from lanewise_quantizer.fit.outliers import EvenedOut, evened_out
from lanewise_quantizer.fit.source import Source

GGUF_WEIGHTS = "model.gguf"
COST_ON_TEXT = 100  # of a weight that is fitted to a text, relative to one that is rounded
# Where nothing is asked for: nats, and the format of models whose losses are not measured.
GOOD_KL, DEFAULT_FORMAT = 0.05, "q4_0"
SPARED, NAMED = 1.5, 5  # times as many bits as usual; matrices that are named
COPIED_BYTES = 1 << 24  # of a tensor at a time
MEASURED_WEIGHTS = 4e9  # of larger models losses are measured only if asked for


def run(settings: QuantizeSettings) -> None:
    """Quantize the model and write the directory, or the GGUF file."""
    if settings.output is None:
        raise SettingsError("--output: not given; accepted: a directory that is new or empty")
    output = Path(settings.output).expanduser().absolute()
    if settings.gguf and output.exists():
        raise ModelFileError(f"{output}: exists; give a new file")
    if not settings.gguf:
        check_folder(output)
    asked_for = {
        "--format": settings.format,
        "--bits": settings.bits,
        "--target-kl": settings.target_kl,
    }
    given = [name for name, value in asked_for.items() if value is not None]
    if len(given) > 1:
        raise SettingsError(f"{given[1]}: given beside {given[0]}; accepted: one of them")
    for option, kind in (("--format", settings.format), ("--head", settings.head)):
        if has_one_scale(kind) and settings.calibrate not in (None, NONE):
            raise SettingsError(f"--calibrate: {option} {kind} has no groups whose scales to fit")
    use_threads(threads_of(settings))
    source = resolve_model(settings.model)
    check_tower(source, settings)
    with open_source(source) as checkpoint:
        settings, most_bytes = settled(settings, checkpoint)
        text = chosen_text(settings, checkpoint)
        ids = None
        if text is not None:
            ids = calibration_windows(checkpoint, text, settings.calibration_tokens)
        evened = None
        if ids is not None and not rewrites(checkpoint, settings.gguf):  # vectors would change
            evened = even_out(checkpoint)
        targets = planned(checkpoint, settings, ids, most_bytes, output)
        for sentence in replaced(targets):
            warn(sentence)
        if (warning := not_written(checkpoint, settings.gguf)) is not None:
            warn(f"{checkpoint.path}: {warning}")
        fitting = fit(checkpoint, targets, ids is not None)
        if (warning := quantized_twice(targets, fitting)) is not None:
            warn(f"{checkpoint.path}: {warning}")
        file: WeightsFile
        if settings.gguf:
            file = gguf_plan(checkpoint, targets)
        else:
            file = safetensors_plan(targets, fitting)
        n_copied = sum(c.n_bytes for c in file.copies) if isinstance(file, GgufPlan) else 0
        if (warning := larger_than_source(targets, file.size - n_copied)) is not None:
            warn(f"{checkpoint.path}: {warning}")
        about = description(checkpoint, targets, settings) | fitted(fitting, ids)
        name = GGUF_WEIGHTS if settings.gguf else WEIGHTS
        with PartialOutput(output, name, about, file.size) as partial:
            job = Job(
                checkpoint.path,
                kinds_of(targets),
                settings.gguf,
                fitting,
                file.offsets,
                partial.weights,
                evened,
            )
            write(checkpoint, targets, file, job, partial, threads_of(settings), ids)
            if isinstance(file, GgufPlan):
                partial.finish_file()
            else:
                header = safetensors_header(targets, fitting, partial.done)
                partial.write(memoryview(header), 0)
                write_tokenizer(partial.folder, checkpoint)
                notes, threads = asked(settings), threads_of(settings)
                config = write_tower(source, partial.folder, settings, threads, notes)
                config = config or packed_config(checkpoint, **notes)
                write_json(partial.folder / "config.json", config)
                partial.finish()
    print(summary(output, targets, file.size, checkpoint.n_weights), flush=True)
    if settings.format is None and (more := spared(targets)) is not None:
        print(more, flush=True)
    if settings.check_tokens:
        threads = threads_of(settings)

        def as_gguf(file: Path) -> Path:
            return source if source.is_file() else write_floats(source, file, threads)

        for line in divergence_lines(source, output, settings.check_tokens, threads, as_gguf):
            print(line, flush=True)


def write_floats(source: Path, output: Path, threads: int) -> Path:
    """Write a model as a GGUF file of float32, for programs that read no other; returns it."""
    with open_source(source) as checkpoint:
        targets = plan(checkpoint, "f32", "f32", to_gguf=True)
        file, none = gguf_plan(checkpoint, targets), Fitting({})
        with PartialOutput(output, GGUF_WEIGHTS, {"source": str(source)}, file.size) as partial:
            to = kinds_of(targets), True, none, file.offsets, partial.weights
            write(checkpoint, targets, file, Job(checkpoint.path, *to), partial, threads, None)
            partial.finish_file()
    return output


def settled(
    settings: QuantizeSettings, checkpoint: Checkpoint
) -> tuple[QuantizeSettings, int | None]:
    """Return settings that name a format, bits or nats, and the most bytes of the file."""
    if (settings.format, settings.bits, settings.target_kl) != (None, None, None):
        return settings, None
    why = f"--calibrate {NONE}" if settings.calibrate == NONE else None
    weights = checkpoint.n_weights
    if weights > MEASURED_WEIGHTS:
        why = f"what {weights / 1e9:.0f} billion weights lose takes hours to measure (--target-kl)"
    try:
        check_computable(checkpoint.config)
    except ModelFileError as error:
        why = str(error)
    if why is not None:
        warn(f"--format {DEFAULT_FORMAT}: {why}")
        return replace(settings, format=DEFAULT_FORMAT), None
    return replace(settings, target_kl=GOOD_KL), memory_limit().n_bytes // 2


def even_out(checkpoint: Checkpoint) -> EvenedOut | None:
    """Have inputs that stand out evened out, and say so; None where none do."""
    evened = evened_out(Source(checkpoint))
    if not evened.inputs:
        return None
    print(evened, file=sys.stderr)
    evened.applied_to(checkpoint)
    return evened


def planned(
    checkpoint: Checkpoint,
    settings: QuantizeSettings,
    ids: npt.NDArray[np.int64] | None,
    most_bytes: int | None,
    output: Path,
) -> list[Target]:
    """Return the tensors of the result: of one format, or of those that bits or nats come to."""
    if settings.format is not None:
        return plan(checkpoint, settings.format, settings.head, settings.gguf)
    kinds = measured_before(checkpoint, settings, ids, output)
    if kinds is None:
        bits, nats = settings.bits, settings.target_kl
        wanted = Wanted(settings.head, settings.gguf, bits, nats, most_bytes)
        kinds = allocate(checkpoint, wanted, ids)
    return plan_as(checkpoint, kinds, settings.gguf)


def measured_before(
    checkpoint: Checkpoint,
    settings: QuantizeSettings,
    ids: npt.NDArray[np.int64] | None,
    output: Path,
) -> Kinds | None:
    """Return the types that an interrupted run of the same settings has chosen, or None."""
    begun = plan_begun(output)
    same = description(checkpoint, [], settings) | fitted(Fitting({}), ids)
    if any(begun.get(key) != same[key] for key in same.keys() - {"types", "tables"}):
        return None
    types = dict(begun["types"])
    column = GGUF if settings.gguf else HF
    return {
        (tensor.role, tensor.layer): types[TENSOR_NAMES[tensor.role][column].format(tensor.layer)]
        for tensor in checkpoint.tensors
        if not is_vector(tensor.role) and is_written(checkpoint, tensor, settings.gguf)
    }


def asked(settings: QuantizeSettings) -> dict[str, Any]:
    """Return what the result is, as its config.json says."""
    if settings.bits is not None:
        return {"format": "mixed", "bits": settings.bits}
    if settings.target_kl is not None:
        return {"format": "mixed", "target_kl": settings.target_kl}
    return {"format": settings.format}


def fit(checkpoint: Checkpoint, targets: Sequence[Target], to_weights: bool) -> Fitting:
    """Return what the quantizer needs to know of the whole model."""
    return Fitting.to_weights(checkpoint, targets) if to_weights else Fitting.default(targets)


def larger_than_source(targets: Sequence[Target], size: int) -> str | None:
    """Return a warning where a quantized source becomes a larger file, which cannot be better."""
    before = sum(target.source.n_bytes for target in targets)
    is_quantized = any(
        target.source.type not in VECTOR_TYPES for target in targets if target.is_matrix
    )
    if not is_quantized or size <= before:
        return None
    return (
        f"the result, {format_size(size)}, is larger than its source, {format_size(before)}, and"
        " cannot be better: what the source has lost stays lost; accepted: fewer bits, or the"
        " original weights as the source"
    )


def fitted(fitting: Fitting, ids: npt.NDArray[np.int64] | None) -> dict[str, Any]:
    """Return what calibrated runs must have in common besides."""
    tables = {name: table.tobytes().hex() for name, table in fitting.tables.items()}
    text = None if ids is None else hashlib.sha256(ids.tobytes()).hexdigest()
    return {"tables": tables, "calibration text": text}


def description(
    checkpoint: Checkpoint, targets: Sequence[Target], settings: QuantizeSettings
) -> dict[str, Any]:
    """Return what two runs must have in common to go on with each other's work."""
    files = [checkpoint.path]
    if checkpoint.path.is_dir():
        files = sorted(checkpoint.path.glob("*.safetensors"))
    stats = [(path.name, path.stat()) for path in files]
    return {
        "source": str(checkpoint.path.resolve()),
        "source files": [[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats],
        **asked(settings),
        "head": settings.head,
        "gguf": settings.gguf,
        "types": [[target.name, target.type] for target in targets],
        "version": 3,
    }


def write(
    checkpoint: Checkpoint,
    targets: Sequence[Target],
    file: WeightsFile,
    job: Job,
    partial: PartialOutput,
    threads: int,
    ids: npt.NDArray[np.int64] | None,
) -> None:
    """Write all tensors that are not there yet, under a bar; coded ones on ``ids`` if given."""
    if isinstance(file, GgufPlan):
        partial.write(memoryview(file.header), 0)
        partial.write(memoryview(file.rope_factors), file.rope_at)
        for one in file.copies:
            copy(one, partial)
    check_done(targets, file.offsets, partial)
    try:
        with work_bar("quantizing") as bar:
            costs = {t.name: cost_of(t, job.fitting, ids is not None) for t in targets}
            task = bar.add_task(checkpoint.name, total=sum(costs.values()))

            def progress(target: Target, rows: int) -> None:
                bar.advance(task, costs[target.name] * rows / target.source.rows)
                phase = f"{checkpoint.name}, {len(partial.done)} of {len(targets)} tensors"
                bar.update(task, description=phase)

            for target in targets:
                if target.name in partial.done:
                    progress(target, target.source.rows)
            if ids is not None:
                Calibrated(checkpoint, targets, job.fitting, file.offsets, partial, progress).run(
                    ids
                )
            stream(job, targets, partial, threads, progress)
    except ModelFileError as error:  # the source itself cannot be quantized
        partial.discard()
        raise ModelFileError(f"{checkpoint.path}: {error}") from None


def copy(tensor: Copied, partial: PartialOutput) -> None:
    """Copy a tensor from the source's file."""
    with tensor.file.open("rb") as file:
        file.seek(tensor.start)
        for at in range(0, tensor.n_bytes, COPIED_BYTES):
            part = file.read(min(COPIED_BYTES, tensor.n_bytes - at))
            partial.write(memoryview(part), tensor.at + at)


def cost_of(target: Target, fitting: Fitting, on_text: bool) -> float:
    """What it costs to make a tensor, relative to others: fitting to a text takes far longer."""
    is_fitted = (
        on_text
        and target.is_matrix
        and target.type in CODED_TYPES
        and target.source.role not in HEADS
        and not is_copied(target, fitting)
    )
    return float(target.source.n_bytes) * (COST_ON_TEXT if is_fitted else 1)


def summary(output: Path, targets: Sequence[Target], size: int, weights: int) -> str:
    """Return what was made, and how many bits were asked for if not all types were possible."""
    matrices = [target for target in targets if target.is_matrix]
    counts = Counter(target.type for target in matrices)
    kinds = ", ".join(f"{count} {name}" for name, count in counts.most_common())
    bits = f"{8 * size / weights:.3f} bits per weight"
    asked = size + sum(bytes_asked(target) - target.n_bytes for target in targets)
    if asked != size:
        bits += f" ({8 * asked / weights:.3f} in the types asked for)"
    return f"{output}: {format_size(size)}, {bits}: {kinds}"


def spared(targets: Sequence[Target]) -> str | None:
    """Return which matrices got far more bits than most, because they lose most; None: none did."""
    chosen = [target for target in targets if target.is_matrix and not is_kept(target.source)]
    usual = sum(t.n_bytes for t in chosen) / sum(t.source.rows * t.source.cols for t in chosen)
    more = [t for t in chosen if t.n_bytes > SPARED * usual * t.source.rows * t.source.cols]
    if not more:
        return None
    more.sort(key=lambda t: -t.row_bytes / t.source.cols)
    names = [f"{target.name} {target.type}" for target in more[:NAMED]]
    rest = f" and {len(more) - NAMED} more" if len(more) > NAMED else ""
    return f"spared, for they lose most: {', '.join(names)}{rest}"
