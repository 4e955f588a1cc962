"""What lm-eval is asked, of its own backend and of a server: sentences and ways to end them."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[2]
STORIES = TESTS.parents[1] / "shared" / "data" / "models" / "stories3M-hf"
SCORES = Path(__file__).with_name("scores.json")  # of lm-eval's own backend, by make_scores.py
SENTENCES = (
    ("Once upon a time, there was a little", ["girl named Lily.", "boat.", "tax on salt."]),
    ("The old man looked at the", ["sea", "moon and the stars"]),
    ('"Don\'t worry," said her', ["mom.", "umbrella!"]),
    ("They played in the park until it was", ["time to go home", "blue", "été 東京"]),
)
WRITE_TINY = """
import sys
from pathlib import Path
from tiny_models import tiny_model, write_hf
write_hf(tiny_model(sys.argv[1]), Path(sys.argv[2]))
"""


def write_tiny(python: Path | str, family: str, folder: Path) -> Path:
    """A random model of a family, the same everywhere; ``python`` is of the development tools."""
    environment = {**os.environ, "PYTHONPATH": str(TESTS / "support")}
    subprocess.run([python, "-c", WRITE_TINY, family, folder], env=environment, check=True)
    return folder


def scores(model: str, arguments: dict[str, Any], folder: Path) -> list[list[float]]:
    """The log probability of each end of each sentence; ``folder`` is for files of lm-eval."""
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(folder / "cache")}
    import lm_eval  # it reads these variables when it is imported
    from lm_eval.api.task import ConfigurableTask

    lines = [{"start": start, "ends": ends} for start, ends in SENTENCES]
    file = folder / "sentences.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    task = {
        "task": "sentences",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(file)}},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{start}}",
        "doc_to_choice": "{{ends}}",
        "doc_to_target": 0,
    }
    found = lm_eval.simple_evaluate(
        model=model,
        model_args=arguments,
        tasks=[ConfigurableTask(config=task)],
        log_samples=True,
        bootstrap_iters=0,
    )
    samples = sorted(found["samples"]["sentences"], key=lambda sample: sample["doc_id"])
    return [[float(answer[0][0]) for answer in sample["resps"]] for sample in samples]
