"""What transformers answers about pictures: tests/support/seeing_models.py, drawn greedily.

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
from transformers import Idefics3ForConditionalGeneration
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parents[1] / "support"), str(HERE)]

from make_images import text_of  # noqa: E402

from pictures import picture  # noqa: E402
from seeing_models import END, PREPROCESSOR, tokenizer, write_seeing_model  # noqa: E402

N_TOKENS, AHEAD = 8, 0.02
CASES = [  # sizes of pictures, with seeds, and what is asked behind them
    ([(50, 40, 1)], "What is it?"),
    ([(50, 40, 2)], "What is it?"),
    ([(64, 20, 3), (30, 64, 4)], "Which one?"),
]


def answer(model: Any, pictures: list[tuple[int, int, int]], asked: str) -> dict[str, Any]:
    """The tokens of a prompt's answer, and how far each was ahead."""
    made = Idefics3ImageProcessorPil(**PREPROCESSOR)(
        [[picture(width, height, seed) for width, height, seed in pictures]],
        return_tensors="pt",
        return_row_col_info=True,
    )
    grids = zip(made["rows"][0], made["cols"][0], strict=True)
    images = "".join(text_of(rows, columns, 4) for rows, columns in grids)
    text = f"<|im_start|>User:{images}{asked}<end_of_utterance>\nAssistant:"
    ids = tokenizer().encode(text, add_special_tokens=False).ids
    drawn, ahead = [], []
    for _ in range(N_TOKENS):
        with torch.no_grad():
            logits = model(
                input_ids=torch.tensor([ids + drawn]),
                pixel_values=made["pixel_values"],
                pixel_attention_mask=made["pixel_attention_mask"],
            ).logits[0, -1]
        first, second = torch.topk(logits, 2).values.tolist()
        ahead.append(first - second)
        drawn.append(int(logits.argmax()))
        if drawn[-1] == END:
            break
    return {
        "pictures": pictures,
        "asked": asked,
        "n_prompt": len(ids),
        "tokens": drawn,
        "ahead": float(np.min(ahead)),
    }


def make() -> list[dict[str, Any]]:
    """All goldens."""
    with tempfile.TemporaryDirectory() as folder:
        model = Idefics3ForConditionalGeneration.from_pretrained(
            write_seeing_model(Path(folder, "model")),
            dtype=torch.float32,
            attn_implementation="eager",
        ).eval()
        made = []
        for pictures, asked in CASES:
            for more in range(40):
                moved = [(width, height, seed + 10 * more) for width, height, seed in pictures]
                found = answer(model, moved, asked)
                if found["ahead"] > AHEAD and len(set(found["tokens"])) > 1:
                    made.append(found)
                    break
    return made


if __name__ == "__main__":
    (HERE / "answers.json").write_text(json.dumps(make(), indent=1) + "\n")
