"""Engines around the toy model, stopped when their test is over."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from lanewise.engine.engine import Engine
from toy import ToyRunner
from toy_server import CONFIG, make_engine

Started = tuple[Engine, ToyRunner]


@pytest.fixture
def run_engine() -> Iterator[Callable[[Engine, ToyRunner], Started]]:
    """Starts an engine and returns it with its runner."""
    engines: list[Started] = []

    def run(engine: Engine, runner: ToyRunner) -> Started:
        engine.start()
        engines.append((engine, runner))
        return engine, runner

    yield run
    for engine, runner in engines:
        runner.gate.set()
        engine.stop()


@pytest.fixture
def start(run_engine):
    """Starts an engine with some settings changed."""
    return lambda **changes: run_engine(*make_engine(replace(CONFIG, **changes)))
