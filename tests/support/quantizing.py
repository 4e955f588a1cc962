"""Small models and the quantize command, for its tests."""

from pathlib import Path

import tiny_models
from lanewise import cli


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
