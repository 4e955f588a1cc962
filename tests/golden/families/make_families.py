"""Makes the goldens of all families with transformers on torch: families.json and logits.npz.

    python make_families.py [--check] [name ...]

families.json has config.json and the tensors as transformers writes them for the configs of
tests/data/configs; logits.npz what it computes of the weights of family_models.py.
With --check nothing is written: what is committed must be what comes out now.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from transformers import AutoConfig, AutoModelForCausalLM, Mxfp4Config

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))
os.environ["TORCHDYNAMO_DISABLE"] = "1"  # transformers compiles BitNet's rounding

from made_by_transformers import (  # noqa: E402
    Arrays,
    Record,
    loaded_by,
    make_or_check,
    written_by,
)
from published_configs import CASES, STAND_INS  # noqa: E402

PROMPT_TOKENS, NEW_TOKENS = 48, 32
# Beginning, both sides of windows and KV blocks, end.
POSITIONS = (0, 7, 8, 9, 31, 32, 33, 47)
MIN_MARGIN = 2e-3  # between the two likeliest tokens, as a share of the largest logit
NEAR_HALF = 2e-5  # of a code, which errors of float32 do not reach
QUANTIZATION = "quantization_config"

Floats = NDArray[np.float32]


def class_of(config: dict[str, Any]) -> Any:
    """Return the class that a config names: not all text models of others are found by theirs.

    A family that transformers reads as another's (InternLM 3: Llama) has no class of its name.
    """
    return getattr(transformers, config["architectures"][0], AutoModelForCausalLM)


def made(folder: Path) -> Any:
    """Return the model of a folder's config.json, with random weights."""
    config = AutoConfig.from_pretrained(folder)
    kind = class_of(json.loads(Path(folder, "config.json").read_text()))
    return kind.from_config(config) if kind is AutoModelForCausalLM else kind._from_config(config)


def written(config: dict[str, Any]) -> Record:
    """Return config.json and the shapes of the tensors that transformers writes for a config."""
    plain = {key: value for key, value in config.items() if key != QUANTIZATION}
    record = written_by(made, plain)
    if QUANTIZATION in config:
        record["config"][QUANTIZATION] = config[QUANTIZATION]
        make = in_blocks if is_mxfp4(config) else in_ternary
        record["tensors"] = make(record["tensors"])
    return record


def is_mxfp4(config: dict[str, Any]) -> bool:
    """Whether experts are stored as MXFP4."""
    return bool(config.get(QUANTIZATION, {}).get("quant_method") == "mxfp4")


def in_blocks(shapes: dict[str, list[int]]) -> dict[str, list[int]]:
    """Return the tensors with experts in MXFP4, which transformers reads but does not make here."""
    found = {}
    for name, shape in shapes.items():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            n, inputs, outputs = shape
            found[f"{name}_blocks"] = [n, outputs, inputs // 32, 16]
            found[f"{name}_scales"] = [n, outputs, inputs // 32]
        else:
            found[name] = shape
    return found


def in_ternary(shapes: dict[str, list[int]]) -> dict[str, list[int]]:
    """Return the tensors with layers' matrices as BitNet has them: four rows in a byte, a scale."""
    found = dict(shapes)
    for name, shape in shapes.items():
        if name.endswith("_proj.weight"):
            found |= {name: [shape[0] // 4, shape[1]], f"{name}_scale": [1]}
    return found


def load(name: str, record: Record) -> Any:
    """Return the model with the weights of its files."""
    stored = is_mxfp4(record["config"])
    extra: dict[str, Any] = {QUANTIZATION: Mxfp4Config(dequantize=True)} if stored else {}
    if record["config"].get("alibi"):  # Falcon's eager attention adds it twice, to scores and mask
        extra["attn_implementation"] = "sdpa"
    return loaded_by(
        class_of(record["config"]), name, record, experts_implementation="eager", **extra
    )


def forward(model: Any, tokens: list[int]) -> Floats:
    """Return the logits [position, vocabulary]."""
    with torch.no_grad():
        logits: Floats = model(torch.tensor([tokens]), use_cache=False).logits[0].float().numpy()
    return logits


def greedy(model: Any, prompt: list[int]) -> tuple[list[int], float]:
    """Return the likeliest tokens, one after the other, and the least margin between the first two.

    The whole text is run for every token.
    """
    tokens, margin = list(prompt), np.inf
    for _ in range(NEW_TOKENS):
        row = forward(model, tokens)[-1]
        second, first = np.sort(row)[-2:]
        margin = min(margin, float((first - second) / np.abs(row).max()))
        tokens.append(int(row.argmax()))
    return tokens[len(prompt) :], margin


def nearest_half(model: Any, tokens: list[int]) -> float:
    """Return how near to a half any activation of BitNet is, in codes; inf without BitNet.

    Where one is rounded to another code, logits differ more than float32 explains.
    """
    found = [np.inf]

    def look(module: Any, inputs: Any) -> None:
        x = inputs[0].double()
        codes = x * (127 / x.abs().amax(-1, keepdim=True).clamp(min=1e-5))
        found.append(float((codes - codes.floor() - 0.5).abs().min()))

    kinds = ("BitLinear", "AutoBitLinear")
    modules = [module for module in model.modules() if type(module).__name__ in kinds]
    hooks = [module.register_forward_pre_hook(look) for module in modules]
    forward(model, tokens)
    for hook in hooks:
        hook.remove()
    return min(found)


def prompt_of(seed: int) -> list[int]:
    """Return token ids all over the vocabulary."""
    return [(37 * i + i * i // 5 + 61 * seed) % 251 + 2 for i in range(PROMPT_TOKENS)]


def golden(name: str) -> tuple[Record, Arrays]:
    """Return what transformers writes of a case; a prompt, its logits and greedy choices after it.

    The prompt is one after which no choice is close.
    """
    record = written(STAND_INS.get(name, CASES[name]))
    model = load(name, record)
    if name in STAND_INS:
        record["config"] = CASES[name]
    for seed in range(400):
        prompt = prompt_of(seed)
        if nearest_half(model, prompt) < NEAR_HALF:
            continue
        tokens, margin = greedy(model, prompt)
        if margin >= MIN_MARGIN and nearest_half(model, prompt + tokens) >= NEAR_HALF / 3:
            break
    else:
        raise SystemExit(f"{name}: every prompt has close choices")
    logits = forward(model, prompt)[list(POSITIONS)]
    print(f"{name}: prompt {seed}, least margin {margin:.4f}, largest {np.abs(logits).max():.2f},"
          f" {len(set(tokens))} tokens")  # fmt: skip
    return record, {
        f"{name}/prompt": np.array(prompt, np.int32),
        f"{name}/positions": np.array(POSITIONS, np.int32),
        f"{name}/logits": logits,
        f"{name}/tokens": np.array(tokens, np.int32),
    }


if __name__ == "__main__":
    description = (__doc__ or "").splitlines()[0]
    make_or_check(description, HERE / "families.json", HERE / "logits.npz", CASES, golden)
