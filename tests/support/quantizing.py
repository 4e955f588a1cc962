"""Small models and the quantize command, for its tests."""

from pathlib import Path

import numpy as np

import tiny_models
from family_models import family_model
from family_models import write_model as write_family
from lanewise import cli
from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise.runtime import Batch, Model, Session
from lanewise.text.tokenizer import Tokenizer


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


def errors_on_text(
    source: Path, folder: Path, kind: str = "q4_0", *more: str
) -> tuple[float, float]:
    """The relative errors of logits on text like that calibrated on: without, and with it.

    The models are ``plain`` and ``fitted`` in the folder; ``more`` are further options.
    """
    text = tiny_models.write_text(folder / "text.txt")
    with open_checkpoint(source) as checkpoint:
        tokenizer = Tokenizer.from_files(checkpoint.tokenizer)
    end = tokenizer.encode(text.read_text()[-200:], add_bos=False, parse_special=False)[:40]
    exact, errors = logits_of(source, end), []
    for name, calibrate in (("plain", "none"), ("fitted", str(text))):
        options = ["--format", kind, "--calibrate", calibrate, "--calibration-tokens", "512", *more]
        assert cli.main(["quantize", str(source), "-o", str(folder / name), *options]) == 0
        found = logits_of(folder / name, end)
        errors.append(float(np.linalg.norm(found - exact) / np.linalg.norm(exact)))
    return errors[0], errors[1]
