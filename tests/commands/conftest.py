"""A session in Python with a real paged cache: its logits depend on the whole prefix."""

import contextlib
import types
from typing import ClassVar

import numpy as np
import pytest

from lanewise.commands.opening import Opened
from lanewise.runtime import BLOCK_TOKENS, Counters, KvLayout, ModelInfo, OperationTime, Sampled
from lanewise.topology import Placement

VOCAB = 40


class PagedSession:
    """Keeps tokens in blocks as the library keeps keys, and fails where the library would."""

    opened: ClassVar = []

    def __init__(
        self, model=None, *, threads=1, blocks, max_batch_tokens, max_batch_logits, **rest
    ):
        self.cache = np.full((blocks, BLOCK_TOKENS), -1)
        self.max_batch_tokens = max_batch_tokens
        self.max_batch_logits = max_batch_logits
        self.batches = []
        self.opened.append(self)

    def step(self, batch):
        assert len(batch.token_ids) <= self.max_batch_tokens
        assert len(batch.logit_rows) <= self.max_batch_logits
        self.batches.append(batch)
        rows = []
        of_sequences = batch.table_rows or range(len(batch.context_lens))
        tables = [batch.block_tables[row] for row in of_sequences]
        for s, (context, table) in enumerate(zip(batch.context_lens, tables, strict=True)):
            for i in range(batch.query_start[s], batch.query_start[s + 1]):
                position = context + i - batch.query_start[s]
                self.cache[table[position // BLOCK_TOKENS], position % BLOCK_TOKENS] = (
                    batch.token_ids[i]
                )
                prefix = self.cache[table].reshape(-1)[: position + 1]
                assert (prefix >= 0).all(), "a token attends to a position never written"
                rows.append(logits_of(prefix.tolist()))
        return np.array([rows[i] for i in batch.logit_rows], np.float32).reshape(-1, VOCAB)

    def step_and_draw(self, batch, draws):
        assert len(draws) == len(batch.logit_rows)
        assert all(draw.sampling.temperature == 0 for draw in draws)
        return [Sampled(int(row.argmax()), 0.0) for row in self.step(batch)]

    def limit_threads(self, threads, max_rows, max_context):
        self.limited_to = threads

    def counters(self):
        return Counters(len(self.batches), 0, 0, 0, 0, 0)

    def start_profile(self):
        self.profiled_from = len(self.batches)

    def stop_profile(self):
        """Each step of what was profiled works a nanosecond on each of two operations."""
        self.profiled = self.batches[self.profiled_from :]
        seconds = 1e-9 * len(self.profiled)
        return [
            OperationTime("qkv", "gemv_q4g32_q8g32_1x32__avx2", seconds, seconds, 12, 40),
            OperationTime("attention", "", seconds, 0.0, 6, 80),
        ]

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        pass


def logits_of(prefix):
    return np.random.default_rng(prefix).standard_normal(VOCAB).astype(np.float32)


class FakeModel:
    weights = "q4_0"
    config = types.SimpleNamespace(
        vocab_size=VOCAB, context_length=64, architecture="llama", sliding_window=None, layers=()
    )
    info = ModelInfo(
        isa="avx2",
        packed_bytes=900,
        matrix_bytes=1000,
        matrix_weights=2000,
        layer_weights=1500,
        held_weights=2000,
        expert_bytes=0,
        numerics=1,
    )

    def kv_layout(self, kv_type, groups_by_window=False):
        return KvLayout(64 * BLOCK_TOKENS, (None,))


@pytest.fixture
def session_class(monkeypatch):
    monkeypatch.setattr(PagedSession, "opened", [])
    return PagedSession


@pytest.fixture
def reference_logits():
    return logits_of


@pytest.fixture
def open_fake_model():
    """What open_model gives, with no file and no library behind it."""

    @contextlib.contextmanager
    def open_model(settings, longest=None, draft=None):
        checkpoint = types.SimpleNamespace(name="tiny", tokenizer=None, files=())
        placed = Placement((), "not pinned: a test", "off", (), (), "wherever it is: a test")
        yield Opened(checkpoint, FakeModel(), settings.threads or 1, "f16", placed)

    return open_model
