"""``lanewise bench``: tokens per second, and which share of this machine's limits that is.

A prompt test (``pp512``) runs a prompt of distinct tokens and asks for the logits of its last one.
A decode test (``tg128@8``) gives 8 sequences a short context of distinct tokens each and lets them
decode 128 tokens together with greedy sampling; tokens per second count all of them.
"""

import json
import statistics
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.table import Table

from lanewise.commands import bench_publish
from lanewise.commands.bench_profile import Profile, Row, print_rows, report_rows
from lanewise.commands.bench_timing import Timed
from lanewise.commands.opening import Opened, open_model
from lanewise.host import cpu_name, format_size
from lanewise.planning.work import (
    cached_token_bytes,
    moved_state_bytes,
    share_of_experts,
    step_bytes,
)
from lanewise.runtime import (
    BLOCK_TOKENS,
    Batch,
    Draw,
    Limits,
    ModelInfo,
    Sampling,
    Session,
    measure_limits,
    raise_failed,
)
from lanewise.runtime.step_threads import limit_threads
from lanewise.settings import BenchSettings, SettingsError

MAX_STEP_TOKENS = 512
MIN_WIDTH = 110  # of the table, where no terminal says how wide it is
# Waiting for processors longer, or repeats that differ more, says that others were there.
FREE, STEADY = 0.05, 0.1
# Coprime to every vocabulary size in use, so that the tokens of a prompt are all different.
TOKEN_STRIDE = 7919


@dataclass(frozen=True, slots=True)
class Result:
    """One test: its name as in llama-bench and its median over the repeats."""

    name: str
    tokens_per_second: float
    spread: float  # standard deviation of the repeats, in tokens per second
    share_of_limit: float
    profile: list[Row] | None


@dataclass(frozen=True, slots=True)
class Test:
    """What was measured of one test, and the least that one of its tokens costs."""

    name: str
    tokens_per_second: float
    spread: float
    waited: float  # share of the time of all threads in which others had the processors
    work: "Work"
    profile: Profile | None


def run(settings: BenchSettings) -> None:
    """Run all tests and print a table or a JSON object."""
    if settings.publish:
        settings = bench_publish.standard(settings)
    with open_model(settings, draft=settings.draft) as opened:
        if settings.replay:
            _replay(settings, opened)
            return
        bench_publish.check(settings, opened.checkpoint.files)
        report, results = measure(settings, opened)
        if settings.publish:
            theirs = bench_publish.measure_theirs(settings, opened)
            print(bench_publish.as_markdown(settings, opened, report, theirs))
            return
    if settings.json:
        print(json.dumps(report))
    else:
        _print_table(report, results)


def measure(settings: BenchSettings, opened: Opened) -> tuple[dict[str, object], list[Result]]:
    """All that is reported, as plain values, and the results of its tests."""
    _check_lengths(settings, opened)
    before = measure_limits(opened.threads, settings.isa)
    tests = run_tests(settings, opened)
    after = measure_limits(opened.threads, settings.isa)
    # Neighbours on a shared host only ever slow a measurement down, so the better one counts.
    limits = Limits(
        read_gb_s=max(before.read_gb_s, after.read_gb_s),
        int8_gmac_s=max(before.int8_gmac_s, after.int8_gmac_s),
    )
    results = [
        Result(
            name=test.name,
            tokens_per_second=test.tokens_per_second,
            spread=test.spread,
            share_of_limit=share_of_limit(test.work, test.tokens_per_second, limits),
            profile=report_rows(test.profile, limits) if test.profile else None,
        )
        for test in tests
    ]
    report = {
        **_circumstances(opened),
        "limits": asdict(limits),
        "busy": why_busy(tests),
        "results": [asdict(result) for result in results],
        "context": settings.context,
        "repeat": settings.repeat,
    }
    return report, results


def why_busy(tests: Sequence[Test]) -> str | None:
    """What says that others used the machine meanwhile, so that figures are too low."""
    for test in tests:
        if test.waited > FREE:
            return f"{test.waited:.0%} of the time of {test.name} was spent waiting for a processor"
        if test.spread > STEADY * test.tokens_per_second:
            share = test.spread / test.tokens_per_second
            return f"repeats of {test.name} differ by {share:.0%} (standard deviation)"
    return None


def _replay(settings: BenchSettings, opened: Opened) -> None:
    # Imported here: nothing else needs the engine.
    from lanewise.commands.bench_replay import print_replays, run_replays

    results = run_replays(settings, opened)
    if settings.json:
        print(json.dumps({**_circumstances(opened), "replays": [asdict(one) for one in results]}))
    else:
        print_replays(results)


def _circumstances(opened: Opened) -> dict[str, object]:
    return {
        "model": opened.checkpoint.name,
        "weights": opened.model.weights,
        "isa": opened.model.info.isa,
        "threads": opened.threads,
        "cpu": cpu_name(),
        "kv_type": opened.kv_type,
        "numerics": opened.model.info.numerics,
        "size_bytes": opened.model.info.packed_bytes,
        "parameters": opened.model.info.held_weights,
    }


@dataclass(frozen=True, slots=True)
class Work:
    """What one token of a test costs at least: bytes from memory, or to it, and int8 products."""

    n_bytes: float
    macs: float


def share_of_limit(work: Work, tokens_per_second: float, limits: Limits) -> float:
    """The larger of the shares of the read bandwidth and of the integer-dot peak."""
    bandwidth = work.n_bytes * tokens_per_second / (limits.read_gb_s * 1e9)
    compute = work.macs * tokens_per_second / (limits.int8_gmac_s * 1e9)
    return max(bandwidth, compute)


def prefill_work(info: ModelInfo) -> Work:
    """A prompt is bound by arithmetic alone: every layer weight once for each token."""
    return Work(n_bytes=0.0, macs=float(info.layer_weights))


def decode_work(
    info: ModelInfo,
    kv_token_bytes: float,
    context: float,
    batch: int,
    expert_share: float = 1.0,
    moved_state_bytes: float = 0.0,
) -> Work:
    """Each step reads its matrices once for the whole batch, and each sequence's own context.

    States of each are read and written.

    One sequence is bound by reading alone; arithmetic counts once several share the weights.
    """
    read_bytes = step_bytes(info.matrix_bytes, info.expert_bytes, expert_share, batch)
    return Work(
        n_bytes=read_bytes / batch + kv_token_bytes * context + moved_state_bytes,
        macs=float(info.matrix_weights) if batch > 1 else 0.0,
    )


def run_tests(settings: BenchSettings, opened: Opened) -> list[Test]:
    """Measure what the settings ask for."""
    info = opened.model.info
    kv_token_bytes = cached_token_bytes(opened.model, opened.kv_type)
    tests = []
    if settings.prefill:
        name, tokens = f"pp{settings.prefill}", settings.prefill
        _say(name)
        timed, profile = _measure(opened, settings, 1, tokens, _time_prefill)
        tests.append(_test(name, tokens, timed, opened.threads, prefill_work(info), profile))
    for batch in settings.batch if settings.decode else ():

        def decode(bench: "Bench", tokens: int) -> Timed:
            return _time_decode(bench, context=settings.context, tokens=tokens - settings.context)

        length = settings.context + settings.decode
        name = f"tg{settings.decode}" + (f"@{batch}" if batch > 1 else "")
        _say(name)
        timed, profile = _measure(opened, settings, batch, length, decode)
        work = decode_work(
            info,
            kv_token_bytes,
            settings.context + (settings.decode + 1) / 2,
            batch,
            share_of_experts(opened.model.config),
            moved_state_bytes(opened.model),
        )
        tokens = batch * settings.decode
        tests.append(_test(name, tokens, timed, opened.threads, work, profile))
    return tests


def _say(name: str) -> None:
    """A line, no bar: what draws one would take a processor from what is measured."""
    print(f"lanewise: measuring {name}", file=sys.stderr, flush=True)


def _test(
    name: str,
    tokens: int,
    timed: Sequence[Timed],
    threads: int,
    work: "Work",
    profile: Profile | None,
) -> Test:
    """What some repeats come to."""
    speeds = [tokens / one.seconds for one in timed]
    return Test(
        name=name,
        tokens_per_second=tokens / statistics.median(one.seconds for one in timed),
        spread=statistics.stdev(speeds) if len(speeds) > 1 else 0.0,
        waited=statistics.median(one.waited_s / (threads * one.seconds) for one in timed),
        work=work,
        profile=profile,
    )


class Bench:
    """Sequences of equal length, each in blocks of its own."""

    def __init__(self, session: Session, batch: int, length: int, vocab_size: int) -> None:
        per_sequence = -(-length // BLOCK_TOKENS)
        self.session = session
        self.profile: Profile | None = None
        self.batch = batch
        self.vocab_size = vocab_size
        self.block_tables = [
            [s * per_sequence + i for i in range(per_sequence)] for s in range(batch)
        ]

    def measured(self) -> AbstractContextManager[None]:
        """Around what a test times: profiled when a profile is set."""
        return self.profile.measure(self.session) if self.profile else nullcontext()

    def prefill(self, sequence: int, tokens: int) -> int:
        """Give one sequence a prompt in steps of at most 512 tokens; returns the token after it."""
        first = 1 + sequence * tokens
        prompt = [(first + i) * TOKEN_STRIDE % self.vocab_size for i in range(tokens)]
        for start in range(0, tokens, MAX_STEP_TOKENS):
            chunk = prompt[start : start + MAX_STEP_TOKENS]
            is_last = start + len(chunk) == tokens
            drawn = self.session.step_and_draw(
                Batch(
                    token_ids=chunk,
                    query_start=[0, len(chunk)],
                    context_lens=[start],
                    block_tables=self.block_tables,
                    logit_rows=[len(chunk) - 1] if is_last else [],
                    table_rows=[sequence],
                ),
                [GREEDY] * is_last,
            )
        raise_failed(drawn)
        return drawn[0].token

    def decode(self, tokens: list[int], context: int) -> list[int]:
        """One step of all sequences; returns the next token of each."""
        drawn = self.session.step_and_draw(
            Batch(
                token_ids=tokens,
                query_start=list(range(self.batch + 1)),
                context_lens=[context] * self.batch,
                block_tables=self.block_tables,
                logit_rows=list(range(self.batch)),
            ),
            [GREEDY] * self.batch,
        )
        raise_failed(drawn)
        return [one.token for one in drawn]


GREEDY = Draw(Sampling(temperature=0.0))


def _measure(
    opened: Opened,
    settings: BenchSettings,
    batch: int,
    length: int,
    test: Callable[[Bench, int], Timed],
) -> tuple[list[Timed], Profile | None]:
    """What the repeats took, and the profile of one more run if that is asked for."""
    blocks = batch * -(-length // BLOCK_TOKENS)
    with Session(
        opened.model,
        threads=opened.threads,
        blocks=blocks,
        max_batch_tokens=max(batch, min(length, MAX_STEP_TOKENS)),
        max_batch_logits=batch,
        kv_type=opened.kv_type,
        states=batch,
    ) as session:
        limit_threads(session, opened.threads, settings.decode_threads)
        bench = Bench(session, batch, length, opened.model.config.vocab_size)
        test(bench, length)  # warms caches, pages and the clock of the cores
        timed = [test(bench, length) for _ in range(settings.repeat)]
        if settings.profile:
            bench.profile = Profile(opened.threads)
            test(bench, length)
        return timed, bench.profile


def _time_prefill(bench: Bench, tokens: int) -> Timed:
    start = Timed.now()
    with bench.measured():
        bench.prefill(0, tokens)
    return start.until_now()


def _time_decode(bench: Bench, *, context: int, tokens: int) -> Timed:
    current = [bench.prefill(sequence, context) for sequence in range(bench.batch)]
    start = Timed.now()
    with bench.measured():
        for step in range(tokens):
            current = bench.decode(current, context + step)
    return start.until_now()


def _check_lengths(settings: BenchSettings, opened: Opened) -> None:
    limit = opened.model.config.context_length
    if settings.prefill > limit:
        raise SettingsError(f"--prefill: {settings.prefill}; accepted: the model's {limit} at most")
    if settings.decode and settings.context + settings.decode > limit:
        raise SettingsError(
            f"--decode: {settings.decode} after --context {settings.context}; accepted: "
            f"the model's {limit} in all"
        )


def _print_table(report: dict[str, object], results: list[Result]) -> None:
    table = Table(
        "model", "size", "params", "level", "threads", "test", "tokens/s", "share of limit"
    )
    for column in table.columns[1:]:
        column.justify = "right"
    for result in results:
        table.add_row(
            f"{report['model']} {report['weights']}",
            format_size(int(str(report["size_bytes"]))),
            f"{int(str(report['parameters'])) / 1e6:.1f} M",
            *(str(report["isa"]), str(report["threads"]), result.name),
            f"{result.tokens_per_second:.1f} ± {result.spread:.1f}",
            f"{result.share_of_limit:.1%}",
        )
    limits = report["limits"]
    assert isinstance(limits, dict)
    console = Console(highlight=False)
    console.print(
        f"{report['cpu']}; limits: read {limits['read_gb_s']:.1f} GB/s,"
        f" int8 {limits['int8_gmac_s']:.0f} GMAC/s"
    )
    console.width = max(console.width, MIN_WIDTH)
    console.print(table)
    console.print(
        f"pp: a prompt of so many tokens; tg: so many written, @8: by 8 sequences together;"
        f" medians of {report['repeat']}, ± their standard deviation"
    )
    if report["busy"]:
        console.print(f"others used this machine: {report['busy']}; figures are too low")
    for result in results:
        if result.profile:
            print_rows(result.name, result.profile)
