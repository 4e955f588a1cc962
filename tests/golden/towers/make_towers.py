"""Makes the goldens of towers with transformers on torch: towers.json and rows.npz.

    python make_towers.py [--check] [name ...]

towers.json has config.json and the tensors as transformers writes them for the configs of
tests/support/tower_models.py; rows.npz the rows that it makes of pictures and the logits of texts
with one picture and with all. With --check nothing is written: what is committed must be what comes
out now.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from made_by_transformers import (  # noqa: E402
    Arrays,
    Record,
    loaded_by,
    make_or_check,
    written_by,
)
from tower_models import CASES, pictures, prompt_with  # noqa: E402

Floats = NDArray[np.float32]


def class_of(name: str) -> Any:
    """Return the class of a case's model."""
    return getattr(transformers, CASES[name]["architectures"][0])


def made(name: str, folder: Path) -> Any:
    """Return the model of a folder's config.json, with random weights."""
    return class_of(name)._from_config(transformers.AutoConfig.from_pretrained(folder))


def squares(parts: list[NDArray[np.uint8]]) -> dict[str, torch.Tensor]:
    """Return what Idefics3 reads of square pictures."""
    values = np.stack([part.transpose(2, 0, 1) for part in parts]).astype(np.float32)
    return {"pixel_values": torch.from_numpy((values / 255 - 0.5) / 0.5)[None]}


def golden(name: str) -> tuple[Record, Arrays]:
    """Return what transformers writes of a case, and what it computes."""
    record = written_by(lambda folder: made(name, folder), CASES[name])
    model = loaded_by(class_of(name), name, record)
    parts = pictures(name)
    arrays: Arrays = {}
    counts = []
    with torch.no_grad():
        for number, part in enumerate(parts):
            rows = model.model.get_image_features(**squares([part])).pooler_output[0].numpy()
            counts.append(len(rows))
            arrays[f"{name}/rows{number}"] = rows
        for n in (1, len(parts)):
            ids, _ = prompt_with(counts[:n])
            logits: Floats = (
                model(input_ids=torch.tensor([ids]), **squares(parts[:n])).logits[0].numpy()
            )
            arrays[f"{name}/logits{n}"] = logits[:, :: 1 if n == 1 else 8]
    largest = {key: float(np.abs(value).max()) for key, value in arrays.items()}
    print(name, {key: round(value, 2) for key, value in largest.items()})
    return record, arrays


if __name__ == "__main__":
    description = (__doc__ or "").splitlines()[0]
    make_or_check(description, HERE / "towers.json", HERE / "rows.npz", CASES, golden)
