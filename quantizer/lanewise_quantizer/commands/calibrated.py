"""Quantizes matrices on text: each on the inputs that the quantized ones before it give."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from lanewise.commands.opening import warn
from lanewise.commands.perplexity import CHARS_PER_TOKEN, cut_windows, read_text
from lanewise.loading.base.checkpoint import Checkpoint, ModelFileError, Role
from lanewise.settings import QuantizeSettings, SettingsError
from lanewise.text.tokenizer import Tokenizer
from lanewise_quantizer.coded import CODED_TYPES, CodedMatrix, CodedType, Scale
from lanewise_quantizer.commands.bundled import bundled_windows
from lanewise_quantizer.commands.partial_output import PartialOutput
from lanewise_quantizer.commands.plan import Target, half_split_rows
from lanewise_quantizer.commands.tables import Fitting, is_copied
from lanewise_quantizer.fit.feedback import rounds_for
from lanewise_quantizer.fit.forward import check_computable
from lanewise_quantizer.fit.model import Plan, quantize_model
from lanewise_quantizer.fit.source import Source
from lanewise_quantizer.storage import checksum, decode_rows, encode_rows
from lanewise_quantizer.text import BUNDLED

Floats = npt.NDArray[np.float32]

WINDOW = 512  # tokens that see each other
NONE = "none"
# What loses so much by rounding that it is calibrated unasked, and bits from which on it is not.
NEED_TEXT = ("t2", "cb2", "q2_k", "cb3", "q3_k")
FINE_BITS = 4.0


def has_one_scale(kind: str | None) -> bool:
    """Return whether rows of a format are no groups whose scales could be fitted to a text."""
    return kind in CODED_TYPES and CODED_TYPES[kind].scale is Scale.ONE


def chosen_text(settings: QuantizeSettings, checkpoint: Checkpoint) -> str | None:
    """Return the text to calibrate on, None: without; ModelFileError if it cannot be."""
    if settings.calibrate not in (None, NONE):
        check_computable(checkpoint.config)
        return settings.calibrate
    formats = (settings.format, settings.head)
    if "t2" in formats and settings.calibrate == NONE:
        raise SettingsError(
            f"--calibrate: {NONE}; t2 needs a text, to follow its codes' chain on; accepted: a file"
            f" or {BUNDLED}"
        )
    is_needed = settings.format in NEED_TEXT or (settings.bits or FINE_BITS) < FINE_BITS
    is_needed = is_needed and not any(map(has_one_scale, formats))
    if settings.target_kl is not None:
        if settings.calibrate == NONE:
            raise SettingsError(
                f"--calibrate: {NONE}; --target-kl is measured on a text; accepted: a file or"
                f" {BUNDLED}"
            )
        check_computable(checkpoint.config)
        return BUNDLED
    if settings.calibrate == NONE or not (is_needed or "t2" in formats):
        return None
    what = settings.format if settings.bits is None else f"--bits {settings.bits:g}"
    try:
        check_computable(checkpoint.config)
    except ModelFileError as error:
        if "t2" in formats:
            raise
        warn(f"{what} would be better calibrated: {error}")
        return None
    told = f"{what}: calibrating on the bundled text; --calibrate {NONE} is quicker, and worse"
    print(told, file=sys.stderr)
    return BUNDLED


def calibration_windows(checkpoint: Checkpoint, file: str, tokens: int) -> npt.NDArray[np.int64]:
    """Return token ids [windows, tokens of a window] of a text, about ``tokens`` in all."""
    if file == BUNDLED:
        return _of_bundled(checkpoint, tokens)
    tokenizer = Tokenizer.from_files(checkpoint.tokenizer)
    text = read_text(file, tokens * CHARS_PER_TOKEN, "--calibrate")
    ids = tokenizer.encode(text, add_bos=False, parse_special=False)
    size = min(WINDOW, checkpoint.config.context_length)
    start = tokenizer.encode("", add_bos=True, parse_special=False)
    windows = [w for w in cut_windows(ids[:tokens], start, size) if len(w) == size]
    if not windows and len(ids) >= size:
        raise SettingsError(
            f"--calibration-tokens: {tokens}; accepted: {size} at least, a whole window"
        )
    if not windows:
        raise SettingsError(
            f"--calibrate: {file} has {len(ids)} tokens; accepted: {size} at least, a whole window"
        )
    return np.array(windows, np.int64)


def _of_bundled(checkpoint: Checkpoint, tokens: int) -> npt.NDArray[np.int64]:
    bundled = bundled_windows(checkpoint, min(WINDOW, checkpoint.config.context_length), tokens)
    ids = np.array(bundled.windows, np.int64)
    if bundled.problem is not None:
        warn(f"{checkpoint.path}: the dialogues are calibrated on as plain text: {bundled.problem}")
    if ids.size + ids.shape[1] <= tokens:
        warn(f"--calibration-tokens: {tokens}; the bundled text has {ids.size} in whole windows")
    return ids


class Calibrated:
    """The matrices of a result that are made on text, and how they get there."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        targets: Sequence[Target],
        fitting: Fitting,
        offsets: Mapping[str, int],
        output: PartialOutput,
        progress: Callable[[Target, int], None],
    ) -> None:
        self.source = Source(checkpoint)
        self.targets = {(t.source.role, t.source.layer): t for t in targets if t.is_matrix}
        self.fitting = fitting
        self.offsets = offsets
        self.output = output
        self.progress = progress

    def run(self, ids: npt.NDArray[np.int64]) -> None:
        """Make every matrix that is to be of a coded type and is not one of it already."""
        rounds = rounds_for(sum(t.source.rows * t.source.cols for t in self.targets.values()))
        plan = Plan(self.kind, self.fitting.tables, rounds=rounds, known=self.known)
        quantize_model(self.source, ids, plan, self.keep)

    def kind(self, role: Role, layer: int) -> CodedType | None:
        """Return what a matrix becomes, or None if it stays or becomes a float type."""
        target = self.targets.get((role, layer))
        if target is None or is_copied(target, self.fitting):
            return None
        return CODED_TYPES.get(target.type)

    def keep(self, role: Role, layer: int, parts: Iterable[CodedMatrix]) -> None:
        """Write a matrix, given as all its rows or as some after the others, in its order."""
        target = self.targets[role, layer]
        order = half_split_rows(target)
        at = total = n_rows = 0
        left = np.empty(0, np.uint8)  # less than a word of the checksum
        for part in parts:
            rows = encode_rows(part)
            if order is not None:
                rows = rows[order]
            data = np.concatenate([left, rows.reshape(-1)])
            whole = len(data) if n_rows + part.rows == target.source.rows else len(data) // 8 * 8
            data, left = data[:whole], data[whole:]
            self.output.write(memoryview(data.data).cast("B"), self.offsets[target.name] + at)
            total = (total + checksum(data, at)) % 2**64
            at += whole
            n_rows += part.rows
            self.progress(target, part.rows)
            target.source.release()
        self.output.mark_done(target.name, total)

    def known(
        self, role: Role, layer: int, rows: npt.NDArray[np.integer] | None = None
    ) -> Floats | None:
        """Return a matrix that an earlier run has made, or rows [..., cols] of it, or None."""
        target = self.targets[role, layer]
        if target.name not in self.output.done:
            return None
        if rows is not None:
            return self._rows(target, rows)
        data = self.output.read(target.n_bytes, self.offsets[target.name])
        weights = self._decoded(target, data)
        order = half_split_rows(target)
        if order is None:
            return weights
        back = np.empty_like(weights)
        back[order] = weights
        return back

    def _rows(self, target: Target, numbers: npt.NDArray[np.integer]) -> Floats:
        """Rows of a table, whose order is that of the result."""
        found, places = np.unique(numbers, return_inverse=True)
        at, size = self.offsets[target.name], target.row_bytes
        data = b"".join(self.output.read(size, at + int(row) * size) for row in found)
        looked_up: Floats = self._decoded(target, data)[places.reshape(numbers.shape)]
        return looked_up

    def _decoded(self, target: Target, data: bytes) -> Floats:
        rows = np.frombuffer(data, np.uint8).reshape(-1, target.row_bytes)
        table = self.fitting.tables.get(target.type)
        return decode_rows(target.type, rows, target.source.cols, table)
