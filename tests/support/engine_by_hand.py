"""An engine stepped by hand on the test's thread, around a runner that fails when it is told."""

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from lanewise.engine.base.config import EngineConfig
from lanewise.engine.base.request import GenerationRequest
from lanewise.engine.base.stream import RequestStream, TokenOutput
from lanewise.engine.engine import Engine
from lanewise.engine.metering.metrics import Metrics
from lanewise.engine.steps.tracking import JobGroup
from lanewise.runtime import BLOCK_TOKENS, Batch, Draw, Finished, Sampled, StepRefusedError
from toy import ToyRunner, tables_of
from toy_server import make_engine


class FragileRunner(ToyRunner):
    """As the library: what is begun runs when it is finished; behind a failure nothing is done."""

    def __init__(self, like: ToyRunner, failures: dict[int, str]) -> None:
        self.__dict__ |= like.__dict__
        self.failures = failures  # by the number of the step: "refused" or "failed"
        self.n_run = 0
        self.n_failed = 0
        # Whether a step behind one that failed is run all the same, if it can be.
        self.runs_behind_failures = False
        self._queue: list[Callable[[], Finished]] = []
        self._behind_failure = False

    def step_and_draw(self, batch: Batch, draws: list[Draw]) -> list[Sampled]:
        kind = self.failures.get(self.n_run)
        self.n_run += 1
        if kind == "refused":
            self.n_failed += 1
            raise StepRefusedError("an argument is out of range", 1)
        if kind == "failed":
            self.n_failed += 1
            self._spoil(batch)
            raise RuntimeError("a value in layer 0 is not finite")
        return super().step_and_draw(batch, draws)

    def _spoil(self, batch: Batch) -> None:
        """Make the copies, and write nonsense where the step's tokens have their places."""
        self._copy(batch)
        self._spoil_states(batch)
        tables = tables_of(batch)[batch.table_rows]
        for table, context, count in zip(
            tables, batch.context_lens, np.diff(batch.query_start), strict=True
        ):
            for position in range(int(context), int(context + count)):
                self._cache[table[:, position // BLOCK_TOKENS], position % BLOCK_TOKENS] = 0xBAD

    def start(self, batch: Batch, draws: list[Draw]) -> None:
        if self.failures.get(self.n_run + len(self._queue)) == "not begun":
            self.failures[self.n_run + len(self._queue)] = ""
            self.n_failed += 1
            raise StepRefusedError("an argument is out of range", 1)
        ids = list(map(int, batch.token_ids))
        seen = self._tables_seen(batch)
        self.n_begun += 1
        self._queue.append(lambda: self._run_begun(batch, draws, ids, seen))

    def wait(self, seconds: float) -> bool:
        return True

    def finish(self) -> Finished:
        step = self._queue.pop(0)
        try:
            if self.runs_behind_failures:
                self._behind_failure = False
            if self._behind_failure:
                raise StepRefusedError("the step before this one failed", 1)
            return step()
        except Exception:
            self._behind_failure = True
            raise
        finally:
            if not self._queue:
                self._behind_failure = False


class Loop:
    """An event loop that does at once what it is told."""

    def call_soon_threadsafe(self, callback: Callable[..., None], *arguments: object) -> None:
        callback(*arguments)


class EngineByHand:
    """The real engine without its thread."""

    def __init__(self, config: EngineConfig, failures: dict[int, str] | None = None) -> None:
        made, runner = make_engine(config)
        self.runner = FragileRunner(runner, failures or {})
        self.engine = Engine(self.runner, made.config, Metrics(made.metrics.facts))

    def submit(self, requests: Iterable[GenerationRequest]) -> JobGroup:
        """Hand requests over as one, as ``Engine.submit`` does."""
        group = self.engine._maker.make(list(requests))
        group.stream = RequestStream(
            Loop(),  # type: ignore[arg-type]
            len(group.jobs),
            on_stop=lambda index: self.engine._handle_text_end(group, index),
            on_cancel=lambda: self.engine._handle_cancel(group),
        )
        n_tokens = sum(job.sequence.n_prompt for job in group)
        self.engine._admission.open()
        self.engine._admission.enter(
            group.jobs[0].sequence.request.client,
            len(group.jobs),
            n_tokens,
            lambda: self.engine._handle_add(group),
        )
        return group

    @property
    def is_idle(self) -> bool:
        return not self.engine._jobs and not self.engine._steps.has_step_in_flight

    def advance(self) -> None:
        """What the engine's thread does once."""
        self.engine._steps.wait()
        if not self.is_idle:
            self.engine._steps.advance()
        self.engine._outbox.send()

    def run_to_end(self, most: int = 20_000) -> None:
        for _ in range(most):
            if self.is_idle:
                return
            self.advance()
        raise AssertionError("sequences are there that never end")


def outputs_of(group: JobGroup) -> list[list[TokenOutput]]:
    """What each sequence of a request has got."""
    outputs: dict[int, list[TokenOutput]] = {}
    for output in group.stream._pending:
        outputs.setdefault(output.index, []).append(output)
    return [outputs.get(index, []) for index in range(max(outputs, default=-1) + 1)]


def answer_alone(request: GenerationRequest, config: EngineConfig) -> list[int]:
    """The tokens of a request that nobody disturbs."""
    by_hand = EngineByHand(replace(config, n_blocks=64))
    group = by_hand.submit([request])
    by_hand.run_to_end()
    return [output.sampled.token for output in outputs_of(group)[0] if output.sampled]
