"""Random LoRA adapters of tiny models as PEFT saves them, and the same added to the model."""

import itertools
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiny_models import TinyModel, Uniform

Floats = NDArray[np.float32]
MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def encode(values: Floats, dtype: str) -> bytes:
    """The bytes of values in a type of safetensors; bfloat16 by cutting their bits off."""
    if dtype == "BF16":
        return (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    return values.astype({"F32": np.float32, "F16": np.float16}[dtype]).tobytes()


def lora_tensors(
    model: TinyModel, *, rank: int, seed: int, modules: tuple[str, ...] = MODULES
) -> dict[str, Floats]:
    """A and B of the modules of all layers under PEFT's names; B is not zero as in a new one."""
    uniform = Uniform(1000 + seed)
    tensors: dict[str, Floats] = {}
    for name, weight in model.tensors.items():
        path = name.removesuffix(".weight")
        if not name.endswith(".weight") or path.rpartition(".")[2] not in modules:
            continue
        outputs, inputs = weight.shape
        a = uniform(rank, inputs, std=1.0 / math.sqrt(inputs))
        b = uniform(outputs, rank, std=0.6 / math.sqrt(rank))
        for part, matrix in (("A", a), ("B", b)):
            key = f"base_model.model.{path}.lora_{part}.weight"
            tensors[key] = np.round(matrix * 64) / np.float32(64)  # which every type holds
    return tensors


def lora_config(rank: int, alpha: float, **changes: Any) -> dict[str, Any]:
    """What PEFT 0.17 writes, as far as it has to do with Llama's matrices."""
    return {
        "alpha_pattern": {},
        "base_model_name_or_path": "tiny",
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
        "layer_replication": None,
        "layers_to_transform": None,
        "lora_alpha": alpha,
        "lora_bias": False,
        "lora_dropout": 0.05,
        "modules_to_save": None,
        "peft_type": "LORA",
        "r": rank,
        "rank_pattern": {},
        "target_modules": list(MODULES),
        "task_type": "CAUSAL_LM",
        "use_dora": False,
        "use_rslora": False,
        **changes,
    }


def write_adapter(
    directory: Path, tensors: dict[str, Floats], config: dict[str, Any], dtypes: str = "F32"
) -> Path:
    """Write an adapter's directory, its tensors in these types in turn, and return it."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    header: dict[str, Any] = {}
    data = b""
    for (name, values), kind in zip(tensors.items(), itertools.cycle(dtypes.split()), strict=False):
        raw = encode(values, kind)
        offsets = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": kind, "shape": values.shape, "data_offsets": offsets}
        data += raw
    text = json.dumps(header).encode()
    content = len(text).to_bytes(8, "little") + text + data
    (directory / "adapter_model.safetensors").write_bytes(content)
    return directory


def merged(
    model: TinyModel, tensors: dict[str, Floats], scale_of: Callable[[str], float]
) -> TinyModel:
    """The model with ``scale_of(module path) * B A`` added to its matrices, in float64."""
    changed = dict(model.tensors)
    for key, a in tensors.items():
        if ".lora_A." not in key:
            continue
        path = key.removeprefix("base_model.model.").partition(".lora_A.")[0]
        b = tensors[key.replace(".lora_A.", ".lora_B.")].astype(np.float64)
        delta = scale_of(path) * (b @ a.astype(np.float64))
        name = path + ".weight"
        changed[name] = (changed[name].astype(np.float64) + delta).astype(np.float32)
    return replace(model, tensors=changed)
