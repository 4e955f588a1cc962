"""EAGLE-3 heads as published, beside models of several families: against their definition."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from eagle3_heads import guessed_logits, head_arrays, weights_of, write_file, write_head
from family_models import write_case
from lanewise.loading.base.checkpoint import Role
from lanewise.loading.checkpoints.drafts import read_draft
from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise.runtime import RUN_HEAD, RUN_HEAD_AGAIN, Batch, Model, Session
from tests.golden.reference import program as definition

pytestmark = pytest.mark.native
TOKENS = [int(one) for one in np.random.default_rng(5).integers(0, 256, 40)]
KNOWN, N_GUESSES = 37, 3  # tokens that are known; what is guessed behind them
TABLES = np.arange(4, dtype=np.uint32).reshape(2, 2)
# Taps in the numbering of llama.cpp and vLLM, and what the head has besides.
CASES = {
    "llama": ((1, 2, 2), {"outputs": 90}),
    "qwen3": ((2, 1, 1), {"outputs": None, "head_norms": True}),
    "qwen3_moe": ((1, 1, 2), {"outputs": 7, "embedding": True, "fusion_norm": True}),
    "gemma3": ((2, 3, 4), {"outputs": 120}),
    "gpt_oss": ((2, 2, 1), {"outputs": 33, "fusion_norm": True}),
    "lfm2": ((1, 2, 3), {"outputs": 90}),
}


def guesses_of(path: Path, head: Path, chunk: int, threads: int = 1, **kinds: str) -> np.ndarray:
    """Logits of the head behind the last known token and each guess."""
    with open_checkpoint(path, head=head) as checkpoint, Model.load(checkpoint, **kinds) as model:
        session = Session(
            model,
            threads=threads,
            blocks=4,
            states=2,
            max_guesses=N_GUESSES,
            max_batch_tokens=2 * KNOWN,
            max_batch_logits=2,
            kv_type="f32",
        )
        with session:
            for at in range(0, KNOWN - 1, chunk):
                now = TOKENS[at : min(at + chunk, KNOWN - 1)]
                n = len(now)
                batch = Batch(now[::-1] + now, [0, n, 2 * n], [at, at], TABLES, [2 * n - 1])
                session.step(batch)
            rows = []
            for length, token in enumerate(TOKENS[KNOWN - 1 :]):
                again = RUN_HEAD_AGAIN if length else RUN_HEAD
                context = KNOWN - 1 + length
                batch = Batch([token], [0, 1], [context], TABLES, [0], [1], runs=again)
                rows.append(session.step(batch)[0].copy())
            return np.stack(rows)


@pytest.mark.parametrize("name", CASES)
def test_guesses_are_what_the_published_definition_says(name: str, tmp_path: Path) -> None:
    path = write_case(name, tmp_path / "model", max_position_embeddings=512)
    taps, kinds = CASES[name]
    with open_checkpoint(path) as checkpoint:
        arrays = head_arrays(checkpoint.config.hidden_size, 256, **kinds)
        fronts: list[np.ndarray] = []
        weights, known = weights_of(checkpoint), TOKENS[: KNOWN - 1]
        definition.hidden_rows(checkpoint.config, weights, known, fronts)
        embedding = weights[Role.TOKEN_EMBEDDING, 0]
        read = np.concatenate([fronts[tap] for tap in taps], axis=1)
    embedding = arrays.get("embed_tokens.weight", embedding)
    more = {"norm_before_fc": True} if kinds.get("fusion_norm") else {}
    for way in ({}, {"norm_before_residual": True}, {"speculators": True}):
        head = write_head(tmp_path / f"head{len(str(way))}", arrays, taps, **way, **more)
        residual = "norm_before_residual" in way
        wanted = guessed_logits(arrays, embedding, read, TOKENS, norm_before_residual=residual)
        found = guesses_of(path, head, 36)
        known_tokens = wanted > -1e29
        assert ((found > -1e29) == known_tokens).all()
        error = np.abs(found - wanted)[known_tokens].max() / np.abs(wanted[known_tokens]).max()
        assert error < 2e-5, (way, error)
        assert guesses_of(path, head, 7, 2).tobytes() == found.tobytes()
        assert guesses_of(path, head, 1, 3).tobytes() == found.tobytes()
    # As q8_0 about the same, and at every level.
    coarse = [guesses_of(path, head, 36, weights="q8_0", isa=isa) for isa in ("scalar", None)]
    assert coarse[0].tobytes() == coarse[1].tobytes()
    error = np.abs(coarse[0] - wanted)[known_tokens].max() / np.abs(wanted[known_tokens]).max()
    assert 1e-5 < error < 0.2


@pytest.mark.parametrize("embedding", [False, True])
def test_a_gguf_file_is_the_same_head(embedding: bool, tmp_path: Path) -> None:
    path = write_case("llama", tmp_path / "model", max_position_embeddings=512)
    arrays = head_arrays(64, 256, 90, embedding=embedding)
    folder = write_head(tmp_path / "head", arrays, (1, 2, 2))
    file = write_file(tmp_path / "head.gguf", arrays, (1, 2, 2))
    assert read_draft(str(file)).head == file
    assert read_draft(str(folder)).head == folder
    assert guesses_of(path, file, 36).tobytes() == guesses_of(path, folder, 36).tobytes()
