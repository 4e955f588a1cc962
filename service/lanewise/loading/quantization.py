"""What a config.json says of weights that other programs quantized."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lanewise.loading.checkpoint import ModelFileError
from lanewise.loading.json_files import Fields, read_object

GPTQ, AWQ, COMPRESSED = "gptq", "awq", "compressed-tensors"
METHODS = (GPTQ, AWQ, COMPRESSED)
MXFP4 = "mxfp4"  # of gpt-oss
# Where the tools once wrote what is in config.json now, and which method such a file means.
OWN_FILES = {"quantize_config.json": GPTQ, "quant_config.json": AWQ}
BITS = {GPTQ: (4, 8), AWQ: (4,), COMPRESSED: (4, 8)}


@dataclass(frozen=True)
class Scheme:
    """How the linear layers of a checkpoint are packed."""

    method: str
    bits: int
    group: int  # inputs that share a scale; 0 = all of a row
    symmetric: bool  # as far as the config says: GPTQ's zero points have the last word
    has_zeros: bool  # zero points are stored
    is_v2: bool = False  # GPTQ's zero points are stored as they are, not less one


def find_quantization(config: Fields, path: Path) -> Fields | None:
    """Return the quantization settings of a directory, wherever they are; None if it has none."""
    if config.is_set("quantization_config"):
        found = config.values["quantization_config"]
        if not isinstance(found, Mapping):
            raise config.fail("quantization_config", "an object")
        return Fields(found, f"{config.source}: quantization_config")
    for name, method in OWN_FILES.items():
        if (path / name).is_file():
            own = {"quant_method": method} | read_object(path / name)
            return Fields(own, str(path / name))
    return None


def read_scheme(settings: Fields) -> Scheme | None:
    """Return the scheme that quantization settings describe; ModelFileError for other ones.

    None: the family itself knows what its tensors are made of.
    """
    method = settings.text("quant_method", default="none").lower()
    if method == MXFP4:
        return None
    if method not in METHODS:
        raise ModelFileError(
            f"{settings.source}: quant_method {settings.values.get('quant_method')!r} is not"
            f" supported; accepted are {', '.join(METHODS)}, lanewise, and unquantized models"
        )
    if method == COMPRESSED:
        return read_compressed(settings)
    bits = settings.integer("w_bit" if "w_bit" in settings.values else "bits")
    if bits not in BITS[method]:
        raise settings.fail("w_bit" if "w_bit" in settings.values else "bits", _listed(method))
    group = read_group(settings, "q_group_size" if "q_group_size" in settings.values else None)
    if method == AWQ:
        if settings.text("version", default="gemm").lower() != "gemm":
            raise settings.fail("version", "'gemm'")
        if not settings.flag("zero_point", default=True):
            raise settings.fail("zero_point", "true")
        return Scheme(AWQ, bits, group, symmetric=False, has_zeros=True)
    form = settings.text("checkpoint_format", default=GPTQ).lower()
    if form not in ("gptq", "gptq_v2"):
        raise settings.fail("checkpoint_format", "'gptq' or 'gptq_v2'")
    symmetric = settings.flag("sym", default=True)
    return Scheme(GPTQ, bits, group, symmetric, has_zeros=True, is_v2=form == "gptq_v2")


def read_compressed(settings: Fields) -> Scheme:
    """Return the scheme of compressed-tensors settings, whose layers are all packed alike."""
    if settings.text("format", default="") != "pack-quantized":
        raise settings.fail("format", "'pack-quantized'")
    groups: Any = settings.values.get("config_groups")
    if not isinstance(groups, Mapping) or len(groups) != 1:
        raise settings.fail("config_groups", "an object with one group")
    ((name, group),) = groups.items()
    weights = group.get("weights") if isinstance(group, Mapping) else None
    if not isinstance(weights, Mapping):
        raise settings.fail("config_groups", "a group with 'weights'")
    found = Fields(weights, f"{settings.source}: config_groups: {name}: weights")
    if isinstance(group, Mapping) and group.get("input_activations"):
        raise ModelFileError(
            f"{settings.source}: config_groups: {name}: input_activations are quantized;"
            " accepted: null"
        )
    if found.text("type", default="int") != "int":
        raise found.fail("type", "'int'")
    bits = found.integer("num_bits")
    if bits not in BITS[COMPRESSED]:
        raise found.fail("num_bits", _listed(COMPRESSED))
    strategy = found.text("strategy", default="")
    if strategy not in ("group", "channel"):
        raise found.fail("strategy", "'group' or 'channel'")
    size = read_group(found) if strategy == "group" else 0
    symmetric = found.flag("symmetric", default=True)
    return Scheme(COMPRESSED, bits, size, symmetric, has_zeros=not symmetric)


def read_group(settings: Fields, key: str | None = None) -> int:
    """Return the inputs that share a scale; 0 for -1, which means all of a row."""
    key = key or "group_size"
    if settings.values.get(key) == -1:
        return 0
    group = settings.integer(key)
    if group % 32:
        raise settings.fail(key, "-1 or a multiple of 32")
    return group


def _listed(method: str) -> str:
    return " or ".join(map(str, BITS[method]))
