"""The engine: one thread that owns the model and repeats schedule, run, complete."""

import asyncio
import logging
import queue
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress

from lanewise.engine.base.adapters import holding
from lanewise.engine.base.block_pool import BlockPool
from lanewise.engine.base.config import EngineConfig
from lanewise.engine.base.request import GenerationRequest
from lanewise.engine.base.runner import BlockRunner, ModelRunner
from lanewise.engine.base.sequence import Scheduled
from lanewise.engine.base.step import Step
from lanewise.engine.base.stream import EngineError, EngineStoppedError, NoTokenError, RequestStream
from lanewise.engine.drawing.constraint import Constraint, ConstraintError
from lanewise.engine.drawing.masks import MaskFiller
from lanewise.engine.engine_thread import EngineThread
from lanewise.engine.guessing.draft_model import Drafter
from lanewise.engine.guessing.speculation import Speculator
from lanewise.engine.kv.states import states_for
from lanewise.engine.kv.store_parts import Files
from lanewise.engine.kv.stored_blocks import NoStore, StoredBlocks
from lanewise.engine.metering.metrics import Metrics
from lanewise.engine.scheduling.admission import Admission
from lanewise.engine.scheduling.deadlines import TimeLimits
from lanewise.engine.scheduling.pacing import Pacer, Work
from lanewise.engine.scheduling.scheduler import Scheduler
from lanewise.engine.scheduling.sight import Sight, Tower
from lanewise.engine.steps.delivery import Outbox, give_outputs
from lanewise.engine.steps.jobs import JobMaker
from lanewise.engine.steps.stepping import StepEvents, Stepper
from lanewise.engine.steps.tracking import Job, JobGroup, Tally, observe_end
from lanewise.runtime import NO_TOKEN, NativeError, Sampled

logger = logging.getLogger(__name__)

NOTHING_DRAWN = (None,)  # the end of a prompt of which no answer was asked for
NOTHING_ALLOWED = (
    "no token may come next: logit_bias, penalties and the tokens allowed leave none together"
)
# Requests with more work than this (``JobMaker.work``) are prepared in a thread: 1.3 million prompt
# tokens take 0.3 s.
INLINE_WORK = 4096
# How often sums in the metrics are updated, beside each change of the load.
PUBLISH_S = 0.05
READING_S = 0.05  # how long nothing runs at most while blocks are read, before all is looked at


class Engine(EngineThread):
    """Takes requests on event loops and answers them from its own thread."""

    def __init__(
        self,
        runner: ModelRunner,
        config: EngineConfig,
        metrics: Metrics,
        draft: Drafter | None = None,
        tower: Tower | None = None,
        image_bytes: int = 0,
        open_store: Callable[[], Files] | None = None,
    ) -> None:
        """With a ``tower`` prompts may have pictures, whose rows take ``image_bytes`` if kept."""
        self.config = config
        admission = Admission(self.largest_request, config.max_queued_tokens, metrics)
        super().__init__("lanewise-engine", admission, metrics)
        self._runner = runner
        self._pool = BlockPool(config.n_blocks)
        pacer = Pacer(config.itl_target_s) if config.itl_target_s else None
        self._store, states = NoStore(), states_for(config)
        if open_store is not None and isinstance(runner, BlockRunner):
            self._store = StoredBlocks(
                *(open_store, runner, self._pool, config.kv_windows, states),
                *(self._inbox.put, _cost(pacer)),
            )
        self._sight = None if tower is None else Sight(tower, image_bytes, metrics)
        self._scheduler = Scheduler(config, self._pool, pacer, self._sight, self._store, states)
        self._speculator = Speculator(config.max_draft, draft) if config.max_draft else None
        self._maker = JobMaker(config, self._speculator)
        self._jobs: dict[Scheduled, Job] = {}
        self._masks = MaskFiller(runner, config.has_spare_cpu)
        self._outbox = Outbox()
        self._limits = TimeLimits[JobGroup](
            config.queue_timeout_s, config.request_timeout_s, admission, metrics
        )
        self._busy = False  # whether there are sequences to run
        self._busy_since = 0.0  # time before this is in the metrics already
        self._published = (0, 0)
        self._tally = Tally()
        self._steps = Stepper(
            runner,
            self._scheduler,
            self._jobs,
            self._tally,
            StepEvents(
                planned=self._note_planned,
                completed=self._complete,
                failed=self._fail_alone,
                before_waiting=self._outbox.send,
            ),
            metrics=metrics,
            masks=self._masks,
            pacer=pacer,
            speculator=self._speculator,
            min_ahead_s=config.min_ahead_s,
        )

    # Called from event loops and from the code that starts and stops the engine.

    @property
    def max_model_len(self) -> int:
        """The most tokens that prompt and answer may have together."""
        return self.config.max_model_len

    @property
    def largest_request(self) -> int:
        """The most sequences that one request may ask for."""
        return self.config.max_seqs + self.config.max_queued_requests

    @asynccontextmanager
    async def submit(
        self,
        requests: Sequence[GenerationRequest],
        *,
        is_counted: bool = True,
        trace_id: str | None = None,
    ) -> AsyncIterator[RequestStream]:
        """The outputs of a request's sequences; leaving the block aborts those that have not ended.

        Requests that are not ``is_counted`` are left out of the metrics of requests and steps. The
        metrics' exemplars name ``trace_id``.

        ValueError if a sequence could never be run, QueueFullError or EngineStoppedError if the
        request is not accepted.
        """
        if self._maker.work(requests) > INLINE_WORK:
            group = await asyncio.to_thread(self._maker.make, requests)
        else:
            group = self._maker.make(requests)
        group.is_counted, group.trace_id = is_counted, trace_id
        group.is_timed = not requests[0].is_background
        stream = group.stream = RequestStream(
            asyncio.get_running_loop(),
            len(requests),
            on_stop=lambda index: self._inbox.put(lambda: self._handle_text_end(group, index)),
            on_cancel=lambda: self._inbox.put(lambda: self._handle_cancel(group)),
        )
        n_tokens = sum(len(request.prompt) for request in requests)
        # Accepted requests must be in the inbox before the engine's thread can end.
        with holding(group.adapter, len(requests)):
            self._admission.enter(
                requests[0].client,
                len(requests),
                n_tokens,
                lambda: self._inbox.put(lambda: self._handle_add(group)),
            )
        try:
            yield stream
        finally:
            stream.cancel()

    @property
    def _step_began(self) -> float | None:
        return self._steps.began

    # Everything below runs on the engine's thread.

    def _work(self) -> None:
        while self._receive():
            if self._sight is not None and not self._steps.has_step_in_flight:
                self._see(self._sight)
            self._steps.advance()
            if time.perf_counter() - self._busy_since >= PUBLISH_S:
                self._publish()

    def _see(self, sight: Sight) -> None:
        """Have rows of pictures made, for as long as sequences that run can wait."""
        beside_s = self._steps.last_s if self._scheduler.running else None
        if sight.is_working:
            self._outbox.send()
        if failed := sight.advance(beside_s):
            sequence, error = failed
            self._fail_alone([sequence], error)

    def _wind_up(self, error: EngineStoppedError) -> None:
        self._fail(list(self._jobs), error)
        self._outbox.send()
        try:
            self._publish()
        finally:
            self._masks.close()
            self._store.close()
            if self._sight is not None:
                self._sight.close()
            self._runner.close()
            if self._speculator is not None:
                self._speculator.close()

    def _receive(self) -> bool:
        """Handle messages that came since the last step; wait while there is nothing to run."""
        self._steps.wait()
        self._drain_inbox()
        for group, error in self._limits.late(time.monotonic()):
            self._fail_group(group, error)
        sees = self._sight is not None and self._sight.is_working
        if self._store.is_reading and not self._scheduler.running and not sees:
            self._outbox.send()
            with suppress(queue.Empty):
                self._inbox.get(timeout=READING_S)()
        while not self._jobs and not self._steps.has_step_in_flight and not self._stopping:
            self._publish()
            self._outbox.send()
            self._busy = False
            handle = self._inbox.get()
            self._busy, self._busy_since = True, time.perf_counter()
            self._steps.note_idle()
            handle()
            self._drain_inbox()
        return not self._stopping

    def _note_planned(self, step: Step) -> None:
        if step.preempted:
            self.metrics.preemptions.inc(len(step.preempted))
        now = time.monotonic()
        for sequence in step.admitted:
            job = self._jobs[sequence]
            self._tally.note_admitted(job)
            if job.started is None:
                self._admission.note_started(sequence.request.client, job.n_queued, now)
                job.note_started(now, self.metrics)

    def _complete(self, step: Step, results: Sequence[Sequence[Sampled]]) -> None:
        """Send the results of a step's turns, which are appended to their sequences already."""
        now = time.monotonic()
        if any(results):  # a part of a prompt draws nothing and does not show that the model works
            self.failures.note_success()
        jobs, tally = self._jobs, self._tally
        for turn, result in zip(step.turns, results, strict=True):
            sequence = turn.sequence
            job = jobs.get(sequence)
            if job is None:
                continue  # failed with another sequence of its request
            if turn.error is not None:
                self._fail_draw(sequence, turn.error)
                continue
            if turn.scored:
                job.prompt_scores += result[: len(turn.scored)]
                result = result[len(turn.scored) :]
            if job.n_prompt_counted < sequence.n_prompt:
                tally.note_prefill(job)
            drawn: Sequence[Sampled | None] = result
            constraint = job.sampler.constraint
            if result:
                if constraint is None:
                    tally.note_tokens(job, len(result), now, self.metrics)
            elif turn.end != sequence.n_known:
                continue  # only a part of its prompt was computed
            else:
                drawn = NOTHING_DRAWN
            if constraint is not None:
                self._complete_constrained(job, constraint, drawn[-1], now)
            else:
                self._send(job, drawn, sequence.finish_reason(drawn[-1]), now)
        if self._load() != self._published:
            self._publish()  # first: a client with its answer may ask for metrics

    def _send(
        self, job: Job, sampled: Sequence[Sampled | None], reason: str | None, now: float
    ) -> None:
        """Send tokens to the client; end the sequence if there is a finish reason."""
        scores: Sequence[Sampled] = ()
        if job.prompt_scores:
            scores, job.prompt_scores = job.prompt_scores, []
        self._outbox.add(job.group.stream.loop, give_outputs, job, sampled, scores, reason)
        if reason is not None:
            self._end(job, reason, now)

    def _complete_constrained(
        self, job: Job, constraint: Constraint, drawn: Sampled | None, now: float
    ) -> None:
        """Send the drawn token with the tokens that its grammar forces before and after it."""
        try:
            tokens, n_forced, reason = constraint.complete(job.sequence, drawn)
        except ConstraintError as error:
            self._fail([job.sequence], error)
            return
        if tokens:
            self._tally.note_tokens(job, len(tokens), now, self.metrics)
            self._tally.note_forced(n_forced)
        self._send(job, tokens or [None], reason, now)

    def _handle_add(self, group: JobGroup) -> None:
        arrived = group.jobs[0].arrived
        if group.is_timed:
            self._limits.add(group, arrived)
        if group.is_counted:
            self.metrics.params_n.observe(max(job.sequence.request.choice for job in group) + 1)
        for job in group:
            if group.is_counted:
                self.metrics.params_max_tokens.observe(job.sequence.request.params.max_tokens)
            self._jobs[job.sequence] = job
            self._scheduler.add(job.sequence)

    def _handle_text_end(self, group: JobGroup, index: int) -> None:
        """The text of a sequence contains a stop string: end the sequence."""
        if index in group.jobs:
            self._end(group.jobs[index], "stop", time.monotonic())

    def _handle_cancel(self, group: JobGroup) -> None:
        for job in group:
            self.metrics.cancelled[job.stage].inc()
            self._end(job, "abort", time.monotonic())
        self._publish()

    def _fail_alone(self, sequences: list[Scheduled], error: Exception) -> None:
        if sequences:
            self.failures.note_failure(error)
        self._fail(sequences, EngineError(f"the model failed: {error}"))

    def _fail_draw(self, sequence: Scheduled, error: NativeError) -> None:
        """Fail a request whose draw failed in a step where other draws succeeded."""
        if error.status == NO_TOKEN:
            self._fail([sequence], NoTokenError(NOTHING_ALLOWED))
            return
        logger.error("a draw failed: %s", error)
        self.metrics.step_errors.inc()
        self._fail_alone([sequence], error)

    def _fail(self, sequences: list[Scheduled], error: EngineError) -> None:
        """Fail the requests of these sequences, with all of their sequences."""
        for group in {self._jobs[sequence].group for sequence in sequences}:
            self._fail_group(group, error)

    def _fail_group(self, group: JobGroup, error: EngineError) -> None:
        self._outbox.add(group.stream.loop, group.stream.fail, error)
        for job in group:
            self._end(job, "error", time.monotonic())

    def _end(self, job: Job, reason: str, now: float) -> None:
        del self._jobs[job.sequence]
        self._scheduler.finish(job.sequence)
        if job.group.adapter is not None:
            job.group.adapter.release()
        observe_end(job, reason, now, self.metrics)
        self._admission.note_ended(job.sequence.request.client, job.n_queued, now)

    def _load(self) -> tuple[int, int]:
        return len(self._scheduler.running), self._scheduler.waiting.n_others

    def _publish(self) -> None:
        """Update the metrics that are not counted when things happen."""
        now = time.perf_counter()
        if self._busy:
            self.metrics.busy_seconds.inc(now - self._busy_since)
        self._busy_since = now
        self.metrics.count_native(self._runner.counters())
        self._tally.publish(self.metrics)
        self._published = running, waiting = self._load()
        self.metrics.set_load(running, waiting, self._pool.n_used)
        self.metrics.states.publish(self._scheduler.states.snapshots)
        self.metrics.store.publish(self._store.take_counts())
        if self.metrics.facts.max_loras:
            self.metrics.set_adapters(
                *(_names(part) for part in (self._scheduler.running, self._scheduler.waiting))
            )


def _names(sequences: Iterable[Scheduled]) -> str:
    """The adapters of these sequences, with commas between them."""
    used = (sequence.request.adapter for sequence in sequences)
    return ",".join(sorted({adapter.name for adapter in used if adapter is not None}))


def _cost(pacer: Pacer | None) -> Callable[[int, int], float] | None:
    """How long tokens behind others take to compute, if steps are measured."""
    if pacer is None:
        return None

    def seconds(n_tokens: int, n_before: int) -> float:
        work = Work()
        work.add(n_tokens, n_before)
        return pacer.cost.seconds_beyond(work)

    return seconds
