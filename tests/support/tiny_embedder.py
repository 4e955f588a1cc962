"""A tiny random BERT as a directory of sentence-transformers; run as a script it writes one."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from encoder_models import encoder_model
from encoder_tokenizers import word_piece
from family_models import write_model

DIMS, LIMIT = 16, 40
PROMPTS = {"query": "query ", "document": ""}
VOCAB_SIZE = 250


def modules_of(*kinds: str) -> list[dict[str, Any]]:
    """What modules.json lists: the first module in the folder itself, each other in its own."""
    return [
        {
            "idx": index,
            "name": str(index),
            "path": f"{index}_{kind}" if index else "",
            "type": f"sentence_transformers.models.{kind}",
        }
        for index, kind in enumerate(kinds)
    ]


def write_files(folder: Path, files: Mapping[str, Any]) -> Path:
    """Write JSON files by their names in a directory, and the folders that they are in."""
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content))
    return folder


def write_embedder(folder: Path) -> Path:
    """Write a BERT with a mean, a dense head and length 1; return its folder."""
    write_model(encoder_model("bert"), folder)
    word_piece(size=VOCAB_SIZE).save(str(folder / "tokenizer.json"))
    dense = {"in_features": 48, "out_features": DIMS, "bias": False}
    files = {
        "modules.json": modules_of("Transformer", "Pooling", "Dense", "Normalize"),
        "1_Pooling/config.json": {"pooling_mode_mean_tokens": True},
        "2_Dense/config.json": dense,
        "sentence_bert_config.json": {"max_seq_length": LIMIT, "do_lower_case": False},
        "config_sentence_transformers.json": {"prompts": PROMPTS},
    }
    write_files(folder, files)
    weights = np.random.default_rng(1).standard_normal((DIMS, 48)).astype(np.float32)
    save_file({"linear.weight": weights}, folder / "2_Dense" / "model.safetensors")
    return folder


if __name__ == "__main__":
    write_embedder(Path(sys.argv[1]))
