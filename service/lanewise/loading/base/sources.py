"""Tensors of both kinds of file before they have a role in the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lanewise.loading.base.checkpoint import Converted, Packing
from lanewise.loading.base.formats import TensorType


@dataclass(frozen=True)
class SourceTensor:
    """A tensor of either kind of file; ``shape`` is row-major."""

    where: str  # the file's name, for errors
    shape: tuple[int, ...]
    type: TensorType | str  # a string if the file's dtype is unknown here
    data: memoryview | Converted
    release: Callable[[], None]
    packing: Packing | None = None
    table: bytes | None = None

    @property
    def n_bytes(self) -> int:
        """Number of bytes, without computing them."""
        return self.data.nbytes

    def view(self) -> memoryview:
        """Return the bytes."""
        return self.data if isinstance(self.data, memoryview) else self.data.view()


Sources = Mapping[str, SourceTensor]
