"""Directories of ``lanewise pack`` and ``quantize``: any config.json and safetensors header."""

from collections.abc import Iterator
from pathlib import Path

from tests.fuzz.model_directory import mutate, open_written, read_directory, words

__all__ = ["mutate", "one_input", "seeds", "words"]


def one_input(data: bytes) -> None:
    """Open the directory that the bytes describe."""
    open_written(data, "packed")


def seeds(folder: Path) -> Iterator[bytes]:
    """A packed model and quantized ones."""
    from lanewise import cli
    from tiny_models import tiny_model, write_hf

    model = str(write_hf(tiny_model("llama3"), folder / "model"))
    assert cli.main(["pack", model, "-o", str(folder / "packed")]) == 0
    yield read_directory(folder / "packed")
    for form in ("q4_0", "a4_g32", "fp6"):
        out = str(folder / form)
        assert (
            cli.main(["quantize", model, "-o", out, "--format", form, "--check-tokens", "0"]) == 0
        )
        yield read_directory(Path(out))
