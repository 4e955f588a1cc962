"""Runs steps: plans them, hands them to the model and measures them."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from lanewise.engine.base.runner import AheadRunner, ModelRunner
from lanewise.engine.base.sequence import Scheduled, State
from lanewise.engine.base.step import Copies, Step
from lanewise.engine.drawing.masks import MaskFiller
from lanewise.engine.guessing.speculation import Guesser, Guesses, Speculator
from lanewise.engine.metering.metrics import Metrics
from lanewise.engine.scheduling.pacing import Pacer
from lanewise.engine.scheduling.scheduler import Scheduler
from lanewise.engine.steps.ahead import StepInFlight, can_run_ahead, keep_adapters
from lanewise.engine.steps.batching import make_batch, results_of
from lanewise.engine.steps.tracking import Job, Tally
from lanewise.runtime import Batch, Draw, Sampled, StepRefusedError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StepEvents:
    """Callbacks about steps, on the engine's thread."""

    planned: Callable[[Step], None]
    completed: Callable[[Step, Sequence[Sequence[Sampled]]], None]  # with each turn's results
    failed: Callable[[list[Scheduled], Exception], None]  # these sequences failed alone in a step
    before_waiting: Callable[[], None]  # the model is about to run, or runs, for a while


class Stepper:
    """Runs a scheduler's sequences; ``jobs`` has each one's sampler."""

    def __init__(
        self,
        runner: ModelRunner,
        scheduler: Scheduler,
        jobs: Mapping[Scheduled, Job],
        tally: Tally,
        events: StepEvents,
        *,
        metrics: Metrics,
        masks: MaskFiller,
        pacer: Pacer | None,
        speculator: Speculator | None,
        min_ahead_s: float,
    ) -> None:
        self._runner = runner
        self._ahead = runner if isinstance(runner, AheadRunner) else None
        self._min_ahead_s = min_ahead_s
        self._scheduler = scheduler
        self._jobs = jobs
        self._tally = tally
        self._events = events
        self._metrics = metrics
        self._masks = masks
        self._pacer = pacer
        self._speculator = speculator
        self._in_flight: StepInFlight | None = None  # begun ahead
        self._last_native = (0.0, 0.0)  # clock and native seconds at the end of the last call
        self.last_s = 0.0  # duration of the last step
        self._not_begun = ""  # the last error of a step that could not be begun ahead
        self.began: float | None = None  # start of the running step, by time.monotonic()

    @property
    def has_step_in_flight(self) -> bool:
        """Whether a step that was begun ahead is running."""
        return self._in_flight is not None

    def wait(self) -> None:
        """Return when the next step should be planned, before the running one ends."""
        if self._in_flight is not None:
            left_s = self._in_flight.time_left(time.perf_counter())
            if left_s > 0:
                self._events.before_waiting()
                self._in_flight.runner.wait(left_s)

    def note_idle(self) -> None:
        """Note that there was nothing to run: the time since the last step counts as no gap."""
        self._last_native = (0.0, 0.0)

    def advance(self) -> None:
        """Run a step, or begin one and finish the one begun before."""
        began = time.perf_counter()
        in_flight, self._in_flight = self._in_flight, None
        if in_flight is None:
            step = self._plan()
            self._start(step, self._runner_ahead(step), began)
            return
        planned = self._plan() if self._scheduler.can_plan_ahead else None
        ahead = None if planned is None else self._runner_ahead(planned)
        begun = None if planned is None or ahead is None else self._begin(planned, ahead)
        self._events.before_waiting()  # late: woken threads want the interpreter
        # If the running step fails, the step planned after it waits for tokens that did not come.
        # Its admitted sequences and unmade copies go to the next plan.
        if self._finish(in_flight, begun):
            self._in_flight = begun
            if planned is not None and begun is None:
                self._start(planned, None, began)

    def _start(self, step: Step, ahead: AheadRunner | None, began: float) -> None:
        """Begin a step ahead if possible, or run it."""
        step.turns = [turn for turn in step.turns if turn.sequence in self._jobs]
        if step.turns and ahead is not None:
            self._in_flight = self._begin(step, ahead)
        if step.turns and self._in_flight is None:
            self._run(step, began)

    def _plan(self) -> Step:
        step = self._scheduler.schedule()
        self._events.planned(step)
        return step

    def _runner_ahead(self, step: Step) -> AheadRunner | None:
        """The runner if a step can be begun ahead now; None if it must wait."""
        if self._ahead is None or not self._scheduler.can_plan_ahead:
            return None
        if self.last_s < self._min_ahead_s or self._is_own(step):
            return None
        if step.is_background:
            return None  # a request that comes meanwhile would wait for two steps
        if self._speculator is not None and self._speculator.wants(step, self._guesser_of):
            return None
        return self._ahead if can_run_ahead(step, self._jobs) else None

    def _begin(self, step: Step, runner: AheadRunner) -> StepInFlight | None:
        """Begin a step, which the library runs after the current one."""
        copies = self._scheduler.take_copies()
        try:
            batch, draws = self._batch(step, copies)
            runner.start(batch, draws)
        except Exception as error:
            self._scheduler.give_back(copies)
            if str(error) != self._not_begun:  # log a repeated error only once
                self._not_begun = str(error)
                logger.warning("a step cannot be begun ahead: %s", error)
            return None  # the caller runs it alone; then only the faulty sequence fails
        began = time.perf_counter()
        work = self._scheduler.work_of(step.turns)
        expected_s = 0.0 if self._pacer is None else self._pacer.cost.seconds(work)
        self._scheduler.begin(step)
        if self.began is None:
            self.began = time.monotonic()
        adapters = keep_adapters(step)
        n_rows = len(batch.token_ids)
        return StepInFlight(runner, step, n_rows, work, began, expected_s, adapters, copies)

    def _finish(self, in_flight: StepInFlight, next_one: StepInFlight | None) -> bool:
        """Wait for a step begun ahead and complete it; false if it failed."""
        step = in_flight.step
        try:
            finished = in_flight.runner.finish()
        except Exception as error:
            was_run = next_one is not None and self._skip(next_one)
            self.began = None
            self._scheduler.take_back(step)
            if isinstance(error, StepRefusedError):
                self._scheduler.give_back(in_flight.copies)
            else:
                self._scheduler.blocks.note_copied(in_flight.copies.states)
            if next_one is not None and was_run and self._scheduler.states.exist:
                self._scheduler.lose_states(next_one.step.turns, failed=False)
            self._run_each(step, error)
            return False
        finally:
            in_flight.let_go()
        self.began = None if next_one is None else time.monotonic()
        if next_one is not None:
            next_one.began = finished.ended
        last_ended = self._last_native[0]
        if last_ended:
            self._tally.note_gap(max(0.0, finished.began - last_ended))
        self._last_native = (finished.ended, self._runner.counters().native_seconds)
        seconds = self.last_s = finished.ended - finished.began
        if self._pacer is not None:
            self._pacer.cost.learn(in_flight.work, seconds)
        self._tally.note_step(in_flight.n_rows)
        self._note_run(step, results_of(step, finished.drawn))
        self._scheduler.blocks.note_copied(in_flight.copies.states)
        self._learn(Guesses(), in_flight.n_rows, seconds)
        # Without a next step, ``wants`` or ``add_guesses`` searches when the next one is planned.
        if self._speculator is not None and next_one is not None:
            self._speculator.search(step, self._guesser_of)
        return True

    def _skip(self, in_flight: StepInFlight) -> bool:
        """Finish a step that was begun after one that failed; returns whether it did anything."""
        was_run = True
        try:
            in_flight.runner.finish()
        except StepRefusedError:  # it needed a token that the failed step should have drawn
            self._scheduler.give_back(in_flight.copies)
            was_run = False
        except Exception:
            logger.exception("a step after a failed one failed too")
        if was_run:
            self._scheduler.blocks.note_copied(in_flight.copies.states)
        in_flight.let_go()
        self._scheduler.take_back(in_flight.step)
        return was_run

    def _run(self, step: Step, began: float) -> None:
        guesses, is_own = Guesses(), self._is_own(step)
        if is_own:
            self._metrics.count_native(self._runner.counters())
        try:
            if self._speculator is not None and self._scheduler.may_guess:
                guesses = self._speculator.add_guesses(step, self._scheduler, self._guesser_of)
            results, n_rows = self._compute(step)
        except Exception as error:
            self._run_each(step, error)
        else:
            if is_own:
                self._metrics.skip_native(self._runner.counters())
            else:
                self._tally.note_step(n_rows)
            self._note_run(step, results)
            self._learn(guesses, n_rows, time.perf_counter() - began)

    def _is_own(self, step: Step) -> bool:
        """Whether a step has only the server's own requests, which are not counted."""
        is_own = False
        for turn in step.turns:
            job = self._jobs.get(turn.sequence)
            if job is not None:
                if job.group.is_counted:
                    return False
                is_own = True
        return is_own

    def _learn(self, guesses: Guesses, n_rows: int, seconds: float) -> None:
        if self._speculator is not None:
            for n_guessed, n_accepted in self._speculator.learn(guesses, n_rows, seconds):
                self._tally.note_draft(n_guessed, n_accepted)

    def _note_run(self, step: Step, results: Sequence[Sequence[Sampled]]) -> None:
        self._scheduler.record(step, results)
        self._events.completed(step, results)

    def _run_each(self, step: Step, error: Exception) -> None:
        """After a failed step run each sequence alone: a bad one then fails only itself."""
        logger.error("a step of %d sequences failed: %s", len(step.turns), error)
        self._metrics.step_errors.inc()
        turns = [turn for turn in step.turns if turn.sequence in self._jobs]
        if len(step.turns) == 1:
            self._events.failed([turn.sequence for turn in turns], error)
            return
        if self._scheduler.states.exist and not isinstance(error, StepRefusedError):
            self._scheduler.lose_states(turns, failed=True)
            return
        for turn in turns:
            # Skip sequences that failed with their request, or that lost their state.
            if turn.sequence in self._jobs and turn.sequence.state is State.RUNNING:
                turn.draft = ()
                self._run(Step([turn]), time.perf_counter())

    def _compute(self, step: Step) -> tuple[list[Sequence[Sampled]], int]:
        """The results of a step for each turn, and the rows that it ran."""
        copies, copied = self._scheduler.take_copies(), False
        try:
            batch, draws = self._batch(step, copies)
            self._begin_masks(step)
            # The last step's results are sent now and not earlier: woken threads want the
            # interpreter, and get it during the native call instead of in the middle of our own
            # work.
            self._events.before_waiting()
            native_began = time.perf_counter()
            self.began = time.monotonic()
            copied = True  # as after every error except a refusal
            sampled = self._runner.step_and_draw(batch, draws)
        except StepRefusedError:
            copied = False
            raise
        finally:
            if copied:
                self._scheduler.blocks.note_copied(copies.states)
            else:
                self._scheduler.give_back(copies)
            self.began = None
            self._masks.end()
        ended, native = time.perf_counter(), self._runner.counters().native_seconds
        last_ended, last_native = self._last_native
        if last_ended:
            gap_s = ended - last_ended - (native - last_native)
            self._tally.note_gap(gap_s)
            if self._speculator is not None:
                self._speculator.note_wait(len(batch.token_ids), gap_s)
        self._last_native = (ended, native)
        self.last_s = ended - native_began
        if self._pacer is not None:
            self._pacer.cost.learn(self._scheduler.work_of(step.turns), self.last_s)
        return results_of(step, sampled), len(batch.token_ids)

    def _batch(self, step: Step, copies: Copies) -> tuple[Batch, list[Draw]]:
        scheduler, speculator = self._scheduler, self._speculator
        skips = speculator is not None and speculator.skips_head(step, self._guesser_of)
        tables, pictures = scheduler.blocks.tables, scheduler.pictures
        return make_batch(step, tables, self._jobs, copies, pictures, skips)

    def _guesser_of(self, sequence: Scheduled) -> Guesser | None:
        job = self._jobs.get(sequence)
        return None if job is None else job.guesser

    def _begin_masks(self, step: Step) -> None:
        """Begin to compute which tokens grammars allow in a step."""
        began = time.perf_counter()
        samplers = [self._jobs[turn.sequence].sampler for turn in step.turns if turn.ends_in_draw]
        constraints = [one.constraint for one in samplers if one.constraint is not None]
        if constraints:
            self._masks.begin(constraints)
            self._tally.note_masks(time.perf_counter() - began)
