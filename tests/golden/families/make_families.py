"""Makes the goldens of all families with transformers on torch: families.json and logits.npz.

    python make_families.py [--check] [name ...]

families.json has config.json and the tensors as transformers writes them for the configs of
tests/support/family_configs.py; logits.npz what it computes of the weights of family_models.py.
With --check nothing is written: what is committed must be what comes out now.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file
from transformers import AutoConfig, AutoModelForCausalLM, Mxfp4Config

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))

import family_models  # noqa: E402
from family_configs import CASES  # noqa: E402

PROMPT_TOKENS, NEW_TOKENS = 48, 32
# Beginning, both sides of windows and KV blocks, end.
POSITIONS = (0, 7, 8, 9, 31, 32, 33, 47)
LEAST_MARGIN = 2e-3  # between the two likeliest tokens, as a share of the largest logit
QUANTIZATION = "quantization_config"
DROPPED = ("transformers_version", "_name_or_path")

Floats = NDArray[np.float32]


def written_by_transformers(config: dict[str, Any]) -> dict[str, Any]:
    """Return config.json and the shapes of the tensors that transformers writes for a config."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "source")
        source.mkdir()
        plain = {key: value for key, value in config.items() if key != QUANTIZATION}
        (source / "config.json").write_text(json.dumps(plain))
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(source))
        model.to(torch.float32).save_pretrained(folder)
        saved = json.loads(Path(folder, "config.json").read_text())
        tensors = load_file(Path(folder, "model.safetensors"))
    shapes = {name: list(tensors[name].shape) for name in sorted(tensors)}
    saved = {key: value for key, value in saved.items() if key not in DROPPED}
    if QUANTIZATION in config:
        saved[QUANTIZATION] = config[QUANTIZATION]
        shapes = in_blocks(shapes)
    return {"config": saved, "tensors": shapes}


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


def load(name: str, written: dict[str, Any]) -> Any:
    """Return the model with the weights of its files."""
    tensors = {
        key: family_models.values_of(key, tuple(shape)) for key, shape in written["tensors"].items()
    }
    model = family_models.FamilyModel(name, written["config"], tensors)
    quantized = QUANTIZATION in model.config
    extra = {QUANTIZATION: Mxfp4Config(dequantize=True)} if quantized else {}
    with tempfile.TemporaryDirectory() as folder:
        path = family_models.write_model(model, Path(folder))
        loaded, report = AutoModelForCausalLM.from_pretrained(
            path,
            dtype=torch.float32,
            attn_implementation="eager",
            experts_implementation="eager",
            output_loading_info=True,
            **extra,
        )
    if wrong := {key: value for key, value in report.items() if value}:
        raise SystemExit(f"{name}: {wrong}")
    return loaded.eval()


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


def prompt_of(seed: int) -> list[int]:
    """Return token ids all over the vocabulary."""
    return [(37 * i + i * i // 5 + 61 * seed) % 251 + 2 for i in range(PROMPT_TOKENS)]


def golden(name: str, model: Any) -> dict[str, NDArray[Any]]:
    """Return a prompt after which no greedy choice is close, the logits and the choices."""
    for seed in range(50):
        prompt = prompt_of(seed)
        tokens, margin = greedy(model, prompt)
        if margin >= LEAST_MARGIN:
            break
    else:
        raise SystemExit(f"{name}: every prompt has close choices")
    logits = forward(model, prompt)[list(POSITIONS)]
    print(f"{name}: prompt {seed}, least margin {margin:.4f}, largest {np.abs(logits).max():.2f},"
          f" {len(set(tokens))} tokens")  # fmt: skip
    return {
        f"{name}/prompt": np.array(prompt, np.int32),
        f"{name}/positions": np.array(POSITIONS, np.int32),
        f"{name}/logits": logits,
        f"{name}/tokens": np.array(tokens, np.int32),
    }


def differences(
    name: str, record: dict[str, Any], old: dict[str, Any], arrays: dict[str, NDArray[Any]]
) -> list[str]:
    """Return how a case differs from what is committed; other versions may write further keys."""
    config, before = record["config"], old.get("config", {})
    changed = [key for key in config.keys() & before.keys() if config[key] != before[key]]
    wrong = [f"{name}: {key} is now {config[key]!r}" for key in changed]
    if record["tensors"] != old.get("tensors"):
        wrong.append(f"{name}: other tensors are written now")
    committed = np.load(HERE / "logits.npz")
    for key, value in arrays.items():
        if key not in committed or committed[key].shape != value.shape:
            wrong.append(f"{key}: not in logits.npz, or of another shape")
        elif np.abs(committed[key] - value).max() > 1e-5 * np.abs(value).max():
            wrong.append(f"{key}: differs by {np.abs(committed[key] - value).max():.2e}")
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    parser.add_argument("names", nargs="*", help="families to make anew; all unless given")
    arguments = parser.parse_args()
    path = HERE / "families.json"
    records = json.loads(path.read_text()) if path.exists() else {}
    arrays = dict(np.load(HERE / "logits.npz")) if records else {}
    wrong = []
    for name in arguments.names or CASES:
        record = written_by_transformers(CASES[name])
        found = golden(name, load(name, record))
        if arguments.check:
            wrong += differences(name, record, records.get(name, {}), found)
        records[name] = record
        arrays |= found
    if arguments.check:
        raise SystemExit("\n".join(wrong) if wrong else 0)
    np.savez_compressed(HERE / "logits.npz", **{key: arrays[key] for key in sorted(arrays)})
    lines = [f" {json.dumps(name)}: {json.dumps(records[name])}" for name in sorted(records)]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
