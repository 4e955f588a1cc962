"""What the scripts have in common that make goldens of tiny models with transformers on torch."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file

from family_models import model_of, write_model

Record = dict[str, Any]  # config.json and the tensors that transformers writes
Arrays = dict[str, NDArray[Any]]

DROPPED = ("transformers_version", "_name_or_path")
TOLERANCE = 1e-5  # between versions of torch


def written_by(make: Callable[[Path], Any], config: dict[str, Any]) -> Record:
    """Return config.json and the shapes of the tensors that transformers writes for a config.

    ``make`` returns the model of a folder with that config.json.
    """
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "source")
        source.mkdir()
        (source / "config.json").write_text(json.dumps(config))
        make(source).to(torch.float32).save_pretrained(folder)
        saved = json.loads(Path(folder, "config.json").read_text())
        tensors = load_file(Path(folder, "model.safetensors"))
    return {
        "config": {key: value for key, value in saved.items() if key not in DROPPED},
        "tensors": {name: list(tensors[name].shape) for name in sorted(tensors)},
    }


def loaded_by(kind: Any, name: str, written: Record, **options: Any) -> Any:
    """Return the model of a class of transformers with the weights of its files."""
    with tempfile.TemporaryDirectory() as folder:
        loaded, report = kind.from_pretrained(
            write_model(model_of(name, written), Path(folder)),
            dtype=torch.float32,
            output_loading_info=True,
            **({"attn_implementation": "eager"} | options),
        )
    if wrong := {key: value for key, value in report.items() if value}:
        raise SystemExit(f"{name}: {wrong}")
    return loaded.eval()


def differences(
    name: str, record: Record, old: Record, arrays: Arrays, committed: Arrays
) -> list[str]:
    """Return how a case differs from what is committed; other versions may write further keys."""
    config, before = record["config"], old.get("config", {})
    changed = [key for key in config.keys() & before.keys() if config[key] != before[key]]
    wrong = [f"{name}: {key} is now {config[key]!r}" for key in changed]
    if record["tensors"] != old.get("tensors"):
        wrong.append(f"{name}: other tensors are written now")
    for key, value in arrays.items():
        if key not in committed or committed[key].shape != value.shape:
            wrong.append(f"{key}: not committed, or of another shape")
        elif np.abs(committed[key] - value).max() > TOLERANCE * np.abs(value).max():
            wrong.append(f"{key}: differs by {np.abs(committed[key] - value).max():.2e}")
    return wrong


def make_or_check(
    description: str,
    to_json: Path,
    to_npz: Path,
    cases: Iterable[str],
    golden: Callable[[str], tuple[Record, Arrays]],
) -> None:
    """Make the files, of all cases or of those that are named, or with --check compare them."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    parser.add_argument("names", nargs="*", help="families to make anew; all unless given")
    arguments = parser.parse_args()
    records: dict[str, Record] = json.loads(to_json.read_text()) if to_json.exists() else {}
    arrays: Arrays = dict(np.load(to_npz)) if records else {}
    wrong = []
    for name in arguments.names or cases:
        record, found = golden(name)
        if arguments.check:
            wrong += differences(name, record, records.get(name, {}), found, arrays)
        records[name] = record
        arrays |= found
    if arguments.check:
        raise SystemExit("\n".join(wrong) if wrong else 0)
    np.savez_compressed(to_npz, **{key: arrays[key] for key in sorted(arrays)})
    lines = [f" {json.dumps(name)}: {json.dumps(records[name])}" for name in sorted(records)]
    to_json.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
