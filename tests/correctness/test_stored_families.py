"""Blocks and states of every family go on in another session: other threads, level and guesses."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from family_models import CASE_NAMES, GOLDEN, family_model, write_model
from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise.runtime import BLOCK_TOKENS, Batch, Model, Session, usable_levels

pytestmark = [pytest.mark.native, pytest.mark.usefixtures("library")]

LOGITS = np.load(GOLDEN / "logits.npz")
N_BLOCKS = 8
STORED = 2  # blocks of a text of 80 tokens


@contextmanager
def opened(path: Path, isa: str, threads: int, kv_type: str, guesses: int) -> Iterator[Session]:
    with (
        open_checkpoint(path) as checkpoint,
        Model.load(checkpoint, isa=isa, threads=1) as model,
        Session(
            model,
            threads=threads,
            blocks=N_BLOCKS,
            states=4,
            max_guesses=guesses,
            max_batch_tokens=128,
            max_batch_logits=128,
            kv_type=kv_type,
        ) as session,
    ):
        yield session


def logits(
    session: Session, tokens: list[int], done: int = 0, first_block: int = 0, place: int = 0
) -> bytes:
    """Those of the tokens from ``done`` on, of a sequence with blocks and state there."""
    rest = tokens[done:]
    tables = [[first_block, first_block + 1, first_block + 2]] * (place + 1)
    batch = Batch(rest, [0, len(rest)], [done], tables, range(len(rest)), table_rows=[place])
    return session.step(batch).tobytes()


def kv_type_of(path: Path, number: int) -> str:
    """Each type has its families, as far as the library accepts it for them."""
    with open_checkpoint(path) as checkpoint:
        attentions = [layer.attention for layer in checkpoint.config.layers if layer.attention]
    if any(one.alibi or one.distances or one.shared_rows for one in attentions):
        return ("f32", "f16")[number % 2]
    return ("f32", "int8", "f16", "q4")[number % 4]


@pytest.mark.parametrize("name", CASE_NAMES)
def test_what_was_read_from_one_session_goes_on_in_another(name: str, tmp_path: Path) -> None:
    path = write_model(family_model(name), tmp_path / "model")
    text = [*LOGITS[f"{name}/prompt"].tolist(), *LOGITS[f"{name}/tokens"].tolist()]
    done, levels = STORED * BLOCK_TOKENS, usable_levels()
    kv_type = kv_type_of(path, CASE_NAMES.index(name))
    with opened(path, levels[0], 2, kv_type, 0) as session:
        expected = logits(session, text)
        logits(session, text[:done])
        blocks = [bytearray(session.block_bytes) for _ in range(STORED)]
        for number, block in enumerate(blocks):
            session.read_block(number, block)
        state = bytearray(session.state_bytes)
        if state:
            session.read_state(0, state)
    with opened(path, levels[-1], 1, kv_type, 3) as session:
        for number, block in enumerate(blocks):
            session.write_block(4 + number, block)
        if state:
            session.write_state(2, state)
        rest = logits(session, text, done, first_block=4, place=2)
    assert len(rest) > 0
    assert expected.endswith(rest)
