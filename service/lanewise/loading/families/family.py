"""A family's description: how its files become a program and its tensors get usual names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lanewise.loading.base.json_files import Fields
from lanewise.loading.base.program import ModelConfig
from lanewise.loading.files.rearranging import Rearranged
from lanewise.loading.programs.model_file import ModelFile

# Reads a file of either kind.
Program = Callable[[ModelFile], ModelConfig]
# Renames tensors to the names of TENSOR_NAMES for the kind of file.
Rename = Callable[[Rearranged, ModelConfig], None]
# Applies config.json's factors to tensors.
Revalue = Callable[[Fields, Rearranged, ModelConfig], None]


def as_they_are(tensors: Rearranged, config: ModelConfig) -> None:
    """Do nothing: the tensors have the usual names."""


def valued_as_they_are(fields: Fields, tensors: Rearranged, config: ModelConfig) -> None:
    """Do nothing: the tensors have their final values."""


@dataclass(frozen=True)
class Family:
    """One model family."""

    name: str  # model_type in config.json
    program: Program
    gguf: str | None = None  # general.architecture; None: no GGUF file has its own
    hf_tensors: Rename = as_they_are
    hf_values: Revalue = valued_as_they_are  # after hf_tensors
    # Changes rows of lora_B, renamed by hf_tensors, as the rows of matrices were changed.
    lora_values: Rename = as_they_are
    hf_inputs_first: bool = False  # directories store matrices as [inputs, outputs]; not lora_B
    gguf_tensors: Rename = as_they_are
    # Rows of Q and K have the two dimensions of a RoPE pair side by side.
    gguf_interleaved_rope: bool = False
    hf_interleaved_rope: bool = False
    # GGUF files have the usual names and parts, so we can write one.
    gguf_is_usual: bool = True
    harmless: tuple[str, ...] = ()  # fields that its reference reads without effect on answers
    has_mtp: bool = False  # may have a multi-token prediction head (mtp.py)
    own_quantizations: tuple[str, ...] = ()  # quant_methods that hf_tensors reads itself
