"""Writes scores.json: what lm-eval scores with its own backend, in float32.

Run from the root of the repository in the environment of this folder, with torch and accelerate
installed in addition: ``python -m tests.clients.lm_eval.make_scores``.
"""

import json
import sys
import tempfile
from pathlib import Path

from tests.clients.lm_eval.scoring import SCORES, STORIES, scores, write_tiny

FAMILIES = ("llama3", "qwen3")


def main() -> None:
    made = {}
    tools = sys.argv[1] if len(sys.argv) > 1 else ".venv/bin/python"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        models = {family: write_tiny(tools, family, folder / family) for family in FAMILIES}
        for model, path in (models | {"stories3M": STORIES}).items():
            arguments = {"pretrained": str(path), "dtype": "float32", "device": "cpu"}
            made[model] = scores("hf", arguments, folder)
    SCORES.write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    main()
