"""A model that is pooled in a few lines, and a server around it on a real socket."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
from numpy.typing import NDArray

from encoder_tokenizers import word_piece
from lanewise.engine.encoding import EncoderConfig, EncoderEngine
from lanewise.loading.base.checkpoint import TokenizerFiles
from lanewise.settings import Settings
from lanewise.text.pooled_text import PooledText
from lanewise.text.tokenizer import Tokenizer
from lanewise.text.whole_texts import WholeTexts
from toy_server import DEFAULTS, RunningServer, serving, toy_metrics, toy_state

DIMS = 24
LIMIT = 32
CLASSES = ("bad", "fair", "good")


def vector(ids: Sequence[int]) -> NDArray[np.float32]:
    """What the toy makes of a text: depends on its tokens and their order, and on nothing else."""
    rows = [np.random.default_rng(int(one)).standard_normal(DIMS) for one in ids]
    weights = 1 + 0.01 * np.arange(len(rows))
    return (np.array(rows) * weights[:, None]).mean(axis=0).astype(np.float32)


def unit(row) -> NDArray[np.float32]:
    return np.asarray(row, np.float32) / np.linalg.norm(row)


def wanted(text: str, limit: int | None = None) -> NDArray[np.float32]:
    """The vector that a server gives for a text, cut to so many tokens."""
    library = word_piece()
    ids = library.encode(text).ids
    if limit is not None:
        ids = [*ids[: limit - 1], ids[-1]]
    return unit(vector(ids))


def error_of(answer: httpx.Response, status: int = 400) -> dict:
    assert answer.status_code == status, answer.text
    return answer.json()["error"]


class ToyEncoder:
    """Rows from ``vector``; of pairs how many tokens both texts have, less 3."""

    def __init__(self, n_labels: int = 0) -> None:
        self.n_labels = n_labels
        self.steps: list[list[int]] = []  # tokens of each text
        self.gate = threading.Event()  # cleared: steps wait
        self.gate.set()
        self.begun = threading.Event()  # a step was
        self.fail_on_token: int | None = None
        self.closed = False

    def run(self, texts, token_types=None, *, pooling=None, normalize=None, seen=None):
        assert texts
        assert all(len(text) for text in texts)
        assert token_types is None or list(map(len, token_types)) == list(map(len, texts))
        self.steps.append([len(text) for text in texts])
        self.begun.set()
        self.gate.wait()
        if any(self.fail_on_token in text for text in texts):
            raise RuntimeError("a value in layer 0 is not finite")
        if self.n_labels:
            types = token_types or [np.zeros_like(text) for text in texts]
            return np.array([self._scores(*both) for both in zip(texts, types, strict=True)])
        if pooling == "none":
            return np.concatenate([[vector([token]) for token in text] for text in texts])
        rows = np.array([vector(text) for text in texts])
        if normalize is not False:
            rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        return rows

    def _scores(self, ids, types):
        shared = set(ids[types == 0].tolist()) & set(ids[types == 1].tolist())
        return np.array([len(shared) - 3.0 + label for label in range(self.n_labels)], np.float32)

    def close(self) -> None:
        self.closed = True


def make_engine(runner: ToyEncoder, vocab_size: int = 400, **changes) -> EncoderEngine:
    defaults = {
        "max_text_tokens": LIMIT,
        "vocab_size": vocab_size,
        "dims": runner.n_labels or DIMS,
        "max_step_tokens": 64,
        "max_requests": 8,
    }
    config = EncoderConfig(**(defaults | changes))
    metrics = toy_metrics(
        kv_type="none", prefix_cache=False, n_blocks=1, max_model_len=config.max_text_tokens
    )
    return EncoderEngine(runner, config, metrics)


@contextmanager
def encoder_server(
    labels: tuple[str, ...] = (),
    settings: Settings = DEFAULTS,
    prompts: dict[str, str] | None = None,
    default_prompt: str | None = None,
    options: dict | None = None,
    **changes,
) -> Iterator[RunningServer]:
    library = word_piece()
    size = library.get_vocab_size()
    files = TokenizerFiles(Path("toy"), size, text_files={"tokenizer.json": library.to_str()})
    tokenizer = Tokenizer.from_files(files)
    runner = ToyEncoder(len(labels))
    engine = make_engine(runner, size, **changes)
    engine.start()
    state = toy_state(
        engine,
        tokenizer,
        pooling=PooledText(
            WholeTexts(tokenizer),
            has_types=True,
            labels=labels,
            prompts=prompts or {},
            default_prompt=default_prompt,
        ),
        **(options or {}),
    )
    with serving(state, settings) as url:
        server = RunningServer(url, state, runner)
        try:
            with server.client:
                yield server
        finally:
            runner.gate.set()
    engine.stop()
