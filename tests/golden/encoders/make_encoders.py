"""Makes the goldens of encoders with transformers on torch: encoders.json and results.npz.

    python make_encoders.py [--check] [name ...]

encoders.json has config.json and the tensors as transformers writes them for the configs of
tests/data/configs; results.npz what it computes of the weights of family_models.py:
the scores of classifiers, of others the first, the mean and the last of each text's rows. With
--check nothing is written: what is committed must be what comes out now.
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

from encoder_models import LENGTHS, texts_of, types_of  # noqa: E402
from made_by_transformers import (  # noqa: E402
    Arrays,
    Record,
    loaded_by,
    make_or_check,
    written_by,
)
from published_configs import ENCODERS  # noqa: E402


def results(name: str, model: Any) -> NDArray[np.float32]:
    """Return [texts][3][hidden size], or a classifier's scores [texts][labels]."""
    found = []
    for text, types in zip(texts_of(), types_of(ENCODERS[name]), strict=True):
        given = {"input_ids": torch.tensor(text[None].astype(np.int64))}
        if ENCODERS[name].get("type_vocab_size", 1) > 1:
            given["token_type_ids"] = torch.tensor(types[None].astype(np.int64))
        with torch.no_grad():
            out = model(**given)
        if hasattr(out, "logits"):
            found.append(out.logits[0].numpy())
        else:
            rows = out.last_hidden_state[0]
            found.append(torch.stack([rows[0], rows.mean(0), rows[-1]]).numpy())
    return np.stack(found)


def golden(name: str) -> tuple[Record, Arrays]:
    """Return what transformers writes of a case, and its results."""
    kind = getattr(transformers, ENCODERS[name]["architectures"][0])
    record = written_by(
        lambda folder: kind(transformers.AutoConfig.from_pretrained(folder)), ENCODERS[name]
    )
    found = results(name, loaded_by(kind, name, record))
    print(f"{name}: largest of {len(LENGTHS)} texts {np.abs(found).max():.2f}")
    return record, {name: found}


if __name__ == "__main__":
    description = (__doc__ or "").splitlines()[0]
    make_or_check(description, HERE / "encoders.json", HERE / "results.npz", ENCODERS, golden)
