"""A model's file of either kind as a family reads it: fields by one name, and the tensors."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any

from lanewise.loading.checkpoint import Role
from lanewise.loading.json_files import Fields
from lanewise.loading.names import FIELD_NAMES, GGUF, PER_LAYER, TENSOR_NAMES, ZERO_SAYS_NOTHING
from lanewise.loading.sources import Sources


class ModelFile(Fields):
    """What a file says of a model: a config.json or GGUF metadata, and tensors by the file's names.

    A family names a field as config.json does, and FIELD_NAMES has the key of GGUF files; a name
    that begins with "{arch}." is a key that only GGUF files have. Errors name the file's own key.
    What a config.json leaves out means what the class of its config says (reference_fields.json);
    a ``default`` is what every other file means that does not say.
    """

    def __init__(self, fields: Fields, tensors: Sources, column: int) -> None:
        self.tensors = tensors
        self.column = column  # HF or GGUF, of TENSOR_NAMES
        self._arch = fields.text("general.architecture") if column == GGUF else ""
        self._keys: Mapping[str, str] = {}
        super().__init__(fields.values, fields.source, fields.meanings)
        self._read = fields._read  # what is read here is read there

    @property
    def is_gguf(self) -> bool:
        """Return whether this is a GGUF file, for what the two kinds do not say alike."""
        return self.column == GGUF

    def with_tensors(self, tensors: Sources) -> ModelFile:
        """Return the same fields with other tensors; what is read of one is read of both."""
        other = copy(self)
        other.tensors = tensors
        return other

    def called(self, keys: Mapping[str, str]) -> ModelFile:
        """Return the same file, where a config.json has ``keys`` of its own for fields' names.

        It may have the names, too, which say the same for other readers.
        """
        self._read.update(keys)
        other = copy(self)
        other._keys = {**self._keys, **keys}
        return other

    def called_if_set(self, keys: Mapping[str, str]) -> ModelFile:
        """Do so for the keys that the file has."""
        return self.called({name: key for name, key in keys.items() if self.is_set(key)})

    def key_of(self, name: str) -> str:
        """Return the key that a field has in this file."""
        if self.is_gguf:
            return FIELD_NAMES.get(name, name).replace("{arch}", self._arch)
        return self._keys.get(name, name)

    def meant(self, name: str) -> Any:
        """Return a value, or what is meant where the file leaves it out.

        A GGUF file may say a number of all layers once for each.
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
        """Return whether the file has a tensor."""
        return TENSOR_NAMES[role][self.column].format(layer) in self.tensors
