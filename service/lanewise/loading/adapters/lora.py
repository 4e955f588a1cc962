"""Reads LoRA adapters as PEFT saves them: adapter_config.json and adapter_model.safetensors.

An adapter that does more than add ``scale * B A`` to matrices is refused by name: to ignore the
rest would give answers that are almost right.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lanewise.loading.adapters.adapted import ADAPTED, MERGE, not_supported, parts_of
from lanewise.loading.adapters.name_patterns import ACCEPTED, matches, parse_pattern
from lanewise.loading.base.checkpoint import ModelFileError, Role
from lanewise.loading.base.formats import TensorType
from lanewise.loading.base.json_files import Fields, read_object
from lanewise.loading.base.program import ModelConfig
from lanewise.loading.base.sources import SourceTensor
from lanewise.loading.families.family import as_they_are
from lanewise.loading.families.table import family_named
from lanewise.loading.files.rearranging import Rows, to_f32
from lanewise.loading.files.safetensors import (
    DTYPES,
    MAX_HEADER_BYTES,
    SafetensorsFile,
    SafetensorsTensor,
)
from lanewise.loading.programs.native_program import layer_shapes

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
MAX_RANK = 512  # LW_MAX_ADAPTER_RANK
MAX_CONFIG_BYTES, MOST_HEADER_BYTES = 1 << 20, 8 << 20
TENSOR = re.compile(
    r"(?:base_model\.model\.)?(?P<path>[a-z_.0-9]+?\.(?P<layer>\d{1,6})\.[a-z_.0-9]+)"
    r"\.lora_(?P<part>[AB])\.weight"
)
# PEFT settings that make an adapter more than A and B, and the values that are accepted.
PLAIN: tuple[tuple[str, tuple[Any, ...], str], ...] = (
    ("bias", (None, "none"), "'none' (biases of adapters are not supported)"),
    ("use_dora", (None, False), "false (DoRA is not supported)"),
    ("lora_bias", (None, False), "false (biases of adapters are not supported)"),
    ("use_qalora", (None, False), "false (QALoRA is not supported)"),
    ("modules_to_save", (None, []), "null (modules trained as a whole are not supported)"),
    ("trainable_token_indices", (None, [], {}), "null (trained tokens are not supported)"),
    ("layer_replication", (None, []), "null (replicated layers are not supported)"),
    ("target_parameters", (None, []), "null (adapted parameters are not supported)"),
    ("arrow_config", (None, {}), "null (Arrow's choice of adapters is not supported)"),
    ("use_bdlora", (None, False, {}), "null (BD-LoRA is not supported)"),
    ("kasa_config", (None, {}), "null (KaSA changes the model itself and is not supported)"),
    ("alora_invocation_tokens", (None, []), "null (activated LoRA is not supported)"),
)
# The ones that PEFT can merge into the model's own tensors.
MERGED = {
    *("bias", "use_dora", "lora_bias", "modules_to_save", "trainable_token_indices"),
    *("target_parameters", "use_bdlora"),
}
CHANGES_THE_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")  # these change the base
# Tensors that only training uses: VeLoRA and MonteCLoRA adapters compute like any other.
OF_TRAINING = re.compile(r".*\.lora_(velora_embed|monteclora_sampler)(\..*)?")
# Patterns of ranks and alphas that are names, not regular expressions.
PLAIN_NAME = re.compile(r"\^?[\w.]+\$?")
MAX_PATTERN_LETTERS = 2048  # of regular expressions, each of which is matched with each module
Matcher = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class AdapterTensor:
    """The A or B of one matrix, row-major in its type's own bytes."""

    rows: int
    cols: int
    type: TensorType
    data: memoryview


@dataclass(frozen=True, slots=True)
class AdaptedMatrix:
    """The update of one matrix of a model: ``scale * B A``."""

    name: str  # in the base model, e.g. model.layers.0.self_attn.q_proj
    role: Role
    layer: int
    a: AdapterTensor  # (rank, inputs)
    b: AdapterTensor  # (outputs, rank)
    scale: float


@dataclass(frozen=True, slots=True)
class AdapterFiles:
    """An open adapter; its tensors are valid until ``close`` is called."""

    path: Path
    rank: int  # the largest of all matrices
    matrices: list[AdaptedMatrix]
    close: Callable[[], None]


def files_under(root: Path, path: str) -> Path | None:
    """The adapter directory that a request names, if it lies entirely under ``root``; else None.

    Links are followed and must not lead out; "~" is not expanded. The answer does not show whether
    a path outside exists.
    """
    try:
        base = Path(os.path.realpath(root, strict=True))
        folder = Path(os.path.realpath(base / path, strict=True))
        files = [Path(os.path.realpath(folder / name, strict=True)) for name in (CONFIG, WEIGHTS)]
        usable = all(file.is_relative_to(base) and file.is_file() for file in files)
    except (OSError, ValueError):  # also a NUL, too long a name, a loop of links
        return None
    return folder if usable and folder.is_relative_to(base) else None


def _check_sizes(path: Path) -> None:
    """Refuse files that would take long to parse while other requests wait, before reading them."""
    size = (path / CONFIG).stat().st_size
    if size > MAX_CONFIG_BYTES:
        raise ModelFileError(
            f"{path / CONFIG}: {size} bytes; an adapter's has at most {MAX_CONFIG_BYTES}"
        )
    with (path / WEIGHTS).open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
    # Other values are not sizes at all; the reader of the file reports them.
    if MOST_HEADER_BYTES < size <= MAX_HEADER_BYTES:
        raise ModelFileError(
            f"{path / WEIGHTS}: a header of {size} bytes; an adapter's has at most"
            f" {MOST_HEADER_BYTES}"
        )


def open_adapter(path: Path, config: ModelConfig, max_rank: int = MAX_RANK) -> AdapterFiles:
    """Open the adapter in directory ``path`` for a model of this config.

    ModelFileError, naming file and field, if it is damaged, made for another model, of a rank above
    ``max_rank`` or of an unsupported kind.
    """
    if not (path / CONFIG).is_file():
        raise ModelFileError(
            f"{path}: {CONFIG} is missing; an adapter is a directory with {CONFIG} and {WEIGHTS}"
        )
    if not (path / WEIGHTS).is_file():
        hint = ""
        if (path / "adapter_model.bin").is_file():
            hint = "; adapter_model.bin is PyTorch's format and must be converted to safetensors"
        raise ModelFileError(f"{path}: {WEIGHTS} is missing{hint}")
    _check_sizes(path)
    settings = Fields(read_object(path / CONFIG), str(path / CONFIG))
    _check_plain(settings)
    if family_named(config.architecture).hf_inputs_first:
        settings.flag("fan_in_fan_out", default=False)  # describes the module's weight, not A and B
    elif settings.values.get("fan_in_fan_out") not in (None, False):
        raise settings.fail("fan_in_fan_out", "false")
    scales = _Scales(settings)
    file = SafetensorsFile(path / WEIGHTS)
    try:
        matrices = _matrices(file, config, scales, max_rank)
    except BaseException:
        file.close()
        raise
    rank = max(matrix.a.rows for matrix in matrices)
    return AdapterFiles(path, rank, matrices, file.close)


def largest_adapter_bytes(config: ModelConfig, rank: int) -> int:
    """Bytes of an adapter of all matrices with this rank, as two-byte floats.

    The library holds outputs in panels of 32.
    """
    panels = -(-rank // 32) * 32
    shapes = [
        shape
        for number in range(config.n_layers)
        for role, shape in layer_shapes(config, number).items()
        if role in ADAPTED
    ]
    return 2 * sum(panels * inputs + -(-outputs // 32) * 32 * rank for outputs, inputs in shapes)


def _check_plain(settings: Fields) -> None:
    if settings.text("peft_type") != "LORA":
        raise settings.fail("peft_type", "'LORA'")
    for key, accepted, wanted in PLAIN:
        value = settings.values.get(key)
        if not any(value is one or value == one for one in accepted):
            error = settings.fail(key, wanted)
            raise ModelFileError(f"{error}; {MERGE}") if key in MERGED else error
    start = settings.values.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(CHANGES_THE_BASE):
        raise settings.fail(
            "init_lora_weights",
            "an adapter to the unchanged model (PEFT converts this one while saving, by"
            " path_initial_model_for_weight_conversion)",
        )


class _Scales:
    """The scale of each module, from lora_alpha, alpha_pattern and the rank."""

    def __init__(self, settings: Fields) -> None:
        self._settings = settings
        self._alpha = settings.number("lora_alpha")
        self._rank = settings.integer("r")
        self._alphas = self._patterns("alpha_pattern")
        self._ranks = self._patterns("rank_pattern")
        self._root = settings.flag("use_rslora", default=False)

    def _patterns(self, key: str) -> list[tuple[Matcher, float]]:
        values = self._settings.values.get(key)
        if values is None:
            return []
        if not isinstance(values, dict):
            raise self._settings.fail(key, "an object of module names and numbers")
        where = f"{self._settings.source}: {key}"
        numbers = Fields(values, where)
        length = sum(len(name) for name in values if not PLAIN_NAME.fullmatch(name))
        if length > MAX_PATTERN_LETTERS:
            raise ModelFileError(
                f"{where}: regular expressions of {length} letters; accepted are"
                f" {MAX_PATTERN_LETTERS}, and names of modules without a limit"
            )
        return [(_matcher(name, where), numbers.number(name)) for name in values]

    def of(self, module: str, rank: int, where: str) -> float:
        """The factor of B A in one module whose A has ``rank`` rows."""
        wanted = _matching(self._ranks, module, self._rank)
        if rank != wanted:
            raise ModelFileError(
                f"{where}: A has {rank} rows; {self._settings.source} says rank {wanted:g}"
            )
        alpha = _matching(self._alphas, module, self._alpha)
        return alpha / math.sqrt(rank) if self._root else alpha / rank


def _matcher(pattern: str, where: str) -> Matcher:
    """Return a predicate for module names: equal to the pattern, or ending with it after a dot."""
    if PLAIN_NAME.fullmatch(pattern):
        name = pattern.removesuffix("$")
        whole, end = name.removeprefix("^"), f".{name}"
        return lambda module: module == whole or module.endswith(end)
    parsed = parse_pattern(pattern)
    if parsed is None:
        raise ModelFileError(
            f"{where}: {pattern[:80]!r} is not supported; accepted are the names of modules, or"
            f" their ends, and regular expressions of {ACCEPTED}"
        )
    return partial(matches, parsed)


def _matching(patterns: list[tuple[Matcher, float]], module: str, default: float) -> float:
    """The number of the first pattern that matches the module."""
    return next((number for means, number in patterns if means(module)), default)


def _matrices(
    file: SafetensorsFile, config: ModelConfig, scales: _Scales, max_rank: int
) -> list[AdaptedMatrix]:
    pairs: dict[str, dict[str, SafetensorsTensor]] = {}
    for name, tensor in file.tensors.items():
        if OF_TRAINING.fullmatch(name):
            continue
        match = TENSOR.fullmatch(name)
        if match is None:
            raise not_supported(f"{file.path}: tensor {name!r}", config)
        if int(match["layer"]) >= config.n_layers:
            raise ModelFileError(
                f"{file.path}: tensor {name!r}: the model has {config.n_layers} layers"
            )
        pairs.setdefault(match["path"], {})[match["part"]] = tensor
    if not pairs:
        raise ModelFileError(f"{file.path}: no tensors; lora_A and lora_B of modules are needed")
    used = {tensor.dtype for pair in pairs.values() for tensor in pair.values()}
    # The library wants one type for all, and F32 holds the others exactly. Multiplied rows would be
    # rounded to a smaller type.
    is_changed = family_named(config.architecture).lora_values is not as_they_are
    mixed = len(used) > 1 or is_changed
    return [
        matrix
        for module, pair in pairs.items()
        for matrix in _of_module(file, module, pair, config, scales, max_rank, mixed=mixed)
    ]


def _of_module(
    file: SafetensorsFile,
    module: str,
    pair: Mapping[str, SafetensorsTensor],
    config: ModelConfig,
    scales: _Scales,
    max_rank: int,
    *,
    mixed: bool,
) -> list[AdaptedMatrix]:
    """Return the updates of each matrix that a module corresponds to in this model."""
    where = f"{file.path}: {module}"
    for part in "AB":
        if part not in pair:
            raise ModelFileError(f"{where} has no lora_{part}.weight")
    a, b = (_tensor(file, pair[part], as_f32=mixed) for part in "AB")
    if not 1 <= a.rows <= max_rank:
        raise ModelFileError(
            f"{where} has rank {a.rows}; accepted: 1 to {max_rank} (max_lora_rank)"
        )
    if b.cols != a.rows:
        raise ModelFileError(f"{where}: A has {a.rows} rows, B {b.cols} columns: both are the rank")
    scale = scales.of(module, a.rows, where)
    made = SourceTensor(where, (b.rows, b.cols), b.type, b.data, _nothing)
    matrices = []
    for one in parts_of(module, made, config):
        inputs = layer_shapes(config, one.layer)[one.role][1]
        if a.cols != inputs:
            raise ModelFileError(
                f"{file.path}: tensor {pair['A'].name!r} has shape ({a.rows}, {a.cols}); the model"
                f" needs {(a.rows, inputs)}"
            )
        rows = AdapterTensor(one.rows, b.cols, b.type, one.data)
        matrices.append(
            AdaptedMatrix(module, one.role, one.layer, _with_inputs(a, one.inputs), rows, scale)
        )
    return matrices


def _with_inputs(a: AdapterTensor, order: Rows | None) -> AdapterTensor:
    """Return A with its columns in another order."""
    if order is None:
        return a
    values = np.frombuffer(a.data, np.uint8).reshape(a.rows, a.cols, -1)[:, order]
    return replace(a, data=memoryview(values.tobytes()))


def _nothing() -> None:
    """Do nothing: the bytes are read when they are needed."""


def _tensor(file: SafetensorsFile, tensor: SafetensorsTensor, *, as_f32: bool) -> AdapterTensor:
    where = f"{file.path}: tensor {tensor.name!r}"
    if tensor.dtype not in DTYPES:
        raise ModelFileError(f"{where} has type {tensor.dtype}; accepted are {', '.join(DTYPES)}")
    if len(tensor.shape) != 2:
        raise ModelFileError(f"{where} has shape {list(tensor.shape)}; a matrix is needed")
    data = file.file.view[tensor.start : tensor.start + tensor.n_bytes]
    kind = DTYPES[tensor.dtype]
    if as_f32 and kind != TensorType.F32:
        data, kind = memoryview(to_f32(data, kind).tobytes()), TensorType.F32
    return AdapterTensor(tensor.shape[0], tensor.shape[1], kind, data)
