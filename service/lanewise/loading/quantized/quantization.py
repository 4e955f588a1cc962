"""The quantization settings in config.json of models that other programs quantized."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lanewise.loading.base.checkpoint import ModelFileError
from lanewise.loading.base.json_files import Fields, read_object

GPTQ, AWQ, COMPRESSED, AUTO_ROUND = "gptq", "awq", "compressed-tensors", "auto-round"
FP8, FBGEMM, MODELOPT, BITSANDBYTES = "fp8", "fbgemm_fp8", "modelopt", "bitsandbytes"
BITNET = "bitnet"
METHODS = (GPTQ, AWQ, COMPRESSED, AUTO_ROUND, FP8, FBGEMM, MODELOPT, BITSANDBYTES, BITNET)
MXFP4 = "mxfp4"  # of gpt-oss
# Older files for these settings, and the method that each one implies.
OWN_FILES = {
    "quantize_config.json": GPTQ,
    "quant_config.json": AWQ,
    "hf_quant_config.json": MODELOPT,
}
INNER = "quantization"  # of ModelOpt's own file
BITS = {GPTQ: (2, 3, 4, 8), AWQ: (4,), COMPRESSED: (4, 8)}
NVFP4 = "nvfp4-pack-quantized"
PACKED = "pack-quantized"
SCALED = ("float-quantized", "int-quantized", "naive-quantized", NVFP4)
# What tells its tensors apart, and needs no order or factor of the activations.
MODELOPT_ALGORITHMS = ("FP8", "NVFP4", "W4A16_NVFP4", "MIXED_PRECISION")
MIXED = "mixed-precision"
FORMS = (PACKED, *SCALED, MIXED)  # of compressed-tensors


@dataclass(frozen=True)
class Scheme:
    """How the linear layers of a checkpoint are packed."""

    method: str
    bits: int
    group: int  # inputs that share a scale; 0 = the whole row
    symmetric: bool  # by the config; GPTQ's zero points may say otherwise
    has_zeros: bool  # zero points are stored
    is_v2: bool = False  # GPTQ's zero points are stored without subtracting 1
    is_mixed: bool = False  # layers differ: bits and group follow from each one's tensors


@dataclass(frozen=True)
class Scaled:
    """Codes of eight bits, FP8 or integers, with scales of matrices, rows or blocks."""

    block: tuple[int, int] | None = None  # outputs and inputs of a block


@dataclass(frozen=True)
class FourBitFloats:
    """NF4 or FP4 of bitsandbytes."""


@dataclass(frozen=True)
class Ternary:
    """BitNet: weights of -1, 0 and 1 with one scale, codes of each token's activations."""

    is_online: bool  # stored are the weights as they were trained
    divides: bool  # the stored scale divides


Quantization = Scheme | Scaled | FourBitFloats | Ternary


def find_quantization(config: Fields, path: Path) -> Fields | None:
    """Return a directory's quantization settings, wherever they are; None if it has none."""
    if config.is_set("quantization_config"):
        found = config.values["quantization_config"]
        if not isinstance(found, Mapping):
            raise config.fail("quantization_config", "an object")
        return Fields(found, f"{config.source}: quantization_config")
    for name, method in OWN_FILES.items():
        if (path / name).is_file():
            found = read_object(path / name)
            inner = found.get(INNER)
            own = {"quant_method": method} | (inner if isinstance(inner, dict) else found)
            return Fields(own, str(path / name))
    return None


def read_quantization(settings: Fields) -> Quantization | None:
    """Return what quantization settings describe; ModelFileError if they are not supported.

    None: the family reads its own tensors.
    """
    method = settings.text("quant_method", default="none").lower()
    if method == MXFP4:
        return None
    if method.removeprefix("intel/") == AUTO_ROUND:
        return read_auto_round(settings)
    if method not in METHODS:
        raise ModelFileError(
            f"{settings.source}: quant_method {settings.values.get('quant_method')!r} is not"
            f" supported; accepted are {', '.join(METHODS)}, lanewise, and unquantized models"
        )
    if method == COMPRESSED:
        return read_compressed(settings)
    if method == BITNET:
        return read_ternary(settings)
    if method in (FP8, FBGEMM):
        return Scaled(read_block(settings, "weight_block_size"))
    if method == MODELOPT:
        return read_modelopt(settings)
    if method == BITSANDBYTES:
        if settings.flag("load_in_8bit", default=False):
            raise settings.fail("load_in_8bit", "false, and load_in_4bit true")
        return FourBitFloats()
    return read_packed(settings, method)


def read_modelopt(settings: Fields) -> Scaled:
    """Return the scheme of ModelOpt's settings: of all layers, or of each that they name."""
    layers: Any = settings.values.get("quantized_layers")
    found = layers.values() if isinstance(layers, Mapping) else ()
    named = [Fields(one, settings.source) for one in found if isinstance(one, Mapping)]
    for one in (settings, *named):
        if one.text("quant_algo", default="FP8").upper() not in MODELOPT_ALGORITHMS:
            raise one.fail("quant_algo", " or ".join(map(repr, MODELOPT_ALGORITHMS)))
    return Scaled()


def read_ternary(settings: Fields) -> Ternary:
    """Return how BitNet's matrices are stored."""
    kind = settings.text("linear_class", default="bitlinear")
    mode = settings.text("quantization_mode", default="offline")
    if kind not in ("bitlinear", "autobitlinear"):
        raise settings.fail("linear_class", "'bitlinear' or 'autobitlinear'")
    if mode not in ("offline", "online"):
        raise settings.fail("quantization_mode", "'offline' or 'online'")
    if settings.flag("use_rms_norm", default=False):
        raise settings.fail(
            "use_rms_norm", "false, as norms of what one matrix reads are not supported: it"
        )
    if settings.values.get("modules_to_not_convert") not in (None, [], ["lm_head"]):
        raise settings.fail("modules_to_not_convert", "null or ['lm_head']")
    return Ternary(kind == "autobitlinear" and mode == "online", kind == "bitlinear")


def read_auto_round(settings: Fields) -> Scheme:
    """Return the scheme of AutoRound's settings, which use GPTQ's or AWQ's packing."""
    form = settings.text("packing_format", default="auto_round:auto_gptq")
    method = {"auto_gptq": GPTQ, "gptq": GPTQ, "auto_awq": AWQ, "awq": AWQ}.get(
        form.removeprefix("auto_round:")
    )
    if method is None:
        raise settings.fail("packing_format", "'auto_round:auto_gptq' or 'auto_round:auto_awq'")
    return replace(read_packed(settings, method), is_mixed=settings.is_set("extra_config"))


def read_block(settings: Fields, key: str) -> tuple[int, int] | None:
    """Return the outputs and inputs of a block; None if the settings name no blocks."""
    if not settings.is_set(key):
        return None
    found = settings.values[key]
    if not (
        isinstance(found, list) and len(found) == 2 and all(type(n) is int and n > 0 for n in found)
    ):
        raise settings.fail(key, "null or two positive whole numbers")
    return found[0], found[1]


def read_packed(settings: Fields, method: str) -> Scheme:
    """Return the scheme of settings of GPTQ or AWQ."""
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


def read_compressed(settings: Fields) -> Scheme | Scaled:
    """Return the scheme of compressed-tensors settings: of packed layers if there may be some."""
    form = settings.text("format", default="")
    if form not in FORMS:
        raise settings.fail("format", " or ".join(map(repr, FORMS)))
    groups: Any = settings.values.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        raise settings.fail("config_groups", "an object with groups")
    found = [read_compressed_group(settings, name, group) for name, group in groups.items()]
    packed = [scheme for scheme in found if isinstance(scheme, Scheme)]
    if form in SCALED or not packed:
        return next((scheme for scheme in found if isinstance(scheme, Scaled)), Scaled())
    return replace(packed[0], is_mixed=len(found) > 1)


def read_compressed_group(settings: Fields, name: str, group: Any) -> Scheme | Scaled:
    """Return the scheme of one of compressed-tensors' groups of layers."""
    weights = group.get("weights") if isinstance(group, Mapping) else None
    if not isinstance(weights, Mapping):
        raise settings.fail("config_groups", "groups with 'weights'")
    found = Fields(weights, f"{settings.source}: config_groups: {name}: weights")
    kind, bits = found.text("type", default="int"), found.integer("num_bits")
    form = group.get("format") or settings.text("format")
    if form == NVFP4:
        if bits != 4:
            raise found.fail("num_bits", f"4 in {NVFP4}")
        return Scaled()
    if kind == "float" or form in SCALED:
        if bits != 8:
            raise found.fail("num_bits", "8 where they are not packed")
        return Scaled(read_block(found, "block_structure"))
    if kind != "int":
        raise found.fail("type", "'int' or 'float'")
    if bits not in BITS[COMPRESSED]:
        raise found.fail("num_bits", _listed(COMPRESSED))
    strategy = found.text("strategy", default="")
    if strategy not in ("group", "channel"):
        raise found.fail("strategy", "'group' or 'channel'")
    size = read_group(found) if strategy == "group" else 0
    symmetric = found.flag("symmetric", default=True)
    return Scheme(COMPRESSED, bits, size, symmetric, has_zeros=not symmetric)


def read_group(settings: Fields, key: str | None = None) -> int:
    """Return the inputs that share a scale; 0 for -1, which means the whole row."""
    key = key or "group_size"
    if settings.values.get(key) == -1:
        return 0
    group = settings.integer(key)
    if group % 32:
        raise settings.fail(key, "-1 or a multiple of 32")
    return group


def _listed(method: str) -> str:
    return " or ".join(map(str, BITS[method]))
