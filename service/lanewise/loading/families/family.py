"""What a family is: how its files describe a program, and what their tensors are called."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lanewise.loading.json_files import Fields
from lanewise.loading.model_file import ModelFile
from lanewise.loading.program import ModelConfig
from lanewise.loading.rearranging import Rearranged

# What a file of either kind says.
Program = Callable[[ModelFile], ModelConfig]
# Gives tensors the names that TENSOR_NAMES has for the kind of file.
Rename = Callable[[Rearranged, ModelConfig], None]
# Gives tensors the values that config.json says.
Revalue = Callable[[Fields, Rearranged, ModelConfig], None]


def as_they_are(tensors: Rearranged, config: ModelConfig) -> None:
    """Leave tensors that have the usual names already."""


def valued_as_they_are(fields: Fields, tensors: Rearranged, config: ModelConfig) -> None:
    """Leave tensors that have the model's values already."""


@dataclass(frozen=True)
class Family:
    """One model family."""

    name: str  # model_type in config.json
    program: Program
    gguf: str | None = None  # general.architecture; None: no GGUF file says that it is of it
    hf_tensors: Rename = as_they_are
    hf_values: Revalue = valued_as_they_are  # of tensors that hf_tensors has named
    # Changes rows of lora_B, named by hf_tensors, as the rows of their matrices were changed.
    lora_values: Rename = as_they_are
    hf_inputs_first: bool = False  # matrices of directories are [inputs, outputs], lora_B is not
    gguf_tensors: Rename = as_they_are
    # Q and K rows of such files alternate the halves of each head.
    gguf_interleaved_rope: bool = False
    hf_interleaved_rope: bool = False
    # GGUF files of it have the usual names and parts, so that we can write one.
    gguf_is_usual: bool = True
    harmless: tuple[str, ...] = ()  # what its reference reads, and no answer of ours depends on
    has_mtp: bool = False  # files may have a head that predicts further tokens (mtp.py)
    own_quantizations: tuple[str, ...] = ()  # quant_methods whose tensors hf_tensors reads itself
