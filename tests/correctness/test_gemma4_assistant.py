"""Gemma 4's assistants as published: their guesses are those of transformers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from family_models import write_case
from gemma4_assistants import write_assistant
from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise.runtime import RUN_HEAD, RUN_HEAD_AGAIN, Batch, Model, Session, usable_levels

pytestmark = pytest.mark.native
GOLDEN = Path(__file__).parents[1] / "golden" / "drafters" / "assistants.npz"
TOKENS = [int(one) for one in np.random.default_rng(5).integers(0, 256, 40)]
KNOWN, N_GUESSES = 37, 3
CASES = ("gemma4", "gemma4_small")


def tables_of(groups: int) -> np.ndarray:
    return np.arange(4 * groups, dtype=np.uint32).reshape(2, groups, 2)


def run(path: Path, head: Path | None, chunk: int, threads: int = 1, **kinds: str) -> tuple:
    """The model's last logits, and those of the head behind the last known token and guesses."""
    with open_checkpoint(path, head=head) as checkpoint, Model.load(checkpoint, **kinds) as model:
        groups = len(model.kv_layout("f32", groups_by_window=True).windows)
        tables, has_head = tables_of(groups), head is not None
        session = Session(
            model,
            threads=threads,
            blocks=4 * groups,
            states=2 * has_head,
            max_guesses=N_GUESSES * has_head,
            max_batch_tokens=2 * KNOWN,
            max_batch_logits=2,
            kv_type="f32",
            groups_by_window=True,
        )
        with session:
            for at in range(0, KNOWN - 1, chunk):
                now = TOKENS[at : min(at + chunk, KNOWN - 1)]
                n = len(now)
                logits = [2 * n - 1] if at + n == KNOWN - 1 else []
                batch = Batch(now[::-1] + now, [0, n, 2 * n], [at, at], tables, logits)
                last = session.step(batch).copy()
            rows = []
            for length, token in enumerate(TOKENS[KNOWN - 1 :] if has_head else []):
                again = RUN_HEAD_AGAIN if length else RUN_HEAD
                batch = Batch([token], [0, 1], [KNOWN - 2], tables, [0], [1], runs=again)
                batch.positions = np.full((3, 1), KNOWN - 1, np.uint32)
                rows.append(session.step(batch)[0].copy())
            return last.tobytes(), np.array(rows)


@pytest.mark.parametrize("name", CASES)
def test_guesses_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    path = write_case(name, tmp_path / "model", max_position_embeddings=512)
    head = write_assistant(name, tmp_path / "head")
    wanted = np.load(GOLDEN)[name]
    plain, _ = run(path, None, 36)
    logits, found = run(path, head, 36)
    assert logits == plain
    assert np.abs(found - wanted).max() / np.abs(wanted).max() < 2e-5
    for chunk, threads in ((7, 2), (1, 3)):
        assert run(path, head, chunk, threads)[1].tobytes() == found.tobytes()
    for isa in usable_levels():
        assert run(path, head, 36, isa=isa)[1].tobytes() == found.tobytes()
    coarse = [run(path, head, 36, weights="q8_0", isa=isa)[1] for isa in ("scalar", None)]
    assert coarse[0].tobytes() == coarse[1].tobytes()
    assert 1e-5 < np.abs(coarse[0] - wanted).max() / np.abs(wanted).max() < 0.2
