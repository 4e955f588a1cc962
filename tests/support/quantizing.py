"""Small models and the quantize command, for its tests."""

from pathlib import Path

import numpy as np

import tiny_models
from family_models import family_model
from family_models import write_model as write_family
from lanewise import cli
from lanewise.loading.opening import open_checkpoint
from lanewise.runtime import Batch, Model, Session


def write_model(folder: Path, *, hidden: int, ffn: int, **changes) -> Path:
    changes |= {"hidden_size": hidden, "intermediate_size": ffn}
    return tiny_models.write_hf(tiny_models.tiny_model("llama2", **changes), folder)


def quantize(source: Path, output: Path, *options: str) -> int:
    if "t2" in options:
        text = tiny_models.write_text(output.with_name(f"{output.name}.txt"))
        options += ("--calibrate", str(text), "--calibration-tokens", "512")
    if "--calibrate" not in options:
        options += ("--calibrate", "none")
    return cli.main(["quantize", str(source), "--output", str(output), *options])


def written_family(name: str, folder: Path) -> Path:
    """The model of a case of the families' tests."""
    return write_family(family_model(name), folder / name)


def logits_of(
    path: Path,
    prompt: list[int] | None = None,
    *,
    isa: str | None = None,
    threads: int = 1,
    float_activations: bool = False,
) -> np.ndarray:
    """Logits of 40 tokens at most, [tokens, vocabulary]."""
    prompt = prompt or tiny_models.prompt(40)
    batch = Batch(prompt, [0, len(prompt)], [0], [[0, 1]], range(len(prompt)))
    shape = {"blocks": 2, "max_batch_tokens": 40, "max_batch_logits": 40, "kv_type": "f32"}
    with (
        open_checkpoint(path) as checkpoint,
        Model.load(checkpoint, isa=isa, threads=threads) as model,
        Session(model, threads=threads, float_activations=float_activations, **shape) as session,
    ):
        return session.step(batch).copy()
