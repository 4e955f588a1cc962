"""Runs the application on a real socket in a thread, around the toy model."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import httpx

from lanewise.api.http_server import make_server
from lanewise.api.shared.state import ServerState
from lanewise.engine.base.config import EngineConfig
from lanewise.engine.base.request import GenerationRequest
from lanewise.engine.base.stream import TokenOutput
from lanewise.engine.encoding import EncoderEngine
from lanewise.engine.engine import Engine
from lanewise.engine.guessing.draft_model import DraftModel
from lanewise.engine.kv.store_parts import Files
from lanewise.engine.metering.metrics import Metrics, ModelFacts
from lanewise.server.listener import bound_connections
from lanewise.settings import Settings
from lanewise.text.tokenizer import Tokenizer
from toy import ToyRunner
from toy_tokenizer import toy_tokenizer
from toy_tower import ToyTower

CONFIG = EngineConfig(
    n_blocks=64,
    max_model_len=512,
    vocab_size=1,  # replaced by the tokenizer's
    max_seqs=8,
    max_step_tokens=64,
    max_step_logits=24,
    max_queued_requests=8,
    has_spare_cpu=True,
)
DEFAULTS = Settings()


@dataclass
class RunningServer:
    """A server to talk to, and what is behind it to look into."""

    url: str
    state: ServerState
    runner: ToyRunner | None = None
    client: httpx.Client = field(init=False)

    def __post_init__(self) -> None:
        self.client = httpx.Client(base_url=self.url, timeout=60)

    def metric(self, name: str, **labels: str) -> float:
        return metric(self.state.engine, name, **labels)

    def wait_until(self, condition, timeout_s: float = 60) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, "it did not come to pass"
            time.sleep(0.005)


def metric(engine: Engine, name: str, **labels: str) -> float:
    """A sample of the toy's engine; there must be one."""
    labels = {"model_name": "toy", "engine": "0", **labels}
    value = engine.metrics.registry.get_sample_value(name, labels)
    assert value is not None, f"there is no metric {name} {labels}"
    return value


async def outputs_of(engine: Engine, *requests: GenerationRequest) -> list[list[TokenOutput]]:
    """All outputs of the sequences of one request."""
    collected: list[list[TokenOutput]] = [[] for _ in requests]
    async with engine.submit(requests) as stream:
        async for outputs in stream:
            for output in outputs:
                collected[output.index].append(output)
    return collected


def in_background(work: Callable[[], object]) -> threading.Thread:
    """A thread that does it from now on."""
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def make_engine(
    config: EngineConfig = CONFIG,
    draft: DraftModel | None = None,
    more_special: tuple[str, ...] = (),
    tower: ToyTower | None = None,
    image_bytes: int = 1 << 20,
    open_store: Callable[[], Files] | None = None,
) -> tuple[Engine, ToyRunner]:
    tokenizer = toy_tokenizer(more_special)
    vocab_size = tokenizer.vocab_size + len(tokenizer.unused_ids)
    config = replace(config, vocab_size=vocab_size, unused_ids=tokenizer.unused_ids)
    runner = ToyRunner(
        n_blocks=config.n_blocks,
        vocab_size=vocab_size,
        max_batch_tokens=config.max_step_tokens,
        max_batch_logits=config.max_step_logits,
        n_padding=len(tokenizer.unused_ids),
        windows=config.windows,
        n_states=0 if config.n_snapshots is None else config.max_seqs + config.n_snapshots,
    )
    metrics = toy_metrics(
        kv_type="u64",
        prefix_cache=config.prefix_cache,
        n_blocks=config.n_blocks,
        max_model_len=config.max_model_len,
        max_draft=config.max_draft,
    )
    return Engine(runner, config, metrics, draft, tower, image_bytes, open_store), runner


def toy_metrics(**facts) -> Metrics:
    """The metrics of an engine with a toy, of which there is so much more to know."""
    same = {
        "model_name": "toy",
        "isa": "none",
        "threads": 1,
        "weights": "hash",
        "kernels": "none",
        "version": "0",
    }
    return Metrics(ModelFacts(**same, **facts))


def toy_state(
    engine: Engine | EncoderEngine, tokenizer: Tokenizer, names: tuple[str, ...] = ("toy",), **more
) -> ServerState:
    """What the requests to a toy share; its tokenizer's template unless another is given."""
    more.setdefault("chat_template", tokenizer.chat_template)
    return ServerState(
        engine=engine, tokenizer=tokenizer, names=names, version="0", fingerprint="toy-0", **more
    )


@contextmanager
def toy_server(
    config: EngineConfig = CONFIG,
    settings: Settings = DEFAULTS,
    more_special: tuple[str, ...] = (),
    names: tuple[str, ...] = ("toy",),
    tower: ToyTower | None = None,
    **options,
) -> Iterator[RunningServer]:
    engine, runner = make_engine(config, more_special=more_special, tower=tower)
    engine.start()
    state = toy_state(engine, toy_tokenizer(more_special), names, **options)
    with serving(state, settings) as url:
        server = RunningServer(url, state, runner)
        with server.client:
            yield server
    runner.gate.set()
    engine.stop()


@contextmanager
def serving(state: ServerState, settings: Settings = DEFAULTS) -> Iterator[str]:
    listener = socket.socket()
    bound_connections(listener)
    listener.bind(("127.0.0.1", 0))
    server = make_server(settings, state)
    server.config.timeout_graceful_shutdown = 1
    thread = threading.Thread(target=lambda: server.run(sockets=[listener]))
    thread.start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        deadline = time.monotonic() + 60
        while not server.started or httpx.get(url + "/health/ready").status_code != 200:
            assert time.monotonic() < deadline, "the server is not ready"
            time.sleep(0.01)
        yield url
    finally:
        server.should_exit = True
        thread.join()
