"""Write a tiny model that sees, and what is asked about images beside what transformers answers.

Run as a script, for clients in environments that have neither numpy nor Pillow: the model is in
``seeing`` below the folder that is given, the rest in ``asked.json``.
"""

import base64
import json
import sys
from pathlib import Path
from typing import Any

from pictures import png
from seeing_models import tokenizer, write_seeing_model

ANSWERS = Path(__file__).parents[1] / "golden" / "images" / "answers.json"


def asked_about(family: str) -> list[dict[str, Any]]:
    """Questions with images in base64, tokens of the prompt, and the text of the answer."""
    decode = tokenizer(family).decode
    return [
        {
            "images": [base64.b64encode(png(*one)).decode() for one in golden["pictures"]],
            "asked": golden["asked"],
            "n_prompt": golden["n_prompt"],
            "n_tokens": len(golden["tokens"]),
            "text": decode(golden["tokens"]),
        }
        for golden in json.loads(ANSWERS.read_text())
        if golden["family"] == family
    ]


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    write_seeing_model(folder / "seeing", "idefics3")
    (folder / "asked.json").write_text(json.dumps(asked_about("idefics3")))
