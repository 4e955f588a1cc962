"""Tiny random models of every family, as directories.

The weights come from a counter and the tensor's name, so that only logits have to be committed;
tests/golden/families has them, with the names and shapes of tensors that transformers writes.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from published_configs import CASES, VOCAB, Config

GOLDEN = Path(__file__).parents[1] / "golden" / "families"
# Of F32, which transformers computes as exactly as we do.
CASE_NAMES = tuple(
    name
    for name, config in CASES.items()
    if config.get("quantization_config", {}).get("quant_method", "bitnet") == "bitnet"
)

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class FamilyModel:
    """A model in memory: what transformers writes of it."""

    name: str
    config: Config
    tensors: Arrays


def values_of(name: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return a tensor's values: bits of a mixed counter, scaled by what the tensor is."""
    count = int(np.prod(shape))
    with np.errstate(over="ignore"):
        x = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        x += np.uint64(zlib.crc32(name.encode())) << np.uint64(20)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
        x ^= x >> np.uint64(31)
    if name.endswith("_blocks"):  # two codes of MXFP4 each
        return (x >> np.uint64(56)).astype(np.uint8).reshape(shape)
    if name.endswith("_scales"):  # from 2^-5 to 2^-3
        return (
            (np.uint64(122) + (x >> np.uint64(40)) % np.uint64(3)).astype(np.uint8).reshape(shape)
        )
    unit = ((x >> np.uint64(40)).astype(np.float64) - 2**23) / 2**23 * np.sqrt(3)
    return np.asarray(scaled(name, unit.reshape(shape)), np.float32)


def scaled(name: str, unit: NDArray[np.float64]) -> NDArray[np.float64]:
    """Scale values of deviation 1: norms around 1, biases, and matrices by their inputs."""
    # Those of encoders are around 1 too, as their goldens have them.
    is_bias = name.endswith("bias") and name.startswith(("model.", "transformer.", "gpt_neox."))
    if any(part in name for part in ("norm", ".ln_", "layer_scalar")) and not is_bias:
        return 1 + 0.2 * unit
    if name.endswith(("act_fn.beta", "act_fn.eps")):  # of xIELU, whose code has them
        return np.full_like(unit, 0.5 if name.endswith("beta") else -1e-6)
    if name.endswith(("_min", "_max")):  # what Gemma 4's towers clamp to
        return (1.2 if name.endswith("_max") else -1.2) + 0.1 * unit
    if "correction_bias" in name:
        return 0.05 * unit
    if unit.ndim == 1 or "bias" in name:
        return 0.5 * unit
    if "embed_tokens" in name:
        return 0.3 * unit  # so that a tied head does not repeat what it reads
    inputs_first = name.endswith(("experts.gate_up_proj", "experts.down_proj"))
    inputs = unit.shape[1 if inputs_first else -1]
    return unit * (1.5 / np.sqrt(inputs))


def family_model(name: str) -> FamilyModel:
    """Return a case's model, always the same bits."""
    return model_of(name, json.loads((GOLDEN / "families.json").read_text())[name])


def model_of(name: str, written: Mapping[str, Any]) -> FamilyModel:
    """Return a model of the config and the shapes of tensors that transformers writes."""
    tensors = {key: values_of(key, tuple(shape)) for key, shape in written["tensors"].items()}
    for key in [key for key in tensors if key.endswith(".tid2eid")]:
        tensors[key] = experts_of_tokens(tensors[key].shape, written["config"]["n_routed_experts"])
    for key in [key for key in tensors if key.endswith(".weight_scale")]:
        make_ternary(tensors, key.removesuffix("_scale"), written["config"])
    return FamilyModel(name, written["config"], tensors)


def experts_of_tokens(shape: tuple[int, ...], n: int) -> NDArray[np.int64]:
    """Return numbers of experts that a router looks up: different ones for each token."""
    token, place = np.arange(shape[0])[:, None], np.arange(shape[1])
    return np.asarray((token * token + token // 3 + place * (1 + token % (n - 1))) % n, np.int64)


def make_ternary(tensors: Arrays, name: str, config: Config) -> None:
    """Turn a matrix into codes of BitNet, four rows in a byte, with a scale that is exact."""
    thirds = np.floor(tensors[name] / np.abs(tensors[name]).max() * 1.5 + 1.5).clip(0, 2)
    shape = (4, tensors[name].shape[0], tensors[name].shape[1])
    codes = np.stack([np.roll(thirds, i, axis=1) for i in range(4)]).reshape(shape).astype(np.uint8)
    tensors[name] = sum(codes[i] << np.uint8(2 * i) for i in range(4)).astype(np.uint8)
    size = 2.0 ** -round(np.log2(np.sqrt(shape[2]) / 2))
    divides = config["quantization_config"].get("linear_class", "bitlinear") == "bitlinear"
    tensors[f"{name}_scale"] = np.array([1 / size if divides else 1.25 * size], np.float32)


def ternary_floats(tensors: Arrays) -> Arrays:
    """Return the tensors of BitNet with the products of codes and scales."""
    found = {name: array for name, array in tensors.items() if not name.endswith("weight_scale")}
    for name in found:
        if f"{name}_scale" in tensors:
            parts = [(found[name] >> np.uint8(2 * i) & np.uint8(3)) for i in range(4)]
            codes = np.concatenate(parts).astype(np.float32) - 1
            found[name] = codes * tensors[f"{name}_scale"]
    return found


def write_case(name: str, folder: Path, **changes: Any) -> Path:
    """Write a case's directory with the config that its makers publish, changed in some fields."""
    return write_model(family_model(name), folder, CASES[name] | changes)


def write_model(model: FamilyModel, folder: Path, config: Config | None = None) -> Path:
    """Write a Hugging Face directory, with a config.json other than transformers' if one is given.

    It has the tokenizer that every directory needs, with a token for each byte.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config or model.config))
    save_file(model.tensors, folder / "model.safetensors", metadata={"format": "pt"})
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    assert len(alphabet) == VOCAB
    tokenizer = Tokenizer(models.BPE({symbol: i for i, symbol in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder
