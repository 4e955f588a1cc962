"""Makes the goldens of towers with transformers on torch: towers.json and rows.npz.

    python make_towers.py [--check] [name ...]

towers.json has config.json and the tensors as transformers writes them for the configs of
tests/support/tower_models.py; rows.npz the rows that it makes of pictures and the logits of texts
with one picture, with two and with all. With --check nothing is written: what is committed must be
what comes out now.
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
from tower_models import CASES, COUNTS, IMAGE, more_pictures, pictures, prompt_with  # noqa: E402

Floats = NDArray[np.float32]
# Of the preprocessors of Qwen, where no file says otherwise.
MEAN = np.array([0.48145466, 0.4578275, 0.40821073], np.float32)
STD = np.array([0.26862954, 0.26130258, 0.27577711], np.float32)
# What models call the argument that says which tokens are pictures'.
TOKEN_TYPES = {
    "gemma3": "token_type_ids",
    "gemma4": "mm_token_type_ids",
    "gemma4_large": "mm_token_type_ids",
    "gemma4_unified": "mm_token_type_ids",
    "qwen3_5": "mm_token_type_ids",
    "qwen3_vl": "mm_token_type_ids",
}


def class_of(name: str) -> Any:
    """Return the class of a case's model."""
    return getattr(transformers, CASES[name]["architectures"][0])


def made(name: str, folder: Path) -> Any:
    """Return the model of a folder's config.json, with random weights."""
    return class_of(name)._from_config(transformers.AutoConfig.from_pretrained(folder))


def inputs_of(name: str, parts: list[NDArray[np.uint8]]) -> dict[str, torch.Tensor]:
    """Return what a model reads of pictures."""
    if name.startswith("qwen"):
        return in_blocks(name, parts)
    if name == "lfm2_vl" or name.startswith("gemma4"):
        return in_rows(name, parts)
    if name == "mistral3":
        return padded(parts)
    found = squares(parts)
    return {"pixel_values": found["pixel_values"][0]} if name == "gemma3" else found


def in_rows(name: str, parts: list[NDArray[np.uint8]]) -> dict[str, torch.Tensor]:
    """Return what SigLIP 2 reads: patches row by row, colours last, zeros up to the most."""
    vision = CASES[name]["vision_config"]
    side = vision["patch_size"]
    if name == "gemma4_unified":  # a block is one patch
        side *= vision["pooling_kernel_size"]
    shapes = [(part.shape[0] // side, part.shape[1] // side) for part in parts]
    is_gemma = name.startswith("gemma4")
    most = max(height * width for height, width in shapes)
    found = np.zeros((len(parts), most, 3 * side * side), np.float32)
    mask = np.zeros((len(parts), most), np.int32)
    places = np.full((len(parts), most, 2), -1, np.int64)
    for number, (part, (height, width)) in enumerate(zip(parts, shapes, strict=True)):
        values = part.astype(np.float32) / 255
        if not is_gemma:
            values = (values - 0.5) / 0.5
        cut = values.reshape(height, side, width, side, 3).transpose(0, 2, 1, 3, 4)
        found[number, : height * width] = cut.reshape(height * width, -1)
        mask[number, : height * width] = 1
        y, x = np.indices((height, width))
        places[number, : height * width] = np.stack([x.ravel(), y.ravel()], 1)
    if is_gemma:
        return {
            "pixel_values": torch.from_numpy(found),
            "image_position_ids": torch.from_numpy(places),
        }
    return {
        "pixel_values": torch.from_numpy(found),
        "spatial_shapes": torch.tensor(shapes),
        "pixel_attention_mask": torch.from_numpy(mask),
    }


def padded(parts: list[NDArray[np.uint8]]) -> dict[str, torch.Tensor]:
    """Return what Pixtral reads: pictures with zeros to the right of them and below."""
    sizes = [part.shape[:2] for part in parts]
    found = np.zeros((len(parts), 3, *np.max(sizes, axis=0)), np.float32)
    for number, (part, (height, width)) in enumerate(zip(parts, sizes, strict=True)):
        values = (part.astype(np.float32) / 255 - MEAN) / STD
        found[number, :, :height, :width] = values.transpose(2, 0, 1)
    return {"pixel_values": torch.from_numpy(found), "image_sizes": torch.tensor(sizes)}


def in_blocks(name: str, parts: list[NDArray[np.uint8]]) -> dict[str, torch.Tensor]:
    """Return what Qwen reads: patches of two equal frames, in the order of merged blocks."""
    c = CASES[name]["vision_config"]
    side, merge, found, grids = c["patch_size"], c["spatial_merge_size"], [], []
    for part in parts:
        height, width = part.shape[0] // side, part.shape[1] // side
        values = ((part.astype(np.float32) / 255 - MEAN) / STD).transpose(2, 0, 1)
        cut = values.reshape(3, height // merge, merge, side, width // merge, merge, side)
        cut = np.repeat(cut.transpose(1, 4, 2, 5, 0, 3, 6)[:, :, :, :, :, None], 2, axis=5)
        found.append(cut.reshape(height * width, -1).astype(np.float32))
        grids.append([1, height, width])
    return {
        "pixel_values": torch.from_numpy(np.concatenate(found)),
        "image_grid_thw": torch.tensor(grids),
    }


def squares(parts: list[NDArray[np.uint8]]) -> dict[str, torch.Tensor]:
    """Return what Idefics3 reads of square pictures."""
    values = np.stack([part.transpose(2, 0, 1) for part in parts]).astype(np.float32)
    return {"pixel_values": torch.from_numpy((values / 255 - 0.5) / 0.5)[None]}


def rows_of(model: Any, name: str, part: NDArray[np.uint8]) -> Floats:
    """Return the rows of a picture, those of taps behind the others."""
    made_of = model.model.get_image_features(**inputs_of(name, [part]))
    taps = getattr(made_of, "deepstack_features", None) or []
    main = made_of.pooler_output
    main = main if torch.is_tensor(main) and name.startswith("gemma4") else main[0]
    rows: Floats = torch.cat([main, *(tap[0] for tap in taps)], 1).numpy()
    return rows


def golden(name: str) -> tuple[Record, Arrays]:
    """Return what transformers writes of a case, and what it computes."""
    record = written_by(lambda folder: made(name, folder), CASES[name])
    model = loaded_by(class_of(name), name, record)
    parts = pictures(name)
    arrays: Arrays = {}
    counts = []
    with torch.no_grad():
        for number, part in enumerate(parts):
            rows = rows_of(model, name, part)
            counts.append(len(rows))
            arrays[f"{name}/rows{number}"] = rows
        for number, part in enumerate(more_pictures(name)):
            arrays[f"{name}/more{number}"] = rows_of(model, name, part)[:, ::4]
        for n in COUNTS:
            ids, _ = prompt_with(counts[:n])
            kinds = (torch.tensor([ids]) == IMAGE).long()
            more = {TOKEN_TYPES[name]: kinds} if name in TOKEN_TYPES else {}
            read = inputs_of(name, parts[:n]) | more
            logits: Floats = model(input_ids=torch.tensor([ids]), **read).logits[0].numpy()
            arrays[f"{name}/logits{n}"] = logits[:, :: 1 if n == 1 else 8]
    largest = {key: float(np.abs(value).max()) for key, value in arrays.items()}
    print(name, {key: round(value, 2) for key, value in largest.items()})
    return record, arrays


if __name__ == "__main__":
    description = (__doc__ or "").splitlines()[0]
    make_or_check(description, HERE / "towers.json", HERE / "rows.npz", CASES, golden)
