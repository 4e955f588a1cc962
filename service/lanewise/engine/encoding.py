"""The engine of a pooled model (vectors, scores): one thread that runs whole texts in steps."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

from lanewise.engine.base.stream import EngineError, EngineStoppedError
from lanewise.engine.engine_thread import EngineThread
from lanewise.engine.metering.metrics import Metrics
from lanewise.engine.scheduling.admission import Admission
from lanewise.engine.scheduling.deadlines import TimeLimits
from lanewise.engine.scheduling.text_queue import (
    EncodingJob,
    EncodingRequest,
    Floats,
    Ids,
    TextQueue,
    Turn,
)
from lanewise.engine.steps.delivery import Outbox

logger = logging.getLogger(__name__)


class EncoderRunner(Protocol):
    """The engine's view of an encoder: ``lanewise.runtime.Encoder``, or a fake in tests."""

    def run(
        self,
        texts: Sequence[Ids],
        token_types: Sequence[Ids] | None = None,
        *,
        pooling: str | None = None,
        normalize: bool | None = None,
        seen: Sequence[int] | None = None,
    ) -> Floats:
        """One row for each text, or with pooling "none" one for each token.

        ``seen`` is how many first tokens of each text its tokens attend to; None: all.
        """

    def close(self) -> None:
        """Free everything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderConfig:
    """What the engine may use, and how long its users may wait."""

    max_text_tokens: int
    vocab_size: int
    dims: int  # numbers in a row
    max_step_tokens: int = 512  # a longer text runs as a step of its own
    max_step_texts: int = 512
    max_requests: int = 320  # running or waiting
    max_queued_tokens: int = 1 << 20
    queue_timeout_s: float = 0.0  # 0 = none; so for the next
    request_timeout_s: float = 0.0


class EncoderEngine(EngineThread):
    """Takes texts on event loops and answers with their rows, computed on its own thread."""

    def __init__(self, runner: EncoderRunner, config: EncoderConfig, metrics: Metrics) -> None:
        admission = Admission(
            config.max_requests, config.max_queued_tokens, metrics, "requests", "texts"
        )
        super().__init__("lanewise-encoder", admission, metrics)
        self.config = config
        self._runner = runner
        self._queue = TextQueue()
        self._jobs: set[EncodingJob] = set()
        self._outbox = Outbox()
        self._limits = TimeLimits[EncodingJob](
            config.queue_timeout_s, config.request_timeout_s, admission, metrics
        )
        self._began: float | None = None  # when the running step began; None between steps

    # Called from event loops and from the code that starts and stops the engine.

    @property
    def max_model_len(self) -> int:
        """The most tokens that a text may have."""
        return self.config.max_text_tokens

    async def encode(
        self, request: EncodingRequest, *, is_counted: bool = True, trace_id: str | None = None
    ) -> list[Floats]:
        """The row of each text, or with pooling "none" the rows of its tokens.

        Cancelling the caller drops its texts. QueueFullError or EngineStoppedError if the texts are
        not accepted, EngineError if the model fails.
        """
        loop = asyncio.get_running_loop()
        job = EncodingJob(
            request, time.monotonic(), loop, loop.create_future(), is_counted, trace_id
        )
        self._admission.enter(
            request.client, 1, job.n_tokens, lambda: self._inbox.put(lambda: self._handle_add(job))
        )
        try:
            return await job.done
        finally:
            if job.done.cancelled():
                self._inbox.put(lambda: self._handle_cancel(job))

    @property
    def _step_began(self) -> float | None:
        return self._began

    # Everything below runs on the engine's thread.

    def _work(self) -> None:
        while self._receive():
            self._step()

    def _wind_up(self, error: EngineStoppedError) -> None:
        for job in list(self._jobs):
            self._fail(job, error)
        self._outbox.send()
        self._runner.close()

    def _receive(self) -> bool:
        """Handle messages that came since the last step; wait while there is nothing to run."""
        self._drain_inbox()
        for job, error in self._limits.late(time.monotonic()):
            self._fail(job, error)
        self._outbox.send()
        while not self._jobs and not self._stopping:
            self._inbox.get()()
            self._drain_inbox()
            self._outbox.send()
        return not self._stopping

    def _handle_add(self, job: EncodingJob) -> None:
        self._limits.add(job, job.arrived)
        self._jobs.add(job)
        self._queue.add(job)
        self._show_load()
        if not job.request.texts:
            self._finish(job)

    def _handle_cancel(self, job: EncodingJob) -> None:
        if job in self._jobs:
            self.metrics.cancelled["prefill" if job.has_started else "queue"].inc()
            self._end(job, "abort")

    def _step(self) -> None:
        """Run a step's texts, equal modes in one call; answer requests that are complete."""
        turns = self._queue.take(self.config.max_step_tokens, self.config.max_step_texts)
        now = time.monotonic()
        for turn in turns:
            self._note_started(turn, now)
        self._show_load()
        turns.sort(key=lambda turn: repr(turn.job.request.mode))
        for _, equal in groupby(turns, key=lambda turn: turn.job.request.mode):
            self._run(list(equal))
        for turn in turns:
            job = turn.job
            if job in self._jobs and not job.n_left:
                self._finish(job)

    def _note_started(self, turn: Turn, now: float) -> None:
        job = turn.job
        self._admission.note_started(job.request.client, turn.n_tokens, now)
        if job.started is None:
            job.started = now
            if job.is_counted:
                self.metrics.queue.observe(now - job.arrived, trace_id=job.trace_id)

    def _run(self, turns: Sequence[Turn]) -> None:
        self._began = time.monotonic()
        began = time.perf_counter()
        try:
            self._compute(turns)
        except Exception as error:
            self._began = None
            self._run_each(turns, error)
            return
        finally:
            self._began = None
        self.failures.note_success()
        counted = [turn for turn in turns if turn.job.is_counted]
        if counted:
            self._note_step(counted, time.perf_counter() - began)

    def _compute(self, turns: Sequence[Turn]) -> None:
        texts: list[Ids] = []
        types: list[Ids] = []
        seen: list[int] = []
        for turn in turns:
            texts += turn.job.request.texts[turn.first : turn.end]
            types += (turn.job.request.types or ())[turn.first : turn.end]
            seen += (turn.job.request.seen or ())[turn.first : turn.end]
        request = turns[0].job.request
        rows = self._runner.run(
            *(texts, types or None),
            pooling=request.pooling,
            normalize=request.normalize,
            seen=seen or None,
        )
        at = 0
        for turn in turns:
            for text in turn.job.request.texts[turn.first : turn.end]:
                if request.pooling == "none":
                    turn.job.rows.append(rows[at : at + len(text)])
                    at += len(text)
                else:
                    turn.job.rows.append(rows[at])
                    at += 1

    def _run_each(self, turns: Sequence[Turn], error: Exception) -> None:
        """After a failed step run each request alone: a bad text then fails only its own."""
        logger.error("a step of %d requests failed: %s", len(turns), error)
        self.metrics.step_errors.inc()
        if len(turns) == 1:
            self.failures.note_failure(error)
            self._fail(turns[0].job, EngineError(f"the model failed: {error}"))
            return
        for turn in turns:
            self._run([turn])

    def _finish(self, job: EncodingJob) -> None:
        now = time.monotonic()
        if job.is_counted:
            self._note_answer(job, now)
        # Before answering: a client that has its answer must be able to queue again.
        self._end(job, "stop")
        self._outbox.add(job.loop, _settle, job)

    def _fail(self, job: EncodingJob, error: EngineError) -> None:
        self._end(job, "error")
        self._outbox.add(job.loop, _settle, job, error)

    def _end(self, job: EncodingJob, reason: str) -> None:
        job.is_over = True
        self._jobs.discard(job)
        self._queue.remove(job)
        if job.is_counted:
            self.metrics.success[reason].inc()
        self._admission.note_ended(job.request.client, job.n_left_tokens, time.monotonic())
        self._show_load()

    def _note_step(self, turns: Sequence[Turn], seconds: float) -> None:
        metrics, n_tokens = self.metrics, sum(turn.n_tokens for turn in turns)
        n_texts = sum(turn.end - turn.first for turn in turns)
        metrics.encoding.texts.inc(n_texts)
        metrics.encoding.of_step.observe(n_texts)
        metrics.count_prompts(0, n_tokens)
        metrics.step_tokens.observe(n_tokens)
        metrics.native_steps.inc()
        metrics.native_seconds.inc(seconds)
        metrics.busy_seconds.inc(seconds)

    def _note_answer(self, job: EncodingJob, now: float) -> None:
        metrics = self.metrics
        metrics.encoding.of_request.observe(len(job.request.texts))
        metrics.e2e.observe(now - job.arrived, trace_id=job.trace_id)
        metrics.prompt_size.observe(job.n_tokens)
        if job.started is not None:
            metrics.inference.observe(now - job.started)
            metrics.prefill.observe(now - job.started)

    def _show_load(self) -> None:
        running = sum(job.has_started for job in self._jobs)
        self.metrics.set_load(running, len(self._jobs) - running, 0)
        self.metrics.encoding.queued_texts.set(self._queue.n_texts)


def _settle(job: EncodingJob, error: EngineError | None = None) -> None:
    """Give the caller its rows or an error, on its event loop, unless it was cancelled."""
    if job.done.done():
        return
    if error is None:
        job.done.set_result(job.rows)
    else:
        job.done.set_exception(error)
