"""``lanewise batch``: answers a file of requests, as a server would, and goes on where it was."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

from rich.progress import Progress

from lanewise import host
from lanewise.api.batches.making import make_asker
from lanewise.api.batches.paths import OPENAI_PATHS
from lanewise.api.observing.logs import set_up_logging
from lanewise.api.shared.state import Phase, ServerState
from lanewise.batches.answers import NotAnswersError
from lanewise.batches.forms import OPENAI, Reply
from lanewise.batches.lines import BadLinesError, Limits
from lanewise.batches.work import Paths, Work
from lanewise.commands.progress import steps_bar
from lanewise.server.make_state import make_state
from lanewise.server.opening import open_model
from lanewise.server.prepare_sandbox import prepare_sandbox
from lanewise.server.start import within_memory
from lanewise.settings import BatchSettings, SettingsError

LOOK_S = 0.5  # how often progress is told
MOST_LINES = 10_000_000  # no server has to hold them


def run(settings: BatchSettings) -> int:
    """Answer all requests; 0 if none failed."""
    set_up_logging("warning", settings.log_format)
    work, paths = _opened(settings)
    with contextlib.closing(work):
        if not work.counts.left:
            print(f"{paths.answers}: {_result(work)}")
            return 1 if work.counts.failed else 0
        # No client waits between two tokens: steps are as large as they are fast.
        settings = replace(settings, itl_target_ms=0.0)
        threads = settings.threads or host.default_threads().threads
        limit = host.memory_limit()
        within = within_memory(settings, limit)
        model, text = open_model(within, threads, limit)
        with ExitStack() as models:
            state = make_state(within, model, text, threads, limit, models)
            state.engine.start()
            try:
                asyncio.run(_answer(work, state, settings))
            finally:
                state.engine.stop()
                state.workers.close()
    print(f"{paths.answers}: {_result(work)}")
    return 1 if work.counts.failed else 0


def _opened(settings: BatchSettings) -> tuple[Work, Paths]:
    """The requests and what is answered of them; SettingsError for files that cannot be used."""
    for name in ("input", "output"):
        if getattr(settings, name) is None:
            raise SettingsError(f"{name} is missing; accepted: INPUT.jsonl -o OUTPUT.jsonl")
    assert settings.input is not None
    assert settings.output is not None
    paths = Paths(Path(settings.input), Path(settings.output), may_be_foreign=True)
    work = Work(paths, OPENAI, Limits(OPENAI_PATHS, settings.max_body_bytes, MOST_LINES))
    try:
        work.open()
    except BadLinesError as error:
        fault = error.faults[0]
        where = f"{settings.input}" if fault.line is None else f"{settings.input}:{fault.line}"
        raise SettingsError(f"input: {where}: {fault.message}") from None
    except NotAnswersError as error:
        raise SettingsError(
            f"output: {error}; accepted: a new file, or the answers of an earlier run"
        ) from None
    return work, paths


async def _answer(work: Work, state: ServerState, settings: BatchSettings) -> None:
    state.phase = Phase.READY
    await prepare_sandbox(state)
    asker = make_asker(state, any_model=True)
    at_once = min(settings.batch_concurrency, settings.max_seqs)

    async def ask(path: str, line: bytes) -> Reply:
        return await asker.ask(0, "", path, line)

    with steps_bar("answering") as bar:
        telling = asyncio.create_task(_tell(work, bar, state))
        try:
            await work.run(ask, _anytime, at_once)
        finally:
            telling.cancel()
            await work.settle()
            await state.sandbox.close()


@asynccontextmanager
async def _anytime() -> AsyncIterator[None]:
    yield


async def _tell(work: Work, bar: Progress, state: ServerState) -> None:
    """Say how far it is, how fast, and when it ends if it goes on like this."""
    counts, began, first = work.counts, time.monotonic(), work.counts.left
    task = bar.add_task("", total=first)
    before = state.engine.metrics.load()
    while True:
        n_done, seconds = first - counts.left, time.monotonic() - began
        now = state.engine.metrics.load()
        said = f"{counts.total - counts.left} of {counts.total}"
        if n_done:
            rate, left_s = n_done / seconds, seconds / n_done * counts.left
            tokens = (now.generation_tokens - before.generation_tokens) / seconds
            end = time.strftime("%H:%M", time.localtime(time.time() + left_s))
            said += f", {rate:.2f} requests/s, {tokens:.0f} tokens/s, ends {end}"
        bar.update(task, completed=n_done, description=said)
        await asyncio.sleep(LOOK_S)


def _result(work: Work) -> str:
    counts = work.counts
    return f"{counts.completed} of {counts.total} requests answered, {counts.failed} failed"
