"""What transformers makes of images: sizes, tiles, text and pixels. ``make golden`` runs it.

Images are those of ``tests/support/pictures.py``; of pixels there is a digest of all and a few
values, so that a failure tells how far off it is.
"""

import hashlib
import json
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "support"))

from pictures import picture  # noqa: E402

IDEFICS3 = {"size": {"longest_edge": 160}, "max_image_size": {"longest_edge": 32}}
Pixels = NDArray[np.uint8]
# Of these patches of 4 pixels are merged two by two.
SIDE = 8
OTHERS: dict[str, dict[str, Any]] = {
    "gemma3": {"size": {"height": 32, "width": 32}},
    "gemma4": {"max_soft_tokens": 70},
    "mistral3": {"size": {"longest_edge": 96}},
    "qwen3_5": {"size": {"shortest_edge": 1024, "longest_edge": 16384}},
}
N_SIZES, MOST = 40, 420
EDGES = [(1, 1), (1, 300), (300, 1), (32, 32), (31, 33), (160, 160), (161, 159), (199, 1), (2, 401)]


def sizes(count: int, seed: int) -> list[tuple[int, int]]:
    """Widths and heights: some at edges of the rules, others at random."""
    drawn = random.Random(seed)
    return EDGES + [(drawn.randint(1, MOST), drawn.randint(1, MOST)) for _ in range(count)]


def idefics3(size: tuple[int, int], seed: int, splits: bool) -> dict[str, Any]:
    """Tiles of one image as its processor makes them, before they become floats."""
    from transformers.models.idefics3.image_processing_pil_idefics3 import (
        Idefics3ImageProcessorPil,
    )

    made = Idefics3ImageProcessorPil(**IDEFICS3, do_image_splitting=splits)(
        picture(*size, seed), do_rescale=False, do_normalize=False, return_row_col_info=True
    )
    tiles = np.ascontiguousarray(np.asarray(made["pixel_values"][0]).transpose(0, 2, 3, 1))
    assert tiles.dtype == np.uint8
    return {
        "rows": made["rows"][0][0],
        "columns": made["cols"][0][0],
        "shape": list(tiles.shape),
        "digest": hashlib.sha256(tiles.tobytes()).hexdigest(),
    }


def gemma3(size: tuple[int, int], seed: int) -> Pixels:
    """One image as its processor makes it, before it becomes floats."""
    from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil

    made = Gemma3ImageProcessorPil(**OTHERS["gemma3"])(
        picture(*size, seed), do_rescale=False, do_normalize=False
    )
    return np.asarray(made["pixel_values"][0])


def gemma4(size: tuple[int, int], seed: int) -> Pixels:
    """The same of Gemma 4's, before it is cut to patches."""
    from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil

    processor = Gemma4ImageProcessorPil()
    resized = processor.aspect_ratio_preserving_resize(
        np.asarray(picture(*size, seed)).transpose(2, 0, 1),
        patch_size=4,
        max_patches=OTHERS["gemma4"]["max_soft_tokens"] * 4,
        pooling_kernel_size=2,
        resample=processor.resample,
    )
    return np.asarray(resized)


def mistral3(size: tuple[int, int], seed: int) -> Pixels:
    """The same of Pixtral's, whose patches are said as Mistral 3's processor says them: merged."""
    from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil

    made = PixtralImageProcessorPil(
        **OTHERS["mistral3"], patch_size={"height": SIDE, "width": SIDE}
    )(picture(*size, seed), do_rescale=False, do_normalize=False)
    return np.asarray(made["pixel_values"][0])


def qwen3_5(size: tuple[int, int], seed: int) -> Pixels:
    """The same of Qwen's, before it is cut to patches."""
    from transformers.image_utils import SizeDict
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import (
        Qwen2VLImageProcessorPil,
    )

    image = np.asarray(picture(*size, seed)).transpose(2, 0, 1)
    limits = SizeDict(**OTHERS["qwen3_5"]["size"])
    processor = Qwen2VLImageProcessorPil()
    return np.asarray(processor.resize(image, limits, processor.resample, factor=SIDE))


def other(family: str, size: tuple[int, int], seed: int) -> dict[str, Any]:
    """What one of these makes of an image; None in place of its shape: the image is refused."""
    make = {"gemma3": gemma3, "gemma4": gemma4, "mistral3": mistral3, "qwen3_5": qwen3_5}[family]
    case: dict[str, Any] = {"family": family, "size": list(size), "seed": seed, "shape": None}
    try:
        pixels = np.ascontiguousarray(make(size, seed).transpose(1, 2, 0))
    except ValueError:  # of a ratio
        return case
    assert pixels.dtype == np.uint8
    digest = hashlib.sha256(pixels.tobytes()).hexdigest()
    return case | {"shape": list(pixels.shape), "digest": digest}


def text_of(rows: int, columns: int, n_tokens: int) -> str:
    """What its processor writes for one image."""
    from types import SimpleNamespace

    from transformers.models.idefics3.processing_idefics3 import Idefics3Processor

    names = SimpleNamespace(
        fake_image_token="<fake_token_around_image>",
        image_token="<image>",
        global_image_tag="<global-img>",
        image_seq_len=n_tokens,
    )
    tiles = {"rows": [[rows]], "cols": [[columns]]}
    return str(Idefics3Processor.replace_image_token(names, tiles, 0))


def make() -> dict[str, Any]:
    """All goldens."""
    cases = [
        {"size": size, "seed": seed, "splits": seed % 4 != 3, **idefics3(size, seed, seed % 4 != 3)}
        for seed, size in enumerate(sizes(N_SIZES, 1))
    ]
    texts = [
        [rows, columns, text_of(rows, columns, 3)] for rows, columns in [(0, 0), (1, 2), (4, 3)]
    ]
    others = [
        other(family, size, seed) for family in OTHERS for seed, size in enumerate(sizes(20, 3))
    ]
    return {
        "idefics3": {"preprocessor": IDEFICS3, "cases": cases, "texts": texts},
        "others": {"preprocessors": OTHERS, "cases": others},
    }


if __name__ == "__main__":
    (HERE / "images.json").write_text(json.dumps(make(), indent=1) + "\n")
