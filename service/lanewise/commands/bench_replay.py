"""``lanewise bench --replay FILE,…``: what speculation gains on recorded texts.

All of a server's work is done, by the engine itself: the model runs over every row and a token is
drawn from it. Only then the recorded one takes its place, so that the speed of guessing a text can
be measured with weights that would never write it. A file holds a prompt, a line ``<<<answer>>>``,
and the answer. Runs with and without speculation take turns; the ratio is the median of the pairs'.
"""

import asyncio
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from lanewise.commands.opening import Opened
from lanewise.commands.perplexity import read_text
from lanewise.engine.base.block_pool import blocks_for
from lanewise.engine.base.config import EngineConfig
from lanewise.engine.base.request import GenerationRequest, SamplingParams
from lanewise.engine.engine import Engine
from lanewise.engine.guessing.block_head import head_of
from lanewise.engine.metering.metrics import Metrics, ModelFacts
from lanewise.runtime import Batch, Counters, Draw, Sampled, Session
from lanewise.runtime.step_threads import limit_threads
from lanewise.settings import BenchSettings, SettingsError
from lanewise.text.tokenizer import Tokenizer

ANSWER_MARK = "<<<answer>>>"
MAX_STEP_TOKENS = 512
SNAPSHOTS = 4  # of states, for each sequence: more than the ends of its prompts need


@dataclass(frozen=True, slots=True)
class Recording:
    """A prompt and its answer, in tokens of the model."""

    name: str
    tokens: list[int]
    n_prompt: int


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """One recording with so many sequences at once: tokens per second of all together, medians."""

    name: str
    batch: int
    answer_tokens: int
    tokens_per_second: float
    without_speculation: float
    ratio: float
    draft_tokens: int  # guessed in all runs
    accepted_tokens: int


def read_recordings(settings: BenchSettings, tokenizer: Tokenizer) -> list[Recording]:
    """The files of ``--replay``; raises SettingsError for one that cannot be used."""
    recordings = []
    for file in settings.replay:
        text = read_text(file, None, "--replay")
        prompt, mark, answer = text.partition(f"\n{ANSWER_MARK}\n")
        if not mark:
            raise SettingsError(f"--replay: {file} has no line {ANSWER_MARK} before the answer")
        ids = tokenizer.encode(prompt, add_bos=True, parse_special=False)
        rest = tokenizer.encode(answer, add_bos=False, parse_special=False)
        if not ids or len(rest) < 2:
            raise SettingsError(
                f"--replay: {file} has {len(ids)} tokens before the line {ANSWER_MARK} and "
                f"{len(rest)} behind it; accepted: at least 1 and 2"
            )
        recordings.append(Recording(Path(file).stem, ids + rest, len(ids)))
    return recordings


def run_replays(settings: BenchSettings, opened: Opened) -> list[ReplayResult]:
    """Measure every recording with every number of sequences."""
    recordings = read_recordings(settings, Tokenizer.from_files(opened.checkpoint.tokenizer))
    limit = opened.model.config.context_length
    for one in recordings:
        if len(one.tokens) > limit:
            raise SettingsError(
                f"--replay: {one.name} has {len(one.tokens)} tokens; accepted: the model's {limit}"
                " at most"
            )
    return [_replay(settings, opened, one, batch) for one in recordings for batch in settings.batch]


class ReplayRunner:
    """A session whose draws come out as recorded; the choice of a draw says whose it is.

    What was recorded is put in after each step, so none is begun ahead.
    """

    def __init__(self, session: Session, texts: Sequence[Sequence[int]]) -> None:
        self._session = session
        self._texts = texts

    def step_and_draw(self, batch: Batch, draws: Sequence[Draw]) -> list[Sampled]:
        """Run the batch, draw, and put what was recorded in the place of each token drawn."""
        drawn = self._session.step_and_draw(batch, draws)
        return [
            sampled._replace(token=self._recorded(draw))
            for sampled, draw in zip(drawn, draws, strict=True)
        ]

    def _recorded(self, draw: Draw) -> int:
        text = self._texts[draw.sampling.choice]
        return text[min(draw.position, len(text) - 1)]

    def hold_draws(self) -> None:
        """Hold the draws of the session."""
        self._session.hold_draws()

    def release_draws(self) -> None:
        """Release the draws of the session."""
        self._session.release_draws()

    def counters(self) -> Counters:
        """The counters of the session."""
        return self._session.counters()

    def close(self) -> None:
        """Close the session."""
        self._session.close()


def _replay(
    settings: BenchSettings, opened: Opened, recording: Recording, batch: int
) -> ReplayResult:
    requests = _requests(recording, batch)
    n_blocks = batch * (blocks_for(len(recording.tokens)) + 1)
    config = EngineConfig(
        n_blocks=n_blocks,
        max_model_len=len(recording.tokens),
        vocab_size=opened.model.config.vocab_size,
        max_seqs=batch,
        max_step_tokens=max(MAX_STEP_TOKENS, batch),
        max_step_logits=batch * (1 + settings.draft_tokens),
        max_draft=settings.draft_tokens,
        n_snapshots=SNAPSHOTS * batch if opened.model.config.has_states else None,
    )
    session = Session(
        opened.model,
        threads=opened.threads,
        blocks=n_blocks,
        max_batch_tokens=config.max_step_tokens,
        max_batch_logits=config.max_step_logits,
        kv_type=opened.kv_type,
        states=batch + (config.n_snapshots or 0),
        max_guesses=config.max_draft,
    )
    limit_threads(session, opened.threads, settings.decode_threads)
    metrics = Metrics(_facts(opened, config))
    head = head_of(session, config, opened.model)
    engine = Engine(ReplayRunner(session, [recording.tokens] * batch), config, metrics, head)
    engine.start()
    plain = [replace(request, max_draft=0) for request in requests]
    try:
        pairs = asyncio.run(_pairs(engine, requests, plain, settings.repeat))
    finally:
        engine.stop()
    return ReplayResult(
        name=recording.name,
        batch=batch,
        answer_tokens=requests[0].params.max_tokens,
        tokens_per_second=statistics.median(with_it for with_it, _ in pairs),
        without_speculation=statistics.median(without for _, without in pairs),
        ratio=statistics.median(with_it / without for with_it, without in pairs),
        draft_tokens=_count(metrics, "draft_tokens"),
        accepted_tokens=_count(metrics, "accepted_tokens"),
    )


def _requests(recording: Recording, batch: int) -> list[GenerationRequest]:
    """One sequence answers it all; several begin at different places and answer half of it each.

    Sequences that wrote the same at the same time would guess at the same time too.
    """
    answer = len(recording.tokens) - recording.n_prompt
    length = answer if batch == 1 else answer - answer // 2
    requests = []
    for index in range(batch):
        start = recording.n_prompt + index * (answer // 2) // batch
        params = SamplingParams(seed=0, max_tokens=length, temperature=0.0)
        requests.append(GenerationRequest(recording.tokens[:start], params, index))
    return requests


Requests = Sequence[GenerationRequest]


async def _pairs(
    engine: Engine, requests: Requests, plain: Requests, count: int
) -> list[tuple[float, float]]:
    """Speeds with and without speculation, each time in the other order."""
    await _tokens_per_second(engine, requests)  # costs are learnt, the prefix cache is filled
    pairs = []
    for index in range(count):
        if index % 2:
            without = await _tokens_per_second(engine, plain)
            pairs.append((await _tokens_per_second(engine, requests), without))
        else:
            with_it = await _tokens_per_second(engine, requests)
            pairs.append((with_it, await _tokens_per_second(engine, plain)))
    return pairs


async def _tokens_per_second(engine: Engine, requests: Requests) -> float:
    """From the step after which all sequences decode until the first of them ends.

    Guesses make some faster than others: the batch is full all the time that counts. A short answer
    may come in one piece where others keep this process waiting: then all of it counts.
    """
    waiting = {request.choice for request in requests}
    counted, written, begun = 0, 0, time.perf_counter()
    start = begun
    async with engine.submit(requests) as stream:
        async for outputs in stream:
            written += len(outputs)
            if not waiting:
                counted += len(outputs)
                if any(output.finish_reason for output in outputs):
                    break
            else:
                waiting.difference_update(output.index for output in outputs)
                start = time.perf_counter()
    ended = time.perf_counter()
    speed = counted / (ended - start) if counted else written / (ended - begun)
    while engine.unfinished:  # noqa: ASYNC110 - the engine is another thread
        await asyncio.sleep(0.001)
    return speed


def _facts(opened: Opened, config: EngineConfig) -> ModelFacts:
    return ModelFacts(
        model_name=opened.checkpoint.name,
        isa=opened.model.info.isa,
        threads=opened.threads,
        weights=opened.model.weights,
        kernels="",
        version="",
        kv_type=opened.kv_type,
        prefix_cache=config.prefix_cache,
        n_blocks=config.n_blocks,
        max_model_len=config.max_model_len,
        max_draft=config.max_draft,
    )


def _count(metrics: Metrics, name: str) -> int:
    labels = {"model_name": metrics.facts.model_name, "engine": "0"}
    value = metrics.registry.get_sample_value(f"vllm:spec_decode_num_{name}_total", labels)
    return int(value or 0)


def print_replays(results: Sequence[ReplayResult]) -> None:
    """A table."""
    numbers = ("sequences", "tokens/s", "without", "ratio", "guesses that came true")
    table = Table("recording", *numbers)
    for column in table.columns[1:]:
        column.justify = "right"
    for one in results:
        share = f"{one.accepted_tokens / one.draft_tokens:.0%}" if one.draft_tokens else "none made"
        table.add_row(
            *(one.name, str(one.batch), f"{one.tokens_per_second:.1f}"),
            *(f"{one.without_speculation:.1f}", f"{one.ratio:.2f}", share),
        )
    Console(highlight=False).print(table)
