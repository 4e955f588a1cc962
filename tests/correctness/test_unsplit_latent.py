"""Old GGUF files, whose keys and values of latent attention are blocks of one matrix.

What is computed from them is compared with files in F32 that have the weights of these blocks.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from family_gguf import write_gguf
from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise.runtime import BLOCK_TOKENS, Batch, Model, Session, usable_levels
from unsplit_latent import Kind, keys_rounded, of_rank, with_weights, write_blocks

pytestmark = [pytest.mark.native, pytest.mark.usefixtures("library")]

LENGTH = 48
PROMPT = [int(token) for token in np.random.default_rng(4).integers(0, 256, LENGTH)]


def logits(
    path: Path, isa: str | None = None, threads: int = 2, chunk: int = LENGTH, floats: bool = True
) -> np.ndarray:
    """Of every token of the prompt; with float activations if ``floats``."""
    blocks = list(range(-(-LENGTH // BLOCK_TOKENS)))
    found = []
    with (
        open_checkpoint(path) as checkpoint,
        Model.load(checkpoint, isa=isa, threads=1) as model,
        Session(
            model,
            threads=threads,
            blocks=len(blocks),
            max_batch_tokens=LENGTH,
            max_batch_logits=LENGTH,
            kv_type="f32",
            float_activations=floats,
        ) as session,
    ):
        for at in range(0, LENGTH, chunk):
            now = PROMPT[at : at + chunk]
            batch = Batch(now, [0, len(now)], [at], [blocks], range(len(now)))
            found.append(session.step(batch).copy())
    return np.concatenate(found)


@pytest.mark.parametrize("name", ["youtu", "deepseek_v2", "deepseek_v3"])
@pytest.mark.parametrize(("kind", "rank"), [("Q8_0", 64), ("Q4_K", 256)])
def test_logits_are_those_of_the_same_weights(
    name: str, kind: str, rank: int, tmp_path: Path
) -> None:
    model = of_rank(name, rank)
    kinds = dict.fromkeys(range(model.config["num_hidden_layers"]), Kind[kind])
    path, weights = write_blocks(model, tmp_path / "old.gguf", kinds)
    exact = logits(write_gguf(with_weights(model, weights), tmp_path / "exact.gguf"))
    rounded = {layer: keys_rounded(model, one) for layer, one in weights.items()}
    expected = logits(write_gguf(with_weights(model, rounded), tmp_path / "rounded.gguf"))
    found = logits(path)
    assert np.array_equal(found, expected)
    if name == "youtu":  # has no experts, of which rounding chooses others
        assert np.abs(found - exact).mean() / np.abs(exact).mean() < 0.02


@pytest.mark.parametrize(("kind", "rank"), [("Q8_0", 64), ("Q4_K", 256)])
def test_every_level_has_the_same_bits(kind: str, rank: int, tmp_path: Path) -> None:
    model = of_rank("deepseek_v2", rank)
    path, _ = write_blocks(model, tmp_path / "old.gguf", dict.fromkeys(range(3), Kind[kind]))
    found = {
        logits(path, isa, threads=1 + i % 3, chunk=(LENGTH, 13, 1)[i % 3], floats=False).tobytes()
        for i, isa in enumerate(usable_levels())
    }
    assert len(found) == 1
