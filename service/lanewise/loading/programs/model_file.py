"""A model's file of either kind for its family: fields under one set of names, and tensors."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any

from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.json_files import Fields
from lanewise.loading.base.names import (
    FIELD_NAMES,
    GGUF,
    PER_LAYER,
    TENSOR_NAMES,
    ZERO_SAYS_NOTHING,
)
from lanewise.loading.base.sources import Sources


class ModelFile(Fields):
    """The fields (config.json or GGUF metadata) and tensors of a model's file.

    A family uses config.json's names. FIELD_NAMES has GGUF's keys for them; a name that begins with
    "{arch}." is a key of GGUF only. Errors name the file's own key. A field that a config.json
    omits has the default of transformers' config class (reference_fields.json); ``default`` is the
    meaning for all other files.
    """

    def __init__(self, fields: Fields, tensors: Sources, column: int) -> None:
        self.tensors = tensors
        self.column = column  # HF or GGUF: column of TENSOR_NAMES
        self._arch = fields.text("general.architecture") if column == GGUF else ""
        self._keys: Mapping[str, str] = {}
        super().__init__(fields.values, fields.source, fields.meanings)
        self._read = fields._read  # shared: a field read here counts as read there

    @property
    def is_gguf(self) -> bool:
        """Whether this is a GGUF file, for differences that no table covers."""
        return self.column == GGUF

    def with_tensors(self, tensors: Sources) -> ModelFile:
        """Return the same fields with other tensors; the record of fields read is shared."""
        other = copy(self)
        other.tensors = tensors
        return other

    def called(self, keys: Mapping[str, str]) -> ModelFile:
        """Return the same file with other config.json keys for some field names.

        The config may contain the usual names too, for other readers.
        """
        self._read.update(keys)
        other = copy(self)
        other._keys = {**self._keys, **keys}
        return other

    def called_if_set(self, keys: Mapping[str, str]) -> ModelFile:
        """As ``called``, for the keys that the file has."""
        return self.called({name: key for name, key in keys.items() if self.is_set(key)})

    def key_of(self, name: str) -> str:
        """Return the file's key for a field."""
        if self.is_gguf:
            return FIELD_NAMES.get(name, name).replace("{arch}", self._arch)
        return self._keys.get(name, name)

    def meant(self, name: str) -> Any:
        """Return a value, or its meaning if the file leaves it out.

        A GGUF file may give a value once for each layer; all must then be equal.
        """
        value = super().meant(name)
        if not self.is_gguf:
            return value
        if name in PER_LAYER and isinstance(value, list):
            if not value or any(one != value[0] for one in value):
                raise self.fail(name, "the same number for every layer")
            return value[0]
        is_zero = value == 0 and type(value) is not bool
        return None if is_zero and name in ZERO_SAYS_NOTHING else value

    def has(self, role: Role, layer: int = 0) -> bool:
        """Whether the file has the tensor of a role."""
        return TENSOR_NAMES[role][self.column].format(layer) in self.tensors
