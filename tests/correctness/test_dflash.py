"""DFlash heads as published, beside models of several families: against their definition."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dflash_heads import BLOCK, MASK, guessed_logits, head_arrays, write_file, write_head
from eagle3_heads import weights_of
from family_models import values_of, write_case
from lanewise.loading.base.checkpoint import Role
from lanewise.loading.checkpoints.drafts import read_draft
from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise.native.library import NativeError
from lanewise.runtime import RUN_HEAD, RUN_HEAD_AGAIN, Batch, Model, Session
from tests.golden.reference import program as definition

pytestmark = pytest.mark.native
TOKENS = [int(one) for one in np.random.default_rng(5).integers(0, 256, 37)]
KNOWN = len(TOKENS) - 1  # tokens of which the model has made rows; the last one is drawn
N_GUESSES = 3
# Layers behind which heads read, and what is special.
CASES = {
    "qwen3": ((0, 1), {}),
    "llama": ((1,), {"section": {"causal": True}}),
    "qwen3_moe": ((1, 0, 0), {"is_causal": False}),
    "gemma3": ((0, 2, 3), {}),
    "gpt_oss": ((0, 1), {"section": {"block_size": 5}}),
    "lfm2": ((0, 1, 3), {"use_sliding_window": True, "sliding_window": 12}),
}
WINDOWED = {"layer_types": ["full_attention", "sliding_attention"]}


def session_of(model: Model, threads: int = 1) -> tuple[Session, np.ndarray]:
    """A session, and two tables of its blocks."""
    groups = len(model.kv_layout("f32", groups_by_window=True).windows)
    session = Session(
        model,
        threads=threads,
        blocks=4 * groups,
        states=2,
        max_guesses=2,
        max_batch_tokens=2 * KNOWN,
        max_batch_logits=2 * BLOCK,
        kv_type="f32",
        groups_by_window=True,
    )
    return session, np.arange(4 * groups, dtype=np.uint32).reshape(2, groups, 2)


def guesses_of(
    path: Path, head: Path, chunk: int, threads: int = 1, skipped: int = 0, **kinds: str
) -> np.ndarray:
    """Logits of the head for three guesses behind the last token, of two sequences together.

    It has got nothing of the first chunks up to token ``skipped``.
    """
    with open_checkpoint(path, head=head) as checkpoint, Model.load(checkpoint, **kinds) as model:
        session, tables = session_of(model, threads)
        blocks = model.config.blocks
        with session:
            for at in range(0, KNOWN, chunk):
                now = TOKENS[at : min(at + chunk, KNOWN)]
                n = len(now)
                batch = Batch(now[::-1] + now, [0, n, 2 * n], [at, at], tables, [2 * n - 1])
                batch.skips_head = at < skipped
                session.step(batch)
                # What the head stores of masks is gone with the next step.
                batch = Batch([3, MASK] * 2, [0, 2, 4], [at + n] * 2, tables, [1, 3], runs=RUN_HEAD)
                session.step(batch)
            rows = 1 + N_GUESSES
            masks = [blocks.mask_token] * N_GUESSES
            batch = Batch(
                [TOKENS[0], blocks.mask_token, TOKENS[-1], *masks],
                [0, 2, 2 + rows],
                [KNOWN, KNOWN],
                tables,
                [1, *range(3, 2 + rows)],
                sees=[KNOWN + 2] * 2 + [KNOWN + rows] * rows if blocks.sees_ahead else None,
                runs=RUN_HEAD,
            )
            return session.step(batch)[1:].copy()


@pytest.mark.parametrize("name", CASES)
def test_guesses_are_what_the_published_definition_says(name: str, tmp_path: Path) -> None:
    path = write_case(name, tmp_path / "model", max_position_embeddings=512)
    taps, changes = CASES[name]
    windowed = WINDOWED if changes.get("use_sliding_window") else {}
    with open_checkpoint(path) as checkpoint:
        config = checkpoint.config
        arrays = head_arrays(config.hidden_size, len(taps))
        fronts: list[np.ndarray] = []
        weights = weights_of(checkpoint)
        definition.hidden_rows(config, weights, TOKENS[:KNOWN], fronts)
        read = np.concatenate([fronts[tap + 1] for tap in taps], axis=1)
        embedding = weights[Role.TOKEN_EMBEDDING, 0] * config.embedding_scale
        output = weights[Role.TOKEN_EMBEDDING if config.tied_embeddings else Role.OUTPUT, 0]
    head = write_head(tmp_path / "head", arrays, taps, **changes, **windowed)
    given = (
        arrays,
        embedding,
        output,
        read,
        TOKENS[-1],
        N_GUESSES,
    )
    kinds = {
        "causal": bool(changes.get("section", {}).get("causal")),
        "windows": {1: 12} if windowed else {},
    }
    wanted, partial = (guessed_logits(*given, skipped=n, **kinds) for n in (0, 18))
    found = guesses_of(path, head, 36)
    assert np.abs(found - wanted).max() / np.abs(wanted).max() < 2e-5
    found_less = guesses_of(path, head, 9, skipped=18)
    assert np.abs(found_less - partial).max() / np.abs(partial).max() < 2e-5
    assert guesses_of(path, head, 7, threads=2).tobytes() == found.tobytes()
    assert guesses_of(path, head, 1, threads=3).tobytes() == found.tobytes()
    # As q8_0 about the same, and at every level.
    coarse = [guesses_of(path, head, 36, weights="q8_0", isa=isa) for isa in ("scalar", None)]
    assert coarse[0].tobytes() == coarse[1].tobytes()
    assert 1e-5 < np.abs(coarse[0] - wanted).max() / np.abs(wanted).max() < 0.2


def test_a_head_may_have_an_embedding_and_outputs_of_its_own(tmp_path: Path) -> None:
    path = write_case("qwen3", tmp_path / "model", max_position_embeddings=512)
    with open_checkpoint(path) as checkpoint:
        fronts: list[np.ndarray] = []
        definition.hidden_rows(checkpoint.config, weights_of(checkpoint), TOKENS[:KNOWN], fronts)
    arrays, tokens = head_arrays(64, 1), 2 + 2 * np.arange(90)
    arrays["embed_tokens.weight"] = values_of("embed_tokens", (256, 64))
    arrays["lm_head.weight"] = values_of("lm_head", (90, 64))
    given = (arrays, arrays["embed_tokens.weight"], arrays["lm_head.weight"], fronts[1])
    wanted = guessed_logits(*given, TOKENS[-1], N_GUESSES)
    arrays["d2t"] = tokens - np.arange(90)
    found = guesses_of(path, write_head(tmp_path / "head", arrays, (0,)), 36)
    assert np.abs(found[:, tokens] - wanted).max() / np.abs(wanted).max() < 2e-5
    assert (np.delete(found, tokens, axis=1) == np.float32(-1e30)).all()


def test_a_gguf_file_is_the_same_head(tmp_path: Path) -> None:
    path = write_case("qwen3", tmp_path / "model", max_position_embeddings=512)
    arrays = head_arrays(64, 2)
    folder = write_head(tmp_path / "head", arrays, (0, 1))
    file = write_file(tmp_path / "head.gguf", arrays, (0, 1))
    assert read_draft(str(file)).head == file
    assert read_draft(str(folder)).head == folder
    assert guesses_of(path, file, 36).tobytes() == guesses_of(path, folder, 36).tobytes()


def test_what_is_no_block_is_refused(tmp_path: Path) -> None:
    path = write_case("qwen3", tmp_path / "model", max_position_embeddings=512)
    head = write_head(tmp_path / "head", head_arrays(64, 2), (0, 1))
    with open_checkpoint(path, head=head) as checkpoint, Model.load(checkpoint) as model:
        session, tables = session_of(model)
        with session:
            session.step(Batch(TOKENS[:4], [0, 4], [0], tables, [3]))
            for tokens, context, logits, runs, message in (
                (1, 4, [0], RUN_HEAD, "has 1 tokens behind 4, for a head that guesses blocks"),
                (BLOCK + 1, 4, [1], RUN_HEAD, f"must be 2 to {BLOCK} behind some"),
                (2, 0, [1], RUN_HEAD, "has 2 tokens behind 0"),
                (2, 4, [], RUN_HEAD, "0 rows of logits and 0 copies"),
                (2, 4, [1], RUN_HEAD_AGAIN, "runs is 2, must be 0 or 1"),
            ):
                batch = Batch([MASK] * tokens, [0, tokens], [context], tables, logits, runs=runs)
                with pytest.raises(NativeError, match=message):
                    session.step(batch)
            batch = Batch([MASK] * 2, [0, 2], [4], tables, [1], runs=RUN_HEAD, skips_head=True)
            with pytest.raises(NativeError, match="skips_head is 1, must be 0 but in a step"):
                session.step(batch)
