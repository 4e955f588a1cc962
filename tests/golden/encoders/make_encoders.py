"""Makes the goldens of encoders with transformers on torch: encoders.json and results.npz.

    python make_encoders.py [--check] [name ...]

encoders.json has config.json and the tensors as transformers writes them for the configs of
tests/support/encoder_configs.py; results.npz what it computes of the weights of family_models.py:
the scores of classifiers, of others the first, the mean and the last of each text's rows. With
--check nothing is written: what is committed must be what comes out now.
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
import transformers
from numpy.typing import NDArray
from safetensors.numpy import load_file

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))

import family_models  # noqa: E402
from encoder_configs import CASES  # noqa: E402
from encoder_models import LENGTHS, texts_of, types_of  # noqa: E402

DROPPED = ("transformers_version", "_name_or_path")
TOLERANCE = 1e-5  # between versions of torch


def written_by_transformers(config: dict[str, Any]) -> dict[str, Any]:
    """Return config.json and the shapes of the tensors that transformers writes for a config."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "source")
        source.mkdir()
        (source / "config.json").write_text(json.dumps(config))
        kind = getattr(transformers, config["architectures"][0])
        read = transformers.AutoConfig.from_pretrained(source)
        kind(read).to(torch.float32).save_pretrained(folder)
        saved = json.loads(Path(folder, "config.json").read_text())
        tensors = load_file(Path(folder, "model.safetensors"))
    shapes = {name: list(tensors[name].shape) for name in sorted(tensors)}
    return {
        "config": {key: value for key, value in saved.items() if key not in DROPPED},
        "tensors": shapes,
    }


def results(name: str, written: dict[str, Any]) -> NDArray[np.float32]:
    """Return [texts][3][hidden size], or a classifier's scores [texts][labels]."""
    tensors = {
        key: family_models.values_of(key, tuple(shape)) for key, shape in written["tensors"].items()
    }
    model = family_models.FamilyModel(name, written["config"], tensors)
    kind = getattr(transformers, CASES[name]["architectures"][0])
    with tempfile.TemporaryDirectory() as folder:
        path = family_models.write_model(model, Path(folder))
        loaded, report = kind.from_pretrained(
            path, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
        )
    if wrong := {key: value for key, value in report.items() if value}:
        raise SystemExit(f"{name}: {wrong}")
    loaded.eval()
    found = []
    for text, types in zip(texts_of(), types_of(CASES[name]), strict=True):
        given = {"input_ids": torch.tensor(text[None].astype(np.int64))}
        if CASES[name].get("type_vocab_size", 1) > 1:
            given["token_type_ids"] = torch.tensor(types[None].astype(np.int64))
        with torch.no_grad():
            out = loaded(**given)
        if hasattr(out, "logits"):
            found.append(out.logits[0].numpy())
        else:
            rows = out.last_hidden_state[0]
            found.append(torch.stack([rows[0], rows.mean(0), rows[-1]]).numpy())
    return np.stack(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    parser.add_argument("names", nargs="*", help="families to make anew; all unless given")
    arguments = parser.parse_args()
    path = HERE / "encoders.json"
    records = json.loads(path.read_text()) if path.exists() else {}
    arrays = dict(np.load(HERE / "results.npz")) if records else {}
    wrong = []
    for name in arguments.names or CASES:
        record = written_by_transformers(CASES[name])
        found = results(name, record)
        print(f"{name}: largest of {len(LENGTHS)} texts {np.abs(found).max():.2f}")
        if arguments.check:
            if record["tensors"] != records.get(name, {}).get("tensors"):
                wrong.append(f"{name}: other tensors are written now")
            elif np.abs(arrays[name] - found).max() > TOLERANCE * np.abs(found).max():
                wrong.append(f"{name}: differs by {np.abs(arrays[name] - found).max():.2e}")
        records[name], arrays[name] = record, found
    if arguments.check:
        raise SystemExit("\n".join(wrong) if wrong else 0)
    np.savez_compressed(HERE / "results.npz", **{key: arrays[key] for key in sorted(arrays)})
    lines = [f" {json.dumps(name)}: {json.dumps(records[name])}" for name in sorted(records)]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
