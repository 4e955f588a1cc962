"""What the engine keeps about a sequence beside its tokens: its request and its times."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from lanewise.engine.base.adapters import LoadedAdapter
from lanewise.engine.base.sequence import Scheduled, State
from lanewise.engine.base.stream import RequestStream
from lanewise.engine.drawing.sampling import Sampler
from lanewise.engine.guessing.speculation import Guesser
from lanewise.engine.metering.metrics import Metrics
from lanewise.runtime import Sampled


@dataclass(eq=False, slots=True)
class JobGroup:
    """The sequences of one request."""

    adapter: LoadedAdapter | None = None  # of all its sequences
    is_counted: bool = True  # in metrics: the server's own requests are not
    is_timed: bool = True  # somebody waits for it, so metrics and limits of time are for it
    trace_id: str | None = None  # for the metrics' exemplars; None: not traced
    stream: RequestStream = field(init=False)
    jobs: dict[int, "Job"] = field(default_factory=dict)  # sequences that have not ended
    largest_output: int = 0

    def __iter__(self) -> Iterator["Job"]:
        return iter(list(self.jobs.values()))

    @property
    def is_over(self) -> bool:
        """Whether all sequences have ended."""
        return not self.jobs

    @property
    def has_started(self) -> bool:
        """Whether every sequence has been in a step."""
        return all(job.started is not None for job in self.jobs.values())


@dataclass(eq=False, slots=True)
class Job:
    """One sequence being answered."""

    group: JobGroup
    index: int
    sequence: Scheduled
    sampler: Sampler
    arrived: float
    guesser: Guesser | None = None
    started: float | None = None
    first_token: float | None = None
    last_token: float = 0.0
    n_prompt_counted: int = 0
    prompt_scores: list[Sampled] = field(default_factory=list)

    @property
    def stage(self) -> str:
        """Where the sequence is: queue, prefill or decode."""
        if self.sequence.state is State.WAITING:
            return "queue"
        return "prefill" if self.first_token is None else "decode"

    @property
    def n_queued(self) -> int:
        """Tokens of its prompt while it has not begun to run, then 0."""
        return self.sequence.n_prompt if self.started is None else 0

    def note_started(self, now: float, metrics: Metrics) -> None:
        """The sequence is in a step, perhaps for the first time."""
        if self.started is None:
            self.started = now
            moments = self.group.stream.moments
            moments.started = moments.started or now
            if self.group.is_counted and self.group.is_timed:
                metrics.queue.observe(now - self.arrived, trace_id=self.group.trace_id)


class Tally:
    """Counts of what steps did since the metrics were last updated.

    Adding to these few numbers is cheap. A counter or histogram touches far more memory, which the
    step has driven out of the CPU's caches.
    """

    def __init__(self) -> None:
        self._prompt_tokens = 0  # computed
        self._prefix_queries = 0
        self._prefix_hits = 0
        self._generation_tokens = 0
        self._guessed: list[tuple[int, int]] = []
        self._forced_tokens = 0
        self._mask_s = 0.0
        self._step_tokens: list[int] = []
        self._token_gaps_s: dict[float, int] = {}  # most tokens of a step have the same gap
        self._step_gaps_s: list[float] = []

    def note_gap(self, seconds: float) -> None:
        """Note the time between the native calls of two steps."""
        self._step_gaps_s.append(seconds)

    def note_step(self, n_tokens: int) -> None:
        """Note a step of ``n_tokens`` tokens."""
        self._step_tokens.append(n_tokens)

    def note_draft(self, n_guessed: int, n_accepted: int) -> None:
        """Note that a sequence ran ``n_guessed`` guesses; the first ``n_accepted`` came true."""
        self._guessed.append((n_guessed, n_accepted))

    def note_admitted(self, job: Job) -> None:
        """Note that a sequence starts, with part of its prompt cached."""
        if job.sequence.n_preempted == 0:
            job.n_prompt_counted = job.sequence.n_reused
            moments = job.group.stream.moments
            moments.n_read = moments.n_reused = job.sequence.n_reused
            if not job.group.is_counted:
                return
            self._prefix_queries += job.sequence.n_prompt
            self._prefix_hits += job.sequence.n_reused

    def note_prefill(self, job: Job) -> None:
        """Note newly computed prompt tokens, without tokens computed again after a preemption."""
        counted, n_prompt = job.n_prompt_counted, job.sequence.n_prompt
        if counted < n_prompt:
            job.n_prompt_counted = max(counted, min(job.sequence.n_cached, n_prompt))
            job.group.stream.moments.n_read = job.n_prompt_counted
            if job.group.is_counted:
                self._prompt_tokens += job.n_prompt_counted - counted

    def note_tokens(self, job: Job, count: int, now: float, metrics: Metrics) -> None:
        """Note answer tokens that came together: they share the time since the last ones.

        Tokens together with the first one share its time, which is no time between tokens.
        """
        is_first, last, job.last_token = job.first_token is None, job.last_token, now
        if is_first:
            job.first_token = now
            moments = job.group.stream.moments
            moments.first_token = moments.first_token or now
        if not job.group.is_counted:
            return
        self._generation_tokens += count
        if not job.group.is_timed:
            return
        if is_first:
            metrics.ttft.observe(now - job.arrived, trace_id=job.group.trace_id)
        else:
            gap_s = (now - last) / count
            self._token_gaps_s[gap_s] = self._token_gaps_s.get(gap_s, 0) + count

    def note_forced(self, count: int) -> None:
        """Note tokens that a grammar forced."""
        self._forced_tokens += count

    def note_masks(self, seconds: float) -> None:
        """Note how long a step was delayed by its masks."""
        self._mask_s += seconds

    def publish(self, metrics: Metrics) -> None:
        """Add everything to the metrics and start again from zero."""
        metrics.count_prompts(self._prefix_hits, self._prompt_tokens)
        metrics.generation_tokens.inc(self._generation_tokens)
        metrics.forced_tokens.inc(self._forced_tokens)
        metrics.mask_seconds.inc(self._mask_s)
        metrics.count_prefixes(self._prefix_queries, self._prefix_hits)
        for n_tokens in self._step_tokens:
            metrics.step_tokens.observe(n_tokens)
        for gap_s, count in self._token_gaps_s.items():
            metrics.itl.observe(gap_s, count)
        for gap_s in self._step_gaps_s:
            metrics.step_gap.observe(gap_s)
        if self._guessed:
            metrics.count_drafts(self._guessed)
            self._guessed.clear()
        self._prompt_tokens = self._generation_tokens = 0
        self._prefix_queries = self._prefix_hits = 0
        self._forced_tokens, self._mask_s = 0, 0.0
        self._step_tokens.clear()
        self._token_gaps_s.clear()
        self._step_gaps_s.clear()


def observe_end(job: Job, reason: str, now: float, metrics: Metrics) -> None:
    """Note a sequence's end; times and sizes are observed only if it was answered."""
    group = job.group
    group.jobs.pop(job.index)
    if not group.is_counted:
        return
    metrics.success[reason].inc()
    n_output = job.sequence.n_output
    group.largest_output = max(group.largest_output, n_output)
    if reason not in ("stop", "length") or not group.is_timed:
        return
    metrics.e2e.observe(now - job.arrived, trace_id=group.trace_id)
    metrics.prompt_size.observe(job.sequence.n_prompt)
    metrics.output_size.observe(n_output)
    if job.started is not None:
        metrics.inference.observe(now - job.started)
    if job.started is not None and job.first_token is not None:
        metrics.prefill.observe(job.first_token - job.started)
        metrics.decode.observe(now - job.first_token)
        if n_output > 1:
            mean_s = (job.last_token - job.first_token) / (n_output - 1)
            metrics.tpot.observe(mean_s, trace_id=group.trace_id)
    if not group.jobs:
        metrics.largest_output_size.observe(group.largest_output)
