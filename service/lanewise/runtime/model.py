"""Packed weights: loads every tensor of a checkpoint into the native library."""

import logging
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

from lanewise.loading.base.checkpoint import (
    AttachedHead,
    Checkpoint,
    ModelFileError,
    Packing,
    Tensor,
)
from lanewise.loading.base.formats import TABLE_BYTES, TensorType, has_table
from lanewise.loading.base.mapped_file import changed_files
from lanewise.loading.base.names import HF, TENSOR_NAMES, is_vector
from lanewise.loading.base.program import ModelConfig
from lanewise.loading.base.vision import VisionFacts
from lanewise.loading.programs.native_program import NativeProgram
from lanewise.native.library import Native, NativeError, native
from lanewise.runtime.guards import guard_mappings
from lanewise.runtime.targets import held_name, target_types, warn_of_kept
from lanewise.topology import Placement

logger = logging.getLogger(__name__)

LOAD_WAYS = ("auto", "map", "copy")  # how packed weights come into memory
NUMA_WAYS = {"interleave": "LW_NUMA_INTERLEAVE", "replicate": "LW_NUMA_REPLICATE"}
PART_BYTES = (
    1 << 30
)  # of packed weights in one call: between two, this thread waits for the interpreter
KV_TYPES = {
    "f16": "LW_F16",
    "f32": "LW_F32",
    "int8": "LW_I8",
    "k8v4": "LW_I8_I4",
    "q4": "LW_I4",
}


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What the library says about a loaded model; the fields are those of ``lw_model_info``."""

    isa: str
    packed_bytes: int
    matrix_bytes: int
    matrix_weights: int
    layer_weights: int
    held_weights: int
    expert_bytes: int
    numerics: int


@dataclass(frozen=True, slots=True)
class KvLayout:
    """Which layers share the blocks of a KV cache: those of a group, which have one window."""

    block_bytes: int  # of the layers of one group
    windows: tuple[int | None, ...]  # of each group; None = a token sees all before it
    state_bytes: int = 0  # of one sequence; 0 where no layer keeps a state
    guess_bytes: int = 0  # more for each guess of one step that it may have

    def place_bytes(self, max_guesses: int) -> int:
        """What the state of one sequence takes, with so many guesses."""
        return self.state_bytes + max_guesses * self.guess_bytes


class Closable(Protocol):
    """Whatever reads a model's weights and must be closed before them: its sessions."""

    def close(self) -> None:
        """Free everything; a second call does nothing."""


class Model:
    """An immutable loaded model, which sessions of any thread may share; close it when done."""

    config: ModelConfig
    info: ModelInfo
    name: str
    weights: str  # type of most matrices as held in memory, such as "q4_0"
    parts: str  # what else was asked for, such as "head=q4_0"; "" for nothing
    placement: Placement | None  # of its sessions too; None: the system chooses
    files: tuple[Path, ...]  # what it was read from; a directory stands for its contents
    tower: "Model | None"  # makes rows of pictures for this one, which closes it
    vision: VisionFacts | None
    head: AttachedHead | None

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        isa: str | None,
        threads: int,
        placement: Placement | None = None,
    ) -> None:
        self._native = native()
        self._mapped: list[Any] = []  # views of the file that the native model reads
        self._sessions: weakref.WeakSet[Closable] = weakref.WeakSet()
        self.config = checkpoint.config
        self.name, self.files = checkpoint.name, checkpoint.files
        self.weights, self.parts = checkpoint.weights_name, ""
        self.placement = placement
        self.tower, self.vision = None, checkpoint.vision
        self.head = checkpoint.head
        self._handle = _create(self._native, self.config, isa, threads)

    @classmethod
    def load(
        cls,
        checkpoint: Checkpoint,
        *,
        weights: str | None = None,
        isa: str | None = None,
        threads: int = 1,
        load: str = "auto",
        placement: Placement | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Self:
        """Load all tensors of ``checkpoint``: packed ones by the way ``load``, others by packing.

        The pages of a tensor are given back as soon as they are not needed. ``weights`` names the
        type to hold matrices in (see :func:`target_types`), ``isa`` the level to use instead of the
        best one, ``load`` is auto, map or copy; ``placement`` says where the weights lie and the
        model's sessions run. ``progress`` is told (bytes done, bytes in all), first when only
        native work is left to do.
        """
        targets = target_types(checkpoint, weights)
        warn_of_kept(checkpoint, weights)
        way = _load_way(checkpoint, load, placement)
        model = cls(checkpoint, isa=isa, threads=threads, placement=placement)
        guard_mappings()
        try:
            model._place()
            model._say_what_is_repacked(checkpoint)
            total = sum(tensor.n_bytes for tensor in checkpoint.tensors)
            done = 0
            if progress:
                progress(done, total)
            for part, part_targets in _parts(checkpoint.tensors, targets):
                if part[0].packing is not None:
                    model._load_packed(checkpoint, part, way)
                else:
                    model._load_tensor(checkpoint, part[0], part_targets[0])
                    part[0].release()
                done += sum(tensor.n_bytes for tensor in part)
                if progress:
                    progress(done, total)
            if changed := changed_files(checkpoint.files):
                raise ModelFileError(
                    f"{', '.join(changed)}: changed while it was loaded; replace model files by"
                    " rename, never in place, and start again"
                )
            model._native.check(model._native.lib.lw_model_finish(model._handle))
            model.info = model._describe()
            if isa is not None and model.info.isa != isa:
                raise NativeError(f"isa {isa!r} was asked for and {model.info.isa!r} is used", -1)
        except BaseException:
            model.close()
            raise
        model.weights = held_name(checkpoint, weights)
        model.parts = weights if weights is not None and "=" in weights else ""
        return model

    def _place(self) -> None:
        if self.placement is None or self.placement.numa == "off":
            return
        lib, nodes = self._native.lib, self.placement.nodes
        way = getattr(lib, NUMA_WAYS[self.placement.numa])
        self._native.check(lib.lw_model_place(self._handle, way, nodes, len(nodes)))

    def _load_tensor(self, checkpoint: Checkpoint, tensor: Tensor, target: TensorType) -> None:
        ffi, lib = self._native.ffi, self._native.lib
        table = ffi.NULL if tensor.table is None else ffi.from_buffer("int8_t[]", tensor.table)
        with ffi.from_buffer("char[]", tensor.data) as data:
            struct = ffi.new(
                "lw_tensor*",
                {
                    "data": data,
                    "n_bytes": tensor.n_bytes,
                    "type": int(tensor.type),
                    "rows": tensor.rows,
                    "cols": tensor.cols,
                    "rope_heads": tensor.rope_heads,
                    "table": table,
                },
            )
            try:
                self._native.check(
                    lib.lw_model_load(
                        self._handle, int(tensor.role), tensor.layer, struct, int(target)
                    )
                )
            except NativeError as error:
                message = f"{checkpoint.path}: tensor {tensor.name}: {error}"
                raise NativeError(message, error.status) from None

    def _load_packed(self, checkpoint: Checkpoint, tensors: Sequence[Tensor], way: int) -> None:
        """Load packed tensors; views of those that the model reads where they lie are kept."""
        ffi, lib = self._native.ffi, self._native.lib
        structs = ffi.new("lw_packed_tensor[]", len(tensors))
        views, names = [], []
        for struct, tensor in zip(structs, tensors, strict=True):
            assert tensor.packing is not None
            views.append(ffi.from_buffer("char[]", tensor.data))
            names.append(ffi.new("char[]", tensor.name.encode()))
            struct.role, struct.layer, struct.type = tensor.role, tensor.layer, tensor.type
            struct.rows, struct.cols = tensor.rows, tensor.cols
            struct.data, struct.n_bytes, struct.name = views[-1], tensor.n_bytes, names[-1]
            struct.checksum = tensor.packing.checksum
            struct.layout = tensor.packing.layout.encode()[:15]
            if tensor.table is not None:
                ffi.memmove(struct.table, tensor.table, TABLE_BYTES)
        try:
            self._native.check(lib.lw_model_load_packed(self._handle, structs, len(tensors), way))
        except NativeError as error:
            for view in views:
                ffi.release(view)
            message = f"{checkpoint.path}: tensor {error}"
            if error.status == lib.LW_ERR_FORMAT:
                raise ModelFileError(message) from None
            raise NativeError(message, error.status) from None
        for tensor, view in zip(tensors, views, strict=True):
            if way == lib.LW_LOAD_MAP and not is_vector(tensor.role) and self._reads(tensor):
                self._mapped.append(view)
            else:
                ffi.release(view)
                tensor.release()

    def _reads(self, tensor: Tensor) -> bool:
        """Whether a packed matrix lies as this model's level reads it."""
        assert tensor.packing is not None
        layout = tensor.packing.layout.encode()
        lib = self._native.lib
        return bool(lib.lw_model_reads_layout(self._handle, int(tensor.type), layout))

    def _say_what_is_repacked(self, checkpoint: Checkpoint) -> None:
        packed = [t for t in checkpoint.tensors if not is_vector(t.role) and t.packing is not None]
        others = [tensor.packing for tensor in packed if not self._reads(tensor)]
        if others and others[0] is not None:
            logger.warning(
                "%s: %d of %d matrices have layout %s and are repacked for %s; lanewise pack on"
                " this machine makes a file that needs no repacking",
                *(checkpoint.path, len(others), len(packed), others[0].layout),
                self._describe().isa,
            )

    def packed(self, tensor: Tensor) -> Tensor:
        """The packed form of one tensor, with its name in packed files; valid until close."""
        ffi, lib = self._native.ffi, self._native.lib
        out = ffi.new("lw_packed_tensor*")
        self._native.check(lib.lw_model_packed(self.handle, int(tensor.role), tensor.layer, out))
        return Tensor(
            name=TENSOR_NAMES[tensor.role][HF].format(tensor.layer),
            role=tensor.role,
            layer=tensor.layer,
            type=TensorType(out.type),
            rows=out.rows,
            cols=out.cols,
            stored=memoryview(ffi.buffer(out.data, out.n_bytes)),
            rope_heads=0,
            packing=Packing(
                self._native.text(out.layout), out.checksum, int(self._native.lib.LW_NUMERICS)
            ),
            table=bytes(ffi.buffer(out.table)) if has_table(TensorType(out.type)) else None,
        )

    def _describe(self) -> ModelInfo:
        info = self._native.ffi.new("lw_model_info*")
        self._native.check(self._native.lib.lw_model_describe(self._handle, info))
        return ModelInfo(
            isa=self._native.text(info.isa),
            packed_bytes=info.packed_bytes,
            matrix_bytes=info.matrix_bytes,
            matrix_weights=info.matrix_weights,
            layer_weights=info.layer_weights,
            held_weights=info.held_weights,
            expert_bytes=info.expert_bytes,
            numerics=info.numerics,
        )

    def kv_layout(self, kv_type: str, groups_by_window: bool = False) -> KvLayout:
        """Which layers share blocks of the KV cache, and what a block takes."""
        out = self._native.ffi.new("lw_kv_layout*")
        layout = self._native.lib.lw_model_kv_layout
        self._native.check(layout(self.handle, kv_type_id(kv_type), groups_by_window, out))
        windows = tuple(window or None for window in out.windows[0 : out.n_groups])
        return KvLayout(out.block_bytes, windows, out.state_bytes, out.guess_bytes)

    @property
    def handle(self) -> Any:
        """The native model, for sessions only."""
        if self._handle == self._native.ffi.NULL:
            raise ValueError("the model is closed")
        return self._handle

    def opened(self, session: Closable) -> None:
        """Remember a session, which must not outlive the weights it reads."""
        self._sessions.add(session)

    def close(self) -> None:
        """Free the weights; sessions that are still open are closed first."""
        if self.tower is not None:
            self.tower.close()
        for session in list(self._sessions):
            session.close()
        handle, self._handle = self._handle, self._native.ffi.NULL
        self._native.lib.lw_model_close(handle)
        while self._mapped:
            self._native.ffi.release(self._mapped.pop())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def kv_type_id(kv_type: str) -> int:
    """The ``lw_type`` of a KV cache type's name."""
    if kv_type not in KV_TYPES:
        raise ValueError(f"kv_type {kv_type!r} is unknown; accepted: {', '.join(KV_TYPES)}")
    return int(getattr(native().lib, KV_TYPES[kv_type]))


def resolve_kv_type(kv_type: str, weights: str) -> str:
    """The type ``auto`` stands for: f32 beside f32 matrices, f16 beside all others."""
    if kv_type != "auto":
        return kv_type
    return "f32" if weights == "f32" else "f16"


def _parts(
    tensors: Sequence[Tensor], targets: Sequence[TensorType]
) -> Iterator[tuple[Sequence[Tensor], Sequence[TensorType]]]:
    """What is loaded by one native call: one tensor, or packed ones up to PART_BYTES.

    While the call runs, other threads have the interpreter; between calls they compete for it.
    """
    start = 0
    while start < len(tensors):
        end, size = start + 1, tensors[start].n_bytes
        while (
            end < len(tensors)
            and tensors[start].packing is not None
            and tensors[end].packing is not None
            and size + tensors[end].n_bytes <= PART_BYTES
        ):
            size += tensors[end].n_bytes
            end += 1
        yield tensors[start:end], targets[start:end]
        start = end


def _load_way(checkpoint: Checkpoint, load: str, placement: Placement | None) -> int:
    """The ``lw_load`` of packed weights; ``auto`` copies what would be read on small pages.

    It also copies what is to lie on certain nodes: pages of a file are where they were first read.
    """
    if load not in LOAD_WAYS:
        raise ValueError(f"load {load!r} is unknown; accepted: {', '.join(LOAD_WAYS)}")
    packings = [tensor.packing for tensor in checkpoint.tensors if tensor.packing is not None]
    if load == "map" and not packings:
        raise ModelFileError(
            f"{checkpoint.path}: load 'map' needs packed weights, which `lanewise pack` writes;"
            " accepted here: auto or copy"
        )
    check_numerics(checkpoint)
    lib = native().lib
    is_placed = placement is not None and placement.numa != "off"
    if load == "map" or (
        load == "auto" and packings and not is_placed and checkpoint.is_on_huge_pages()
    ):
        return int(lib.LW_LOAD_MAP)
    return int(lib.LW_LOAD_COPY)


def check_numerics(checkpoint: Checkpoint) -> None:
    """ModelFileError if tensors are packed for another version of the numeric contract."""
    packings = [tensor.packing for tensor in checkpoint.tensors if tensor.packing is not None]
    if not packings:
        return
    numerics = int(native().lib.LW_NUMERICS)
    for packing in packings:
        if packing.numerics != numerics:
            raise ModelFileError(
                f"{checkpoint.path}: packed for version {packing.numerics} of the numeric contract;"
                f" this version computes by {numerics}: make it again from the original with"
                f" `lanewise pack ORIGINAL --output {checkpoint.path}`"
            )


def _create(clib: Native, config: ModelConfig, isa: str | None, threads: int) -> Any:
    ffi = clib.ffi
    program = NativeProgram(clib, config)
    name = ffi.NULL if isa is None else ffi.new("char[]", isa.encode())
    out = ffi.new("lw_model**")
    clib.check(clib.lib.lw_model_create(program.struct, name, threads, out))
    return out[0]
