"""What transformers answers about pictures: tests/support/seeing_models.py, drawn greedily.

    python make_answers.py [--check]

A picture is taken only where the first token of each choice is ahead by far, so that sums in
another order do not change the answer.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parents[1] / "support"), str(HERE), str(HERE.parent / "towers")]

from make_images import OTHERS, gemma3, mistral3, qwen3_5, text_of  # noqa: E402
from make_towers import TOKEN_TYPES, inputs_of  # noqa: E402

from lanewise.text.images.families import family_of  # noqa: E402
from lanewise.text.images.reading import ImageReader  # noqa: E402
from pictures import encoded, picture  # noqa: E402
from seeing_models import SEEING, tokenizer, write_seeing_model  # noqa: E402
from tower_models import CASES, IMAGE  # noqa: E402

N_TOKENS, AHEAD = 8, 0.02
PICTURES = [  # widths and heights of pictures, with seeds, and what is asked behind them
    ([(50, 40, 1)], "What is it?"),
    ([(50, 40, 2)], "What is it?"),
    ([(64, 20, 3), (30, 64, 4)], "Which one?"),
]
Pictures = list[tuple[int, int, int]]
MAKERS = {"gemma3": gemma3, "mistral3": mistral3, "qwen3_5": qwen3_5}


def idefics3_inputs(pictures: Pictures) -> tuple[str, dict[str, torch.Tensor]]:
    """Text and pixels of images in tiles."""
    from transformers.models.idefics3.image_processing_pil_idefics3 import (
        Idefics3ImageProcessorPil,
    )

    made = Idefics3ImageProcessorPil(**SEEING["idefics3"].preprocessor)(
        [[picture(width, height, seed) for width, height, seed in pictures]],
        return_tensors="pt",
        return_row_col_info=True,
    )
    grids = zip(made["rows"][0], made["cols"][0], strict=True)
    names = "pixel_values", "pixel_attention_mask"
    text = "".join(text_of(rows, columns, 4) for rows, columns in grids)
    return text, {name: made[name] for name in names}


def other_inputs(family: str, pictures: Pictures) -> tuple[str, dict[str, torch.Tensor]]:
    """The same of the other families."""
    OTHERS[family].update(SEEING[family].preprocessor)
    for name in ("patch_size", "merge_size", "image_mean", "image_std"):
        OTHERS[family].pop(name, None)
    parts = [
        MAKERS[family]((width, height), seed).transpose(1, 2, 0) for width, height, seed in pictures
    ]
    texts = []
    for part in parts:
        rows, columns = part.shape[0] // 8, part.shape[1] // 8
        if family == "gemma3":
            texts.append(f"\n\n<start_of_image>{'<image_soft_token>' * 4}<end_of_image>\n\n")
        elif family == "qwen3_5":
            texts.append(f"<|vision_start|>{'<|image_pad|>' * rows * columns}<|vision_end|>")
        else:
            texts.append("[IMG_BREAK]".join(["[IMG]" * columns] * rows) + "[IMG_END]")
    return "".join(texts), inputs_of(family, [np.ascontiguousarray(part) for part in parts])


def our_inputs(family: str, pictures: Pictures) -> tuple[str, dict[str, torch.Tensor]]:
    """The same with our pixels, which are compared with those of transformers by themselves.

    LFM2-VL's processor needs torchvision, and differs by one.
    """
    vision, mark = CASES[family]["vision_config"], SEEING[family].names[IMAGE]
    facts = {"family": family.removesuffix("_large"), "patch_size": vision["patch_size"]}
    facts |= {"merge": 3 if "gemma4" in family else 2}
    if family == "gemma4_unified":  # a block is one patch
        facts |= {"patch_size": 3 * vision["patch_size"], "merge": 1}
    made = family_of(facts | {"preprocessor": SEEING[family].preprocessor}, mark)
    reader, text, parts = ImageReader(made, b"", 1 << 20), "", []
    for width, height, seed in pictures:
        data = encoded(picture(width, height, seed), "BMP")
        found, first = reader.read(data, "auto", wants_pixels=True), 0
        one = found["alone"].split(mark)
        for wide, high, n_tokens, _ in found["views"]:
            end = first + 3 * wide * high
            pixels = np.frombuffer(found["raw"][first:end], np.uint8)
            parts.append(pixels.reshape(high, wide, 3))
            one[0] += mark * n_tokens + one.pop(1)
            first = end
        text += one[0]
    return text, inputs_of(family, parts)


def answer(family: str, model: Any, pictures: Pictures, asked: str) -> dict[str, Any]:
    """The tokens of a prompt's answer, and how far each was ahead."""
    if family == "idefics3":
        images, inputs = idefics3_inputs(pictures)
        text = f"<|im_start|>User:{images}{asked}<end_of_utterance>\nAssistant:"
    else:
        make = other_inputs if family in MAKERS else our_inputs
        images, inputs = make(family, pictures)
        text = f"user:{images}{asked}\nassistant:"
    ids = tokenizer(family).encode(text, add_special_tokens=False).ids
    drawn: list[int] = []
    ahead, top = [], []
    for _ in range(N_TOKENS):
        read = torch.tensor([ids + drawn])
        kinds = {TOKEN_TYPES[family]: (read == IMAGE).long()} if family in TOKEN_TYPES else {}
        with torch.no_grad():
            logits = model(input_ids=read, **inputs, **kinds).logits[0, -1]
        top = top or torch.topk(torch.log_softmax(logits, 0), 5).values.tolist()
        first, second = torch.topk(logits, 2).values.tolist()
        ahead.append(first - second)
        drawn.append(int(logits.argmax()))
        if drawn[-1] == SEEING[family].end:
            break
    return {
        "family": family,
        "pictures": pictures,
        "asked": asked,
        "n_prompt": len(ids),
        "tokens": drawn,
        "ahead": float(np.min(ahead)),
        "top": [round(one, 5) for one in top],
    }


def make(family: str) -> list[dict[str, Any]]:
    """The goldens of one model."""
    kind = getattr(transformers, CASES[family]["architectures"][0])
    with tempfile.TemporaryDirectory() as folder:
        model = kind.from_pretrained(
            write_seeing_model(Path(folder, "model"), family),
            dtype=torch.float32,
            attn_implementation="eager",
        ).eval()
        made = []
        for pictures, asked in PICTURES:
            for more in range(40):
                moved = [(width, height, seed + 10 * more) for width, height, seed in pictures]
                found = answer(family, model, moved, asked)
                # Gemma 4's tiny model says one token again and again, with other probabilities.
                if found["ahead"] > AHEAD and (len(set(found["tokens"])) > 1 or "gemma4" in family):
                    made.append(found)
                    break
    return made


if __name__ == "__main__":
    made = [one for family in SEEING for one in make(family)]
    path = HERE / "answers.json"
    if "--check" not in sys.argv:
        path.write_text(json.dumps(made, indent=1) + "\n")
    elif [one["tokens"] for one in made] != [one["tokens"] for one in json.loads(path.read_text())]:
        raise SystemExit("answers.json: transformers answers otherwise now")
