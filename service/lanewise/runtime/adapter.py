"""LoRA adapters in the native library's memory."""

import hashlib
from typing import Any, Self

from lanewise.loading.adapters.lora import AdaptedMatrix, AdapterFiles, AdapterTensor
from lanewise.loading.base.checkpoint import ModelFileError
from lanewise.native.library import Native, NativeError, native
from lanewise.runtime.guards import guard_mappings
from lanewise.runtime.model import Model


class Adapter:
    """An immutable loaded adapter of one model; close it when no batch names it any more."""

    rank: int
    n_bytes: int  # of weights
    digest: bytes  # of the weights as they were loaded, 32 bytes

    def __init__(self, model: Model) -> None:
        self._native = native()
        self._handle = self._native.ffi.NULL
        out = self._native.ffi.new("lw_adapter**")
        self._native.check(self._native.lib.lw_adapter_create(model.handle, out))
        self._handle = out[0]

    @classmethod
    def load(cls, model: Model, files: AdapterFiles) -> Self:
        """Load all matrices of ``files``, which may be closed after it.

        Raises ModelFileError when weights are not finite, NativeError when the model cannot have
        adapters or memory is short.
        """
        adapter = cls(model)
        guard_mappings()
        digest = hashlib.sha256()
        try:
            for matrix in files.matrices:
                adapter._load(files, matrix)
                for tensor in (matrix.a, matrix.b):
                    told = (int(matrix.role), matrix.layer, float(matrix.scale), int(tensor.type))
                    digest.update(repr((*told, tensor.rows, tensor.cols)).encode())
                    digest.update(tensor.data)
        except BaseException:
            adapter.close()
            raise
        adapter.rank, adapter.digest = files.rank, digest.digest()
        adapter.n_bytes = int(adapter._native.lib.lw_adapter_bytes(adapter._handle))
        return adapter

    def _load(self, files: AdapterFiles, matrix: AdaptedMatrix) -> None:
        lib = self._native.lib
        a, b = (_struct(self._native, tensor) for tensor in (matrix.a, matrix.b))
        try:
            self._native.check(
                lib.lw_adapter_load(
                    self._handle, int(matrix.role), matrix.layer, a[0], b[0], matrix.scale
                )
            )
        except NativeError as error:
            message = f"{files.path}: {matrix.name}: {error}"
            if error.status in (lib.LW_ERR_FORMAT, lib.LW_ERR_NONFINITE):
                raise ModelFileError(message) from None
            raise NativeError(message, error.status) from None
        finally:
            for _, view in (a, b):
                self._native.ffi.release(view)

    @property
    def handle(self) -> Any:
        """The native adapter, for sessions only."""
        if self._handle == self._native.ffi.NULL:
            raise ValueError("the adapter is closed")
        return self._handle

    def close(self) -> None:
        """Free the weights; closing twice is harmless."""
        handle, self._handle = self._handle, self._native.ffi.NULL
        self._native.lib.lw_adapter_close(handle)


def _struct(native: Native, tensor: AdapterTensor) -> tuple[Any, Any]:
    """A ``lw_tensor`` and the view of its data, which must live as long."""
    view = native.ffi.from_buffer("char[]", tensor.data)
    struct = native.ffi.new(
        "lw_tensor*",
        {
            "data": view,
            "n_bytes": len(view),
            "type": int(tensor.type),
            "rows": tensor.rows,
            "cols": tensor.cols,
        },
    )
    return struct, view
